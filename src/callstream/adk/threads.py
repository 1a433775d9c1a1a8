"""Threads and sessions: a client's thread is a session of google-adk, found again or made.

A session says in its state which thread it is, and which messages of the thread it has had; the keys are ag_ui_adk's, so
its threads go on here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ag_ui.core import Message, ToolMessage, UserMessage
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session

from callstream.adk.contents import history_event
from callstream.agui.given import since_spoken

OWN_PREFIX: Final = "_ag_ui_"
"""Keys that begin so are no client's business."""
THREAD_KEY: Final = "_ag_ui_thread_id"
APP_KEY: Final = "_ag_ui_app_name"
USER_KEY: Final = "_ag_ui_user_id"
CONTEXT_KEY: Final = "_ag_ui_context"
CONFIRMATIONS_KEY: Final = "_ag_ui_pending_confirm_changes"
"""Which questions about predicted state ag_ui_adk left open."""
RENAMED_KEY: Final = "lro_tool_call_id_remap"
"""ag_ui_adk's account of calls that its client knows under another id than google-adk."""
OTHERS_KEYS: Final = frozenset({RENAMED_KEY, "pending_tool_calls"})
"""Keys of ag_ui_adk's books that do not begin like its others."""
_REMEMBERED: Final = 10_000
"""Threads whose sessions have other ids than they."""
_SEEN_PREFIX: Final = "_ag_ui_processed_message:"
_SEEN_LIST: Final = "_ag_ui_processed_message_ids"


class Threads:
    """Finds the session of a thread."""

    def __init__(self, service: BaseSessionService, *, thread_is_session: bool | None) -> None:
        self.service = service
        # Vertex gives sessions ids of its own and refuses others.
        named_by_service = type(service).__name__.startswith("VertexAi")
        self._thread_is_session = not named_by_service if thread_is_session is None else thread_is_session
        self._session_ids: dict[tuple[str, str, str], str] = {}

    async def find(self, app_name: str, user_id: str, thread_id: str) -> Session | None:
        """The session of a thread with all its events, None if it has none yet."""
        known = self._session_ids.get((app_name, user_id, thread_id), thread_id)
        if known != thread_id or self._thread_is_session:
            session = await self.service.get_session(app_name=app_name, user_id=user_id, session_id=known)
            if session is not None and session.state.get(THREAD_KEY, thread_id) == thread_id:
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
            session = await self.service.create_session(
                app_name=app_name,
                user_id=user_id,
                state={THREAD_KEY: thread_id, APP_KEY: app_name, USER_KEY: user_id},
                session_id=thread_id if self._thread_is_session else None,
            )
            self._remember(app_name, user_id, thread_id, session.id)
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


def renamed(session: Session, named: str) -> str:
    """google-adk's id of a call that a client names."""
    known = session.state.get(RENAMED_KEY)
    return str(known.get(named, named)) if isinstance(known, dict) else named


def split(messages: Sequence[Message], session: Session) -> tuple[list[Message], list[Message]]:
    """What the session has had or should have had, and what is new.

    A session that kept no account of messages has had all up to the model's last. Messages that the client knows from
    the session itself (an imported thread's) have the ids of its events.
    """
    seen = _seen_in(session)
    if seen:
        seen |= {event.id for event in session.events}
        new = [message for message in messages if message.id not in seen and _is_input(message)]
        return [message for message in messages if message not in new], new
    since = since_spoken(messages)
    return list(messages[: len(messages) - len(since)]), [message for message in since if _is_input(message)]


def marks(messages: Iterable[Message]) -> dict[str, Any]:
    """The state that says that a session has had these messages."""
    return {f"{_SEEN_PREFIX}{message.id}": True for message in messages if _is_input(message)}


def _is_input(message: Message) -> bool:
    return isinstance(message, UserMessage | ToolMessage)


def _seen_in(session: Session) -> set[str]:
    state = session.state
    found = {key.removeprefix(_SEEN_PREFIX) for key, value in state.items() if key.startswith(_SEEN_PREFIX) and value}
    older = state.get(_SEEN_LIST)
    return found | {str(each) for each in older} if isinstance(older, list) else found
