"""Who is woken, and what is kept for followers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from callstream.errors import JournalError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallReturned,
    CallStarted,
    Record,
    RunEnded,
    RunStarted,
    TextAppended,
)
from callstream.journal import Journal, open_journal
from callstream.journal.follow import TAIL, Folded, Followers, Page, follow

from .conftest import sqlite_url


def records(first: int, last: int) -> list[Record]:
    return [Record("r", seq, 0.0, TextAppended("m", str(seq))) for seq in range(first, last + 1)]


async def test_tail_is_kept_only_for_runs_that_are_followed() -> None:
    followers = Followers()
    followers.push({"r": records(1, 3)})
    assert followers.tail("r", 0) == []
    follower = followers.add("r")
    followers.push({"r": records(4, 6)})
    assert followers.tail("r", 3) == records(4, 6)
    followers.remove(follower)
    assert followers.tail("r", 3) == []


async def test_tail_never_leaves_a_record_out() -> None:
    followers = Followers()
    followers.add("r")
    followers.push({"r": records(4, 6)})
    assert followers.tail("r", 2) == []
    assert [followers.tail("r", after) for after in (3, 4, 5)] == [records(4, 6), records(5, 6), records(6, 6)]
    assert followers.tail("r", 6) == []
    followers.push({"r": records(8, 9)})
    assert followers.tail("r", 5) == []
    assert followers.tail("r", 7) == records(8, 9)
    followers.push({"r": records(10, 10 + TAIL)})
    assert followers.tail("r", 7) == []
    assert followers.tail("r", 10) == records(11, 10 + TAIL)


async def test_tail_has_only_what_a_follower_has_not_read() -> None:
    followers = Followers()
    near, behind = followers.add("r"), followers.add("r")
    followers.push({"r": records(1, 3)})
    near.after = 3
    followers.push({"r": records(4, 6)})
    assert followers.tail("r", 0) == records(1, 6)
    near.after, behind.after = 6, 5
    followers.push({"r": records(7, 7)})
    assert followers.tail("r", 0) == []
    assert followers.tail("r", 5) == records(6, 7)


async def seen_all(seen: list[Record], count: int) -> None:
    while len(seen) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


class Counted:
    """A journal's pages, counted."""

    def __init__(self, journal: Journal) -> None:
        self.pages = 0
        self._inner = journal._store.reader.page  # type: ignore[attr-defined]
        journal._store.reader.page = self.page  # type: ignore[attr-defined]

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        self.pages += 1
        found: Page | Folded | None = await self._inner(run_id, after, limit, is_first)
        return found


async def test_follower_of_a_run_of_this_process_does_not_read_every_record_from_the_store(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None)
    await journal.append("r", [RunStarted("t"), CallStarted("c", "t")])
    counted = Counted(journal)
    seen: list[Record] = []

    async def follower() -> None:
        async for record in journal.follow("r"):
            seen.append(record)

    task = asyncio.create_task(follower())
    await seen_all(seen, 2)
    for number in range(50):
        await journal.append("r", [ArgsAppended("c", str(number))])
        await seen_all(seen, 3 + number)
    assert counted.pages < 10  # the look at other processes may wake it for nothing now and then
    await journal.append("r", [TextAppended("m", "x" * 200_000), RunEnded("finished")])
    await task
    assert seen == [record async for record in journal.read("r")]
    await journal.aclose()


async def test_follower_sees_what_is_stored_not_the_objects_of_the_application(tmp_path: Path) -> None:
    """What comes from memory is what another process reads, whatever happens to the objects afterwards."""
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None)
    await journal.append("r", [RunStarted("t"), CallStarted("c", "t"), CallCompleted("c", "{}")])
    result: dict[str, object] = {"a": (1, 2)}
    seen: list[Record] = []

    async def follower() -> None:
        async for record in journal.follow("r"):
            seen.append(record)

    task = asyncio.create_task(follower())
    await seen_all(seen, 3)
    await journal.append("r", [CallReturned("c", result)])
    result["a"] = "changed"
    await journal.append("r", [RunEnded("finished")])
    await task
    assert seen[3].event == CallReturned("c", {"a": [1, 2]})
    assert seen == [record async for record in journal.read("r")]
    await journal.aclose()


async def test_followers_are_told_when_the_journal_breaks() -> None:
    followers = Followers()

    async def page(run_id: str, after: int, limit: int, is_first: bool) -> Page:
        return Page([], False)

    task = asyncio.ensure_future(anext(follow(page, followers, "r", 0)))
    await asyncio.sleep(0)
    followers.close(JournalError("broken"))
    with pytest.raises(JournalError, match="broken"):
        await task
    with pytest.raises(JournalError, match="broken"):
        await anext(follow(page, followers, "r", 0))


async def until_waiting() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_while_a_reader_waits_is_offered_first() -> None:
    """What is taken is not given again, what is refused comes by the reader, and so does a run's end."""
    async with open_journal("memory:") as journal:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "write")])
        offered: list[list[int]] = []
        takes = True

        def take(found: Sequence[Record]) -> bool:
            offered.append([record.seq for record in found])
            return takes

        read: list[int] = []

        async def reader() -> None:
            async for found in journal.batches("r", take=take):
                read.extend(record.seq for record in found)

        reading = asyncio.create_task(reader())
        await until_waiting()
        await journal.append("r", [ArgsAppended("c", "1")])
        await until_waiting()
        assert (offered, read) == ([[3]], [1, 2])
        takes = False
        await journal.append("r", [ArgsAppended("c", "2")])
        await until_waiting()
        assert (offered, read) == ([[3], [4]], [1, 2, 4])
        takes = True
        await journal.append("r", [ArgsAppended("c", "3"), ArgsAppended("c", "4")])
        await until_waiting()
        await journal.append("r", [CallCompleted("c", "1234"), RunEnded("finished")])
        await reading
    assert (offered, read) == ([[3], [4], [5, 6]], [1, 2, 4, 7, 8])


async def test_an_error_of_whoever_takes_is_the_readers() -> None:
    async with open_journal("memory:") as journal:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "write")])

        def take(found: Sequence[Record]) -> bool:
            raise ValueError("cannot")

        async def reader() -> None:
            async for _ in journal.batches("r", take=take):
                pass

        reading = asyncio.create_task(reader())
        await until_waiting()
        await journal.append("r", [ArgsAppended("c", "1")])
        with pytest.raises(ValueError, match="cannot"):
            await reading


async def test_news_of_what_was_read_already_wakes_nobody() -> None:
    async with open_journal("memory:") as journal:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "write")])
        offered: list[list[int]] = []
        read: list[int] = []

        def take(found: Sequence[Record]) -> bool:
            offered.append([record.seq for record in found])
            return True

        async def reader() -> None:
            async for found in journal.batches("r", take=take):
                read.extend(record.seq for record in found)

        reading = asyncio.create_task(reader())
        await until_waiting()
        told: list[object] = []
        for number in (2, 3):  # both are written before the reader hears of the first
            journal.submit("r", [ArgsAppended("c", str(number))], told.append, after=number)
        await until_waiting()
        assert (told, offered, read) == ([3, 4], [[3, 4]], [1, 2])
        await journal.append("r", [CallCompleted("c", "23"), RunEnded("finished")])
        await reading
    assert read == [1, 2, 5, 6]
