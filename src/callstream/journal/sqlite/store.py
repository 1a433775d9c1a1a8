"""The journal in one SQLite file: the default, for one machine.

WAL: readers have connections of their own and never block the writer. Several processes may use one file; each takes
the write lock for one batch at a time.

What was acknowledged survives the end of the process, kill -9 included. With ``durability="process"`` (the default,
``synchronous=NORMAL``) a power cut or a crash of the operating system can take the last moments of acknowledged records
with it (those since the last checkpoint, about 4 MB of log), always from the end and never leaving the file unreadable.
With ``durability="power"`` (``synchronous=FULL``) every batch is flushed to the disk before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from callstream.calls import CallState
from callstream.errors import CallstreamError, JournalError, UsageError
from callstream.journal.follow import Followers
from callstream.journal.plan import Append, Held, Plan, RunFacts
from callstream.journal.rows import RecordColumns, Source, Stored
from callstream.journal.sql import queries, schema
from callstream.journal.sqlite.reader import (
    FAILURES,
    SqliteReader,
    as_json,
    build_query,
    failed,
    failure,
    is_passing,
    open_connection,
)
from callstream.journal.store import (
    SCHEMA_VERSION,
    RunFilter,
    StoreAway,
    check_archive,
    check_version,
    forgotten_mark,
    must_migrate,
)
from callstream.journal.whole import Due, PackFigures, PackPlace, PackState, WholeRun, folded_rows, plan_of
from callstream.journal.writer import Committed, Stale, Writer, process_lives

Durability: TypeAlias = Literal["process", "power"]

_SQL = queries("sqlite")
_VACUUM_PAGES = 4096


def sqlite_path(url: str) -> tuple[str, Mapping[str, str]]:
    """File and options of ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``…?durability=power``."""
    location, _, query = url.removeprefix("sqlite:").partition("?")
    options = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
    if not location.startswith("///") or not location.removeprefix("///"):
        raise UsageError(f"expected sqlite:///relative.db or sqlite:////absolute.db, got {url!r}")
    path = location.removeprefix("///")
    if path == ":memory:":
        raise UsageError(f"expected a file, got {url!r}; a journal in memory is memory:")
    if unknown := sorted(options.keys() - {"durability"}):
        raise UsageError(f"a SQLite journal knows the option durability, got {', '.join(unknown)} in {url!r}")
    return os.path.abspath(Path(path).expanduser()), options


# -- the file: how it is opened, prepared, locked, brought up to date, given back what it does not need ------------------


_CACHE_KIBIBYTES = 512
"""The writer's page cache: enough for the last page of each of a hundred active runs. SQLite's default is 2,000."""
_SPILL_PAGES = 1024
"""A transaction that changes more pages than the cache holds may keep this many in memory, so that none is written twice."""


class SqliteFile:
    """The connection that writes. Used on the journal's thread only."""

    def __init__(self, path: str, durability: Durability, busy_seconds: float) -> None:
        if durability not in ("process", "power"):
            raise UsageError(f"durability is process or power, got {durability!r}")
        self.where = f"the SQLite file {path!r}"
        self._path = path
        self._durability = durability
        self._busy_seconds = busy_seconds
        self._cache_kibibytes = _CACHE_KIBIBYTES

    def open(self) -> None:
        self.connection = open_connection(self._path, self._busy_seconds, cache_kibibytes=_CACHE_KIBIBYTES, create=True)
        try:
            with failure(self.where):
                self.connection.execute(f"PRAGMA cache_spill = {_SPILL_PAGES}")
                self._prepare()
                self._identity = _identity(self._path)
        except JournalError:
            self.connection.close()
            raise

    def close(self) -> None:
        self.connection.close()

    def fit_cache(self, active_runs: int) -> None:
        """Makes the page cache as large as it is of use for that many runs (``bench.journal``, 1,000 runs)."""
        wanted = max(_CACHE_KIBIBYTES, (2 * active_runs) // 256 * 256)
        if wanted != self._cache_kibibytes:
            self._cache_kibibytes = wanted
            with failure(self.where):
                self.connection.execute(f"PRAGMA cache_size = -{wanted}")

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Gives the connection's ``execute``. No other connection writes meanwhile; whatever goes wrong, nothing is kept."""
        connection = self.connection
        if _identity(self._path) != self._identity:
            raise JournalError(
                f"{self.where} was deleted, moved or replaced while it was open: what is written now would be lost; "
                "open the journal anew"
            )
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection.execute
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except FAILURES as error:
            raise failed(self.where, error) from error

    @contextmanager
    def durable_transaction(self) -> Iterator[Any]:
        """One that is on the disk when it is done, with all that came before it, whatever the durability of others."""
        with failure(self.where):
            self.connection.execute("PRAGMA synchronous = FULL")
        try:
            with self.transaction() as run:
                yield run
        finally:
            with failure(self.where):
                self._set_durability()

    def _set_durability(self) -> None:
        self.connection.execute(f"PRAGMA synchronous = {'FULL' if self._durability == 'power' else 'NORMAL'}")

    def check_schema(self) -> None:
        """Refuses a schema that this code cannot use."""
        with failure(self.where):
            version = self._usable_version()
        if version < SCHEMA_VERSION:
            raise must_migrate(version, self.where)

    def migrate(self) -> int:
        """Brings the schema up to date and returns its version. The lock is taken only if there is something to do."""
        with failure(self.where):
            version = self._usable_version()
        if version >= SCHEMA_VERSION:
            return version
        with self.transaction() as run:
            version = self._usable_version()
            for step in range(version + 1, SCHEMA_VERSION + 1):
                for statement in _statements(schema("sqlite", step)):
                    run(statement)
            if version < SCHEMA_VERSION:
                run(_SQL["clear_version"])
                run(_SQL["write_version"], {"version": SCHEMA_VERSION, "oldest_code": max(1, SCHEMA_VERSION - 1)})
        return max(version, SCHEMA_VERSION)

    def give_back(self) -> None:
        """Free pages go back to the disk, unless running runs will soon fill them again."""
        run = self.connection.execute
        with failure(self.where):
            free, pages = run("PRAGMA freelist_count").fetchone()[0], run("PRAGMA page_count").fetchone()[0]
            if free and (free > pages // 4 or not run(_SQL["count_active"]).fetchone()[0]):
                # executescript, because execute gives back one page and stops.
                self.connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
            run("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _usable_version(self) -> int:
        run = self.connection.execute
        (has_schema,) = run(_SQL["has_schema"]).fetchone()
        # An empty table of that name is another program's; making our own beside it will be refused.
        version, oldest = (run(_SQL["read_version"]).fetchone() if has_schema else None) or (0, 0)
        check_version(version, oldest, self.where)
        return int(version)

    def _prepare(self) -> None:
        run = self.connection.execute
        deadline = time.monotonic() + self._busy_seconds
        mode = None
        while mode is None:
            try:
                run("PRAGMA auto_vacuum = INCREMENTAL")  # counts only while the file is empty
                (mode,) = run("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                # Changing the mode does not wait for a lock by itself.
                if not is_passing(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise JournalError(
                f"{self.where} cannot be used in WAL mode (it is in {mode!r}); it must be on a local disk"
            )
        self._set_durability()
        run("PRAGMA temp_store = MEMORY")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one, because ``executescript`` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has that name now; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


PAGES = 1000
"""After so many pages the log is brought in: 4 MB."""
MOST_PAGES = 4 * PAGES
"""After so many SQLite does it by itself."""
_PASSES = 2
"""The first takes milliseconds and the second what came in these, so that hardly anything is left."""
_BRING_IN = "PRAGMA wal_checkpoint(PASSIVE)"
_BUSY_SECONDS = 5.0
_SMALL_CACHE_KIBIBYTES = 64


class Checkpoints:
    """What commits have put into SQLite's log comes into the file itself, most of it on a thread of its own.

    By itself SQLite does that within a commit, every thousand pages, and waits for the disk: some milliseconds where the
    disk is fast, and all that is written meanwhile waits with it. Here the writer goes on meanwhile, and then brings in
    the few pages that came: SQLite starts its log anew only when all of it is in the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="callstream-checkpoint")
        self._pages = 0
        self._under_way: Future[None] | None = None

    def open(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        writer.execute(f"PRAGMA wal_autocheckpoint = {MOST_PAGES}")

    def close(self) -> None:
        self._thread.shutdown()

    def count(self, pages: int) -> None:
        """About so many were committed."""
        self._pages += pages
        if self._under_way is not None:
            if self._under_way.done():
                self._under_way = None
                self._pages = 0
                with suppress(sqlite3.Error):
                    self._writer.execute(_BRING_IN).fetchall()
        elif self._pages >= PAGES:
            with suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
                self._under_way = self._thread.submit(self._bring_in)

    def _connect(self) -> sqlite3.Connection:
        return open_connection(self._path, _BUSY_SECONDS, cache_kibibytes=_SMALL_CACHE_KIBIBYTES)

    def _bring_in(self) -> None:
        """What cannot be brought in stays in the log, and nothing is lost."""
        with suppress(sqlite3.Error, JournalError):
            connection = self._connect()
            try:
                for _ in range(_PASSES):
                    connection.execute(_BRING_IN).fetchall()
            finally:
                connection.close()


class _Changed(Exception):
    """A run is not where it was."""


class SqlitePacks:
    """See ``Packs``. An object is deleted when the file says so for good: what it says of packs is on the disk before
    anything follows from it, in a file that is otherwise written without that, too.
    """

    def __init__(self, file: SqliteFile, reader: SqliteReader) -> None:
        self._file = file
        self._reader = reader

    async def due(self, age: float, limit: int) -> Sequence[Due]:
        return [Due(*row) for row in await self._reader.select("due_for_pack", {"age": age, "limit": limit})]

    async def begin(self, name: str) -> None:
        with self._file.durable_transaction() as run:
            run(_SQL["begin_pack"], {"name": name})

    async def keep(self, name: str, places: Sequence[PackPlace], size: int, instead_of: str | None) -> bool:
        with failure(self._file.where):
            self._file.connection.execute(
                "PRAGMA secure_delete = ON"
            )  # it may be forgotten when it is not here any more
        try:
            with self._file.durable_transaction() as run:
                row = run(_SQL["keep_pack"], {"name": name, "runs": len(places), "bytes": size}).fetchone()
                if row is None:
                    return False
                for place in places:
                    where = {**place._asdict(), "pack": row[0], "instead_of": instead_of}
                    if run(_SQL["pack_runs"], where).rowcount != 1:
                        raise _Changed
                    if instead_of is None:
                        for query in ("delete_archive", "delete_sources", "empty_calls"):
                            run(_SQL[query], {"run_key": place.run_key})
                if instead_of is not None and run(_SQL["give_up_pack"], {"name": instead_of}).rowcount != 1:
                    raise _Changed
        except _Changed:
            return False
        self._file.give_back()
        return True

    async def give_up(self, name: str) -> None:
        with self._file.durable_transaction() as run:
            run(_SQL["give_up_pack"], {"name": name})

    async def give_up_stale(self, age: float) -> None:
        with self._file.durable_transaction() as run:
            run(_SQL["give_up_stale"], {"age": age})

    async def drop(self, name: str) -> None:
        with self._file.transaction() as run:
            run(_SQL["drop_pack"], {"name": name})

    async def listed(self, state: PackState) -> Sequence[str]:
        return [name for (name,) in await self._reader.select("list_packs", {"state": state})]

    async def newest(self) -> str | None:
        return next((name for (name,) in await self._reader.select("newest_pack", {})), None)

    async def in_pack(self, name: str) -> Sequence[PackPlace]:
        return [PackPlace(*row) for row in await self._reader.select("runs_in_pack", {"name": name})]

    async def places(self, run_ids: Sequence[str]) -> Sequence[PackPlace]:
        rows = await self._reader.select("places_of_runs", {"run_ids": as_json(list(run_ids))})
        return [PackPlace(*row) for row in rows]

    async def figures(self) -> PackFigures:
        [row] = await self._reader.select("pack_figures", {})
        return PackFigures(*row)


POLL_SECONDS = 0.02
"""How often commits of other processes are looked for, while a run is followed and they come."""
QUIET_POLL_SECONDS = 0.2
"""How often, when none have come for a while: looking is most of what an idle follower costs."""


def _of_many(statement: str, count: int) -> str:
    """The INSERT of one row as an INSERT of that many."""
    head, values, row = statement.partition("VALUES")
    return head + values + ",".join([row] * count)


# At most 999 parameters a statement, which older versions of SQLite hold to.
_INSERT_RECORDS = {size: _of_many(_SQL["insert_record"], size) for size in (128, 64, 32, *range(16, 0, -1))}


class SqliteStore:
    """See ``Store``. What is done on the journal's thread blocks it: that is what the thread is for."""

    is_persistent = True
    reads_anywhere = True
    blocks = True

    def __init__(
        self, path: str, *, durability: Durability, busy_seconds: float, lease_ttl: float, migrate: bool
    ) -> None:
        self.where = f"the SQLite file {path!r}"
        self.reader = SqliteReader(path)
        self._file = SqliteFile(path, durability, busy_seconds)
        self._checkpoints = Checkpoints(path)
        self.packs = SqlitePacks(self._file, self.reader)
        self._ttl = lease_ttl
        self._may_migrate = migrate
        self._version = -1
        self._doubtful: set[str] = set()

    async def open(self, writer: Writer, followers: Followers) -> None:
        self._writer = writer
        self._followers = followers
        self._file.open()
        try:
            with failure(self.where):
                self._checkpoints.open(self._file.connection)
            if self._may_migrate:
                self._file.migrate()
            else:
                self._file.check_schema()
            self._check_archive(writer)
            await self.renew()
        except CallstreamError:
            self._file.close()
            raise

    def _check_archive(self, writer: Writer) -> None:
        with failure(self.where):
            has_packs = self._file.connection.execute(_SQL["has_packs"]).fetchone() is not None
        check_archive(writer, self.where, has_packs=has_packs)

    async def migrate(self) -> int:
        return self._file.migrate()

    async def close(self) -> None:
        self.reader.close()
        self._checkpoints.close()
        try:
            with self._file.transaction() as run:
                run(_SQL["release_leases"], {"writer": self._writer.name})
        except JournalError:
            pass  # they run out by themselves
        self._file.close()

    # -- writing -------------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Append]) -> Committed:
        self._file.fit_cache(len(self._writer.memory.runs))
        for _ in range(3):
            try:
                with self._file.transaction() as run:
                    self._check(run, batch)
                    tables = SqliteTables(run, self._writer.name)
                    done = await self._writer.commit(tables, batch, time.time(), self._followers.runs())
                self._checkpoints.count(1 + len(batch))  # each run has a page of its own that it fills
                return done
            except Stale:
                self._writer.memory.clear()
            except BaseException:
                self._writer.memory.clear()  # it was planned, and is not what the file holds
                raise
        raise StoreAway(f"{self.where} changed under the writer's hands three times")

    def _check(self, run: Any, batch: Sequence[Append]) -> None:
        """Drops from memory what another process has changed.

        No other process can write now, and ``data_version`` says whether one has since it was last looked at; if not,
        all that is remembered is true, and nothing is read.
        """
        memory = self._writer.memory
        (version,) = run("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version, self._doubtful = version, set(memory.runs)
        if not self._doubtful:
            return
        asked = self._doubtful.intersection([append.run_id for append in batch])
        remembered = {run_id: memory.runs[run_id] for run_id in asked if run_id in memory.runs}
        keys = [owned.key for owned in remembered.values()]
        true = set(run(_SQL["check_runs"], {"run_keys": _json(keys)}).fetchall())
        for run_id, owned in remembered.items():
            # The id too: the number of an erased run is given again.
            if (run_id, owned.key, owned.writer, owned.epoch, owned.last_seq) not in true:
                memory.drop(run_id)
        self._doubtful -= asked

    # -- leases --------------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        with self._file.transaction() as run:
            run(_SQL["renew_writer"], {"writer": self._writer.name, "ttl": self._ttl})

    async def check(self) -> None:
        with self._file.transaction() as run:
            run(_SQL["write_check"], {"writer": self._writer.name})

    async def hold(self, name: str, seconds: float) -> bool:
        with self._file.transaction() as run:
            taken = run(_SQL["hold_lease"], {"name": name, "writer": self._writer.name, "ttl": seconds})
            held = bool(taken.rowcount == 1)
            if held:
                run(_SQL["drop_dead_leases"])
        return held

    # -- other processes -----------------------------------------------------------------------------------------------

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        with self._file.transaction() as run:
            return bool(run(_SQL["ask_to_stop"], {"run_id": run_id, "reason": reason}).rowcount)

    async def asked_to_stop(self) -> dict[str, str]:
        with failure(self.where):
            rows = self._file.connection.execute(_SQL["asked_to_stop"], {"writer": self._writer.name})
            return dict(rows.fetchall())

    async def watch(self) -> None:
        """Looks whether another process has committed. Followers of this process's own runs are pushed what it writes.

        ``data_version`` of the writing connection changes with every commit of any other connection, and costs a look
        into shared memory.
        """
        seen: dict[str, int] = {}
        version = None
        pause = POLL_SECONDS
        while True:
            await self._followers.any()
            await asyncio.sleep(pause)
            pause = min(pause * 1.1, QUIET_POLL_SECONDS)
            try:
                (now,) = self._file.connection.execute("PRAGMA data_version").fetchone()
                if now == version:
                    continue
                run_ids = list(self._followers.runs())
                parameters = {"run_ids": _json(run_ids), "writer": self._writer.name}
                found = dict(self._file.connection.execute(_SQL["followed_runs"], parameters).fetchall())
            except FAILURES:
                continue  # readers get the error
            version, pause = now, POLL_SECONDS
            self._followers.wake([run_id for run_id in run_ids if seen.get(run_id) != found.get(run_id)])
            seen = found

    # -- housekeeping --------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, patience: float) -> list[str]:
        with self._file.transaction() as run:
            return await self._writer.sweep(SqliteTables(run, self._writer.name), limit, time.time(), patience)

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        with failure(self.where):
            parameters = {"writer": self._writer.name, "limit": 1, "run_id": run_id, "after": 0}
            if self._file.connection.execute(_SQL["orphaned_runs"], parameters).fetchone() is None:
                return []  # without the lock
        with self._file.transaction() as run:
            # Leases are judged by the wall clock, which may be set: a process that has not given its own back is looked at.
            holders = {writer for (writer,) in run(_SQL["writers"]).fetchall()}
            return await self._writer.adopt(
                SqliteTables(run, self._writer.name),
                apps,
                limit,
                lambda writer: writer in holders and process_lives(writer),
                run_id=run_id,
            )

    async def release_gone(self, is_gone: Callable[[str], bool]) -> None:
        with failure(self.where):
            holders = self._file.connection.execute(_SQL["writers"]).fetchall()
        for (writer,) in holders:
            if writer != self._writer.name and is_gone(writer):
                with self._file.transaction() as run:
                    run(_SQL["release_leases"], {"writer": writer})

    async def put_folded(self, run_id: str, run_key: int, rows: Iterable[Stored]) -> bool:
        with self._file.transaction() as run:
            row = run(_SQL["read_run"], {"run_id": run_id}).fetchone()
            if row is None or row[0] != run_key or row[4]:
                return False
            self._put_archive(run, run_key, rows)
            run(_SQL["delete_log"], {"run_key": run_key})
        await self._writer.erase([run_key])
        self._file.give_back()
        return True

    async def settle(self, records: Sequence[RecordColumns]) -> None:
        with self._file.transaction() as run:
            await SqliteTables(run, self._writer.name).settle(records)

    async def own_due(self, age: float) -> list[str]:
        return []

    async def due(self, age: float) -> list[str]:
        with failure(self.where):
            rows = self._file.connection.execute(_SQL["compactable_runs"], {"age": age, "limit": 50}).fetchall()
        return [run_id for (run_id,) in rows]

    async def forget(self, wanted: RunFilter, limit: int, for_good: bool) -> list[str]:
        query, values = build_query("forgettable_runs", wanted.conditions(), limit)
        with failure(self.where):
            self._file.connection.execute("PRAGMA secure_delete = ON")  # erased text is overwritten, not only unlinked
        with self._file.transaction() as run:
            rows = run(query, values).fetchall()
            for key, _, thread_id, principal in rows:
                if for_good:
                    run(_SQL["insert_forgotten"], {"thread": forgotten_mark(thread_id, principal)})
                _delete(run, key)
        await self._writer.erase([key for key, *_ in rows])
        if rows:
            self._file.give_back()
        return [run_id for _, run_id, _, _ in rows]

    async def restore(self, runs: Sequence[WholeRun], gone: Collection[int]) -> None:
        keys = {*gone, *(run.key for run in runs)}
        with self._file.transaction() as run:
            for key in keys:
                _delete(run, key)
            await SqliteTables(run, self._writer.name).write(plan_of(runs))
            for key, rows in folded_rows(runs).items():
                self._put_archive(run, key, rows)
        await self._writer.erase(keys)

    def _put_archive(self, run: Any, run_key: int, rows: Iterable[Stored]) -> None:
        columns = [(run_key, r.seq, r.at_ms, r.source, r.call, r.kind, r.body, r.first_seq) for r in rows]
        self._file.connection.executemany(_SQL["insert_archive"], columns)
        run(_SQL["mark_compacted"], {"run_key": run_key})

    async def keep_forgotten(self, marks: Sequence[str]) -> None:
        with self._file.transaction() as run:
            for mark in marks:
                run(_SQL["insert_forgotten"], {"thread": mark})


def _delete(run: Any, run_key: int) -> None:
    run(_SQL["soil_packs"], {"run_key": run_key})
    for table in ("log", "archive", "sources", "calls", "run"):
        run(_SQL[f"delete_{table}"], {"run_key": run_key})


class SqliteTables:
    """See ``Tables``: a transaction of which ``run`` is the ``execute``. Nothing here waits."""

    def __init__(self, run: Any, writer: str) -> None:
        self._run = run
        self._writer = writer

    async def run_facts(self, run_ids: Sequence[str]) -> Iterable[RunFacts]:
        found = []
        next_key = 0
        for run_id in run_ids:
            row = self._run(_SQL["load_run"], {"run_id": run_id}).fetchone()
            if row is None:
                next_key = next_key + 1 if next_key else self._run(_SQL["next_run_key"]).fetchone()[0]
                found.append(RunFacts(run_id, next_key))
            else:
                found.append(_facts(row))
        return found

    async def sources_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, Source, int]]:
        rows = self._run(_SQL["load_run_sources"], {"run_keys": _json(run_keys)}).fetchall()
        return [(key, Source(*source), number) for key, *source, number in rows]

    async def calls_of(self, run_keys: Sequence[int]) -> Iterable[Held]:
        return map(_held, self._run(_SQL["load_run_calls"], {"run_keys": _json(run_keys)}).fetchall())

    async def held_calls(self, call_ids: Sequence[str]) -> Iterable[Held]:
        return map(_held, self._run(_SQL["load_call"], {"call_ids": _json(call_ids)}).fetchall())

    async def exclusive_runs(self, thread_ids: Sequence[str]) -> Mapping[str, str]:
        return dict(self._run(_SQL["busy_threads"], {"thread_ids": _json(thread_ids)}).fetchall())

    async def rows(self, run_key: int, first: int, last: int) -> Sequence[tuple[int, str]] | None:
        (compacted,) = self._run(_SQL["is_compacted"], {"run_key": run_key}).fetchone()
        if compacted:
            return None
        rows = self._run(_SQL["stored_rows"], {"run_key": run_key, "first": first, "last": last})
        return list(rows.fetchall())

    async def events_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, int, str]]:
        return list(self._run(_SQL["events_of_run"], {"run_keys": _json(run_keys)}).fetchall())

    async def orphans(self, limit: int, run_id: str | None = None, after: int = 0) -> Iterable[RunFacts]:
        parameters = {"writer": self._writer, "limit": limit, "run_id": run_id, "after": after}
        return map(_facts, self._run(_SQL["orphaned_runs"], parameters).fetchall())

    async def take_over(self, run_keys: Sequence[int]) -> None:
        self._run(_SQL["take_over"], {"writer": self._writer, "run_keys": _json(run_keys)})

    async def write(self, plan: Plan) -> None:
        run = self._run
        for owned, change in plan.runs.items():
            if change.is_new:
                first = (change.key, change.run_id, change.thread_id, change.principal, change.started_at)
                run(_SQL["insert_run"], (*first, change.writer, change.epoch, change.exclusive))
            if change.outcome is not None:
                end = (change.outcome, change.reason, change.ended_at, owned.last_seq, change.writer, change.epoch)
                run(_SQL["end_run"], (*end, change.key))
        for source in plan.sources:
            run(_SQL["insert_source"], source)
        self._insert_records(plan.records)
        for call in plan.calls.values():
            columns = msgspec.structs.asdict(call)
            if call.old_state is None:
                run(_SQL["insert_call"], columns)
            elif run(_SQL["advance_call"], columns).rowcount != 1:
                raise Stale

    async def settle(self, records: Sequence[RecordColumns]) -> None:
        for record in records:
            self._run(_SQL["settle"], record)

    def _insert_records(self, records: Sequence[RecordColumns]) -> None:
        """Many rows a statement. Between statements the driver hands the interpreter over to other threads and has to
        wait for it again, which costs more than a row (``bench.journal``, rate with 100 runs at once).
        """
        start = 0
        while start < len(records):
            left = len(records) - start
            size = left if left in _INSERT_RECORDS else next(size for size in _INSERT_RECORDS if size <= left)
            self._run(_INSERT_RECORDS[size], list(chain.from_iterable(records[start : start + size])))
            start += size


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _facts(row: Sequence[Any]) -> RunFacts:
    run_id, key, writer, epoch, started_at, last_seq, last_ms, ended = row
    return RunFacts(run_id, key, writer, epoch, started_at, last_seq, last_ms, bool(ended))


def _held(row: Sequence[Any]) -> Held:
    return Held(row[0], row[1], row[2], CallState(row[3]), bool(row[4]))
