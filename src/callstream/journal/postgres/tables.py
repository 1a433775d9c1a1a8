"""What a writer asks PostgreSQL for and has written there: see ``Tables``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec

from callstream.calls import CallState
from callstream.journal.owned import Held, RunFacts
from callstream.journal.plan import Plan
from callstream.journal.postgres.link import LONG_SECONDS
from callstream.journal.rows import Source, json_text
from callstream.journal.writer import Stale

_NOTICE_RUNS = 500
"""Run numbers in one notice; PostgreSQL allows 8,000 bytes."""


class PostgresTables:
    """With a ``turn``, what is read may be old when it is written: then the turn is another, and all is refused.

    Without one, everything happens in a transaction that has locked what is written to.
    """

    def __init__(self, connection: Any, sql: Mapping[str, str], writer: str, channel: str, turn: int | None) -> None:
        self._connection = connection
        self._sql = sql
        self._writer = writer
        self._channel = channel
        self.turn = turn

    async def run_facts(self, run_ids: Sequence[str]) -> Iterable[RunFacts]:
        rows = await self._connection.fetch(self._sql["load_run"], run_ids)
        return [RunFacts(row[0], row[1]) if row[3] is None else RunFacts(*row) for row in rows]

    async def sources_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, Source, int]]:
        rows = await self._connection.fetch(self._sql["load_run_sources"], run_keys)
        return [(key, Source(*source), number) for key, *source, number in rows]

    async def calls_of(self, run_keys: Sequence[int]) -> Iterable[Held]:
        return map(_held, await self._connection.fetch(self._sql["load_run_calls"], run_keys))

    async def held_calls(self, call_ids: Sequence[str]) -> Iterable[Held]:
        return map(_held, await self._connection.fetch(self._sql["load_call"], call_ids))

    async def exclusive_runs(self, thread_ids: Sequence[str]) -> Mapping[str, str]:
        return dict(await self._connection.fetch(self._sql["busy_threads"], thread_ids))

    async def rows(self, run_key: int, first: int, last: int) -> Sequence[tuple[int, str]] | None:
        if await self._connection.fetchval(self._sql["is_compacted"], run_key):
            return None
        rows = await self._connection.fetch(self._sql["stored_rows"], run_key, first, last)
        return [tuple(row) for row in rows]

    async def events_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, int, str]]:
        rows = await self._connection.fetch(self._sql["events_of_run"], run_keys, timeout=LONG_SECONDS)
        return [tuple(row) for row in rows]

    async def orphans(self, limit: int) -> Iterable[RunFacts]:
        """First the dead lose their turns: what they had under way is done then, and what comes later is refused."""
        fenced = await self._connection.fetch(self._sql["fence_dead"], self._writer, limit)
        if not fenced:
            return []
        rows = await self._connection.fetch(self._sql["orphaned_runs"], [row[0] for row in fenced], limit)
        return [RunFacts(*row) for row in rows]

    async def write(self, plan: Plan) -> None:
        columns = zip(*plan.records, strict=True)
        notices = self._notices(plan)
        try:
            await self._connection.execute(
                self._sql["append"], self._writer, self.turn, *columns, _rest(plan), self._channel, notices
            )
        except (asyncpg.UniqueViolationError, asyncpg.ExclusionViolationError) as error:
            # Somebody else made that run or call a moment ago.
            raise Stale from error
        except asyncpg.PostgresError as error:
            if error.sqlstate == "CS001":
                raise Stale from error
            raise
        if self.turn is not None:
            self.turn += 1

    def _notices(self, plan: Plan) -> list[str]:
        if not self._channel:
            return []
        keys = [str(run.key) for run in plan.changed]
        return [",".join(keys[start : start + _NOTICE_RUNS]) for start in range(0, len(keys), _NOTICE_RUNS)]


def _held(row: Sequence[Any]) -> Held:
    return Held(row[0], row[1], row[2], CallState(row[3]), bool(row[4]))


def _rest(plan: Plan) -> str | None:
    """All that a batch of pieces has not, as one JSON argument."""
    rest = {
        "runs": [change for change in plan.runs.values() if change.is_new],
        "ends": [
            {**msgspec.structs.asdict(change), "last_seq": run.last_seq}
            for run, change in plan.runs.items()
            if change.outcome is not None
        ],
        "sources": plan.sources,
        "calls": [change for change in plan.calls.values() if change.old_state is None],
        "changes": [change for change in plan.calls.values() if change.old_state is not None],
    }
    return json_text(msgspec.to_builtins(rest)) if any(rest.values()) else None
