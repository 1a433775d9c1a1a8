"""Threads: a client's thread is a session of google-adk, found again or made.

Runs of a thread take turns (``runtime.Driver``): two at once would each read a session that lacks what the other is adding,
and the later write would be refused or lost. With ``ADKAgent.run`` this holds for one process: clients that send the runs
of a thread to several processes have to take turns themselves.

Idle threads are forgotten, as far as an ``ADKAgent`` keeps them in memory itself: services and journals that it was given
are their owner's to clean up. A memory service that it was given gets their sessions. A client that comes back sends the
conversation along, so its thread begins anew with that history. A thread that awaits an answer is kept for a day, because
only its session can take the answer. There is no task in the background: memory grows with runs, so each run that begins
looks whether there is something to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

from ag_ui.core import Message
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.genai.errors import ClientError

from callstream.adk.contents import history_event
from callstream.adk.state import APP_KEY, THREAD_KEY, USER_KEY, is_input, seen_in
from callstream.agui.input import since_spoken
from callstream.calls import CallState
from callstream.errors import CallstreamError
from callstream.journal import Journal

logger = logging.getLogger("callstream")

ThreadKey: TypeAlias = tuple[str, str, str]
"""The names of an app, a user and a thread."""

_REMEMBERED: Final = 10_000
"""Threads whose sessions have other ids than they."""
_LOOK_INTERVAL: Final = 60.0
_AWAITING_SECONDS: Final = 24 * 3600.0
_REFUSALS: Final = (ValueError, TypeError, LookupError, NotImplementedError, ClientError)
"""What a session service raises for an id that it cannot have given."""
_NO_REFUSALS: Final = (AlreadyExistsError, CallstreamError, OSError)
"""What it raises for other reasons."""


class Threads:
    """Finds the session of a thread."""

    def __init__(self, service: BaseSessionService, *, thread_is_session: bool | None) -> None:
        """``thread_is_session``: whether a session has its thread's id. None: unless the service refuses it."""
        self.service = service
        self._thread_is_session = thread_is_session is not False
        self._may_be_refused = thread_is_session is None
        self._session_ids: dict[tuple[str, str, str], str] = {}

    async def find(self, app_name: str, user_id: str, thread_id: str) -> Session | None:
        """The session of a thread with all its events, None if it has none yet."""
        known = self._session_ids.get((app_name, user_id, thread_id), thread_id)
        if known != thread_id or self._thread_is_session:
            session = await self._session(app_name, user_id, known)
            # Rewinding a session takes away what its state had from the beginning.
            if session is not None and session.state.get(THREAD_KEY) in (None, thread_id):
                return session
        listed = await self.service.list_sessions(app_name=app_name, user_id=user_id)
        for session in listed.sessions:
            if session.state.get(THREAD_KEY) == thread_id:
                self._remember(app_name, user_id, thread_id, session.id)
                return await self.service.get_session(app_name=app_name, user_id=user_id, session_id=session.id)
        return None

    async def open(self, app_name: str, user_id: str, thread_id: str) -> Session:
        """The session of a thread; a new one if it has none."""
        session = await self.find(app_name, user_id, thread_id)
        if session is None:
            state = {THREAD_KEY: thread_id, APP_KEY: app_name, USER_KEY: user_id}
            create = partial(self.service.create_session, app_name=app_name, user_id=user_id, state=state)
            session = await self._create(create, thread_id) if self._thread_is_session else await create()
            self._remember(app_name, user_id, thread_id, session.id)
        return session

    async def _session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """None also if the service does not take such an id: then its list of sessions tells."""
        try:
            return await self.service.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
        except _REFUSALS:
            if not self._may_be_refused:
                raise
            return None

    async def _create(self, create: Callable[..., Awaitable[Session]], thread_id: str) -> Session:
        """A session with the thread's id. Some services give ids of their own, and no property of theirs says so."""
        service = self.service.__class__.__name__
        try:
            return await create(session_id=thread_id)
        except _NO_REFUSALS:
            raise
        except Exception as refusal:
            if not self._may_be_refused:
                refusal.add_note(
                    f"{service} was to use the thread's id, {thread_id!r}: use_thread_id_as_session_id=True"
                )
                raise
            try:
                session = await create()
            except Exception as error:
                error.add_note(
                    f"{service} made no session for thread {thread_id!r}, neither with that id nor without one"
                )
                raise
            logger.info("%s refuses ids of threads (%s): sessions have ids of its own", service, refusal)
            self._thread_is_session = False
            return session

    async def delete(self, app_name: str, user_id: str, thread_id: str) -> None:
        """Deletes the session of a thread, if it has one."""
        session = await self.find(app_name, user_id, thread_id)
        if session is not None:
            await self.service.delete_session(app_name=app_name, user_id=user_id, session_id=session.id)
        self._session_ids.pop((app_name, user_id, thread_id), None)

    def _remember(self, app_name: str, user_id: str, thread_id: str, session_id: str) -> None:
        """Saves the list of sessions the next time. Clients make as many threads as they like, so not for ever."""
        if session_id == thread_id:
            return
        if len(self._session_ids) >= _REMEMBERED:
            self._session_ids.clear()
        self._session_ids[app_name, user_id, thread_id] = session_id

    async def seed(self, session: Session, messages: Iterable[Message], author: str) -> None:
        """Gives a new session the history of a conversation that began elsewhere."""
        names: dict[str, str] = {}
        for message in messages:
            event = history_event(message, author, names)
            if event is not None:
                await self.service.append_event(session, event)


def split(
    messages: Sequence[Message], session: Session, heard: Collection[str] = ()
) -> tuple[list[Message], list[Message]]:
    """What the session has had or should have had, and what is new.

    A session that kept no account of messages has had all up to the model's last, and those that an earlier session of
    the thread has ``heard``, by their ids. Messages that the client knows from
    the session itself (an imported thread's) have the ids of its events.
    """
    seen = seen_in(session)
    if seen:
        seen |= {event.id for event in session.events}
        new = [message for message in messages if message.id not in seen and is_input(message)]
        return [message for message in messages if message not in new], new
    new = [message for message in since_spoken(messages) if is_input(message) and message.id not in heard]
    return [message for message in messages if message not in new], new


class SessionMemory:
    """Adds sessions to a memory service, each in a task of its own: some services ask a model about each."""

    def __init__(self, service: BaseMemoryService) -> None:
        self._service = service
        self._adding: set[asyncio.Task[None]] = set()

    def add(self, session: Session) -> None:
        task = asyncio.create_task(self._add(session), name=f"callstream memory {session.id}")
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)

    async def _add(self, session: Session) -> None:
        try:
            await self._service.add_session_to_memory(session)
        except Exception:
            logger.exception("the session of thread %s could not be added to memory", session.id)

    async def wait(self) -> None:
        """Waits until those are added that this event loop adds."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[task for task in self._adding if task.get_loop() is loop])


class IdleThreads:
    """``owns_journal`` and ``owns_sessions``: whether they are the agent's to clean up. ``memory`` gets idle sessions."""

    def __init__(
        self,
        timeout: float,
        journal: Journal,
        threads: Threads,
        memory: SessionMemory | None = None,
        *,
        owns_journal: bool,
        owns_sessions: bool = True,
        clock: Callable[[], float],
    ) -> None:
        self._timeout = timeout
        self._journal = journal
        self._owns_journal = owns_journal
        self._owns_sessions = owns_sessions
        self._threads = threads
        self._memory = memory
        self._clock = clock
        self._used: dict[ThreadKey, float] = {}  # the longest unused first
        self._next_look = clock() + min(timeout, _LOOK_INTERVAL)

    def use(self, thread: ThreadKey) -> None:
        self._used.pop(thread, None)
        self._used[thread] = self._clock()

    async def forget(self, busy: set[str]) -> None:
        """Forgets what was not used for the timeout, but for threads with an active run."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + min(self._timeout, _LOOK_INTERVAL)
        idle = [key for key, used in self._used.items() if used < now - self._timeout and key[2] not in busy]
        for key in idle:
            if self._used[key] < now - _AWAITING_SECONDS or not await self._awaits_answer(key):
                await self._forget(key)

    async def _awaits_answer(self, key: ThreadKey) -> bool:
        _, user_id, thread_id = key
        awaiting = await self._journal.calls(
            thread_id=thread_id, principal=user_id, states=[CallState.AWAITING], limit=1
        )
        return bool(awaiting)

    async def _forget(self, key: ThreadKey) -> None:
        del self._used[key]
        _, user_id, thread_id = key
        if self._memory is not None and (session := await self._threads.find(*key)) is not None:
            self._memory.add(session)
        if self._owns_sessions:
            await self._threads.delete(*key)
        if self._owns_journal:
            # To save memory only: a session that is kept elsewhere may be imported again.
            await self._journal.forget(thread=thread_id, principal=user_id, for_good=False)
