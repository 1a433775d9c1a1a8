"""The state of a session: the books that Callstream keeps in it, and what of it a client shares.

A session says in its state which thread it is, which messages of the thread it has had, and which calls await an answer of
the client. The keys are ag_ui_adk's, so threads that began under it continue here, and there if a program goes back to it.

A client shares the state without the keys that hosts keep for themselves. What a client sends is taken into the session;
keys of other scopes (``app:``, ``user:``) only where that is allowed, for they would reach other threads and other
people. Keys of the run alone (``temp:``) reach its tools, and neither the session nor the client gets them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ag_ui.core import Message, ToolMessage, UserMessage
from google.adk.sessions.session import Session
from pydantic_core import to_jsonable_python

from callstream.events import StateChanged

OWN_PREFIX: Final = "_ag_ui_"
"""Keys that begin so are no client's business."""
THREAD_KEY: Final = "_ag_ui_thread_id"
APP_KEY: Final = "_ag_ui_app_name"
USER_KEY: Final = "_ag_ui_user_id"
CONTEXT_KEY: Final = "_ag_ui_context"
CONFIRMATIONS_KEY: Final = "_ag_ui_pending_confirm_changes"
"""Which questions about predicted state are open."""
PENDING_KEY: Final = "pending_tool_calls"
"""Which calls await an answer of the client, by the ids that it knows."""
RENAMED_KEY: Final = "lro_tool_call_id_remap"
"""The calls that the client knows under another id than google-adk: that id, by the client's."""
OTHERS_KEYS: Final = frozenset({RENAMED_KEY, PENDING_KEY})
"""Keys of the books that do not begin like the others."""
_SEEN_PREFIX: Final = "_ag_ui_processed_message:"
_SEEN_LIST: Final = "_ag_ui_processed_message_ids"
_SCOPES = ("app:", "user:")
_OF_THE_RUN = "temp:"
_PRIVATE = (OWN_PREFIX, "_adk")


# -- the books --


def id_in_session(session: Session, named: str) -> str:
    """google-adk's id of a call that a client names."""
    renamed = session.state.get(RENAMED_KEY)
    found = str(renamed.get(named, named)) if isinstance(renamed, dict) else named
    return named if named.startswith(f"{found}~") else found  # the journal numbers ids, and knows the call by that one


def marks(messages: Iterable[Message]) -> dict[str, Any]:
    """The state that says that a session has had these messages."""
    return {f"{_SEEN_PREFIX}{message.id}": True for message in messages if is_input(message)}


def is_input(message: Message) -> bool:
    return isinstance(message, UserMessage | ToolMessage)


def pending_marks(session: Session, known_as: Mapping[str, str], confirmations: Iterable[str]) -> dict[str, Any]:
    """What changes in the state that says which calls await an answer: those of long-running tools that have none.

    ``known_as``: the client's ids of calls, by google-adk's. ``confirmations``: open questions about predicted state. Here
    the journal knows all this. ag_ui_adk takes no answer to a call that is not marked.
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
    """google-adk's ids of the calls of long-running tools to which a session has no answer, in their order."""
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
    """What of a session's state the client sees, as JSON."""
    public = {key: value for key, value in state.items() if not _is_kept_back(key, (*_PRIVATE, _OF_THE_RUN))}
    return dict(to_jsonable_python(public, bytes_mode="base64", fallback=repr))


def accept_state(state: Any, *, allow_scopes: bool) -> dict[str, Any]:
    """What of a client's state goes into the session."""
    if not isinstance(state, dict):
        return {}
    refused = _PRIVATE if allow_scopes else (*_PRIVATE, *_SCOPES)
    return {key: value for key, value in state.items() if not _is_kept_back(key, refused)}


def _is_kept_back(key: str, prefixes: tuple[str, ...]) -> bool:
    return key.startswith(prefixes) or key in OTHERS_KEYS


class SharedState:
    """What the client knows of the state, and what it has to be told: deltas apply to what it has."""

    def __init__(self, known: Any) -> None:
        self._known: dict[str, Any] | None = None
        if isinstance(known, dict):
            self._known = {key: value for key, value in known.items() if not key.startswith(_OF_THE_RUN)}

    def snapshot(self, state: dict[str, Any], *, always: bool = False) -> list[StateChanged]:
        """All of it, if that is not what the client knows; ``always``: in any case."""
        public = public_state(state)
        if public == (self._known or {}) and not always:
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
