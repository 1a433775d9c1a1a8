"""The journal in PostgreSQL, for many processes on many machines.

A batch is one call of a function in the database: one round trip, one transaction, durable by the server's own setting
(``synchronous_commit``). The function changes the turn in the process's lease from the number that the process knows; a
process that takes runs over changes it first. So one that lost its runs cannot write to them, whatever its clock says.

When the server is unavailable, appends wait, for ``retry_seconds`` and ``max_pending_bytes`` at most, and are then tried
again; an append whose acknowledgement was lost is recognised by its number and not written twice. Readers wait in the
same way, and followers go on from where they were.

Followers in other processes hear of new records by NOTIFY. Behind a pooler that does not pass LISTEN on
(``?listen=off``) the runs that are followed are looked at every 25 ms instead. For a pooler in transaction mode also
say ``statement_cache_size=0``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec

from callstream.calls import CallState
from callstream.errors import CallstreamError, JournalError
from callstream.journal.follow import Followers
from callstream.journal.plan import Append, Held, Plan, RunFacts
from callstream.journal.postgres.link import LONG_SECONDS, PASSING, Address, Link, PostgresWatch, failure
from callstream.journal.postgres.reader import PostgresReader
from callstream.journal.rows import RecordColumns, Source, Stored, json_text
from callstream.journal.sql import queries, schema
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
from callstream.journal.writer import Committed, Stale, Writer

# -- packs -------------------------------------------------------------------------------------------------------------
# An object is deleted when the database says so for good: what it says of packs is on its disk before anything follows from
# it, where ``synchronous_commit`` is off for others, too.


class _Changed(Exception):
    """A run is not where it was."""


class _PostgresPacks:
    """See ``Packs``."""

    def __init__(self, link: Link, sql: Mapping[str, str]) -> None:
        self._link = link
        self._sql = sql

    async def due(self, age: float, limit: int) -> Sequence[Due]:
        async with self._link.reading() as connection:
            rows = await connection.fetch(self._sql["due_for_pack"], age, limit, timeout=LONG_SECONDS)
        return [Due(*row) for row in rows]

    async def begin(self, name: str) -> None:
        async with self._durable_transaction() as connection:
            await connection.execute(self._sql["begin_pack"], name)

    async def keep(self, name: str, places: Sequence[PackPlace], size: int, instead_of: str | None) -> bool:
        sql = self._sql
        ordered = sorted(places)
        keys = [place.run_key for place in ordered]
        try:
            async with self._durable_transaction() as connection:
                pack = await connection.fetchval(sql["keep_pack"], name, len(places), size)
                if pack is None:
                    return False
                run_ids = [place.run_id for place in ordered]
                spans = [place.start for place in ordered], [place.size for place in ordered]
                count = await connection.fetchval(sql["pack_runs"], pack, keys, run_ids, *spans, instead_of)
                if count != len(places):
                    raise _Changed
                if instead_of is None:
                    for query in ("delete_archive", "delete_sources", "empty_calls"):
                        await connection.execute(sql[query], keys, timeout=LONG_SECONDS)
                elif not await connection.fetchval(sql["give_up_pack"], instead_of):
                    raise _Changed
        except _Changed:
            return False
        return True

    async def give_up(self, name: str) -> None:
        async with self._durable_transaction() as connection:
            await connection.execute(self._sql["give_up_pack"], name)

    async def give_up_stale(self, age: float) -> None:
        async with self._durable_transaction() as connection:
            await connection.execute(self._sql["give_up_stale"], age)

    async def drop(self, name: str) -> None:
        async with self._link.reading() as connection:
            await connection.execute(self._sql["drop_pack"], name)

    async def listed(self, state: PackState) -> Sequence[str]:
        async with self._link.reading() as connection:
            return [row[0] for row in await connection.fetch(self._sql["list_packs"], state)]

    async def newest(self) -> str | None:
        async with self._link.reading() as connection:
            name: str | None = await connection.fetchval(self._sql["newest_pack"])
            return name

    async def in_pack(self, name: str) -> Sequence[PackPlace]:
        async with self._link.reading() as connection:
            return [PackPlace(*row) for row in await connection.fetch(self._sql["runs_in_pack"], name)]

    async def places(self, run_ids: Sequence[str]) -> Sequence[PackPlace]:
        async with self._link.reading() as connection:
            return [PackPlace(*row) for row in await connection.fetch(self._sql["places_of_runs"], list(run_ids))]

    async def figures(self) -> PackFigures:
        async with self._link.reading() as connection:
            return PackFigures(*await connection.fetchrow(self._sql["pack_figures"]))

    @asynccontextmanager
    async def _durable_transaction(self) -> AsyncIterator[Any]:
        async with self._link.reading() as connection, connection.transaction():
            await connection.execute(self._sql["sync_commit"])
            yield connection


_NOTICE_RUNS = 500
"""Run numbers in one notice; PostgreSQL allows 8,000 bytes."""


class _PostgresTables:
    """With a ``turn``, what is read may be old when it is written: then the turn is another, and all is refused.

    Without one, everything happens in a transaction that has locked what is written to.
    """

    def __init__(self, connection: Any, sql: Mapping[str, str], writer: str, channel: str, turn: int | None) -> None:
        self._connection = connection
        self._sql = sql
        self._writer = writer
        self._channel = channel
        self.turn = turn

    async def run_facts(self, run_ids: Sequence[str]) -> Iterable[RunFacts]:
        rows = await self._connection.fetch(self._sql["load_run"], run_ids)
        return [RunFacts(row[0], row[1]) if row[3] is None else RunFacts(*row) for row in rows]

    async def sources_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, Source, int]]:
        rows = await self._connection.fetch(self._sql["load_run_sources"], run_keys)
        return [(key, Source(*source), number) for key, *source, number in rows]

    async def calls_of(self, run_keys: Sequence[int]) -> Iterable[Held]:
        return map(_held, await self._connection.fetch(self._sql["load_run_calls"], run_keys))

    async def held_calls(self, call_ids: Sequence[str]) -> Iterable[Held]:
        return map(_held, await self._connection.fetch(self._sql["load_call"], call_ids))

    async def exclusive_runs(self, thread_ids: Sequence[str]) -> Mapping[str, str]:
        return dict(await self._connection.fetch(self._sql["busy_threads"], thread_ids))

    async def rows(self, run_key: int, first: int, last: int) -> Sequence[tuple[int, str]] | None:
        if await self._connection.fetchval(self._sql["is_compacted"], run_key):
            return None
        rows = await self._connection.fetch(self._sql["stored_rows"], run_key, first, last)
        return [tuple(row) for row in rows]

    async def events_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, int, str]]:
        rows = await self._connection.fetch(self._sql["events_of_run"], run_keys, timeout=LONG_SECONDS)
        return [tuple(row) for row in rows]

    async def orphans(self, limit: int, run_id: str | None = None, after: int = 0) -> Iterable[RunFacts]:
        """First the dead lose their turns: what they had under way is done then, and what comes later is refused."""
        fenced = await self._connection.fetch(self._sql["fence_dead"], self._writer, limit)
        if not fenced:
            return []
        dead = [row[0] for row in fenced]
        rows = await self._connection.fetch(self._sql["orphaned_runs"], dead, limit, run_id, after)
        return [RunFacts(*row) for row in rows]

    async def take_over(self, run_keys: Sequence[int]) -> None:
        await self._connection.execute(self._sql["take_over"], self._writer, run_keys)

    async def write(self, plan: Plan) -> None:
        columns = zip(*plan.records, strict=True) if plan.records else [[]] * 7
        notices = self._notices(plan)
        try:
            await self._connection.execute(
                self._sql["append"], self._writer, self.turn, *columns, _rest(plan), self._channel, notices
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

    async def settle(self, records: Sequence[RecordColumns]) -> None:
        """Locks the runs against being compacted meanwhile."""
        if records:
            keys = list({record[0] for record in records})
            live = [row[0] for row in await self._connection.fetch(self._sql["lock_live"], keys)]
            await self._connection.execute(self._sql["settle"], *zip(*records, strict=True), live)

    def _notices(self, plan: Plan) -> list[str]:
        if not self._channel:
            return []
        keys = [str(run.key) for run in plan.changed]
        return [",".join(keys[start : start + _NOTICE_RUNS]) for start in range(0, len(keys), _NOTICE_RUNS)]


def _held(row: Sequence[Any]) -> Held:
    return Held(row[0], row[1], row[2], CallState(row[3]), bool(row[4]))


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


class PostgresStore:
    """See ``Store``. The writer's memory holds from one turn to the next; when the turn is lost, both are taken anew."""

    is_persistent = True
    reads_anywhere = False
    blocks = False

    def __init__(self, address: Address, *, patience: float, lease_ttl: float, migrate: bool) -> None:
        self.where = address.where
        self._sql = {
            name: text.replace("{schema}", f'"{address.schema}"') for name, text in queries("postgres").items()
        }
        self._schema = address.schema
        self._channel = f"callstream_{address.schema}" if address.listen else ""
        self._ttl = lease_ttl
        self._may_migrate = migrate
        self._link = Link(address, patience)
        self._turn: int | None = None
        self._connection: Any = None
        self._pid: int | None = None
        """The server's process for that connection."""
        self.reader = PostgresReader(self._link, self._sql)
        self.packs = _PostgresPacks(self._link, self._sql)

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self, writer: Writer, followers: Followers) -> None:
        self._writer = writer
        self._followers = followers
        self.reader.remembered.followed = followers.runs
        try:
            await self._link.open()
            if self._may_migrate:
                await self.migrate()
            else:
                await self._check_schema()
            async with self._link.reading() as connection:
                check_archive(writer, self.where, has_packs=bool(await connection.fetchval(self._sql["has_packs"])))
            await self.renew()
        except CallstreamError:
            await self._link.close()
            raise

    async def migrate(self) -> int:
        async with self._link.reading() as connection:
            version, oldest = await self._version(connection)
        check_version(version, oldest, self.where)
        return version if version >= SCHEMA_VERSION else await self._migrate()

    async def _migrate(self) -> int:
        async with self._link.reading() as connection, connection.transaction():
            await connection.execute(self._sql["lock_schema"], self._schema)
            version, oldest = await self._version(connection)
            check_version(version, oldest, self.where)
            if version == 0:
                await connection.execute(self._sql["create_schema"])
            for step in range(version + 1, SCHEMA_VERSION + 1):
                await connection.execute(schema("postgres", step).replace("{schema}", f'"{self._schema}"'))
            if version < SCHEMA_VERSION:
                await connection.execute(self._sql["clear_version"])
                await connection.execute(self._sql["write_version"], SCHEMA_VERSION, max(1, SCHEMA_VERSION - 1))
        return max(version, SCHEMA_VERSION)

    async def close(self) -> None:
        try:
            async with self._link.reading() as connection:
                await connection.execute(self._sql["release_leases"], self._writer.name)
        except CallstreamError:
            pass  # they run out by themselves
        if self._connection is not None:
            await self._link.close_quietly(self._connection)
        await self._link.close()

    async def _check_schema(self) -> None:
        async with self._link.reading() as connection:
            version, oldest = await self._version(connection)
        check_version(version, oldest, self.where)
        if version < SCHEMA_VERSION:
            raise must_migrate(version, self.where)

    async def _version(self, connection: Any) -> tuple[int, int]:
        if not await connection.fetchval(self._sql["has_schema"], self._schema):
            return 0, 0
        # An empty table of that name is another program's; making our own beside it will be refused.
        version, oldest = await connection.fetchrow(self._sql["read_version"]) or (0, 0)
        return version, oldest

    # -- writing -------------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Append]) -> Committed:
        async with self._connected() as connection:
            for _ in range(5):
                try:
                    return await self._commit(connection, batch)
                except Stale:
                    self._forget_turn()
                except BaseException:
                    self._forget_turn()
                    raise
        raise StoreAway(f"{self.where} changed under the writer's hands five times")

    async def _commit(self, connection: Any, batch: Sequence[Append]) -> Committed:
        if self._turn is None:
            # Waits for what a broken connection is still doing; what it has not begun is refused from now on.
            self._turn = await connection.fetchval(self._sql["take_turn"], self._writer.name, self._ttl)
        tables = _PostgresTables(connection, self._sql, self._writer.name, self._channel, self._turn)
        committed = await self._writer.commit(tables, batch, time.time(), self._followers.runs())
        self._turn = tables.turn
        return committed

    def _forget_turn(self) -> None:
        self._turn = None
        self._writer.memory.clear()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """The connection that writes, made anew if it broke."""
        with failure(self.where):
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._link.connect()
                self._pid = self._connection.get_server_pid()
            try:
                yield self._connection
            except (*PASSING, asyncpg.InterfaceError, asyncio.CancelledError):
                # What it was doing is not known any more, and nobody here may have been told.
                self._connection.terminate()
                self._connection = self._pid = None
                self._followers.wake_all()
                raise

    # -- leases --------------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        async with self._link.reading() as connection:
            await connection.execute(self._sql["renew_writer"], self._writer.name, self._ttl)

    async def check(self) -> None:
        async with self._link.reading() as connection:
            await connection.execute(self._sql["write_check"], self._writer.name)

    async def hold(self, name: str, seconds: float) -> bool:
        async with self._link.reading() as connection:
            held = bool(await connection.fetchval(self._sql["hold_lease"], name, self._writer.name, seconds))
            if held:
                await connection.execute(self._sql["drop_dead_leases"])
        return held

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        async with self._link.reading() as connection:
            return await connection.fetchval(self._sql["ask_to_stop"], run_id, reason) is not None

    async def asked_to_stop(self) -> dict[str, str]:
        async with self._link.reading() as connection:
            return dict(await connection.fetch(self._sql["asked_to_stop"], self._writer.name))

    async def watch(self) -> None:
        watch = PostgresWatch(
            self._link,
            self._sql,
            self._channel,
            self._followers,
            self.reader.remembered.run_of,
            own=lambda: self._pid,
            writer=self._writer.name,
        )
        await watch.run()

    # -- housekeeping --------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, patience: float) -> list[str]:
        async with self._link.reading() as connection, connection.transaction():
            tables = _PostgresTables(connection, self._sql, self._writer.name, self._channel, None)
            try:
                return await self._writer.sweep(tables, limit, time.time(), patience)
            except Stale as stale:
                # An answer of another run came between; the next sweep finds the run again.
                raise StoreAway(f"{self.where} changed while it was swept") from stale

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        async with self._link.reading() as connection, connection.transaction():
            tables = _PostgresTables(connection, self._sql, self._writer.name, self._channel, None)
            return await self._writer.adopt(tables, apps, limit, run_id=run_id)

    async def release_gone(self, is_gone: Callable[[str], bool]) -> None:
        async with self._link.reading() as connection:
            for (writer,) in await connection.fetch(self._sql["writers"]):
                if writer != self._writer.name and is_gone(writer):
                    await connection.execute(self._sql["release_leases"], writer)

    async def put_folded(self, run_id: str, run_key: int, rows: Iterable[Stored]) -> bool:
        async with self._link.reading() as connection:
            async with connection.transaction():
                row = await connection.fetchrow(self._sql["lock_run"], run_id)
                if row is None or row[0] != run_key or row[1]:
                    return False
                await self._put_archive(connection, run_key, rows)
                await connection.execute(self._sql["delete_log"], [run_key], timeout=LONG_SECONDS)
            await self._writer.erase([run_key])
            await connection.execute(self._sql["give_back"])
        return True

    async def _put_archive(self, connection: Any, run_key: int, rows: Iterable[Stored]) -> None:
        await connection.executemany(
            self._sql["insert_archive"],
            [(run_key, r.seq, r.at_ms, r.source, r.call, r.kind, r.body, r.first_seq) for r in rows],
        )
        await connection.execute(self._sql["mark_compacted"], run_key)
        await connection.execute(self._sql["delete_live"], [run_key])

    async def settle(self, records: Sequence[RecordColumns]) -> None:
        async with self._link.reading() as connection, connection.transaction():
            await _PostgresTables(connection, self._sql, self._writer.name, "", None).settle(records)

    async def own_due(self, age: float) -> list[str]:
        return []

    async def due(self, age: float) -> list[str]:
        async with self._link.reading() as connection:
            return [row[0] for row in await connection.fetch(self._sql["compactable_runs"], age, 50)]

    async def forget(self, wanted: RunFilter, limit: int, for_good: bool) -> list[str]:
        query, values = self.reader.build_query("forgettable_runs", wanted.conditions(), limit)
        async with self._link.reading() as connection, connection.transaction():
            rows = await connection.fetch(query, *values)
            if for_good:
                marks = {forgotten_mark(thread_id, principal) for _, _, thread_id, principal in rows}
                await connection.execute(self._sql["insert_forgotten"], list(marks))
            await self._delete(connection, [row[0] for row in rows])
        await self._writer.erase([row[0] for row in rows])
        return [row[1] for row in rows]

    async def _delete(self, connection: Any, run_keys: Sequence[int]) -> None:
        await connection.execute(self._sql["soil_packs"], run_keys)
        for table in ("log", "archive", "sources", "calls", "live", "run"):
            await connection.execute(self._sql[f"delete_{table}"], run_keys, timeout=LONG_SECONDS)

    async def restore(self, runs: Sequence[WholeRun], gone: Collection[int]) -> None:
        keys = [*gone, *(run.key for run in runs)]
        async with self._link.reading() as connection, connection.transaction():
            await self._delete(connection, keys)
            tables = _PostgresTables(connection, self._sql, self._writer.name, "", None)
            try:
                await tables.write(plan_of(runs))
            except Stale as stale:
                raise JournalError(f"{self.where} has a run or a call with the same id already") from stale
            for key, rows in folded_rows(runs).items():
                await self._put_archive(connection, key, rows)
            await connection.execute(self._sql["advance_keys"], max(keys))
        await self._writer.erase(keys)

    async def keep_forgotten(self, marks: Sequence[str]) -> None:
        async with self._link.reading() as connection:
            await connection.execute(self._sql["insert_forgotten"], marks)
