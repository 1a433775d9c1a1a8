"""Readers of the log: page by page, and those who wait for more.

A reader holds nothing of the store between two pages. A follower registers before it reads, so what is committed after
its last page wakes it; it is woken through its own event loop, from whichever thread committed. What this process has
committed itself it gets from memory, as it would have read it.

A run may be compacted between two pages of one reader. It has then had some pieces of a text whose pieces are one record
now, and gets that record with the rest of the text: what it has read, joined, is the same as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

import msgspec

from callstream.errors import Compacted, JournalError, UsageError
from callstream.events import ArgsAppended, ReasoningAppended, Record, RunEnded, TextAppended
from callstream.flag import Flag
from callstream.journal.rows import check_place

PAGE = 500
PAGE_CHARACTERS = 256 * 1024
"""Where the pieces of a text are long, pages have fewer: what a reader holds that takes nothing is about this much."""
_NOBODY: frozenset[str] = frozenset()
_PIECES = (ArgsAppended, TextAppended, ReasoningAppended)
TAIL = 500
"""Records that are kept in memory of a run that is both written and followed in this process."""


class Page(msgspec.Struct, frozen=True):
    """Records after a place in the log. ``ended``: there is nothing after them and there never will be."""

    records: Sequence[Record]
    ended: bool


class Folded(msgspec.Struct, frozen=True):
    """The asked-for place lies inside these folded records."""

    first: int
    last: int


ReadPage: TypeAlias = Callable[[str, int, int, bool], Awaitable[Page | Folded | None]]
"""(run_id, after, limit, is_first) -> the page; None if there is no such run.

Only a reader's first page can be Folded. Those after it begin with whatever record has a higher number.
"""
Take: TypeAlias = Callable[[Sequence[Record]], bool]
"""Takes records where they are told, in no task of its own. False if it does not want them: then nothing was done."""


class Follower:
    """One waiting reader. Its loop alone may tell it something; see ``call_in``."""

    __slots__ = ("_closed", "_error", "_is_waiting", "_news", "after", "loop", "offer", "run_id")

    def __init__(self, run_id: str, after: int = 0) -> None:
        self.run_id = run_id
        self.after = after
        """The number of the last record that it has read."""
        self.loop = asyncio.get_running_loop()
        self.offer: Callable[[], bool] | None = None
        """Asked first, while the reader waits, whether the news can be dealt with at once."""
        self._closed = False
        self._is_waiting = False
        self._error: Exception | None = None
        self._news = Flag()

    def close(self) -> None:
        self._closed = True

    def is_closed(self) -> bool:
        return self._closed

    async def wait(self) -> None:
        self._is_waiting = True
        try:
            await self._news.wait()
        finally:
            self._is_waiting = False
        self._news.clear()
        if self._error is not None:
            raise self._error

    def notice(self, seq: int = 0, *, at_once: bool = True) -> None:
        """In the follower's own loop. ``seq``: the number of the run's last record, if it is known."""
        if 0 < seq <= self.after:
            return  # the news before this one brought it
        if at_once and self.offer is not None and self._is_waiting and not self._closed and not self._news.is_set():
            try:
                if self.offer():
                    return
            except Exception as error:  # noqa: BLE001  # it is the reader's, and rises where that waits
                self._error = error
        self._news.set()


News: TypeAlias = dict[asyncio.AbstractEventLoop, list[tuple[Follower, int]]]
"""Who has to be told in each loop, and the number of the last record of his run; 0 if that is not known."""


class Followers:
    """Who waits for which run, in all loops of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_run: dict[str, set[Follower]] = {}
        self._tails: dict[str, list[Record]] = {}
        self._closed = False
        self.error: JournalError | None = None
        self._watcher: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def any(self) -> None:
        """Waits until a run is followed. For one watcher, in its own loop."""
        if self._watcher is None:
            self._watcher = (asyncio.get_running_loop(), asyncio.Event())
        came = self._watcher[1]
        while not self._by_run:
            came.clear()
            if self._by_run:
                return
            await came.wait()

    def add(self, run_id: str, after: int = 0) -> Follower:
        follower = Follower(run_id, after)
        with self._lock:
            if self._closed:
                follower.close()
            self._by_run.setdefault(run_id, set()).add(follower)
            watcher = self._watcher if len(self._by_run) == 1 else None
        if watcher is not None:
            call_in(watcher[0], watcher[1].set)
        return follower

    def remove(self, follower: Follower) -> None:
        with self._lock:
            waiting = self._by_run.get(follower.run_id, set())
            waiting.discard(follower)
            if not waiting:
                self._by_run.pop(follower.run_id, None)
                self._tails.pop(follower.run_id, None)

    def runs(self) -> Set[str]:
        """The runs that are followed."""
        if not self._by_run:
            return _NOBODY
        with self._lock:
            return set(self._by_run)

    def push(self, fresh: Mapping[str, Sequence[Record]]) -> None:
        """Keeps records that this process has just committed, so that followers who are near need not read them.

        What all followers of a run have read is dropped: most of the time there is nothing else.
        """
        if not fresh:
            return
        with self._lock:
            for run_id, records in fresh.items():
                followers = self._by_run.get(run_id)
                if not followers:
                    continue
                tail = self._tails.setdefault(run_id, [])
                if tail:
                    read = min([follower.after for follower in followers])
                    del tail[: max(0, read + 1 - tail[0].seq)]
                for record in records:
                    if tail and record.seq != tail[-1].seq + 1:
                        tail.clear()
                    tail.append(record)
                del tail[:-TAIL]

    def tail(self, run_id: str, after: int) -> list[Record]:
        """The records after that number, if the next one is among those that are kept."""
        with self._lock:
            tail = self._tails.get(run_id)
            if not tail or not tail[0].seq <= after + 1 <= tail[-1].seq:
                return []
            return tail[after + 1 - tail[0].seq :]

    def by_loop(self, changed: Mapping[str, int]) -> News:
        """Who follows those runs, which have a last record of that number, by the loop in which each has to be told."""
        if not self._by_run:
            return {}
        with self._lock:
            return _by_loop(
                (follower, seq) for run_id, seq in changed.items() for follower in self._by_run.get(run_id, ())
            )

    def wake(self, run_ids: Iterable[str]) -> None:
        _notify(self.by_loop(dict.fromkeys(run_ids, 0)))

    def wake_all(self) -> None:
        self.wake(self.runs())

    def close(self, error: JournalError | None = None) -> None:
        """Ends all followers: they stop as if the run had ended, or raise the error."""
        with self._lock:
            self._closed = True
            self.error = error
            woken = [(follower, 0) for waiting in self._by_run.values() for follower in waiting]
            for follower, _ in woken:
                follower.close()
        _notify(_by_loop(woken))


class _Place:
    """How far one reader of a run is, and how much of each text it has had."""

    __slots__ = ("_asked_for", "_had", "_limit", "_read_page", "_run_id", "after", "has_read")

    def __init__(self, read_page: ReadPage, run_id: str, after: int) -> None:
        self.after = after = check_place(after)
        self.has_read = False
        self._read_page = read_page
        self._run_id = run_id
        self._asked_for = after
        self._had: dict[tuple[type, str], int] = {}
        self._limit = PAGE

    async def page(self) -> tuple[Sequence[Record], bool, bool]:
        """What comes next in the store, whether the run ends with it, and whether there is more already."""
        limit = self._limit
        page = await self._read_page(self._run_id, self.after, limit, not self.has_read)
        if page is None:
            if self.has_read:
                raise JournalError(f"run {self._run_id!r} was erased while it was being read")
            raise UsageError(f"the journal has no run {self._run_id!r}")
        if isinstance(page, Folded):
            raise Compacted(self._run_id, self.after, page.first, page.last)
        return self.advance(page.records), page.ended, len(page.records) >= limit

    def advance(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records without what the reader has had of them; it has had them now."""
        self.has_read = True
        has_rests = False
        characters = 0
        for record in records:
            event = record.event
            if isinstance(event, _PIECES):
                key = _text_key(event)
                characters += len(event.text)
                if record.first_seq is None:
                    self._had[key] = self._had.get(key, 0) + len(event.text)
                else:
                    has_rests |= key in self._had or record.first_seq <= self._asked_for
        if has_rests:
            records = [record if record.first_seq is None else self._rest(record) for record in records]
        if records:
            self.after = records[-1].seq
            self._limit = min(PAGE, 1 + PAGE_CHARACTERS * len(records) // (characters + 1))
        return records

    def _rest(self, record: Record) -> Record:
        event, first = record.event, record.first_seq or record.seq
        assert isinstance(event, ArgsAppended | TextAppended | ReasoningAppended)
        if first <= self._asked_for:
            raise Compacted(self._run_id, self._asked_for, first, record.seq)  # how much came before is not known
        had = self._had.get(_text_key(event), 0)
        if not had:
            return record
        return msgspec.structs.replace(
            record, event=msgspec.structs.replace(event, text=event.text[had:]), first_seq=self.after + 1
        )


def _text_key(event: ArgsAppended | TextAppended | ReasoningAppended) -> tuple[type, str]:
    return type(event), event.call_id if isinstance(event, ArgsAppended) else event.message_id


async def read(read_page: ReadPage, run_id: str, after: int) -> AsyncIterator[Record]:
    """The records that are there."""
    place = _Place(read_page, run_id, after)
    while True:
        records, has_ended, has_more = await place.page()
        for record in records:
            yield record
        if has_ended or not has_more:
            return


async def follow(read_page: ReadPage, followers: Followers, run_id: str, after: int) -> AsyncIterator[Record]:
    """The records that are there and those that come, to the run's last."""
    async with aclosing(batches(read_page, followers, run_id, after)) as found:
        async for records in found:
            for record in records:
                yield record


async def batches(
    read_page: ReadPage, followers: Followers, run_id: str, after: int, take: Take | None = None
) -> AsyncGenerator[Sequence[Record], None]:
    """The same, all that is there at a time: a slow reader gets more of them at once.

    What this process commits while the reader waits is offered to ``take`` first, but for the run's end.
    """
    place = _Place(read_page, run_id, after)
    follower = followers.add(run_id, after)
    if take is not None:
        follower.offer = partial(_offer, followers, follower, place, take)
    try:
        if follower.is_closed():
            raise followers.error or UsageError("the journal is closed")
        while not follower.is_closed():
            has_ended = has_more = False
            if kept := followers.tail(run_id, place.after):
                records = place.advance(kept)
            else:
                try:
                    records, has_ended, has_more = await place.page()
                except UsageError:
                    if follower.is_closed() and place.has_read:
                        break
                    raise
            follower.after = place.after
            if records:
                has_ended |= isinstance(records[-1].event, RunEnded)
                yield records
                del records, kept
            if has_ended:
                return
            if not has_more and not follower.is_closed():
                await follower.wait()
        if followers.error is not None:
            raise followers.error
    finally:
        followers.remove(follower)


def _offer(followers: Followers, follower: Follower, place: _Place, take: Take) -> bool:
    records = followers.tail(follower.run_id, place.after)
    if not records or isinstance(records[-1].event, RunEnded) or not take(records):
        return False
    place.advance(records)
    follower.after = place.after
    return True


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Calls something in a loop of any thread. In a closed loop nothing waits any more."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _by_loop(followers: Iterable[tuple[Follower, int]]) -> News:
    found: News = {}
    for told in followers:
        found.setdefault(told[0].loop, []).append(told)
    return found


def _notify(news: News) -> None:
    for loop, followers in news.items():
        call_in(loop, _notice, followers)


def _notice(followers: Iterable[tuple[Follower, int]]) -> None:
    for follower, seq in followers:
        follower.notice(seq)
