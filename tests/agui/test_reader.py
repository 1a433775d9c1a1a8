"""AG-UI events of an agent that knows nothing of a journal, as events of a run."""

from __future__ import annotations

from typing import Any

import pytest

from callstream.agui import Reader
from callstream.agui.reader import AgentError
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallProgressed,
    CallReturned,
    CallSigned,
    CallStarted,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    RunEvent,
    StateChanged,
    TextAppended,
)

START = {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "ask", "parentMessageId": "m"}
END = {"type": "TOOL_CALL_END", "toolCallId": "c"}


def args(delta: str) -> dict[str, Any]:
    return {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": delta}


def read(*events: dict[str, Any]) -> list[RunEvent]:
    reader = Reader()
    return [told for event in events for told in reader.read(event)]


def test_text_and_reasoning() -> None:
    assert read(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "REASONING_MESSAGE_START", "messageId": "r1", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r1", "delta": "hm"},
        {"type": "REASONING_MESSAGE_END", "messageId": "r1"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Hi"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
        {"type": "STEP_STARTED", "stepName": "x"},
    ) == [
        MessageStarted("r1"),
        ReasoningAppended("r1", "hm"),
        MessageEnded("r1"),
        MessageStarted("m"),
        TextAppended("m", "Hi"),
        MessageEnded("m"),
    ]


def test_calls_are_complete_at_their_end_if_they_parse() -> None:
    started = CallStarted("c", "ask", "c", message_id="m")
    assert read(START, args('{"a":'), args(""), args("1}"), END) == [
        started,
        ArgsAppended("c", '{"a":'),
        ArgsAppended("c", "1}"),
        CallCompleted("c", '{"a":1}'),
    ]
    assert read(START, END) == [started, CallCompleted("c", "{}")]
    for wrong in ('{"a":', '{"a": NaN}'):
        *_, last = read(START, args(wrong), END)
        assert isinstance(last, CallDiscarded)
        assert last.reason == "malformed"


def test_results_signatures_progress_and_state() -> None:
    assert read(
        {"type": "TOOL_CALL_RESULT", "messageId": "x", "toolCallId": "c", "content": '{"ok":true}'},
        {"type": "TOOL_CALL_RESULT", "messageId": "x", "toolCallId": "c", "content": "plain"},
        {"type": "TOOL_CALL_RESULT", "messageId": "x", "toolCallId": "c", "content": [1]},
        {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "tool-call", "entityId": "c", "encryptedValue": "s"},
        {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": "m", "encryptedValue": "s"},
        {"type": "ACTIVITY_SNAPSHOT", "activityType": "tool_progress", "content": {"toolCallId": "c", "progress": 1}},
        {"type": "ACTIVITY_SNAPSHOT", "activityType": "other", "content": {"toolCallId": "c", "progress": 1}},
        {"type": "ACTIVITY_SNAPSHOT", "activityType": "other", "content": {}},
        {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/b", "value": 2}]},
    ) == [
        CallReturned("c", {"ok": True}),
        CallReturned("c", "plain"),
        CallReturned("c", [1]),
        CallSigned("c", "s"),
        CallProgressed("c", 1),
        StateChanged({"a": 1}),
        StateChanged(patch=[{"op": "add", "path": "/b", "value": 2}]),
    ]


def test_progress_says_that_the_tool_runs() -> None:
    progress = {"type": "ACTIVITY_SNAPSHOT", "activityType": "tool_progress"}
    told = read(
        START,
        END,
        {**progress, "content": {"toolCallId": "c", "progress": 1}},
        {**progress, "content": {"toolCallId": "c", "progress": 2}},
    )
    assert told[2:] == [CallExecuting("c"), CallProgressed("c", 1), CallProgressed("c", 2)]


def test_reasoning_chunks_stand_for_starts_and_ends() -> None:
    assert read(
        {"type": "REASONING_MESSAGE_CHUNK", "messageId": "r", "delta": "h"},
        {"type": "REASONING_MESSAGE_CHUNK", "delta": "m"},
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "a"},
    ) == [
        MessageStarted("r"),
        ReasoningAppended("r", "h"),
        ReasoningAppended("r", "m"),
        MessageEnded("r"),
        MessageStarted("m"),
        TextAppended("m", "a"),
    ]


def test_the_end_of_the_events_ends_chunks() -> None:
    reader = Reader()
    reader.read({"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "ask", "delta": "{}"})
    assert reader.end() == [CallCompleted("c", "{}")]
    assert reader.end() == []
    reader.read({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "a"})
    assert reader.end() == [MessageEnded("m")]


def test_chunks_stand_for_starts_and_ends() -> None:
    assert read(
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "a"},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "b"},
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "n", "delta": "c"},
        {"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "ask", "delta": "{"},
        {"type": "TOOL_CALL_CHUNK", "delta": "}"},
        {"type": "TOOL_CALL_CHUNK", "toolCallId": "d", "toolCallName": "ask"},
        {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
    ) == [
        MessageStarted("m"),
        TextAppended("m", "a"),
        TextAppended("m", "b"),
        MessageEnded("m"),
        MessageStarted("n"),
        TextAppended("n", "c"),
        MessageEnded("n"),
        CallStarted("c", "ask", "c"),
        ArgsAppended("c", "{"),
        ArgsAppended("c", "}"),
        CallCompleted("c", "{}"),
        CallStarted("d", "ask", "d"),
        CallCompleted("d", "{}"),
    ]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"no": "type"}, "an object with a type"),
        ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m"}, "TEXT_MESSAGE_CONTENT to have 'delta'"),
        ({"type": "TEXT_MESSAGE_CHUNK", "delta": "a"}, "to have 'messageId'"),
        ({"type": "TOOL_CALL_CHUNK", "delta": "a"}, "to have 'toolCallId'"),
        (args("1"), "before its arguments"),
        (END, "before its end"),
        (
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": None},
            "TEXT_MESSAGE_CONTENT's 'delta' to be text",
        ),
        ({"type": "TEXT_MESSAGE_START", "messageId": 7}, "TEXT_MESSAGE_START's 'messageId' to be text, got int"),
        ({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": 7}, "'delta' to be text"),
        ({**START, "toolCallName": ["ask"]}, "'toolCallName' to be text"),
        ({**START, "parentMessageId": 7}, "'parentMessageId' to be text"),
        ({"type": "STATE_DELTA", "delta": "x"}, "'delta' to be a list of operations"),
        ({"type": "STATE_DELTA", "delta": [1]}, "'delta' to be a list of operations"),
    ],
)
def test_what_is_no_event_is_the_agents_fault(event: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read(event)


def test_a_second_start_of_an_open_call_is_the_agents_fault() -> None:
    with pytest.raises(UsageError, match="expected TOOL_CALL_END of call 'c' before it starts again"):
        read(START, START)


def test_an_error_is_raised() -> None:
    with pytest.raises(AgentError, match="no more tokens"):
        read({"type": "RUN_ERROR", "message": "no more tokens"})
    with pytest.raises(AgentError, match="reported an error"):
        read({"type": "RUN_ERROR"})
