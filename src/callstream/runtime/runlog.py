"""The log of one run, as the process that writes it knows it.

An append that fails may have been written all the same, its acknowledgement lost: then the log is doubtful until the
next append, and what it holds is asked of the journal.

Why journal and ledger agree: ``write`` holds one lock from choosing the events to taking the last of them in, so records
are taken in the order of their numbers, and nothing is taken in that the journal has not acknowledged. The caller runs it
in a task of its own, because a cancellation halfway would leave the two apart. ``write_now`` does the same for pieces
without lock and task: it begins only while nothing else is written, and whatever comes then waits for its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from callstream.calls import CallState, Ledger
from callstream.errors import (
    CallIdTaken,
    CallstreamError,
    JournalError,
    LeaseLost,
    LimitExceeded,
    ThreadBusy,
)
from callstream.events import (
    PIECES,
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallRunningEarly,
    RunEvent,
)
from callstream.journal import Entry, Journal
from callstream.runtime.ending import Ending
from callstream.runtime.limits import TextLimits, TextMeter

_OF_ONE_CALL = (ArgsAppended, CallCompleted, CallRunningEarly, CallDiscarded)
EventsThen: TypeAlias = Callable[[], Sequence[RunEvent]]
"""Which events to record, asked when all that was on its way is written."""


class RunLog:
    """Writes to the journal what happens to the calls in ``ledger``, within the limits."""

    def __init__(self, journal: Journal, run_id: str, ledger: Ledger, limits: TextLimits) -> None:
        self.text = TextMeter(limits)
        self.seq = 0
        """The number of the last record that was acknowledged."""
        self.is_doubtful = False
        """Whether the journal may have more of the run than was acknowledged."""
        self._journal = journal
        self._run_id = run_id
        self._ledger = ledger
        self._writing = asyncio.Lock()
        """Held while something is written."""
        self._writes_pieces = False
        """Whether pieces are being written without the lock."""
        self._pieces: asyncio.Future[None] | None = None
        """Done when they are taken in, where somebody waits for that."""

    async def write(
        self,
        events: Sequence[RunEvent] | EventsThen,
        take: Callable[[RunEvent, int], None],
        response_id: str | None = None,
        author: str | None = None,
    ) -> LimitExceeded | None:
        """Journals the events, then has each taken in with its number. Returns the limit that they go beyond, if one.

        Events of a call that is discarded meanwhile are left out, and so is what goes beyond a limit.
        """
        async with self._writing:
            await self._wait_for_pieces()
            wanted = [event for event in (events() if callable(events) else events) if not self._is_stale(event)]
            if not wanted:
                return None
            weighed = self.text.weigh(wanted)
            if weighed.error is not None:
                wanted = wanted[: weighed.fitting]
            if wanted:
                await self._append([Entry(event, response_id, author) for event in wanted])
                self.text.take(weighed)
                for seq, event in enumerate(wanted, self.seq - len(wanted) + 1):
                    take(event, seq)
            return weighed.error

    async def flush(self) -> None:
        """Waits until everything that is on its way has been written."""
        async with self._writing:
            await self._wait_for_pieces()

    def write_now(
        self,
        events: Sequence[RunEvent],
        take: Callable[[RunEvent, int], None],
        then: Callable[[Exception | None], None],
        response_id: str | None = None,
        author: str | None = None,
    ) -> bool:
        """Journals pieces of text and arguments, has them taken in, and calls ``then``: with the error, if there was one.

        False if that needs waiting or thinking; then nothing was done, and it is up to ``write``.
        """
        if self._writes_pieces or self._writing.locked() or not self.seq:
            return False
        for event in events:
            if type(event) not in PIECES or self._is_stale(event):
                return False
        weighed = self.text.weigh(events)
        if weighed.error is not None:
            return False

        def acknowledged(outcome: int | CallstreamError) -> None:
            error: Exception | None = None
            try:
                if isinstance(outcome, int):
                    self.seq = outcome
                    self.is_doubtful = False
                    self.text.take(weighed)
                    for seq, event in enumerate(events, outcome - len(events) + 1):
                        take(event, seq)
                else:
                    error = outcome
                    self.is_doubtful = isinstance(error, JournalError) and not isinstance(error, LeaseLost)
            except Exception as raised:  # noqa: BLE001  # whoever wrote is told
                error = raised
            self._writes_pieces = False
            if self._pieces is not None:
                self._pieces.set_result(None)
                self._pieces = None
            then(error)

        entries = [Entry(event, response_id, author) for event in events]
        if not self._journal.append_now(self._run_id, entries, acknowledged, after=self.seq):
            return False
        self._writes_pieces = True
        return True

    async def _wait_for_pieces(self) -> None:
        while self._writes_pieces:
            self._pieces = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._pieces})

    async def _append(self, entries: Sequence[Entry]) -> None:
        """A write cannot be called back: if it is cancelled, nobody knows what was written."""
        # The first append must find no record of the run. With a number it would pass for a repetition of the first
        # append of an earlier run of this id.
        after = self.seq or None
        try:
            self.seq = await self._journal.append(self._run_id, entries, after=after)
        except (LeaseLost, CallIdTaken, ThreadBusy):
            raise  # nothing of it is written
        except (JournalError, asyncio.CancelledError):
            self.is_doubtful = True
            raise
        self.is_doubtful = False

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
