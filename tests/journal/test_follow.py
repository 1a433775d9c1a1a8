"""What followers are pushed, what is kept for them in memory, and when they read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
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
from callstream.journal.follow import BUFFER_CHARACTERS, PAGE, Folded, Follower, Followers, Page, follow

from .conftest import sqlite_url


def records(first: int, last: int) -> list[Record]:
    return [Record("r", seq, 0.0, TextAppended("m", str(seq))) for seq in range(first, last + 1)]


class Pages:
    """A store of one run, whose pages are counted. ``at`` is called in the middle of reading one."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.read = 0
        self.at: Callable[[], object] = lambda: None

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page:
        self.read += 1
        found = records(after + 1, min(self.last, after + limit))
        self.at()
        await asyncio.sleep(0)
        return Page(found, False)


def numbers(found: Sequence[Record]) -> list[int]:
    return [record.seq for record in found]


async def test_a_follower_is_pushed_what_comes_after_its_page() -> None:
    pages = Pages(3)
    follower = Follower(pages.page, "r")
    assert follower.is_behind
    assert numbers((await follower.read())[0]) == [1, 2, 3]
    follower.push(records(4, 6))
    assert numbers(follower.pop()) == [4, 5, 6]
    assert (list(follower.pop()), follower.is_behind, pages.read) == ([], False, 1)


async def test_what_is_pushed_never_leaves_a_record_out() -> None:
    pages = Pages(3)
    follower = Follower(pages.page, "r")
    await follower.read()
    follower.push(records(4, 6))
    follower.push(records(8, 9))
    assert (list(follower.pop()), follower.is_behind) == ([], True)  # 7 is another process's
    pages.last = 9
    assert numbers((await follower.read())[0]) == [4, 5, 6, 7, 8, 9]
    follower.push(records(11, 11))
    assert (list(follower.pop()), follower.is_behind) == ([], True)
    pages.last = 11
    await follower.read()
    follower.push(())  # something was written, by another process
    assert follower.is_behind


async def test_what_is_committed_while_a_page_is_read_is_kept_and_comes_once() -> None:
    pages = Pages(3)
    follower = Follower(pages.page, "r")
    pages.at = lambda: (follower.push(records(3, 4)), follower.push(records(5, 5)))
    found, _ = await follower.read()
    assert numbers(found) == [1, 2, 3]
    assert numbers(follower.pop()) == [4, 5]
    follower.push(records(4, 5))  # pushed, and read meanwhile
    assert (list(follower.pop()), follower.is_behind, pages.read) == ([], False, 1)


@pytest.mark.parametrize(("most", "text"), [(PAGE, "x"), (4, "x" * (BUFFER_CHARACTERS // 4))])
async def test_a_follower_that_stands_still_holds_the_last_records_and_reads_those_before(most: int, text: str) -> None:
    last = 3 * most
    pages = Pages(1)
    follower = Follower(pages.page, "r")
    await follower.read()
    for seq in range(2, last + 1):
        follower.push([Record("r", seq, 0.0, TextAppended("m", text))])
    assert numbers(follower._buffer) == list(range(last + 1 - most, last + 1))
    assert (list(follower.pop()), follower.is_behind) == ([], True)
    seen = 1
    while follower.is_behind:
        pages.last = min(last, seen + most)
        for found in ((await follower.read())[0], follower.pop()):
            assert numbers(found) == list(range(seen + 1, seen + 1 + len(found)))
            seen += len(found)
    assert seen == last


async def seen_all(seen: list[Record], count: int) -> None:
    while len(seen) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


class Counted:
    """A journal's pages, counted."""

    def __init__(self, journal: Journal) -> None:
        self.pages: Counter[str] = Counter()
        self._inner = journal._store.reader.page  # type: ignore[attr-defined]
        journal._store.reader.page = self.page  # type: ignore[attr-defined]

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        self.pages[run_id] += 1
        found: Page | Folded | None = await self._inner(run_id, after, limit, is_first)
        return found


async def test_follower_of_a_run_of_this_process_reads_nothing_of_it_whatever_others_write(tmp_path: Path) -> None:
    journal, other = (open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None) for _ in range(2))
    await journal.append("r", [RunStarted("t"), CallStarted("c", "t")])
    await other.append("other", [RunStarted("t")])
    counted = Counted(journal)
    seen: list[Record] = []
    others: list[Record] = []

    async def follower(run_id: str, seen: list[Record]) -> None:
        async for record in journal.follow(run_id):
            seen.append(record)

    tasks = [asyncio.create_task(follower("r", seen)), asyncio.create_task(follower("other", others))]
    await seen_all(seen, 2)
    for number in range(20):
        await journal.append("r", [ArgsAppended("c", str(number))])
        await seen_all(seen, 3 + number)
        await other.append("other", [TextAppended("m", str(number))])
        await seen_all(others, 2 + number)  # the file was looked at in between
    assert counted.pages["r"] == 1
    assert counted.pages["other"] > 1
    await journal.append("r", [TextAppended("m", "x" * 200_000), RunEnded("finished")])
    await other.append("other", [RunEnded("finished")])
    await asyncio.gather(*tasks)
    assert seen == [record async for record in journal.read("r")]
    assert others == [record async for record in journal.read("other")]
    await journal.aclose()
    await other.aclose()


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


async def test_what_comes_while_a_reader_waits_is_pushed_first() -> None:
    """What is accepted is not given again, what is refused comes by the reader, and so does a run's end."""
    async with open_journal("memory:") as journal:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "write")])
        offered: list[list[int]] = []
        takes = True

        def push(found: Sequence[Record]) -> bool:
            offered.append([record.seq for record in found])
            return takes

        read: list[int] = []

        async def reader() -> None:
            async for found in journal.batches("r", push=push):
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


async def test_an_error_in_a_push_is_the_readers() -> None:
    async with open_journal("memory:") as journal:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "write")])

        def push(found: Sequence[Record]) -> bool:
            raise ValueError("cannot")

        async def reader() -> None:
            async for _ in journal.batches("r", push=push):
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

        def push(found: Sequence[Record]) -> bool:
            offered.append([record.seq for record in found])
            return True

        async def reader() -> None:
            async for found in journal.batches("r", push=push):
                read.extend(record.seq for record in found)

        reading = asyncio.create_task(reader())
        await until_waiting()
        told: list[object] = []
        for number in (2, 3):  # both are written before the reader hears of the first
            journal.submit("r", [ArgsAppended("c", str(number))], told.append, after=number)
        await until_waiting()
        assert (told, offered, read) == ([3, 4], [[3], [4]], [1, 2])
        await journal.append("r", [CallCompleted("c", "23"), RunEnded("finished")])
        await reading
    assert read == [1, 2, 5, 6]
