"""What one stream shows of the translator's events, by the options of its agent and the messages of its client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callstream.agui import AguiEvent
from callstream.agui.events import MessagesSnapshot
from callstream.agui.messages import AssistantMessage, CalledFunction, MessageToolCall, Metadata
from callstream.agui.presentation import OlderClient, Predictions, PredictStateMapping, Presentation
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallReturned,
    CallStarted,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    RunEvent,
    TextAppended,
)

from .translating import events_of

DOCUMENT = PredictStateMapping("document", "write", "body")
PIECES = [ArgsAppended("c", '{"body":'), ArgsAppended("c", '"a"}')]
CALL: list[RunEvent] = [MessageStarted("m"), CallStarted("c", "write"), *PIECES, CallCompleted("c", None)]


def presentation(
    *mappings: PredictStateMapping, streams: bool = True, answered: Sequence[str] = (), known: Sequence[str] = ()
) -> Presentation:
    return Presentation(
        Predictions(mappings), streams_arguments=streams, answered=frozenset(answered), known=frozenset(known)
    )


def shown(by: Presentation, events: Sequence[AguiEvent]) -> list[AguiEvent]:
    """One at a time, as a client that keeps up gets them."""
    return [each for event in events for each in by.show([event])]


def asked(call_id: str) -> MessageToolCall:
    return MessageToolCall(id=call_id, function=CalledFunction(name="write", arguments="{}"))


def kinds(events: Sequence[AguiEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_events_are_shown_as_they_are() -> None:
    events = events_of(*CALL, CallReturned("c", 1), MessageStarted("n"), TextAppended("n", "Done."), MessageEnded("n"))
    assert shown(presentation(), events) == events
    assert presentation().show(events) == events


def test_arguments_are_held_until_they_are_whole() -> None:
    events = events_of(*CALL)
    told: list[Any] = shown(presentation(streams=False), events)
    assert kinds(told) == ["ToolCallStart", "ToolCallArgs", "ToolCallEnd"]
    assert told[1].delta == '{"body":"a"}'
    assert told[1].metadata == told[2].metadata


def test_a_snapshot_voids_the_pieces_of_calls_that_it_has_not() -> None:
    by = presentation(streams=False)
    events = events_of(*CALL)
    shown(by, events[:-1])
    message = AssistantMessage(id="m", tool_calls=(asked("d"),))
    by.show([MessagesSnapshot(messages=(message,), metadata=Metadata(1))])
    assert kinds(by.show(events[-1:])) == ["ToolCallEnd"]


def test_a_result_that_the_client_has_is_not_sent_again() -> None:
    events = events_of(*CALL, CallReturned("c", 1))
    assert kinds(events)[-1] == "ToolCallResult"
    assert shown(presentation(answered=["c"]), events) == events[:-1]


def test_a_call_that_the_client_has_does_not_begin_again() -> None:
    """Until the agent says something: what is taken in comes first, and after that an id may be a new call's."""
    events = events_of(*CALL)
    assert shown(presentation(known=["c"]), events) == []
    for spoken in (TextAppended("n", "So."), ReasoningAppended("n", "Hm.")):
        later = events_of(MessageStarted("n"), spoken, MessageEnded("n"), *CALL)
        assert shown(presentation(known=["c"]), later) == later


def test_a_prediction_is_announced_once_before_the_first_call() -> None:
    other = [CallStarted("d", "write", message_id="m"), CallCompleted("d", "{}")]
    told: list[Any] = shown(presentation(DOCUMENT), events_of(*CALL, *other))
    assert [event.value for event in told if type(event).__name__ == "Custom"] == [[DOCUMENT.to_payload()]]
    assert kinds(told)[:2] == ["Custom", "ToolCallStart"]


def test_a_result_waits_for_the_consent_of_the_clients_user() -> None:
    events = events_of(*CALL, CallReturned("c", 1))
    assert "ToolCallResult" not in kinds(shown(presentation(DOCUMENT), events))
    silent = PredictStateMapping("document", "write", "body", emit_confirm_tool=False)
    assert kinds(shown(presentation(silent), events))[-1] == "ToolCallResult"


def test_a_client_that_learns_of_a_call_by_a_snapshot_waits_for_consent_too() -> None:
    by = presentation(DOCUMENT)
    message = AssistantMessage(id="m", tool_calls=(asked("c"),))
    by.show([MessagesSnapshot(messages=(message,), metadata=Metadata(1))])
    assert by.show(events_of(*CALL, CallReturned("c", 1))[-1:]) == []


def test_an_older_client_is_shown_what_the_options_leave() -> None:
    events = events_of(*CALL, CallReturned("c", 1))
    assert OlderClient(presentation(answered=["c"])).show(events) == events[:-1]
    assert OlderClient(None).show(events) == events
