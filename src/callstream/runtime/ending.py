"""How a run ends, and what that makes of the calls that are open then.

::

    ending       executing     all arguments there     before that
    finished     failed        released                discarded (interrupted)
    failed       failed        discarded (interrupted) discarded (interrupted)
    cancelled    failed        discarded (aborted)     discarded (aborted)

A call whose tool has run all the same, because a framework called it, is released (``handed_over``): nobody may undo what it
did.

A call whose tool runs early counts as executing if its arguments are whole, and as before that if they are not. A call that
awaits an answer is not open.

Why every run ends: ``RunEnd`` writes the end once, and whatever keeps the journal from taking it leaves the run to
``Unended``, which tries again until it does. Trying again is safe because ``RunLog.end`` first asks the journal where the
run stands and writes nothing to a run that has ended. A process that dies before that loses its lease, and the next sweep
ends the run in its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Self, TypeAlias

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import CallstreamError, JournalError, LeaseLost, UsageError
from callstream.events import CallDiscarded, CallFailed, CallReleased, DiscardReason, RunEnded, RunEvent, RunOutcome

logger = logging.getLogger("callstream")

EndInJournal: TypeAlias = Callable[[], Awaitable[None]]
"""Writes the end of one run. It may be repeated."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
"""Seconds between two attempts."""


class Ending(msgspec.Struct, frozen=True):
    """``reason`` and ``detail`` are sentences: why the run ends, and what is said of each call that it discards."""

    outcome: RunOutcome
    reason: str | None = None
    discard: DiscardReason | None = None
    """Why no tool may run any more. None leaves calls with all their arguments to the host, which may run them."""
    detail: str | None = None
    error: BaseException | None = None
    handed_over: frozenset[str] = frozenset()
    """The calls whose tools have run, or may have, though nobody saw their outcome."""

    @classmethod
    def finished(cls) -> Self:
        return cls("finished")

    @classmethod
    def cancelled(cls, reason: str) -> Self:
        return cls("cancelled", reason, "aborted")

    @classmethod
    def failed(cls, reason: str, detail: str | None = None, error: BaseException | None = None) -> Self:
        return cls("failed", reason, "interrupted", detail, error)

    @classmethod
    def by(cls, error: BaseException | None, detail: str | None = None) -> Self:
        """For a run whose work ended with this exception, or without one."""
        if error is None:
            return cls.finished()
        if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
            return cls.cancelled("cancelled")
        return cls.failed(describe(error), detail, error)

    def after(self, handed_over: frozenset[str]) -> Self:
        """The same, where the tools of these calls have run."""
        return msgspec.structs.replace(self, handed_over=handed_over)

    def failed_by_hook(self, error: Exception) -> Self:
        """The same for all open calls, since the hook's own call is discarded already; the run has failed."""
        return msgspec.structs.replace(self, outcome="failed", reason=describe(error), error=error)

    def discards(self, call: Call) -> DiscardReason | None:
        """Why the arguments of an open call are given up; None if its host may run it. Once it executes, that is over."""
        if call.state is not CallState.ARGS_COMPLETE:
            return self.discard or "interrupted"
        return None if call.call_id in self.handed_over else self.discard

    def events(self, open_calls: Iterable[Call]) -> list[RunEvent]:
        """The last records of the run."""
        return [*map(self._closing, open_calls), RunEnded(self.outcome, self.reason)]

    def _closing(self, call: Call) -> RunEvent:
        if call.state is CallState.EXECUTING or (call.state is CallState.RUNNING_EARLY and not call.is_being_written):
            return CallFailed(call.call_id, self.discard or "the run ended before the tool did")
        reason = self.discards(call)
        return CallReleased(call.call_id) if reason is None else CallDiscarded(call.call_id, reason, self.detail)


def describe(error: BaseException) -> str:
    """The failure of a run or a call, in one line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Retry(msgspec.Struct, frozen=True, eq=False):
    end: EndInJournal
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None]


class Unended:
    """Runs that have ended though the journal did not take their end. Each is retried by a task on its run's loop."""

    def __init__(self) -> None:
        self._retries: set[_Retry] = set()

    def add(self, run_id: str, end: EndInJournal) -> None:
        task = asyncio.create_task(_retry(run_id, end), name=f"callstream end {run_id}")
        retry = _Retry(end, asyncio.get_running_loop(), task)
        self._retries.add(retry)
        task.add_done_callback(lambda _: self._retries.discard(retry))

    async def end_now(self) -> list[CallstreamError]:
        """Tries for the last time, for the runs of this event loop. Returns why the journal still does not take them."""
        outcomes = await asyncio.gather(*(end() for end in self.give_up()), return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, CallstreamError)]

    def give_up(self) -> list[EndInJournal]:
        """Stops retrying for the runs of this event loop, and returns what would end them."""
        loop = asyncio.get_running_loop()
        mine = [retry for retry in self._retries if retry.loop is loop]
        for retry in mine:
            self._retries.discard(retry)
            retry.task.cancel()
        return [retry.end for retry in mine]


async def _retry(run_id: str, end: EndInJournal) -> None:
    pause = _FIRST_PAUSE
    is_logged = False
    while True:
        await asyncio.sleep(pause)
        try:
            await end()
        except (LeaseLost, UsageError) as error:  # it is another's, or the journal is closed
            logger.warning("the end of run %s is left to the next sweep: %s", run_id, error, extra={"run_id": run_id})
            return
        except JournalError as error:
            pause = min(pause * 2, _LONGEST_PAUSE)
            if not is_logged:
                logger.warning(
                    "could not write the end of run %s, retrying: %s", run_id, error, extra={"run_id": run_id}
                )
            is_logged = True
        else:
            return
