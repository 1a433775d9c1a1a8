"""What is done to a journal beside writing it: closing what dead processes left open, compacting, erasing.

By hand, and by itself as ``Housekeeping`` says, which is among the settings with which a journal is opened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Coroutine
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from callstream.errors import JournalError, UsageError
from callstream.events import RunEvent
from callstream.journal import processes
from callstream.journal.archive import Archive
from callstream.journal.archive.objects import ArchiveAway
from callstream.journal.follow import Followers
from callstream.journal.rows import fold
from callstream.journal.store import RunFilter, Store, StoreAway, forget_filter

_GO_ON_SECONDS = 3600.0

Redact: TypeAlias = Callable[[RunEvent], RunEvent]


class Housekeeping(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal does by itself. Seconds; None turns a duty off.

    ``compact_after``: how long after its end a run is compacted. ``sweep_every``: how often runs of dead processes are
    looked for (the first time when the journal opens). ``go_on_within``: how long a run that can go on in another process
    waits for one. ``archive_after``: how long after its end a run goes into the archive, if the journal has one; up to a
    tenth later where few do. ``retain``: how long after its end a run is erased.
    """

    compact_after: float | None = 60.0
    sweep_every: float | None = 10.0
    go_on_within: float = _GO_ON_SECONDS
    archive_after: float | None = 30 * 86400.0
    retain: float | None = None


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all journals share.

    ``writer_id``: a name for this process in the store; made unique by the journal. ``lease_ttl``: seconds after which
    a process that no longer renews its lease counts as dead. ``retry_seconds``: how long an append or a read waits for an
    unavailable store, and an append for room in the queue, before it fails. ``max_pending_bytes``: how much may wait to
    be written. ``gather_seconds``: how long after one batch of records those of other runs gather for the next; 0 writes
    everything at once, which costs more. A run that writes alone never waits. ``redact`` is applied to every event before
    it is stored; it sees the pieces of a call one by one, so what is spread over several pieces it cannot recognise.
    ``migrate``: bring an older schema up to date at opening; otherwise that is an error. ``archive``: where runs go that
    ended long ago, ``s3://bucket/prefix`` or ``file:///folder``; the same for all processes of a journal.
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


_T = TypeVar("_T")
_log = logging.getLogger("callstream.journal")
_MAX_BACK_OFF = 1.0
_SWEEP_LIMIT = 100
_ADOPT_LIMIT = 1000
_FORGET_LIMIT = 200
_FEW_ROWS = 1000
"""So many are folded on the spot; more would keep appends waiting."""
_NAMED_RUNS = 10


class Housekeeper:
    """Uses the store, so it is used where the store is: on the journal's thread, if it has one."""

    def __init__(self, store: Store, followers: Followers, settings: JournalSettings, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self._followers = followers
        self._patience = settings.retry_seconds
        self._duties = settings.housekeeping

    @property
    def period(self) -> float | None:
        """How often to look whether there is anything to do; None for never."""
        duties = self._duties
        spans = [duties.sweep_every, duties.compact_after, duties.retain] if duties is not None else []
        if duties is not None and self._archive.is_named:
            spans.append(duties.archive_after)
        periods = [seconds for seconds in spans if seconds is not None]
        return max(0.05, min(periods)) if periods else None

    async def patiently(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        """Does what may be done again, while the store is unavailable, for as long as an append would wait."""
        deadline = time.monotonic() + self._patience
        back_off = 0.01
        while True:
            try:
                return await work(*args)
            except StoreAway:
                if time.monotonic() + back_off > deadline:
                    raise
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, _MAX_BACK_OFF)

    async def do_duties(self, *, may_sweep: bool = True) -> None:
        duties = self._duties
        if duties is None:
            return
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
        except ArchiveAway as error:
            raise JournalError(str(error)) from error  # appends do not need it

    async def compact_own(self) -> None:
        """What this process compacts itself, whether or not it has the duties."""
        if self._duties is not None and self._duties.compact_after is not None:
            await self._compact_all(await self._store.own_due(self._duties.compact_after))

    async def _compact_all(self, run_ids: list[str]) -> None:
        for run_id in run_ids:
            try:
                await self.compact(run_id)
            except UsageError:
                pass  # it was erased meanwhile
            await asyncio.sleep(0)  # appends go first

    async def sweep(self) -> list[str]:
        swept: list[str] = []
        patience = _GO_ON_SECONDS if self._duties is None else self._duties.go_on_within
        while found := await self.patiently(self._store.sweep, _SWEEP_LIMIT, patience):
            swept += found
            _log_swept(found)
            self._followers.wake(found)
            if len(found) < _SWEEP_LIMIT:
                break
            await asyncio.sleep(0)
        return swept

    async def adopt(self, apps: Container[str], run_id: str | None = None) -> list[str]:
        await self.patiently(self._store.release_gone, processes.is_gone)
        adopted = await self.patiently(self._store.adopt, apps, _ADOPT_LIMIT, run_id)
        self._followers.wake(adopted)
        return adopted

    async def compact(self, run_id: str) -> int:
        """An ended run does not change, so it is read and folded first; only putting it in place takes a lock."""
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
            await self.patiently(self._archive.check)  # what lies in one could not be erased
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
    if run_ids:
        named = ", ".join(run_ids[:_NAMED_RUNS])
        more = f" and {len(run_ids) - _NAMED_RUNS} more" if len(run_ids) > _NAMED_RUNS else ""
        _log.warning("ended as interrupted, because the lease of their process has run out: %s%s", named, more)
