"""Readers of the log, which read page by page, and followers, to which committed records are pushed.

A reader holds no resources of the store between two pages. A follower registers before it reads, so records that this
process commits after its last page are pushed to it: in its own event loop, whichever thread committed them, and just as it
would have read them. It keeps the newest of the records that it has not handed on in a bounded buffer. When the buffer has
overflowed, or another process has written, the follower is behind: it reads from its place in the store until it reaches
the records in the buffer.

A run may be compacted between two pages of one reader, which may then have had some pieces of a text that is now a single
record. The reader gets that record with only the rest of the text, so that all it has read, joined, is the same as if
nothing had happened.
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
"""Pages have fewer records when pieces are long, so that a stalled reader holds no more than about this much text."""
BUFFER_CHARACTERS = 2 * PAGE_CHARACTERS
"""The same for a follower's buffer. All followers of a run share the records in it."""
_NO_RUNS: frozenset[str] = frozenset()


class Page(msgspec.Struct, frozen=True):
    """Records after a place in the log. ``ended``: they are the run's last.

    ``compacted``: numbers may be missing, because their records were folded into later ones.
    """

    records: Sequence[Record]
    ended: bool
    compacted: bool = False


class Folded(msgspec.Struct, frozen=True):
    """The requested place is inside these folded records."""

    first: int
    last: int


ReadPage: TypeAlias = Callable[[str, int, int, bool], Awaitable[Page | Folded | None]]
"""(run_id, after, limit, is_first) -> the page; None if there is no such run.

Only a reader's first page can be Folded. Later ones begin with the next record, even if it is a folded one.
"""
Push: TypeAlias = Callable[[Sequence[Record]], bool]
"""Accepts records where they are delivered, without a task of its own. False if it cannot now, and has done nothing."""


class _Place:
    """How far one reader of a run has read, and how much of each text it has had."""

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
        """The next records in the store, whether the run ends with them, and whether there are more already."""
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
        """The records without the text that the reader has had already. From now on they count as read."""
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
        """Whether it has to read the store: there may be records after its place that are not in its buffer."""
        self._push = push
        self._buffer: list[Record] = []
        self._characters = 0
        self._is_waiting = False
        self._error: Exception | None = None
        self._news = Flag()

    def push(self, records: Sequence[Record], *, at_once: bool = True) -> None:
        """Takes records that were committed to the run, in order; without records, something was committed that has to be
        read. Called in the follower's own loop.

        ``at_once``: whether the records may be handed to the reader here, if it waits.
        """
        if records and records[-1].seq <= self.after:
            return  # read already
        if at_once and self._is_waiting and records and self._hand_on(records):
            return
        self._keep(records)
        self._is_waiting = False  # it is about to go on, and takes these first
        self._news.set()

    def _hand_on(self, records: Sequence[Record]) -> bool:
        """Offers the records to the reader; whether it has accepted them. A run's end is left to the reader's task."""
        if self._push is None or type(records[-1].event) is RunEnded:
            return False
        if records[0].seq != self.after + 1:
            records = self._unread(records)
            if records[0].seq != self.after + 1:
                return False
        try:
            is_accepted = self._push(records)
        except Exception as error:  # noqa: BLE001  # it is the reader's, and is raised where the reader waits
            self._error = error
            return False
        if is_accepted:
            self.advance(records)
        return is_accepted

    def _keep(self, records: Sequence[Record]) -> None:
        """Keeps the newest of the unread records; any that do not fit, or are missing before these, have to be read."""
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
        """The unread records of the buffer, if they follow directly after the reader's place."""
        if not self._buffer:
            return ()
        records = self._unread(self._buffer)
        if records and records[0].seq != self.after + 1:
            self.is_behind = True
            return ()
        self._empty()
        return self.advance(records)

    async def read(self) -> tuple[Sequence[Record], bool]:
        """The next page of the store, and whether the run ends with it. Records committed meanwhile are buffered."""
        self.is_behind = False
        records, has_ended, has_more = await self.page()
        self.is_behind |= has_more
        return records, has_ended

    async def wait(self) -> None:
        """Waits until something is pushed."""
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
"""What to push in each loop."""


class Followers:
    """The followers of all runs, in all loops of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_run: dict[str, set[Follower]] = {}
        self._is_closed = False
        self.error: JournalError | None = None
        self._watcher: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def any(self) -> None:
        """Waits until a run is followed. Only for one watcher, in its own loop."""
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
        """What to push after a commit. ``changed``: runs with their new records; without any, followers have to read."""
        found: News = {}
        if self._by_run:
            with self._lock:
                for run_id, records in changed.items():
                    for follower in self._by_run.get(run_id, ()):
                        found.setdefault(follower.loop, []).append((follower, records))
        return found

    def push(self, changed: Mapping[str, Sequence[Record]]) -> None:
        """Pushes the new records to the followers of those runs. Followers of a run without any read the store."""
        for loop, pushed in self.news(changed).items():
            call_in(loop, _push_all, pushed)

    def wake(self, run_ids: Iterable[str]) -> None:
        """Has the followers of those runs read the store."""
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
    """The records that exist now, a page at a time."""
    place = _Place(read_page, run_id, after)
    has_ended, has_more = False, True
    while has_more and not has_ended:
        records, has_ended, has_more = await place.page()
        if records:
            yield records


async def each(found: AsyncGenerator[Sequence[Record], None]) -> AsyncIterator[Record]:
    """One record at a time."""
    async with aclosing(found):
        async for records in found:
            for record in records:
                yield record


def follow(read_page: ReadPage, followers: Followers, run_id: str, after: int) -> AsyncIterator[Record]:
    """The records that exist and those that come later, up to the run's last."""
    return each(batches(read_page, followers, run_id, after))


async def batches(
    read_page: ReadPage, followers: Followers, run_id: str, after: int, push: Push | None = None
) -> AsyncGenerator[Sequence[Record], None]:
    """The same, with all available records at a time: a slow reader gets more of them at once.

    Records that this process commits while the reader waits are offered to ``push`` first, except for the run's end.
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
    """Calls something in a loop of any thread. Does nothing if the loop is closed, since nothing waits in it."""
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
    """Heads of runs by id. When there are too many, heads of runs that are not followed are dropped."""

    def __init__(self) -> None:
        self._heads: dict[str, _Head] = {}
        self._run_ids: dict[int, str] = {}
        self.followed: Callable[[], Set[str]] = frozenset
        """The runs that are followed. Their heads must stay, because a notice of new records finds the run by its head."""

    def __len__(self) -> int:
        return len(self._heads)

    def get(self, run_id: str) -> _Head | None:
        return self._heads.get(run_id)

    def run_of(self, key: int) -> str | None:
        """The run with that key, if its head is remembered."""
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
