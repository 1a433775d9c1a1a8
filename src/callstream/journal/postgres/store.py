"""The journal in PostgreSQL, for many processes on many machines.

A batch is one call of a function in the database: one round trip, one transaction, durable by the server's own setting
(``synchronous_commit``). The function changes the turn in the process's lease from the number that the process knows;
whoever takes runs over changes it first. So a process that lost its runs cannot write to them, whatever its clock says.

When the server is away, appends wait, for ``retry_seconds`` and ``max_pending_bytes`` at most, and are then tried
again; an append whose acknowledgement was lost is recognised by its number and not written twice. Readers wait in the
same way, and followers go on from where they were.

Followers in other processes hear of new records by NOTIFY. Behind a pooler that does not pass LISTEN on
(``?listen=off``) the runs that are followed are looked at every 25 ms instead. For a pooler in transaction mode also
say ``statement_cache_size=0``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from callstream.calls import Call
from callstream.errors import CallstreamError, UsageError
from callstream.events import Record
from callstream.journal.filters import CallFilter, RunFilter
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.owned import Append, Memory, RunFacts, claimed
from callstream.journal.plan import Plan, closing
from callstream.journal.postgres.link import LONG_SECONDS, Address, Link
from callstream.journal.postgres.reader import PostgresReader
from callstream.journal.postgres.watch import PostgresWatch
from callstream.journal.postgres.writer import PostgresWriter, Stale
from callstream.journal.protocol import RunRow
from callstream.journal.queries import queries, schema
from callstream.journal.rows import Stored, folded
from callstream.journal.store import SCHEMA_VERSION, Committed, StoreAway, check_version, must_migrate

_T = TypeVar("_T")


class PostgresStore:
    """See ``Store``. Everything runs on the journal's loop; readers of other loops are brought there."""

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
        self._reader = PostgresReader(self._link, self._sql)

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self, writer: str, followers: Followers) -> None:
        self._writer = writer
        self._followers = followers
        self._reader.followed = followers.runs
        self._loop = asyncio.get_running_loop()
        self._log = PostgresWriter(self._link, self._sql, self._channel, followers, writer, self._ttl)
        try:
            await self._link.open()
            if self._may_migrate:
                await self.migrate()
            else:
                await self._check_schema()
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
                await connection.execute(self._sql["release_leases"], self._writer)
        except CallstreamError:
            pass  # they run out by themselves
        await self._log.close()
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
        # A table of that name that is empty is somebody else's; making our own beside it will be refused.
        version, oldest = await connection.fetchrow(self._sql["read_version"]) or (0, 0)
        return version, oldest

    async def commit(self, batch: Sequence[Append]) -> Committed:
        return await self._log.commit(batch)

    # -- leases --------------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        async with self._link.reading() as connection:
            await connection.execute(self._sql["renew_writer"], self._writer, self._ttl)

    async def check(self) -> None:
        async with self._link.reading() as connection:
            await connection.execute(self._sql["write_check"], self._writer)

    async def hold(self, name: str, seconds: float) -> bool:
        async with self._link.reading() as connection:
            held = bool(await connection.fetchval(self._sql["hold_lease"], name, self._writer, seconds))
            if held:
                await connection.execute(self._sql["drop_dead_leases"])
        return held

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        async with self._link.reading() as connection:
            return await connection.fetchval(self._sql["ask_to_stop"], run_id, reason) is not None

    async def asked_to_stop(self) -> dict[str, str]:
        async with self._link.reading() as connection:
            return dict(await connection.fetch(self._sql["asked_to_stop"], self._writer))

    async def watch(self) -> None:
        await PostgresWatch(self._link, self._sql, self._channel, self._followers, self._reader.run_of).run()

    # -- housekeeping --------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> list[str]:
        """First the dead lose their turns: what they had under way is done then, and what comes later is refused."""
        async with self._link.reading() as connection, connection.transaction():
            memory = Memory()
            fenced = await connection.fetch(self._sql["fence_dead"], self._writer, limit)
            if not fenced:
                return []
            rows = await connection.fetch(self._sql["orphaned_runs"], [row[0] for row in fenced], limit)
            orphans = [claimed(facts) for facts in (RunFacts(*row) for row in rows)]
            if not orphans:  # another sweeper was quicker
                return []
            await self._log.fill(connection, orphans)
            for owned in orphans:
                memory.add(owned)
            resumed = await self._log.resumed(connection, memory)
            appends = [Append(owned.run_id, closing(owned, resumed[owned.key])) for owned in orphans]
            plan = Plan(appends, memory, time.time())
            named = {held.call_id: held for calls in resumed.values() for held in calls}
            plan.add_others(range(len(appends)), named, taker=self._writer)
            try:
                await self._log.write(connection, plan, None)
            except Stale as stale:
                # An answer of another run came between; the next sweep finds the run again.
                raise StoreAway(f"{self.where} changed while it was swept") from stale
        return plan.changed_runs

    async def compact(self, run_id: str) -> int:
        async with self._link.reading() as connection:
            async with connection.transaction():
                row = await connection.fetchrow(self._sql["lock_run"], run_id)
                if row is None:
                    raise UsageError(f"the journal has no run {run_id!r}")
                key, ended, compacted = row
                if not ended:
                    raise UsageError(f"run {run_id!r} goes on; only an ended run can be compacted")
                if compacted:
                    return 0
                log = await connection.fetch(self._sql["log_of_run"], key, timeout=LONG_SECONDS)
                before = [Stored(*columns) for columns in log]
                after = await asyncio.to_thread(folded, before)
                await connection.executemany(
                    self._sql["insert_archive"],
                    [(key, r.seq, r.at_ms, r.source, r.call, r.kind, r.body, r.first_seq) for r in after],
                )
                await connection.execute(self._sql["delete_log"], [key], timeout=LONG_SECONDS)
                await connection.execute(self._sql["mark_compacted"], key)
                await connection.execute(self._sql["delete_live"], [key])
            await connection.execute(self._sql["give_back"])
        return len(before) - len(after)

    async def due(self, age: float) -> list[str]:
        async with self._link.reading() as connection:
            return [row[0] for row in await connection.fetch(self._sql["compactable_runs"], age, 50)]

    async def forget(self, wanted: RunFilter, limit: int) -> list[str]:
        query, values = self._reader.filtered("forgettable_runs", wanted.conditions(), limit)
        async with self._link.reading() as connection, connection.transaction():
            rows = await connection.fetch(query, *values)
            for table in ("log", "archive", "sources", "calls", "live", "run"):
                await connection.execute(self._sql[f"delete_{table}"], [row[0] for row in rows], timeout=LONG_SECONDS)
        return [row[1] for row in rows]

    # -- reading, in any event loop ------------------------------------------------------------------------------------

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        return await self._here(lambda: self._reader.page(run_id, after, limit, is_first))

    async def read_whole(self, run_ids: Sequence[str]) -> list[Record]:
        return await self._here(lambda: self._reader.read_whole(run_ids))

    async def call(self, call_id: str) -> Call | None:
        return await self._here(lambda: self._reader.call(call_id))

    async def calls(self, wanted: CallFilter, limit: int | None, *, newest: bool) -> list[Call]:
        return await self._here(lambda: self._reader.calls(wanted, limit, newest=newest))

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]:
        return await self._here(lambda: self._reader.runs(wanted, limit))

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        return await self._here(lambda: self._reader.taken(call_ids))

    async def stats(self) -> dict[str, Any]:
        return await self._here(self._reader.stats)

    async def _here(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Reads on the journal's loop, again if the server is away, for the loop that asks."""
        try:
            reading = asyncio.run_coroutine_threadsafe(self._link.patiently(work), self._loop)
        except RuntimeError as error:
            raise UsageError("the journal is closed") from error
        try:
            return await asyncio.wrap_future(reading)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if reading.cancelled() and task is not None and not task.cancelling():
                raise UsageError("the journal was closed meanwhile") from None
            raise
