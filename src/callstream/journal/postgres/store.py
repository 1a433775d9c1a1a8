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
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from callstream.errors import JournalError
from callstream.journal.follow import Followers, Heads
from callstream.journal.plan import Append
from callstream.journal.postgres.link import PASSING, Address, Link, failure
from callstream.journal.sql.reader import RunHead, SqlReader
from callstream.journal.sql.store import SqlStore
from callstream.journal.store import StoreAway
from callstream.journal.writer import Committed, Stale, Writer

_log = logging.getLogger("callstream.journal")

_POLL_SECONDS = 0.025
"""How often the followed runs are looked at where nothing can be heard."""
_PULSE_SECONDS = 5.0
"""How often the listening connection is asked whether it is alive."""
_MAX_BACK_OFF = 1.0


class PostgresStore(SqlStore):
    """See ``Store``. The writer's memory holds from one turn to the next; when the turn is lost, both are taken anew."""

    reads_anywhere = False
    blocks = False

    def __init__(self, address: Address, *, patience: float, lease_ttl: float, migrate: bool) -> None:
        self._link = Link(address, patience)
        self._turn: int | None = None
        self._connection: Any = None
        self._pid: int | None = None
        """The server's process for that connection."""
        self._heads: Heads[RunHead] = Heads()
        super().__init__(self._link, SqlReader(self._link, self._heads), lease_ttl=lease_ttl, migrate=migrate)

    async def open(self, writer: Writer, followers: Followers) -> None:
        self._heads.followed = followers.runs
        await super().open(writer, followers)

    async def close(self) -> None:
        if self._connection is not None:
            await self._link.close_quietly(self._connection)
        await super().close()

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
            taking = self._link.session(connection)
            [(self._turn,)] = await taking.rows("take_turn", writer=self._writer.name, ttl=self._ttl)
        session = self._link.session(connection, self._writer.name, self._turn)
        committed = await self._writer.commit(session, batch, time.time(), self._followers.runs())
        self._turn = session.turn
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

    # -- other processes -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """By NOTIFY on one listening connection, or by looking. After every break all followers look once, because what was
        said meanwhile is lost.
        """
        listens = bool(self._link.channel)
        back_off = 0.05
        complaint = ""
        while True:
            try:
                with failure(self.where):
                    if listens:
                        await self._listen()
                    else:
                        await self._keep_looking()
            except StoreAway:
                await asyncio.sleep(back_off)
                back_off = min(back_off * 2, _MAX_BACK_OFF)
            except JournalError as error:
                if listens:
                    _log.warning(
                        "LISTEN was refused, looking for new records every %g s instead: %s", _POLL_SECONDS, error
                    )
                    listens = False
                else:
                    if complaint != (complaint := str(error)):
                        _log.warning("new records could not be looked for, trying again: %s", complaint)
                    self._followers.wake_all()  # reading tells them what is wrong
                    await asyncio.sleep(_MAX_BACK_OFF)
            else:
                back_off = 0.05

    async def _listen(self) -> None:
        """Returns when the connection is gone. It is made when a run is first followed."""
        await self._followers.any()
        connection = await self._link.connect()
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.add_listener(self._link.channel, self._heard)
            self._followers.wake_all()
            while not gone.is_set():
                try:
                    await asyncio.wait_for(gone.wait(), _PULSE_SECONDS)
                except TimeoutError:
                    await connection.execute("SELECT 1", timeout=_PULSE_SECONDS)
        finally:
            connection.terminate()

    def _heard(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        if pid == self._pid:
            return  # followers here were told, and given the records
        run_ids = (self._heads.run_of(int(key)) for key in payload.split(",") if key)
        self._followers.wake([run_id for run_id in run_ids if run_id is not None])

    async def _keep_looking(self) -> None:
        seen: dict[str, int] = {}
        while True:
            await self._followers.any()
            await asyncio.sleep(_POLL_SECONDS)
            seen = await self._look(seen)
