"""Runs as the requests that began them: what a run keeps of its request (``run_input``) tells whose it is.

Its ``digest`` tells a request that is sent again, by a client whose connection broke, or by a proxy that does it on its own.
Its ``app`` tells which app it is of: several may share a journal, and have threads of one id. A run that names none, of a
program or of an earlier version, is of every app.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from callstream.events import RunStarted
from callstream.journal import Journal, RunRow, history

_LOOKED_AT: Final = 50
"""Runs of the thread, the newest first, that may have got the requested id with a number."""
_SHORT: Final = 500
"""Runs of so many records are read many at once; of a longer one, its beginning."""
_REMEMBERED: Final = 10_000
_CLOCK_SECONDS: Final = 0.001
"""To which the journal's times are rounded."""


class RunRequest(msgspec.Struct, frozen=True):
    """What identifies a request for a run, so that it is recognized when it is sent again.

    The run keeps the ``digest`` of its input (``run_input["digest"]``), so every process finds it, after a restart too.
    ``owner``: whose run it has to be; ``app``: of which app.
    """

    thread_id: str
    run_id: str
    digest: str
    owner: str | None = None
    app: str | None = None

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
        newest = None
        for row in reversed(runs):
            kept = await _input_of(journal, row.run_id)
            if self.app is not None and _app_in(kept) not in (None, self.app):
                continue
            if isinstance(kept, dict) and kept.get("digest") == self.digest:
                return row
            newest = row
        return newest if of_any_input else None


class AppRuns:
    """Tells the runs of an app. The apps of so many runs are remembered, and not read again."""

    def __init__(self) -> None:
        self._apps: dict[tuple[str, float], str | None] = {}  # an id may be used again when its run was erased
        self._begun: dict[str, tuple[str, float, float]] = {}

    def add(self, app: str, run_id: str, after: float, before: float) -> None:
        """A run of the app has begun in this process between two moments, and need not be read."""
        if len(self._begun) >= _REMEMBERED:
            self._begun.clear()
        self._begun[run_id] = (app, after, before)

    def _begun_here(self, row: RunRow) -> bool:
        _, after, before = self._begun.get(row.run_id, ("", 0.0, 0.0))
        return after - _CLOCK_SECONDS <= row.started_at <= before + _CLOCK_SECONDS

    async def of(self, app: str, rows: Sequence[RunRow], journal: Journal) -> list[RunRow]:
        """Those of the rows that are the app's, in their order."""
        apps = {key: self._apps[key] for key in map(_key, rows) if key in self._apps}
        apps |= {_key(row): self._begun[row.run_id][0] for row in rows if self._begun_here(row)}
        read = await _read_apps(journal, [row for row in rows if _key(row) not in apps])
        if len(self._apps) + len(read) > _REMEMBERED:
            self._apps.clear()
        self._apps |= read
        apps |= read
        return [row for row in rows if apps[_key(row)] in (None, app)]


async def _read_apps(journal: Journal, rows: Sequence[RunRow]) -> dict[tuple[str, float], str | None]:
    inputs: dict[str, Any] = {}
    short = []
    for row in rows:
        if row.outcome is not None and row.last_seq <= _SHORT:
            short.append(row)
        else:
            inputs[row.run_id] = await _input_of(journal, row.run_id)
    async for records in history(journal, short):
        for record in records:
            if isinstance(record.event, RunStarted):
                inputs[record.run_id] = record.event.input
    return {_key(row): _app_in(inputs.get(row.run_id)) for row in rows}


async def _input_of(journal: Journal, run_id: str) -> Any:
    """What a run was started with."""
    async for record in journal.read(run_id):
        return record.event.input if isinstance(record.event, RunStarted) else None
    return None


def _key(row: RunRow) -> tuple[str, float]:
    return row.run_id, row.started_at


def _app_in(run_input: Any) -> str | None:
    match run_input:
        case {"app": str(app)}:
            return app
        case _:
            return None
