"""What a connection to PostgreSQL is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec

from callstream.events import Record
from callstream.journal.plan import Plan
from callstream.journal.rows import json_text, merge_adjacent, record_of
from callstream.journal.sql import queries, schema
from callstream.journal.sql.session import Rows, Session
from callstream.journal.writer import Stale

_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
_LONG_SECONDS = 600.0
_LONG = frozenset(
    {
        *("log_of_run", "events_of_run", "due_for_pack", "whole_runs", "read_sources", "whole_calls", "whole_records"),
        *("delete_log", "delete_archive", "delete_sources", "delete_calls", "delete_run", "empty_calls"),
    }
)
"""What reads or deletes whole runs may take that long."""
_NOTICE_RUNS = 500
"""Run numbers in one notice; PostgreSQL allows 8,000 bytes."""


def queries_in(name: str) -> dict[str, str]:
    """The queries for the schema of that name."""
    return {query: _in_schema(text, name) for query, text in queries("postgres").items()}


def _in_schema(text: str, name: str) -> str:
    return text.replace("{schema}", f'"{name}"').replace("{name}", name)


@cache
def numbered(text: str) -> tuple[str, Sequence[str]]:
    """A query with numbers for the names of its arguments, as PostgreSQL wants them, and these names in order."""
    names = list(dict.fromkeys(_PARAMETER.findall(text)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text), names


class PostgresSession(Session):
    """See ``Session``.

    With a ``turn``, the writer's, what is read may be old when it is written: then the turn is another, and all is refused.
    Without one, everything happens in a transaction that has locked what is written to. ``channel``: where others are told
    what was written, if anywhere.
    """

    def __init__(
        self,
        connection: Any,
        sql: Mapping[str, str],
        name: str,
        channel: str,
        *,
        writer: str = "",
        turn: int | None = None,
    ) -> None:
        super().__init__(sql)
        self.connection = connection
        self._name = name
        self._channel = channel
        self._writer = writer
        self.turn = turn

    def snapshot(self) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = self.connection.transaction(
            isolation="repeatable_read", readonly=True
        )
        return transaction

    async def rows(self, query: str, **values: Any) -> Rows:
        return await self.fetch(self.sql[query], values, _seconds(query))

    async def run(self, query: str, **values: Any) -> int:
        statement, names = numbered(self.sql[query])
        status: str = await self.connection.execute(
            statement, *[values[name] for name in names], timeout=_seconds(query)
        )
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    async def fetch(self, text: str, values: Mapping[str, Any], seconds: float | None = None) -> Rows:
        statement, names = numbered(text)
        rows = await self.connection.fetch(statement, *[values[name] for name in names], timeout=seconds)
        return list(map(tuple, rows))

    async def run_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        await self.connection.executemany(self.sql[query], rows)

    async def upgrade(self, version: int) -> None:
        await self.connection.execute(_in_schema(schema("postgres", version), self._name))

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        found: list[Record] = []
        rows = await self.rows("read_runs", run_ids=run_ids)
        for (run_id, started_at), group in groupby(rows, key=itemgetter(0, 1)):
            columns: list[Any] = [row[3:] for row in group]
            found += [record_of(run_id, started_at, row) for row in (merge_adjacent(columns) if merged else columns)]
        return found

    async def write(self, plan: Plan) -> None:
        columns = zip(*plan.records, strict=True) if plan.records else [[]] * 7
        notices = self._notices(plan)
        try:
            await self.connection.execute(
                self.sql["append"], self._writer, self.turn, *columns, _rest(plan), self._channel, notices
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


def _seconds(query: str) -> float | None:
    return _LONG_SECONDS if query in _LONG else None


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
