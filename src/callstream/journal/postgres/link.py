"""Connections to PostgreSQL: made on the journal's loop, made again when the server was away; and what they are asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg  # type: ignore[import-untyped]
import msgspec

from callstream.errors import JournalError, UsageError
from callstream.journal.postgres.session import PostgresSession, queries_in
from callstream.journal.sql.session import Database
from callstream.journal.store import StoreAway, Unstorable

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
    asyncpg.InternalClientError,  # what the driver raises when a connection is cut between two of its own steps
)


class Address(msgspec.Struct, frozen=True):
    """Where the journal is, and how it is reached. ``dsn`` is what the driver gets."""

    dsn: str
    schema: str = "callstream"
    listen: bool = True
    statement_cache_size: int = 100

    @property
    def where(self) -> str:
        parts = urlsplit(self.dsn)
        return f"the PostgreSQL schema {self.schema!r} at {parts.hostname or 'the local socket'}{parts.path}"


def address(url: str) -> Address:
    """Takes the journal's own options out of the URL's query: ``schema``, ``listen``, ``statement_cache_size``, and what it
    says of a log, which is nothing to PostgreSQL.
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
    """The driver's errors as the journal's: StoreAway for what will pass, JournalError for the rest."""
    try:
        yield
    except PASSING as error:
        text = str(error) or ("no answer came in time" if isinstance(error, TimeoutError) else "no reason was given")
        raise StoreAway(f"{where} is away: {type(error).__name__}: {text}") from error
    except asyncpg.PostgresError as error:
        if (error.sqlstate or "")[:2] in _UNSTORABLE:
            raise Unstorable(f"{where} cannot hold such a value: {type(error).__name__}: {error}") from error
        raise JournalError(f"{where} could not be used: {type(error).__name__}: {error}") from error
    except asyncpg.InterfaceError as error:
        if isinstance(error, ValueError):  # a value that the server's types cannot hold
            raise Unstorable(f"{where} cannot hold such a value: {error}") from error
        raise StoreAway(f"{where} is away: {error}") from error


async def _leave_as_is(connection: Any) -> None:
    """Nothing is ever set on a connection, so nothing is reset when it goes back: that would be one more round trip."""


class Link(Database):
    """See ``Database``: the way to the server for one journal, with a few connections that are nobody's for long. Used on
    the journal's loop only.
    """

    def __init__(self, address: Address, patience: float) -> None:
        self.address = address
        self.where = address.where
        self.channel = f"callstream_{address.schema}" if address.listen else ""
        self.sql = queries_in(address.schema)
        self._patience = patience
        self._pool: Any = None

    async def open(self) -> None:
        """Finds out whether there is a server that lets us in."""
        with failure(self.where):
            await self.close_quietly(await self.connect())
            self._pool = await asyncpg.create_pool(min_size=0, max_size=_READERS, reset=_leave_as_is, **self._options())

    async def close(self) -> None:
        if self._pool is not None:
            await self.close_quietly(self._pool)

    async def close_quietly(self, part: Any) -> None:
        """Closes a connection or the pool, and leaves it to its fate if the server does not answer."""
        try:
            with failure(self.where):
                await asyncio.wait_for(part.close(), 5)
        except JournalError:
            part.terminate()

    async def connect(self) -> Any:
        return await asyncpg.connect(**self._options())

    def session(self, connection: Any, writer: str = "", turn: int | None = None) -> PostgresSession:
        return PostgresSession(connection, self.sql, self.address.schema, self.channel, writer=writer, turn=turn)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[PostgresSession]:
        with failure(self.where):
            async with self._pool.acquire() as connection:
                yield self.session(connection)

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
