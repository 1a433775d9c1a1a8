"""google-adk's requests to models, completed: missing answers, thought signatures, the model's own ids.

Only the request is changed; the stored session is not touched.

No model accepts a request in which calls have no answers. So a turn that awaits answers goes no further; and if a person has
said something else meanwhile, the request says that the answers have not arrived yet. They may still arrive.

Gemini 3 wants thought signatures back with the first call of every step of the turn.

A call that came without one, or lost it, gets the one that the history has for it, else the journal's, else, in the current
turn, the bytes that the API accepts in place of a signature. That sentinel is never mistaken for a signature.

Most model names tell whether signatures are required: by Gemini 3 and later, and by the aliases that end in ``latest``.
Earlier models require none, and only get real ones back. Other names (tuned endpoints, gateways) do not tell: there, a
model that has signed a call of the same agent requires signatures. Requests to any other model are not touched.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.answers import ClientAnswer
from callstream.calls import HAS_OUTCOME, CallState
from callstream.runtime import Run
from callstream.runtime.answers import Directory
from callstream.runtime.run import current_model_call
from callstream.wire import gemini

# -- answers --


async def fill_in_answers(contents: list[types.Content], session: Session, directory: Directory | None) -> None:
    """Replaces an outdated answer to a call by the last one, and fills in answers that are missing.

    A missing answer may be in the session: google-adk leaves out everything between a call and its answer, which may include
    the answer to a call of an earlier turn; for such a call it shows what the tool returned when it asked for confirmation.
    Or it may be in the journal, if a crash kept the outcome of the call from the session. Else a placeholder says that there
    is no answer yet.
    """
    known = _Answers(session)
    for place in range(len(contents) - 1, -1, -1):
        calls = [part.function_call for part in contents[place].parts or () if part.function_call is not None]
        if not calls:
            continue
        after = contents[place + 1] if place + 1 < len(contents) else None
        parts = list((after.parts if after else None) or ())
        responses = [part for part in parts if part.function_response is not None]
        has_answers = bool(responses)
        answers = [known.take(call, is_answered=True)[1] for call in reversed(calls)][::-1]
        words = []
        for call, answered in zip(calls, answers, strict=True):
            part = _take(responses, call)
            if part is None:
                last = answered[-1] if answered else await _word_for(known.take(call, is_answered=False)[0], directory)
                words.append(_answer(call.id, call.name, last))
            elif part.function_response is not None and part.function_response.response in answered[:-1]:
                parts[parts.index(part)] = _answer(call.id, call.name, answered[-1])
        if after is not None and has_answers:
            contents[place + 1] = types.Content(role=after.role, parts=[*parts, *words])
        elif words:
            contents.insert(place + 1, types.Content(role="user", parts=words))


async def _word_for(call_id: str | None, directory: Directory | None) -> dict[str, Any]:
    """The answer that the model gets for a call that has none in the session."""
    call = None if directory is None or call_id is None else await directory.find_by_wire_id(call_id)
    if call is None or not (call.state in HAS_OUTCOME or call.state is CallState.DISCARDED):
        return {"status": "no answer yet"}
    return ClientAnswer.recorded(call).response


def _answer(call_id: str | None, name: str | None, response: dict[str, Any]) -> types.Part:
    return types.Part(function_response=types.FunctionResponse(id=call_id, name=name, response=response))


class _Answers:
    """The answers that a session has to its calls. To be asked for the calls of a request, the last one first."""

    def __init__(self, session: Session) -> None:
        self._answered: list[tuple[types.FunctionCall, list[dict[str, Any]]]] = []
        newest: dict[str | None, list[dict[str, Any]]] = {}  # an id may be used again
        for event in session.events:
            for call in event.get_function_calls():
                newest[call.id] = []
                self._answered.append((call, newest[call.id]))
            for response in event.get_function_responses():
                newest.get(response.id, []).append(response.response or {})

    def take(self, call: types.FunctionCall, *, is_answered: bool) -> tuple[str | None, list[dict[str, Any]]]:
        """The id that the last call like this one has in the session, and its answers in the order in which they came.

        Ids that google-adk minted are not in a request: such calls are matched by name and arguments.
        """
        for place in range(len(self._answered) - 1, -1, -1):
            known, answers = self._answered[place]
            is_it = known.id == call.id if call.id else known.args == call.args
            if bool(answers) is is_answered and known.name == call.name and is_it:
                del self._answered[place]
                return known.id, answers
        return None, []


def _take(parts: list[types.Part], call: types.FunctionCall) -> types.Part | None:
    """Takes the answer to a call out of a list. Calls whose ids google-adk minted have none here, and match by name."""
    for part in parts:
        response = part.function_response
        if response is not None and response.id == call.id and response.name == call.name:
            parts.remove(part)
            return part
    return None


def lacks_answers(contents: list[types.Content]) -> bool:
    """Whether some of the model's last calls lack answers, and no message has come since."""
    answers = 0
    for content in reversed(contents):
        parts = content.parts or []
        calls = sum(part.function_call is not None for part in parts)
        if calls:
            return answers < calls
        answers += sum(part.function_response is not None for part in parts)
        if any(part.text or part.inline_data or part.file_data for part in parts):
            return False
    return False


# -- ids --

_RENAMED = re.compile(r".+~\d+")


async def restore_wire_ids(request: LlmRequest, directory: Directory) -> None:
    """Restores the model's ids of calls and results in a request, where google-adk uses other ids for them."""
    for index, content in enumerate(request.contents):
        parts = list(content.parts or ())
        for place, part in enumerate(parts):
            for field in ("function_call", "function_response"):
                named = getattr(part, field)
                if named is None or named.id is None or _RENAMED.fullmatch(named.id) is None:
                    continue
                call = await directory.find_by_call_id(named.id)
                if call is not None:
                    parts[place] = part.model_copy(update={field: named.model_copy(update={"id": call.wire_id})})
        if parts != (content.parts or []):
            request.contents[index] = content.model_copy(update={"parts": parts})


# -- thought signatures --

SENTINEL = base64.b64decode(gemini.SENTINEL)


_GENERATION = re.compile(r"(?:^|/)gemini-(\d+)")


_LATEST = re.compile(r"(?:^|/)gemini-(?:[a-z]+-)*latest$")


_TUNED = re.compile(r"(?:^|/)(?:endpoints|tunedModels)/")


async def repair_thought_signatures(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
    """A ``before_model_callback`` for an agent without the plugin, or with it: then the journal is searched, too."""
    model_call = current_model_call.get()
    run = model_call.run if model_call is not None else None
    await repair(llm_request, callback_context.session, run, author=callback_context.agent_name)


async def repair(
    request: LlmRequest,
    session: Session,
    run: Run | None,
    *,
    author: str | None = None,
    has_signed: bool = False,
) -> None:
    """Adds missing signatures to the calls in a request that need one. ``run``: its journal is searched for them, too.

    ``author`` is the agent that makes the request, ``has_signed`` whether its model has signed a call of this run.
    """
    if request.previous_interaction_id is not None:
        return  # the server has the history, and google-adk would send it a signed call again
    model = request.model or ""
    demands = _demands(model)
    # Reading the journal means reading all calls of the thread: not before every request to a model without signatures.
    may_sign = demands is not None or has_signed or _TUNED.search(model) is not None
    if not may_sign and not _has_signed(session, author):
        return
    unsigned = list(gemini.unsigned(list(map(_said, request.contents))))
    if not unsigned:
        return
    known = _Known(session, author)
    if may_sign and run is not None:
        await known.read_journal(run)
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
    """The signatures of a session's calls, by id; calls whose ids google-adk removed are matched by name and arguments.

    ``has_signed``: whether a call of the given author, or of the thread in the journal, has a real signature.
    """

    def __init__(self, session: Session, author: str | None) -> None:
        self.has_signed = _has_signed(session, author)
        self._by_id: dict[str, bytes] = {}
        self._ids: list[tuple[str, types.FunctionCall]] = []
        for _, part in _call_parts(session):
            call = part.function_call
            if call is not None and call.id:
                self._ids.append((call.id, call))
                if part.thought_signature and _is_signed(part):
                    self._by_id.setdefault(call.id, part.thought_signature)

    async def read_journal(self, run: Run) -> None:
        """Adds those of the run's thread, whose id may differ from the session's."""
        for kept in await run.engine.journal.calls(thread_id=run.thread_id, principal=run.principal):
            if kept.signature is not None and (signature := base64.b64decode(kept.signature)) != SENTINEL:
                self._by_id.setdefault(kept.wire_id, signature)
                self.has_signed = True

    def signature_of(self, call: types.FunctionCall) -> bytes | None:
        if call.id:
            return self._by_id.get(call.id)
        # Ids that google-adk made up are not in the request: calls with the same content are matched in order.
        for number, (call_id, stored) in enumerate(self._ids):
            if stored.name == call.name and (stored.args or {}) == (call.args or {}):
                del self._ids[number]
                return self._by_id.get(call_id)
        return None


def _has_signed(session: Session, author: str | None) -> bool:
    return any(_is_signed(part) and author in (None, event.author) for event, part in _call_parts(session))


def _is_signed(part: types.Part) -> bool:
    return part.thought_signature not in (None, b"", SENTINEL)


def _demands(model: str) -> bool | None:
    """Whether a model requires signatures; None if its name does not tell."""
    found = _GENERATION.search(model)
    if found is not None:
        return int(found[1]) >= 3
    return True if _LATEST.search(model) else None


def _said(content: types.Content) -> gemini.Said:
    parts = content.parts or []
    return gemini.Said(
        content.role == "model",
        [_is_signed(part) for part in parts if part.function_call is not None],
        any(part.function_response is None for part in parts),
    )


def _call_parts(session: Session) -> Iterator[tuple[Event, types.Part]]:
    for event in session.events:
        for part in (event.content and event.content.parts) or ():
            if part.function_call is not None:
                yield event, part
