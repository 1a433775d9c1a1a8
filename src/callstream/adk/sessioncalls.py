"""The calls that stand in a session, those of the model and those with which google-adk itself asks a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.hostquestions import HOST_QUESTIONS, asked_about


class SessionCalls:
    """Iterating gives the calls in their order. Read once: it does not see what is appended to the session later.

    ``together`` has the calls of each event, ``responded`` the ids of those that have a response.
    """

    def __init__(self, session: Session) -> None:
        self.together = [event.get_function_calls() for event in session.events]
        self._answers = Counter(each.id for event in session.events for each in event.get_function_responses())
        self.responded = set(self._answers)

    def __iter__(self) -> Iterator[types.FunctionCall]:
        for calls in self.together:
            yield from calls

    def named(self, wire_id: str) -> types.FunctionCall | None:
        return next((call for call in self if call.id == wire_id), None)

    def questions(self) -> list[types.FunctionCall]:
        """The open questions of google-adk itself. One that is asked again under its id is open again."""
        asked = [call for call in self if call.name in HOST_QUESTIONS and call.id]
        answered = self._answers.copy()
        still_open: list[types.FunctionCall] = []
        for question in asked:
            if answered[question.id]:
                answered[question.id] -= 1
            else:
                still_open.append(question)
        return still_open

    def question(self, wire_id: str) -> types.FunctionCall | None:
        """The latest question of google-adk's that has this id, open or not."""
        return next((call for call in reversed(list(self)) if call.id == wire_id and call.name in HOST_QUESTIONS), None)

    def question_about(self, wire_id: str) -> types.FunctionCall | None:
        """The open one that asks about the call with this id."""
        return next((question for question in self.questions() if asked_about(question) == wire_id), None)
