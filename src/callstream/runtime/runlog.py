"""The log of one run, as the process that writes it knows it.

An append that fails may have been written all the same, its acknowledgement lost: then the log is doubtful until the
next append, and what it holds is asked of the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from callstream.calls import Call, CallState
from callstream.errors import CallIdTaken, JournalError, LeaseLost, ThreadBusy
from callstream.journal import Entry, Journal
from callstream.runtime.ending import Ending


class RunLog:
    """One append at a time: whoever writes sees to that."""

    def __init__(self, journal: Journal, run_id: str) -> None:
        self._journal = journal
        self._run_id = run_id
        self.seq = 0
        """The number of the last record that was acknowledged."""
        self.is_doubtful = False
        """Whether the journal may have more of the run than was acknowledged."""

    async def append(self, entries: Sequence[Entry]) -> None:
        """Has the entries journalled. A write cannot be called back: if it is cancelled, nobody knows what was written."""
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

    async def end(self, ending: Ending, known: Iterable[Call]) -> None:
        """Ends the run by what the journal has of it, which may be more than was acknowledged. It may be repeated.

        ``known`` are the calls in the run's ledger: the journal lists those that it took up under their own runs.
        """
        # An append of nothing comes after all that may still be under way, and says where the run stands.
        last_seq = await self._journal.append(self._run_id, [])
        rows = await self._journal.runs(run_id=self._run_id, limit=1)
        if rows and rows[0].outcome is None:
            taken_up = [await self._journal.call(call.call_id) for call in known if call.run_id != self._run_id]
            calls = [*await self._journal.calls(run_id=self._run_id), *(call for call in taken_up if call is not None)]
            open_calls = [call for call in calls if not call.is_final and call.state is not CallState.AWAITING]
            self.seq = await self._journal.append(self._run_id, ending.events(open_calls), after=last_seq)
