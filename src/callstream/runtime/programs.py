"""Runs that their own program goes on with: started again, it begins the run of the same id where the last process left it.

No other process looks for such a run. Its program does, under the name that the run's id gives it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from callstream.errors import RunIdTaken, RunOver, UsageError
from callstream.events import InputKept
from callstream.journal import Journal
from callstream.runtime.continuing import OnDivergence
from callstream.runtime.engine import OnRejected
from callstream.runtime.run import Run, RunEngine

_LOOK_SECONDS: Final = 0.5
_LEASES: Final = 2
"""How many leases a process may keep others waiting that does not renew its own: one may have begun just now."""


def check_journal(journal: Journal) -> None:
    """Raises UsageError if no other process could go on with what is in the journal."""
    if not journal.is_persistent:
        raise UsageError(
            "a run that continues needs a journal on disk, such as sqlite:///calls.db; this one is in memory"
        )
    if journal.redacts:
        raise UsageError(
            "a run that continues needs a journal that keeps what models say as it came; this one has a redact"
        )


def kept_for(run_id: str) -> InputKept:
    """What makes a run one that its own program goes on with."""
    return InputKept(_app(run_id), "")


def _app(run_id: str) -> str:
    return f"program of {run_id}"


async def take_up(
    engine: RunEngine,
    thread_id: str,
    run_id: str,
    principal: str | None,
    *,
    on_divergence: OnDivergence,
    rejected: OnRejected | None,
) -> Run | None:
    """Goes on with the run of that id; None if the journal has none.

    A process that does not work on it any more is waited for until its lease has run out. Raises RunOver if the run has
    ended, RunIdTaken if another process works on it, CannotGoOn if it cannot go on; then it has ended.
    """
    journal, clock = engine.journal, asyncio.get_running_loop().time
    until = clock() + journal.lease_ttl * _LEASES
    while True:
        rows = await journal.runs(run_id=run_id, limit=1)
        if not rows:
            return None
        (row,) = rows
        if (row.thread_id, row.principal) != (thread_id, principal):
            raise UsageError(f"run {run_id!r} is one of thread {row.thread_id!r}, or of another principal")
        if row.outcome is not None:
            why = f" ({row.reason})" if row.reason else ""
            raise RunOver(f"run {run_id!r} has {row.outcome}{why}; a new one needs another id")
        if await journal.adopt({_app(run_id)}, run_id):
            return await Run.go_on(engine, run_id, on_divergence=on_divergence, rejected=rejected)
        await journal.sweep()  # it may have been tried too often
        if clock() >= until:
            raise RunIdTaken(f"another process works on run {run_id!r}")
        await asyncio.sleep(_LOOK_SECONDS)
