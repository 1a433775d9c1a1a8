"""The end of a run: begun once, by whoever comes first, and the same for everyone who asks for it.

Why nothing comes after the end: ``has_begun`` is set before the task of the end first runs, and ``Run.record`` refuses from
then on. What had passed that check is waited for (``flush``); a call may start in it, so the hooks are closed a second
time. By then hooks have settled and progress is closed, so what is left to write is the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from callstream.calls import Ledger
from callstream.errors import JournalError, LeaseLost, TransitionError
from callstream.runtime.barrier import Barrier
from callstream.runtime.ending import Ending
from callstream.runtime.progress import ProgressFeeds
from callstream.runtime.runlog import EventsThen, RunLog
from callstream.runtime.waiting import wait_for_result

if TYPE_CHECKING:
    from callstream.runtime.run import Run

logger = logging.getLogger("callstream")


class RunEnd:
    """Of one run. ``write`` records events also while the run is being ended."""

    def __init__(
        self,
        run: Run,
        ledger: Ledger,
        log: RunLog,
        barrier: Barrier,
        feeds: ProgressFeeds,
        write: Callable[[EventsThen], Awaitable[None]],
    ) -> None:
        self.has_begun = False
        self.ending: Ending | None = None
        """How the run has ended; None while it has not."""
        self._run = run
        self._ledger = ledger
        self._log = log
        self._barrier = barrier
        self._feeds = feeds
        self._write = write
        self._callbacks: list[Callable[[str], object]] = []
        self._task: asyncio.Task[Exception | None] | None = None

    def add_callback(self, callback: Callable[[str], object]) -> Callable[[], None]:
        """See ``Run.on_stop``."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def begin(self, ending: Ending) -> None:
        """Ends the run in that way, unless its end has begun."""
        if self._task is None:
            self.has_begun = True
            self._task = asyncio.ensure_future(self._reach(ending))

    async def wait(self, ending: Ending) -> Exception | None:
        """As ``begin``, and waits for it. Returns the error of the hook that made the run fail, if one did."""
        self.begin(ending)
        assert self._task is not None, "it has begun"
        # Hooks and early tools end in their own time, which is bounded. What hangs when none of them runs is the store.
        return await wait_for_result(self._task, while_=lambda: self._barrier.runs_hooks or self._run.early.is_running)

    async def _reach(self, ending: Ending) -> Exception | None:
        run = self._run
        for callback in list(self._callbacks):
            try:
                callback(ending.reason or ending.outcome)
            except Exception:
                logger.exception("a callback raised at the end of run %s", run.run_id)
        run.early.abort(ending)
        await self._feeds.aclose()
        await self._barrier.close(ending)
        await self._log.flush()
        run.early.abort(ending)
        await self._barrier.close(ending)
        await run.early.close()
        failure = self._barrier.failure if ending.outcome == "finished" else None
        if failure is not None:
            ending = ending.failed_by_hook(failure)
        try:
            await self._record(ending)
        except LeaseLost as lost:
            ending = Ending.failed("interrupted", error=lost)  # the process that took it over has ended it
            raise
        except JournalError:
            run.callstream.end_later(run, ending)
            raise
        finally:
            self.ending = ending
            run.callstream.forget_run(run)
            run.callstream.observers.run_ended(run)
        return failure

    async def _record(self, ending: Ending) -> None:
        if not self._log.is_doubtful:
            try:
                await self._write(lambda: ending.events(self._ledger.open_calls()))
                return
            except TransitionError:
                pass  # another run has answered a call that this one was executing: the journal knows
        await self._log.end(ending)
