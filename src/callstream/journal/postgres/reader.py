"""Reading a PostgreSQL journal, on the journal's loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from callstream.calls import Call
from callstream.events import Record, RunEnded
from callstream.journal.follow import Folded, Heads, Page
from callstream.journal.postgres.link import LONG_SECONDS, Link
from callstream.journal.rows import (
    NOWHERE,
    RunRow,
    Source,
    Stored,
    call_of,
    call_with_pieces,
    find_folded_range,
    merge_adjacent,
    record_of,
)
from callstream.journal.store import CallFilter, CallLog, Head, RunFilter, RunRows
from callstream.journal.whole import RunSize, WholeRun, whole_runs

_MAX_KEY = 2**31 - 1


class _Head(NamedTuple):
    """What never changes of a run."""

    key: int
    started_at: float


class PostgresReader:
    """Heads of runs are remembered, so that a live follower asks one question a page."""

    def __init__(self, link: Link, sql: Mapping[str, str]) -> None:
        self._link = link
        self._sql = sql
        self.remembered: Heads[_Head] = Heads()

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        async with self._link.reading() as connection:
            head = self.remembered.get(run_id)
            while True:
                if head is not None:
                    rows = await connection.fetch(self._sql["read_log"], head.key, after, limit)
                    if rows:
                        records = [record_of(run_id, head.started_at, row) for row in rows]
                        return Page(records, isinstance(records[-1].event, RunEnded))
                row = await connection.fetchrow(self._sql["read_run"], run_id)
                if row is None:
                    self.remembered.forget(run_id)
                    return None
                key, started_at, ended, last_seq, compacted = row
                if compacted:
                    return await self._archived(connection, run_id, row, after, limit, is_first=is_first)
                known = head is not None and head.key == key
                # The head is remembered before the log is read: a notice that comes after this finds its run.
                head = self.remembered.remember(run_id, _Head(key, started_at))
                if known and last_seq <= after:
                    return Page([], bool(ended))

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        async with self._link.reading() as connection:
            rows = await connection.fetch(self._sql["read_runs"], list(run_ids))
        found: list[Record] = []
        for (run_id, started_at), group in groupby(rows, key=itemgetter(0, 1)):
            columns = [tuple(row)[3:] for row in group]
            found += [record_of(run_id, started_at, row) for row in (merge_adjacent(columns) if merged else columns)]
        return found

    async def call(self, call_id: str) -> Call | None:
        found = await self.call_log(call_id)
        return None if found is None else call_with_pieces(found.call, found.rows)

    async def call_log(self, call_id: str) -> CallLog | None:
        async with self._link.reading() as connection:
            row = await connection.fetchrow(self._sql["read_call"], call_id)
            if row is None:
                return None
            key, number, first, last = row[16:]
            pieces = await connection.fetch(self._sql["read_call_pieces"], key, number, first, last)
        return CallLog(call_of(row), key, number, first, [tuple(piece) for piece in pieces])

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]:
        query, values = self.build_query("list_calls", wanted.conditions(), limit)
        async with self._link.reading() as connection:
            rows = await connection.fetch(query.replace("{way}", "DESC" if newest else "ASC"), *values)
        return [call_of(row) for row in (reversed(rows) if newest else rows)]

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]:
        query, values = self.build_query("list_runs", wanted.conditions(), limit)
        async with self._link.reading() as connection:
            return [RunRow(*row) for row in await connection.fetch(query, *values)]

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        async with self._link.reading() as connection:
            return {row[0] for row in await connection.fetch(self._sql["taken_call_ids"], list(call_ids))}

    async def has_forgotten(self, mark: str) -> bool:
        async with self._link.reading() as connection:
            return await connection.fetchval(self._sql["has_forgotten"], mark) is not None

    async def heads(self, run_ids: Sequence[str]) -> Sequence[Head]:
        async with self._link.reading() as connection:
            rows = await connection.fetch(self._sql["read_run_heads"], list(run_ids))
            heads = {
                key: Head(run_id, key, started_at, compacted, writer, {0: NOWHERE}, {})
                for run_id, key, started_at, compacted, writer in rows
            }
            for key, number, *source in await connection.fetch(self._sql["read_sources"], list(heads)):
                heads[key].sources[number] = Source(*source)
            for key, number, call_id in await connection.fetch(self._sql["read_call_ids"], list(heads)):
                heads[key].call_ids[number] = call_id
        return list(heads.values())

    async def log(self, run_id: str) -> RunRows | None:
        async with self._link.reading() as connection:
            row = await connection.fetchrow(self._sql["read_run"], run_id)
            if row is None:
                return None
            key, _, ended, _, compacted = row
            if not ended or compacted:
                return RunRows(key, ended, compacted)
            rows = await connection.fetch(self._sql["log_of_run"], key, timeout=LONG_SECONDS)
        return RunRows(key, True, False, [Stored(*columns) for columns in rows])

    async def writers(self) -> set[str]:
        async with self._link.reading() as connection:
            return {row[0] for row in await connection.fetch(self._sql["read_writers"])}

    async def run_sizes(self, after: int, last: int | None, limit: int | None) -> Sequence[RunSize]:
        async with self._link.reading() as connection:
            rows = await connection.fetch(self._sql["run_sizes"], after, _MAX_KEY if last is None else last, limit)
        return [RunSize(*row) for row in rows]

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        tables = ("whole_runs", "read_sources", "whole_calls", "whole_records")
        async with (
            self._link.reading() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            found = [await connection.fetch(self._sql[table], run_keys, timeout=LONG_SECONDS) for table in tables]
        return whole_runs(*found)

    async def forgotten(self, after: str, limit: int) -> Sequence[str]:
        async with self._link.reading() as connection:
            return [row[0] for row in await connection.fetch(self._sql["list_forgotten"], after, limit)]

    async def stats(self) -> dict[str, Any]:
        async with self._link.reading() as connection:
            counts = await connection.fetchrow(self._sql["count_all"])
            writers, orphaned = await connection.fetchrow(self._sql["count_leases"])
            version, oldest_code = await connection.fetchrow(self._sql["read_version"])
            size = await connection.fetchval(self._sql["stored_bytes"])
        return {
            "schema_version": version,
            "oldest_code": oldest_code,
            **dict(zip(("runs", "active_runs", "calls", "records"), counts, strict=True)),
            "live_writers": writers,
            "orphaned_runs": orphaned,
            "stored_bytes": size,
        }

    def build_query(self, name: str, conditions: Mapping[str, Any], limit: int | None) -> tuple[str, list[Any]]:
        """The query with those conditions in it, and its arguments; a condition whose value is True takes none."""
        parts: list[str] = []
        values: list[Any] = []
        for condition, value in conditions.items():
            if value is not True:
                values.append(value)
            parts.append(self._sql[condition].replace("{value}", f"${len(values)}"))
        values.append(limit)
        query = self._sql[name].replace("{where}", " AND ".join(parts or [self._sql["where_any"]]))
        return query.replace("{limit}", f"${len(values)}"), values

    async def _archived(
        self, connection: Any, run_id: str, run: Sequence[Any], after: int, limit: int, *, is_first: bool
    ) -> Page | Folded | None:
        key, started_at, _, last_seq, _ = run
        if is_first and after:
            inside = find_folded_range(await connection.fetch(self._sql["folded_ranges"], key), after)
            if inside is not None:
                return Folded(*inside)
        rows = await connection.fetch(self._sql["read_archive"], key, after, limit)
        if not rows and after < last_seq:
            return None  # it was erased meanwhile
        records = [record_of(run_id, started_at, row) for row in rows]
        return Page(records, not records or records[-1].seq == last_seq, compacted=True)
