"""A SQLite file as it is read, by connections that threads wait for, so that no event loop does."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec

from callstream.calls import FINAL, Call
from callstream.errors import JournalError, UsageError
from callstream.events import Record, in_order
from callstream.journal.follow import Folded, Page
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
from callstream.journal.sql import queries
from callstream.journal.store import (
    CallFilter,
    CallLog,
    Head,
    RunFilter,
    RunRows,
    StoreAway,
    Unstorable,
)
from callstream.journal.whole import RunSize, WholeRun, whole_runs

_T = TypeVar("_T")

_SQL = queries("sqlite")
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNSTORABLE = (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)


def open_connection(
    path: str, busy_seconds: float, *, cache_kibibytes: int, create: bool = False
) -> sqlite3.Connection:
    with failure(f"the SQLite file {path!r}"):
        name = f"file:{quote(path)}?mode={'rwc' if create else 'rw'}"
        # The connection is used by one thread at a time, but not always closed by the thread that opened it.
        connection = sqlite3.connect(
            name, timeout=busy_seconds, isolation_level=None, check_same_thread=False, uri=True
        )
        connection.execute(f"PRAGMA cache_size = -{cache_kibibytes}")
        return connection


@contextmanager
def failure(where: str) -> Iterator[None]:
    """SQLite's errors as the journal's: StoreAway for a lock that will pass, JournalError for the rest."""
    try:
        yield
    except FAILURES as error:
        raise failed(where, error) from error


FAILURES = (sqlite3.Error, UnicodeEncodeError, OverflowError)


def failed(where: str, error: Exception) -> JournalError:
    if isinstance(error, sqlite3.Error):
        if is_passing(error):
            return StoreAway(f"{where} is locked by another process: {error}")
        if _code(error) not in _UNSTORABLE:
            return JournalError(f"{where} could not be used: {error}")
    return Unstorable(f"{where} cannot hold such a value: {error}")


def is_passing(error: sqlite3.Error) -> bool:
    return _code(error) in _PASSING


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


_READERS = 4
_NOWHERE = (None, None, None)
_decode = msgspec.json.Decoder(list[Any]).decode
_BUSY_SECONDS = 5.0
_MAX_KEY = 2**63 - 1
_READER_KIBIBYTES = 64
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

    async def heads(self, run_ids: Sequence[str]) -> Sequence[Head]:
        return await self._in_thread(_heads, list(run_ids))

    async def writers(self) -> set[str]:
        return await self._in_thread(_writers)

    async def log(self, run_id: str) -> RunRows | None:
        return await self._in_thread(_log, run_id)

    async def call(self, call_id: str) -> Call | None:
        return await self._in_thread(_call, call_id)

    async def call_log(self, call_id: str) -> CallLog | None:
        return await self._in_thread(_call_log, call_id)

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]:
        conditions = wanted.conditions()
        if wanted.states is not None:
            conditions["where_states"] = as_json(conditions["where_states"])
            if FINAL.isdisjoint(wanted.states):
                conditions["where_open"] = True  # there is an index of these, which is found by its own words alone
        query, values = build_query("list_calls", conditions, limit)
        rows = await self._in_thread(_rows, query.replace("{way}", "DESC" if newest else "ASC"), values)
        return [call_of(row) for row in (reversed(rows) if newest else rows)]

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]:
        rows = await self._in_thread(_rows, *build_query("list_runs", wanted.conditions(), limit))
        return [RunRow(*row) for row in rows]

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        encoded = as_json(list(call_ids))
        rows = await self._in_thread(_rows, _SQL["taken_call_ids"], {"call_ids": encoded})
        return {call_id for (call_id,) in rows}

    async def has_forgotten(self, mark: str) -> bool:
        return bool(await self._in_thread(_rows, _SQL["has_forgotten"], {"thread": mark}))

    async def run_sizes(self, after: int, last: int | None, limit: int | None) -> Sequence[RunSize]:
        values = {"after": after, "last": _MAX_KEY if last is None else last, "limit": -1 if limit is None else limit}
        rows = await self._in_thread(_rows, _SQL["run_sizes"], values)
        return [
            RunSize(key, run_id, bool(active), last, bool(compacted)) for key, run_id, active, last, compacted in rows
        ]

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        return await self._in_thread(_whole_runs, list(run_keys))

    async def forgotten(self, after: str, limit: int) -> Sequence[str]:
        rows = await self._in_thread(_rows, _SQL["list_forgotten"], {"after": after, "limit": limit})
        return [mark for (mark,) in rows]

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

    async def select(self, name: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return await self._in_thread(_rows, _SQL[name], values)

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
            connection = open_connection(self._path, _BUSY_SECONDS, cache_kibibytes=_READER_KIBIBYTES)
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
    return Page(records, bool(ended) and (not records or records[-1].seq == last_seq), bool(compacted))


def _read_whole(connection: sqlite3.Connection, run_ids: list[str], merged: bool) -> list[Record]:
    heads = _rows(connection, _SQL["read_run_heads"], {"run_ids": as_json(run_ids)})
    keys = {"run_keys": as_json([key for _, key, *_ in heads])}
    sources = {row[:2]: row[2:] for row in _rows(connection, _SQL["read_sources"], keys)}
    call_ids = {row[:2]: row[2] for row in _rows(connection, _SQL["read_call_ids"], keys)}
    logs = dict(_rows(connection, _SQL["read_logs"], keys)) | dict(_rows(connection, _SQL["read_archives"], keys))
    found: dict[str, Sequence[Record]] = {}
    for run_id, key, started_at, *_ in heads:
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


def _heads(connection: sqlite3.Connection, run_ids: list[str]) -> list[Head]:
    rows = _rows(connection, _SQL["read_run_heads"], {"run_ids": as_json(run_ids)})
    heads = {
        key: Head(run_id, key, at, bool(compacted), writer, {0: NOWHERE}, {})
        for run_id, key, at, compacted, writer in rows
    }
    keys = {"run_keys": as_json(list(heads))}
    for key, number, *source in _rows(connection, _SQL["read_sources"], keys):
        heads[key].sources[number] = Source(*source)
    for key, number, call_id in _rows(connection, _SQL["read_call_ids"], keys):
        heads[key].call_ids[number] = call_id
    return list(heads.values())


def _writers(connection: sqlite3.Connection) -> set[str]:
    return {writer for (writer,) in _rows(connection, _SQL["read_writers"], {})}


def _whole_runs(connection: sqlite3.Connection, run_keys: list[int]) -> list[WholeRun]:
    keys = {"run_keys": as_json(run_keys)}
    tables = ("whole_runs", "read_sources", "whole_calls", "whole_records")
    return whole_runs(*(connection.execute(_SQL[table], keys) for table in tables))


def _log(connection: sqlite3.Connection, run_id: str) -> RunRows | None:
    row = connection.execute(_SQL["read_run"], {"run_id": run_id}).fetchone()
    if row is None:
        return None
    key, _, ended, _, compacted = row
    if not ended or compacted:
        return RunRows(key, bool(ended), bool(compacted))
    rows = connection.execute(_SQL["log_of_run"], {"run_key": key})
    return RunRows(key, True, False, [Stored(*columns) for columns in rows])


def _call(connection: sqlite3.Connection, call_id: str) -> Call | None:
    found = _call_log(connection, call_id)
    return None if found is None else call_with_pieces(found.call, found.rows)


def _call_log(connection: sqlite3.Connection, call_id: str) -> CallLog | None:
    row = connection.execute(_SQL["read_call"], {"call_id": call_id}).fetchone()
    if row is None:
        return None
    key, number, first, last = row[16:]
    parameters = {"run_key": key, "number": number, "first": first, "last": last}
    rows = connection.execute(_SQL["read_call_pieces"], parameters).fetchall()
    return CallLog(call_of(row), key, number, first, rows)


def _rows(connection: sqlite3.Connection, query: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    return cast(list[tuple[Any, ...]], connection.execute(query, parameters).fetchall())


def as_json(values: Sequence[Any]) -> str:
    return msgspec.json.encode(values).decode()
