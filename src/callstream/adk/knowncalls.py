"""Which call google-adk means by an id.

An id tells a call only together with who made it: agents that run beside each other have models that may use the same
ids, and so may one model in two of its turns. The agent is what all of google-adk agrees on. The branch is not: what runs
after parallel agents has no branch in its contexts, and that of one of these in its events. So it decides only between
calls of one agent, which a Workflow may run several times at once.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event

USER = "user"
"""The author of what google-adk answers in the name of another: the result of a task that an agent delegated."""


class Speaker(NamedTuple):
    """An agent of an invocation in one of its branches."""

    agent: str
    branch: str | None

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(event.author, event.branch)

    @classmethod
    def within(cls, context: CallbackContext) -> Self:
        return cls(context.agent_name, context.branch)


class KnownCalls:
    """The ``call_id`` of each call of an invocation that google-adk knows."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Speaker, str]] = {}

    def bind(self, speaker: Speaker, function_call_id: str, call_id: str) -> None:
        """From now on the speaker means this call by the id."""
        meant = self._known.setdefault(function_call_id, {})
        meant.pop(speaker, None)
        meant[speaker] = call_id

    def find(self, speaker: Speaker, function_call_id: str | None) -> tuple[Speaker, str] | None:
        """The call that is meant, and who made it: of several of one speaker the newest, else the newest of the agent."""
        meant = self._known.get(function_call_id or "", {})
        if speaker in meant:
            return speaker, meant[speaker]
        theirs = [(who, call_id) for who, call_id in meant.items() if speaker.agent in (who.agent, USER)]
        return theirs[-1] if theirs else None

    def call_ids(self) -> list[str]:
        """All of them, in no particular order."""
        return list(dict.fromkeys(call_id for meant in self._known.values() for call_id in meant.values()))
