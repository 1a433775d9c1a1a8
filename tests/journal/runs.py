"""Runs to write into a journal, and ways to read them back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from callstream.calls import CallState
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallSigned,
    CallStarted,
    Event,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    ReasoningAppended,
    Record,
    ResponseEnded,
    RunEnded,
    RunEvent,
    RunStarted,
    StateChanged,
    TextAppended,
)
from callstream.journal import Entry, Journal

START = RunStarted("thread")
DONE = RunEnded("finished")


def whole_run() -> list[RunEvent | Entry]:
    """A run with one of everything, two calls interleaved, and text on both sides of them."""
    return [
        RunStarted("thread", "alice", {"question": "?"}),
        MessageReceived("user", "write", "u1", ("image/png",)),
        Entry(MessageStarted("m1"), "resp-1", "writer"),
        Entry(ReasoningAppended("m1", "think"), "resp-1", "writer"),
        Entry(ReasoningAppended("m1", "ing"), "resp-1", "writer"),
        Entry(TextAppended("m1", "Hel"), "resp-1", "writer"),
        Entry(TextAppended("m1", "lo"), "resp-1", "writer"),
        Entry(CallStarted("a", "write", "a", "sig", message_id="m1"), "resp-1", "writer"),
        Entry(ArgsAppended("a", '{"x":'), "resp-1", "writer"),
        Entry(CallStarted("b", "shell", "b", encoding="text"), "resp-1", "writer"),
        Entry(ArgsAppended("b", 'echo "'), "resp-1", "writer"),
        Entry(ArgsAppended("a", '"é\U0001f600'), "resp-1", "writer"),
        Entry(ArgsAppended("b", 'hi"'), "resp-1", "writer"),
        Entry(ArgsAppended("a", '"}'), "resp-1", "writer"),
        CallSigned("a", "sig2"),
        CallCompleted("a", '{"x":"é\U0001f600"}'),
        CallCompleted("b", '"echo \\"hi\\""'),
        Entry(TextAppended("m1", "!"), "resp-1", "writer"),
        MessageEnded("m1"),
        ResponseEnded("stop", {"tokens": 3}),
        CallExecuting("a"),
        CallProgressed("a", {"done": 1}),
        CallReturned("a", {"ok": [1, 2.5, None, 2**70]}),
        CallExecuting("b"),
        CallFailed("b", "no shell"),
        StateChanged(patch=[{"op": "add", "path": "/a", "value": 1}]),
        DONE,
    ]


async def records(journal: Journal, run_id: str = "r", after: int = 0) -> list[Record]:
    return [record async for record in journal.read(run_id, after)]


async def followed(journal: Journal, run_id: str = "r", after: int = 0) -> list[Record]:
    return [record async for record in journal.follow(run_id, after)]


def event_of(entry: RunEvent | Entry) -> RunEvent:
    return entry.event if isinstance(entry, Entry) else entry


def as_read(entry: RunEvent | Entry) -> RunEvent:
    event = event_of(entry)
    return CallCompleted(event.call_id) if isinstance(event, CallCompleted) else event


async def fold(journal: Journal, run_id: str = "r") -> dict[str, Any]:
    """What an interface makes of a run: joined text by message and call, all other events, the calls' rows."""
    texts: dict[tuple[type[Event], str], str] = {}
    others = []
    for record in await records(journal, run_id):
        match record.event:
            case ArgsAppended(call_id=whose, text=text):
                texts[ArgsAppended, whose] = texts.get((ArgsAppended, whose), "") + text
            case TextAppended(message_id=whose, text=text) | ReasoningAppended(message_id=whose, text=text):
                key = (type(record.event), whose)
                texts[key] = texts.get(key, "") + text
            case event:
                others.append((record.seq, record.at, event, record.response_id, record.author))
    calls = [await journal.call(call.call_id) for call in await journal.calls(run_id=run_id)]
    return {"texts": texts, "others": others, "calls": calls, "runs": await journal.runs(run_id=run_id)}


TO_STATE: dict[CallState, list[RunEvent]] = {
    CallState.STARTED: [],
    CallState.ARGS_STREAMING: [ArgsAppended("c", "{")],
    CallState.ARGS_COMPLETE: [CallCompleted("c")],
    CallState.EXECUTING: [CallCompleted("c"), CallExecuting("c")],
    CallState.AWAITING: [CallCompleted("c"), CallAwaiting("c")],
    CallState.COMPLETED: [CallCompleted("c"), CallReturned("c")],
    CallState.FAILED: [CallCompleted("c"), CallFailed("c", "e")],
    CallState.RELEASED: [CallCompleted("c"), CallReleased("c")],
    CallState.DISCARDED: [CallDiscarded("c", "aborted")],
}


def fields_of(event: RunEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def long_run() -> list[RunEvent]:
    """Two calls and a text whose pieces lie between each other, over several pages, with much that is never folded."""
    events: list[RunEvent] = [
        START,
        MessageStarted("m"),
        TextAppended("m", "Now "),
        CallStarted("a", "t", message_id="m"),
    ]
    events += [CallStarted("b", "t", message_id="m"), ArgsAppended("a", '["')]
    for number in range(600):
        events += [ArgsAppended("a", f"{number},"), ReasoningAppended("m", f"é{number}")]
        events.append(ArgsAppended("b", "[1]") if not number else StateChanged({"step": number}))
    return [*events, TextAppended("m", "done"), ArgsAppended("a", '"]'), CallCompleted("a"), CallCompleted("b"), DONE]


def texts_in(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    texts: dict[tuple[str, str], str] = {}
    for record in records:
        match record.event:
            case ArgsAppended(call_id=name, text=text) | TextAppended(message_id=name, text=text) as event:
                key = (type(event).__name__, name)
            case ReasoningAppended(message_id=name, text=text):
                key = ("reasoning", name)
            case _:
                continue
        texts[key] = texts.get(key, "") + text
    return texts
