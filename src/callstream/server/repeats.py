"""Requests that are sent again: by a client whose connection broke, or by a proxy that does it on its own.

The run that the first one began is found by its id, its thread, whose it is, and the digest of its input, which the run
keeps. So it is found by every process, and after a restart.
"""

from __future__ import annotations

from ag_ui.core import RunAgentInput

from callstream.agui.given import digest_of
from callstream.events import RunStarted
from callstream.journal import Journal, RunRow

_LOOKED_AT = 50
"""Runs of the thread, the newest first, that may have got the wanted id with a number."""


async def earlier_run(
    journal: Journal, given: RunAgentInput, principal: str | None, *, of_any_input: bool = False
) -> RunRow | None:
    """The first run that this input has begun, None if there is none.

    ``of_any_input``: if none has this input, the newest one with its run id.
    """
    wanted, thread_id = given.run_id, given.thread_id
    first = await journal.runs(run_id=wanted, limit=1)
    if not first:
        return None
    numbered = [
        row for row in await journal.runs(thread_id=thread_id, limit=_LOOKED_AT) if row.run_id.startswith(f"{wanted}~")
    ]
    runs = [
        row
        for row in [*numbered, *first]
        if row.thread_id == thread_id and (principal is None or row.principal == principal)
    ]
    digest = digest_of(given)
    for row in reversed(runs):
        if await _digest(journal, row.run_id) == digest:
            return row
    return runs[0] if runs and of_any_input else None


async def _digest(journal: Journal, run_id: str) -> str | None:
    async for record in journal.read(run_id):
        match record.event:
            case RunStarted(input={"digest": str(digest)}):
                return digest
        break
    return None
