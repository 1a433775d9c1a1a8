"""Answers to calls that await them, on their way to google-adk: in one of its own messages, or from a client.

An answer counts once. ``Incoming`` is the message that starts an invocation: if an answer in it has been given before, it
is removed, because google-adk would let the last of several answers count; a message with nothing else in it ends the
invocation before it begins. Responses to a job are not answers: all of them reach the model, see ``SessionCalls``.

``ClientAnswers`` are a client's answers: to calls of the tools that it runs itself, to google-adk's questions, and to
``confirm_changes``. An answer to an unknown call never reaches the model, and one that google-adk cannot accept is not
recorded. This module also turns AG-UI's messages into google-adk's contents.

Answers are put into the order of their calls, because a model without call ids tells them apart by their order.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import mimetypes
from collections.abc import Iterator, Sequence
from typing import Any, Self

import msgspec
from ag_ui.core import DataSource, Message, RunAgentInput, TextPart, ToolMessage
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.sessions.session import Session
from google.adk.workflow import BaseNode
from google.genai import types

from callstream.adk.calls import (
    CONFIRM_TOOL,
    CREDENTIAL,
    CREDENTIAL_RECEIVED,
    HOST_QUESTIONS,
    REWOUND,
    SessionCalls,
    adapt_input,
    confirmation,
    credential,
    import_call,
    message_received,
    misfit,
    outcome,
    paused_call_id,
    record_update,
    rewound_calls,
    take_in,
)
from callstream.adk.invocations import Speaker
from callstream.adk.tapping import server_tools
from callstream.adk.threads import id_in_session
from callstream.agui.messages import called_in, result_value
from callstream.calls import CANCELLED, HAS_OUTCOME, Call, CallState, decision
from callstream.callstream import Callstream
from callstream.errors import AnswerRefused, UsageError
from callstream.events import CallAwaiting, MessageReceived
from callstream.runtime import Run
from callstream.runtime.answers import Directory
from callstream.wire.transcript import json_text

logger = logging.getLogger("callstream")


# -- the answers of a client --


class ClientAnswer(msgspec.Struct, frozen=True):
    """A client's answer to a call that awaits it: in a tool message, or as the answer to an interrupt."""

    named: str
    content: str
    error: str | None = None
    message_id: str | None = None
    media: tuple[types.Part, ...] = ()

    @classmethod
    def recorded(cls, call: Call, media: tuple[types.Part, ...] = ()) -> Self:
        """The journal's outcome of a finished call. ``media``: from the client's message, since the journal has none."""
        if call.state is not CallState.COMPLETED:
            return cls(call.call_id, "", error=call.error or "interrupted", media=media)
        return cls(call.call_id, call.result if isinstance(call.result, str) else json.dumps(call.result), media=media)

    @property
    def response(self) -> dict[str, Any]:
        """As the model reads it."""
        if self.error is not None:
            return {"error": self.error}
        value = self._value
        return value if isinstance(value, dict) else {"result": value}

    @property
    def result(self) -> Any:
        """As the journal keeps it: JSON, or else the text, so that a client that joins reads what this one wrote."""
        value = self._value
        return self.content if value is None or isinstance(value, str) else value

    @property
    def _value(self) -> Any:
        return result_value(self.content)


def parts_of(content: Any) -> list[types.Part]:
    """The parts of a message. Raises UsageError for data that is not base64."""
    if isinstance(content, str):
        return [types.Part(text=content)] if content else []
    return [_part(part) for part in content or ()]


def _part(part: Any) -> types.Part:
    if isinstance(part, TextPart):
        return types.Part(text=part.text)
    source = part.source
    if isinstance(source, DataSource):
        try:
            data = base64.b64decode(source.value, validate=True)
        except binascii.Error as error:
            raise UsageError(f"expected base64 in a part of type {part.type!r}, got something else: {error}") from None
        return types.Part(inline_data=types.Blob(data=data, mime_type=source.mime_type))
    kind = source.mime_type or mimetypes.guess_type(source.value)[0] or _ANY_KIND.get(part.type)
    return types.Part(file_data=types.FileData(file_uri=source.value, mime_type=kind))


_ANY_KIND = {"image": "image/png", "audio": "audio/mpeg", "video": "video/mp4", "document": "application/pdf"}


def answer_in(message: ToolMessage) -> ClientAnswer:
    parts = parts_of(message.content)
    text = "".join(part.text or "" for part in parts)
    media = tuple(part for part in parts if part.text is None)
    return ClientAnswer(message.tool_call_id, text, message.error, message.id, media)


def response_part(answer: ClientAnswer, function_call_id: str, name: str) -> types.Part:
    media = [
        types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(data=blob.data, mime_type=blob.mime_type))
        for part in answer.media
        if (blob := part.inline_data) is not None
    ]
    return types.Part(
        function_response=types.FunctionResponse(
            id=function_call_id, name=name, response=answer.response, parts=media or None
        )
    )


def decision_text(content: str) -> str:
    """The user's answer to ``confirm_changes``, as a sentence for the model."""
    match decision(result_value(content)):
        case True:
            return "The user accepted the changes."
        case False:
            return "The user rejected the changes."
    return f"The user answered the question about the changes: {content}"


# -- in a message to google-adk --


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
        """Removes answers that were given before, and sorts the others by their calls.

        The calls are looked up in that principal's thread.
        """
        if not self.is_answer:
            return
        await callstream.journal.open()
        directory = Directory(callstream.journal, thread_id, principal)
        for part in list(self._parts):
            answer = part.function_response
            if answer is None or not answer.id:
                continue
            call = await directory.find_by_wire_id(answer.id)
            is_answered = call is not None and call.is_final and call.state is not CallState.DISCARDED
            if is_answered and not SessionCalls(session).is_news(answer):
                self._parts.remove(part)
                self._again.append(part)
        order = {call.id: number for number, call in enumerate(SessionCalls(session)) if call.id}
        self._parts.sort(key=lambda part: order.get(_answered_id(part) or "", len(order)))

    def replacement(self) -> types.Content | None:
        """The message that google-adk gets instead; None if it is unchanged."""
        if self._parts == list(self._message.parts or ()):
            return None
        return types.Content(role="user", parts=self._parts or [types.Part(text="")])

    def restore_branch(self, context: InvocationContext) -> None:
        """Puts the agent that has the answers back into the branch in which it asked.

        google-adk leaves out an agent that parallel agents of its own were transferred to: it finds events by a path that
        those of parallel agents do not have. Outside of its branch the agent would not find what was confirmed.
        """
        if context.branch is not None or context.agent is None:
            return
        calls = SessionCalls(context.session)
        asked = (calls.asked_in(named) for part in self._parts if (named := _answered_id(part)))
        context.branch = next((each.branch for each in asked if each and each.author == context.agent.name), None)

    async def record(self, run: Run, context: InvocationContext) -> None:
        """Records the message, or the answers in it, in the run."""
        if not self.is_answer:
            await run.record([message_received((context.user_content or self._message).parts or ())])
            return
        for part in self._parts:
            answer = part.function_response
            if answer is not None and answer.id:
                await _answer(run, context.session, answer)


async def _answer(run: Run, session: Session, answer: types.FunctionResponse) -> None:
    wire_id = answer.id or ""
    calls = SessionCalls(session)
    asked = calls.named(wire_id)
    if asked is None:
        # google-adk could not pass it to the model, so it must not count as an answer.
        raise UsageError(f"session {session.id!r} has no call {wire_id!r} that awaits an answer")
    call = await run.directory.find_by_wire_id(wire_id)
    if call is None or call.state is CallState.DISCARDED:
        call_id = await take_in(run, asked)  # it is older than the journal
    elif call.is_final:
        # A job's message after its result: the call is final, so this is input of the run.
        await run.record([MessageReceived("tool", json_text(answer.response))])
        return
    else:
        call_id = call.call_id
    if calls.goes_on(answer):
        await record_update(run, call_id, answer.response)
        return
    result, error = outcome(answer.response)
    if answer.name == CREDENTIAL:
        result = CREDENTIAL_RECEIVED
    await run.answer(call_id, result, error=error)


def _parallel_around(root: BaseNode, agent_name: str) -> str | None:
    """The name of the outermost parallel agent around an agent that is itself inside another agent."""
    agent = root.find_agent(agent_name) if isinstance(root, BaseAgent) else None
    found = None
    while agent is not None and agent.parent_agent is not None:
        found = agent.name if isinstance(agent, ParallelAgent) else found
        agent = agent.parent_agent
    return found


def _answered_id(part: types.Part) -> str | None:
    return part.function_response.id if part.function_response is not None else None


# -- from a client --


class TakenAnswer(msgspec.Struct, frozen=True):
    """An answer that has yet to be recorded: when it is passed to google-adk, and not before."""

    call: Call
    """As it was in the journal. Whether it still awaits an answer, the journal decides when the answer is written."""
    result: Any
    error: str | None
    message_id: str | None

    async def record(self, run: Run) -> None:
        await run.answer(self.call, self.result, error=self.error, message_id=self.message_id)


class TurnAnswers(msgspec.Struct, frozen=True):
    """Answers to calls of one agent in one turn, or ``to_host``: to questions that google-adk itself asked for it.

    google-adk accepts a message for only one agent.
    """

    invocation_id: str
    speaker: Speaker
    parts: list[types.Part]
    to_host: bool
    unrecorded: list[TakenAnswer]


class _Answered(msgspec.Struct, frozen=True):
    """Answers for google-adk by turn, ``sentences`` for the model, and ids of messages whose answers are ``held`` back."""

    turns: Sequence[TurnAnswers] = ()
    sentences: Sequence[str] = ()
    held: frozenset[str] = frozenset()


def answers_in(run_input: RunAgentInput, new: Sequence[Message]) -> Iterator[ClientAnswer]:
    """The answers among a client's new messages, and those to interrupts."""
    for message in new:
        if isinstance(message, ToolMessage):
            yield answer_in(message)
    for entry in run_input.resume or ():
        if entry.status == "cancelled":
            yield ClientAnswer(entry.interrupt_id, "", error=CANCELLED)
        else:
            payload = entry.payload
            yield ClientAnswer(entry.interrupt_id, payload if isinstance(payload, str) else json.dumps(payload))


async def check_answers(
    directory: Directory,
    session: Session,
    agent: BaseNode,
    answers: Sequence[ClientAnswer],
    past: Sequence[Message] = (),
) -> None:
    """Raises AnswerRefused if a call awaits an answer, but not this one, not from a client, or not in this session; and if
    none of the answered calls exists. ``past``: messages that may yet become an empty session's history.

    The client may send an answer again that was refused before. That is not an error if an acceptable one is beside it.
    """
    in_session, rewound = SessionCalls(session), rewound_calls(session)
    named = {id_in_session(session, answer.named) for answer in answers}
    brought = called_in(past) if not session.events else {}
    if answers and not [
        each for each in named if each in brought or in_session.named(each) or await directory.find(each)
    ]:
        raise AnswerRefused(answers[0].named, f"No call {answers[0].named} awaits an answer in this thread.")
    mistakes: dict[str, str] = {}
    fitting: set[str] = set()
    for answer in answers:
        call = await directory.find(id_in_session(session, answer.named))
        name = brought.get(answer.named)
        if call is None and name is not None and (name in HOST_QUESTIONS or name in server_tools(agent)):
            raise AnswerRefused(
                answer.named, f"{name} runs on the server, and no client can answer its call {answer.named}."
            )
        if call is None or call.state is not CallState.AWAITING:
            continue
        named_there = in_session.id_of(call)
        if named_there in rewound:
            raise AnswerRefused(call.call_id, f"No answer is awaited: {REWOUND}.")
        about = in_session.question_about(named_there)
        if about is None and await _is_the_servers(directory, call, in_session, agent):
            raise AnswerRefused(
                call.call_id, f"{call.name} runs on the server, and no client can answer its call {call.call_id}."
            )
        if about is not None and about.id in named:
            continue  # the answer to the question counts; this one is what google-adk gave the model meanwhile
        question = about or in_session.question(named_there)
        if question is None and in_session.named(named_there) is None and call.name != CONFIRM_TOOL:
            raise AnswerRefused(
                call.call_id,
                f"The session in which {call.name} asked is gone, so this answer cannot reach the agent. The call "
                f"{call.call_id} still awaits one.",
            )
        mistake = _mistake_in(answer, question)
        if mistake is None:
            fitting.add(call.call_id)
        else:
            mistakes.setdefault(call.call_id, mistake)
    for call_id, mistake in mistakes.items():
        if call_id not in fitting:
            raise AnswerRefused(call_id, f"This is not the answer that {call_id} awaits: {mistake}")


def _mistake_in(answer: ClientAnswer, question: types.FunctionCall | None) -> str | None:
    """Why it is not the answer that google-adk asked for; None if it is, or if google-adk did not ask."""
    return None if question is None or answer.error is not None else misfit(question, answer.response)


async def _is_the_servers(directory: Directory, call: Call, in_session: SessionCalls, agent: BaseNode) -> bool:
    """Whether an awaiting call awaits its tool's own result, which no client can provide.

    Such a tool has asked a person, and google-adk was stopped after the answer arrived but before it ran the tool again.
    """
    if call.name in HOST_QUESTIONS or call.name == CONFIRM_TOOL:
        return False
    named = in_session.id_of(call)
    is_asked_about = in_session.is_asked_about(named)
    if in_session.is_long_running(named):  # the client answers once the tool has run
        return is_asked_about and await _is_paused(directory, call)
    return is_asked_about or call.name in server_tools(agent)


async def _is_paused(directory: Directory, call: Call) -> bool:
    journal = directory.journal
    for row in await journal.runs(thread_id=call.thread_id, principal=directory.principal):  # the newest first
        events = [record.event for record in await journal.read_whole([row.run_id])]
        awaiting = [each for each in events if isinstance(each, CallAwaiting) and each.call_id == call.call_id]
        if awaiting:
            return awaiting[-1].is_paused
    return False


class ClientAnswers:
    """Takes the answers that one run brings. ``agent``: no client may answer for its tools.

    ``resumable``: whether google-adk resumes a turn as a whole.
    """

    def __init__(self, run: Run, session: Session, agent: BaseNode, *, resumable: bool = False) -> None:
        self._run = run
        self._session = session
        self._agent = agent
        self._resumable = resumable
        self._directory = run.directory
        self._calls = SessionCalls(session)
        self._order = {call.id: number for number, call in enumerate(self._calls)}
        self._parts: dict[str, types.Part] = {}
        self._unrecorded: dict[str, TakenAnswer] = {}
        self._sentences: list[str] = []

    async def accept(self, answers: Sequence[ClientAnswer], *, alone: bool) -> _Answered:
        """Returns the answers in the order of their calls. Each is recorded when google-adk gets it, or is held back.

        Answers that were given before are left out. An answer to an unknown call is an error if the run has nothing else to
        do. While other calls of the same turn still await answers, these are held back, if the run brings them ``alone``.
        """
        # An answer to a question itself takes precedence over one to the call that the question is about.
        ordered = sorted(
            answers, key=lambda answer: self._calls.question(id_in_session(self._session, answer.named)) is None
        )
        foreign = [answer.named for answer in ordered if not await self._take(answer)]
        if foreign:
            thread_id = self._run.thread_id
            if alone and not self._parts and not self._sentences:
                raise UsageError(f"no call {foreign[0]!r} awaits an answer in thread {thread_id!r}")
            logger.warning("thread %s: ignoring answers to unknown calls: %s", thread_id, foreign)
        is_whole = await self._complete_turns()
        if alone and not is_whole:
            for taken in self._unrecorded.values():
                await taken.record(self._run)
            held = frozenset(answer.message_id for answer in answers if answer.message_id is not None)
            return _Answered(sentences=self._sentences, held=held)
        return _Answered(self._by_turn(), self._sentences)

    async def _take(self, answer: ClientAnswer) -> bool:
        """False if no client can answer the call: it is unknown here or to google-adk, or its tool is the server's."""
        named = id_in_session(self._session, answer.named)
        call = await self._take_in(await self._directory.find(named), named)
        if call is not None and call.state is CallState.AWAITING:
            question = self._calls.question_about(self._calls.id_of(call))
            if question is not None:  # the client answers the call that is paused, and means the question about it
                wire_id = question.id or ""
                call = await self._take_in(await self._directory.find_by_wire_id(wire_id), wire_id)
            elif await _is_the_servers(self._directory, call, self._calls, self._agent):
                return False
        if call is None:
            return False
        wire_id = self._calls.id_of(call)
        if call.state is CallState.AWAITING and wire_id not in self._order and call.name != CONFIRM_TOOL:
            return False  # google-adk cannot accept it: the session was in memory and is gone, unlike the journal
        if wire_id in self._unrecorded:
            return True
        if call.state is CallState.AWAITING and _mistake_in(answer, self._calls.question(wire_id)) is not None:
            thread_id = self._run.thread_id
            logger.warning("thread %s: ignoring an answer that call %s does not await", thread_id, call.call_id)
            return True
        part = self._part(call, answer)
        assert part.function_response is not None
        if call.state is CallState.AWAITING and answer.error is None and self._calls.goes_on(part.function_response):
            await record_update(self._run, call.call_id, answer.result)
            self._parts[wire_id] = part
        elif call.state is CallState.AWAITING:
            await self._record(call, answer)
        elif call.state in HAS_OUTCOME and wire_id in self._order:
            # An answer that was given before counts only if a crash has kept it from the session.
            kept = part if call.name == CREDENTIAL else self._part(call, ClientAnswer.recorded(call, answer.media))
            assert kept.function_response is not None
            if self._calls.lacks(kept.function_response):
                self._parts.setdefault(wire_id, kept)
        return True

    async def _record(self, call: Call, answer: ClientAnswer) -> None:
        result = None if answer.error is not None else answer.result
        if call.name == CREDENTIAL and result is not None:
            result = CREDENTIAL_RECEIVED
        taken = TakenAnswer(call, result, answer.error, answer.message_id)
        wire_id = self._calls.id_of(call)
        if call.name == CONFIRM_TOOL and wire_id not in self._order:
            await taken.record(self._run)
            self._sentences.append(decision_text(answer.content))
        else:
            self._parts[wire_id] = self._part(call, answer)
            self._unrecorded[wire_id] = taken

    def _part(self, call: Call, answer: ClientAnswer) -> types.Part:
        """The answer as google-adk takes it."""
        wire_id = self._calls.id_of(call)
        question = self._calls.question(wire_id)
        if question is None:
            return response_part(answer, wire_id, call.name)
        match question.name:
            case "adk_request_confirmation":
                response = confirmation(answer.response)
            case "adk_request_credential":
                response = credential(question, answer.response)
            case _:
                response = answer.response if answer.error is not None else adapt_input(question, answer.response)
        return types.Part(
            function_response=types.FunctionResponse(id=question.id, name=question.name, response=response)
        )

    async def _take_in(self, call: Call | None, wire_id: str) -> Call | None:
        """The call. If there is none, the session's call with this id, which is older than the journal, is imported.

        Unless its tool is the server's: then the call is from a history that a client brought, and its answer is made up.
        And unless the journal has forgotten the thread: then the call is not older than the journal, but was erased.
        """
        if call is not None:
            return call
        asked = self._calls.named(wire_id)
        if asked is None or asked.name in server_tools(self._agent):
            return None
        if await self._directory.journal.has_forgotten(self._run.thread_id, self._run.principal):
            return None
        if wire_id in self._calls.responded:
            call_id = await import_call(self._run, wire_id, asked.name or "", asked.args or {})
            await self._run.complete(call_id)
        else:
            call_id = await take_in(self._run, asked)
        return self._run.call(call_id)

    # -- whole turns --

    async def _complete_turns(self) -> bool:
        """Adds answers that were held back before. False if other calls made together with these still lack answers."""
        unconfirmed = {paused_call_id(each) for each in self._calls.questions() if each.id not in self._parts}
        is_whole = True
        for calls in [*self._calls.together, *self._in_step()]:
            if not any(call.id in self._parts for call in calls):
                continue
            for beside in calls:
                if not beside.id or beside.id in self._parts or beside.name == CREDENTIAL:
                    continue  # google-adk accepts credentials one by one
                if beside.id in self._calls.asked_within:
                    continue  # and so it does answers to the nodes of a Workflow
                if beside.id in unconfirmed:
                    is_whole = False  # the placeholder that google-adk gives the model meanwhile is not an answer
                elif beside.id not in self._calls.responded:
                    is_whole = await self._restore(beside.id) and is_whole
        return is_whole

    def _in_step(self) -> list[list[types.FunctionCall]]:
        """Calls of parallel agents that must all be answered before whatever comes after those agents may run.

        If google-adk resumes a sequence with the answer to one of them, the sequence goes on without the others.
        """
        if not self._resumable:
            return []
        found: dict[tuple[str, str], list[types.FunctionCall]] = {}
        for event in self._session.events:
            around = _parallel_around(self._agent, event.author)
            asked = [
                call
                for call in event.get_function_calls()
                if call.name in HOST_QUESTIONS or self._calls.is_long_running(call.id)
            ]
            if around is not None and asked:
                found.setdefault((event.invocation_id, around), []).extend(asked)
        return list(found.values())

    async def _restore(self, wire_id: str) -> bool:
        """Adds the answer to a call of the session from the journal. False if there is none yet."""
        call = await self._directory.find_newest(wire_id) or await self._directory.find_by_call_id(wire_id)
        call = await self._take_in(call, wire_id)
        if call is not None and call.state in HAS_OUTCOME:
            self._parts[wire_id] = self._part(call, ClientAnswer.recorded(call))
        return call is not None and call.state is not CallState.AWAITING

    def _by_turn(self) -> list[TurnAnswers]:
        """The answers by turn and agent. Answers to google-adk's own questions are separate, after the agent's others."""
        found: dict[tuple[str, Speaker], dict[bool, list[types.Part]]] = {}
        for call_id in sorted(self._parts, key=lambda call_id: self._order.get(call_id, 0)):
            part = self._parts[call_id]
            response = part.function_response
            assert response is not None
            asked = self._calls.asked_in(response.id)
            whose = ("", Speaker("", None)) if asked is None else (asked.invocation_id, Speaker.of(asked))
            of_agent = found.setdefault(whose, {False: [], True: []})
            of_agent[response.name in HOST_QUESTIONS].append(part)
        turns = list(dict.fromkeys(turn for turn, _ in found))
        return [
            TurnAnswers(turn, speaker, parts, to_host, self._taken(parts))
            for (turn, speaker), both in sorted(found.items(), key=lambda each: turns.index(each[0][0]))
            for to_host, parts in both.items()
            if parts
        ]

    def _taken(self, parts: list[types.Part]) -> list[TakenAnswer]:
        """Those of these answers that are to be recorded, in the order in which the client gave them."""
        answered = {_answered_id(part) for part in parts}
        return [taken for wire_id, taken in self._unrecorded.items() if wire_id in answered]
