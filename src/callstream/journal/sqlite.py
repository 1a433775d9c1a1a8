"""The journal in one SQLite file: the default, for one machine.

WAL: readers have connections of their own and never block the writer. Several processes may use one file; each takes
the write lock for one batch at a time.

Acknowledged records survive the end of the process, kill -9 included. With ``durability="process"`` (the default,
``synchronous=NORMAL``) a power cut or a crash of the operating system can lose the last of them (those since the last
checkpoint, about 4 MB of log), always from the end, and never leaves the file unreadable.
With ``durability="power"`` (``synchronous=FULL``) every batch is flushed to the disk before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from callstream.errors import JournalError, UsageError
from callstream.events import Record, in_order
from callstream.journal.follow import Followers
from callstream.journal.housekeeping import JournalSettings
from callstream.journal.plan import Append, Plan
from callstream.journal.rows import RecordColumns, json_text, merge_adjacent
from callstream.journal.sql import queries, schema
from callstream.journal.sql.reader import SqlReader, heads_of
from callstream.journal.sql.session import Database, Rows, Session
from callstream.journal.sql.store import SqlStore
from callstream.journal.store import StoreUnavailable, Unstorable
from callstream.journal.writer import Committed, Stale, Writer, process_lives
from callstream.waits import at_once

_T = TypeVar("_T")
Durability: TypeAlias = Literal["process", "power"]

_SQL = queries("sqlite")
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_UNSTORABLE = (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)


_BUSY_SECONDS = 5.0
_WRITER_BUSY_SECONDS = 0.25
"""The journal tries again."""
_SMALL_KIBIBYTES = 64
"""The page cache of connections that do not write. It is small because SQLite empties it after every write."""


def _open_connection(
    path: str,
    busy_seconds: float = _BUSY_SECONDS,
    *,
    cache_kibibytes: int = _SMALL_KIBIBYTES,
    create: bool = False,
) -> sqlite3.Connection:
    with _failure(f"the SQLite file {path!r}"):
        name = f"file:{quote(path)}?mode={'rwc' if create else 'rw'}"
        # The connection is used by one thread at a time, but not always closed by the thread that opened it.
        connection = sqlite3.connect(
            name, timeout=busy_seconds, isolation_level=None, check_same_thread=False, uri=True
        )
        connection.execute(f"PRAGMA cache_size = -{cache_kibibytes}")
        return connection


@contextmanager
def _failure(where: str) -> Iterator[None]:
    """Turns SQLite's errors into the journal's: StoreUnavailable for a lock that will pass, JournalError for the rest."""
    try:
        yield
    except _FAILURES as error:
        raise _failed(where, error) from error


_FAILURES = (sqlite3.Error, UnicodeEncodeError, OverflowError)


def _failed(where: str, error: Exception) -> JournalError:
    if isinstance(error, sqlite3.Error):
        if _is_passing(error):
            return StoreUnavailable(f"{where} is locked by another process: {error}")
        if _code(error) in _NOT_WRITABLE:
            return JournalError(
                f"{where} could not be used: {error}; its folder has to exist and be writable, like the file, even for "
                "reading: SQLite keeps its log beside the file"
            )
        if _code(error) not in _UNSTORABLE:
            return JournalError(f"{where} could not be used: {error}")
    return Unstorable(f"{where} cannot hold such a value: {error}")


def _is_passing(error: sqlite3.Error) -> bool:
    return _code(error) in _PASSING


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


# -- the file -----------------------------------------------------------------------------------------------------------

_READERS = 4
_decode = msgspec.json.Decoder(list[Any]).decode
_CACHE_KIBIBYTES = 512
"""The writer's page cache: enough for the last page of each of a hundred active runs. SQLite's default is 2,000."""
_SPILL_PAGES = 1024
"""A transaction that changes more pages than the cache holds may keep this many in memory, so none is written twice."""
_VACUUM_PAGES = 4096


def _of_many(statement: str, count: int) -> str:
    """The INSERT of one row as an INSERT of that many."""
    head, values, row = statement.partition("VALUES")
    return head + values + ",".join([row] * count)


# At most 999 parameters per statement, the limit of older versions of SQLite.
_INSERT_RECORDS = {size: _of_many(_SQL["insert_record"], size) for size in (128, 64, 32, *range(16, 0, -1))}


class SqliteSession(Session):
    """See ``Session``. Nothing here waits."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(_SQL)
        self.connection = connection

    def _execute(self, text: str, values: Mapping[str, Any]) -> sqlite3.Cursor:
        lists = {name: json_text(value) for name, value in values.items() if isinstance(value, list | tuple)}
        return self.connection.execute(text, {**values, **lists})

    async def fetch(self, text: str, values: Mapping[str, Any]) -> Rows:
        return self._execute(text, values).fetchall()

    async def run(self, query: str, **values: Any) -> int:
        return self._execute(_SQL[query], values).rowcount

    async def run_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(_SQL[query], rows)

    async def upgrade(self, version: int) -> None:
        """Statement by statement, because ``executescript`` would end the transaction."""
        statement = ""
        for line in schema("sqlite", version).splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self.connection.execute(statement)
                statement = ""

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        heads = await heads_of(self, run_ids)
        keys = [head.key for head in heads]
        logs: dict[int, str] = {}
        for query in ("read_logs", "read_archives"):
            logs.update(await self.rows(query, run_keys=keys))
        found: dict[str, Sequence[Record]] = {}
        for head in heads:
            rows: list[Any] = sorted(_decode(logs.get(head.key, "[]")), key=itemgetter(0))
            columns: list[Any] = merge_adjacent(rows) if merged else rows
            records = [
                head.record((seq, at_ms, source, call, kind, body, first_seq))
                for seq, at_ms, kind, body, source, call, _, _, first_seq in columns
            ]
            found[head.run_id] = in_order(records)
        return [record for run_id in run_ids for record in found.get(run_id, ())]

    async def write(self, plan: Plan) -> None:
        run = self.connection.execute
        for owned, change in plan.runs.items():
            columns = {**msgspec.structs.asdict(change), "last_seq": owned.last_seq}
            if change.is_new:
                run(_SQL["insert_run"], columns)
            if change.outcome is not None:
                run(_SQL["end_run"], columns)
        for source in plan.sources:
            run(_SQL["insert_source"], source)
        self._insert_records(plan.records)
        for call in plan.calls.values():
            columns = msgspec.structs.asdict(call)
            if call.old_state is None:
                run(_SQL["insert_call"], columns)
            elif run(_SQL["advance_call"], columns).rowcount != 1:
                raise Stale

    def _insert_records(self, records: Sequence[RecordColumns]) -> None:
        """Many rows per statement. Between statements the driver hands the interpreter over to other threads and has to
        wait for it again, which costs more than a row (``bench.journal``, rate with 100 runs at once).
        """
        start = 0
        while start < len(records):
            left = len(records) - start
            size = left if left in _INSERT_RECORDS else next(size for size in _INSERT_RECORDS if size <= left)
            self.connection.execute(_INSERT_RECORDS[size], list(chain.from_iterable(records[start : start + size])))
            start += size


class SqliteFile(Database):
    """See ``Database``. It is read in any event loop: each reading thread has a connection of its own."""

    def __init__(self, path: str, durability: Durability, busy_seconds: float) -> None:
        if durability not in ("process", "power"):
            raise UsageError(f"durability is process or power, got {durability!r}")
        self.where = f"the SQLite file {path!r}"
        self._path = path
        self._durability = durability
        self._busy_seconds = busy_seconds

    async def open(self) -> None:
        self.connection = _open_connection(
            self._path, self._busy_seconds, cache_kibibytes=_CACHE_KIBIBYTES, create=True
        )
        self._cache_kibibytes = _CACHE_KIBIBYTES
        try:
            with _failure(self.where):
                self.connection.execute(f"PRAGMA cache_spill = {_SPILL_PAGES}")
                self._prepare()
                self._identity = _identity(self._path)
        except JournalError:
            self.connection.close()
            raise
        self._session = SqliteSession(self.connection)
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="callstream-read")
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []

    async def close(self) -> None:
        self._threads.shutdown()
        for connection in (*self._readers, self.connection):
            connection.close()

    def fit_cache(self, active_runs: int) -> None:
        """Makes the page cache as large as is useful for that many runs (``bench.journal``, 1,000 runs)."""
        wanted = max(_CACHE_KIBIBYTES, (2 * active_runs) // 256 * 256)
        if wanted != self._cache_kibibytes:
            self._cache_kibibytes = wanted
            with _failure(self.where):
                self.connection.execute(f"PRAGMA cache_size = -{wanted}")

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, work, *args)
        except RuntimeError as error:
            if "shutdown" in str(error):
                raise UsageError("the journal is closed") from error
            raise

    def _read(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        session: SqliteSession | None = getattr(self._local, "session", None)
        if session is None:
            connection = _open_connection(self._path)
            session = self._local.session = SqliteSession(connection)
            self._readers.append(connection)
        with _failure(self.where):
            session.connection.execute("PRAGMA query_only = ON")
            session.connection.execute("BEGIN")  # one snapshot for everything that is read
            try:
                return at_once(work(session, *args))
            finally:
                session.connection.execute("ROLLBACK")

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Session]:
        with _failure(self.where):
            yield self._session

    # -- writing -------------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[SqliteSession]:
        """No other connection writes meanwhile. If anything goes wrong, nothing is kept."""
        connection = self.connection
        if _identity(self._path) != self._identity:
            raise JournalError(
                f"{self.where} was deleted, moved or replaced while it was open: anything written now would be lost; "
                "open the journal again"
            )
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._session
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except _FAILURES as error:
            raise _failed(self.where, error) from error

    @asynccontextmanager
    async def writing(self, *, durable: bool = False, erasing: bool = False) -> AsyncIterator[Session]:
        with _failure(self.where):
            if erasing:
                self.connection.execute("PRAGMA secure_delete = ON")  # erased content is overwritten, not only unlinked
            if durable:
                self.connection.execute("PRAGMA synchronous = FULL")
        try:
            with self.transaction() as session:
                yield session
        finally:
            if durable:
                with _failure(self.where):
                    self._set_durability()

    def _set_durability(self) -> None:
        self.connection.execute(f"PRAGMA synchronous = {'FULL' if self._durability == 'power' else 'NORMAL'}")

    async def give_back(self) -> None:
        """See ``Database``. Free pages are kept if active runs will soon fill them again."""
        run = self.connection.execute
        with _failure(self.where):
            free, pages = run("PRAGMA freelist_count").fetchone()[0], run("PRAGMA page_count").fetchone()[0]
            if free and (free > pages // 4 or not run(_SQL["count_active"]).fetchone()[0]):
                # executescript, because execute would give back one page and stop.
                self.connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
            run("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _prepare(self) -> None:
        run = self.connection.execute
        deadline = time.monotonic() + self._busy_seconds
        mode = None
        while mode is None:
            try:
                run("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only while the file is empty
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
        self._set_durability()
        run("PRAGMA temp_store = MEMORY")


def _identity(path: str) -> tuple[int, int] | None:
    """Identifies the file that has that name now; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# -- the store ----------------------------------------------------------------------------------------------------------


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


def check_opens(path: str) -> None:
    """Raises SQLite's error if there is no such file and none can be made."""
    sqlite3.connect(path).close()


_PAGE = 4096
PAGES = 1000
"""After this many pages the log is moved into the file: 4 MB."""
MOST_PAGES = 4 * PAGES
"""After this many SQLite does so itself."""
_PASSES = 2
"""The first takes milliseconds; the second takes what came meanwhile, so that hardly anything is left."""
_BRING_IN = "PRAGMA wal_checkpoint(PASSIVE)"


def _pages_of(batch: Sequence[Append]) -> int:
    """About how many pages a commit writes: one for each run, and for long text its own, which two more pages list."""
    text = sum([len(row.body) for append in batch for row in append.rows])
    return 1 + len(batch) + (0 if text < _PAGE // 4 else 3 + text // _PAGE)


class Checkpoints:
    """Moves what commits have put into SQLite's log into the file itself, most of it on a thread of its own.

    SQLite itself would do so within a commit, every thousand pages, and wait for the disk: some milliseconds on a fast
    disk, during which all other writes wait as well. Here the writer goes on in the meantime, and then moves the few pages
    that came since: SQLite starts its log anew only when all of it is in the file. A writer that is far ahead of the disk
    waits for it, so the log never gets much longer than ``MOST_PAGES``.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="callstream-checkpoint")
        self._connection: sqlite3.Connection | None = None  # the thread's
        self._pages = 0
        self._under_way: Future[None] | None = None

    def open(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        writer.execute(f"PRAGMA wal_autocheckpoint = {MOST_PAGES}")

    def close(self) -> None:
        self._thread.shutdown()
        self._disconnect()

    def count(self, pages: int) -> None:
        """Counts pages that were committed; their number may be approximate."""
        self._pages += pages
        if self._under_way is not None:
            if self._pages >= MOST_PAGES - PAGES:
                wait([self._under_way])
            if self._under_way.done():
                self._under_way = None
                self._pages = 0
                with suppress(sqlite3.Error):
                    self._writer.execute(_BRING_IN).fetchall()
        elif self._pages >= PAGES:
            with suppress(RuntimeError):  # the interpreter is ending, and starts no more threads
                self._under_way = self._thread.submit(self._bring_in)

    def _connect(self) -> sqlite3.Connection:
        return _open_connection(self._path)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _bring_in(self) -> None:
        """Pages that cannot be moved stay in the log, so nothing is lost."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            for _ in range(_PASSES):
                self._connection.execute(_BRING_IN).fetchall()
        except (sqlite3.Error, JournalError):
            self._disconnect()


POLL_SECONDS = 0.02
"""How often to look for commits of other processes, while a run is followed and commits come."""
QUIET_POLL_SECONDS = 0.2
"""How often, when none have come for a while: looking is most of the cost of an idle follower."""


class SqliteStore(SqlStore):
    """See ``Store``."""

    is_local = True

    def __init__(self, path: str, durability: Durability, settings: JournalSettings) -> None:
        busy_seconds = min(_WRITER_BUSY_SECONDS, settings.retry_seconds)
        self._file = SqliteFile(path, durability, busy_seconds)
        self._checkpoints = Checkpoints(path)
        self._version_seen = -1
        self._doubtful: set[str] = set()
        super().__init__(self._file, SqlReader(self._file), settings)

    async def open(self, writer: Writer, followers: Followers) -> None:
        await super().open(writer, followers)
        self._checkpoints.open(self._file.connection)

    async def close(self) -> None:
        self._checkpoints.close()
        await super().close()

    async def commit(self, batch: Sequence[Append]) -> Committed:
        self._file.fit_cache(len(self._writer.memory.runs))
        for _ in range(3):
            try:
                with self._file.transaction() as session:
                    await self._check(session, batch)
                    done = await self._writer.commit(session, batch, time.time(), self._followers.runs())
                self._checkpoints.count(_pages_of(batch))
                return done
            except Stale:
                self._writer.memory.clear()
            except BaseException:
                self._writer.memory.clear()  # it has what was planned, which the file does not
                raise
        raise StoreUnavailable(f"{self.where} was changed by another process during each of three attempts to write")

    async def _check(self, session: SqliteSession, batch: Sequence[Append]) -> None:
        """Drops from memory the runs of the batch that another process has changed.

        No other process can write now, and ``data_version`` shows whether one has since it was last checked; if not,
        everything remembered is still true, and nothing is read.
        """
        memory = self._writer.memory
        (version,) = session.connection.execute("PRAGMA data_version").fetchone()
        if version != self._version_seen:
            self._version_seen, self._doubtful = version, set(memory.runs)
        if not self._doubtful:
            return
        asked = self._doubtful.intersection([append.run_id for append in batch])
        remembered = {run_id: memory.runs[run_id] for run_id in asked if run_id in memory.runs}
        keys = [owned.key for owned in remembered.values()]
        true = set(await session.rows("check_runs", run_keys=keys))
        for run_id, owned in remembered.items():
            # The id is compared as well: the key of an erased run may be given to another run.
            if (run_id, owned.key, owned.writer, owned.epoch, owned.last_seq) not in true:
                memory.drop(run_id)
        self._doubtful -= asked

    async def watch(self) -> None:
        """Polls for commits of other processes. Followers of this process's own runs are pushed its writes and need none of
        this.

        ``data_version`` of the writing connection changes with every commit of any other connection, and costs no more than
        a look into shared memory.
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
                seen = await self._look(seen)
            except (*_FAILURES, JournalError):
                continue  # readers get the error
            version, pause = now, POLL_SECONDS

    # -- housekeeping --------------------------------------------------------------------------------------------------

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        if not await self._database.ask("fence_dead", writer=self._writer.name, limit=1):
            return []  # without the lock
        async with self._database.writing() as session:
            # Leases are judged by the wall clock, which may be set: so processes that still hold one are checked themselves.
            holders = {writer for (writer,) in await session.rows("writers")}
            return await self._writer.adopt(
                session, apps, limit, lambda writer: writer in holders and process_lives(writer), run_id=run_id
            )
