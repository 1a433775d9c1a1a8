"""Connections to PostgreSQL: made on the journal's loop, made again when the server was away; and hearing on one of records
that other processes have committed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg  # type: ignore[import-untyped]
import msgspec

from callstream.errors import JournalError, UsageError
from callstream.journal.follow import Followers
from callstream.journal.store import StoreAway, Unstorable

_log = logging.getLogger("callstream.journal")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_CONNECT_SECONDS = 10.0
_COMMAND_SECONDS = 30.0
_READERS = 4
LONG_SECONDS = 600.0
"""For what reads or deletes a whole run."""

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


class Link:
    """The way to the server for one journal, with a few connections to read by. Used on the journal's loop only."""

    def __init__(self, address: Address, patience: float) -> None:
        self.address = address
        self.where = address.where
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

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        with failure(self.where):
            async with self._pool.acquire() as connection:
                yield connection

    def _options(self) -> dict[str, Any]:
        return {
            "dsn": self.address.dsn,
            "statement_cache_size": self.address.statement_cache_size,
            "timeout": min(_CONNECT_SECONDS, max(self._patience, 1.0)),
            "command_timeout": _COMMAND_SECONDS,
        }


POLL_SECONDS = 0.025
"""How often the followed runs are looked at where nothing can be heard."""
_PULSE_SECONDS = 5.0
"""How often the listening connection is asked whether it is alive."""
_MAX_BACK_OFF = 1.0


class PostgresWatch:
    """Wakes followers: by NOTIFY on one listening connection, or by looking.

    ``own``: the server's process through which this one writes, as ``writer``. What that says is known here.
    """

    def __init__(
        self,
        link: Link,
        sql: Mapping[str, str],
        channel: str,
        followers: Followers,
        run_of: Callable[[int], str | None],
        *,
        own: Callable[[], int | None],
        writer: str,
    ) -> None:
        self._link = link
        self._sql = sql
        self._channel = channel
        self._followers = followers
        self._run_of = run_of
        self._own = own
        self._writer = writer

    async def run(self) -> None:
        """Until it is cancelled. After every break all followers look once, because what was said meanwhile is lost."""
        back_off = 0.05
        complaint = ""
        while True:
            try:
                with failure(self._link.where):
                    if self._channel:
                        await self._listen()
                    else:
                        await self._look()
            except StoreAway:
                await asyncio.sleep(back_off)
                back_off = min(back_off * 2, _MAX_BACK_OFF)
            except JournalError as error:
                if self._channel:
                    _log.warning(
                        "LISTEN was refused, looking for new records every %g s instead: %s",
                        POLL_SECONDS,
                        error,
                    )
                    self._channel = ""
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
            await connection.add_listener(self._channel, self._heard)
            self._followers.wake_all()
            while not gone.is_set():
                try:
                    await asyncio.wait_for(gone.wait(), _PULSE_SECONDS)
                except TimeoutError:
                    await connection.execute("SELECT 1", timeout=_PULSE_SECONDS)
        finally:
            connection.terminate()

    def _heard(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        if pid == self._own():
            return  # followers here were told, and given the records
        run_ids = (self._run_of(int(key)) for key in payload.split(",") if key)
        self._followers.wake([run_id for run_id in run_ids if run_id is not None])

    async def _look(self) -> None:
        seen: dict[str, int] = {}
        while True:
            await self._followers.any()
            await asyncio.sleep(POLL_SECONDS)
            run_ids = list(self._followers.runs())
            async with self._link.reading() as connection:
                rows = await connection.fetch(self._sql["followed_runs"], run_ids, self._writer)
            found = {row[0]: row[1] for row in rows}
            self._followers.wake([run_id for run_id in run_ids if seen.get(run_id) != found.get(run_id)])
            seen = found
