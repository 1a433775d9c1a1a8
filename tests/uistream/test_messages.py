from __future__ import annotations

import json
from typing import Any

from callstream import codec
from callstream.agui import View
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallFailed,
    CallProgressed,
    CallReturned,
    CallStarted,
    MessageReceived,
    MessageStarted,
    Question,
    RunEnded,
    RunEvent,
    RunStarted,
    StateChanged,
    TextAppended,
)
from callstream.uistream import begins_turn, fold, turns, ui_messages
from callstream.view import RunView
from tests.uistream.test_translator import run_of

FINISHED = RunEnded("finished")


def said(message_id: str, text: str) -> list[RunEvent]:
    return [MessageStarted(message_id), TextAppended(message_id, text)]


def shown(*runs: RunView, **given: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(codec.encode(ui_messages(runs, **given)))
    return messages


def texts(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (message["id"], "".join(part["text"] for part in message["parts"] if part["type"] == "text"))
        for message in messages
    ]


def test_a_turn_is_one_message_whatever_number_of_runs_it_takes() -> None:
    first = run_of(
        MessageReceived("user", "Go", "u"),
        *said("m", "I ask."),
        CallStarted("c", "pick", message_id="m"),
        CallCompleted("c", "{}"),
        CallAwaiting("c"),
        FINISHED,
        run_id="r1",
    )
    second = run_of(CallReturned("c", "blue", "t"), *said("n", "Blue."), FINISHED, run_id="r2")
    third = run_of(MessageReceived("user", "Thanks", "v"), *said("o", "Welcome."), FINISHED, run_id="r3")
    assert [len(turn.runs) for turn in turns([first, second, third])] == [2, 1]
    messages = shown(first, second, third)
    assert texts(messages) == [("u", "Go"), ("turn-r1", "I ask.Blue."), ("v", "Thanks"), ("turn-r3", "Welcome.")]
    [call] = [part for part in messages[1]["parts"] if part["type"] == "tool-pick"]
    assert call == {"type": "tool-pick", "toolCallId": "c", "state": "output-available", "input": {}, "output": "blue"}
    assert messages[1]["metadata"] == {"runId": "r2"}


def test_what_is_being_written_is_left_to_the_stream() -> None:
    first = run_of(MessageReceived("user", "Go", "u"), *said("m", "One."), FINISHED, run_id="r1")
    second = run_of(MessageReceived("user", "On", "v"), *said("n", "Tw"), run_id="r2")
    assert texts(shown(first, second)) == [("u", "Go"), ("turn-r1", "One."), ("v", "On")]


def test_what_a_user_has_said_is_shown_before_it_is_recorded() -> None:
    """A run begins with its input. Its host records the messages in it a moment later."""
    first = run_of(MessageReceived("user", "Go", "u"), *said("m", "One."), FINISHED, run_id="r1")

    def asked(*messages: Any, ends: bool = False) -> list[tuple[str, str]]:
        second = run_of(*([FINISHED] if ends else []), run_id="r2")
        second.input = {"messages": list(messages)}
        return texts(shown(first, second))

    known = [("u", "Go"), ("turn-r1", "One.")]
    on = {"id": "v", "role": "user", "content": "On"}
    assert asked(on, {"id": "t", "role": "tool", "content": "1"}, {"role": "user"}, "?") == [*known, ("v", "On")]
    assert asked({"id": "v", "role": "user", "content": [{"type": "text", "text": "On"}]}) == [*known, ("v", "On")]
    assert asked({"id": "u", "role": "user", "content": "Go"}) == known  # beside an answer
    assert asked({"id": "u~again-1", "role": "user", "content": "Went"}) == [("u", "Went")]
    assert asked(on, ends=True) == known  # no agent has heard it


def test_a_message_that_replaces_another_takes_what_followed_with_it() -> None:
    runs = [
        run_of(MessageReceived("user", "Go", "u"), *said("m", "One."), FINISHED, run_id="r1"),
        run_of(MessageReceived("user", "On", "v"), *said("n", "Two."), FINISHED, run_id="r2"),
        run_of(MessageReceived("user", "Went", "u~again-1"), *said("o", "Three."), FINISHED, run_id="r3"),
    ]
    assert texts(shown(*runs)) == [("u", "Went"), ("turn-r3", "Three.")]


def test_a_run_begins_a_turn_by_its_input_before_that_is_recorded() -> None:
    run = RunView()
    assert not begins_turn(run)
    run.input = {"messages": [{"id": "t", "role": "tool"}, "?"]}
    assert not begins_turn(run)
    run.input = {"messages": [{"id": "u", "role": "user", "content": "Go"}]}
    assert begins_turn(run)


def test_parts_and_instructions_of_the_input() -> None:
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}},
        {"type": "image", "source": {"type": "url", "value": "https://example.com/x", "mimeType": "image/gif"}},
        {"type": "audio", "source": {"type": "url", "value": "https://example.com/y"}},
        {"type": "unknown"},
        "?",
    ]
    started = RunStarted("thread", None, {"messages": [{"id": "u", "role": "user", "content": parts}]})
    received = MessageReceived("user", "Look", "u", ("image", "audio"))
    run = run_of(MessageReceived("system", "Be brief.", "s"), received, FINISHED, started=started)
    system, user = shown(run)
    assert system == {"id": "s", "role": "system", "parts": [{"type": "text", "text": "Be brief."}]}
    assert user["parts"] == [
        {"type": "text", "text": "Look"},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"},
        {"type": "file", "mediaType": "image/gif", "url": "https://example.com/x"},
        {"type": "file", "mediaType": "audio/*", "url": "https://example.com/y"},
    ]


def test_what_a_page_shows_of_calls_that_are_not_over() -> None:
    run = run_of(
        MessageStarted("m"),
        CallStarted("a", "ask", message_id="m"),
        CallCompleted("a", "{}"),
        CallProgressed("a", 1),
        StateChanged({"n": 1}),
        StateChanged({"n": 2}),
        CallStarted("b", "wait", message_id="m"),
        CallCompleted("b", "{}"),
        CallAwaiting("b"),
        CallAwaiting("a"),
        FINISHED,
    )
    [message] = shown(run, view=View())
    asked, state, waits = message["parts"][1:]
    assert (asked["state"], asked["output"], asked["preliminary"]) == ("output-available", 1, True)
    assert state == {"type": "data-state", "id": "state", "data": {"n": 2}}
    assert (waits["state"], waits["approval"]) == ("approval-requested", {"id": "b"})


def test_what_a_page_shows_of_calls_that_failed() -> None:
    run = run_of(
        MessageStarted("m"),
        CallStarted("a", "fail", message_id="m"),
        ArgsAppended("a", '{"n":1}'),
        CallCompleted("a"),
        CallFailed("a", "secret"),
        CallStarted("b", "deny", message_id="m"),
        CallCompleted("b", "{}"),
        CallAwaiting("b", Question()),
        CallDiscarded("b", "rejected"),
        CallStarted("c", "half", message_id="m"),
        ArgsAppended("c", '{"n":'),
        CallDiscarded("c", "truncated"),
        FINISHED,
    )
    [message] = shown(run)
    failed, denied, half = message["parts"][1:-1]
    assert (failed["state"], failed["input"], failed["errorText"]) == ("output-error", {"n": 1}, "the tool failed")
    assert denied["state"] == "output-denied"
    assert (half["state"], half["rawInput"]) == ("output-error", '{"n":')
    assert "input" not in half


def test_fold_takes_what_a_client_takes_live() -> None:
    state = {"type": "data-state", "id": "state"}
    told = [{**state, "data": 1}, {**state, "data": 2}, {"type": "finish"}]
    assert fold(told)["parts"] == [{**state, "data": 2}]
