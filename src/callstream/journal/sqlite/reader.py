"""Reading a SQLite journal: connections of their own, on threads that wait for them, so that no event loop does."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any, TypeVar, cast

import msgspec

from callstream.calls import FINAL, Call
from callstream.errors import UsageError
from callstream.events import Record, in_order
from callstream.journal.follow import Folded, Page
from callstream.journal.rows import (
    RunRow,
    Stored,
    call_of,
    call_with_pieces,
    find_folded_range,
    merge_adjacent,
    record_of,
)
from callstream.journal.sql import queries
from callstream.journal.sqlite.file import failure, open_connection
from callstream.journal.store import CallFilter, Log, RunFilter

_T = TypeVar("_T")
_SQL = queries("sqlite")
_READERS = 4
_NOWHERE = (None, None, None)
_decode = msgspec.json.Decoder(list[Any]).decode
_BUSY_SECONDS = 5.0
_CACHE_KIBIBYTES = 64
"""Each reader's page cache. It is small because SQLite empties it whenever something has been written."""


def build_query(name: str, conditions: Mapping[str, Any], limit: int | None) -> tuple[str, dict[str, Any]]:
    """The query with those conditions in it, and its arguments."""
    where = " AND ".join(_SQL[condition] for condition in conditions or ["where_any"])
    values = {condition.removeprefix("where_"): value for condition, value in conditions.items()}
    return _SQL[name].replace("{where}", where), {**values, "limit": -1 if limit is None else limit}


class SqliteReader:
    """Reads in any event loop. Each reading thread has a connection of its own."""

    def __init__(self, path: str) -> None:
        self._where = f"the SQLite file {path!r}"
        self._path = path
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="callstream-read")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    def close(self) -> None:
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        return await self._in_thread(_page, run_id, after, limit, is_first)

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        return await self._in_thread(_read_whole, list(run_ids), merged)

    async def log(self, run_id: str) -> Log | None:
        return await self._in_thread(_log, run_id)

    async def call(self, call_id: str) -> Call | None:
        return await self._in_thread(_call, call_id)

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]:
        conditions = wanted.conditions()
        if wanted.states is not None:
            conditions["where_states"] = _json(conditions["where_states"])
            if FINAL.isdisjoint(wanted.states):
                conditions["where_open"] = True  # there is an index of these, which is found by its own words alone
        query, values = build_query("list_calls", conditions, limit)
        rows = await self._in_thread(_rows, query.replace("{way}", "DESC" if newest else "ASC"), values)
        return [call_of(row) for row in (reversed(rows) if newest else rows)]

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]:
        rows = await self._in_thread(_rows, *build_query("list_runs", wanted.conditions(), limit))
        return [RunRow(*row) for row in rows]

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        encoded = _json(list(call_ids))
        rows = await self._in_thread(_rows, _SQL["taken_call_ids"], {"call_ids": encoded})
        return {call_id for (call_id,) in rows}

    async def has_forgotten(self, mark: str) -> bool:
        return bool(await self._in_thread(_rows, _SQL["has_forgotten"], {"thread": mark}))

    async def stats(self) -> dict[str, Any]:
        (counts,) = await self._in_thread(_rows, _SQL["count_all"], {})
        ((writers, orphaned),) = await self._in_thread(_rows, _SQL["count_leases"], {})
        ((version, oldest_code),) = await self._in_thread(_rows, _SQL["read_version"], {})
        ((size,),) = await self._in_thread(_rows, _SQL["stored_bytes"], {})
        return {
            "schema_version": version,
            "oldest_code": oldest_code,
            **dict(zip(("runs", "active_runs", "calls", "records"), counts, strict=True)),
            "live_writers": writers,
            "orphaned_runs": orphaned,
            "stored_bytes": size,
        }

    async def _in_thread(self, work: Callable[..., _T], *args: Any) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work, *args)
        except RuntimeError as error:
            if "shutdown" in str(error):
                raise UsageError("the journal is closed") from error
            raise

    def _work(self, work: Callable[..., _T], *args: Any) -> _T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = open_connection(self._path, _BUSY_SECONDS, cache_kibibytes=_CACHE_KIBIBYTES)
            self._local.connection = connection
            self._connections.append(connection)
        with failure(self._where):
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")  # one snapshot for all that is read
            try:
                return work(connection, *args)
            finally:
                connection.execute("ROLLBACK")


def _page(connection: sqlite3.Connection, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
    run = connection.execute
    row = run(_SQL["read_run"], {"run_id": run_id}).fetchone()
    if row is None:
        return None
    key, started_at, ended, last_seq, compacted = row
    if compacted and is_first and after:
        inside = find_folded_range(run(_SQL["folded_ranges"], {"run_key": key}).fetchall(), after)
        if inside is not None:
            return Folded(*inside)
    query = _SQL["read_archive" if compacted else "read_log"]
    rows = run(query, {"run_key": key, "after": after, "limit": limit}).fetchall()
    records = [record_of(run_id, started_at, columns) for columns in rows]
    return Page(records, bool(ended) and (not records or records[-1].seq == last_seq))


def _read_whole(connection: sqlite3.Connection, run_ids: list[str], merged: bool) -> list[Record]:
    heads = _rows(connection, _SQL["read_run_heads"], {"run_ids": _json(run_ids)})
    keys = {"run_keys": _json([key for _, key, _ in heads])}
    sources = {row[:2]: row[2:] for row in _rows(connection, _SQL["read_sources"], keys)}
    call_ids = {row[:2]: row[2] for row in _rows(connection, _SQL["read_call_ids"], keys)}
    logs = dict(_rows(connection, _SQL["read_logs"], keys)) | dict(_rows(connection, _SQL["read_archives"], keys))
    found: dict[str, Sequence[Record]] = {}
    for run_id, key, started_at in heads:
        rows = sorted(_decode(logs.get(key, "[]")), key=itemgetter(0))
        records = [
            record_of(
                run_id,
                started_at,
                (seq, at_ms, kind, body, *sources.get((key, source), _NOWHERE), call_ids.get((key, call)), first),
            )
            for seq, at_ms, kind, body, source, call, _, _, first in (merge_adjacent(rows) if merged else rows)
        ]
        found[run_id] = in_order(records)
    return [record for run_id in run_ids for record in found.get(run_id, ())]


def _log(connection: sqlite3.Connection, run_id: str) -> Log | None:
    row = connection.execute(_SQL["read_run"], {"run_id": run_id}).fetchone()
    if row is None:
        return None
    key, _, ended, _, compacted = row
    if not ended or compacted:
        return Log(key, bool(ended), bool(compacted))
    rows = connection.execute(_SQL["log_of_run"], {"run_key": key})
    return Log(key, True, False, [Stored(*columns) for columns in rows])


def _call(connection: sqlite3.Connection, call_id: str) -> Call | None:
    row = connection.execute(_SQL["read_call"], {"call_id": call_id}).fetchone()
    if row is None:
        return None
    key, number, first, last = row[16:]
    parameters = {"run_key": key, "number": number, "first": first, "last": last}
    return call_with_pieces(call_of(row), connection.execute(_SQL["read_call_pieces"], parameters).fetchall())


def _rows(connection: sqlite3.Connection, query: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    return cast(list[tuple[Any, ...]], connection.execute(query, parameters).fetchall())


def _json(values: Sequence[Any]) -> str:
    return msgspec.json.encode(values).decode()
