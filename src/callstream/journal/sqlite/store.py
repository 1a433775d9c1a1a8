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
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from callstream.errors import JournalError, UsageError
from callstream.journal.follow import Followers
from callstream.journal.plan import Append
from callstream.journal.sql.reader import SqlReader
from callstream.journal.sql.store import SqlStore
from callstream.journal.sqlite.file import FAILURES, Durability, SqliteFile, SqliteSession, open_connection
from callstream.journal.store import StoreAway
from callstream.journal.writer import Committed, Stale, Writer, process_lives


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


POLL_SECONDS = 0.02
"""How often commits of other processes are looked for, while a run is followed and they come."""
QUIET_POLL_SECONDS = 0.2
"""How often, when none have come for a while: looking is most of what an idle follower costs."""


class SqliteStore(SqlStore):
    """See ``Store``."""

    reads_anywhere = True
    blocks = True

    def __init__(
        self, path: str, *, durability: Durability, busy_seconds: float, lease_ttl: float, migrate: bool
    ) -> None:
        self._file = SqliteFile(path, durability, busy_seconds)
        self._checkpoints = Checkpoints(path)
        self._version_seen = -1
        self._doubtful: set[str] = set()
        super().__init__(self._file, SqlReader(self._file), lease_ttl=lease_ttl, migrate=migrate)

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
                self._checkpoints.count(1 + len(batch))  # each run has a page of its own that it fills
                return done
            except Stale:
                self._writer.memory.clear()
            except BaseException:
                self._writer.memory.clear()  # it was planned, and is not what the file holds
                raise
        raise StoreAway(f"{self.where} changed under the writer's hands three times")

    async def _check(self, session: SqliteSession, batch: Sequence[Append]) -> None:
        """Drops from memory what another process has changed.

        No other process can write now, and ``data_version`` says whether one has since it was last looked at; if not,
        all that is remembered is true, and nothing is read.
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
            # The id too: the number of an erased run is given again.
            if (run_id, owned.key, owned.writer, owned.epoch, owned.last_seq) not in true:
                memory.drop(run_id)
        self._doubtful -= asked

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
                seen = await self._look(seen)
            except (*FAILURES, JournalError):
                continue  # readers get the error
            version, pause = now, POLL_SECONDS

    # -- housekeeping --------------------------------------------------------------------------------------------------

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        if not await self._database.ask("fence_dead", writer=self._writer.name, limit=1):
            return []  # without the lock
        async with self._database.writing() as session:
            # Leases are judged by the wall clock, which may be set: a process that has not given its own back is looked at.
            holders = {writer for (writer,) in await session.rows("writers")}
            return await self._writer.adopt(
                session, apps, limit, lambda writer: writer in holders and process_lives(writer), run_id=run_id
            )
