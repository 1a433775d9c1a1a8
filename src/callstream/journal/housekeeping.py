"""What is done to a journal beside writing it: closing what dead processes left open, compacting, erasing.

By hand, and by itself as ``Housekeeping`` says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from callstream.errors import UsageError
from callstream.journal.follow import Followers
from callstream.journal.rows import fold
from callstream.journal.settings import JournalSettings
from callstream.journal.store import RunFilter, Store, StoreAway, forget_filter

_T = TypeVar("_T")
_log = logging.getLogger("callstream.journal")
_MAX_BACK_OFF = 1.0
_SWEEP_LIMIT = 100
_FORGET_LIMIT = 200
_FEW_ROWS = 1000
"""So many are folded on the spot; more would keep appends waiting."""
_NAMED_RUNS = 10


class Housekeeper:
    """Uses the store, so it is used where the store is: on the journal's thread, if it has one."""

    def __init__(self, store: Store, followers: Followers, settings: JournalSettings) -> None:
        self._store = store
        self._followers = followers
        self._patience = settings.retry_seconds
        self._duties = settings.housekeeping

    @property
    def period(self) -> float | None:
        """How often to look whether there is anything to do; None for never."""
        duties = self._duties
        spans = [duties.sweep_every, duties.compact_after, duties.retain] if duties is not None else []
        periods = [seconds for seconds in spans if seconds is not None]
        return max(0.05, min(periods)) if periods else None

    async def patiently(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        """Does what may be done again, again and again while the store is away, for as long as an append would wait."""
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
                for run_id in due:
                    try:
                        await self.compact(run_id)
                    except UsageError:
                        pass  # it was erased meanwhile
                    await asyncio.sleep(0)  # appends go first
        if duties.retain is not None:
            await self.forget(forget_filter(time.time() - duties.retain, None, None))

    async def sweep(self) -> list[str]:
        swept: list[str] = []
        while found := await self.patiently(self._store.sweep, _SWEEP_LIMIT):
            swept += found
            _log_swept(found)
            self._followers.wake(found)
            if len(found) < _SWEEP_LIMIT:
                break
            await asyncio.sleep(0)
        return swept

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
        if not await self.patiently(self._store.archive, run_id, log.run_key, rows):
            return 0
        return len(log.rows) - len(rows)

    async def forget(self, wanted: RunFilter, for_good: bool = True) -> int:
        count = 0
        while gone := await self.patiently(self._store.forget, wanted, _FORGET_LIMIT, for_good):
            count += len(gone)
            self._followers.wake(gone)
            if len(gone) < _FORGET_LIMIT:
                break
            await asyncio.sleep(0)
        return count


def _log_swept(run_ids: list[str]) -> None:
    if run_ids:
        named = ", ".join(run_ids[:_NAMED_RUNS])
        more = f" and {len(run_ids) - _NAMED_RUNS} more" if len(run_ids) > _NAMED_RUNS else ""
        _log.warning("ended as interrupted, because the lease of their process has run out: %s%s", named, more)
