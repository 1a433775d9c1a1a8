"""What a server needs of a google-adk application: an ``ADKAgent`` made from it, and sessions by URL.

A call that awaits an answer needs its session: the journal alone cannot resume it. So sessions are kept where the journal
is: for a SQLite file in another file beside it, for PostgreSQL in a schema of their own in the same database, and for a
journal in memory in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from google.adk.apps import App
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.workflow import BaseNode

from callstream.adk.agent import ADKAgent
from callstream.adk.plugin import CallstreamPlugin
from callstream.adk.tapping import ModelOnPath, paths_in
from callstream.callstream import Callstream
from callstream.errors import MissingExtra, UsageError
from callstream.journal.sqlite import check_opens, sqlite_path

if TYPE_CHECKING:
    from callstream.journal.postgres import Link

RETRY_SECONDS = 5.0
_CONNECTIONS = 5


def is_adk(target: object) -> bool:
    """Whether it is a google-adk object that ``adk_agent`` accepts."""
    return isinstance(target, ADKAgent | App | BaseNode)


def own_callstream(target: object) -> Callstream | None:
    """The application's own Callstream, in an ``ADKAgent`` or in its plugins; None if it has none."""
    if isinstance(target, ADKAgent):
        return None if target.owns_callstream else target.callstream
    plugins = target.plugins if isinstance(target, App) else []
    found = next((plugin.callstream for plugin in plugins if isinstance(plugin, CallstreamPlugin)), None)
    return found if isinstance(found, Callstream) else None


def takes_options(target: object) -> bool:
    """Whether ``adk_agent`` makes an agent from it, so that options apply."""
    return isinstance(target, App | BaseNode)


def has_sessions(target: object) -> bool:
    """Whether an application brings its own session service."""
    return isinstance(target, ADKAgent) and not target.owns_sessions


def adk_agent(target: object, callstream: Callstream | None, **options: Any) -> ADKAgent:
    """An ``ADKAgent`` for an App, an agent or a workflow, which is not changed; ``options`` are those of ``ADKAgent``.

    An ``ADKAgent`` is returned as it is, except that given ones replace a journal and sessions that it made in memory.
    """
    if isinstance(target, ADKAgent):
        journal = callstream.journal if callstream is not None and target.owns_callstream else None
        sessions = options.get("session_service")
        if journal is not None or sessions is not None:
            target.keep_in(journal, sessions)
        return target
    if isinstance(target, App):
        return ADKAgent.from_app(target, callstream=callstream, **options)
    if isinstance(target, BaseNode):
        return ADKAgent(target, callstream=callstream, **options)
    raise UsageError(f"expected an App, an agent or a workflow of google-adk, got {type(target).__name__}")


def model_paths(target: object) -> list[ModelOnPath]:
    """Where the models of an application are read, agent by agent. No model is called."""
    return paths_in(target.root_agent if isinstance(target, ADKAgent | App) else target)


# -- sessions --


def sessions_beside(journal_url: str) -> str:
    """The URL of the sessions that belong to a journal."""
    scheme, _, place = journal_url.partition(":")
    if scheme != "sqlite":
        return "memory:" if scheme == "memory" else journal_url
    path = place.partition("?")[0]
    stem = path.removesuffix(".db")
    return f"sqlite:{stem}-sessions{path[len(stem) :]}"


def open_sessions(url: str, *, retry_seconds: float = RETRY_SECONDS) -> BaseSessionService:
    """The session service for a URL: ``memory:``, ``sqlite:///file.db``, ``postgresql://…``, or any that SQLAlchemy knows.

    For PostgreSQL, a journal's URL will do. ``prepare_sessions`` has to be awaited once before the first use.
    ``retry_seconds``: how long to wait for an unavailable database.
    """
    match url.partition(":")[0]:
        case "memory":
            return InMemorySessionService()
        case "sqlite":
            return _sqlite(url)
        case "postgresql" | "postgres":
            return _postgres(_link(url, retry_seconds), retry_seconds)
        case scheme if "://" in url:
            return _database(url, retry_seconds, where=f"in a database ({scheme})")
        case scheme:
            raise UsageError(
                f"expected memory:, sqlite:///file.db or postgresql://… for sessions, got a URL that begins with {scheme!r}"
            )


def _sqlite(url: str) -> BaseSessionService:
    try:
        return SqliteSessionService(_file(url))
    except RuntimeError as error:  # for a file that is not a database, or that an older google-adk has written
        raise UsageError(f"these sessions cannot be opened: {error}") from None


def _file(url: str) -> str:
    """The path, read as in a journal's URL: google-adk itself treats ``~``, ``%`` and ``#`` differently."""
    path, _ = sqlite_path(url.partition("?")[0])
    return path


def _postgres(link: Link, retry_seconds: float) -> BaseSessionService:
    """Sessions that connect as the journal does, with the options of its URL, and stay in a schema of their own."""
    from callstream.journal.postgres import PASSING

    async def connect() -> Any:
        connection = await link.connect()
        await connection.execute(f"SET search_path TO {link.address.schema}")
        return connection

    return _database(
        "postgresql+asyncpg://",
        retry_seconds,
        where=link.where,
        passing=PASSING,
        connect=connect,
        pool_size=_CONNECTIONS,
        max_overflow=0,
    )


def _database(url: str, retry_seconds: float, **options: Any) -> BaseSessionService:
    try:
        from callstream.adk.databasesessions import DatabaseSessions

        return DatabaseSessions(url, retry_seconds=retry_seconds, **options)
    except ImportError as error:
        raise MissingExtra("sessions in a database need SQLAlchemy", "sessions", error) from error
    except ValueError as error:  # google-adk's text does not contain the password
        raise UsageError(f"these sessions cannot be opened: {error}") from None


async def prepare_sessions(service: BaseSessionService, url: str) -> None:
    """Makes a query, so that errors in the URL or the database show before the first run.

    In PostgreSQL, creates schema and tables, one process at a time: google-adk itself fails if two create them at once.
    """
    if url.partition(":")[0] in ("postgresql", "postgres"):
        link = _link(url, RETRY_SECONDS)
        schema = link.address.schema
        connection = await service.connect()  # type: ignore[attr-defined]  # one that open_sessions has made
        try:
            await connection.execute("SELECT pg_advisory_lock(hashtext($1))", schema)
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            await service.list_sessions(app_name=schema, user_id="")
        finally:
            await link.close_quietly(connection)
    else:
        if url.partition(":")[0] == "sqlite":
            # google-adk's connection has a thread, which outlives a failure to connect and then finds the loop closed.
            check_opens(_file(url))
        await service.list_sessions(app_name="callstream", user_id="")


def _link(url: str, retry_seconds: float) -> Link:
    try:
        from callstream.journal.postgres import Link, address
    except ModuleNotFoundError as error:
        raise MissingExtra("sessions in PostgreSQL need asyncpg", "postgres", error) from error
    place = address(url)
    return Link(msgspec.structs.replace(place, schema=f"{place.schema}_sessions"), retry_seconds)
