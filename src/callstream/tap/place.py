"""Where a response belongs: to the run of the task or thread that asks for it, and to its host's model call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from callstream.calls import LACKS_OUTCOME, CallState
from callstream.events import RequestEvent, ResultReceived, RunStarted
from callstream.runtime import ModelCall, Run, RunEngine, current_model_call, current_run
from callstream.runtime.ownloop import may_wait_for

logger = logging.getLogger("callstream")


class Place(NamedTuple):
    """Where a response belongs. ``beside`` is its run if that cannot be reached from here, so it gets one of its own."""

    run: Run | None
    model_call: ModelCall | None = None
    beside: Run | None = None

    @classmethod
    def current(cls) -> Place:
        model_call = current_model_call.get()
        if model_call is not None and model_call.run.outcome is None:
            return cls(model_call.run, model_call)
        return cls(current_run())

    def of_host(self) -> Place | None:
        """The same, for a model of a host's: what no agent asks is guarded like all else, and not shown.

        None outside of a run, where there is nothing to guard.
        """
        if self.model_call is not None:
            return self
        return None if self.run is None else Place(self.run, ModelCall(self.run, reports=True, withholds=True))

    def for_blocking_caller(self, own_loop: asyncio.AbstractEventLoop) -> Place:
        """The same, unless the event loop of the run is blocked, which would then never answer. The own loop is not."""
        run = self.run
        if run is None or run.loop is own_loop or may_wait_for(run.loop):
            return self
        logger.warning(
            "a sync client blocks the event loop of run %s, so its response is a run of its own, in the same thread: "
            "use 'with cs.run(…)' for the run, or asyncio.to_thread for the call of the client",
            run.run_id,
        )
        return Place(None, beside=run)


# -- runs of programs that know nothing of runs ------------------------------------------------------------------------
# Outside of a run each response is a run of its own. It ends with its last call: with the response if it has none, else
# when a later request brings the results; what no request answers in time is released. It has failed if the response broke
# off. A request whose results belong to such a run goes on in the same thread.


_UNANSWERED = LACKS_OUTCOME - {CallState.AWAITING}


class ImplicitRuns:
    """The implicit runs of one Callstream that still wait for results. ``patience`` is how long, in seconds."""

    def __init__(self, engine: RunEngine, *, patience: float = 600.0) -> None:
        self._engine = engine
        self._patience = patience
        self._waiting: dict[str, Run] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._errors: dict[str, BaseException] = {}  # what broke the responses of these runs off
        self._releases: set[asyncio.Task[None]] = set()

    async def begin(self, request: Sequence[RequestEvent], beside: Run | None = None) -> Run:
        """The run of the response to this request. Its results go to the runs that they belong to.

        ``beside``: the run that the response would belong to if that could be reached. It is in the same thread then.
        """
        thread_id = None if beside is None else beside.thread_id
        for run in self._answered(request):
            thread_id = thread_id or run.thread_id
            await run.receive([event for event in request if isinstance(event, ResultReceived)])
            await self.response_ended(run)
        thread_id = thread_id or self._engine.new_id("thread")
        if beside is None:
            run = await Run.start(self._engine, RunStarted(thread_id), as_current=False)
        else:
            started = RunStarted(thread_id, beside.principal)
            run = await Run.start(self._engine, started, rejected=beside.rejected, as_current=False)
        run.starts_early = False
        return run

    async def response_ended(self, run: Run, error: BaseException | None = None) -> None:
        """Ends the run if nothing of it is open, else lets it wait for its results. ``error``: what broke it off."""
        if error is not None:
            self._errors[run.run_id] = error
        if run.unfinished or any(call.state in _UNANSWERED for call in run.calls):
            if run.run_id not in self._waiting:
                self._waiting[run.run_id] = run
                self._timers[run.run_id] = run.loop.call_later(self._patience, self._give_up, run)
            return
        await self._end(run)

    async def aclose(self) -> None:
        """Gives up waiting, on this event loop: what was not answered is released."""
        for run in self._waiting_here():
            await self._end(run)

    def _answered(self, request: Sequence[RequestEvent]) -> list[Run]:
        results = [event for event in request if isinstance(event, ResultReceived) and event.latest]
        here = self._waiting_here()
        by_id = {event.provider_id for event in results if event.provider_id is not None}
        found = [run for run in here if any(call.wire_id in by_id for call in run.calls)]
        if found or not results:
            return found
        # Without ids the names must tell, and they do only if one run alone waits for them.
        names = {event.name for event in results}
        fitting = [run for run in here if any(call.name in names and call.state in _UNANSWERED for call in run.calls)]
        return fitting if len(fitting) == 1 else []

    def _waiting_here(self) -> list[Run]:
        return [run for run in list(self._waiting.values()) if run.loop is asyncio.get_running_loop()]

    def _give_up(self, run: Run) -> None:
        release = asyncio.ensure_future(self._end(run))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    async def _end(self, run: Run) -> None:
        self._waiting.pop(run.run_id, None)
        timer = self._timers.pop(run.run_id, None)
        if timer is not None:
            timer.cancel()
        await run.end(self._errors.pop(run.run_id, None))
