"""Thought signatures, which Gemini 3 wants back with the first call of every step of the turn.

A call that came without one, or lost it, is given the one that history has for it, else the journal's, else, in the
current turn, the bytes by which the API lets such a call pass. That sentinel is never taken for a signature. What is
changed is the request; the stored session is not touched, and a request to any other model is not either.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import NamedTuple

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.sessions.session import Session
from google.genai import types

from callstream.calls import Call
from callstream.journal import Journal
from callstream.runtime import Run
from callstream.runtime.modelcall import current_model_call

SENTINEL = b"skip_thought_signature_validator"

_GENERATION = re.compile(r"(?:^|/)gemini-(\d+)")


async def repair_thought_signatures(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
    """A ``before_model_callback`` for an agent without the plugin, or with it: then the journal is asked too."""
    model_call = current_model_call.get()
    run = model_call.run if model_call is not None else None
    thread = JournalThread.of(run) if run is not None else None
    await repair(llm_request, callback_context.session, thread)


class JournalThread(NamedTuple):
    """Where the journal has a session's calls. The thread may have another name than the session."""

    journal: Journal
    thread_id: str
    principal: str | None

    @classmethod
    def of(cls, run: Run) -> JournalThread:
        return cls(run.callstream.journal, run.thread_id, run.principal)

    async def calls(self) -> list[Call]:
        return await self.journal.calls(thread_id=self.thread_id, principal=self.principal)


async def repair(request: LlmRequest, session: Session, thread: JournalThread | None) -> None:
    """Signs the calls in a request that need it and are not signed."""
    if not _wants_signatures(request.model):
        return
    unsigned = [index for index, content in enumerate(request.contents) if _unsigned(content) is not None]
    if not unsigned:
        return
    known = await _Known.of(session, thread)
    turn = _turn(request.contents)
    for index in unsigned:
        content = request.contents[index]
        position = _unsigned(content)
        if position is None or content.parts is None:
            continue
        part = content.parts[position]
        signature = known.signature_of(part.function_call) or (SENTINEL if index >= turn else part.thought_signature)
        if signature != part.thought_signature:
            parts = list(content.parts)
            parts[position] = part.model_copy(update={"thought_signature": signature})
            request.contents[index] = content.model_copy(update={"parts": parts})


class _Known:
    """The signatures of a session's calls, by id, and of those whose ids google-adk took away by what they say."""

    def __init__(self) -> None:
        self._by_id: dict[str, bytes] = {}
        self._ids: list[tuple[str, types.FunctionCall]] = []

    @classmethod
    async def of(cls, session: Session, thread: JournalThread | None) -> _Known:
        known = cls()
        for part in _call_parts(session):
            call = part.function_call
            if call is None or not call.id:
                continue
            known._ids.append((call.id, call))
            if part.thought_signature and part.thought_signature != SENTINEL:
                known._by_id.setdefault(call.id, part.thought_signature)
        for kept in await thread.calls() if thread is not None else ():
            if kept.signature is not None and (signature := base64.b64decode(kept.signature)) != SENTINEL:
                known._by_id.setdefault(kept.provider_id or kept.call_id, signature)
        return known

    def signature_of(self, call: types.FunctionCall | None) -> bytes | None:
        if call is None:
            return None
        if call.id:
            return self._by_id.get(call.id)
        # Ids that google-adk made up are not in the request: calls that say the same are taken in order.
        for number, (call_id, stored) in enumerate(self._ids):
            if stored.name == call.name and (stored.args or {}) == (call.args or {}):
                del self._ids[number]
                return self._by_id.get(call_id)
        return None


def _wants_signatures(model: str | None) -> bool:
    found = _GENERATION.search(model or "")
    return found is not None and int(found[1]) >= 3


def _unsigned(content: types.Content) -> int | None:
    """Where the first call of a content is, if it has no real signature."""
    if content.role != "model":
        return None
    for position, part in enumerate(content.parts or ()):
        if part.function_call is not None:
            return position if part.thought_signature in (None, b"", SENTINEL) else None
    return None


def _turn(contents: list[types.Content]) -> int:
    """Where the current turn begins: after the last content in which a user says something."""
    for index in reversed(range(len(contents))):
        parts = contents[index].parts or []
        if contents[index].role != "model" and any(part.function_response is None for part in parts):
            return index + 1
    return 0


def _call_parts(session: Session) -> Iterator[types.Part]:
    for event in session.events:
        for part in (event.content and event.content.parts) or ():
            if part.function_call is not None:
                yield part
