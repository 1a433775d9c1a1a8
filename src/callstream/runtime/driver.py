"""Working on runs: each is a task of its host, not of the request that asked for it.

``Driver`` is what ``ADKAgent.run``, the server and the FastAPI endpoint have in common. It begins a run when there is room
for it and its thread is free, lets it work, and ends it with whatever comes first: its own work, a stop that any process may
have asked for, its time limit, the departure of its last viewer (if so configured), or the end of the host. A driver belongs
to one event loop.

A thread's runs take turns. The journal keeps them apart if the host starts them as ``exclusive``: it raises ThreadBusy,
whichever process has the other run, and ``Driver`` tries again for as long as its settings say. A run that was stopped may
still be writing to its host's own store, so the work of the thread's next run begins when that is done. If a host names a
``turn``, its runs also wait for each other here, in the order in which they came. If a run names the turn that its work
needs, the work begins when no other driver of the process is working in that turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from callstream.errors import (
    CallstreamError,
    CannotGoOn,
    JournalError,
    LeaseLost,
    RunOver,
    ShuttingDown,
    ThreadBusy,
    TooMany,
    UsageError,
)
from callstream.events import RunStarted
from callstream.journal import Journal, RunRow, history
from callstream.runtime.engine import Engine, Working
from callstream.runtime.log import TextLimits
from callstream.runtime.run import Run

logger = logging.getLogger("callstream")

_LOOKED_AT: Final = 50
"""How many of the thread's newest runs are checked for the requested id with a number."""
_SHORT: Final = 500
"""Runs with up to this many records are read many at once; of a longer one, only the beginning."""
_REMEMBERED: Final = 10_000
_CLOCK_SECONDS: Final = 0.001
"""The journal's times are rounded to this."""


class RunRequest(msgspec.Struct, frozen=True):
    """What identifies a request for a run, so that it is recognized when it is sent again.

    The run keeps the ``digest`` of its input (``run_input["digest"]``), so every process can find it, even after a restart.
    By it a request is recognized that is sent again by a client whose connection broke, or by a proxy on its own.
    ``owner``: whose run it has to be. ``app``: which app's, since several may share a journal and have threads with the same
    id; a run that names none, of a program or of an earlier version, belongs to every app.
    """

    thread_id: str
    run_id: str
    digest: str
    owner: str | None = None
    app: str | None = None

    async def earlier_run(self, journal: Journal, *, of_any_input: bool = False) -> RunRow | None:
        """The first run that this request has begun; None if there is none.

        ``of_any_input``: if no run has this input, returns the newest one with its run id.
        """
        first = await journal.runs(run_id=self.run_id, limit=1)
        if not first:
            return None
        latest = await journal.runs(thread_id=self.thread_id, limit=_LOOKED_AT)
        numbered = [row for row in latest if row.run_id.startswith(f"{self.run_id}~")]
        runs = [row for row in [*numbered, *first] if row.thread_id == self.thread_id]
        runs = [row for row in runs if self.owner is None or row.principal == self.owner]
        newest = None
        for row in reversed(runs):
            kept = await _input_of(journal, row.run_id)
            if self.app is not None and _app_in(kept) not in (None, self.app):
                continue
            if isinstance(kept, dict) and kept.get("digest") == self.digest:
                return row
            newest = row
        return newest if of_any_input else None


class AppRuns:
    """Finds the runs of an app. The apps of many runs are remembered, so that they are not read again."""

    def __init__(self) -> None:
        self._apps: dict[tuple[str, float], str | None] = {}  # an id may be used again when its run was erased
        self._begun: dict[str, tuple[str, float, float]] = {}

    def add(self, app: str, run_id: str, after: float, before: float) -> None:
        """Notes that a run of the app has begun in this process between two moments, so that it need not be read."""
        if len(self._begun) >= _REMEMBERED:
            self._begun.clear()
        self._begun[run_id] = (app, after, before)

    def _begun_here(self, row: RunRow) -> bool:
        _, after, before = self._begun.get(row.run_id, ("", 0.0, 0.0))
        return after - _CLOCK_SECONDS <= row.started_at <= before + _CLOCK_SECONDS

    async def of(self, app: str, rows: Sequence[RunRow], journal: Journal) -> list[RunRow]:
        """Those of the rows that belong to the app, in order."""
        apps = {key: self._apps[key] for key in map(_key, rows) if key in self._apps}
        apps |= {_key(row): self._begun[row.run_id][0] for row in rows if self._begun_here(row)}
        read = await _read_apps(journal, [row for row in rows if _key(row) not in apps])
        if len(self._apps) + len(read) > _REMEMBERED:
            self._apps.clear()
        self._apps |= read
        apps |= read
        return [row for row in rows if apps[_key(row)] in (None, app)]


async def _read_apps(journal: Journal, rows: Sequence[RunRow]) -> dict[tuple[str, float], str | None]:
    inputs: dict[str, Any] = {}
    short = []
    for row in rows:
        if row.outcome is not None and row.last_seq <= _SHORT:
            short.append(row)
        else:
            inputs[row.run_id] = await _input_of(journal, row.run_id)
    async for records in history(journal, short):
        for record in records:
            if isinstance(record.event, RunStarted):
                inputs[record.run_id] = record.event.input
    return {_key(row): _app_in(inputs.get(row.run_id)) for row in rows}


async def _input_of(journal: Journal, run_id: str) -> Any:
    """The input that a run was started with."""
    async for record in journal.read(run_id):
        return record.event.input if isinstance(record.event, RunStarted) else None
    return None


def _key(row: RunRow) -> tuple[str, float]:
    return row.run_id, row.started_at


def _app_in(run_input: Any) -> str | None:
    match run_input:
        case {"app": str(app)}:
            return app
        case _:
            return None


class Permit:
    """One of the places that a limit allows: held until its ``with`` ends, unless it was moved to another holder before.

    There is one for each open stream: an ``ExitStack`` would be a kilobyte.
    """

    __slots__ = ("_limit", "_principal")

    def __init__(self, limit: Limit, principal: str | None) -> None:
        self._limit: Limit | None = limit
        self._principal = principal

    def move(self) -> Permit:
        """The same permit for another holder; what becomes of this one no longer matters."""
        assert self._limit is not None
        moved, self._limit = Permit(self._limit, self._principal), None
        return moved

    def __enter__(self) -> Permit:
        return self

    def __exit__(self, *_: object) -> None:
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.release(self._principal)


class Limit:
    """How many of something there are, and how many there may be: in all, and of one principal. None means no limit.

    A permit is acquired before anything is awaited, so that requests that come together cannot all find the last one.
    ``on_change`` is called with 1 or -1 for every permit that is acquired or released.
    """

    def __init__(
        self, most: int | None = None, most_of_one: int | None = None, on_change: Callable[[int], None] | None = None
    ) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._on_change = on_change or (lambda change: None)
        self._taken: Counter[str | None] = Counter()

    def acquire(self, principal: str | None = None) -> Permit:
        """Raises TooMany if there is none left."""
        if self._most is not None and self._taken.total() >= self._most:
            raise TooMany(self._most, of_one=False)
        if self._most_of_one is not None and principal is not None and self._taken[principal] >= self._most_of_one:
            raise TooMany(self._most_of_one, of_one=True)
        self._taken[principal] += 1
        self._on_change(1)
        return Permit(self, principal)

    def release(self, principal: str | None) -> None:
        self._taken[principal] -= 1
        if not self._taken[principal]:
            del self._taken[principal]
        self._on_change(-1)


STOP_POLL_SECONDS: Final = 0.5
"""How soon a stop that was asked of another process is noticed here."""
_POLLS_PER_LOOK: Final = 6
"""Polls for stops between two looks for lost runs: that lists all active runs."""
_MOST_LOST: Final = 10
"""How often another process may be the first to begin a run of the wanted id, before this is taken for another error."""
_BUSY_POLL_SECONDS: Final = 0.2
_LEFTOVER_SECONDS: Final = 10.0
"""How long an agent may continue after the end of its run."""
_CANCEL_SECONDS: Final = 10.0
"""How long an agent may take to be cancelled before it is no longer waited for."""
_DRAIN_POLL_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 1.0
"""How often runs of dead processes are looked for."""
_LAST_WORD_SECONDS: Final = 1.5


class StartedRun(msgspec.Struct, frozen=True):
    """A run that has been started. ``work`` is to be awaited once; it ends the run, whatever its outcome.

    ``turn``: what its work shares with that of other runs but must not use at the same time, such as a session; or None.
    """

    run: Run
    work: Callable[[], Coroutine[Any, Any, None]]
    turn: Hashable = None


Start: TypeAlias = Callable[[], Awaitable[StartedRun]]


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds. None, where a field allows it, means no limit."""

    busy_wait: float = 0.0
    """How long a run waits for another process's, or another driver's, run of its thread."""
    run_seconds: float | None = None
    """How long a run may take before it fails."""
    limits: TextLimits = TextLimits()
    leave_seconds: float | None = None
    """How long a run continues without a viewer; None: to its end. With 0, the last viewer waits for the stop."""
    leave_reason: str = "the client left"
    shutdown_seconds: float = 0.0
    """How long runs may continue when the driver has to end."""
    logs_failures: bool = True
    """Whether failures of runs are logged here; off where an observer does it."""


class Driver:
    """Begins runs within the limits, and keeps track of those that it works on. ``limit``: how many there may be."""

    def __init__(self, engine: Engine[Run], settings: DriverSettings, limit: Limit | None = None) -> None:
        self._engine = engine
        self._settings = settings
        self._limit = limit or Limit()
        self._running: dict[str, Working[Run]] = {}
        self._starting = 0
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._stopping: set[asyncio.Task[None]] = set()
        self._poll: asyncio.Task[None] | None = None
        self._hurried = False
        self._watched: dict[object, Run] = {}  # by watcher
        self._last_word: float | None = None
        self.is_draining = False

    def __len__(self) -> int:
        """How many runs are active or about to start."""
        return len(self._running) + self._starting

    # -- the beginning --

    async def begin(
        self,
        start: Start,
        *,
        request: RunRequest | None = None,
        principal: str | None = None,
        turn: Hashable = None,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> str:
        """Has a run started, works on it, and returns its id. If the same ``request`` has begun one before, returns that.

        ``turn``: the run waits for all earlier ones that named the same turn. ``check`` raises if the request may not have
        the thread. It is called whenever the thread is busy, so that no user waits for another user's thread, and once
        more when the run has started: if two users begin a thread at once, one of them is too late to own it.

        Raises TooMany, ShuttingDown, ThreadBusy, and whatever ``start`` and ``check`` raise.
        """
        async with AsyncExitStack() as held:
            if request is not None:
                # If two equal requests come at once, the second waits until the first one's run can be found.
                await held.enter_async_context(self._lock((request.owner, request.thread_id, request.run_id)))
                if (earlier := await request.earlier_run(self._engine.journal)) is not None:
                    return earlier.run_id
            if self.is_draining:
                raise ShuttingDown
            permits = held.enter_context(ExitStack())
            permits.enter_context(self._limit.acquire(principal))
            self._starting += 1
            held.callback(self._has_started)
            if turn is not None:
                lock = self._lock(("turn", turn))
                await lock.acquire()
                permits.callback(lock.release)
            started = await self._start(start, request, check)
            if isinstance(started, str):
                return started
            if check is not None:
                try:
                    await check()
                except BaseException:
                    await started.run.stop("refused")
                    raise
            self._work_on(started, permits.pop_all())
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._poll_stops(), name="callstream stops")
        return started.run.run_id

    def _lock(self, key: Hashable) -> asyncio.Lock:
        """The lock for a key. It exists as long as it is held or waited for."""
        return self._locks.setdefault(key, asyncio.Lock())

    def _has_started(self) -> None:
        self._starting -= 1

    async def _start(
        self, start: Start, request: RunRequest | None, check: Callable[[], Awaitable[None]] | None
    ) -> StartedRun | str:
        """Waits until the thread is free, if it may wait. Returns an id if another process has begun a run for the same
        request.
        """
        journal = self._engine.journal
        clock = asyncio.get_running_loop().time
        until = clock() + self._settings.busy_wait
        lost = 0
        while True:
            try:
                started = await start()
            except (LeaseLost, RunOver):
                # Another process has just begun a run of the same id, and perhaps ended it; the next id is tried.
                lost += 1
                if lost > _MOST_LOST:
                    raise
                continue
            except ThreadBusy:
                if self.is_draining:
                    raise ShuttingDown from None
                if check is not None:
                    await check()
                if request is not None and (earlier := await request.earlier_run(journal)) is not None:
                    return earlier.run_id
                left = until - clock()
                if left <= 0:
                    raise
                await asyncio.sleep(min(_BUSY_POLL_SECONDS, left))
                continue
            if request is None or started.run.run_id == request.run_id:
                return started
            # Another process may have begun a run of this id, and for the same input, since this one looked.
            earlier = await request.earlier_run(journal)
            if earlier is None or earlier.run_id == started.run.run_id:
                return started
            await started.run.stop("another process has begun a run for the same request")
            return earlier.run_id

    # -- the work --

    def _work_on(self, started: StartedRun, permits: ExitStack) -> None:
        run, seconds = started.run, self._settings.run_seconds
        run.tighten(self._settings.limits)
        work = self._work(started, self._earlier(started))
        task = asyncio.create_task(work, name=f"callstream run {run.run_id}")
        running = self._running[run.run_id] = Working(run, task, started.turn, permits)
        self._engine.working[run.run_id] = running
        if seconds is not None:
            late = TimeoutError(f"the run took longer than {seconds} s")
            running.limit = run.loop.call_later(seconds, self._begin_stop, running, late)
        run.on_stop(lambda reason: self._limit_rest(running))
        task.add_done_callback(lambda done: self._release(running))

    def _earlier(self, started: StartedRun) -> list[Working[Run]]:
        """The work that has to end before this run's begins, whichever driver began it: work in the same turn, and what is
        still being done for runs of its thread that were stopped or have failed.
        """
        run, turn = started.run, started.turn
        thread = (run.thread_id, run.principal)
        return [
            other
            for other in self._engine.working.values()
            if other.run.loop is run.loop
            and (
                (turn is not None and other.turn == turn)
                or (
                    other.run.outcome in ("cancelled", "failed")
                    and (other.run.thread_id, other.run.principal) == thread
                )
            )
        ]

    async def _work(self, started: StartedRun, earlier: list[Working[Run]]) -> None:
        while earlier:
            had_ended = all(other.run.outcome is not None for other in earlier)
            await asyncio.wait([other.task for other in earlier], timeout=_CANCEL_SECONDS)
            # Work that is not done this long after the end of its run is no longer waited for.
            earlier = [] if had_ended else [other for other in earlier if not other.task.done()]
        await started.work()

    def _limit_rest(self, running: Working[Run]) -> None:
        """Called when the run has ended, by itself or by a limit: what its agent still does is lost, and limited."""
        if running.limit is not None:
            running.limit.cancel()
        if not running.task.cancelling():
            running.limit = running.run.loop.call_later(_LEFTOVER_SECONDS, running.task.cancel)

    def _release(self, running: Working[Run]) -> None:
        running.permits.close()
        run, task = running.run, running.task
        self._running.pop(run.run_id, None)
        self._engine.working.pop(run.run_id, None)
        for timer in (running.limit, running.leaving):
            if timer is not None:
                timer.cancel()
        error = None if task.cancelled() else task.exception()
        if error is None or run.outcome == "cancelled":
            return  # an error caused by a stop is not a failure
        # A failed run may have been logged where it ended, and the journal itself logs when it cannot be written.
        if self._settings.logs_failures or not (run.outcome == "failed" or isinstance(error, JournalError)):
            logger.error("run %s of thread %s failed", run.run_id, run.thread_id, exc_info=error, extra=_ids(run))

    @asynccontextmanager
    async def watch(self, run_id: str) -> AsyncIterator[asyncio.Task[None] | None]:
        """Counts a client that watches a run. When the last one leaves, the run may have to stop: see ``leave_seconds``.

        Yields the task that works on the run, None if it is not this driver's.
        """
        running = self._running.get(run_id)
        if running is None:
            yield None
            return
        running.watchers += 1
        watcher = object()
        self._watched[watcher] = running.run
        if running.leaving is not None:
            running.leaving.cancel()
            running.leaving = None
        try:
            yield running.task
        finally:
            running.watchers -= 1
            del self._watched[watcher]
            seconds = self._settings.leave_seconds
            if not running.watchers and seconds is not None and run_id in self._running:
                if seconds:
                    loop = asyncio.get_running_loop()
                    running.leaving = loop.call_later(seconds, self._begin_stop, running, self._settings.leave_reason)
                else:
                    self._begin_stop(running, self._settings.leave_reason)
                    assert running.stopping is not None
                    await asyncio.wait({running.stopping})

    # -- the end --

    async def stop(self, run_id: str, reason: str) -> None:
        """Stops a run, whichever process works on it. Another process notices it soon."""
        running = self._running.get(run_id)
        own = self._engine.active_run(run_id)
        if running is not None:
            await self._stop(running, reason)
        elif own is not None and own.loop is asyncio.get_running_loop():
            await own.stop(reason)  # another driver, or the program itself, has begun it
        else:
            await self._engine.journal.ask_to_stop(run_id, reason)

    async def _stop(self, running: Working[Run], reason: str | TimeoutError) -> None:
        run, task = running.run, running.task
        try:
            await (run.stop(reason) if isinstance(reason, str) else run.end(reason))
        finally:
            if running.limit is not None:
                running.limit.cancel()
            task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
        if not done:
            logger.error("the agent of run %s is still running after its cancellation", run.run_id, extra=_ids(run))

    def _begin_stop(self, running: Working[Run], reason: str | TimeoutError) -> None:
        """Stops a run in a task of its own, once, however often it is asked for."""
        if running.stopping is None:
            name = f"callstream stop {running.run.run_id}"
            running.stopping = asyncio.create_task(self._stop(running, reason), name=name)
            self._stopping.add(running.stopping)
            running.stopping.add_done_callback(self._end_stop)

    def _end_stop(self, task: asyncio.Task[None]) -> None:
        self._stopping.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a run could not be stopped", exc_info=error)

    async def _poll_stops(self) -> None:
        journal = self._engine.journal
        missing: set[str] = set()
        for number in count(1):
            await asyncio.sleep(STOP_POLL_SECONDS)
            if not self._running:
                return
            try:
                stops = await journal.asked_to_stop()
                if number % _POLLS_PER_LOOK == 0:
                    missing = await self._abandon_lost(missing)
            except CallstreamError:
                continue  # the journal itself logs when it fails and when it is back
            for run_id, reason in stops.items():
                if (running := self._running.get(run_id)) is not None:
                    self._begin_stop(running, reason)

    async def _abandon_lost(self, missing: set[str]) -> set[str]:
        """Cancels runs that the journal has ended: this process was taken for dead, and others may use their threads.

        They can no longer write to the journal, but their agents may still act elsewhere. ``missing``: the runs that were
        missing the last time; a run has to be missing twice, since one that is just ending may be ahead of what is known
        here. Returns those that are missing now.
        """
        mine = set(self._running)
        active = {row.run_id for row in await self._engine.journal.runs(active=True)}
        now = {run_id for run_id in mine - active if run_id in self._running}
        for run_id in now & missing:
            running = self._running[run_id]
            if running.run.outcome is None and running.stopping is None:
                running.stopping = running.task
                logger.error("run %s was taken over by another process; abandoning it", run_id, extra=_ids(running.run))
                running.task.cancel()
        return now

    async def drain(self) -> None:
        """Takes no new runs. The active ones have ``shutdown_seconds``, or until ``hurry``; then they are handed over or
        stopped.
        """
        self.is_draining = True
        clock = asyncio.get_running_loop().time
        until = clock() + self._settings.shutdown_seconds
        if len(self):
            runs = "1 run" if len(self) == 1 else f"{len(self)} runs"
            logger.info("waiting for %s to end, up to %g s", runs, self._settings.shutdown_seconds)
        # A run that was just being started is among them a moment later.
        while len(self) and not self._hurried and clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        await self.hand_over("the server shut down")
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=_CANCEL_SECONDS)
        # Watchers of a run read its end from the journal, which is closed after this. A run that was left has no end.
        self._last_word = self._last_word or clock() + _LAST_WORD_SECONDS
        while any(not run.is_left for run in self._watched.values()) and clock() < self._last_word:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    async def hand_over(self, reason: str) -> None:
        """Leaves the active runs for another process. Those that cannot go on in one are stopped, for that reason."""
        await asyncio.gather(*(self._hand_over(running, reason) for running in list(self._running.values())))

    async def _hand_over(self, running: Working[Run], reason: str) -> None:
        if await running.run.hand_over():
            logger.info("run %s is handed over to another process", running.run.run_id, extra=_ids(running.run))
            running.task.cancel()
        else:
            self._begin_stop(running, reason)

    def hurry(self) -> None:
        """Gives active runs no more time."""
        self.is_draining = self._hurried = True

    async def aclose(self) -> None:
        await self.drain()
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.wait({self._poll})


class Heir:
    """Goes on with runs whose process has died or has handed them over. ``go_on`` is given their ids."""

    def __init__(
        self, journal: Journal, driver: Driver, apps: frozenset[str], go_on: Callable[[str], Awaitable[StartedRun]]
    ) -> None:
        self._journal = journal
        self._driver = driver
        self._apps = apps
        self._go_on = go_on
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._look(), name="callstream heir")

    async def stop(self) -> None:
        """No further runs are taken over."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _look(self) -> None:
        while not self._driver.is_draining:
            try:
                adopted = await self._journal.adopt(self._apps)
            except JournalError:
                adopted = []  # the journal itself logs when it fails and when it is back
            except UsageError:
                return  # it was closed
            for run_id in adopted:
                await self._take(run_id)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _take(self, run_id: str) -> None:
        while True:
            try:
                await self._driver.begin(partial(self._go_on, run_id))
                logger.warning("going on with run %s, whose process has gone", run_id, extra={"run_id": run_id})
            except TooMany:
                await asyncio.sleep(_LOOK_SECONDS)  # until there is room
                continue
            except ShuttingDown:
                pass  # another process gets it when this one gives its lease back
            except CannotGoOn as error:
                logger.warning("%s; it has ended as interrupted", error, extra={"run_id": run_id})
            except Exception:
                logger.exception("could not go on with run %s", run_id, extra={"run_id": run_id})
            return


def _ids(run: Run) -> dict[str, str]:
    return {"run_id": run.run_id, "thread_id": run.thread_id}
