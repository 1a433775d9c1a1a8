"""Threads: a client's thread is a session of google-adk, found again or newly made.

Runs of a thread take turns (``runtime.Driver``): two at once would each read a session that lacks what the other is adding,
and the later write would be refused or lost. With ``ADKAgent.run`` this only works within one process: clients that send the
runs of a thread to several processes have to take turns themselves.

Idle threads are forgotten if an ``ADKAgent`` keeps them in its own memory; services and journals that it was given are
cleaned up by their owners. A given memory service gets the sessions of idle threads. A client that comes back sends the
conversation along, so its thread begins again with that history. A thread that awaits an answer is kept for a day, because
only its session can take the answer. There is no background task: memory grows only with runs, so each run that begins
checks whether there is something to forget.

The state of a session says which thread it belongs to, which messages of the thread it has had, and which calls await the
client's answer. The keys are ag_ui_adk's, so threads that began there continue here, and vice versa.

A client shares the state, except keys that hosts keep for themselves. State that a client sends is put into the session,
but keys of other scopes (``app:``, ``user:``) only if that is allowed, since they would reach other threads and other
people. Keys that are only for the run (``temp:``) reach its tools, but neither the session nor the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from ag_ui.core import Message, ToolMessage, UserMessage
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.genai.errors import ClientError
from pydantic_core import to_jsonable_python

from callstream.agui.messages import since_spoken
from callstream.calls import CallState
from callstream.errors import CallstreamError
from callstream.events import StateChanged
from callstream.journal import Journal

logger = logging.getLogger("callstream")

# -- the state of a session --------------------------------------------------------------------------------------------

OWN_PREFIX: Final = "_ag_ui_"
"""Keys with this prefix are hidden from clients."""
THREAD_KEY: Final = "_ag_ui_thread_id"
APP_KEY: Final = "_ag_ui_app_name"
USER_KEY: Final = "_ag_ui_user_id"
CONTEXT_KEY: Final = "_ag_ui_context"
CONFIRMATIONS_KEY: Final = "_ag_ui_pending_confirm_changes"
"""Which questions about predicted state are open."""
PENDING_KEY: Final = "pending_tool_calls"
"""Which calls await the client's answer, by the ids that it knows."""
RESUMED_KEY: Final = "_ag_ui_invocation_id"
"""Which invocation ag_ui_adk resumes with the next answer. Here google-adk finds it by the call."""
RENAMED_KEY: Final = "lro_tool_call_id_remap"
"""google-adk's ids of calls, by the client's, if they differ."""
OTHERS_KEYS: Final = frozenset({RENAMED_KEY, PENDING_KEY})
"""Bookkeeping keys without the usual prefix."""
_SEEN_PREFIX: Final = "_ag_ui_processed_message:"
_SEEN_LIST: Final = "_ag_ui_processed_message_ids"
_SCOPES = ("app:", "user:")
_OF_THE_RUN = "temp:"
_PRIVATE = (OWN_PREFIX, "_adk")


# -- bookkeeping --


def id_in_session(session: Session, named: str) -> str:
    """google-adk's id of a call that a client names."""
    renamed = session.state.get(RENAMED_KEY)
    found = str(renamed.get(named, named)) if isinstance(renamed, dict) else named
    return named if named.startswith(f"{found}~") else found  # the journal numbers ids, and knows the call by that one


def marks(messages: Iterable[Message]) -> dict[str, Any]:
    """The state that marks these messages as known to the session."""
    return {f"{_SEEN_PREFIX}{message.id}": True for message in messages if is_input(message)}


def is_input(message: Message) -> bool:
    return isinstance(message, UserMessage | ToolMessage)


def pending_marks(session: Session, known_as: Mapping[str, str], confirmations: Iterable[str]) -> dict[str, Any]:
    """Changes to the state that lists the calls that await an answer: those of long-running tools that have none.

    ``known_as``: the client's ids of calls, by google-adk's. ``confirmations``: open questions about predicted state.
    Callstream itself has all this in the journal, but ag_ui_adk accepts no answer to a call that is not listed.
    """
    pending = [known_as.get(call_id, call_id) for call_id in unanswered_in(session)]
    state = session.state
    renamed = {shown: call_id for call_id, shown in known_as.items() if shown in pending and shown != call_id}
    marked: dict[str, Any] = {PENDING_KEY: pending, CONFIRMATIONS_KEY: list(confirmations)}
    if renamed:
        marked[RENAMED_KEY] = {**(state.get(RENAMED_KEY) or {}), **renamed}
    return {key: value for key, value in marked.items() if value != (state.get(key) or [])}


def has_pending_marks(session: Session) -> bool:
    return bool(session.state.get(PENDING_KEY) or session.state.get(CONFIRMATIONS_KEY))


def unanswered_in(session: Session) -> list[str]:
    """google-adk's ids of the calls of long-running tools to which a session has no answer, in order."""
    answered = {response.id for event in session.events for response in event.get_function_responses()}
    return [
        call.id
        for event in session.events
        for call in event.get_function_calls()
        if call.id and call.id in (event.long_running_tool_ids or ()) and call.id not in answered
    ]


def seen_in(session: Session) -> set[str]:
    state = session.state
    found = {key.removeprefix(_SEEN_PREFIX) for key, value in state.items() if key.startswith(_SEEN_PREFIX) and value}
    older = state.get(_SEEN_LIST)
    return found | {str(each) for each in older} if isinstance(older, list) else found


# -- what a client shares --


def public_state(state: dict[str, Any]) -> dict[str, Any]:
    """The part of a session's state that the client sees, as JSON."""
    public = {key: value for key, value in state.items() if not _is_kept_back(key, (*_PRIVATE, _OF_THE_RUN))}
    return dict(to_jsonable_python(public, bytes_mode="base64", fallback=repr))


def accept_state(state: Any, *, allow_scopes: bool) -> dict[str, Any]:
    """The part of a client's state that goes into the session."""
    if not isinstance(state, dict):
        return {}
    refused = _PRIVATE if allow_scopes else (*_PRIVATE, *_SCOPES)
    return {key: value for key, value in state.items() if not _is_kept_back(key, refused)}


def _is_kept_back(key: str, prefixes: tuple[str, ...]) -> bool:
    return key.startswith(prefixes) or key in OTHERS_KEYS


class SharedState:
    """Tracks the state that the client has, and decides what to send it: deltas apply to what it has."""

    def __init__(self, known: Any) -> None:
        self._known: dict[str, Any] | None = None
        if isinstance(known, dict):
            self._known = {key: value for key, value in known.items() if not key.startswith(_OF_THE_RUN)}

    def snapshot(self, state: dict[str, Any], *, always: bool = False) -> list[StateChanged]:
        """The whole state, if the client does not have it; with ``always``, whenever it is not empty."""
        public = public_state(state)
        if public == (self._known or {}) and not (always and public):
            return []
        self._known = public
        return [StateChanged(snapshot=public)]

    def delta(self, changes: dict[str, Any]) -> list[StateChanged]:
        """The keys that changed."""
        if self._known is None:
            self._known = {}
            first = [StateChanged(snapshot={})]
        else:
            first = []
        public = public_state(changes)
        new = {key: value for key, value in public.items() if key not in self._known or self._known[key] != value}
        if not new:
            return []
        self._known = {**self._known, **new}
        return [*first, StateChanged(patch=[_add(key, value) for key, value in new.items()])]


def _add(key: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": "/" + key.replace("~", "~0").replace("/", "~1"), "value": value}


# -- the sessions of clients -------------------------------------------------------------------------------------------


ThreadKey: TypeAlias = tuple[str, str, str]
"""The names of an app, a user and a thread."""

_REMEMBERED: Final = 10_000
"""How many threads are remembered whose sessions have a different id, or no mark."""
_LOOK_INTERVAL: Final = 60.0
_AWAITING_SECONDS: Final = 24 * 3600.0
_REFUSALS: Final = (ValueError, TypeError, LookupError, NotImplementedError, ClientError)
"""Errors that a session service raises for an id in a form that it never assigns."""
_NO_REFUSALS: Final = (AlreadyExistsError, CallstreamError, OSError)
"""Errors that it raises for other reasons."""


class Threads:
    """Finds the session of a thread."""

    def __init__(self, service: BaseSessionService, *, thread_is_session: bool | None) -> None:
        """``thread_is_session``: whether a session has its thread's id. None: it has, unless the service refuses that."""
        self.service = service
        self._thread_is_session = thread_is_session is not False
        self._may_be_refused = thread_is_session is None
        self._cannot_list = False
        self._session_ids: dict[ThreadKey, str] = {}

    async def find(self, thread: ThreadKey) -> Session | None:
        """The session of a thread with all its events; None if it has none yet.

        A session that is marked with the thread takes precedence over one that has the thread's id but no mark: that is
        another program's, or was rewound, which removes even the marks that its state had from the beginning.
        """
        app_name, user_id, thread_id = thread
        known = self._session_ids.get(thread)
        found: Session | None = None
        if known is not None or self._thread_is_session:
            found = await self._session(app_name, user_id, known or thread_id)
            if found is not None and _is_marked(found, app_name, thread_id, or_not_at_all=known is not None):
                return found
        listed = await self._listed(app_name, user_id)
        marked = [each.id for each in listed if _is_marked(each, app_name, thread_id)]
        if marked or (found is None and any(each.id == thread_id for each in listed)):
            session_id = marked[0] if marked else thread_id
            if len(marked) > 1:
                logger.warning("thread %s has several sessions, of which the first is used: %s", thread_id, marked)
            found = await self.service.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
        if found is None or not _is_marked(found, app_name, thread_id, or_not_at_all=True):
            return None
        self._remember(thread, found.id)
        return found

    async def open(self, thread: ThreadKey) -> Session:
        """The session of a thread; a new one if it has none."""
        session = await self.find(thread)
        if session is None:
            app_name, user_id, thread_id = thread
            state = {THREAD_KEY: thread_id, APP_KEY: app_name, USER_KEY: user_id}
            create = partial(self.service.create_session, app_name=app_name, user_id=user_id, state=state)
            try:
                session = await self._create(create, thread_id) if self._thread_is_session else await create()
            except AlreadyExistsError:
                session = await self.find(thread)  # another process has just created it
                if session is None:
                    raise
            if session.id != thread_id:
                self._remember(thread, session.id)
        return session

    async def _session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """None also if the service does not accept such an id: then its list of sessions is searched."""
        try:
            return await self.service.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
        except _REFUSALS:
            if not self._may_be_refused:
                raise
            return None

    async def _listed(self, app_name: str, user_id: str) -> Sequence[Session]:
        """The user's sessions. If the service cannot list them, sessions are found only by their threads' ids."""
        try:
            return (await self.service.list_sessions(app_name=app_name, user_id=user_id)).sessions
        except NotImplementedError:
            if not self._cannot_list:
                self._cannot_list = True
                service = self.service.__class__.__name__
                logger.warning("%s cannot list sessions: those with ids of its own are not found again", service)
            return ()

    async def _create(self, create: Callable[..., Awaitable[Session]], thread_id: str) -> Session:
        """A session with the thread's id. Some services assign their own ids, and nothing announces that."""
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

    async def delete(self, thread: ThreadKey) -> None:
        """Deletes the session of a thread, if it has one."""
        session = await self.find(thread)
        if session is not None:
            app_name, user_id, _ = thread
            await self.service.delete_session(app_name=app_name, user_id=user_id, session_id=session.id)
        self._session_ids.pop(thread, None)

    def _remember(self, thread: ThreadKey, session_id: str) -> None:
        """Saves listing the sessions next time. Clients may create any number of threads, so this is not kept forever."""
        if len(self._session_ids) >= _REMEMBERED:
            self._session_ids.clear()
        self._session_ids[thread] = session_id


def _is_marked(session: Session, app_name: str, thread_id: str, *, or_not_at_all: bool = False) -> bool:
    """Whether a session is marked as this thread's (``or_not_at_all``: or not marked). Some services mix apps' sessions."""
    thread = session.state.get(THREAD_KEY)
    is_the_apps = session.state.get(APP_KEY) in (None, app_name)
    return is_the_apps and (thread == thread_id or (or_not_at_all and thread is None))


def split(
    messages: Sequence[Message], session: Session, heard: Collection[str] = ()
) -> tuple[list[Message], list[Message]]:
    """Splits the messages into those that the session has had, or should have had, and new ones.

    A session that has no marks of messages counts as having had all up to the model's last, and those that an earlier
    session of the thread has ``heard``, by their ids. Messages that the client knows from the session itself (those of an
    imported thread) have the ids of its events.
    """
    seen = seen_in(session)
    if seen:
        seen |= {event.id for event in session.events}
        new = [message for message in messages if message.id not in seen and is_input(message)]
        return [message for message in messages if message not in new], new
    new = [message for message in since_spoken(messages) if is_input(message) and message.id not in heard]
    return [message for message in messages if message not in new], new


class IdleThreads:
    """``owns_journal`` and ``owns_sessions``: whether the agent has to clean them up.

    ``memory`` gets idle sessions, each in a task of its own: some services call a model for each.
    """

    def __init__(
        self,
        timeout: float,
        journal: Journal,
        threads: Threads,
        memory: BaseMemoryService | None = None,
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
        self._remembering: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._used: dict[ThreadKey, float] = {}  # the longest unused first
        self._next_look = clock() + min(timeout, _LOOK_INTERVAL)

    def use(self, thread: ThreadKey) -> None:
        self._used.pop(thread, None)
        self._used[thread] = self._clock()

    async def forget(self, busy: set[str]) -> None:
        """Forgets threads that were not used for the timeout, except those with an active run."""
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
        if self._memory is not None and (session := await self._threads.find(key)) is not None:
            task = asyncio.create_task(_remember(self._memory, session), name=f"callstream memory {session.id}")
            self._remembering.add(task)
            task.add_done_callback(self._remembering.discard)
        if self._owns_sessions:
            await self._threads.delete(key)
        if self._owns_journal:
            # Only to save memory: a session that is kept elsewhere may be imported again.
            await self._journal.forget(thread=thread_id, principal=user_id, for_good=False)

    async def wait(self) -> None:
        """Waits for the sessions that this event loop is adding to the memory service."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[task for task in self._remembering if task.get_loop() is loop])


async def _remember(memory: BaseMemoryService, session: Session) -> None:
    try:
        await memory.add_session_to_memory(session)
    except Exception:
        logger.exception("the session of thread %s could not be added to memory", session.id)
