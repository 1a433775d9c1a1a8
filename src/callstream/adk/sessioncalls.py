"""The calls that stand in a session, those of the model and those with which google-adk itself asks a person."""

from __future__ import annotations

from collections.abc import Iterator

from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.hostquestions import CONFIRMATION, asked_about


class SessionCalls:
    """Iterating gives the calls in their order. Read once: it does not see what is appended to the session later.

    ``together`` has the calls of each event, ``responded`` the ids of those that have a response.
    """

    def __init__(self, session: Session) -> None:
        self.together = [event.get_function_calls() for event in session.events]
        self.responded = {each.id for event in session.events for each in event.get_function_responses()}

    def __iter__(self) -> Iterator[types.FunctionCall]:
        for calls in self.together:
            yield from calls

    def named(self, wire_id: str) -> types.FunctionCall | None:
        return next((call for call in self if call.id == wire_id), None)

    def confirmations(self) -> Iterator[types.FunctionCall]:
        """The open questions of google-adk itself whether a call may run."""
        return (call for call in self if call.name == CONFIRMATION and call.id not in self.responded)

    def confirmation(self, wire_id: str) -> types.FunctionCall | None:
        """The one of them that has this id."""
        return next((question for question in self.confirmations() if question.id == wire_id), None)

    def confirmation_of(self, wire_id: str) -> types.FunctionCall | None:
        """The one of them that asks about the call with this id."""
        return next((question for question in self.confirmations() if asked_about(question) == wire_id), None)
