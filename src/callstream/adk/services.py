"""google-adk's services, safe from cancellation: sessions, artifacts, memory, credentials.

A run is cancelled at whatever it awaits, by a stop, a disconnect, a limit or the end of its host. Inside a service that
would lose an open cursor, a lock or the half of what it writes, and a SQLite file would stay locked for everybody. So each
call of a service runs in a task of its own, and a cancellation takes effect between two calls.

A SQLite file has one writer at a time, and connections that find it busy wait in no order until some of them give up: with
hundreds of runs that begin together, some would fail. So what this process writes into its sessions there takes turns.

A run that goes on in another process is that one's. What google-adk says of it here, such as that it was aborted, is not
stored: the session would have it beside what happens there.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from google.adk.artifacts import InMemoryArtifactService
from google.adk.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from google.adk.events.event import Event
from google.adk.memory import InMemoryMemoryService
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from callstream.runtime.run import run_of_task

logger = logging.getLogger("callstream")

_T = TypeVar("_T")

_CALL_SECONDS: Final = 10.0
"""How long a cancellation waits for the call that it found. Then the call continues by itself."""
_NEVER_WAITS: Final = (
    InMemorySessionService,
    InMemoryArtifactService,
    InMemoryMemoryService,
    InMemoryCredentialService,
)
"""Nothing can be cancelled in these, so they are used as they are."""

_WRITES: Final = frozenset({"create_session", "append_event", "delete_session"})

_left: set[asyncio.Task[Any]] = set()
"""Calls that took too long to wait for. The event loop alone would not keep them."""


def shielded(service: _T) -> _T:
    """The service for a Runner whose runs may be cancelled: no call of it is cancelled before it has returned.

    What it returns has the attributes of the service and passes for an instance of its class. ``ADKAgent`` uses its
    services this way; a program with a Runner of its own writes ``Runner(session_service=shielded(service), ...)``.
    """
    if service is None or type(service) is _Shielded or type(service) in _NEVER_WAITS:
        return service
    return cast("_T", _Shielded(service))


class _Shielded:
    __slots__ = ("__service", "__turns", "__weakref__")

    def __init__(self, service: Any) -> None:
        object.__setattr__(self, "_Shielded__service", service)
        object.__setattr__(self, "_Shielded__turns", _Turns() if isinstance(service, SqliteSessionService) else None)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance() asks for it
        return type(self.__service)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__service, name)
        if name == "append_event":
            found = _owned(found)
        if self.__turns is not None and name in _WRITES:
            found = self.__turns.taken_by(found)
        return _finishing(found) if inspect.isroutine(found) or inspect.iscoroutinefunction(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__service, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__service, name)

    def __dir__(self) -> list[str]:
        return dir(self.__service)

    def __repr__(self) -> str:
        return repr(self.__service)


class _Turns:
    """Of the writes of each event loop."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def taken_by(self, write: Any) -> Any:
        @functools.wraps(write)
        async def in_turn(*args: Any, **kwargs: Any) -> Any:
            async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                return await write(*args, **kwargs)

        return in_turn


def _owned(append_event: Any) -> Any:
    @functools.wraps(append_event)
    async def append(session: Session, event: Event) -> Event:
        run = run_of_task()
        if run is not None and run.is_elsewhere:
            return event
        stored: Event = await append_event(session=session, event=event)
        return stored

    return append


def _finishing(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        return _finish(result) if inspect.iscoroutine(result) else result

    return call


async def _finish(work: Coroutine[Any, Any, _T]) -> _T:
    """Awaits the work in a task of its own. If this task is cancelled, that takes effect when the work is done."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    until: float | None = None
    while not task.done() and (until is None or loop.time() < until):
        try:
            await asyncio.wait({task}, timeout=None if until is None else until - loop.time())
        except asyncio.CancelledError as error:
            cancelled = error
            until = until or loop.time() + _CALL_SECONDS
    if cancelled is None:
        return task.result()
    task.add_done_callback(_retrieve)
    if not task.done():
        _left.add(task)
        logger.warning("a call of a service of google-adk takes longer than %g s; leaving it to itself", _CALL_SECONDS)
    raise cancelled


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Marks what it raised as seen: the task that would have seen it was cancelled."""
    _left.discard(task)
    if not task.cancelled():
        task.exception()
