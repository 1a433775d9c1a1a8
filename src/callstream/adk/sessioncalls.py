"""The calls that stand in a session, those of the model and those with which google-adk itself asks a person.

A long-running tool that returns nothing asks: the first answer counts, and no other. One that returns something has begun
a job: as in google-adk, every response that comes later reaches the model. The job goes on while a response says so
(``will_continue``), or has the ``status`` that the tool itself returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.hostquestions import HOST_QUESTIONS, asked_about


class SessionCalls:
    """Iterating gives the calls in their order. Read once: it does not see what is appended to the session later.

    ``together`` has the calls of each event, ``responded`` the ids of those that have a response.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
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

    def is_asked_about(self, wire_id: str) -> bool:
        """Whether google-adk has ever asked about the call with this id."""
        return any(asked_about(call) == wire_id for call in self if call.name in HOST_QUESTIONS)

    # -- jobs --

    def is_long_running(self, wire_id: str | None) -> bool:
        """Whether google-adk has marked the call as one that is answered later."""
        return any(wire_id in (event.long_running_tool_ids or ()) for event in self._session.events)

    def is_news(self, response: types.FunctionResponse) -> bool:
        """Whether it is a response to a job, and another than the one before."""
        if self._first_response(response.id) is None:
            return False
        earlier = [each.response for _, each in self._responses(response.id)]
        return earlier[-1] != response.response

    def goes_on(self, response: types.FunctionResponse) -> bool:
        """Whether the job, or whoever is asked, has more to say."""
        if response.will_continue:
            return True
        first = self._first_response(response.id)
        status = (first or {}).get("status")
        return status is not None and (response.response or {}).get("status") == status

    def _first_response(self, wire_id: str | None) -> dict[str, Any] | None:
        """What the tool itself returned for a long-running call."""
        if not self.is_long_running(wire_id):
            return None
        return next((each.response for author, each in self._responses(wire_id) if author != "user"), None)

    def _responses(self, wire_id: str | None) -> Iterator[tuple[str, types.FunctionResponse]]:
        for event in self._session.events:
            for response in event.get_function_responses():
                if response.id == wire_id:
                    yield event.author, response
