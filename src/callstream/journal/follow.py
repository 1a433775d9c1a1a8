"""Readers of the log: page by page, and followers, to whom what is committed is pushed.

A reader holds nothing of the store between two pages. A follower registers before it reads, so what this process commits
after its last page is pushed to it, through its own event loop, from whichever thread committed, and as it would have
read it. It keeps the last of what it has not handed on in a bounded buffer. When there was no room, or when another
process has written, it is behind: it reads from its place, until it gets to what is in the buffer.

A run may be compacted between two pages of one reader. It has then had some pieces of a text whose pieces are one record
now, and gets that record with the rest of the text: what it has read, joined, is the same as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from callstream.errors import Compacted, JournalError, UsageError
from callstream.events import PIECES, ArgsAppended, ReasoningAppended, Record, RunEnded, TextAppended
from callstream.journal.rows import check_place
from callstream.waits import Flag

PAGE = 500
PAGE_CHARACTERS = 256 * 1024
"""Where the pieces of a text are long, pages have fewer: what a reader holds that takes nothing is about this much."""
BUFFER_CHARACTERS = 2 * PAGE_CHARACTERS
"""The same of buffers, whose records all followers of a run share."""
_NO_RUNS: frozenset[str] = frozenset()


class Page(msgspec.Struct, frozen=True):
    """Records after a place in the log. ``ended``: there is nothing after them and there never will be.

    ``compacted``: numbers may be missing, whose records were folded into later ones.
    """

    records: Sequence[Record]
    ended: bool
    compacted: bool = False


class Folded(msgspec.Struct, frozen=True):
    """The asked-for place lies inside these folded records."""

    first: int
    last: int


ReadPage: TypeAlias = Callable[[str, int, int, bool], Awaitable[Page | Folded | None]]
"""(run_id, after, limit, is_first) -> the page; None if there is no such run.

Only a reader's first page can be Folded. Those after it begin with whatever record has a higher number.
"""
Push: TypeAlias = Callable[[Sequence[Record]], bool]
"""Accepts records where they are delivered, in no task of its own. False if it cannot now: then nothing was done."""


class _Place:
    """How far one reader of a run is, and how much of each text it has had."""

    __slots__ = ("_asked_for", "_had", "_limit", "_read_page", "after", "has_read", "run_id")

    def __init__(self, read_page: ReadPage, run_id: str, after: int) -> None:
        self.run_id = run_id
        self.after = after = check_place(after)
        self.has_read = False
        self._read_page = read_page
        self._asked_for = after
        self._had: dict[tuple[type, str], int] = {}
        self._limit = PAGE

    async def page(self) -> tuple[Sequence[Record], bool, bool]:
        """What comes next in the store, whether the run ends with it, and whether there is more already."""
        limit = self._limit
        page = await self._read_page(self.run_id, self.after, limit, not self.has_read)
        if page is None:
            if self.has_read:
                raise JournalError(f"run {self.run_id!r} was erased while it was being read")
            raise UsageError(f"the journal has no run {self.run_id!r}")
        if isinstance(page, Folded):
            raise Compacted(self.run_id, self.after, page.first, page.last)
        return self.advance(page.records), page.ended, len(page.records) >= limit

    def advance(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records without what the reader has had of them; it has had them now."""
        self.has_read = True
        has_rests = False
        characters = 0
        for record in records:
            event: Any = record.event
            if type(event) in PIECES:
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
            raise Compacted(self.run_id, self._asked_for, first, record.seq)  # how much came before is not known
        had = self._had.get(_text_key(event), 0)
        if not had:
            return record
        return msgspec.structs.replace(
            record, event=msgspec.structs.replace(event, text=event.text[had:]), first_seq=self.after + 1
        )


def _characters(record: Record) -> int:
    event: Any = record.event
    return len(event.text) if type(event) in PIECES else 0


def _text_key(event: ArgsAppended | TextAppended | ReasoningAppended) -> tuple[type, str]:
    return type(event), event.call_id if isinstance(event, ArgsAppended) else event.message_id


class Follower(_Place):
    """One reader of a run that waits for more. It belongs to one event loop; see ``call_in``."""

    __slots__ = ("_buffer", "_characters", "_error", "_is_waiting", "_news", "_push", "is_behind", "loop")

    def __init__(self, read_page: ReadPage, run_id: str, after: int = 0, push: Push | None = None) -> None:
        super().__init__(read_page, run_id, after)
        self.loop = asyncio.get_running_loop()
        self.is_behind = True
        """Whether it has to read: there may be records after its place that are not in its buffer."""
        self._push = push
        self._buffer: list[Record] = []
        self._characters = 0
        self._is_waiting = False
        self._error: Exception | None = None
        self._news = Flag()

    def push(self, records: Sequence[Record], *, at_once: bool = True) -> None:
        """What was committed of the run, in order; without records, that something was. In the follower's own loop.

        ``at_once``: whether the reader may be given them here, if it waits.
        """
        if records and records[-1].seq <= self.after:
            return  # read already
        if at_once and self._is_waiting and records and self._hand_on(records):
            return
        self._keep(records)
        self._is_waiting = False  # it is about to go on, and reads these first
        self._news.set()

    def _hand_on(self, records: Sequence[Record]) -> bool:
        """Whether the reader has accepted them. A run's end is for its task."""
        if self._push is None or type(records[-1].event) is RunEnded:
            return False
        if records[0].seq != self.after + 1:
            records = self._unread(records)
            if records[0].seq != self.after + 1:
                return False
        try:
            is_accepted = self._push(records)
        except Exception as error:  # noqa: BLE001  # it is the reader's, and rises where that waits
            self._error = error
            return False
        if is_accepted:
            self.advance(records)
        return is_accepted

    def _keep(self, records: Sequence[Record]) -> None:
        """Keeps the last of what has not been read; what has no room, and what is missing before them, has to be read."""
        if not records or (self._buffer and records[0].seq != self._buffer[-1].seq + 1):
            self.is_behind = True
            self._empty()
        buffer = self._buffer
        buffer.extend(records)
        self._characters += sum(map(_characters, records))
        dropped = 0
        while len(buffer) - dropped > PAGE or self._characters > BUFFER_CHARACTERS:
            self._characters -= _characters(buffer[dropped])
            dropped += 1
        if dropped:
            self.is_behind = True
            del buffer[:dropped]

    def _empty(self) -> None:
        self._buffer, self._characters = [], 0

    def _unread(self, records: Sequence[Record]) -> Sequence[Record]:
        read = self.after + 1 - records[0].seq
        return records[read:] if read > 0 else records

    def pop(self) -> Sequence[Record]:
        """The records of the buffer, if the next one to be read is the first of them."""
        if not self._buffer:
            return ()
        records = self._unread(self._buffer)
        if records and records[0].seq != self.after + 1:
            self.is_behind = True
            return ()
        self._empty()
        return self.advance(records)

    async def read(self) -> tuple[Sequence[Record], bool]:
        """The next page of the store, and whether the run ends with it. What is committed meanwhile is kept."""
        self.is_behind = False
        records, has_ended, has_more = await self.page()
        self.is_behind |= has_more
        return records, has_ended

    async def wait(self) -> None:
        """Waits for what is pushed."""
        self._is_waiting = True
        try:
            await self._news.wait()
        finally:
            self._is_waiting = False
        self._news.clear()
        if self._error is not None:
            raise self._error


Pushed: TypeAlias = tuple[Follower, Sequence[Record]]
News: TypeAlias = dict[asyncio.AbstractEventLoop, list[Pushed]]
"""What is to be pushed in each loop."""


class Followers:
    """The followers of all runs, in all loops of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_run: dict[str, set[Follower]] = {}
        self._is_closed = False
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

    def add(self, follower: Follower) -> None:
        with self._lock:
            self._by_run.setdefault(follower.run_id, set()).add(follower)
            watcher = self._watcher if len(self._by_run) == 1 else None
        if watcher is not None:
            call_in(watcher[0], watcher[1].set)

    def remove(self, follower: Follower) -> None:
        with self._lock:
            waiting = self._by_run.get(follower.run_id, set())
            waiting.discard(follower)
            if not waiting:
                self._by_run.pop(follower.run_id, None)

    def runs(self) -> Set[str]:
        """The runs that are followed."""
        if not self._by_run:
            return _NO_RUNS
        with self._lock:
            return set(self._by_run)

    def news(self, changed: Mapping[str, Sequence[Record]]) -> News:
        """What to push after a commit: runs with their new records. A run without any is read by its followers."""
        found: News = {}
        if self._by_run:
            with self._lock:
                for run_id, records in changed.items():
                    for follower in self._by_run.get(run_id, ()):
                        found.setdefault(follower.loop, []).append((follower, records))
        return found

    def push(self, changed: Mapping[str, Sequence[Record]]) -> None:
        """Gives the followers of those runs their new records. Those of a run without any read."""
        for loop, pushed in self.news(changed).items():
            call_in(loop, _push_all, pushed)

    def wake(self, run_ids: Iterable[str]) -> None:
        """Has the followers of those runs read."""
        self.push(dict.fromkeys(run_ids, ()))

    def wake_all(self) -> None:
        self.wake(self.runs())

    def close(self, error: JournalError | None = None) -> None:
        """Ends all followers: they stop as if the run had ended, or raise the error."""
        with self._lock:
            self._is_closed = True
            self.error = error
        self.wake_all()

    def is_closed(self) -> bool:
        return self._is_closed


async def pages(read_page: ReadPage, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Record], None]:
    """The records that are there, a page at a time."""
    place = _Place(read_page, run_id, after)
    has_ended, has_more = False, True
    while has_more and not has_ended:
        records, has_ended, has_more = await place.page()
        if records:
            yield records


async def each(found: AsyncGenerator[Sequence[Record], None]) -> AsyncIterator[Record]:
    """Record by record what comes many at a time."""
    async with aclosing(found):
        async for records in found:
            for record in records:
                yield record


def follow(read_page: ReadPage, followers: Followers, run_id: str, after: int) -> AsyncIterator[Record]:
    """The records that are there and those that come, to the run's last."""
    return each(batches(read_page, followers, run_id, after))


async def batches(
    read_page: ReadPage, followers: Followers, run_id: str, after: int, push: Push | None = None
) -> AsyncGenerator[Sequence[Record], None]:
    """The same, all that is there at a time: a slow reader gets more of them at once.

    What this process commits while the reader waits is pushed first, but for the run's end.
    """
    follower = Follower(read_page, run_id, after, push)
    followers.add(follower)
    try:
        if followers.is_closed():
            raise followers.error or UsageError("the journal is closed")
        while not followers.is_closed():
            if records := follower.pop():
                has_ended = isinstance(records[-1].event, RunEnded)
            elif follower.is_behind:
                try:
                    records, has_ended = await follower.read()
                except UsageError:
                    if followers.is_closed() and follower.has_read:
                        break
                    raise
            else:
                await follower.wait()
                continue
            if records:
                yield records
                del records
            if has_ended:
                return
        if followers.error is not None:
            raise followers.error
    finally:
        followers.remove(follower)


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Calls something in a loop of any thread. In a closed loop nothing waits any more."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _push_all(pushed: Iterable[Pushed]) -> None:
    for follower, records in pushed:
        follower.push(records)


# -- what a reader remembers of runs -----------------------------------------------------------------------------------


MAX_HEADS = 10_000


class _Keyed(Protocol):
    @property
    def key(self) -> int: ...


_Head = TypeVar("_Head", bound=_Keyed)


class Heads(Generic[_Head]):
    """Heads of runs by id. When there are too many, those go that are not followed."""

    def __init__(self) -> None:
        self._heads: dict[str, _Head] = {}
        self._run_ids: dict[int, str] = {}
        self.followed: Callable[[], Set[str]] = frozenset
        """The runs that are followed: a notice finds them by their heads, which must stay."""

    def __len__(self) -> int:
        return len(self._heads)

    def get(self, run_id: str) -> _Head | None:
        return self._heads.get(run_id)

    def run_of(self, key: int) -> str | None:
        """The run of that number, if it was read here."""
        return self._run_ids.get(key)

    def remember(self, run_id: str, head: _Head) -> _Head:
        self._heads.pop(run_id, None)
        self._heads[run_id] = head
        self._run_ids[head.key] = run_id
        if len(self._heads) > MAX_HEADS:
            followed = self.followed()
            for other in [run_id for run_id in self._heads if run_id not in followed][: MAX_HEADS // 2]:
                self.forget(other)
        return head

    def forget(self, run_id: str) -> None:
        head = self._heads.pop(run_id, None)
        if head is not None:
            self._run_ids.pop(head.key, None)
