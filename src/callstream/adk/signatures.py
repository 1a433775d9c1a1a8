"""Thought signatures, which Gemini 3 wants back with the first call of every step of the turn.

A call that came without one, or lost it, is given the one that history has for it, else the journal's, else, in the
current turn, the bytes by which the API lets such a call pass. That sentinel is never taken for a signature. What is
changed is the request; the stored session is not touched.

Which models demand signatures can be read from most names: Gemini from 3 on, and the aliases that end in
``latest``. Earlier ones demand none, and get back the real ones alone. Other names (tuned endpoints, gateways) say nothing:
there, a model that has signed a call of the same agent demands signatures. A request to any other model is not touched.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import NamedTuple

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.sessions.session import Session
from google.genai import types

from callstream.calls import Call
from callstream.journal import Journal
from callstream.runtime import Run
from callstream.runtime.run import current_model_call
from callstream.wire import gemini

SENTINEL = base64.b64decode(gemini.SENTINEL)

_GENERATION = re.compile(r"(?:^|/)gemini-(\d+)")
_LATEST = re.compile(r"(?:^|/)gemini-(?:[a-z]+-)*latest$")
_TUNED = re.compile(r"(?:^|/)(?:endpoints|tunedModels)/")


async def repair_thought_signatures(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
    """A ``before_model_callback`` for an agent without the plugin, or with it: then the journal is asked too."""
    model_call = current_model_call.get()
    run = model_call.run if model_call is not None else None
    thread = ThreadCalls.of(run) if run is not None else None
    await repair(llm_request, callback_context.session, thread, author=callback_context.agent_name)


class ThreadCalls(NamedTuple):
    """Where the journal has a session's calls. The thread may have another name than the session."""

    journal: Journal
    thread_id: str
    principal: str | None

    @classmethod
    def of(cls, run: Run) -> ThreadCalls:
        return cls(run.engine.journal, run.thread_id, run.principal)

    async def calls(self) -> list[Call]:
        return await self.journal.calls(thread_id=self.thread_id, principal=self.principal)


async def repair(
    request: LlmRequest,
    session: Session,
    thread: ThreadCalls | None,
    *,
    author: str | None = None,
    has_signed: bool = False,
) -> None:
    """Signs the calls in a request that need it and are not signed.

    ``author`` is the agent that asks, ``has_signed`` whether its model has signed a call of this run.
    """
    if request.previous_interaction_id is not None:
        return  # the server has the history, and google-adk would send it a signed call once more
    unsigned = list(gemini.unsigned(list(map(_said, request.contents))))
    if not unsigned:
        return
    model = request.model or ""
    demands = _demands(model)
    # A journal is asked for all calls of the thread: not before every request to a model that knows no signatures.
    may_sign = demands is not None or has_signed or _TUNED.search(model) is not None
    known = await _Known.of(session, thread if may_sign else None, author)
    if demands is None:
        demands = has_signed or known.has_signed
        if not demands:
            return
    for index, is_current in unsigned:
        content = request.contents[index]
        parts = list(content.parts or ())
        position = next(at for at, part in enumerate(parts) if part.function_call is not None)
        part = parts[position]
        assert part.function_call is not None
        otherwise = SENTINEL if demands and is_current else part.thought_signature
        signature = known.signature_of(part.function_call) or otherwise
        if signature != part.thought_signature:
            parts[position] = part.model_copy(update={"thought_signature": signature})
            request.contents[index] = content.model_copy(update={"parts": parts})


class _Known:
    """The signatures of a session's calls, by id, and of those whose ids google-adk took away by what they say.

    ``has_signed``: whether a call of the given author, or of the thread in the journal, has a real one.
    """

    def __init__(self) -> None:
        self.has_signed = False
        self._by_id: dict[str, bytes] = {}
        self._ids: list[tuple[str, types.FunctionCall]] = []

    @classmethod
    async def of(cls, session: Session, thread: ThreadCalls | None, author: str | None) -> _Known:
        known = cls()
        for event, part in _call_parts(session):
            call = part.function_call
            is_signed = bool(part.thought_signature) and part.thought_signature != SENTINEL
            known.has_signed |= is_signed and author in (None, event.author)
            if call is None or not call.id:
                continue
            known._ids.append((call.id, call))
            if part.thought_signature and is_signed:
                known._by_id.setdefault(call.id, part.thought_signature)
        for kept in await thread.calls() if thread is not None else ():
            if kept.signature is not None and (signature := base64.b64decode(kept.signature)) != SENTINEL:
                known._by_id.setdefault(kept.wire_id, signature)
                known.has_signed = True
        return known

    def signature_of(self, call: types.FunctionCall) -> bytes | None:
        if call.id:
            return self._by_id.get(call.id)
        # Ids that google-adk made up are not in the request: calls that say the same are taken in order.
        for number, (call_id, stored) in enumerate(self._ids):
            if stored.name == call.name and (stored.args or {}) == (call.args or {}):
                del self._ids[number]
                return self._by_id.get(call_id)
        return None


def _demands(model: str) -> bool | None:
    """Whether a model demands signatures, None if its name does not tell."""
    found = _GENERATION.search(model)
    if found is not None:
        return int(found[1]) >= 3
    return True if _LATEST.search(model) else None


def _said(content: types.Content) -> gemini.Said:
    parts = content.parts or []
    return gemini.Said(
        content.role == "model",
        [part.thought_signature not in (None, b"", SENTINEL) for part in parts if part.function_call is not None],
        any(part.function_response is None for part in parts),
    )


def _call_parts(session: Session) -> Iterator[tuple[Event, types.Part]]:
    for event in session.events:
        for part in (event.content and event.content.parts) or ():
            if part.function_call is not None:
                yield event, part
