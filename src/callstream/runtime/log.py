"""The log of one run, as the process that writes it knows it: what is submitted is journaled, then applied, in order.

Why journal and ledger agree: one batch of a run is under way at a time, and the next one is chosen when it has been
applied. So events are applied in the order of their numbers, nothing is applied that the journal has not acknowledged, and
whoever chooses events sees all that was submitted before. Nothing here waits, so a cancellation cannot come between.

An append that fails may have been written all the same, its acknowledgement lost: then the log is doubtful until the
next append, and what it holds is asked of the journal.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from callstream.calls import CallState, Ledger
from callstream.errors import CallIdTaken, JournalError, LeaseLost, LimitExceeded, ThreadBusy
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded, CallRunningEarly, RunEvent
from callstream.journal import Entry, Journal
from callstream.runtime.ending import Ending
from callstream.runtime.limits import TextLimits, TextMeter, Weighed

logger = logging.getLogger("callstream")

_OF_ONE_CALL = (ArgsAppended, CallCompleted, CallRunningEarly, CallDiscarded)
_NOT_WRITTEN = (LeaseLost, CallIdTaken, ThreadBusy)
"""What a journal raises that has kept nothing of an append, for sure."""
EventsThen: TypeAlias = Callable[[], Sequence[RunEvent]]
"""Which events to record, asked when all that was submitted before has been applied."""
Then: TypeAlias = Callable[[Exception | None], None]
"""Called when a batch has been applied, or with the error; never inside ``submit``. It must not raise."""


class _Batch(msgspec.Struct, eq=False):
    events: Sequence[RunEvent] | EventsThen
    then: Then
    response_id: str | None
    author: str | None
    context: contextvars.Context
    """In which it is applied: hooks and tools that begin with it see what its submitter saw."""


class RunLog:
    """Writes to the journal what happens to the calls in ``ledger``, within the limits.

    ``apply`` is called with each event and its number when the journal has it, ``on_excess`` with the limit that a batch
    goes beyond.
    """

    def __init__(
        self,
        journal: Journal,
        run_id: str,
        ledger: Ledger,
        limits: TextLimits,
        *,
        apply: Callable[[RunEvent, int], None],
        on_excess: Callable[[LimitExceeded], None],
    ) -> None:
        self.text = TextMeter(limits)
        self.seq = 0
        """The number of the last record that was acknowledged."""
        self.is_doubtful = False
        """Whether the journal may have more of the run than was acknowledged."""
        self._journal = journal
        self._run_id = run_id
        self._ledger = ledger
        self._apply = apply
        self._on_excess = on_excess
        self._waiting: deque[_Batch] = deque()
        self._is_writing = False

    def submit(
        self,
        events: Sequence[RunEvent] | EventsThen,
        then: Then,
        *,
        response_id: str | None = None,
        author: str | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        """Has the events journaled, and applied in the context: the caller's, unless another is given.

        Events of a call that is discarded meanwhile are left out, and so is what goes beyond a limit: ``then`` gets that.
        """
        self._waiting.append(_Batch(events, then, response_id, author, context or contextvars.copy_context()))
        self._write_next()

    def _write_next(self) -> None:
        while self._waiting and not self._is_writing:
            batch = self._waiting.popleft()
            try:
                events = batch.events() if callable(batch.events) else batch.events
            except Exception as error:  # noqa: BLE001  # the submitter's own
                _call_soon(batch.then, error)
                continue
            wanted = [event for event in events if not self._is_stale(event)]
            weighed = self.text.weigh(wanted)
            if weighed.error is not None:
                wanted = wanted[: weighed.fitting]
            if wanted:
                self._write(batch, wanted, weighed)
            elif weighed.error is not None:
                _call_soon(batch.then, weighed.error)
                self._on_excess(weighed.error)
            else:
                _call_soon(batch.then, None)

    def _write(self, batch: _Batch, events: Sequence[RunEvent], weighed: Weighed) -> None:
        self._is_writing = True
        entries = [Entry(event, batch.response_id, batch.author) for event in events]
        # The first append must find no record of the run. With a number it would pass for a repetition of the first
        # append of an earlier run of this id.
        then = partial(self._acknowledge, batch, events, weighed)
        self._journal.submit(self._run_id, entries, then, after=self.seq or None)

    def _acknowledge(
        self, batch: _Batch, events: Sequence[RunEvent], weighed: Weighed, outcome: int | Exception
    ) -> None:
        error: Exception | None = weighed.error
        if isinstance(outcome, int):
            self.seq = outcome
            self.is_doubtful = False
            self.text.apply(weighed)
            try:
                batch.context.run(self._apply_all, events, outcome - len(events) + 1)
            except Exception as raised:  # noqa: BLE001  # the submitter gets it
                error = raised
            if weighed.error is not None:
                batch.context.run(self._on_excess, weighed.error)
        else:
            error = outcome
            self.is_doubtful |= isinstance(error, JournalError) and not isinstance(error, _NOT_WRITTEN)
        self._is_writing = False
        try:
            batch.then(error)
        except Exception:
            logger.exception("a callback raised after a record of run %s", self._run_id)
        self._write_next()

    def _apply_all(self, events: Sequence[RunEvent], first: int) -> None:
        for seq, event in enumerate(events, first):
            self._apply(event, seq)

    def _is_stale(self, event: RunEvent) -> bool:
        if not isinstance(event, _OF_ONE_CALL):
            return False
        call = self._ledger.get(event.call_id)
        return call is not None and call.state is CallState.DISCARDED

    async def end(self, ending: Ending) -> None:
        """Ends the run by what the journal has of it, which may be more than was acknowledged. It may be repeated."""
        # An append of nothing comes after all that may still be under way, and says where the run stands.
        last_seq = await self._journal.append(self._run_id, [])
        rows = await self._journal.runs(run_id=self._run_id, limit=1)
        if rows and rows[0].outcome is None:
            # The journal lists calls of earlier runs, which this run took up, under their own runs.
            adopted = [call.call_id for call in self._ledger if call.run_id != self._run_id]
            taken_up = [await self._journal.call(call_id) for call_id in adopted]
            calls = [*await self._journal.calls(run_id=self._run_id), *(call for call in taken_up if call is not None)]
            open_calls = [call for call in calls if not call.is_final and call.state is not CallState.AWAITING]
            self.seq = await self._journal.append(self._run_id, ending.events(open_calls), after=last_seq)


def _call_soon(then: Then, error: Exception | None) -> None:
    asyncio.get_running_loop().call_soon(then, error)
