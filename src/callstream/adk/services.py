"""google-adk's services, safe from cancellation: sessions, artifacts, memory, credentials.

A run is cancelled at whatever it awaits, by a stop, a disconnect, a limit or the end of its host. Inside a service, that
would leak an open cursor or a lock or write only half of the data, and a SQLite file would stay locked for every process.
So each call of a service runs in a task of its own, and a cancellation takes effect between two calls.

A SQLite file has one writer at a time, and connections that find it busy wait in no particular order until some of them give
up: with hundreds of runs that begin together, some would fail. So this process's writes to its sessions there take turns.

A run that continues in another process belongs to that process. Events of google-adk about it here, such as that it was
aborted, are not stored: the session would have them mixed with what happens there.

The session has what the run wrote before its process died. The continued run starts again from its beginning, so it gets
the session as it was then (``ResumedSessions``). Events that it appends again are in the store already and are not stored
twice; new ones are stored.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec
from google.adk.artifacts import InMemoryArtifactService
from google.adk.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from google.adk.events.event import Event
from google.adk.memory import InMemoryMemoryService
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from pydantic_core import to_jsonable_python

from callstream.events import SessionKept
from callstream.runtime.continuing import pack, unpack
from callstream.runtime.run import run_of_task

logger = logging.getLogger("callstream")

_T = TypeVar("_T")

_CALL_SECONDS: Final = 10.0
"""How long a cancellation waits for the call under way. After that, the call continues by itself."""
_NEVER_WAITS: Final = (
    InMemorySessionService,
    InMemoryArtifactService,
    InMemoryMemoryService,
    InMemoryCredentialService,
)
"""Nothing can be cancelled in these, so they are used as they are."""

_WRITES: Final = frozenset({"create_session", "append_event", "delete_session"})

_left: set[asyncio.Task[Any]] = set()
"""Calls that took too long to wait for. The event loop alone would not keep references to them."""


def shielded(service: _T) -> _T:
    """The service for a Runner whose runs may be cancelled: no call of it is cancelled before it has returned.

    The result has the attributes of the service and passes for an instance of its class. ``ADKAgent`` uses its services
    this way; a program with its own Runner writes ``Runner(session_service=shielded(service), ...)``.
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
            found = _in_turn(found, self.__turns)
        return _finishing(found) if inspect.isroutine(found) or inspect.iscoroutinefunction(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__service, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__service, name)

    def __dir__(self) -> list[str]:
        return dir(self.__service)

    def __repr__(self) -> str:
        return repr(self.__service)


_Turns: TypeAlias = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
"""A lock for the writes of each event loop."""


def _in_turn(write: Any, turns: _Turns) -> Any:
    @functools.wraps(write)
    async def wait_and_write(*args: Any, **kwargs: Any) -> Any:
        async with turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await write(*args, **kwargs)

    return wait_and_write


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
    """Awaits the work in a task of its own. If the current task is cancelled, that takes effect when the work is done."""
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
        logger.warning("a call of a google-adk service takes longer than %g s; not waiting for it", _CALL_SECONDS)
    raise cancelled


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Marks its exception as retrieved: the task that would have retrieved it was cancelled."""
    _left.discard(task)
    if not task.cancelled():
        task.exception()


# -- the session of a run that continues in another process --


class KeptSession(msgspec.Struct, frozen=True):
    """A session before a run wrote to it: how many events it had, and its state."""

    session_id: str
    events: int
    state: dict[str, Any]

    @classmethod
    def read(cls, kept: SessionKept) -> KeptSession:
        return msgspec.json.decode(unpack(kept.data), type=cls)


def keep_session(session: Session) -> SessionKept:
    state = to_jsonable_python(dict(session.state), fallback=repr)
    return SessionKept(pack(msgspec.json.encode(KeptSession(session.id, len(session.events), state))))


class ResumedSessions(BaseSessionService):
    """The session of one continued run, as that run knows it; all other sessions as they are."""

    def __init__(self, inner: BaseSessionService, before: KeptSession | None) -> None:
        self._inner = inner
        self._before = before
        self._stored: Session | None = None
        self._known: Session | None = None
        self._again: list[Event] = []
        """Events that the run appended before, and has not yet appended again."""
        self._invocations: dict[str, str] = {}
        """The invocation ids of earlier attempts, by those of this one: google-adk continues a turn by its id."""

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        before = self._before
        if before is None or session_id != before.session_id:
            return await self._inner.get_session(
                app_name=app_name, user_id=user_id, session_id=session_id, config=config
            )
        if self._known is None:
            self._stored = await self._inner.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
            if self._stored is None:
                return None
            self._again = self._stored.events[before.events :]
            self._known = self._stored.model_copy(
                update={"events": self._stored.events[: before.events], "state": dict(before.state)}
            )
        events = list(self._known.events)
        if config is not None and config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        if config is not None and config.num_recent_events is not None:
            events = events[-config.num_recent_events :] if config.num_recent_events else []
        return self._known.model_copy(update={"events": events, "state": dict(self._known.state)})

    async def append_event(self, session: Session, event: Event) -> Event:
        known, stored = self._known, self._stored
        if known is None or stored is None or session.id != known.id:
            return await self._inner.append_event(session, event)
        if event.partial:
            return event
        appended = await super().append_event(session, event)
        await super().append_event(known, appended)
        while not self._is_stored(appended):
            known_as = self._invocations.get(appended.invocation_id, appended.invocation_id)
            try:
                await self._inner.append_event(stored, appended.model_copy(update={"invocation_id": known_as}))
            except Exception:
                later = await self._read_late(stored)
                if later is None:
                    raise
                stored = later
                continue
            break
        return appended

    async def _read_late(self, stored: Session) -> Session | None:
        """The session, if the former owner of the run has stored something since: it was paused, and resumed in the middle
        of a write.

        Such an event, too, counts as appended before. Services refuse to append to a session that has changed, each with
        its own error.
        """
        found = await self._inner.get_session(app_name=stored.app_name, user_id=stored.user_id, session_id=stored.id)
        known = {event.id for event in stored.events}
        late = [] if found is None else [event for event in found.events if event.id not in known]
        if found is None or not late:
            return None
        self._again += late
        self._stored = found
        return found

    def _is_stored(self, event: Event) -> bool:
        key = _key(event)
        for place, other in enumerate(self._again):
            if other.author == event.author and _key(other) == key:
                del self._again[place]
                event.id, event.timestamp = other.id, other.timestamp
                self._invocations[event.invocation_id] = other.invocation_id
                return True
        return False

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        try:
            return await self._inner.create_session(
                app_name=app_name, user_id=user_id, state=state, session_id=session_id
            )
        except Exception:
            # The former owner may have created it meanwhile.
            found = session_id and await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
            if not found:
                raise
            return found

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        return await self._inner.list_sessions(app_name=app_name, user_id=user_id)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        await self._inner.delete_session(app_name=app_name, user_id=user_id, session_id=session_id)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return await self._inner.get_user_state(app_name=app_name, user_id=user_id)


def _key(event: Event) -> str:
    """The content of an event, by which it is recognised; if it has none, the state that it changes."""
    if event.content is not None and event.content.parts:
        # A store of JSON may return keys in another order.
        return json.dumps(event.content.model_dump(mode="json", exclude_none=True), sort_keys=True)
    return json.dumps(sorted(event.actions.state_delta))
