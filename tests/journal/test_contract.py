"""What every journal promises. The same tests run on memory, SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import string
import threading
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream
from callstream.calls import TRANSITIONS, CallState
from callstream.errors import CallIdTaken, Compacted, LeaseLost, ThreadBusy, TransitionError, UsageError
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
from callstream.journal import Entry, Housekeeping, Journal, history, open_journal

from .conftest import BACKENDS, Place

pytestmark = pytest.mark.asyncio

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


# -- appending and reading ---------------------------------------------------------------------------------------------


async def test_one_suite_three_backends(place: Place) -> None:
    assert place.backend in BACKENDS
    store = place.journal()._store  # type: ignore[attr-defined]
    assert type(store).__name__.removesuffix("Store").lower() == place.backend
    assert place.journal().is_persistent == (place.backend != "memory")


async def test_append_numbers_from_one_and_reads_back_what_was_written(journal: Journal) -> None:
    events = whole_run()
    assert await journal.append("r", events[:3]) == 3
    assert await journal.append("r", events[3:]) == len(events)
    read = await records(journal)
    assert [record.seq for record in read] == list(range(1, len(events) + 1))
    assert [record.event for record in read] == [as_read(event) for event in events]
    assert [record.run_id for record in read] == ["r"] * len(events)
    assert {(record.response_id, record.author) for record in read[2:14]} == {("resp-1", "writer")}
    assert (read[0].response_id, read[0].author, read[0].first_seq) == (None, None, None)
    assert all(earlier.at <= later.at for earlier, later in pairwise(read))


async def test_append_keeps_the_row_of_a_call_beside_the_log(journal: Journal) -> None:
    await journal.append("r", whole_run())
    a, b = await journal.calls(run_id="r")
    assert (a.call_id, a.name, a.state, a.run_id, a.thread_id) == ("a", "write", CallState.COMPLETED, "r", "thread")
    assert (a.provider_id, a.message_id, a.signature, a.encoding) == ("a", "m1", "sig2", "json")
    assert (a.result, a.error, a.args_json) == ({"ok": [1, 2.5, None, 2**70]}, None, None)
    assert (b.state, b.error, b.encoding) == (CallState.FAILED, "no shell", "text")
    assert 0 < (a.started_at or 0) <= (a.updated_at or 0)


async def test_call_puts_its_arguments_together(journal: Journal) -> None:
    await journal.append("r", whole_run())
    a, b = await journal.call("a"), await journal.call("b")
    assert a is not None
    assert a.args_json == '{"x":"é\U0001f600"}'
    assert b is not None
    assert b.args_json == '"echo \\"hi\\""'
    assert await journal.call("nobody") is None


async def test_call_that_is_being_written_shows_what_came(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", '{"a"'), ArgsAppended("c", ":1")])
    call = await journal.call("c")
    assert call is not None
    assert (call.state, call.args_json) == (CallState.ARGS_STREAMING, '{"a":1')


async def test_call_that_came_whole_keeps_its_arguments(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("c", "t"), CallCompleted("c", '{"a":1}'), DONE])
    for _ in range(2):
        call = await journal.call("c")
        assert call is not None
        assert (call.state, call.args_json) == (CallState.ARGS_COMPLETE, '{"a":1}')
        await journal.compact("r")


async def test_identical_deltas_kept(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("c", "t")])
    for _ in range(3):
        await journal.append("r", [ArgsAppended("c", "aa")])
    await journal.append("r", [ArgsAppended("c", "aa"), ArgsAppended("c", "aa")])
    pieces = [record.event for record in await records(journal) if isinstance(record.event, ArgsAppended)]
    assert pieces == [ArgsAppended("c", "aa")] * 5
    call = await journal.call("c")
    assert call is not None
    assert call.args_json == "aa" * 5


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud83d", "\ude00x", "\u2028\x7f\x01", "", "'\"\\%_{}$1:x?"])
async def test_append_keeps_any_text(journal: Journal, text: str) -> None:
    events: list[RunEvent] = [
        RunStarted("thread", input={"in": text}),
        TextAppended("m", text),
        ReasoningAppended("m", text),
        CallStarted("c", "t", encoding="text"),
        ArgsAppended("c", text),
        ArgsAppended("c", "."),
        CallCompleted("c"),
        CallExecuting("c"),
        CallReturned("c", {text: text}),
        RunEnded("finished"),
    ]
    await journal.append("r", events)
    assert [record.event for record in await records(journal)] == events
    before = await fold(journal)
    await journal.compact("r")
    assert await fold(journal) == before
    assert before["texts"][ArgsAppended, "c"] == text + "."
    assert before["calls"][0].result == {text: text}


async def test_append_of_nothing_changes_nothing(journal: Journal) -> None:
    assert await journal.append("r", []) == 0
    assert await journal.runs() == []
    await journal.append("r", [START])
    assert await journal.append("r", []) == 1


async def test_append_opens_a_run_without_a_thread_as_its_own(journal: Journal) -> None:
    await journal.append("r", [CallStarted("c", "t")])
    (run,) = await journal.runs()
    assert (run.run_id, run.thread_id, run.principal) == ("r", "r", None)


async def test_append_of_what_is_no_event_is_refused(journal: Journal) -> None:
    with pytest.raises(UsageError, match="expected an event of a run, got dict"):
        await journal.append("r", [{"type": "run_started"}])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="CallReturned cannot be written as JSON"):
        await journal.append("r", [START, CallStarted("c", "t"), CallReturned("c", object())])
    with pytest.raises(UsageError, match="an id must be text"):
        await journal.append("r\0", [START])
    assert await journal.runs() == []


@pytest.mark.parametrize(
    "event",
    [
        RunStarted(None),  # type: ignore[arg-type]
        RunStarted(5),  # type: ignore[arg-type]
        CallStarted(None, "write"),  # type: ignore[arg-type]
        CallStarted("a", None),  # type: ignore[arg-type]
        CallCompleted("a", {"x": 1}),  # type: ignore[arg-type]
        CallDiscarded("a", "bored"),  # type: ignore[arg-type]
        RunEnded("vanished"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
async def test_append_of_what_could_not_be_read_back_is_refused(journal: Journal, event: RunEvent) -> None:
    """And its neighbours in the same transaction are written: the fault is its own."""
    before: list[RunEvent] = [] if isinstance(event, RunStarted) else [START]
    if isinstance(event, CallCompleted | CallDiscarded):
        before.append(CallStarted("a", "write"))
    outcomes = await asyncio.gather(
        journal.append("first", [START, DONE]),
        journal.append("wrong", [*before, event]),
        journal.append("last", [START, DONE]),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [int, UsageError, int]
    assert {row.run_id for row in await journal.runs()} == {"first", "last"}


@pytest.mark.parametrize("run_id", [None, 5, b"r"])
async def test_append_to_a_run_whose_id_is_no_text_is_refused(journal: Journal, run_id: Any) -> None:
    with pytest.raises(UsageError, match="an id must be text"):
        await journal.append(run_id, [START])
    assert await journal.runs() == []


async def test_append_to_an_ended_run_is_refused(journal: Journal) -> None:
    await journal.append("r", [START, DONE])
    with pytest.raises(UsageError, match="has ended"):
        await journal.append("r", [MessageEnded("m")])
    with pytest.raises(UsageError, match="has ended"):
        await journal.append("s", [START, DONE, MessageEnded("m")])
    with pytest.raises(UsageError, match="first record"):
        await journal.append("t", [MessageEnded("m"), START])
    assert len(await records(journal)) == 2
    assert [run.run_id for run in await journal.runs()] == ["r"]


async def test_append_to_an_ended_run_of_another_process_is_refused(place: Place) -> None:
    first, second = place.journal(), place.journal()
    await first.append("r", [START, DONE])
    with pytest.raises(UsageError, match="has ended"):
        await second.append("r", [MessageEnded("m")])


async def test_append_that_fails_keeps_nothing_of_itself(journal: Journal) -> None:
    await journal.append("r", [START])
    with pytest.raises(TransitionError):
        await journal.append("r", [CallStarted("c", "t"), TextAppended("m", "x"), CallExecuting("c")])
    assert len(await records(journal)) == 1
    assert await journal.calls() == []
    assert await journal.append("r", [CallStarted("c", "t")]) == 2


async def test_append_that_fails_leaves_its_neighbours_alone(journal: Journal) -> None:
    """Appends that wait together are written together; only the wrong ones are refused."""
    await journal.append("taken", [START, CallStarted("c", "t")])
    await journal.append("over", [START, DONE])

    async def good(number: int) -> int:
        return await journal.append(f"run {number}", [START, CallStarted(f"call {number}", "t")])

    wrong = [
        journal.append("w1", [START, CallStarted("c", "t")]),
        journal.append("w2", [START, CallExecuting("call 1")]),
        journal.append("over", [MessageEnded("m")]),
        journal.append("w3", [START], after=7),
    ]
    done = await asyncio.gather(
        *(good(n) for n in range(10)), *wrong, *(good(n) for n in range(10, 20)), return_exceptions=True
    )
    assert [outcome for outcome in done if outcome == 2] == [2] * 20
    errors = [outcome for outcome in done if isinstance(outcome, Exception)]
    assert [type(error) for error in errors] == [CallIdTaken, TransitionError, UsageError, UsageError]
    assert len(await journal.runs()) == 22


# -- states ------------------------------------------------------------------------------------------------------------

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
CALL_EVENTS: list[Any] = [
    CallSigned("c", "s"),
    ArgsAppended("c", "}"),
    CallCompleted("c"),
    CallDiscarded("c", "aborted"),
    CallExecuting("c"),
    CallAwaiting("c"),
    CallReturned("c", 1),
    CallFailed("c", "e"),
    CallReleased("c"),
    CallProgressed("c", 1),
]


@pytest.mark.parametrize("same_append", [True, False])
async def test_transitions_only_by_table(journal: Journal, same_append: bool) -> None:
    """Every state times every event, in one append with what led there and in one of its own."""
    for state, way in TO_STATE.items():
        for event in CALL_EVENTS:
            call_id = f"{state}-{type(event).__name__}"
            named = [type(e)(**{**_fields(e), "call_id": call_id}) for e in [*way, event]]
            before: list[RunEvent] = [CallStarted(call_id, "t"), *named[:-1]]
            allowed = TRANSITIONS.get((state, type(event)))
            if not same_append:
                await journal.append("r", before)
                before = []
            if allowed is None:
                with pytest.raises(TransitionError, match="is not allowed then"):
                    await journal.append("r", [*before, named[-1]])
            else:
                await journal.append("r", [*before, named[-1]])
                call = await journal.call(call_id)
                assert call is not None
                assert call.state is allowed


def _fields(event: RunEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


async def test_one_id_however_long(journal: Journal) -> None:
    """LiteLLM hides a thought signature of some kilobytes in the id of its call."""
    chance = random.Random(1)
    long = "call_1__thought__" + "".join(chance.choices(string.ascii_letters + string.digits, k=20_000))
    await journal.append("run", [START, CallStarted(long, "write", long), CallCompleted(long, "{}")])
    call = await journal.call(long)
    assert call is not None
    assert (call.call_id, call.provider_id, call.args) == (long, long, {})
    assert [found.call_id for found in await journal.calls(provider_id=long)] == [long]
    assert await journal.free_call_id(long) == f"{long}~2"
    with pytest.raises(CallIdTaken):
        await journal.append("other", [START, CallStarted(long, "write", long)])


async def test_first_record_started(journal: Journal) -> None:
    for event in CALL_EVENTS:
        with pytest.raises(TransitionError, match="has not started"):
            await journal.append("r", [event])


async def test_call_id_taken_is_told_and_another_is_named(place: Place) -> None:
    journal, other = place.journal(), place.journal()
    assert await journal.free_call_id("c") == "c"
    await journal.append("r", [START, CallStarted("c", "t"), DONE])
    for again in (journal, other):
        with pytest.raises(CallIdTaken, match="'c'"):
            await again.append("s", [START, CallStarted("c", "t")])
        assert await again.free_call_id("c") == "c~2"
    await journal.append("s", [START, CallStarted("c~3", "t")])
    assert await other.free_call_id("c") == "c~2"
    await journal.append("s", [CallStarted("c~2", "t")])
    assert await other.free_call_id("c") == "c~4"
    await journal.append("s", [CallStarted(f"c~{number}", "t") for number in range(4, 251)])
    assert await other.free_call_id("c") == "c~251"


async def test_answer_of_a_later_run_updates_the_call(place: Place) -> None:
    journal, other = place.journal(), place.journal()
    await journal.append("r", [START, CallStarted("c", "t"), CallCompleted("c"), CallAwaiting("c"), DONE])
    assert await other.append("s", [START, CallExecuting("c"), CallProgressed("c", 1), CallReturned("c", "yes")]) == 4
    call = await journal.call("c")
    assert call is not None
    assert (call.state, call.result, call.run_id) == (CallState.COMPLETED, "yes", "r")
    assert [record.event for record in await records(journal, "s")][-1] == CallReturned("c", "yes")
    with pytest.raises(TransitionError):
        await journal.append("t", [START, CallReturned("c", "again")])


async def test_answer_is_taken_once_though_both_processes_think_it_is_open(place: Place) -> None:
    """The process that owns the call's run remembers it as awaiting; the row is what counts."""
    owner, other = place.journal(), place.journal()
    await owner.append("r", [START, CallStarted("c", "t"), CallCompleted("c"), CallAwaiting("c")])
    await other.append("s", [START, CallReturned("c", "first")])
    with pytest.raises(TransitionError, match="is completed"):
        await owner.append("r", [CallReturned("c", "second")])
    call = await owner.call("c")
    assert call is not None
    assert call.result == "first"
    assert await owner.append("r", [DONE]) == 5


async def test_answer_cannot_touch_arguments_of_another_run(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{")])
    for event in (ArgsAppended("c", "}"), CallCompleted("c"), CallDiscarded("c", "aborted"), CallSigned("c", "s")):
        with pytest.raises(TransitionError, match="of another run"):
            await journal.append("s", [event])
    assert await journal.append("r", [ArgsAppended("c", "}"), CallCompleted("c")]) == 5


# -- repeating ---------------------------------------------------------------------------------------------------------


async def test_append_idempotent(journal: Journal) -> None:
    first: list[RunEvent] = [START, CallStarted("c", "t"), ArgsAppended("c", "{")]
    second: list[RunEvent] = [ArgsAppended("c", "}"), CallCompleted("c", "{}")]
    for _ in range(2):
        assert await journal.append("r", first, after=0) == 3
    for _ in range(2):
        assert await journal.append("r", second, after=3) == 5
    assert await journal.append("r", first, after=0) == 3
    for _ in range(2):
        assert await journal.append("r", [CallExecuting("c"), CallReturned("c", 1), DONE], after=5) == 8
    assert len(await records(journal)) == 8
    await journal.compact("r")
    assert await journal.append("r", [CallExecuting("c"), CallReturned("c", 1), DONE], after=5) == 8


async def test_append_idempotent_of_a_call_that_came_whole(journal: Journal) -> None:
    """Its arguments lie in the record of its completion, which is another than that of a call that was streamed."""
    await journal.append("r", [START])
    whole: list[RunEvent] = [CallStarted("c", "t"), CallCompleted("c", '{"a": 1}')]
    for _ in range(2):
        assert await journal.append("r", whole, after=1) == 3
    with pytest.raises(UsageError):
        await journal.append("r", [CallStarted("c", "t"), CallCompleted("c", '{"a": 2}')], after=1)
    assert len(await records(journal)) == 3


async def test_append_idempotent_at_once(journal: Journal) -> None:
    await journal.append("r", [START])
    assert await asyncio.gather(*(journal.append("r", [MessageEnded("m")], after=1) for _ in range(5))) == [2] * 5
    assert len(await records(journal)) == 2


async def test_append_idempotent_does_not_swallow_another_append(journal: Journal) -> None:
    await journal.append("r", [START, TextAppended("m", "a")], after=0)
    with pytest.raises(UsageError):
        await journal.append("r", [TextAppended("m", "b")], after=1)
    with pytest.raises(UsageError):
        await journal.append("r", [TextAppended("m", "a"), TextAppended("m", "b")], after=1)
    with pytest.raises(UsageError):
        await journal.append("r", [TextAppended("m", "c")], after=3)
    assert len(await records(journal)) == 2


# -- following ---------------------------------------------------------------------------------------------------------


async def test_follow_any_offset_of_a_finished_run(journal: Journal) -> None:
    await journal.append("r", whole_run())
    everything = await records(journal)
    for offset in range(len(everything) + 1):
        assert await records(journal, after=offset) == everything[offset:]
        assert await followed(journal, after=offset) == everything[offset:]


async def test_follow_any_offset_of_a_live_run(place: Place) -> None:
    """Followers that joined at every offset, in this process and in another, all see the whole."""
    writer, other = place.journal(), place.journal()
    events = whole_run()
    await writer.append("r", events[:1])
    async with asyncio.TaskGroup() as tasks:
        followers = []
        for offset in range(1, len(events)):
            for journal in (writer, other):
                followers.append((offset, tasks.create_task(followed(journal, after=offset))))
                followers.append((0, tasks.create_task(followed(journal))))
            await writer.append("r", [events[offset]])
    everything = await records(writer)
    assert len(everything) == len(events)
    for offset, task in followers:
        assert task.result() == everything[offset:]


async def test_follow_more_than_a_page(journal: Journal) -> None:
    pieces = [TextAppended("m", str(number)) for number in range(1700)]
    await journal.append("r", [START, *pieces])
    task = asyncio.create_task(followed(journal))
    await journal.append("r", [DONE])
    assert [record.seq for record in await task] == list(range(1, 1703))
    assert len(await records(journal, after=500)) == 1202


async def test_append_before_deliver(place: Place) -> None:
    """A record that a follower has in its hands is in the store for anybody who opens it at that moment."""
    writer = place.journal()
    await writer.append("r", [START])

    async def check() -> int:
        seen = 0
        async for record in writer.follow("r"):
            witness = place.journal()
            assert record in await records(witness)
            await witness.aclose()
            seen += 1
        return seen

    task = asyncio.create_task(check())
    for number in range(6):
        await writer.append("r", [TextAppended("m", str(number))])
    await writer.append("r", [DONE])
    assert await task == 8


async def test_follow_unknown_run_is_refused(journal: Journal) -> None:
    with pytest.raises(UsageError, match="no run 'nobody'"):
        await records(journal, "nobody")
    with pytest.raises(UsageError, match="no run 'nobody'"):
        await followed(journal, "nobody")


async def test_follow_before_the_beginning_is_refused(journal: Journal) -> None:
    await journal.append("r", [START, DONE])
    for records in (journal.read("r", -1), journal.follow("r", -1)):
        with pytest.raises(UsageError, match="expected the number of a record"):
            await anext(records)


async def test_lists_of_less_than_nothing_are_refused(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("a", "write")])
    with pytest.raises(UsageError, match="limit"):
        await journal.calls(limit=-1)
    with pytest.raises(UsageError, match="limit"):
        await journal.runs(limit=-1)
    assert (await journal.calls(limit=0), await journal.runs(limit=0)) == ([], [])


async def test_follow_ends_when_cancelled_and_when_the_journal_closes(journal: Journal) -> None:
    await journal.append("r", [START])
    cancelled = asyncio.create_task(followed(journal))
    closed = asyncio.create_task(followed(journal))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await journal.aclose()
    assert [record.event for record in await closed] == [START]
    with pytest.raises(UsageError, match="closed"):
        await journal.append("r", [DONE])
    with pytest.raises(UsageError, match="closed"):
        await records(journal)


# -- compaction --------------------------------------------------------------------------------------------------------


async def test_compaction_preserves_fold(journal: Journal) -> None:
    await journal.append("r", whole_run())
    before = await fold(journal)
    assert await journal.compact("r") == 6
    assert await fold(journal) == before
    assert await journal.compact("r") == 0
    by_seq = {record.seq: record for record in await records(journal)}
    assert by_seq[14].event == ArgsAppended("a", '{"x":"é\U0001f600"}')
    assert (by_seq[14].first_seq, by_seq[13].first_seq, by_seq[18].first_seq, by_seq[5].first_seq) == (9, 11, 6, 4)
    assert by_seq[14].response_id == "resp-1"
    assert by_seq[5].event == ReasoningAppended("m1", "thinking")
    assert by_seq[18].event == TextAppended("m1", "Hello!")


async def test_compaction_leaves_single_pieces_as_they_are(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{}"), CallCompleted("c"), DONE])
    before = await records(journal)
    assert await journal.compact("r") == 0
    assert await records(journal) == before
    for offset in range(6):
        assert await records(journal, after=offset) == before[offset:]


async def test_compaction_of_a_long_run_that_folds_little(journal: Journal) -> None:
    """More records than any index of ranges has in one, and read from everywhere."""
    await journal.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{"), ArgsAppended("c", "}")])
    await journal.append("r", [CallCompleted("c"), CallExecuting("c")])
    for begin in range(0, 9000, 1000):
        await journal.append("r", [CallProgressed("c", {"done": begin + step}) for step in range(1000)])
    await journal.append("r", [CallReturned("c", "ok"), DONE])
    before = await records(journal)
    assert await journal.compact("r") == 1
    after = await records(journal)
    assert [r.event for r in after[3:]] == [r.event for r in before[4:]]
    for place in (0, 2, 4, 255, 256, 4094, 4095, 4096, 4097, 8191, 8192, 9006, 9007, 9008):
        assert await records(journal, after=place) == [r for r in after if r.seq > place]
    call = await journal.call("c")
    assert call is not None
    assert (call.args_json, call.result) == ("{}", "ok")


async def test_compaction_only_of_ended_runs(journal: Journal) -> None:
    await journal.append("r", [START])
    with pytest.raises(UsageError, match="goes on"):
        await journal.compact("r")
    with pytest.raises(UsageError, match="no run"):
        await journal.compact("s")


async def test_follow_any_offset_inside_a_folded_range_is_told(journal: Journal) -> None:
    await journal.append("r", whole_run())
    await journal.compact("r")
    everything = await records(journal)
    ranges = [(record.first_seq, record.seq) for record in everything if record.first_seq is not None]
    refused = 0
    for offset in range(28):
        if any(first <= offset < last for first, last in ranges):
            refused += 1
            with pytest.raises(Compacted) as error:
                await followed(journal, after=offset)
            with pytest.raises(Compacted):
                await records(journal, after=offset)
            assert error.value.first <= offset < error.value.last
            whole = await records(journal, after=error.value.first - 1)
            assert whole == [record for record in everything if record.seq >= error.value.first]
        else:
            assert await records(journal, after=offset) == [record for record in everything if record.seq > offset]
    assert refused == 13


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


@pytest.mark.parametrize("name", ["read", "follow"])
async def test_compaction_under_a_reader_changes_nothing_of_what_it_reads(journal: Journal, name: str) -> None:
    events = long_run()
    await journal.append("r", events)
    before = await records(journal)
    seen: list[Record] = []
    async for record in getattr(journal, name)("r"):
        seen.append(record)
        if len(seen) == 1:  # it has its first page, and the rest is another log now
            assert await journal.compact("r") > 0
    assert len(seen) < len(events)
    assert [record.seq for record in seen] == sorted({record.seq for record in seen})
    assert texts_in(seen) == texts_in(before)
    folded = (ArgsAppended, TextAppended, ReasoningAppended)
    others = [record for record in before if not isinstance(record.event, folded)]
    assert [record for record in seen if not isinstance(record.event, folded)] == others


async def test_compaction_under_a_reader_that_began_inside_a_text_is_told(journal: Journal) -> None:
    await journal.append("r", long_run())
    reader = journal.follow("r", after=100)
    assert (await anext(reader)).seq == 101
    await journal.compact("r")
    with pytest.raises(Compacted) as error:
        assert [record async for record in reader]
    assert error.value.after == 100
    assert error.value.first <= 100 < error.value.last


async def test_compacted_run_of_many_pages_is_read_whole(journal: Journal) -> None:
    """A page may end where a folded text of another call begins and ends around it."""
    await journal.append("r", long_run())
    before = await records(journal)
    await journal.compact("r")
    assert texts_in(await records(journal)) == texts_in(before)
    assert await followed(journal) == await records(journal)


async def test_runs_are_read_whole_in_the_order_asked_for(journal: Journal) -> None:
    await journal.append("r", whole_run())
    await journal.append("s", [START, CallStarted("z", "t"), ArgsAppended("z", "é\0\ud83d"), RunEnded("failed", "x")])
    await journal.append("other", [START])
    before = await records(journal)
    assert await journal.read_whole(["s", "gone", "r"]) == [*await records(journal, "s"), *before]
    await journal.compact("r")
    folded = await records(journal)
    whole = await journal.read_whole(["s", "r"])
    assert whole[4:] == sorted(folded, key=lambda record: record.first_seq or record.seq)
    assert whole[4:] != folded
    assert await journal.read_whole([]) == []


async def test_history_is_what_the_runs_have_whatever_their_length(journal: Journal) -> None:
    await journal.append("long", long_run())
    for number in range(3):
        start = RunStarted("thread")
        await journal.append(f"short-{number}", [start, MessageStarted("m"), TextAppended("m", str(number)), DONE])
    await journal.append("live", [START, CallStarted("y", "t")])
    rows = (await journal.runs())[::-1]
    everything = [record for row in rows for record in await records(journal, row.run_id)]
    assert [record async for batch in history(journal, rows) for record in batch] == everything
    await journal.compact("long")
    found = [record async for batch in history(journal, rows) for record in batch]
    assert texts_in(found) == texts_in(everything)
    places = [record.first_seq or record.seq for record in found if record.run_id == "long"]
    assert places == sorted(places)


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_zombie_fenced(place: Place, eventually: Callable[..., Any]) -> None:
    zombie = place.zombie()
    await zombie.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{")])
    live = place.journal()
    task = asyncio.create_task(followed(live))

    async def swept() -> bool:
        return await live.sweep() == ["r"]

    await eventually(swept)
    for _ in range(2):
        with pytest.raises(LeaseLost, match="'r'"):
            await zombie.append("r", [ArgsAppended("c", "}")])
    with pytest.raises(LeaseLost):
        await zombie.append("r", [ArgsAppended("c", "}")], after=3)
    with pytest.raises(LeaseLost):  # more than the sweep has written
        await zombie.append("r", [ArgsAppended("c", "}"), CallCompleted("c"), CallExecuting("c")], after=3)
    assert await zombie.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{")], after=0) == 3
    assert [record.event for record in await task][-2:] == [
        CallDiscarded("c", "interrupted"),
        RunEnded("failed", "interrupted"),
    ]
    with pytest.raises(UsageError, match="has ended"):
        await live.append("r", [DONE])
    await live.compact("r")
    for after in (None, 3):
        with pytest.raises(LeaseLost, match="'r'"):
            await zombie.append("r", [ArgsAppended("c", "}")], after=after)
    assert await zombie.append("another", [START]) == 1


async def test_zombie_fenced_but_the_living_are_not(place: Place) -> None:
    writer, other = place.journal(lease_ttl=1.5), place.journal()
    await writer.append("r", [START])
    for _ in range(10):
        await asyncio.sleep(0.2)
        assert await other.sweep() == []
    assert await writer.append("r", [DONE]) == 2


async def test_lease_keeps_others_from_writing(place: Place) -> None:
    writer, other = place.journal(), place.journal()
    await writer.append("r", [START])
    with pytest.raises(LeaseLost, match=r"another process|belongs to"):
        await other.append("r", [DONE])
    assert await writer.append("r", [DONE]) == 2


async def test_lease_is_given_back_at_closing(place: Place) -> None:
    writer, other = place.journal(), place.journal()
    await writer.append("r", [START])
    assert await other.sweep() == []
    await writer.aclose()
    assert await other.sweep() == ["r"]
    (run,) = await other.runs()
    assert (run.outcome, run.reason, run.last_seq) == ("failed", "interrupted", 2)


async def test_swept_by_state(place: Place) -> None:
    dead, live = place.journal(), place.journal()
    for state, way in TO_STATE.items():
        named = [type(e)(**{**_fields(e), "call_id": state.value}) for e in way]
        await dead.append("r", [CallStarted(state.value, "t"), *named])
    await dead.aclose()
    assert await live.sweep() == ["r"]
    calls = {call.call_id: call for call in await live.calls(run_id="r")}
    for before in (CallState.STARTED, CallState.ARGS_STREAMING, CallState.ARGS_COMPLETE):
        assert (calls[before].state, calls[before].reason) == (CallState.DISCARDED, "interrupted")
    assert (calls["executing"].state, calls["executing"].error) == (CallState.FAILED, "interrupted")
    for kept in (CallState.AWAITING, CallState.COMPLETED, CallState.FAILED, CallState.RELEASED, CallState.DISCARDED):
        assert calls[kept].state is kept
    last = (await records(live))[-1]
    assert last.event == RunEnded("failed", "interrupted")
    assert await live.sweep() == []
    assert await live.append("s", [START, CallReturned("awaiting", "late answer")]) == 2


async def test_swept_by_state_too_where_the_call_is_of_an_earlier_run(place: Place) -> None:
    """A run that goes on with calls that awaited an answer leaves them as it leaves its own."""
    dead, live = place.journal(), place.journal()
    names = ("executing", "again_awaiting", "executed_by_another", "answered", "progressing")
    asked: list[RunEvent] = [START]
    for name in names:
        asked += [CallStarted(name, "t"), CallCompleted(name, "{}"), CallAwaiting(name)]
    await live.append("asks", [*asked, DONE])
    taken_up: list[RunEvent] = [CallExecuting(name) for name in names]
    await dead.append("r", [START, *taken_up, CallProgressed("progressing", 1), CallAwaiting("again_awaiting")])
    await dead.append("r", [CallAwaiting("executed_by_another"), CallReturned("answered", 1)])
    await live.append("other", [START, CallExecuting("executed_by_another")])
    await dead.aclose()
    assert await live.sweep() == ["r"]
    calls = {call.call_id: (call.state, call.error) for call in await live.calls(run_id="asks")}
    assert calls == {
        "executing": (CallState.FAILED, "interrupted"),
        "progressing": (CallState.FAILED, "interrupted"),
        "again_awaiting": (CallState.AWAITING, None),
        "executed_by_another": (CallState.EXECUTING, None),
        "answered": (CallState.COMPLETED, None),
    }
    ends = [record.event for record in (await records(live))[-3:]]
    failed = [CallFailed("executing", "interrupted"), CallFailed("progressing", "interrupted")]
    assert ends == [*failed, RunEnded("failed", "interrupted")]


async def test_swept_by_state_with_the_run_that_asked_at_once(place: Place) -> None:
    dead, live = place.journal(), place.journal()
    asked: list[RunEvent] = [START, CallStarted("c", "t"), CallCompleted("c", "{}"), CallAwaiting("c")]
    await dead.append("asks", asked)
    await dead.append("r", [START, CallExecuting("c")])
    await dead.aclose()
    assert sorted(await live.sweep()) == ["asks", "r"]
    assert await live.runs(active=True) == []
    found = await live.call("c")
    assert found is not None
    assert (found.state, found.error) == (CallState.FAILED, "interrupted")


async def test_swept_by_state_once_by_many_sweepers(place: Place) -> None:
    dead = place.journal()
    for number in range(30):
        await dead.append(f"r{number}", [START, CallStarted(f"c{number}", "t")])
    await dead.aclose()
    sweepers = [place.journal() for _ in range(4)]
    swept = [run_id for found in await asyncio.gather(*(s.sweep() for s in sweepers)) for run_id in found]
    assert sorted(swept) == sorted(f"r{number}" for number in range(30))
    for number in range(30):
        assert len(await records(sweepers[0], f"r{number}")) == 4


# -- lists and erasing -------------------------------------------------------------------------------------------------


async def test_lists_by_every_filter(journal: Journal) -> None:
    await journal.append(
        "r1", [RunStarted("t1", "alice"), CallStarted("a", "t", "pa"), CallCompleted("a"), CallAwaiting("a"), DONE]
    )
    await journal.append(
        "r2", [RunStarted("t1", "bob"), CallStarted("b", "t", "pb"), CallCompleted("b"), CallReturned("b"), DONE]
    )
    await journal.append("r3", [RunStarted("t2", "alice"), CallStarted("c", "t", "pa")])

    async def runs(**filters: Any) -> list[str]:
        return [run.run_id for run in await journal.runs(**filters)]

    async def calls(**filters: Any) -> list[str]:
        return [call.call_id for call in await journal.calls(**filters)]

    assert await runs() == ["r3", "r2", "r1"]
    assert await runs(limit=2) == ["r3", "r2"]
    assert await runs(run_id="r2") == ["r2"]
    assert await runs(thread_id="t1") == ["r2", "r1"]
    assert await runs(principal="alice") == ["r3", "r1"]
    assert await runs(active=True) == ["r3"]
    assert await runs(active=False) == ["r2", "r1"]
    assert await runs(thread_id="t1", principal="alice", active=False) == ["r1"]
    assert await runs(thread_id="nobody") == []
    assert await calls() == ["a", "b", "c"]
    assert await calls(limit=1) == ["a"]
    assert await calls(limit=2, newest=True) == ["b", "c"]
    assert await calls(newest=True) == await calls(limit=2**70, newest=True) == await calls(limit=2**70)
    assert await calls(limit=0, newest=True) == []
    assert await calls(principal="alice", limit=1, newest=True) == ["c"]
    assert await runs(limit=2**70) == await runs()
    assert await calls(run_id="r2") == ["b"]
    assert await calls(thread_id="t1") == ["a", "b"]
    assert await calls(principal="alice") == ["a", "c"]
    assert await calls(states=[CallState.AWAITING, CallState.COMPLETED]) == ["a", "b"]
    assert await calls(states=[]) == []
    assert await calls(provider_id="pa") == ["a", "c"]
    assert await calls(provider_id="pa", thread_id="t2") == ["c"]
    (run,) = await journal.runs(run_id="r1")
    assert (run.thread_id, run.principal, run.outcome, run.reason, run.last_seq) == ("t1", "alice", "finished", None, 5)
    assert run.started_at <= (run.ended_at or 0)


@pytest.mark.parametrize("compacted", [False, True])
async def test_forget_erases_runs_with_calls_and_records(journal: Journal, compacted: bool) -> None:
    for number, (thread, principal) in enumerate([("t1", "alice"), ("t1", "bob"), ("t2", "alice")]):
        run: list[RunEvent] = [
            RunStarted(thread, principal),
            CallStarted(f"c{number}", "t"),
            ArgsAppended(f"c{number}", "x"),
        ]
        await journal.append(f"r{number}", [*run, CallDiscarded(f"c{number}", "aborted"), DONE])
        if compacted:
            await journal.compact(f"r{number}")
    await journal.append("live", [RunStarted("t1", "alice")])
    with pytest.raises(UsageError, match="forget needs"):
        await journal.forget()
    assert await journal.forget(before=1.0) == 0
    assert await journal.forget(thread="t1", principal="alice") == 1
    assert [run.run_id for run in await journal.runs()] == ["live", "r2", "r1"]
    with pytest.raises(UsageError, match="no run 'r0'"):
        await records(journal, "r0")
    assert await journal.call("c0") is None
    assert await journal.free_call_id("c0") == "c0"
    (ended,) = await journal.runs(run_id="r2")
    assert ended.ended_at is not None
    assert await journal.forget(before=ended.ended_at + 1) == 2
    assert [run.run_id for run in await journal.runs()] == ["live"]
    assert await journal.append("live", [DONE]) == 2
    stats = await journal.stats()
    assert (stats["runs"], stats["calls"], stats["records"]) == (1, 0, 2)


async def test_housekeeping_compacts_sweeps_and_erases_by_itself(place: Place, eventually: Callable[..., Any]) -> None:
    dead = place.journal()
    await dead.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "a"), ArgsAppended("c", "b")])
    await dead.aclose()
    duties = Housekeeping(compact_after=0.1, sweep_every=0.1, retain=None)
    keepers = [place.journal(housekeeping=duties, lease_ttl=0.5) for _ in range(2)]
    for keeper in keepers:
        await keeper.open()

    async def is_compacted() -> bool:
        return (await keepers[0].stats())["records"] == 5 and not await keepers[0].runs(active=True)

    await eventually(is_compacted)
    assert [record.first_seq for record in await records(keepers[1])] == [None, None, 3, None, None]
    for keeper in keepers:
        await keeper.aclose()
    eraser = place.journal(housekeeping=Housekeeping(compact_after=None, sweep_every=None, retain=0.1))

    async def is_gone() -> bool:
        return await eraser.runs() == []

    await eventually(is_gone)


# -- the rest ----------------------------------------------------------------------------------------------------------


async def test_redact_runs_before_append(place: Place) -> None:
    def redact(event: RunEvent) -> RunEvent:
        return TextAppended(event.message_id, "***") if isinstance(event, TextAppended) else event

    journal = place.journal(redact=redact)
    await journal.append("r", [START, TextAppended("m", "secret"), Entry(TextAppended("m", "secret"), "resp", "me")])
    read = await records(journal)
    assert [record.event for record in read[1:]] == [TextAppended("m", "***")] * 2
    assert (read[2].response_id, read[2].author) == ("resp", "me")


async def test_two_event_loops_at_once(place: Place) -> None:
    """One journal, two threads with a loop each, writing their own runs and following each other's."""
    journal = place.journal()
    await journal.append("r0", [START])
    await journal.append("r1", [START])
    seen: dict[int, list[Record]] = {}
    failures: list[BaseException] = []

    async def work(number: int) -> None:
        follower = asyncio.create_task(followed(journal, f"r{1 - number}"))
        for step in range(50):
            await journal.append(f"r{number}", [TextAppended("m", str(step))])
        await journal.append(f"r{number}", [DONE])
        seen[number] = await follower

    def run(number: int) -> None:
        try:
            asyncio.run(asyncio.wait_for(work(number), 30))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert failures == []
    assert [record.seq for record in seen[0]] == [record.seq for record in seen[1]] == list(range(1, 53))


async def test_two_event_loops_one_after_the_other(place: Place) -> None:
    journal = place.journal()

    def in_a_loop(number: int) -> int:
        return asyncio.run(journal.append("r", [TextAppended("m", str(number))]))

    assert [await asyncio.to_thread(in_a_loop, number) for number in range(3)] == [1, 2, 3]


async def test_concurrent_appends_to_one_run_are_numbered_without_gaps(journal: Journal) -> None:
    await journal.append("r", [START])
    numbers = await asyncio.gather(*(journal.append("r", [TextAppended("m", str(n))]) for n in range(200)))
    assert sorted(numbers) == list(range(2, 202))
    read = await records(journal)
    texts = [record.event.text for record in read if isinstance(record.event, TextAppended)]
    assert sorted(texts, key=int) == [str(n) for n in range(200)]


async def test_concurrent_appends_to_a_new_run_are_numbered_without_gaps(journal: Journal) -> None:
    """The run is opened, written and ended by appends that wait together."""
    await journal.open()
    for name in ("a", "b", "c"):
        pieces = [journal.append(name, [TextAppended("m", str(n)), CallStarted(f"{name}{n}", "t")]) for n in range(20)]
        numbers = await asyncio.gather(journal.append(name, [START]), *pieces)
        assert numbers == list(range(1, 42, 2))
        assert await journal.append(name, [TextAppended("m", "last")]) == 42
        assert [record.seq for record in await records(journal, name)] == list(range(1, 43))
    together = [journal.append("d", [event]) for event in (START, TextAppended("m", "x"), DONE)]
    assert await asyncio.gather(*together) == [1, 2, 3]
    (run,) = await journal.runs(run_id="d")
    assert (run.outcome, run.last_seq) == ("finished", 3)


@pytest.mark.parametrize("url", [None, 5, Path("calls.db")])
async def test_what_is_no_url_is_refused(url: Any) -> None:
    with pytest.raises(UsageError, match="expected a journal's URL"):
        open_journal(url)
    with pytest.raises(UsageError, match="expected a journal or its URL"):
        Callstream(journal=url)


async def test_settings_that_do_not_exist_are_refused(place: Place) -> None:
    with pytest.raises(UsageError, match="does not know such settings"):
        place.journal(colour="red")
    with pytest.raises(UsageError, match="lease_ttl"):
        place.journal(lease_ttl=0)


async def test_stats_count(journal: Journal) -> None:
    await journal.append("r", whole_run())
    await journal.append("s", [START])
    stats = await journal.stats()
    assert (stats["runs"], stats["active_runs"], stats["calls"], stats["records"]) == (2, 1, 2, 28)
    assert stats["schema_version"] == 1
    assert stats["stored_bytes"] > 500
    assert stats["pending_bytes"] == 0
    assert await journal.migrate() == 1


async def test_stats_tell_who_is_alive_and_what_the_dead_left(place: Place, eventually: Callable[..., Any]) -> None:
    dead = place.zombie()
    await dead.append("r", [START])
    journal = place.journal()
    assert (await journal.stats())["live_writers"] in (1, 2)

    async def is_dead() -> bool:
        return (await journal.stats())["orphaned_runs"] == 1

    await eventually(is_dead)
    assert (await journal.stats())["live_writers"] == 1
    await journal.append("s", [START])
    assert await journal.sweep() == ["r"]
    assert (await journal.stats())["orphaned_runs"] == 0
    for each in (journal, dead):
        await each.aclose()


async def test_closing_twice_is_allowed_and_before_opening_too(place: Place) -> None:
    journal = place.journal()
    await journal.aclose()
    await journal.aclose()
    with pytest.raises(UsageError, match="closed"):
        await journal.open()


async def test_a_journal_may_be_opened_by_awaiting_or_entering_it(place: Place) -> None:
    journal = await place.journal()
    assert await journal.append("run", [RunStarted("thread")]) == 1
    async with place.journal() as other:
        assert [run.run_id for run in await other.runs()] == ["run"]


# -- one run at a time, and word from others ---------------------------------------------------------------------------

EXCLUSIVE = RunStarted("thread", exclusive=True)


async def test_exclusive_runs_of_a_thread_come_one_after_the_other(place: Place) -> None:
    here, there = place.journal(), place.journal()
    await here.append("r1", [EXCLUSIVE])
    for journal in (here, there):
        with pytest.raises(ThreadBusy) as refused:
            await journal.append("r2", [EXCLUSIVE])
        assert (refused.value.thread_id, refused.value.run_id) == ("thread", "r1")
    assert await there.runs(run_id="r2") == []
    await there.append("other", [RunStarted("another thread", exclusive=True)])
    await there.append("beside", [START])  # nobody asked this one to be alone
    await here.append("r1", [DONE])
    await there.append("r2", [EXCLUSIVE, DONE])
    await here.append("r3", [EXCLUSIVE])


async def test_exclusive_runs_asked_for_at_once_are_one(place: Place) -> None:
    journals = [place.journal() for _ in range(3)]
    asked = [journals[number % 3].append(f"r{number}", [EXCLUSIVE]) for number in range(12)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(map(str, map(type, outcomes))) == sorted([str(int)] + [str(ThreadBusy)] * 11)
    [active] = await journals[0].runs(thread_id="thread", active=True)
    assert {error.run_id for error in outcomes if isinstance(error, ThreadBusy)} == {active.run_id}


async def test_exclusive_start_that_is_repeated_is_the_same_run(journal: Journal) -> None:
    assert await journal.append("r1", [EXCLUSIVE], after=0) == 1
    assert await journal.append("r1", [EXCLUSIVE], after=0) == 1


async def test_exclusive_run_may_begin_in_the_batch_in_which_the_one_before_ends(journal: Journal) -> None:
    exclusive = RunStarted("thread", exclusive=True)
    await journal.append("r0", [exclusive])
    for number in range(20):
        ending, beginning = await asyncio.wait_for(
            asyncio.gather(
                journal.append(f"r{number}", [DONE]),
                journal.append(f"r{number + 1}", [exclusive]),
                return_exceptions=True,
            ),
            10,
        )
        assert ending == 2
        assert beginning == 1
    assert [run.run_id for run in await journal.runs(active=True)] == ["r20"]
    await journal.append("r20", [DONE])
    ways = [[exclusive, DONE], [exclusive, DONE], [exclusive]]
    assert await asyncio.gather(*(journal.append(f"s{n}", way) for n, way in enumerate(ways))) == [2, 2, 1]
    assert [run.run_id for run in await journal.runs(active=True)] == ["s2"]
    with pytest.raises(ThreadBusy):
        await journal.append("t", [exclusive])


async def test_exclusive_run_of_a_dead_process_gives_its_thread_back_when_swept(place: Place) -> None:
    dead = place.zombie()
    await dead.append("r1", [EXCLUSIVE])
    await asyncio.sleep(0.4)
    alive = place.journal()
    assert await alive.sweep() == ["r1"]
    await alive.append("r2", [EXCLUSIVE])


async def test_ask_to_stop_reaches_the_process_that_owns_the_run(place: Place) -> None:
    owner, stranger = place.journal(), place.journal()
    await owner.append("r1", [START])
    await owner.append("r2", [START])
    assert await owner.asked_to_stop() == {}
    assert await stranger.ask_to_stop("r1", "enough")
    assert await stranger.ask_to_stop("r1", "the second word does not count")
    assert await owner.asked_to_stop() == {"r1": "enough"}
    assert await stranger.asked_to_stop() == {}
    await owner.append("r1", [RunEnded("cancelled", "enough")])
    assert await owner.asked_to_stop() == {}
    assert not await stranger.ask_to_stop("r1", "too late")
    assert not await stranger.ask_to_stop("nobody's", "no such run")
    assert (await owner.runs(run_id="r1"))[0].outcome == "cancelled"


async def test_batches_give_what_waits_at_once(journal: Journal) -> None:
    await journal.append("r", [START, MessageStarted("m")])
    batches = journal.batches("r")
    assert [record.seq for record in await anext(batches)] == [1, 2]
    for number in range(3):
        await journal.append("r", [TextAppended("m", str(number))])
    await journal.append("r", [DONE])
    rest = [[record.seq for record in batch] async for batch in batches]
    assert [seq for batch in rest for seq in batch] == [3, 4, 5, 6]
    assert len(rest) < 4
