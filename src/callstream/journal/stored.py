"""A journal over a database: one thread of its own, group commit, followers, leases and housekeeping.

Every method may be awaited in any event loop, in several at once too. Appends go through a bounded queue to the
journal's thread, which commits everything that waits in one transaction; while one transaction is under way the next
batch gathers. The thread runs an event loop, on which the store is used; a store that blocks (SQLite) blocks only this
thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from callstream.calls import Call, CallState
from callstream.errors import CallstreamError, JournalError, UsageError
from callstream.events import Record, RunEvent
from callstream.journal import follow as following
from callstream.journal.filters import CallFilter, RunFilter, forgettable
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.groupcommit import GroupCommit
from callstream.journal.protocol import Entry, Openable, RunRow
from callstream.journal.queue import call_in
from callstream.journal.rows import checked_limit, checked_run_id, clean, prepared, redacted, storable
from callstream.journal.settings import Settings
from callstream.journal.store import Outage, Store, StoreAway, log_swept, loggable

_T = TypeVar("_T")
_log = logging.getLogger("callstream.journal")
_HOUSEKEEPING = "housekeeping"
_MAX_BACK_OFF = 1.0
_SWEEP_LIMIT = 100
_FORGET_LIMIT = 200


class StoredJournal(Openable):
    """See ``Journal``."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._followers = Followers()
        self._outage = Outage(store.where)
        self._commits = GroupCommit(store, self._followers, settings, self._outage)
        self._queue = self._commits.queue
        self._lock = threading.Lock()
        self._opening: concurrent.futures.Future[None] | None = None
        self._closing: concurrent.futures.Future[None] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._has_ended = False
        self._process: int | None = None
        self._renewed_at = 0.0
        self._judges_from = 0.0

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._is_of_parent():
            raise UsageError(
                "this journal was opened before the process was forked, and its thread is the parent's: open a journal "
                "in each process, after the fork"
            )
        with self._lock:
            if self._closing is not None:
                raise UsageError("the journal is closed")
            opening = self._opening
            if opening is None:
                opening = self._opening = concurrent.futures.Future()
                self._thread = threading.Thread(
                    target=self._run_thread, args=(opening,), name="callstream-journal", daemon=True
                )
                self._process = os.getpid()
                self._thread.start()
        if opening.done():
            opening.result()
        else:
            await asyncio.shield(asyncio.wrap_future(opening))

    async def aclose(self) -> None:
        if self._is_of_parent():
            return  # it is not ours to close
        with self._lock:
            closing = self._closing
            if closing is None:
                closing = self._closing = concurrent.futures.Future()
                self._queue.close(UsageError("the journal is closed"))
                if self._opening is None or self._has_ended:
                    closing.set_result(None)
                elif self._opening.done() and self._loop is not None and self._stop is not None:
                    call_in(self._loop, self._stop.set)
        self._followers.close()
        await asyncio.shield(asyncio.wrap_future(closing))

    async def migrate(self) -> int:
        return await self._on_thread(self._patiently, self._store.migrate)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def append(self, run_id: str, events: Sequence[RunEvent | Entry], *, after: int | None = None) -> int:
        redact = self._settings.redact
        if redact is not None:
            events = [redacted(event, redact) for event in events]
        rows = [prepared(event) for event in events]
        if type(run_id) is not str or not run_id.isascii() or "\0" in run_id:
            checked_run_id(run_id)
        if self._loop is None or self._is_of_parent():
            await self.open()
        return await self._queue.put(run_id, rows, after)

    async def compact(self, run_id: str) -> int:
        if not storable(run_id):
            raise UsageError(f"the journal has no run {run_id!r}")
        return await self._on_thread(self._patiently, self._store.compact, run_id)

    async def sweep(self) -> list[str]:
        return await self._on_thread(self._sweep)

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        if not storable(run_id):
            return False
        return await self._on_thread(self._patiently, self._store.ask_to_stop, run_id, clean(reason) or "")

    async def asked_to_stop(self) -> dict[str, str]:
        return await self._on_thread(self._store.asked_to_stop)

    async def forget(
        self, *, before: float | None = None, thread: str | None = None, principal: str | None = None
    ) -> int:
        wanted = forgettable(before, thread, principal)
        return await self._on_thread(self._forget, wanted) if storable(thread, principal) else 0

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        return following.read(self._page, run_id, after)

    async def read_whole(self, run_ids: Sequence[str]) -> list[Record]:
        await self.open()
        return await self._store.read_whole(run_ids)

    def follow(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        return following.follow(self._page, self._followers, run_id, after)

    def batches(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Record], None]:
        return following.batches(self._page, self._followers, run_id, after)

    async def call(self, call_id: str) -> Call | None:
        await self.open()
        if not storable(call_id):
            return None
        return await self._store.call(call_id)

    async def calls(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        principal: str | None = None,
        states: Sequence[CallState] | None = None,
        provider_id: str | None = None,
        limit: int | None = None,
        newest: bool = False,
    ) -> list[Call]:
        limit = checked_limit(limit)
        await self.open()
        wanted = CallFilter(
            run_id=run_id, thread_id=thread_id, principal=principal, states=states, provider_id=provider_id
        )
        if not storable(run_id, thread_id, principal, provider_id):
            return []
        return await self._store.calls(wanted, limit, newest=newest)

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        principal: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        limit = checked_limit(limit)
        await self.open()
        wanted = RunFilter(run_id=run_id, thread_id=thread_id, principal=principal, active=active)
        if not storable(run_id, thread_id, principal):
            return []
        return await self._store.runs(wanted, limit)

    async def free_call_id(self, wanted: str) -> str:
        checked_run_id(wanted)
        await self.open()
        return await free_call_id(self._store, wanted)

    async def check(self) -> None:
        await self._on_thread(self._store.check)

    async def stats(self) -> dict[str, Any]:
        await self.open()
        return {**await self._store.stats(), "pending_bytes": self._queue.pending_bytes}

    async def _page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        await self.open()
        if not storable(run_id):
            return None
        return await self._store.page(run_id, after, limit, is_first)

    def _is_of_parent(self) -> bool:
        """Whether this process was forked from the one that opened the journal. It has not got the journal's thread."""
        return self._process is not None and self._process != os.getpid()

    # -- on the journal's thread ---------------------------------------------------------------------------------------

    def _run_thread(self, opening: concurrent.futures.Future[None]) -> None:
        try:
            asyncio.run(self._serve(opening))
        finally:
            self._end(opening)

    def _end(self, opening: concurrent.futures.Future[None]) -> None:
        """Nobody may wait for a thread that is gone."""
        lost = JournalError(f"the journal's thread has ended; {self._store.where} is not written any more")
        with self._lock:
            if self._closing is not None and not self._closing.done():
                self._closing.set_result(None)
            if self._opening is not opening:
                return  # it could not be opened, which was told already
            if not opening.done():
                opening.set_exception(lost)
            self._has_ended = True
        self._queue.close(UsageError("the journal is closed") if self._closing else lost)
        self._queue.abandon(lost)
        self._followers.close(None if self._closing else lost)

    async def _serve(self, opening: concurrent.futures.Future[None]) -> None:
        name = self._settings.writer_id or f"{socket.gethostname()}:{os.getpid()}"
        try:
            await self._patiently(self._store.open, f"{name}/{uuid.uuid4().hex[:12]}", self._followers)
        except CallstreamError as error:
            with self._lock:
                self._opening = None  # the next use tries again
            opening.set_exception(error)
            return
        self._renewed_at = time.time()
        with self._lock:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            if self._closing is not None:
                self._stop.set()
            opening.set_result(None)
        async with asyncio.TaskGroup() as tasks:
            committing = tasks.create_task(self._commits.run(self._stop))
            others = [tasks.create_task(self._store.watch()), tasks.create_task(self._keep_house())]
            if self._settings.renew:
                others.append(tasks.create_task(self._renew_all()))
            await asyncio.wait([committing])
            for task in others:
                task.cancel()
        await self._store.close()

    async def _on_thread(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        await self.open()
        if self._loop is None or self._has_ended:
            raise JournalError("the journal's thread has ended")
        done = asyncio.run_coroutine_threadsafe(work(*args), self._loop)
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closing is not None and task is not None and not task.cancelling():
                raise UsageError("the journal was closed meanwhile") from None
            raise

    async def _patiently(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        """Does what may be done again, again and again while the store is away, for as long as an append would wait."""
        deadline = time.monotonic() + self._settings.retry_seconds
        back_off = 0.01
        while True:
            try:
                return await work(*args)
            except StoreAway:
                if time.monotonic() + back_off > deadline:
                    raise
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, _MAX_BACK_OFF)

    async def _renew_all(self) -> None:
        pause = self._settings.lease_ttl / 3
        failed = False
        while True:
            await asyncio.sleep(min(pause, 1.0) if failed else pause)
            try:
                await self._store.renew()
            except JournalError as error:
                failed = True
                self._outage.begin(error)
            else:
                failed = False
                self._outage.end(by_append=False)
                if self._is_late():
                    self._judges_from = time.monotonic() + self._settings.lease_ttl
                self._renewed_at = time.time()

    def _is_late(self) -> bool:
        """Whether this process has not renewed its own lease in time: it was stopped, or the store was away."""
        return self._settings.renew and time.time() - self._renewed_at > self._settings.lease_ttl

    async def _keep_house(self) -> None:
        duties = self._settings.housekeeping
        if duties is None:
            return
        periods = [
            seconds for seconds in (duties.sweep_every, duties.compact_after, duties.retain) if seconds is not None
        ]
        if not periods:
            return
        period = max(0.05, min(periods))
        complaint = ""
        while True:
            try:
                if await self._store.hold(_HOUSEKEEPING, period * 3):
                    await self._do_duties(duties.sweep_every is not None, duties.compact_after, duties.retain)
                complaint = ""
            except StoreAway as error:
                self._outage.begin(error)
            except JournalError as error:
                if complaint != (complaint := loggable(error)):
                    _log.warning("housekeeping of the journal failed, trying again: %s", complaint)
            await asyncio.sleep(period)

    async def _do_duties(self, sweep: bool, compact_after: float | None, retain: float | None) -> None:
        # What made this process late (a suspended machine, a store that was away) made others late too. They get the
        # time of a lease to come back before this one takes their runs.
        if sweep and not self._is_late() and time.monotonic() >= self._judges_from:
            log_swept(await self._sweep())
        if compact_after is not None:
            while due := await self._store.due(compact_after):
                for run_id in due:
                    try:
                        await self._store.compact(run_id)
                    except UsageError:
                        pass  # it was erased meanwhile
                    await asyncio.sleep(0)  # appends go first
        if retain is not None:
            await self._forget(forgettable(time.time() - retain, None, None))

    async def _sweep(self) -> list[str]:
        swept: list[str] = []
        while found := await self._patiently(self._store.sweep, _SWEEP_LIMIT):
            swept += found
            self._followers.wake(found)
            if len(found) < _SWEEP_LIMIT:
                break
            await asyncio.sleep(0)  # appends go first
        return swept

    async def _forget(self, wanted: RunFilter) -> int:
        count = 0
        while gone := await self._patiently(self._store.forget, wanted, _FORGET_LIMIT):
            count += len(gone)
            self._followers.wake(gone)
            if len(gone) < _FORGET_LIMIT:
                break
            await asyncio.sleep(0)  # appends go first
        return count


async def free_call_id(store: Store, wanted: str) -> str:
    """Exactly the first free number among the first hundred; after that a free one, found by halving.

    Some hosts give every call of every turn the same id, so counting one by one would cost more with every turn.
    """
    names = [wanted, *(f"{wanted}~{number}" for number in range(2, 101))]
    taken = await store.taken(names[:8])
    if free := next((name for name in names[:8] if name not in taken), None):
        return free
    taken |= await store.taken(names[8:])
    if free := next((name for name in names if name not in taken), None):
        return free
    low, high = 100, 200
    while f"{wanted}~{high}" in await store.taken([f"{wanted}~{high}"]):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if await store.taken([f"{wanted}~{middle}"]):
            low = middle
        else:
            high = middle
    return f"{wanted}~{high}"
