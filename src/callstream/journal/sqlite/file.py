"""One SQLite file: how it is opened, prepared, locked, brought up to date, and given back what it does not need."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from callstream.errors import JournalError, UsageError
from callstream.journal.sql import queries, schema
from callstream.journal.store import SCHEMA_VERSION, StoreAway, Unstorable, check_version, must_migrate

Durability: TypeAlias = Literal["process", "power"]

_SQL = queries("sqlite")
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNSTORABLE = (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)
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


_CACHE_KIBIBYTES = 512
"""The writer's page cache: enough for the last page of each of a hundred active runs. SQLite's default is 2,000."""
_SPILL_PAGES = 1024
"""A transaction that changes more pages than the cache holds may keep this many in memory, so that none is written twice."""


@contextmanager
def failure(where: str) -> Iterator[None]:
    """SQLite's errors as the journal's: StoreAway for a lock that will pass, JournalError for the rest."""
    try:
        yield
    except _FAILURES as error:
        raise _failed(where, error) from error


_FAILURES = (sqlite3.Error, UnicodeEncodeError, OverflowError)


def _failed(where: str, error: Exception) -> JournalError:
    if isinstance(error, sqlite3.Error):
        if _is_passing(error):
            return StoreAway(f"{where} is locked by another process: {error}")
        if _code(error) not in _UNSTORABLE:
            return JournalError(f"{where} could not be used: {error}")
    return Unstorable(f"{where} cannot hold such a value: {error}")


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
        """Gives the connection's ``execute``. Nobody else writes meanwhile; whatever goes wrong, nothing is kept."""
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
        except _FAILURES as error:
            raise _failed(self.where, error) from error

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
        # A table of that name that is empty is somebody else's; making our own beside it will be refused.
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
                if not _is_passing(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise JournalError(
                f"{self.where} cannot be used in WAL mode (it is in {mode!r}); it must be on a local disk"
            )
        run(f"PRAGMA synchronous = {'FULL' if self._durability == 'power' else 'NORMAL'}")
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


def _is_passing(error: sqlite3.Error) -> bool:
    return _code(error) in _PASSING


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
