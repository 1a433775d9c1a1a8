"""How a run ends, and what that makes of the calls that are open then.

::

    ending       executing     all arguments there     before that
    finished     failed        released                discarded (interrupted)
    failed       failed        discarded (interrupted) discarded (interrupted)
    cancelled    failed        discarded (aborted)     discarded (aborted)

A call that awaits an answer is not open. A value: who is told of it, and when, is the run's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Self

import msgspec

from callstream.calls import Call, CallState
from callstream.events import CallDiscarded, CallFailed, CallReleased, DiscardReason, RunEnded, RunEvent, RunOutcome


class Ending(msgspec.Struct, frozen=True):
    """``reason`` and ``detail`` are sentences: why the run ends, and what is said of each call that it discards."""

    outcome: RunOutcome
    reason: str | None = None
    discard: DiscardReason | None = None
    """Why no tool may run any more. None leaves calls with all their arguments to the host, which may run them."""
    detail: str | None = None
    error: BaseException | None = None

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
        """By what ended the work of the run."""
        if error is None:
            return cls.finished()
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return cls.cancelled("cancelled")
        return cls.failed(described(error), detail, error)

    def failed_by_hook(self, error: Exception) -> Self:
        """The same for all open calls, since the hook's own call is discarded already; the run has failed."""
        return msgspec.structs.replace(self, outcome="failed", reason=described(error), error=error)

    def discards(self, call: Call) -> DiscardReason | None:
        """Why the arguments of an open call are given up; None if its host may run it. Once it executes, that is over."""
        return self.discard if call.state is CallState.ARGS_COMPLETE else self.discard or "interrupted"

    def events(self, open_calls: Iterable[Call]) -> list[RunEvent]:
        """The last records of the run."""
        return [*map(self._closing, open_calls), RunEnded(self.outcome, self.reason)]

    def _closing(self, call: Call) -> RunEvent:
        if call.state is CallState.EXECUTING:
            return CallFailed(call.call_id, self.discard or "the run ended before the tool did")
        reason = self.discards(call)
        return CallReleased(call.call_id) if reason is None else CallDiscarded(call.call_id, reason, self.detail)


def described(error: BaseException) -> str:
    """What a run or a call is said to have failed of."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
