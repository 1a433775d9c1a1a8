"""From records to AG-UI events: state, what is pending, and the end of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.agui import Translator, View, encode
from callstream.errors import UsageError
from callstream.events import (
    CallAwaiting,
    CallCompleted,
    CallExecuting,
    CallReturned,
    CallStarted,
    MessageReceived,
    MessageStarted,
    Question,
    ReasoningAppended,
    ResponseEnded,
    RunEnded,
    RunEvent,
    StateChanged,
    TextAppended,
)
from tests.agui.model import as_json

from .translating import FINISHED, kinds, records, sent

# -- state --


def test_state_is_a_snapshot_or_a_delta() -> None:
    patch = [{"op": "add", "path": "/a", "value": None}]
    assert sent(StateChanged({"a": 1}), StateChanged(None), StateChanged(patch=patch), StateChanged(patch=[])) == [
        {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}},
        {"type": "STATE_SNAPSHOT", "snapshot": None},
        {"type": "STATE_DELTA", "delta": patch},
        {"type": "STATE_DELTA", "delta": []},
    ]


def awaiting(call_id: str, name: str) -> list[RunEvent]:
    return [CallStarted(call_id, name, message_id="m"), CallCompleted(call_id), CallAwaiting(call_id)]


# -- the end --


def test_awaiting_calls_are_pending_in_the_order_they_were_made() -> None:
    [*_, end] = sent(
        *awaiting("a", "pick"), *awaiting("b", "approve"), *awaiting("c", "pick"), CallReturned("a"), FINISHED
    )
    assert end == {
        "type": "RUN_FINISHED",
        "threadId": "thread",
        "runId": "run",
        "outcome": {"type": "success", "pendingToolCallIds": ["b", "c"]},
    }


def test_awaiting_calls_are_interrupts_where_asked_for() -> None:
    view = View(
        emit_interrupt_outcome=True,
        client_tools=frozenset({"pick"}),
        response_schemas={"approve": {"type": "boolean"}},
    )
    [*_, end] = sent(*awaiting("a", "pick"), *awaiting("b", "approve"), *awaiting("c", "confirm"), FINISHED, view=view)
    interrupt = {"reason": "tool_call"}
    assert end["outcome"] == {
        "type": "interrupt",
        "interrupts": [
            {
                **interrupt,
                "id": "b",
                "toolCallId": "b",
                "message": "approve awaits an answer.",
                "responseSchema": {"type": "boolean"},
            },
            {**interrupt, "id": "c", "toolCallId": "c", "message": "confirm awaits an answer."},
        ],
    }
    [*_, end] = sent(*awaiting("a", "pick"), FINISHED, view=view)
    assert end["outcome"] == {"type": "success", "pendingToolCallIds": ["a"]}


def test_question_about_a_call_is_pending_in_its_place() -> None:
    question = Question("confirmation", "May it?", {"type": "object"}, {"payload": 1}, about="a")
    events = [
        *awaiting("a", "remove")[:2],
        CallAwaiting("a", is_paused=True),
        *awaiting("q", "ask")[:2],
        CallAwaiting("q", question),
        FINISHED,
    ]
    [*_, end] = sent(*events)
    assert end["outcome"] == {"type": "success", "pendingToolCallIds": ["q"]}
    [*_, end] = sent(*events, view=View(emit_interrupt_outcome=True))
    (interrupt,) = end["outcome"]["interrupts"]
    assert interrupt == {
        "id": "q",
        "toolCallId": "q",
        "reason": "confirmation",
        "message": "May it?",
        "responseSchema": {"type": "object"},
        "metadata": {"payload": 1},
    }


def test_an_earlier_call_that_awaits_again_is_not_this_runs() -> None:
    assert sent(CallAwaiting("earlier"), FINISHED)[-1]["outcome"] == {"type": "success"}


def test_stopped_is_the_cancelled_outcome() -> None:
    [end] = sent(RunEnded("cancelled", "stopped"))
    assert end["type"] == "RUN_FINISHED"
    assert end["outcome"] == {"type": "cancelled"}


@pytest.mark.parametrize(
    ("reason", "errors", "message", "code"),
    [
        ("KeyError: 'secret'", False, "The run failed.", "failed"),
        ("KeyError: 'secret'", True, "The run failed: KeyError: 'secret'", "failed"),
        (None, True, "The run failed.", "failed"),
        ("interrupted", False, "The run failed.", "interrupted"),
    ],
)
def test_a_failed_run_is_an_error_without_internals(reason: str | None, errors: bool, message: str, code: str) -> None:
    [end] = sent(RunEnded("failed", reason), view=View(errors=errors))
    assert end == {"type": "RUN_ERROR", "message": message, "code": code}


@pytest.mark.parametrize("outcome", ["finished", "failed", "cancelled"])
def test_closed_before_finished_even_if_the_journal_left_something_open(outcome: Any) -> None:
    assert kinds(
        ReasoningAppended("m", "x"),
        TextAppended("n", "y"),
        CallStarted("c", "write", message_id="o"),
        CallStarted("d", "write", message_id="o"),
        CallCompleted("d", "{}"),
        RunEnded(outcome),
    )[9:-1] == [
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
        "TOOL_CALL_RESULT",
    ]


def test_input_and_bookkeeping_are_not_told() -> None:
    assert sent(MessageReceived("user", "hello"), MessageStarted("m"), ResponseEnded(), CallExecuting("c")) == []


def test_a_stream_ends_before_its_run_with_an_error() -> None:
    translator = Translator()
    for record in records(TextAppended("m", "x"), CallStarted("c", "write", message_id="n")):
        translator.feed(record)
    told = [as_json(event) for event in translator.end()]
    assert [event["type"] for event in told] == ["TEXT_MESSAGE_END", "TOOL_CALL_END", "RUN_ERROR"]
    assert told[-1]["code"] == "incomplete"
    assert [event["metadata"]["seq"] for event in told] == [3, 3, 3]
    assert translator.end() == []


def test_a_stream_that_never_began_ends_with_an_error() -> None:
    [event] = Translator().end()
    assert json.loads(encode(event))["type"] == "RUN_ERROR"


def test_records_must_be_those_of_a_run_from_its_beginning_to_its_end() -> None:
    translator = Translator()
    first, second, last = records(TextAppended("m", "x"), FINISHED)
    with pytest.raises(UsageError, match="expected the first record of run 'run', got record 2"):
        translator.feed(second)
    for record in (first, second, last):
        translator.feed(record)
    with pytest.raises(UsageError, match="run 'run' has ended; record 2 cannot follow"):
        translator.feed(second)
