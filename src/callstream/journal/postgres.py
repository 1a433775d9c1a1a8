"""The journal in PostgreSQL, for many processes on many machines.

A batch is one call of a function in the database: one round trip, one transaction, as durable as the server's own setting
makes it (``synchronous_commit``). Each batch advances the turn in the process's lease, a number, and is refused if that is
not the number that the process knows. A process that takes over another's runs advances that turn first. So a process that
has lost its runs cannot write to them, whatever its clock says.

While the server is unavailable, appends wait and are tried again, within ``retry_seconds`` and ``max_pending_bytes``; an
append whose acknowledgement was lost is recognised by its number and not written twice. Readers wait in the same way, and
followers go on from where they were.

Followers in other processes are notified of new records by NOTIFY. Behind a pooler that does not support LISTEN
(``?listen=off``) the followed runs are polled every 25 ms instead. For a pooler in transaction mode, also set
``statement_cache_size=0``.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg  # type: ignore[import-untyped]
import msgspec

from callstream.errors import JournalError, UsageError
from callstream.events import Record
from callstream.journal.follow import Followers, Heads
from callstream.journal.housekeeping import JournalSettings
from callstream.journal.plan import Append, Plan
from callstream.journal.rows import json_text, merge_adjacent, record_of
from callstream.journal.sql import queries, schema
from callstream.journal.sql.reader import RunHead, SqlReader
from callstream.journal.sql.session import Database, Rows, Session
from callstream.journal.sql.store import SqlStore
from callstream.journal.store import StoreUnavailable, Unstorable
from callstream.journal.writer import Committed, Stale, Writer

_log = logging.getLogger("callstream.journal")

# -- queries on a connection --------------------------------------------------------------------------------------------

_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
_LONG_SECONDS = 600.0
_LONG = frozenset(
    {
        *("log_of_run", "events_of_run", "due_for_pack", "whole_runs", "read_sources", "whole_calls", "whole_records"),
        *("delete_log", "delete_archive", "delete_sources", "delete_calls", "delete_run", "empty_calls"),
    }
)
"""Queries that read or delete whole runs may take that long."""
_NOTICE_RUNS = 500
"""Run numbers in one notice; PostgreSQL allows 8,000 bytes."""


def _queries_in(name: str) -> dict[str, str]:
    """The queries for the schema of that name."""
    return {query: _in_schema(text, name) for query, text in queries("postgres").items()}


def _in_schema(text: str, name: str) -> str:
    return text.replace("{schema}", f'"{name}"').replace("{name}", name)


@cache
def numbered(text: str) -> tuple[str, Sequence[str]]:
    """A query with its named arguments numbered, as PostgreSQL wants them, and the names in that order."""
    names = list(dict.fromkeys(_PARAMETER.findall(text)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text), names


class PostgresSession(Session):
    """See ``Session``.

    With the writer's ``turn``, what was read may be out of date when the batch is written: then the turn has changed, and
    everything is refused. Without one, everything happens in a transaction that has locked what it writes to.
    """

    def __init__(self, connection: Any, link: Link, writer: str = "", turn: int | None = None) -> None:
        super().__init__(link.sql)
        self.connection = connection
        self._link = link
        self._writer = writer
        self.turn = turn

    def snapshot(self) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = self.connection.transaction(
            isolation="repeatable_read", readonly=True
        )
        return transaction

    async def rows(self, query: str, **values: Any) -> Rows:
        return await self.fetch(self.sql[query], values, _seconds(query))

    async def run(self, query: str, **values: Any) -> int:
        statement, names = numbered(self.sql[query])
        status: str = await self.connection.execute(
            statement, *[values[name] for name in names], timeout=_seconds(query)
        )
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    async def fetch(self, text: str, values: Mapping[str, Any], seconds: float | None = None) -> Rows:
        statement, names = numbered(text)
        rows = await self.connection.fetch(statement, *[values[name] for name in names], timeout=seconds)
        return list(map(tuple, rows))

    async def run_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        await self.connection.executemany(self.sql[query], rows)

    async def upgrade(self, version: int) -> None:
        await self.connection.execute(_in_schema(schema("postgres", version), self._link.address.schema))

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        found: list[Record] = []
        rows = await self.rows("read_runs", run_ids=run_ids)
        for (run_id, started_at), group in groupby(rows, key=itemgetter(0, 1)):
            columns: list[Any] = [row[3:] for row in group]
            found += [record_of(run_id, started_at, row) for row in (merge_adjacent(columns) if merged else columns)]
        return found

    async def write(self, plan: Plan) -> None:
        columns = zip(*plan.records, strict=True) if plan.records else [[]] * 7
        notices = self._notices(plan)
        try:
            await self.connection.execute(
                self.sql["append"], self._writer, self.turn, *columns, _rest(plan), self._link.channel, notices
            )
        except (asyncpg.UniqueViolationError, asyncpg.ExclusionViolationError) as error:
            # Another process has just created that run or call.
            raise Stale from error
        except asyncpg.PostgresError as error:
            if error.sqlstate == "CS001":
                raise Stale from error
            raise
        if self.turn is not None:
            self.turn += 1

    def _notices(self, plan: Plan) -> list[str]:
        if not self._link.channel:
            return []
        keys = [str(run.key) for run in plan.changed]
        return [",".join(keys[start : start + _NOTICE_RUNS]) for start in range(0, len(keys), _NOTICE_RUNS)]


def _seconds(query: str) -> float | None:
    return _LONG_SECONDS if query in _LONG else None


def _rest(plan: Plan) -> str | None:
    """Everything in the plan besides records, as one JSON argument; None for a batch of pieces only."""
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


# -- connections ---------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_CONNECT_SECONDS = 10.0
_COMMAND_SECONDS = 30.0
_READERS = 4
_UNSTORABLE = ("22", "23", "54")
"""Classes of SQLSTATE: data exception, integrity constraint violation, program limit exceeded."""
PASSING = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutdown, crash of another backend, starting up
    asyncpg.TooManyConnectionsError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.ReadOnlySQLTransactionError,  # a fail-over has made this server a standby
    asyncpg.InvalidCachedStatementError,
    asyncpg.InternalClientError,  # the driver raises it when a connection is cut between two of its own steps
)


class Address(msgspec.Struct, frozen=True):
    """Where the journal is, and how to reach it. ``dsn`` is for the driver."""

    dsn: str
    schema: str = "callstream"
    listen: bool = True
    statement_cache_size: int = 100

    @property
    def where(self) -> str:
        parts = urlsplit(self.dsn)
        _, at, hosts = parts.netloc.rpartition("@")
        if not at and ("@" in self.dsn or "%40" in self.dsn):  # the end of a password in which / is not escaped
            return f"the PostgreSQL schema {self.schema!r}"
        if not hosts:  # the driver takes that of the query only then
            hosts = dict(parse_qsl(parts.query)).get("host", "").rpartition("@")[2] or "the local socket"
        return f"the PostgreSQL schema {self.schema!r} at {hosts}{parts.path}"


def address(url: str) -> Address:
    """Takes the journal's own options out of the URL's query: ``schema``, ``listen``, ``statement_cache_size``, and those
    of a log, which do not concern PostgreSQL.
    """
    parts = urlsplit(url)
    found = parse_qsl(parts.query, keep_blank_values=True)
    options = {name: value for name, value in found if name != "log" and not name.startswith("log_")}
    schema = options.pop("schema", "callstream")
    listen = options.pop("listen", "on")
    cache = options.pop("statement_cache_size", "100")
    if not _NAME.fullmatch(schema):
        raise UsageError(f"schema must be a plain name of at most 41 letters, digits and underscores, got {schema!r}")
    if listen not in ("on", "off"):
        raise UsageError(f"listen is on or off, got {listen!r}")
    if not cache.isdigit():
        raise UsageError(f"statement_cache_size is a number, got {cache!r}")
    dsn = urlunsplit(parts._replace(query=urlencode(options, safe="/")))
    return Address(dsn, schema, listen == "on", int(cache))


@contextmanager
def failure(where: str) -> Iterator[None]:
    """Turns the driver's errors into the journal's: StoreUnavailable if the cause will pass, JournalError for the rest."""
    try:
        yield
    except PASSING as error:
        text = str(error) or ("no answer came in time" if isinstance(error, TimeoutError) else "no reason was given")
        raise StoreUnavailable(f"{where} is unavailable: {type(error).__name__}: {text}") from error
    except asyncpg.PostgresError as error:
        if (error.sqlstate or "")[:2] in _UNSTORABLE:
            raise Unstorable(f"{where} cannot hold such a value: {type(error).__name__}: {error}") from error
        raise JournalError(f"{where} could not be used: {type(error).__name__}: {error}") from error
    except asyncpg.ClientConfigurationError as error:
        raise JournalError(f"{where} could not be used: {type(error).__name__}: {error}") from error
    except asyncpg.InterfaceError as error:
        if isinstance(error, ValueError):  # a value that the server's types cannot hold
            raise Unstorable(f"{where} cannot hold such a value: {error}") from error
        raise StoreUnavailable(f"{where} is unavailable: {error}") from error


class ListenRefused(JournalError):
    """The server accepts the connection but refuses LISTEN: there is a pooler in between."""


@contextmanager
def listening(where: str) -> Iterator[None]:
    """``failure`` for LISTEN alone: any error that will not pass becomes ListenRefused."""
    try:
        with failure(where):
            yield
    except StoreUnavailable:
        raise
    except JournalError as error:
        raise ListenRefused(str(error)) from error


async def _leave_as_is(connection: Any) -> None:
    """No setting of a connection is ever changed, so none is reset when it is returned: that would cost a round trip."""


class Link(Database):
    """See ``Database``: one journal's access to the server, with a small pool of connections. Used on the journal's loop
    only.
    """

    def __init__(self, address: Address, patience: float) -> None:
        self.address = address
        self.where = address.where
        self.channel = f"callstream_{address.schema}" if address.listen else ""
        """The channel on which other processes are notified of writes; empty if there is none."""
        self.sql = _queries_in(address.schema)
        self._patience = patience
        self._pool: Any = None

    async def open(self) -> None:
        """Finds out whether there is a server that accepts us."""
        with failure(self.where):
            await self.close_quietly(await self.connect())
            self._pool = await asyncpg.create_pool(min_size=0, max_size=_READERS, reset=_leave_as_is, **self._options())

    async def close(self) -> None:
        if self._pool is not None:
            await self.close_quietly(self._pool)

    async def close_quietly(self, part: Any) -> None:
        """Closes a connection or the pool, and drops it if the server does not answer."""
        try:
            with failure(self.where):
                await asyncio.wait_for(part.close(), 5)
        except JournalError:
            part.terminate()

    async def connect(self) -> Any:
        return await asyncpg.connect(**self._options())

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[PostgresSession]:
        with failure(self.where):
            async with self._pool.acquire() as connection:
                try:
                    yield PostgresSession(connection, self)
                except PASSING:
                    connection.terminate()  # the cause may outlast the error on it: it stays read-only if the server was
                    raise

    @asynccontextmanager
    async def writing(self, *, durable: bool = False, erasing: bool = False) -> AsyncIterator[PostgresSession]:
        async with self.asking() as session, session.connection.transaction():
            if durable:
                await session.run("sync_commit")
            yield session

    async def give_back(self) -> None:
        async with self.asking() as session:
            await session.run("give_back")

    def _options(self) -> dict[str, Any]:
        return {
            "dsn": self.address.dsn,
            "statement_cache_size": self.address.statement_cache_size,
            "timeout": min(_CONNECT_SECONDS, max(self._patience, 1.0)),
            "command_timeout": _COMMAND_SECONDS,
        }


# -- the store ----------------------------------------------------------------------------------------------------------

_POLL_SECONDS = 0.025
"""How often the followed runs are looked at where LISTEN cannot be used."""
_PULSE_SECONDS = 5.0
"""How often the listening connection is checked."""
_MAX_BACK_OFF = 1.0


class PostgresStore(SqlStore):
    """See ``Store``. The writer's memory is valid as long as it has the turn; if that is lost, both are renewed."""

    is_local = False

    def __init__(self, address: Address, settings: JournalSettings) -> None:
        self._link = Link(address, settings.retry_seconds)
        self._turn: int | None = None
        self._connection: Any = None
        self._pid: int | None = None
        """The id of the server's process for that connection."""
        self._heads: Heads[RunHead] = Heads()
        super().__init__(self._link, SqlReader(self._link, self._heads), settings)

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
        raise StoreUnavailable(f"{self.where} was changed by another process during each of five attempts to write")

    async def _commit(self, connection: Any, batch: Sequence[Append]) -> Committed:
        if self._turn is None:
            # Waits for what a broken connection is still doing; whatever that has not begun is refused from now on.
            taking = PostgresSession(connection, self._link)
            [(self._turn,)] = await taking.rows("take_turn", writer=self._writer.name, ttl=self._settings.lease_ttl)
        session = PostgresSession(connection, self._link, self._writer.name, self._turn)
        committed = await self._writer.commit(session, batch, time.time(), self._followers.runs())
        self._turn = session.turn
        return committed

    def _forget_turn(self) -> None:
        self._turn = None
        self._writer.memory.clear()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """The connection that writes, replaced if it broke."""
        with failure(self.where):
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._link.connect()
                self._pid = self._connection.get_server_pid()
            try:
                yield self._connection
            except (*PASSING, asyncpg.InterfaceError, asyncio.CancelledError):
                # What it was doing is no longer known: a commit may have succeeded without followers being notified.
                self._connection.terminate()
                self._connection = self._pid = None
                self._followers.wake_all()
                raise

    # -- other processes -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """By NOTIFY on one listening connection, or by polling. After every break all followers read once, because notices
        sent meanwhile are lost.
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
            except StoreUnavailable:
                await asyncio.sleep(back_off)
                back_off = min(back_off * 2, _MAX_BACK_OFF)
            except ListenRefused as error:
                _log.warning("LISTEN was refused, looking for new records every %g s instead: %s", _POLL_SECONDS, error)
                listens = False
            except JournalError as error:
                if complaint != (complaint := str(error)):
                    _log.warning("new records could not be looked for, trying again: %s", complaint)
                self._followers.wake_all()  # when they read, they get the error
                await asyncio.sleep(_MAX_BACK_OFF)
            else:
                back_off = 0.05

    async def _listen(self) -> None:
        """Returns when the connection is gone. It is opened when a run is first followed."""
        await self._followers.any()
        connection = await self._link.connect()
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            with listening(self.where):
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
            return  # followers here were pushed the records
        run_ids = (self._heads.run_of(int(key)) for key in payload.split(",") if key)
        self._followers.wake([run_id for run_id in run_ids if run_id is not None])

    async def _keep_looking(self) -> None:
        seen: dict[str, int] = {}
        while True:
            await self._followers.any()
            await asyncio.sleep(_POLL_SECONDS)
            seen = await self._look(seen)
