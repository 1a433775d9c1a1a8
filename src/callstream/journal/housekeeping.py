"""What is done to a journal beside appending to it: ending the runs of dead processes, compacting, archiving, erasing.

It is done on request, and automatically as ``Housekeeping`` says, one of the settings with which a journal is opened.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from callstream.errors import JournalError, UsageError
from callstream.events import RunEvent
from callstream.journal.archive import Archive, ArchivedReader
from callstream.journal.archive.objects import ArchiveUnavailable
from callstream.journal.follow import Followers
from callstream.journal.rows import fold
from callstream.journal.store import RunFilter, Store, StoreUnavailable, forget_filter, forgotten_mark
from callstream.journal.whole import RunSize, WholeRun
from callstream.journal.writer import may_wait

_T = TypeVar("_T")
_log = logging.getLogger("callstream.journal")

Redact: TypeAlias = Callable[[RunEvent], RunEvent]


class Housekeeping(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal does by itself. All times are in seconds; None turns a duty off.

    ``compact_after``: how long after its end a run is compacted. ``sweep_every``: how often runs of dead processes are
    looked for (the first time when the journal opens). ``go_on_within``: how long a run that can go on in another process
    waits for one. ``archive_after``: how long after its end a run is archived, if the journal has an archive; up to a tenth
    later if only few runs are due. ``retain``: how long after its end a run is erased.
    """

    compact_after: float | None = 60.0
    sweep_every: float | None = 10.0
    go_on_within: float = 3600.0
    archive_after: float | None = 30 * 86400.0
    retain: float | None = None


_NO_DUTIES = Housekeeping(compact_after=None, sweep_every=None, archive_after=None)


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all journals share.

    ``writer_id``: a name for this process in the store; made unique by the journal. ``lease_ttl``: seconds after which
    a process that no longer renews its lease counts as dead. ``retry_seconds``: how long an append or a read waits for an
    unavailable store, and an append for room in the queue, before it fails. ``max_pending_bytes``: how much may wait to
    be written. ``gather_seconds``: how long after one batch of records those of other runs gather for the next; 0 writes
    everything at once, which costs more. A run that writes alone never waits. ``redact`` is applied to every event before
    it is stored; it sees the pieces of a call one by one, so it cannot recognise a text that is spread over several.
    ``migrate``: bring an older schema up to date at opening; if false, an older schema is an error. ``archive``: where runs
    that ended long ago go, ``s3://bucket/prefix`` or ``file:///folder``; the same for all processes of a journal.
    """

    writer_id: str | None = None
    lease_ttl: float = 15.0
    retry_seconds: float = 5.0
    max_pending_bytes: int = 64 * 1024 * 1024
    gather_seconds: float = 0.015
    redact: Redact | None = None
    housekeeping: Housekeeping | None = Housekeeping()
    migrate: bool = True
    archive: str | None = None

    def __post_init__(self) -> None:
        if self.lease_ttl <= 0:
            raise UsageError(f"lease_ttl must be more than 0 seconds, got {self.lease_ttl}")
        if self.max_pending_bytes <= 0:
            raise UsageError(f"max_pending_bytes must be more than 0, got {self.max_pending_bytes}")
        if not 0 <= self.gather_seconds <= 1:
            raise UsageError(f"gather_seconds must be between 0 and 1, got {self.gather_seconds}")


_MAX_BACK_OFF = 1.0
_SWEEP_LIMIT = 100
_ADOPT_LIMIT = 1000
_FORGET_LIMIT = 200
_FEW_ROWS = 1000
"""Up to this many are folded on the spot; more would keep appends waiting."""
_NAMED_RUNS = 10


class Housekeeper:
    """It uses the store, so it may be used only where the store is: on the journal's thread, if there is one."""

    def __init__(self, store: Store, followers: Followers, settings: JournalSettings, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self._followers = followers
        self._patience = settings.retry_seconds
        self._duties = settings.housekeeping or _NO_DUTIES

    @property
    def period(self) -> float | None:
        """How often to check whether there is anything to do; None for never."""
        duties = self._duties
        spans = [duties.sweep_every, duties.compact_after, duties.retain]
        if self._archive.is_named:
            spans.append(duties.archive_after)
        periods = [seconds for seconds in spans if seconds is not None]
        return max(0.05, min(periods)) if periods else None

    async def patiently(
        self,
        work: Callable[..., Coroutine[Any, Any, _T]],
        *args: Any,
        again: Callable[[StoreUnavailable], object] | None = None,
    ) -> _T:
        """Does work that may be repeated. While the store is unavailable, tries again for as long as an append would wait.

        ``again`` is called before each further attempt.
        """
        deadline = time.monotonic() + self._patience
        back_off = 0.01
        while True:
            try:
                return await work(*args)
            except StoreUnavailable as error:
                if time.monotonic() + back_off > deadline:
                    raise
                if again is not None:
                    again(error)
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, _MAX_BACK_OFF)

    async def do_duties(self, *, may_sweep: bool = True) -> None:
        duties = self._duties
        if may_sweep and duties.sweep_every is not None:
            await self.sweep()
        if duties.compact_after is not None:
            while due := await self._store.due(duties.compact_after):
                await self._compact_all(due)
        try:
            if duties.retain is not None:
                await self.forget(forget_filter(time.time() - duties.retain, None, None))
            if self._archive.is_named and duties.archive_after is not None:
                await self._archive.check()
                await self._archive.clean()
                await self._archive.pack(duties.archive_after, waits=True)
        except ArchiveUnavailable as error:
            raise JournalError(str(error)) from error  # not a StoreUnavailable: appends do not need the archive

    async def compact_own(self) -> None:
        """Compacts the runs that this process compacts itself, whether or not it has the duties."""
        if self._duties.compact_after is not None:
            await self._compact_all(await self._store.own_due(self._duties.compact_after))

    async def _compact_all(self, run_ids: list[str]) -> None:
        for run_id in run_ids:
            try:
                await self.compact(run_id)
            except UsageError:
                pass  # it was erased meanwhile
            await asyncio.sleep(0)  # appends go first

    async def sweep(self, also_waiting: bool = False) -> list[str]:
        swept: list[str] = []
        patience = -math.inf if also_waiting else self._duties.go_on_within
        while found := await self.patiently(self._store.sweep, _SWEEP_LIMIT, patience):
            swept += found
            _log_swept(found)
            self._followers.wake(found)
            if len(found) < _SWEEP_LIMIT:
                break
            await asyncio.sleep(0)
        return swept

    async def waiting(self) -> list[str]:
        reader, waiting = self._store.reader, []
        for run_id in await self.patiently(reader.left_open):
            records = await self.patiently(reader.read_whole, [run_id], False)
            events = [record.event for record in records]
            if records and may_wait(events, time.time() - records[-1].at, self._duties.go_on_within):
                waiting.append(run_id)
        return waiting

    async def adopt(self, apps: Container[str], run_id: str | None = None) -> list[str]:
        await self.patiently(self._store.release_gone)
        adopted = await self.patiently(self._store.adopt, apps, _ADOPT_LIMIT, run_id)
        self._followers.wake(adopted)
        return adopted

    async def compact(self, run_id: str) -> int:
        """An ended run does not change, so it is read and folded without a lock; only storing the result takes one."""
        log = await self.patiently(self._store.reader.log, run_id)
        if log is None:
            raise UsageError(f"the journal has no run {run_id!r}")
        if not log.ended:
            raise UsageError(f"run {run_id!r} is still running; only an ended run can be compacted")
        if log.compacted:
            return 0
        few = len(log.rows) <= _FEW_ROWS
        rows = fold(log.rows) if few else await asyncio.to_thread(fold, log.rows)
        if not await self.patiently(self._store.put_folded, run_id, log.run_key, rows):
            return 0
        return len(log.rows) - len(rows)

    async def forget(self, wanted: RunFilter, for_good: bool = True) -> int:
        if not self._archive.is_named:
            await self.patiently(self._archive.check)  # runs in an archive could not be erased
        count = 0
        while gone := await self.patiently(self._store.forget, wanted, _FORGET_LIMIT, for_good):
            count += len(gone)
            self._followers.wake(gone)
            if len(gone) < _FORGET_LIMIT:
                break
            await asyncio.sleep(0)
        if self._archive.is_named:
            await self.patiently(self._archive.clean)
        return count

    async def check_archive(self) -> None:
        await self.patiently(partial(self._archive.check, must_answer=True))

    async def archive(self, age: float) -> int:
        if not self._archive.is_named:
            raise UsageError("this journal has no archive: open it with archive=")
        await self.patiently(self._archive.check)
        while due := await self.patiently(self._store.due, age if age > 0 else -1.0):
            await self._compact_all(due)
        await self.patiently(self._archive.clean)
        return await self.patiently(partial(self._archive.pack, waits=False), age)


def _log_swept(run_ids: list[str]) -> None:
    named = ", ".join(run_ids[:_NAMED_RUNS])
    more = f" and {len(run_ids) - _NAMED_RUNS} more" if len(run_ids) > _NAMED_RUNS else ""
    _log.warning("ended as interrupted, because the lease of their process has run out: %s%s", named, more)


_PASSES = 3
_APART_SECONDS = 60.0
_PAGE = 500
_RECORDS = 20_000
"""The most that one transaction copies, unless a single run has more."""

Do: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
Progress: TypeAlias = Callable[[int, int], object]
"""Called with how many runs are done, and how many there are."""


class Moved(NamedTuple):
    """Both journals have these ``runs``, with ``records`` in all and this digest; ``copied`` of the runs were copied now.

    ``active`` is how many more are in progress in a live process. They are not copied.
    """

    runs: int
    records: int
    copied: int
    digest: str
    active: int


class Side(NamedTuple):
    """A store, and how to use it: on its journal's thread, trying again while it is unavailable."""

    store: Store
    reader: ArchivedReader
    do: Do


async def move(source: Side, target: Side, progress: Progress) -> Moved:
    """Copies a journal into another store, of whatever kinds the two are.

    Every run of the source is compared with the target's by digest, copied if it is missing there or differs, and compared
    again. So an interrupted copy continues where it was, and a repeated copy copies what has changed. The source is
    only read, and may be in use meanwhile; the copy is done when nothing was written to the source from the beginning to
    the end of a pass. Runs keep their keys, so the target may have only runs that the source has, or had and has forgotten.
    """
    await _check_apart(source, target)
    for _ in range(_PASSES):
        before = await _stamp(source)
        await _check_target(source, target)
        moved = await _pass(source, target, progress)
        if moved.active or await _stamp(source) == before:
            return moved
    raise JournalError(
        f"{source.store.where} was written to while it was copied, {_PASSES} times: stop the processes that write to it, "
        "and copy again; what was copied stays"
    )


async def _check_apart(source: Side, target: Side) -> None:
    """Refuses one journal under two names: there a duty that one side holds cannot be held by the other."""
    name = f"copy {secrets.token_hex(8)}"
    await source.do(source.store.hold, name, _APART_SECONDS)
    if source.store is target.store or not await target.do(target.store.hold, name, _APART_SECONDS):
        raise UsageError(f"expected two journals, but {source.store.where} and {target.store.where} are the same")


async def _stamp(source: Side) -> tuple[int, int, str]:
    """Changes whenever anything is written, except pieces of runs in progress, which are not copied."""
    stats = await source.do(source.reader.stats)
    sizes = hashlib.sha256()
    async for page in _pages(source):
        sizes.update(repr(page).encode())
    return stats["active_runs"], stats["orphaned_runs"], sizes.hexdigest()


async def _check_target(source: Side, target: Side) -> None:
    """Erases runs that the source has forgotten; refuses a target with any other run that the source does not have."""
    async for page in _pages(target):
        found = await source.do(source.reader.run_sizes, page[0].key - 1, page[-1].key, None)
        known = {(size.key, size.run_id) for size in found}
        strange = [size.key for size in page if (size.key, size.run_id) not in known]
        if not strange:
            continue
        for run in await target.do(target.reader.whole_runs, strange):
            mark = forgotten_mark(run.thread_id, run.principal)
            if not await source.do(source.reader.has_forgotten, mark):
                raise UsageError(
                    f"{target.store.where} has run {run.run_id!r}, which {source.store.where} does not have: expected an "
                    "empty journal, or one to which a copy of the same journal was begun"
                )
        await target.do(target.store.restore, [], strange)


async def _pass(source: Side, target: Side, progress: Progress) -> Moved:
    stats = await source.do(source.reader.stats)
    in_use = stats["active_runs"] > stats["orphaned_runs"]
    runs = records = copied = active = 0
    total = hashlib.sha256()
    async for page in _pages(source):
        waiting = [size for size in page if not (size.active and in_use)]
        active += len(page) - len(waiting)
        for some in _portions(waiting):
            found: Sequence[WholeRun] = await source.do(source.reader.whole_runs, some)
            copied += await _copy(target, found)
            for run in found:
                total.update(run.digest)
                records += len(run.records)
            runs += len(found)
            progress(runs, stats["runs"])
    async for marks in _marks(source):
        await target.do(target.store.keep_forgotten, marks)
    return Moved(runs, records, copied, total.hexdigest(), active)


async def _copy(target: Side, runs: Sequence[WholeRun]) -> int:
    there = await _digests(target, runs)
    missing = [run for run in runs if there.get(run.key) != run.digest]
    if missing:
        await target.do(target.store.restore, missing, [])
        there = await _digests(target, missing)
        for run in missing:
            if there.get(run.key) != run.digest:
                raise JournalError(f"run {run.run_id!r} is not the same in {target.store.where} after it was copied")
    return len(missing)


async def _digests(side: Side, runs: Sequence[WholeRun]) -> dict[int, bytes]:
    found: Sequence[WholeRun] = await side.do(side.reader.whole_runs, [run.key for run in runs])
    return {run.key: run.digest for run in found}


def _portions(sizes: Sequence[RunSize]) -> list[list[int]]:
    portions: list[list[int]] = []
    room = 0
    for size in sizes:
        if not portions or size.last_seq > room:
            portions.append([])
            room = _RECORDS
        portions[-1].append(size.key)
        room -= size.last_seq
    return portions


async def _pages(side: Side) -> AsyncIterator[Sequence[RunSize]]:
    """All runs, ordered by key."""
    after = 0
    while page := await side.do(side.reader.run_sizes, after, None, _PAGE):
        yield page
        after = page[-1].key


async def _marks(side: Side) -> AsyncIterator[Sequence[str]]:
    after = ""
    while marks := await side.do(side.reader.forgotten, after, _PAGE):
        yield marks
        after = marks[-1]
