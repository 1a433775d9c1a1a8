"""A client's answers to calls that await them: taken into the run, and given as google-adk takes them.

A client answers the tools that it runs itself, the questions of google-adk, and ``confirm_changes``. An answer counts
once. One to a call that nobody made never reaches the model, and one that google-adk cannot be given is not recorded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence

import msgspec
from ag_ui.core import Message, RunAgentInput, ToolMessage
from google.adk.sessions.session import Session
from google.adk.workflow import BaseNode
from google.genai import types

from callstream.adk.agenttree import server_tools
from callstream.adk.answers import imported, record_update, take_in
from callstream.adk.contents import Answer, answer_in, response_part
from callstream.adk.hostquestions import (
    CREDENTIAL,
    CREDENTIAL_RECEIVED,
    HOST_QUESTIONS,
    asked_about,
    confirmation,
    credential,
    given_input,
    misfit,
)
from callstream.adk.predictions import CONFIRM_TOOL, decision
from callstream.adk.sessioncalls import SessionCalls
from callstream.adk.threads import renamed
from callstream.agui.given import CANCELLED
from callstream.calls import HAS_OUTCOME, Call, CallState
from callstream.errors import AnswerRefused, UsageError
from callstream.events import CallAwaiting
from callstream.journal import Journal
from callstream.runtime import Run
from callstream.runtime.answers import is_of_thread

logger = logging.getLogger("callstream")


class TurnAnswers(msgspec.Struct, frozen=True):
    """Answers to calls of one turn of google-adk, or ``to_host``: to questions that google-adk itself asked in it."""

    invocation_id: str
    parts: list[types.Part]
    to_host: bool


class Answered(msgspec.Struct, frozen=True):
    """What google-adk is told, ``sentences`` for the model, and the ids of messages whose answers are ``held`` back."""

    turns: Sequence[TurnAnswers] = ()
    sentences: Sequence[str] = ()
    held: frozenset[str] = frozenset()


def answers_in(given: RunAgentInput, new: Sequence[Message]) -> Iterator[Answer]:
    """The answers among a client's new messages, and those to interrupts."""
    for message in new:
        if isinstance(message, ToolMessage):
            yield answer_in(message)
    for entry in given.resume or ():
        if entry.status == "cancelled":
            yield Answer(entry.interrupt_id, "", error=CANCELLED)
        else:
            payload = entry.payload
            yield Answer(entry.interrupt_id, payload if isinstance(payload, str) else json.dumps(payload))


async def check_answers(
    journal: Journal, thread_id: str, session: Session, agent: BaseNode, answers: Sequence[Answer]
) -> None:
    """Raises AnswerRefused for an answer to a call that awaits one, but not this one, not from a client, or not in this
    session.
    """
    in_session = SessionCalls(session)
    for answer in answers:
        call = await _find(journal, thread_id, session.user_id, renamed(session, answer.named))
        if call is None or call.state is not CallState.AWAITING:
            continue
        about = in_session.question_about(call.wire_id)
        if about is None and await _is_the_servers(journal, session.user_id, call, in_session, agent):
            raise AnswerRefused(
                call.call_id, f"{call.name} runs on the server, and no client can answer its call {call.call_id}."
            )
        question = about or in_session.question(call.wire_id)
        if question is None and in_session.named(call.wire_id) is None and call.name != CONFIRM_TOOL:
            raise AnswerRefused(
                call.call_id,
                f"The session in which {call.name} asked is gone, so this answer cannot reach the agent. The call "
                f"{call.call_id} still awaits one.",
            )
        mistake = misfit(question, answer.response) if question is not None and answer.error is None else None
        if mistake is not None:
            raise AnswerRefused(call.call_id, f"This is not the answer that {call.call_id} awaits: {mistake}")


async def _is_the_servers(
    journal: Journal, user_id: str, call: Call, in_session: SessionCalls, agent: BaseNode
) -> bool:
    """Whether a call that awaits something awaits its tool's own result, which no client can bring.

    Such a tool has asked a person, and google-adk was stopped after the answer came and before it ran the tool again.
    """
    if call.name in HOST_QUESTIONS or call.name == CONFIRM_TOOL:
        return False
    is_asked_about = in_session.is_asked_about(call.wire_id)
    if in_session.is_long_running(call.wire_id):  # the client answers once the tool has run
        return is_asked_about and await _is_paused(journal, call, user_id)
    return is_asked_about or call.name in server_tools(agent)


async def _is_paused(journal: Journal, call: Call, user_id: str) -> bool:
    for row in await journal.runs(thread_id=call.thread_id, principal=user_id):  # the newest first
        events = [record.event for record in await journal.read_whole([row.run_id])]
        awaiting = [each for each in events if isinstance(each, CallAwaiting) and each.call_id == call.call_id]
        if awaiting:
            return awaiting[-1].is_paused
    return False


async def _find(journal: Journal, thread_id: str, user_id: str, named: str) -> Call | None:
    """The call of the thread that a client means. Two people may have threads of one name; their calls are their own."""
    call = await journal.call(named)
    if call is not None and await is_of_thread(journal, call, thread_id, user_id):
        return call
    listed = await journal.calls(thread_id=thread_id, provider_id=named, principal=user_id)
    return await journal.call(listed[-1].call_id) if listed else None


class ClientAnswers:
    """Takes the answers that one run brings. ``agent`` is whose tools no client may answer for."""

    def __init__(self, run: Run, session: Session, agent: BaseNode) -> None:
        self._run = run
        self._session = session
        self._agent = agent
        self._calls = SessionCalls(session)
        self._order = {call.id: number for number, call in enumerate(self._calls)}
        self._parts: dict[str, types.Part] = {}
        self._sentences: list[str] = []

    async def take(self, answers: Sequence[Answer], *, alone: bool) -> Answered:
        """Records the answers, and gives them in the order of their calls.

        Those that came before are left out. One to a call that nobody made is an error if the run has nothing else to
        do. Where others of the same turn still await their answers, these are held back, if the run brings them
        ``alone``.
        """
        # An answer to a question itself counts before one to the call that the question is about.
        ordered = sorted(answers, key=lambda answer: self._calls.question(renamed(self._session, answer.named)) is None)
        foreign = [answer.named for answer in ordered if not await self._take(answer)]
        if foreign:
            thread_id = self._run.thread_id
            if alone and not self._parts and not self._sentences:
                raise UsageError(f"no call {foreign[0]!r} awaits an answer in thread {thread_id!r}")
            logger.warning("thread %s: ignoring answers to unknown calls: %s", thread_id, foreign)
        is_whole = await self._complete_turns()
        if alone and not is_whole:
            held = frozenset(answer.message_id for answer in answers if answer.message_id is not None)
            return Answered(sentences=self._sentences, held=held)
        return Answered(self._by_turn(), self._sentences)

    async def _take(self, answer: Answer) -> bool:
        """False if no client can answer the call that it means: nobody made it, it is the server's, or google-adk does not
        know it any more.
        """
        journal = self._run.callstream.journal
        call = await self._asked(renamed(self._session, answer.named))
        if call is not None and call.state is CallState.AWAITING:
            question = self._calls.question_about(call.wire_id)
            if question is not None:  # the client answers the call that is paused, and means the question about it
                call = await self._asked(question.id or "")
            elif await _is_the_servers(journal, self._session.user_id, call, self._calls, self._agent):
                return False
        if call is None or not self._is_in_session(call):
            return False
        part = self._part(call, answer)
        assert part.function_response is not None
        if call.state is CallState.AWAITING and answer.error is None and self._calls.goes_on(part.function_response):
            await record_update(self._run, call.call_id, answer.result)
            self._parts[call.wire_id] = part
        elif call.state is CallState.AWAITING:
            await self._record(call, answer)
        elif call.state in HAS_OUTCOME and call.wire_id in self._order and call.wire_id not in self._calls.responded:
            # One that came before counts only where a crash has kept it from the session.
            kept = self._part(call, answer) if call.name == CREDENTIAL else self._kept(call, answer.media)
            self._parts.setdefault(call.wire_id, kept)
        return True

    def _is_in_session(self, call: Call) -> bool:
        """Whether google-adk can be given an answer to the call. A session may be gone: the journal outlives memory."""
        return call.state is not CallState.AWAITING or call.wire_id in self._order or call.name == CONFIRM_TOOL

    async def _record(self, call: Call, answer: Answer) -> None:
        result = None if answer.error is not None else answer.result
        if call.name == CREDENTIAL and result is not None:
            result = CREDENTIAL_RECEIVED
        await self._run.answer(call.call_id, result, error=answer.error, message_id=answer.message_id)
        if call.name == CONFIRM_TOOL and call.wire_id not in self._order:
            self._sentences.append(decision(answer.content))
        else:
            self._parts[call.wire_id] = self._part(call, answer)

    def _part(self, call: Call, answer: Answer) -> types.Part:
        """The answer as google-adk takes it."""
        question = self._calls.question(call.wire_id)
        if question is None:
            return response_part(answer, types.FunctionCall(id=call.wire_id, name=call.name))
        match question.name:
            case "adk_request_confirmation":
                response = confirmation(answer.response)
            case "adk_request_credential":
                response = credential(question, answer.response)
            case _:
                response = answer.response if answer.error is not None else given_input(question, answer.response)
        return types.Part(
            function_response=types.FunctionResponse(id=question.id, name=question.name, response=response)
        )

    def _kept(self, call: Call, media: tuple[types.Part, ...] = ()) -> types.Part:
        """The answer that the journal has. ``media``, which it has not, from the client's message."""
        error = call.error if call.state is CallState.FAILED else None
        content = call.result if isinstance(call.result, str) else json.dumps(call.result)
        return self._part(call, Answer(call.call_id, content, error=error, media=media))

    # -- which call --

    async def _asked(self, named: str) -> Call | None:
        """The call that an answer means; one that is older than the journal is taken into it.

        Unless its tool is the server's: such a call is in a history that a client brought, and its answer his invention.
        """
        call = await _find(self._run.callstream.journal, self._run.thread_id, self._session.user_id, named)
        if call is not None:
            return call
        asked = self._calls.named(named)
        if asked is None or asked.name in server_tools(self._agent):
            return None
        if named in self._calls.responded:
            call_id = await imported(self._run, named, asked.name or "", asked.args or {})
            await self._run.complete(call_id)
        else:
            call_id = await take_in(self._run, asked)
        return self._run.call(call_id)

    async def _newest(self, named: str) -> str | None:
        """The ``call_id`` of the thread's newest call with that wire id."""
        listed = await self._run.callstream.journal.calls(
            thread_id=self._run.thread_id, provider_id=named, principal=self._session.user_id
        )
        return listed[-1].call_id if listed else None

    # -- whole turns --

    async def _complete_turns(self) -> bool:
        """Adds the answers that were held back before. False if there are calls beside these that lack theirs."""
        unconfirmed = {asked_about(each) for each in self._calls.questions() if each.id not in self._parts}
        is_whole = True
        for calls in self._calls.together:
            if not any(call.id in self._parts for call in calls):
                continue
            for beside in calls:
                if not beside.id or beside.id in self._parts or beside.name == CREDENTIAL:
                    continue  # google-adk takes credentials one by one
                if beside.id in unconfirmed:
                    is_whole = False  # what google-adk tells the model meanwhile is no answer
                elif beside.id not in self._calls.responded:
                    is_whole = await self._restore(beside.id) and is_whole
        return is_whole

    async def _restore(self, call_id: str) -> bool:
        """Adds the answer to a call of the session from the journal. False if it has yet to come."""
        call = await self._asked(await self._newest(call_id) or call_id)
        if call is not None and call.state in HAS_OUTCOME:
            self._parts[call_id] = self._kept(call)
        return call is not None and call.state is not CallState.AWAITING

    def _by_turn(self) -> list[TurnAnswers]:
        """The answers by the turns whose calls they answer, those to google-adk itself apart, after the others."""
        turns = {call.id: event.invocation_id for event in self._session.events for call in event.get_function_calls()}
        found: dict[str, dict[bool, list[types.Part]]] = {}
        for call_id in sorted(self._parts, key=lambda call_id: self._order.get(call_id, 0)):
            part = self._parts[call_id]
            response = part.function_response
            assert response is not None
            of_turn = found.setdefault(turns.get(response.id, ""), {False: [], True: []})
            of_turn[response.name in HOST_QUESTIONS].append(part)
        return [
            TurnAnswers(turn, parts, to_host)
            for turn, both in found.items()
            for to_host, parts in both.items()
            if parts
        ]
