"""What an invocation was started with: a message, or answers to calls that await them.

An answer counts once. One that came before is taken out of the message, so that google-adk, which lets the last of
several answers count, does not see it; a message that had nothing else ends the invocation before it begins. Responses
to a job are no answers: all of them reach the model, see ``SessionCalls``. Answers
are put into the order of their calls, because a model that knows no ids tells them apart by their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.hostquestions import CREDENTIAL, CREDENTIAL_RECEIVED, HOST_QUESTIONS, question_in, shown
from callstream.adk.partials import MINTED_PREFIX
from callstream.adk.sessioncalls import SessionCalls
from callstream.calls import Call, CallState
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallProgressed,
    CallStarted,
    MessageReceived,
    WireEvent,
)
from callstream.journal import Journal
from callstream.runtime import Callstream, Run
from callstream.runtime.answers import is_of_thread
from callstream.wire.argtext import json_text


class Incoming:
    """The message that started an invocation."""

    def __init__(self, message: types.Content) -> None:
        self._message = message
        self._parts = list(message.parts or ())
        self._again: list[types.Part] = []

    @property
    def is_answer(self) -> bool:
        return any(part.function_response is not None for part in self._message.parts or ())

    @property
    def has_nothing_new(self) -> bool:
        return bool(self._again) and not self._parts

    async def check(self, callstream: Callstream, session: Session, thread_id: str, principal: str | None) -> None:
        """Looks for answers that came before, and brings the others into the order of their calls.

        The calls are those of that principal's thread.
        """
        if not self.is_answer:
            return
        await callstream.journal.open()
        for part in list(self._parts):
            answer = part.function_response
            if answer is None or not answer.id:
                continue
            known = await calls_named(callstream.journal, thread_id, principal, answer.id)
            if known and all(call.is_final for call in known) and not SessionCalls(session).is_news(answer):
                self._parts.remove(part)
                self._again.append(part)
        order = {call.id: number for number, call in enumerate(SessionCalls(session)) if call.id}
        self._parts.sort(key=lambda part: order.get(_answered_id(part) or "", len(order)))

    def replacement(self) -> types.Content | None:
        """The message that google-adk is to have instead; None if it is the same."""
        if self._parts == list(self._message.parts or ()):
            return None
        return types.Content(role="user", parts=self._parts or [types.Part(text="")])

    async def record(self, run: Run, context: InvocationContext) -> None:
        """Takes the message, or the answers, into the run."""
        if not self.is_answer:
            await run.record([received(context.user_content or self._message)])
            return
        for part in self._parts:
            answer = part.function_response
            if answer is not None and answer.id:
                await _answer(run, context.session, answer)


async def _answer(run: Run, session: Session, answer: types.FunctionResponse) -> None:
    named = answer.id or ""
    calls = SessionCalls(session)
    asked = calls.named(named)
    if asked is None:
        # google-adk could not give it to the model, so it must not count as given.
        raise UsageError(f"session {session.id!r} has no call {named!r} that awaits an answer")
    known = await calls_named(run.callstream.journal, run.thread_id, run.principal, named)
    if not known:  # the call is older than the journal
        named = await take_in(run, asked)
    elif all(call.is_final for call in known):
        # What a job says after its result: the call is final, so this is input of the run.
        await run.record([MessageReceived("tool", json_text(answer.response))])
        return
    else:
        named = await awaiting_id(run, named)
    if calls.goes_on(answer):
        await record_update(run, named, answer.response)
        return
    result, error = outcome(answer.response)
    if answer.name == CREDENTIAL:
        result = CREDENTIAL_RECEIVED
    await run.answer(named, result, error=error)


async def record_update(run: Run, named: str, response: Any) -> None:
    """Records what a call that goes on awaiting its result has said."""
    call = await run.resume(named)
    if call is not None:
        await run.record([CallProgressed(call.call_id, response)])


async def take_in(run: Run, asked: types.FunctionCall) -> str:
    """Records a call of the session that awaits an answer and that the journal does not know. Returns its ``call_id``."""
    is_question = asked.name in HOST_QUESTIONS
    asked = shown(asked) if is_question else asked
    call_id = await imported(run, asked.id or "", asked.name or "", asked.args or {})
    await run.record([CallAwaiting(call_id, question_in(asked) if is_question else None)])
    return call_id


async def awaiting_id(run: Run, wire_id: str) -> str:
    """The ``call_id`` of the call that google-adk means: models that number the calls of each turn use an id again."""
    awaiting = await run.callstream.journal.calls(
        thread_id=run.thread_id, provider_id=wire_id, states=[CallState.AWAITING], principal=run.principal
    )
    return awaiting[-1].call_id if awaiting else wire_id


async def imported(
    run: Run, function_call_id: str, name: str, args: dict[str, Any], *, author: str | None = None
) -> str:
    """Records a whole call that google-adk knows and the run does not. Returns its ``call_id``."""
    has_wire_id = not function_call_id.startswith(MINTED_PREFIX)
    return await _imported(run, function_call_id, name, args, has_wire_id, author)


async def replaced(run: Run, call: Call, function_call_id: str, args: dict[str, Any]) -> str:
    """Records that google-adk runs a call's tool on other arguments than the model's: that is another call.

    Hooks hear that the first is given up, and then of the second: they judge what the tool runs on. Returns the
    ``call_id`` of the second. The wire id is the first's.
    """
    await run.record([CallDiscarded(call.call_id, "aborted", "its arguments were changed before its tool ran")])
    await run.settled(call.call_id)
    return await _imported(run, function_call_id, call.name, args, True)


async def _imported(
    run: Run, function_call_id: str, name: str, args: dict[str, Any], has_wire_id: bool, author: str | None = None
) -> str:
    provider_id = function_call_id if has_wire_id else None
    text = json_text(args)
    events: Sequence[WireEvent] = [
        CallStarted(function_call_id, name, provider_id),
        ArgsAppended(function_call_id, text),
        CallCompleted(function_call_id, text),
    ]
    response = run.response("gemini", author=author)
    await response.record(events)
    return response.call_ids[function_call_id]


def outcome(response: Any) -> tuple[Any, str | None]:
    """What a function response says: a result, or an error in the form in which google-adk tells the model of one."""
    if isinstance(response, dict) and set(response) == {"error"}:
        error = response["error"]
        return None, error if isinstance(error, str) else json_text(error)
    return response, None


async def calls_named(journal: Journal, thread_id: str, principal: str | None, named: str) -> list[Call]:
    """The calls of a principal's thread with that wire id that could have been asked of a person."""
    found = await journal.calls(thread_id=thread_id, provider_id=named, principal=principal)
    if not found:
        call = await journal.call(named)
        found = [call] if call is not None and await is_of_thread(journal, call, thread_id, principal) else []
    return [call for call in found if call.state is not CallState.DISCARDED]


def _answered_id(part: types.Part) -> str | None:
    return part.function_response.id if part.function_response is not None else None


def received(content: types.Content) -> MessageReceived:
    """What a user said to the agent."""
    parts = content.parts or []
    return MessageReceived("user", "".join(part.text or "" for part in parts), attachments=attachments(parts))


def attachments(parts: Iterable[types.Part]) -> tuple[str, ...]:
    """The kinds of the parts of a message that are not text."""
    blobs = [blob for part in parts if (blob := part.inline_data or part.file_data) is not None]
    return tuple(blob.mime_type or "file" for blob in blobs)
