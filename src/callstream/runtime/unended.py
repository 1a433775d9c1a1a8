"""Runs that have ended, though the journal did not take their end: it is tried until it does. Every run ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from callstream.errors import CallstreamError, JournalError, LeaseLost, UsageError
from callstream.runtime.ending import Ending

if TYPE_CHECKING:
    from callstream.runtime.run import Run

logger = logging.getLogger("callstream")

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
"""Seconds between two attempts."""


class Unended:
    """Each is tried on the event loop of its run, by a task of its own."""

    def __init__(self) -> None:
        self._tries: dict[Run, tuple[Ending, asyncio.Task[None]]] = {}

    def add(self, run: Run, ending: Ending) -> None:
        task = asyncio.create_task(self._try(run, ending), name=f"callstream end {run.run_id}")
        self._tries[run] = (ending, task)

    async def end_now(self) -> list[CallstreamError]:
        """Tries for the last time, for the runs of this event loop. Returns why the journal still does not take them."""
        ends = (run.end_in_journal(ending) for run, ending in self.give_up())
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, CallstreamError)]

    def give_up(self) -> list[tuple[Run, Ending]]:
        """The runs of this event loop, which are not tried again from now on."""
        mine = [run for run in self._tries if run.loop is asyncio.get_running_loop()]
        given_up = []
        for run in mine:
            ending, task = self._tries.pop(run)
            task.cancel()
            given_up.append((run, ending))
        return given_up

    async def _try(self, run: Run, ending: Ending) -> None:
        pause = _FIRST_PAUSE
        is_told = False
        while True:
            await asyncio.sleep(pause)
            try:
                await run.end_in_journal(ending)
            except (LeaseLost, UsageError) as error:  # it is another's, or the journal is closed
                logger.warning("the end of run %s is left to the next sweep: %s", run.run_id, error)
                break
            except JournalError as error:
                pause = min(pause * 2, _LONGEST_PAUSE)
                if not is_told:
                    logger.warning("could not write the end of run %s, retrying: %s", run.run_id, error)
                is_told = True
            else:
                break
        self._tries.pop(run, None)
