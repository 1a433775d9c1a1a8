"""Requests that are sent again: by a client whose connection broke, or by a proxy that does it on its own."""

from __future__ import annotations

from typing import Final

import msgspec

from callstream.events import RunStarted
from callstream.journal import Journal, RunRow

_LOOKED_AT: Final = 50
"""Runs of the thread, the newest first, that may have got the requested id with a number."""


class RunRequest(msgspec.Struct, frozen=True):
    """What identifies a request for a run, so that it is recognized when it is sent again.

    The run keeps the ``digest`` of its input (``run_input["digest"]``), so every process finds it, after a restart too.
    ``owner``: whose run it has to be.
    """

    thread_id: str
    run_id: str
    digest: str
    owner: str | None = None

    async def earlier_run(self, journal: Journal, *, of_any_input: bool = False) -> RunRow | None:
        """The first run that this request has begun, None if there is none.

        ``of_any_input``: if none has this input, the newest one with its run id.
        """
        first = await journal.runs(run_id=self.run_id, limit=1)
        if not first:
            return None
        latest = await journal.runs(thread_id=self.thread_id, limit=_LOOKED_AT)
        numbered = [row for row in latest if row.run_id.startswith(f"{self.run_id}~")]
        runs = [row for row in [*numbered, *first] if row.thread_id == self.thread_id]
        runs = [row for row in runs if self.owner is None or row.principal == self.owner]
        for row in reversed(runs):
            if await _digest(journal, row.run_id) == self.digest:
                return row
        return runs[0] if runs and of_any_input else None


async def _digest(journal: Journal, run_id: str) -> str | None:
    async for record in journal.read(run_id):
        match record.event:
            case RunStarted(input={"digest": str(digest)}):
                return digest
        break
    return None
