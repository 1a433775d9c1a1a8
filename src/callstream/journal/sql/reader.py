"""Reading a journal in a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from callstream.calls import Call
from callstream.events import Record, RunEnded
from callstream.journal.follow import Folded, Heads, Page
from callstream.journal.rows import NOWHERE, RunRow, Source, Stored, call_of, find_folded_range, record_of
from callstream.journal.sql.session import Database, Rows, Session
from callstream.journal.store import CallFilter, CallLog, Head, RunFilter, RunRows
from callstream.journal.whole import RunSize, WholeRun, whole_runs


class RunHead(NamedTuple):
    """What never changes about a run."""

    key: int
    started_at: float


class SqlReader:
    """See ``StoreReader``.

    ``remembered``: heads of runs, so that a live follower needs one query per page. Only for a database that never reuses
    the key of a run.
    """

    def __init__(self, database: Database, remembered: Heads[RunHead] | None = None) -> None:
        self._database = database
        self.remembered = remembered

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        return await self._database.read(self._page, run_id, after, limit, is_first)

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        return await self._database.read(lambda session: session.read_whole(run_ids, merged))

    async def heads(self, run_ids: Sequence[str]) -> Sequence[Head]:
        return await self._database.read(heads_of, run_ids)

    async def log(self, run_id: str) -> RunRows | None:
        return await self._database.read(_log, run_id)

    async def call_log(self, call_id: str) -> CallLog | None:
        return await self._database.read(_call_log, call_id)

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        return await self._database.read(_whole_runs, run_keys)

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]:
        rows = await self._listed("list_calls", wanted, limit, newest=newest)
        return [call_of(row) for row in (reversed(rows) if newest else rows)]

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]:
        return [RunRow(*row) for row in await self._listed("list_runs", wanted, limit)]

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        return {call_id for (call_id,) in await self.rows("taken_call_ids", call_ids=call_ids)}

    async def has_forgotten(self, mark: str) -> bool:
        return bool(await self.rows("has_forgotten", thread=mark))

    async def writers(self) -> set[str]:
        return {writer for (writer,) in await self.rows("read_writers")}

    async def run_sizes(self, after: int, last: int | None, limit: int | None) -> Sequence[RunSize]:
        rows = await self.rows("run_sizes", after=after, last=last, limit=limit)
        return [
            RunSize(key, run_id, bool(active), last, bool(compacted)) for key, run_id, active, last, compacted in rows
        ]

    async def forgotten(self, after: str, limit: int) -> Sequence[str]:
        return [mark for (mark,) in await self.rows("list_forgotten", after=after, limit=limit)]

    async def left_open(self) -> Sequence[str]:
        return [run_id for (run_id,) in await self.rows("left_open")]

    async def stats(self) -> dict[str, Any]:
        return await self._database.read(_stats)

    async def rows(self, query: str, **values: Any) -> Rows:
        """The answer to one query."""
        return await self._database.read(lambda session: session.rows(query, **values))

    async def _listed(self, query: str, wanted: RunFilter, limit: int | None, *, newest: bool = False) -> Rows:
        return await self._database.read(lambda session: session.listed(query, wanted, limit, newest=newest))

    async def _page(
        self, session: Session, run_id: str, after: int, limit: int, is_first: bool
    ) -> Page | Folded | None:
        remembered = self.remembered
        head = remembered.get(run_id) if remembered is not None else None
        while True:
            if head is not None:
                rows = await session.rows("read_log", run_key=head.key, after=after, limit=limit)
                if rows:
                    records = [record_of(run_id, head.started_at, row) for row in rows]
                    return Page(records, isinstance(records[-1].event, RunEnded))
            row = await session.row("read_run", run_id=run_id)
            if row is None:
                if remembered is not None:
                    remembered.forget(run_id)
                return None
            key, started_at, ended, last_seq, compacted = row
            if compacted:
                return await _folded_page(session, run_id, row, after, limit, is_first=is_first)
            known = head is not None and head.key == key
            head = RunHead(key, started_at)
            if remembered is not None:
                # Before the log is read, so that a notice that comes after it finds its run.
                remembered.remember(run_id, head)
            if known and last_seq <= after:
                return Page([], bool(ended))


async def _stats(session: Session) -> dict[str, Any]:
    [counts] = await session.rows("count_all")
    [(writers,)] = await session.rows("count_leases")
    [(version, oldest_code)] = await session.rows("read_version")
    [(size,)] = await session.rows("stored_bytes")
    return {
        "schema_version": version,
        "oldest_code": oldest_code,
        **dict(zip(("runs", "active_runs", "calls", "records"), counts, strict=True)),
        "live_writers": writers,
        "orphaned_runs": len(await session.rows("left_open")),
        "stored_bytes": size,
    }


async def _folded_page(
    session: Session, run_id: str, run: Sequence[Any], after: int, limit: int, *, is_first: bool
) -> Page | Folded | None:
    key, started_at, _, last_seq, _ = run
    if is_first and after:
        inside = find_folded_range(await session.rows("folded_ranges", run_key=key), after)
        if inside is not None:
            return Folded(*inside)
    rows = await session.rows("read_archive", run_key=key, after=after, limit=limit)
    if not rows and after < last_seq:
        return None  # it was erased meanwhile, or is in a pack
    records = [record_of(run_id, started_at, row) for row in rows]
    return Page(records, not records or records[-1].seq == last_seq, compacted=True)


async def heads_of(session: Session, run_ids: Sequence[str]) -> list[Head]:
    heads = {
        key: Head(run_id, key, started_at, bool(compacted), writer, {0: NOWHERE}, {})
        for run_id, key, started_at, compacted, writer in await session.rows("read_run_heads", run_ids=run_ids)
    }
    for key, number, *source in await session.rows("read_sources", run_keys=list(heads)):
        heads[key].sources[number] = Source(*source)
    for key, number, call_id in await session.rows("read_call_ids", run_keys=list(heads)):
        heads[key].call_ids[number] = call_id
    return list(heads.values())


async def _log(session: Session, run_id: str) -> RunRows | None:
    row = await session.row("read_run", run_id=run_id)
    if row is None:
        return None
    key, _, ended, _, compacted = row
    if not ended or compacted:
        return RunRows(key, bool(ended), bool(compacted))
    return RunRows(key, True, False, [Stored(*columns) for columns in await session.rows("log_of_run", run_key=key)])


async def _call_log(session: Session, call_id: str) -> CallLog | None:
    row = await session.row("read_call", call_id=call_id)
    if row is None:
        return None
    key, number, first, last = row[16:]
    pieces = await session.rows("read_call_pieces", run_key=key, number=number, first=first, last=last)
    return CallLog(call_of(row), number, first, [(seq, kind, body) for seq, kind, body in pieces])


async def _whole_runs(session: Session, run_keys: Sequence[int]) -> list[WholeRun]:
    tables = ("whole_runs", "read_sources", "whole_calls", "whole_records")
    async with session.snapshot():
        return whole_runs(*[await session.rows(table, run_keys=run_keys) for table in tables])
