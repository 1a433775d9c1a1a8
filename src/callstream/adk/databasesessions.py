"""google-adk's sessions in a database. Errors name the sessions' place, but quote nothing of their content.

Opening a connection and reading wait for a database that restarts, since both can be retried. A write that was under way
when its connection broke may or may not have been stored, so it is not repeated, and the run fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from google.adk.sessions import DatabaseSessionService
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from callstream.errors import JournalError

_T = TypeVar("_T")
_MAX_BACK_OFF = 0.5


class SessionsUnavailable(JournalError):
    """The database of google-adk's sessions cannot be reached just now."""


class _Retries:
    """Retries work that failed because the database is unavailable, for at most ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._away_since: float | None = None

    async def __call__(self, work: Callable[[], Awaitable[_T]]) -> _T:
        back_off = 0.01
        while True:
            try:
                done = await work()
            except SessionsUnavailable:
                now = time.monotonic()
                self._away_since = self._away_since or now
                if now + back_off > self._away_since + self._seconds:
                    raise
            else:
                self._away_since = None
                return done
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, _MAX_BACK_OFF)


class DatabaseSessions(DatabaseSessionService):
    """``where`` names the database in errors; ``passing``: errors of the driver that mean that it is unavailable.

    ``connect``: makes a connection instead of the driver. Other options are those of SQLAlchemy's engine.
    """

    def __init__(
        self,
        url: str,
        *,
        where: str,
        retry_seconds: float,
        passing: tuple[type[BaseException], ...] = (),
        connect: Callable[[], Awaitable[Any]] | None = None,
        **options: Any,
    ) -> None:
        self._where = where
        self._patience = _Retries(retry_seconds)
        self._passing: tuple[type[BaseException], ...] = (OSError, TimeoutError, *passing)
        self._failing: tuple[type[BaseException], ...] = (SQLAlchemyError, *self._passing)
        if connect is not None:
            self.connect = options["async_creator"] = partial(self._patience, partial(self._name_errors, connect))
        super().__init__(url, hide_parameters=True, pool_pre_ping=True, **options)
        event.listen(self.db_engine.sync_engine, "handle_error", self._give_up_connection)

    async def get_session(self, *args: Any, **kwargs: Any) -> Any:
        return await self._patience(partial(self._name_errors, super().get_session, *args, **kwargs))

    async def list_sessions(self, *args: Any, **kwargs: Any) -> Any:
        return await self._patience(partial(self._name_errors, super().list_sessions, *args, **kwargs))

    async def create_session(self, *args: Any, **kwargs: Any) -> Any:
        return await self._name_errors(super().create_session, *args, **kwargs)

    async def append_event(self, *args: Any, **kwargs: Any) -> Any:
        return await self._name_errors(super().append_event, *args, **kwargs)

    async def delete_session(self, *args: Any, **kwargs: Any) -> None:
        await self._name_errors(super().delete_session, *args, **kwargs)

    def _give_up_connection(self, context: ExceptionContext) -> None:
        """Drops the connection: a temporary error may stick to it. One opened while the database was read-only stays so."""
        if isinstance(context.original_exception.__cause__, self._passing):
            context.is_disconnect = True

    async def _name_errors(self, work: Callable[..., Awaitable[_T]], *args: Any, **kwargs: Any) -> _T:
        try:
            return await work(*args, **kwargs)
        except self._failing as error:
            raise self._failure(error) from None  # chained errors may quote a row

    def _failure(self, error: BaseException) -> JournalError:
        cause: BaseException = error
        if isinstance(error, DBAPIError) and error.orig is not None:
            cause = error.orig.__cause__ or error.orig
        # After the first line, PostgreSQL adds a detail, which is the row. A ValueError of the driver quotes a value.
        text = "" if isinstance(cause, ValueError) else str(cause).partition("\n")[0]
        what = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
        is_cut = isinstance(error, DBAPIError) and error.connection_invalidated
        if is_cut or isinstance(error, PoolTimeout) or isinstance(cause, self._passing):
            return SessionsUnavailable(f"google-adk's sessions, {self._where}, are unavailable: {what}")
        return JournalError(f"google-adk's sessions, {self._where}, could not be used: {what}")
