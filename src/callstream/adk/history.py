"""A thread that began before the journal: its session becomes a run that has ended, when the thread is first touched.

So what a client is shown of it is a fold of the journal like everything else, and calls that await an answer are found
where all others are. Nothing of it happens again: no hook runs.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.genai import types
from pydantic_core import to_jsonable_python

from callstream.adk.answers import HOST_QUESTIONS, outcome
from callstream.adk.partials import MINTED_PREFIX
from callstream.adk.predictions import CONFIRM_TOOL
from callstream.adk.threads import CONFIRMATIONS_KEY
from callstream.errors import CallIdTaken
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallFailed,
    CallReturned,
    CallStarted,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    ReasoningAppended,
    RunEnded,
    RunEvent,
    RunStarted,
    TextAppended,
)
from callstream.journal import Journal
from callstream.journal.protocol import Entry
from callstream.wire.argtext import json_text

_NAMESPACE = uuid.UUID("5d6a3c1e-2f0b-5a44-9c57-0b8f6f3f9f11")
_CONFIRMATION = "adk_request_confirmation"


async def import_session(journal: Journal, thread_id: str, session: Session) -> None:
    """Takes a session into the journal. Does nothing if it has nothing to tell, or is there already."""
    run_id = str(uuid.uuid5(_NAMESPACE, "\n".join((session.app_name, session.user_id, session.id))))
    if not session.events or await journal.runs(run_id=run_id, limit=1):
        return
    while True:
        history = _History(session)
        for call in history.calls:
            call.call_id = await _free(journal, call.wire_id, history.taken)
        started = Entry(RunStarted(thread_id, session.user_id))
        try:
            await journal.append(run_id, [started, *history.entries(run_id), Entry(RunEnded("finished"))], after=0)
        except CallIdTaken:
            continue  # another process was first with that id
        return


async def _free(journal: Journal, wanted: str, taken: set[str]) -> str:
    free, number = await journal.free_call_id(wanted), 1
    while free in taken:
        number += 1
        free = await journal.free_call_id(f"{wanted}~{number}")
    taken.add(free)
    return free


class _PastCall(msgspec.Struct, eq=False):
    """A call of the session, the place of the event that has its result, and the result."""

    wire_id: str
    name: str
    args: dict[str, Any]
    signature: bytes | None = None
    call_id: str = ""
    answered_at: int | None = None
    response: Any = None

    def opening(self, message_id: str | None) -> Iterator[RunEvent]:
        provider_id = None if self.wire_id.startswith(MINTED_PREFIX) else self.wire_id
        signature = base64.b64encode(self.signature).decode() if self.signature else None
        text = json_text(self.args)
        yield CallStarted(self.call_id, self.name, provider_id, signature, message_id=message_id)
        yield ArgsAppended(self.call_id, text)
        yield CallCompleted(self.call_id, text)

    def closing(self) -> RunEvent:
        told = to_jsonable_python(self.response, bytes_mode="base64", fallback=repr)
        result, error = outcome(told)
        return CallReturned(self.call_id, result) if error is None else CallFailed(self.call_id, error)


class _History:
    """What a session's events say, in their order. Of several results of one call the last counts."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: list[list[_PastCall]] = []  # the calls of each event
        self.taken: set[str] = set()
        self.calls: list[_PastCall] = []
        latest: dict[str, _PastCall] = {}
        for place, event in enumerate(session.events):
            made = list(_calls_in(event))
            self._made.append(made)
            self.calls += made
            latest |= {call.wire_id: call for call in made}
            for response in event.get_function_responses():
                if (answered := latest.get(response.id or "")) is not None:
                    answered.answered_at, answered.response = place, response.response
        for wire_id in _to_confirm(session):
            if wire_id in latest:
                latest[wire_id].answered_at = None  # what it has is google-adk's word that it waits
        pending = session.state.get(CONFIRMATIONS_KEY)
        self._questions = [_PastCall(str(each), CONFIRM_TOOL, {}) for each in pending or ()]
        self.calls += self._questions

    def entries(self, run_id: str) -> Iterator[Entry]:
        for place, event in enumerate(self._session.events):
            response_id = f"{run_id}~{place}"
            for each in self._events(place, event):
                yield Entry(each, response_id, None if event.author == "user" else event.author)
        for question in self._questions:
            for each in question.opening(None):
                yield Entry(each)
        for call in self.calls:
            if call.answered_at is None:
                yield Entry(CallAwaiting(call.call_id))

    def _events(self, place: int, event: Event) -> Iterator[RunEvent]:
        parts = list(event.content.parts or ()) if event.content is not None else []
        if event.author == "user":
            yield from _said(event, parts)
        else:
            yield from _answered(event, parts, self._made[place])
        for call in self.calls:
            if call.answered_at == place:
                yield call.closing()


def _said(event: Event, parts: list[types.Part]) -> Iterator[RunEvent]:
    text = "".join(part.text for part in parts if part.text)
    blobs = [blob for part in parts if (blob := part.inline_data or part.file_data) is not None]
    if text or blobs:
        kinds = tuple(blob.mime_type or "file" for blob in blobs)
        yield MessageReceived("user", text, message_id=event.id, attachments=kinds)


def _answered(event: Event, parts: list[types.Part], calls: list[_PastCall]) -> Iterator[RunEvent]:
    texts = [part for part in parts if part.text]
    if not texts and not calls:
        return
    yield MessageStarted(event.id)
    for part in texts:
        text = part.text or ""
        yield ReasoningAppended(event.id, text) if part.thought else TextAppended(event.id, text)
    for call in calls:
        yield from call.opening(event.id)
    yield MessageEnded(event.id)


def _calls_in(event: Event) -> Iterator[_PastCall]:
    for part in (event.content.parts if event.content is not None else None) or ():
        call = part.function_call
        if call is not None and call.id and call.name and call.name not in HOST_QUESTIONS:
            yield _PastCall(call.id, call.name, dict(call.args or {}), part.thought_signature)


def _to_confirm(session: Session) -> Iterator[str]:
    """The ids of calls about which google-adk has asked a person, and has no answer."""
    answered = {response.id for event in session.events for response in event.get_function_responses()}
    for event in session.events:
        for call in event.get_function_calls():
            original = (call.args or {}).get("originalFunctionCall")
            if call.name == _CONFIRMATION and call.id not in answered and isinstance(original, dict):
                yield str(original.get("id"))
