"""The runs of this process: tasks of the server, not of the requests that asked for them.

A run goes on whoever watches it. It is ended by its own work, by a stop that any process may have asked for, by its time
limit, by nobody watching it where that is wanted, and by the end of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

from ag_ui.core import RunAgentInput

from callstream.errors import AnswerRefused, CallstreamError, JournalError, LeaseLost, ThreadBusy
from callstream.runtime import Run, TextLimits
from callstream.server.agent import Host, StartedRun
from callstream.server.health import JournalHealth
from callstream.server.problems import Problem, shutting_down
from callstream.server.repeats import earlier_run
from callstream.server.settings import ServerSettings

logger = logging.getLogger("callstream.server")

STOP_POLL_SECONDS: Final = 0.5
"""How soon a stop that another process was asked for is heard of here."""
_POLLS_PER_LOOK: Final = 6
"""How often it is asked for stops before it is looked for runs that were lost: that lists all active runs."""
_BUSY_POLL_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 5
_LEFTOVER_SECONDS: Final = 10.0
"""How long an agent may go on when its run has ended."""
_CANCEL_SECONDS: Final = 10.0
"""How long an agent may take to be cancelled before it is no longer waited for."""
_DRAIN_POLL_SECONDS: Final = 0.05
_LAST_WORD_SECONDS: Final = 1.5


class _Running:
    def __init__(self, run: Run, principal: str | None) -> None:
        self.run = run
        self.principal = principal
        self.task: asyncio.Task[None] | None = None
        self.watchers = 0
        self.leaving: asyncio.TimerHandle | None = None
        self.is_stopping = False


class Runs:
    """Starts runs within the limits, and knows those that go on."""

    def __init__(self, host: Host, settings: ServerSettings) -> None:
        self._host = host
        self._settings = settings
        self._limits = TextLimits(max_args_bytes=settings.max_args_bytes, max_run_bytes=settings.max_run_bytes)
        self._running: dict[str, _Running] = {}
        self._asking: WeakValueDictionary[tuple[str | None, str, str], asyncio.Lock] = WeakValueDictionary()
        self._starting: Counter[str | None] = Counter()
        self._stopping: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._drained = False
        self._hurried = False
        self._watchers = 0
        self.health = JournalHealth(host.callstream.journal, settings.journal_seconds)

    def __len__(self) -> int:
        """How many runs go on or are about to."""
        return len(self._running) + self._starting.total()

    @property
    def is_draining(self) -> bool:
        return self._drained

    # -- beginning --

    async def begin(
        self,
        given: RunAgentInput,
        principal: str | None,
        check: Callable[[], Awaitable[None]] | None = None,
        *,
        owner: str | None = None,
    ) -> str:
        """Starts a run, or says why not, and returns its id. If the same input has begun one before, it is that run.

        ``check`` is made once more when it has begun, before anything is done in it: of two who begin a thread at once,
        one is too late to own it. And whenever the thread is busy: who may not have it neither waits for it nor hears of
        its run. ``owner``: whose an earlier run has to be, where the host and not the server knows it.
        """
        owner = owner or principal
        # Of two equal requests that come at once, the second waits until the first one's run can be found.
        asking = self._asking.setdefault((owner, given.thread_id, given.run_id), asyncio.Lock())
        async with asking:
            earlier = await earlier_run(self._host.callstream.journal, given, owner)
            if earlier is not None:
                return earlier.run_id
            with self._room_for(principal):
                begun = await self._begin(given, principal, check, owner)
                if isinstance(begun, str):
                    return begun
                try:
                    if check is not None:
                        await check()
                except BaseException:
                    await begun.run.stop("refused")
                    raise
                begun.run.tighten(self._limits)
                running = _Running(begun.run, principal)
                self._running[begun.run.run_id] = running
        running.task = asyncio.create_task(self._work(begun, running), name=f"callstream run {begun.run.run_id}")
        if self._watch is None:
            self._watch = asyncio.create_task(self._hear_stops(), name="callstream stops")
        return begun.run.run_id

    @contextmanager
    def _room_for(self, principal: str | None) -> Iterator[None]:
        settings = self._settings
        if self._drained:
            raise shutting_down()
        if settings.max_runs is not None and len(self._running) + self._starting.total() >= settings.max_runs:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_runs",
                f"The server already has {settings.max_runs} active runs; try again later.",
                retry_after=_RETRY_SECONDS,
            )
        most = settings.max_runs_per_principal if principal is not None else None
        if most is not None:
            own = sum(running.principal == principal for running in self._running.values())
            if own + self._starting[principal] >= most:
                raise Problem(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "too_many_runs",
                    f"You already have {most} active runs; try again when one has ended.",
                    retry_after=_RETRY_SECONDS,
                )
        self._starting[principal] += 1
        try:
            yield
        finally:
            self._starting[principal] -= 1
            if not self._starting[principal]:
                del self._starting[principal]

    async def _begin(
        self,
        given: RunAgentInput,
        principal: str | None,
        check: Callable[[], Awaitable[None]] | None,
        owner: str | None,
    ) -> StartedRun | str:
        """Waits for the thread's other run, if it may. The id of a run that another process began for the same input."""
        journal = self._host.callstream.journal
        wait = self._settings.busy_wait if self._settings.when_busy == "wait" else 0.0
        until = asyncio.get_running_loop().time() + wait
        while True:
            try:
                begun = await self._host.begin(given, principal, exclusive=True)
                if begun.run.run_id == given.run_id:
                    return begun
                # Another process may have begun a run of this id since this one has looked, and for the same input.
                earlier = await earlier_run(journal, given, owner)
                if earlier is None or earlier.run_id == begun.run.run_id:
                    return begun
                await begun.run.stop("another process has begun a run for the same request")
                return earlier.run_id
            except LeaseLost:
                # Another process has begun a run of the same id in this moment; there is a next one.
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(0)
            except AnswerRefused as refused:
                raise Problem(HTTPStatus.CONFLICT, "answer_refused", str(refused)) from None
            except ThreadBusy as busy:
                if self._drained:
                    raise shutting_down() from None
                if check is not None:
                    await check()
                if (earlier := await earlier_run(journal, given, owner)) is not None:
                    return earlier.run_id
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    raise Problem(
                        HTTPStatus.CONFLICT,
                        "thread_busy",
                        f"Run {busy.run_id} of this thread is active; stop it, or try again when it has ended.",
                        retry_after=_RETRY_SECONDS,
                    ) from None
                await asyncio.sleep(min(_BUSY_POLL_SECONDS, left))

    # -- going on --

    async def _work(self, begun: StartedRun, running: _Running) -> None:
        run, limit = begun.run, self._settings.run_seconds
        work = asyncio.ensure_future(begun.work())
        ended = asyncio.Event()
        undo = run.on_stop(lambda reason: ended.set())
        over = asyncio.ensure_future(ended.wait())
        try:
            done, _ = await asyncio.wait({work, over}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                await run.end(TimeoutError(f"the run took longer than {limit} s"))
            elif work not in done:
                # The run has ended, by itself or by a limit; what its agent still does is nobody's any more.
                await asyncio.wait({work}, timeout=_LEFTOVER_SECONDS)
        finally:
            undo()
            over.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            self._running.pop(run.run_id, None)
            if running.leaving is not None:
                running.leaving.cancel()
            error = None if work.cancelled() else work.exception()
            # What failed the run is logged where the run ends, what a stop breaks is no failure, and a journal that does
            # not take the end is asked again, which is logged too. Left are errors after the run had ended well.
            is_told = run.outcome in ("failed", "cancelled") or isinstance(error, JournalError)
            if error is not None and not is_told:
                logger.error("run %s of thread %s failed", run.run_id, run.thread_id, exc_info=error, extra=_ids(run))

    @asynccontextmanager
    async def watched(self, run_id: str) -> AsyncIterator[None]:
        """Somebody watches a run. When the last one leaves, the run may have to end: see ``on_disconnect``."""
        running = self._running.get(run_id)
        if running is None:
            yield
            return
        running.watchers += 1
        self._watchers += 1
        if running.leaving is not None:
            running.leaving.cancel()
            running.leaving = None
        try:
            yield
        finally:
            running.watchers -= 1
            self._watchers -= 1
            if not running.watchers and self._settings.on_disconnect == "stop" and run_id in self._running:
                loop = asyncio.get_running_loop()
                running.leaving = loop.call_later(self._settings.disconnect_grace, self._nobody_watches, running)

    def _nobody_watches(self, running: _Running) -> None:
        if not running.watchers:
            self._have_stopped(running, "the client left")

    # -- ending --

    async def stop(self, run_id: str, reason: str) -> None:
        """Stops a run, wherever it goes on. If that is another process, it hears of it soon."""
        running = self._running.get(run_id)
        own = self._host.callstream.active_run(run_id)
        if running is not None:
            await self._stop(running, reason)
        elif own is not None and own.loop is asyncio.get_running_loop():
            await own.stop(reason)  # somebody else of this process has begun it
        else:
            await self._host.callstream.journal.ask_to_stop(run_id, reason)

    async def _stop(self, running: _Running, reason: str) -> None:
        await running.run.stop(reason)
        if running.task is not None:
            running.task.cancel()
            done, _ = await asyncio.wait({running.task}, timeout=_CANCEL_SECONDS)
            if not done:
                run = running.run
                logger.error("the agent of run %s is still running after its cancellation", run.run_id, extra=_ids(run))

    def _have_stopped(self, running: _Running, reason: str) -> None:
        if running.is_stopping:
            return
        running.is_stopping = True
        task = asyncio.create_task(self._stop(running, reason), name=f"callstream stop {running.run.run_id}")
        self._stopping.add(task)
        task.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._stopping.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a run could not be stopped", exc_info=error)

    async def _hear_stops(self) -> None:
        journal = self._host.callstream.journal
        missing: set[str] = set()
        for number in count(1):
            await asyncio.sleep(STOP_POLL_SECONDS)
            if not self._running:
                continue
            try:
                asked = await journal.asked_to_stop()
                if number % _POLLS_PER_LOOK == 0:
                    missing = await self._give_up_lost(missing)
            except CallstreamError:
                continue  # the journal itself says in the log when it fails and when it is back
            for run_id, reason in asked.items():
                if (running := self._running.get(run_id)) is not None:
                    self._have_stopped(running, reason)

    async def _give_up_lost(self, missing: set[str]) -> set[str]:
        """Cancels runs that the journal has ended: this process was taken for dead, and their threads have gone on.

        Nothing of theirs can be written any more, but an agent may still do things elsewhere. ``missing``: the runs that
        were missing the last time, for one that is just ending may be ahead of what is known here. Returns those of now.
        """
        mine = set(self._running)
        active = {row.run_id for row in await self._host.callstream.journal.runs(active=True)}
        now = {run_id for run_id in mine - active if run_id in self._running}
        for run_id in now & missing:
            running = self._running[run_id]
            if running.run.outcome is None and running.task is not None and not running.is_stopping:
                running.is_stopping = True
                logger.error("run %s was taken over by another process; abandoning it", run_id, extra=_ids(running.run))
                running.task.cancel()
        return now

    async def drain(self) -> None:
        """No new runs; those that go on have ``shutdown_seconds``, or until ``hurry``, and are stopped then."""
        self._drained = True
        until = asyncio.get_running_loop().time() + self._settings.shutdown_seconds
        if len(self):
            runs = "1 run" if len(self) == 1 else f"{len(self)} runs"
            logger.info("waiting for %s to end, up to %g s", runs, self._settings.shutdown_seconds)
        # A run that was being started when this began is among them a moment later.
        while len(self) and not self._hurried and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        for running in list(self._running.values()):
            self._have_stopped(running, "the server shut down")
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=_CANCEL_SECONDS)
        # Who watched a run is told of its end before the journal is closed, from which he reads it.
        until = asyncio.get_running_loop().time() + _LAST_WORD_SECONDS
        while self._watchers and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    def hurry(self) -> None:
        """Runs have no time any more."""
        self._drained = self._hurried = True

    async def aclose(self) -> None:
        await self.drain()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        await self.health.aclose()


def _ids(run: Run) -> dict[str, str]:
    return {"run_id": run.run_id, "thread_id": run.thread_id}
