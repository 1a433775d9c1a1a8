"""Runs of programs that know nothing of runs.

Outside of a run each response is a run of its own. It ends with its last call: with the response if it has none, else
when a later request brings the results; what no request answers in time is released. It has failed if the response broke
off. A request whose results belong to such a run goes on in the same thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from callstream.calls import LACKS_OUTCOME, CallState
from callstream.events import RequestEvent, ResultReceived, RunStarted
from callstream.runtime import Run, RunEngine

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
