"""State that an agent shares with its client.

The session's state, without the keys that hosts keep for themselves. What a client sends is taken into the session;
keys of other scopes (``app:``, ``user:``) only where that is allowed, for they would reach other threads and other
people. Keys of the run alone (``temp:``) reach its tools, and neither the session nor the client gets them back.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python

from callstream.adk.threads import OTHERS_KEYS, OWN_PREFIX
from callstream.events import StateChanged

_SCOPES = ("app:", "user:")
_OF_THE_RUN = "temp:"
_PRIVATE = (OWN_PREFIX, "_adk")


def shown(state: dict[str, Any]) -> dict[str, Any]:
    """What of a session's state the client sees, as JSON."""
    public = {key: value for key, value in state.items() if not _is_refused(key, (*_PRIVATE, _OF_THE_RUN))}
    return dict(to_jsonable_python(public, bytes_mode="base64", fallback=repr))


def taken(state: Any, *, allow_scopes: bool) -> dict[str, Any]:
    """What of a client's state goes into the session."""
    if not isinstance(state, dict):
        return {}
    refused = _PRIVATE if allow_scopes else (*_PRIVATE, *_SCOPES)
    return {key: value for key, value in state.items() if not _is_refused(key, refused)}


def _is_refused(key: str, prefixes: tuple[str, ...]) -> bool:
    return key.startswith(prefixes) or key in OTHERS_KEYS


class SharedState:
    """What the client knows of the state, and what it has to be told: deltas apply to what it has."""

    def __init__(self, known: Any) -> None:
        self._known: dict[str, Any] | None = None
        if isinstance(known, dict):
            self._known = {key: value for key, value in known.items() if not key.startswith(_OF_THE_RUN)}

    def snapshot(self, state: dict[str, Any]) -> list[StateChanged]:
        """All of it, if that is not what the client knows."""
        public = shown(state)
        if public == (self._known or {}):
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
        public = shown(changes)
        new = {key: value for key, value in public.items() if key not in self._known or self._known[key] != value}
        if not new:
            return []
        self._known = {**self._known, **new}
        return [*first, StateChanged(patch=[_added(key, value) for key, value in new.items()])]


def _added(key: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": "/" + key.replace("~", "~0").replace("/", "~1"), "value": value}
