"""Appending: what is kept, what is refused, and what a repeated append does.

The same tests run on memory, SQLite and PostgreSQL, and on each of them beside a log.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from callstream.calls import CallState
from callstream.errors import CallIdTaken, RunIdTaken, RunOver, TransitionError, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallReturned,
    CallStarted,
    MessageEnded,
    ReasoningAppended,
    RunEnded,
    RunEvent,
    RunStarted,
    TextAppended,
)
from callstream.journal import Entry, Journal
from callstream.journal.paired import PairedStore

from .conftest import BACKENDS, Place
from .runs import (
    DONE,
    START,
    as_read,
    fold,
    records,
    whole_run,
)

pytestmark = pytest.mark.asyncio


async def test_one_suite_three_backends_and_each_beside_a_log(place: Place) -> None:
    assert place.backend in BACKENDS
    store = place.journal()._store  # type: ignore[attr-defined]
    if isinstance(store, PairedStore):
        assert (place.engine is None) == (type(store._log).__name__ == "NatsLog")
        store = store._index
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
    with pytest.raises(RunOver, match="has ended"):
        await journal.append("r", [MessageEnded("m")])
    with pytest.raises(RunOver, match="has ended"):
        await journal.append("s", [START, DONE, MessageEnded("m")])
    with pytest.raises(UsageError, match="first record"):
        await journal.append("t", [MessageEnded("m"), START])
    assert len(await records(journal)) == 2
    assert [run.run_id for run in await journal.runs()] == ["r"]


async def test_a_start_after_other_records_names_its_cause(journal: Journal) -> None:
    """The id is taken if the run has records; if they are in the same append, it is not."""
    await journal.append("r", [START])
    with pytest.raises(RunIdTaken, match="run 'r' has begun already; a new one needs another id"):
        await journal.append("r", [START])
    with pytest.raises(UsageError, match="first record") as late:
        await journal.append("s", [MessageEnded("m"), START])
    assert type(late.value) is UsageError
    assert [run.run_id for run in await journal.runs()] == ["r"]


async def test_append_to_an_ended_run_of_another_process_is_refused(place: Place) -> None:
    first, second = place.journal(), place.journal()
    await first.append("r", [START, DONE])
    with pytest.raises(RunOver, match="has ended"):
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
    assert [type(error) for error in errors] == [CallIdTaken, TransitionError, RunOver, UsageError]
    assert len(await journal.runs()) == 22


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


async def test_redact_runs_before_append(place: Place) -> None:
    def redact(event: RunEvent) -> RunEvent:
        return TextAppended(event.message_id, "***") if isinstance(event, TextAppended) else event

    journal = place.journal(redact=redact)
    await journal.append("r", [START, TextAppended("m", "secret"), Entry(TextAppended("m", "secret"), "resp", "me")])
    read = await records(journal)
    assert [record.event for record in read[1:]] == [TextAppended("m", "***")] * 2
    assert (read[2].response_id, read[2].author) == ("resp", "me")


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
