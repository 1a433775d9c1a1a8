"""Calls that a process left in a thread when it died in the middle of their arguments.

Their abort hooks run in the process that continues the thread. A process counts as dead when its lease has run out;
until then it cannot be told from a slow one. A thread does not wait for that: its next turn begins at once, and
the run that is still open is watched. If its owner comes to an end with it, there is nothing to tell; if the lease runs
out, the run is swept, and the hooks hear it then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from callstream.calls import Call, CallState
from callstream.errors import JournalError, UsageError
from callstream.hooks import CallHooks
from callstream.journal import RunRow
from callstream.runtime.engine import Engine

logger = logging.getLogger("callstream")

_SWEEP_EVERY = 1.0
"""Seconds between two looks whether the owner of a watched run has died."""


class LeftBehind:
    """Finds such calls and tells their hooks, each call once in a process."""

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._watching: dict[str, asyncio.Task[None]] = {}

    async def find(self, thread_id: str, principal: str | None = None) -> list[Call]:
        """The calls of runs that were interrupted since the thread last went on. To be asked before it has a new run.

        With a ``principal``, only theirs: two people may have threads of one name.
        Runs of other processes that are still open are watched from now on.
        """
        journal = self._engine.journal
        await journal.open()
        runs = await journal.runs(thread_id=thread_id, principal=principal)
        if any(self._is_elsewhere(run) for run in runs):
            await journal.sweep()
            runs = await journal.runs(thread_id=thread_id, principal=principal)
        found: list[Call] = []
        for run in runs:
            if self._is_elsewhere(run):
                self._watch(run)
            elif run.outcome != "failed" or run.reason != "interrupted":
                break
            else:
                found += await self._given_up_in(run.run_id)
        return found

    async def tell(self, calls: Iterable[Call]) -> list[Call]:
        """Runs the abort hooks of these calls. Returns those that have none yet: their tools may still become known."""
        unknown: list[Call] = []
        for call in calls:
            hooks = self._engine.hooks_of(call.name)
            if not hooks:
                unknown.append(call)
                continue
            hooked = CallHooks(call, hooks, self._engine.hook_settings(call.name))
            hooked.abort(call, "interrupted")
            await hooked.settled()
        return unknown

    async def aclose(self) -> None:
        """Watches no longer, in this event loop."""
        loop = asyncio.get_running_loop()
        mine = [task for task in self._watching.values() if task.get_loop() is loop]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    def _is_elsewhere(self, run: RunRow) -> bool:
        return run.outcome is None and self._engine.active_run(run.run_id) is None

    async def _given_up_in(self, run_id: str) -> list[Call]:
        journal = self._engine.journal
        listed = await journal.calls(run_id=run_id, states=[CallState.DISCARDED])
        whole = [await journal.call(call.call_id) for call in listed if call.reason == "interrupted"]
        return [call for call in whole if call is not None]

    # -- a run whose owner may be dead --

    def _watch(self, run: RunRow) -> None:
        if run.run_id in self._watching:
            return
        logger.info("run %s of thread %s is still open in another process", run.run_id, run.thread_id)
        task = asyncio.create_task(self._tell_at_the_end(run.run_id), name=f"callstream watches {run.run_id}")
        self._watching[run.run_id] = task
        task.add_done_callback(lambda done: self._watching.pop(run.run_id, None))

    async def _tell_at_the_end(self, run_id: str) -> None:
        """Outlasts a journal that is away: the journal itself logs that it is, and the run is still to be ended."""
        calls: list[Call] | None = None
        while calls is None:
            await asyncio.sleep(_SWEEP_EVERY)
            try:
                await self._engine.journal.sweep()
                calls = await self._given_up_at_the_end_of(run_id)
            except JournalError:
                pass
            except UsageError:
                return  # the journal was closed
        await self.tell(calls)

    async def _given_up_at_the_end_of(self, run_id: str) -> list[Call] | None:
        """None if the run is still open. No calls if its owner has ended it, or if it was erased since."""
        rows = await self._engine.journal.runs(run_id=run_id, limit=1)
        if rows and rows[0].outcome is None:
            return None
        is_interrupted = rows and (rows[0].outcome, rows[0].reason) == ("failed", "interrupted")
        return await self._given_up_in(run_id) if is_interrupted else []
