"""Where the work of a journal is done: on a thread of its own, or at once.

The thread runs an event loop, on which the store is used: it commits appends, renews the lease, does the housekeeping, and
watches for commits of other processes. A store that blocks (SQLite) blocks only this thread.
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
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from callstream.errors import CallstreamError, JournalError, UsageError
from callstream.journal.follow import Followers, call_in
from callstream.journal.housekeeping import Housekeeper, JournalSettings
from callstream.journal.plan import Append
from callstream.journal.queue import GroupCommit, OnOutcome, Outage, deliver
from callstream.journal.rows import Row
from callstream.journal.store import Store, StoreUnavailable
from callstream.journal.writer import Writer, with_process
from callstream.waits import at_once

_T = TypeVar("_T")
LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]
_log = logging.getLogger("callstream.journal")
_HOUSEKEEPING = "housekeeping"
_RENEW_AGAIN = 1.0
_DUTIES_SECONDS = 1.0


class JournalThread:
    """Runs the store on a thread of its own, with an event loop. After a fork, the thread and the journal are the parent's.

    Everything may be awaited in any event loop, even in several at once.
    """

    def __init__(self, store: Store, followers: Followers, settings: JournalSettings, housekeeper: Housekeeper) -> None:
        self._store = store
        self._followers = followers
        self._settings = settings
        self._housekeeper = housekeeper
        self._outage = Outage(store.where)
        self._commits = GroupCommit(store, followers, settings, self._outage, self._begin)
        self._queue = self._commits.queue
        self.submit = self._queue.submit
        """Commits rows in the order of the appends, and calls ``then`` with the outcome. Opens the store if need be."""
        self.schedule = self._queue.schedule
        """Calls work that will append to the run, in this loop: in its next step, or when a batch is due."""
        self._lock = threading.Lock()
        self._opening: concurrent.futures.Future[None] | None = None
        self._closing: concurrent.futures.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._has_ended = False
        self._is_parents = False
        self._renewed_at = 0.0
        self._judges_from = 0.0

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait to be written."""
        return self._queue.pending_bytes

    async def open(self) -> None:
        if self._is_parents:
            raise _forked()
        opening = self._begin()
        if opening is None:
            raise UsageError("the journal is closed")
        if opening.done():
            opening.result()
        else:
            await asyncio.shield(asyncio.wrap_future(opening))

    def _begin(self) -> concurrent.futures.Future[None] | None:
        """Starts the thread, unless it has been started; None if the journal is closed. Called in an event loop: the thread
        gets one of the same kind.
        """
        with self._lock:
            if self._closing is not None:
                return None
            opening = self._opening
            if opening is None:
                opening = self._opening = concurrent.futures.Future()
                _opened.add(self)
                arguments = (opening, _loop_factory())
                threading.Thread(target=self._run, args=arguments, name="callstream-journal", daemon=True).start()
        return opening

    def after_fork(self) -> None:
        """Called in a forked process: the thread is the parent's."""
        self._is_parents = True
        self._queue.after_fork(_forked())

    async def close(self) -> None:
        if self._is_parents:
            return  # it is the parent's to close
        with self._lock:
            closing = self._closing
            if closing is None:
                closing = self._closing = concurrent.futures.Future()
                closed = UsageError("the journal is closed")
                self._queue.close(closed)
                if self._opening is None or self._has_ended:
                    self._queue.abandon(closed)
                    closing.set_result(None)
                elif self._opening.done() and self._loop is not None and self._stop is not None:
                    call_in(self._loop, self._stop.set)
        self._followers.close()
        await asyncio.shield(asyncio.wrap_future(closing))

    async def check(self) -> None:
        """Raises JournalError if an append would not be written now. If one was refused, the check writes as many bytes."""
        await self.do(self._check)

    async def do(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        """Awaits work that uses the store, and opens the store first if need be."""
        await self.open()
        if self._loop is None or self._has_ended:
            raise JournalError("the journal's thread has ended")
        doing = work(*args)
        try:
            done = asyncio.run_coroutine_threadsafe(doing, self._loop)
        except RuntimeError as error:
            doing.close()
            raise UsageError("the journal is closed") from error
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closing is not None and task is not None and not task.cancelling():
                raise UsageError("the journal was closed meanwhile") from None
            raise

    # -- on the thread -------------------------------------------------------------------------------------------------

    def _run(self, opening: concurrent.futures.Future[None], loop_factory: LoopFactory | None) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(self._serve(opening))
        finally:
            self._end(opening)

    def _end(self, opening: concurrent.futures.Future[None]) -> None:
        """Fails whatever still waits for the thread, which is ending."""
        lost = JournalError(f"the journal's thread has ended; nothing more is written to {self._store.where}")
        with self._lock:
            if self._closing is not None and not self._closing.done():
                self._closing.set_result(None)
            if self._opening is not opening:
                return  # it could not be opened, which was reported already
            if not opening.done():
                opening.set_exception(lost)
            self._has_ended = True
        self._queue.close(UsageError("the journal is closed") if self._closing else lost)
        self._queue.abandon(lost)
        self._followers.close(None if self._closing else lost)

    async def _serve(self, opening: concurrent.futures.Future[None]) -> None:
        open_store, writer = self._store.open, writer_of(self._settings)
        try:
            await self._housekeeper.patiently(open_store, writer, self._followers, again=self._outage.begin)
        except CallstreamError as error:
            with self._lock:
                self._opening = None  # the next use tries again
            self._queue.abandon(error)
            opening.set_exception(error)
            return
        self._outage.end()
        self._renewed_at = time.time()
        with self._lock:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            if self._closing is not None:
                self._stop.set()
            opening.set_result(None)
        async with asyncio.TaskGroup() as tasks:
            committing = tasks.create_task(self._commits.run(self._stop))
            others = [tasks.create_task(work()) for work in (self._store.watch, self._keep_house, self._renew)]
            await asyncio.wait([committing])
            for task in others:
                task.cancel()
        await self._store.close()

    async def _renew(self) -> None:
        pause = self._settings.lease_ttl / 3
        failed = False
        while True:
            await asyncio.sleep(min(pause, _RENEW_AGAIN) if failed else pause)
            try:
                await self._store.renew()
            except JournalError as error:
                failed = True
                self._outage.begin(error)
            else:
                failed = False
                if self._is_late():
                    self._judges_from = time.monotonic() + self._settings.lease_ttl
                self._renewed_at = time.time()
                await self._look_for_end()

    async def _look_for_end(self) -> None:
        """Ends the outage if store and log take writes. A renewed lease does not show that: the log may still be away."""
        if self._outage.is_on:
            try:
                await self._store.check(self._outage.check_size)
            except JournalError as error:
                self._outage.begin(error)
            else:
                self._outage.end()

    async def _check(self) -> None:
        refusal = self._outage.refusal
        try:
            await self._store.check(self._outage.check_size)
        except JournalError as error:
            if refusal is None:
                raise
            raise JournalError(f"the last append was refused: {refusal}") from error
        self._outage.end()

    @property
    def may_judge(self) -> bool:
        """Whether an expired lease shows this process that another is dead: not if it was late itself."""
        return not self._is_late() and time.monotonic() >= self._judges_from

    def _is_late(self) -> bool:
        """Whether this process has not renewed its own lease in time: it was stopped, or the store was unavailable."""
        return time.time() - self._renewed_at > self._settings.lease_ttl

    async def _keep_house(self) -> None:
        period = self._housekeeper.period
        complaint = ""
        while period is not None:
            try:
                await self._tidy(period)
                complaint = ""
            except StoreUnavailable as error:
                self._outage.begin(error)
            except JournalError as error:
                if complaint != (complaint := str(error)):
                    _log.warning("housekeeping of the journal failed, trying again: %s", complaint)
            await asyncio.sleep(period)

    async def _tidy(self, period: float) -> None:
        """One process at a time does the duties.

        What made this process late (a suspended machine, an unavailable store) made others late too. They get the duration
        of a lease to come back before this process takes their runs.
        """
        may_sweep = self.may_judge
        await self._housekeeper.compact_own()
        if await self._store.hold(_HOUSEKEEPING, period * 3):
            await self._housekeeper.do_duties(may_sweep=may_sweep)


class Inline:
    """Like ``JournalThread``, for a store that never waits: everything is done at once, by the task that asks for it.

    There is no thread, so there is nothing to close. Housekeeping is done when the journal is next used.
    """

    pending_bytes = 0
    may_judge = True

    def __init__(self, store: Store, followers: Followers, settings: JournalSettings, housekeeper: Housekeeper) -> None:
        self._store = store
        self._followers = followers
        self._settings = settings
        self._housekeeper = housekeeper
        self._period = housekeeper.period
        self._next_duties = 0.0
        self._opening = threading.Lock()
        self._is_open = False
        self._is_closed = False

    async def open(self) -> None:
        if self._is_closed:
            raise UsageError("the journal is closed")
        if not self._is_open:
            with self._opening:  # several event loops may come at once, and opening never waits
                if not self._is_open:
                    await self._store.open(writer_of(self._settings), self._followers)
                    self._is_open = True
        if self._period is not None and self._has_duties():
            self._next_duties = time.monotonic() + min(self._period, _DUTIES_SECONDS)
            await self._housekeeper.do_duties()

    async def close(self) -> None:
        if self._is_open and not self._is_closed:
            await self._store.close()
        self._is_closed = True
        self._followers.close()

    def submit(self, run_id: str, rows: Sequence[Row], after: int | None, then: OnOutcome) -> None:
        if not self._is_open or self._is_closed or self._has_duties():
            _after(self.open(), lambda: self._commit(run_id, rows, after, then), then)
        else:
            self._commit(run_id, rows, after, then)

    def _commit(self, run_id: str, rows: Sequence[Row], after: int | None, then: OnOutcome) -> None:
        loop = asyncio.get_running_loop()
        try:
            committed = at_once(self._store.commit([Append(run_id, rows, after)]))
        except CallstreamError as error:
            loop.call_soon(then, error)
            return
        news = self._followers.news(committed.changed)
        loop.call_soon(deliver, [(then, committed.outcomes[0])], news.pop(loop, ()))
        for other, pushed in news.items():
            call_in(other, deliver, (), pushed)

    def _has_duties(self) -> bool:
        return self._period is not None and time.monotonic() >= self._next_duties

    def schedule(self, run_id: str, work: Callable[[], object]) -> None:
        work()

    async def check(self) -> None:
        await self.open()

    async def do(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        await self.open()
        return await work(*args)


_opened: WeakSet[JournalThread] = WeakSet()


def _after_fork() -> None:
    for worker in _opened:
        worker.after_fork()


def _forked() -> UsageError:
    return UsageError(
        "this journal was opened before the process was forked, and its thread is the parent's: open a journal "
        "in each process, after the fork"
    )


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


_opening: set[asyncio.Task[None]] = set()


def _after(opening: Coroutine[Any, Any, None], submit: Callable[[], None], then: OnOutcome) -> None:
    """Submits an append when the journal is open."""

    async def open_and_submit() -> None:
        try:
            await opening
            submit()
        except CallstreamError as error:
            then(error)

    task = asyncio.get_running_loop().create_task(open_and_submit())
    _opening.add(task)
    task.add_done_callback(_opening.discard)


def _loop_factory() -> LoopFactory | None:
    """A loop of uvloop's if the program runs on one, else None, for Python's own."""
    kind = type(asyncio.get_running_loop())
    return kind if kind.__module__ == "uvloop" else None


def writer_of(settings: JournalSettings) -> Writer:
    """This process as a writer, under a name that no other writer in the store has."""
    name = f"{settings.writer_id or f'{socket.gethostname()}:{os.getpid()}'}/{uuid.uuid4().hex[:12]}"
    return Writer(with_process(name), has_archive=settings.archive is not None)
