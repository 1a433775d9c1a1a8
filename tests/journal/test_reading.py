"""Reading and following: from any record, by any process, in any event loop.

The same tests run on memory, SQLite and PostgreSQL, and on each of them beside a log.
"""

from __future__ import annotations

import asyncio
import threading

import pytest
from msgspec.structs import replace

from callstream.agui import Conversation
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallStarted,
    MessageStarted,
    ReasoningAppended,
    Record,
    RunEnded,
    RunEvent,
    RunStarted,
    TextAppended,
)
from callstream.journal import Journal, history

from .conftest import Place
from .runs import (
    DONE,
    START,
    followed,
    long_run,
    records,
    texts_in,
    whole_run,
)

pytestmark = pytest.mark.asyncio


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


async def test_any_offset_of_a_run_that_was_followed_to_its_end(place: Place) -> None:
    """What a journal still has at hand of the run is not taken for all of it."""
    writer, other = place.journal(), place.journal()
    first, *rest = whole_run()
    await writer.append("r", [first])
    following = [asyncio.create_task(followed(journal)) for journal in (writer, other)]
    for event in rest:
        await writer.append("r", [event])
    for journal, task in zip((writer, other), following, strict=True):
        everything = await task
        for offset in range(len(everything) + 1):
            assert await records(journal, after=offset) == everything[offset:]
            assert await followed(journal, after=offset) == everything[offset:]


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
    for reading in (journal.read("r", -1), journal.follow("r", -1)):
        with pytest.raises(UsageError, match="expected the number of a record"):
            await anext(reading)


async def test_follow_ends_when_cancelled_and_when_the_journal_closes(journal: Journal) -> None:
    await journal.append("r", [START])
    seen: asyncio.Queue[Record] = asyncio.Queue()

    async def follow() -> list[Record]:
        found = []
        async for record in journal.follow("r"):
            found.append(record)
            seen.put_nowait(record)
        return found

    cancelled, closed = asyncio.create_task(follow()), asyncio.create_task(follow())
    for _ in range(2):
        await asyncio.wait_for(seen.get(), 30)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await journal.aclose()
    assert [record.event for record in await closed] == [START]
    with pytest.raises(UsageError, match="closed"):
        await journal.append("r", [DONE])
    with pytest.raises(UsageError, match="closed"):
        await records(journal)


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


async def test_runs_with_merged_pieces_say_the_same(journal: Journal) -> None:
    """Pieces of two calls and of a message, alone, in a row, interleaved, and such as no column can keep as text."""
    pieces = [
        *(ArgsAppended("a", text) for text in ("[1", ",2", "\0", ",3")),
        ArgsAppended("b", "["),
        *(TextAppended("m", text) for text in ("some", " ", "text")),
        ArgsAppended("b", '"\ud83d'),
        ArgsAppended("b", '"'),
        *(ReasoningAppended("m", text) for text in ("why", " not")),
        ArgsAppended("a", "]"),
    ]
    started = [START, CallStarted("a", "t"), CallStarted("b", "t"), MessageStarted("m")]
    for run_id in ("r", "s"):
        own = [START, *(_renamed(event, run_id) for event in (*started[1:], *pieces))]
        await journal.append(run_id, [*own, RunEnded("failed", "x")])
    await journal.compact("s")
    exact = await journal.read_whole(["r", "s"])
    merged = await journal.read_whole(["r", "s"], merged=True)
    assert len(merged) <= len(exact)
    assert Conversation.of(merged).messages == Conversation.of(exact).messages
    assert merged[-1] == exact[-1]


def _renamed(event: RunEvent, run_id: str) -> RunEvent:
    """The same of another call or message: ids are unique in a journal."""
    field = "call_id" if hasattr(event, "call_id") else "message_id"
    return replace(event, **{field: f"{getattr(event, field)}-{run_id}"})


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
