"""A store in a database, except how a batch is committed there, and how writes of other processes are noticed."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any

from callstream.errors import CallstreamError, JournalError, UsageError
from callstream.journal.follow import Followers
from callstream.journal.housekeeping import JournalSettings
from callstream.journal.plan import Append
from callstream.journal.rows import RecordColumns, Stored, json_text
from callstream.journal.sql.reader import SqlReader
from callstream.journal.sql.session import Database, Session
from callstream.journal.store import (
    OLDEST_CODE,
    SCHEMA_VERSION,
    RunFilter,
    StoreUnavailable,
    check_archive,
    check_log,
    forgotten_mark,
    warn_of_others,
)
from callstream.journal.whole import Due, PackFigures, PackPlace, PackState, WholeRun, plan_of, stored_rows
from callstream.journal.writer import Committed, Stale, Writer, process_is_gone


class _Changed(Exception):
    """A run is no longer where it was."""


class SqlPacks:
    """See ``Packs``. Objects are deleted on the word of the database, so every change to packs is on its disk before
    anything follows from it, even where other writes are less durable.
    """

    def __init__(self, database: Database, reader: SqlReader) -> None:
        self._database = database
        self._read: Callable[..., Any] = reader.rows

    async def due(self, age: float, limit: int) -> Sequence[Due]:
        return [Due(*row) for row in await self._read("due_for_pack", age=age, limit=limit)]

    async def begin(self, name: str) -> None:
        await self._database.write("begin_pack", durable=True, name=name)

    async def keep(self, name: str, places: Sequence[PackPlace], size: int, instead_of: str | None) -> bool:
        ordered = sorted(places)
        wanted = json_text([(place.run_key, place.run_id, place.start, place.size) for place in ordered])
        keys = [place.run_key for place in ordered]
        try:
            # A run may be forgotten once it is no longer here, so it is erased here as thoroughly as a forgotten one.
            async with self._database.writing(durable=True, erasing=True) as session:
                pack = await session.row("keep_pack", name=name, runs=len(places), bytes=size)
                if pack is None:
                    return False
                if await session.run("pack_runs", pack=pack[0], places=wanted, instead_of=instead_of) != len(places):
                    raise _Changed
                if instead_of is None:
                    for query in ("delete_archive", "delete_sources", "empty_calls"):
                        await session.run(query, run_keys=keys)
                elif not await session.run("give_up_pack", name=instead_of):
                    raise _Changed
        except _Changed:
            return False
        await self._database.give_back()
        return True

    async def give_up(self, name: str) -> None:
        await self._database.write("give_up_pack", durable=True, name=name)

    async def give_up_stale(self, age: float) -> None:
        await self._database.write("give_up_stale", durable=True, age=age)

    async def drop(self, name: str) -> None:
        await self._database.write("drop_pack", durable=True, name=name)

    async def listed(self, state: PackState) -> Sequence[str]:
        return [name for (name,) in await self._read("list_packs", state=state)]

    async def newest(self) -> str | None:
        return next((name for (name,) in await self._read("newest_pack")), None)

    async def in_pack(self, name: str) -> Sequence[PackPlace]:
        return [PackPlace(*row) for row in await self._read("runs_in_pack", name=name)]

    async def places(self, run_ids: Sequence[str]) -> Sequence[PackPlace]:
        return [PackPlace(*row) for row in await self._read("places_of_runs", run_ids=run_ids)]

    async def figures(self) -> PackFigures:
        [row] = await self._read("pack_figures")
        return PackFigures(*row)


class SqlStore(ABC):
    """See ``Store``."""

    is_persistent = True
    journal_id: str

    def __init__(self, database: Database, reader: SqlReader, settings: JournalSettings) -> None:
        self.where = database.where
        self.reader = reader
        self.packs = SqlPacks(database, reader)
        self._database = database
        self._settings = settings

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self, writer: Writer, followers: Followers) -> None:
        self._writer = writer
        self._followers = followers
        await self._database.open()
        try:
            if self._settings.migrate:
                await self.migrate()
            elif (version := await self._version()) < SCHEMA_VERSION:
                raise JournalError(
                    f"{self.where} has schema {version}, this code needs {SCHEMA_VERSION}: run `callstream migrate`, or "
                    "open the journal with migrate=True"
                )
            check_archive(writer, self.where, has_packs=bool(await self._database.ask("has_packs")))
            await self.renew()
            await self._check_log()
        except CallstreamError:
            await self._database.close()
            raise

    async def _check_log(self) -> None:
        """Called with the lease held: ``note_log`` writes its note first and then looks at leases, so that one of the two
        always notices the other.
        """
        [(self.journal_id, noted)] = await self._database.ask("read_journal")
        try:
            check_log(self._writer, self.where, noted)
        except UsageError:
            await self._give_leases_back()
            raise

    async def note_log(self) -> None:
        writer = self._writer
        async with self._database.writing(durable=True) as session:
            await session.run("lock_schema")
            [(_, noted)] = await session.rows("read_journal")
            check_log(writer, self.where, noted)
            if noted is not None or writer.log is None:
                return
            await session.run("note_log", name=writer.log.name)
        others = {name for (name,) in await self._database.ask("live_writers")} - {writer.name}
        warn_of_others(self.where, {name for name in others if not process_is_gone(name)})

    async def migrate(self) -> int:
        """Takes the lock only if there is something to do."""
        version = await self._version()
        if version >= SCHEMA_VERSION:
            return version
        async with self._database.writing() as session:
            await session.run("lock_schema")
            version = await self._usable_version(session)
            if not version and (found := await session.row("foreign_table")) is not None:
                raise JournalError(
                    f"{self.where} could not be used: table {found[0]!r} already exists there and is not Callstream's; "
                    "a journal needs a file, a database or a schema of its own"
                )
            for step in range(version + 1, SCHEMA_VERSION + 1):
                await session.upgrade(step)
            if version < SCHEMA_VERSION:
                await session.run("clear_version")
                await session.run("write_version", version=SCHEMA_VERSION, oldest_code=OLDEST_CODE)
        return max(version, SCHEMA_VERSION)

    async def _version(self) -> int:
        async with self._database.asking() as session:
            return await self._usable_version(session)

    async def _usable_version(self, session: Session) -> int:
        """The version of the schema, 0 if there is none. Refuses one that this code cannot use."""
        [(has_schema,)] = await session.rows("has_schema")
        # An empty table of that name is another program's; creating our own beside it will be refused.
        version, oldest = (has_schema and await session.row("read_version")) or (0, 0)
        if version > SCHEMA_VERSION and oldest > SCHEMA_VERSION:
            raise JournalError(
                f"{self.where} has schema {version}, which needs code of schema {oldest} or newer; this code has schema "
                f"{SCHEMA_VERSION}: upgrade callstream in this process"
            )
        return int(version)

    async def close(self) -> None:
        await self._give_leases_back()
        await self._database.close()

    async def _give_leases_back(self) -> None:
        try:
            await self._database.write("release_leases", writer=self._writer.name)
        except CallstreamError:
            pass  # they run out by themselves

    # -- writing -------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def commit(self, batch: Sequence[Append]) -> Committed: ...

    # -- leases --------------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        await self._database.write("renew_writer", writer=self._writer.name, ttl=self._settings.lease_ttl)

    async def check(self, size: int) -> None:
        if size:  # of characters that cannot be compressed
            await self._database.write("write_check", writer=self._writer.name, holder=secrets.token_hex(size // 2))
        await self._database.write("write_check", writer=self._writer.name, holder=self._writer.name)

    async def hold(self, name: str, seconds: float) -> bool:
        async with self._database.writing() as session:
            held = await session.run("hold_lease", name=name, writer=self._writer.name, ttl=seconds) == 1
            if held:
                await session.run("drop_dead_leases")
        return held

    # -- other processes -----------------------------------------------------------------------------------------------

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        return bool(await self._database.write("ask_to_stop", run_id=run_id, reason=reason))

    async def asked_to_stop(self) -> dict[str, str]:
        return dict(await self._database.ask("asked_to_stop", writer=self._writer.name))

    @abstractmethod
    async def watch(self) -> None: ...

    async def _look(self, seen: dict[str, int]) -> dict[str, int]:
        """Wakes the followers of runs that other processes have written to since ``seen``; returns the new last numbers."""
        run_ids = list(self._followers.runs())
        found: dict[str, int] = dict(
            await self._database.ask("followed_runs", run_ids=run_ids, writer=self._writer.name)
        )
        self._followers.wake([run_id for run_id in run_ids if seen.get(run_id) != found.get(run_id)])
        return found

    # -- housekeeping --------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, patience: float) -> list[str]:
        async with self._database.writing() as session:
            try:
                return await self._writer.sweep(session, limit, time.time(), patience)
            except Stale as stale:
                # Another run has answered one of the calls meanwhile; the next sweep finds the run again.
                raise StoreUnavailable(f"{self.where} changed while it was swept") from stale

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        async with self._database.writing() as session:
            return await self._writer.adopt(session, apps, limit, run_id=run_id)

    async def release_gone(self) -> None:
        for (writer,) in await self._database.ask("writers"):
            if writer != self._writer.name and process_is_gone(writer):
                await self._database.write("release_leases", writer=writer)

    async def put_folded(self, run_id: str, run_key: int, rows: Iterable[Stored]) -> bool:
        async with self._database.writing() as session:
            row = await session.row("lock_run", run_id=run_id)
            if row is None or row[0] != run_key or row[1]:
                return False
            await _put_archive(session, run_key, rows)
            await session.run("delete_log", run_keys=[run_key])
        await self._writer.erase([run_key])
        await self._database.give_back()
        return True

    async def copy_pieces(self, records: Sequence[RecordColumns]) -> None:
        async with self._database.writing() as session:
            await session.copy_pieces(records)

    async def own_due(self, age: float) -> list[str]:
        return []

    async def due(self, age: float) -> list[str]:
        return [run_id for (run_id,) in await self._database.ask("compactable_runs", age=age, limit=50)]

    async def forget(self, wanted: RunFilter, limit: int, for_good: bool) -> list[str]:
        async with self._database.writing(erasing=True) as session:
            rows = await session.listed("forgettable_runs", wanted, limit)
            keys = [key for key, *_ in rows]
            if for_good:
                marks = {forgotten_mark(thread_id, principal) for _, _, thread_id, principal in rows}
                await session.run("insert_forgotten", threads=list(marks))
            await _delete(session, keys)
        await self._writer.erase(keys)
        if rows:
            await self._database.give_back()
        return [run_id for _, run_id, _, _ in rows]

    async def restore(self, runs: Sequence[WholeRun], gone: Collection[int]) -> None:
        keys = list({*gone, *(run.key for run in runs)})
        async with self._database.writing() as session:
            await _delete(session, keys)
            try:
                await session.write(plan_of(runs))
            except Stale as stale:
                raise JournalError(f"{self.where} has a run or a call with the same id already") from stale
            for run in runs:
                if run.compacted:
                    await _put_archive(session, run.key, stored_rows(run))
            await session.run("advance_keys", last=max(keys))
        await self._writer.erase(keys)

    async def keep_forgotten(self, marks: Sequence[str]) -> None:
        await self._database.write("insert_forgotten", threads=marks)


async def _put_archive(session: Session, run_key: int, rows: Iterable[Stored]) -> None:
    columns = [(run_key, r.seq, r.at_ms, r.source, r.call, r.kind, r.body, r.first_seq) for r in rows]
    await session.run_many("insert_archive", columns)
    await session.run("mark_compacted", run_key=run_key)


async def _delete(session: Session, run_keys: Sequence[int]) -> None:
    await session.run("soil_packs", run_keys=run_keys)
    for table in ("log", "archive", "sources", "calls", "run"):
        await session.run(f"delete_{table}", run_keys=run_keys)
