"""Compaction: the same run in fewer records, also for those who are reading it.

The same tests run on memory, SQLite and PostgreSQL, and on each of them beside a log.
"""

from __future__ import annotations

import pytest

from callstream.errors import Compacted, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallExecuting,
    CallProgressed,
    CallReturned,
    CallStarted,
    ReasoningAppended,
    Record,
    TextAppended,
)
from callstream.journal import Journal

from .runs import (
    DONE,
    START,
    fold,
    followed,
    long_run,
    records,
    texts_in,
    whole_run,
)

pytestmark = pytest.mark.asyncio


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
    """More records than a page has, and read from everywhere."""
    await journal.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{"), ArgsAppended("c", "}")])
    await journal.append("r", [CallCompleted("c"), CallExecuting("c")])
    await journal.append("r", [CallProgressed("c", {"done": step}) for step in range(1100)])
    await journal.append("r", [CallReturned("c", "ok"), DONE])
    before = await records(journal)
    assert await journal.compact("r") == 1
    after = await records(journal)
    assert [r.event for r in after[3:]] == [r.event for r in before[4:]]
    for place in (0, 2, 4, 499, 500, 501, 1001, 1106, 1107, 1108):
        assert await records(journal, after=place) == [r for r in after if r.seq > place]
    call = await journal.call("c")
    assert call is not None
    assert (call.args_json, call.result) == ("{}", "ok")


async def test_compaction_only_of_ended_runs(journal: Journal) -> None:
    await journal.append("r", [START])
    with pytest.raises(UsageError, match="is still running"):
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
