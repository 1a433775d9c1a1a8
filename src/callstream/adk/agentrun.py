"""One run of an ``ADKAgent``: from a client's input to google-adk's last event.

``AgentRun`` is the run seen from outside google-adk, ``HostedPlugin`` from inside: the plugin as ``ADKAgent`` uses it, which
finds the run there with the client's messages in it already. Everything that the client is to see goes into the journal;
nothing is emitted from here.

No model takes a request in which calls have no answer. So a turn that awaits some goes no further; and where a person has
said something else meanwhile, the request says that the answers have not come yet. The session is left as it is, so they
may still come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Self

from ag_ui.core import DeveloperMessage, Message, RunAgentInput, SystemMessage, UserMessage
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

from callstream.adk.answers import ClientAnswers, TakenAnswer, TurnAnswers, answers_in
from callstream.adk.calls import CONFIRMATION, SessionCalls, give_up_rewound, import_call, paused_call_id
from callstream.adk.contents import ClientAnswer, message_received, parts_of
from callstream.adk.invocations import Invocation
from callstream.adk.plugin import CallstreamPlugin
from callstream.adk.presentation import CONFIRM_TOOL, Predictions
from callstream.adk.resuming import keep_session
from callstream.adk.settings import AgentOptions
from callstream.adk.threads import (
    CONTEXT_KEY,
    RESUMED_KEY,
    SharedState,
    Threads,
    accept_state,
    has_pending_marks,
    marks,
    pending_marks,
    split,
    unanswered_in,
)
from callstream.adk.tools import ClientInput, current_input
from callstream.agui.messages import AGAIN
from callstream.calls import HAS_OUTCOME, Call, CallState
from callstream.callstream import Callstream
from callstream.events import Question
from callstream.runtime import Run
from callstream.runtime.answers import Directory

logger = logging.getLogger("callstream")

_UNCONFIRMED = {"status": "a person has been asked to confirm this call"}
"""What a tool that asked to be confirmed has returned, where the session does not say."""


_STREAMING = RunConfig(streaming_mode=StreamingMode.SSE)


class _Asked(NamedTuple):
    """A message to google-adk. ``answers``: those in it, which are recorded when it is sent: one before it may fail."""

    message: types.Content
    answers: Sequence[TakenAnswer] = ()


class _Turn(NamedTuple):
    """What google-adk is asked, and what that changes in the state of the session."""

    user_id: str
    session_id: str
    asked: _Asked
    changes: dict[str, Any]
    config: RunConfig


class AgentRun:
    """``work`` is the run. It is given a started run of the journal and ends it, however it ends."""

    def __init__(
        self,
        runner: Runner,
        plugin: HostedPlugin,
        threads: Threads,
        settings: AgentOptions,
        predictions: Predictions,
        given: RunAgentInput,
    ) -> None:
        self._runner = runner
        self._plugin = plugin
        self._threads = threads
        self._settings = settings
        self._input = given
        self._predictions = predictions
        self._predicted: dict[str, None] = {}  # the tools that have run and whose changes need the user's consent
        self._state = SharedState(given.state)
        self._heard: frozenset[str] = frozenset()

    async def work(
        self, run: Run, user_id: str, given_up: tuple[Call, ...], heard: frozenset[str] = frozenset()
    ) -> None:
        """``heard``: messages that runs of the thread have had whose session is gone."""
        self._heard = heard
        instructions = _instructions(self._input.messages)
        current_input.set(ClientInput(tuple(self._input.tools or ()), instructions, self._agent_name, given_up))
        try:
            async with run, asyncio.timeout(self._settings["execution_timeout_seconds"]):
                turns = await self._turns(run, user_id)
                for turn in turns:
                    await self._invoke(run, turn)
                after = await self._threads.find(self._runner.app_name, user_id, run.thread_id)
                if after is not None:
                    always = bool(turns) and self._settings["emit_state_snapshot"]
                    await run.record(self._state.snapshot(after.state, always=always))
                await self._ask_about_predictions(run)
                if after is not None:
                    await self._mark_pending(run, after)
        finally:
            self._plugin.forget(run)

    # -- in --

    async def _turns(self, run: Run, user_id: str) -> list[_Turn]:
        """Takes the input in, into journal and session, and leaves what google-adk is to be asked.

        Input and session hold the whole history of the thread. Neither is kept while the model answers.
        """
        session = await self._threads.open(self._runner.app_name, user_id, self._input.thread_id)
        if run.keeping is not None and (run.keeping.replay is None or run.keeping.replay.session is None):
            await run.record([keep_session(session)])
        await give_up_rewound(run, session)
        messages, changes, said = await self._incoming(run, session)
        await run.record(self._state.snapshot({**session.state, **changes}))
        if not messages and (changes or said):
            await self._append(session, None, {**changes, **said})
        turns = [
            _Turn(session.user_id, session.id, asked, self._marks_of(asked), self._run_config()) for asked in messages
        ]
        if turns:
            turns[0].changes.update(changes)
            # What a user said counts as heard with the turn that it begins, the last: one before may fail.
            turns[-1].changes.update(said)
        del self._input
        return turns

    def _marks_of(self, asked: _Asked) -> dict[str, Any]:
        answers = {taken.message_id for taken in asked.answers}
        return marks(message for message in self._input.messages if message.id in answers)

    async def _incoming(self, run: Run, session: Session) -> tuple[list[_Asked], dict[str, Any], dict[str, Any]]:
        """What google-adk is to be asked, one after the other, what changes in the session, and what marks the messages."""
        past, new = split(self._input.messages, session, self._heard)
        if not new and not self._input.resume and (self._settings["answer_again"] or _is_unanswered(session)):
            new = _sent_again(self._input.messages, run.run_id)
        if not session.events and past and self._settings["seed_first_run_history"]:
            await self._threads.seed(session, past, self._agent_name)
        said = [message for message in new if isinstance(message, UserMessage)]
        for message in said:
            await run.record([message_received(parts_of(message.content), message.id)])
        parts = [part for message in said for part in parts_of(message.content)]
        answers = list(answers_in(self._input, new))
        taking = ClientAnswers(run, session, self._runner.agent, resumable=self._is_resumable)
        answered = await taking.accept(answers, alone=not parts)
        parts += [types.Part(text=sentence) for sentence in answered.sentences]
        asked = await self._append_answers(run, session, answered.turns, resumes=not parts)
        later = answered.held.union(taken.message_id for each in asked for taken in each.answers)
        heard = [message for message in self._input.messages if message.id not in later and message not in said]
        changes = self._changes(session, heard)
        if parts:
            asked.append(_Asked(types.Content(role="user", parts=parts)))
        return asked, changes, marks(message for message in said if message.id not in answered.held)

    async def _append_answers(
        self, run: Run, session: Session, turns: Sequence[TurnAnswers], *, resumes: bool
    ) -> list[_Asked]:
        """Puts answers into the session, but for those that google-adk is to be asked with: they are returned.

        ``resumes``: google-adk is to continue the last turn.
        """
        asked: list[_Asked] = []
        for place, turn in enumerate(turns):
            content = types.Content(role="user", parts=turn.parts)
            if turn.to_host:
                await self._append_requests(session, turn)
            if self._is_asked(turn, turns[place + 1 :], resumes=resumes):
                asked.append(_Asked(content, turn.unrecorded))
                continue
            # google-adk continues one turn and takes answers to one turn only; a model wants them by themselves,
            # right after the calls; and what stands beside an answer to a question of google-adk's is not shown to it.
            for taken in turn.unrecorded:
                await taken.record(run)
            await self._append(session, content, {}, invocation_id=turn.invocation_id, branch=turn.speaker.branch)
        return asked

    def _is_asked(self, turn: TurnAnswers, later: Sequence[TurnAnswers], *, resumes: bool) -> bool:
        """Whether google-adk is asked with these answers, and does not merely find them in the session.

        It continues the one agent whose answers a message has, so that each has a message of its own. In an app that is
        resumable it continues all that have their answers in the session: there, the last of a turn is for all of them,
        and a sequence does not go on before all parallel agents in it have theirs.
        """
        beside = [other for other in later if other.invocation_id == turn.invocation_id]
        if not turn.to_host and (not resumes or len(beside) < len(later)):
            return False
        if any(other.speaker == turn.speaker for other in beside):
            return False
        return not beside or not self._is_resumable

    async def _append_requests(self, session: Session, turn: TurnAnswers) -> None:
        """Puts into the session that tools asked to be confirmed, where only google-adk's questions are in it.

        ag_ui_adk leaves a run at the question, and so may a crash. google-adk takes no confirmation without the other.
        """
        calls = SessionCalls(session)
        requested = {call_id for event in session.events for call_id in event.actions.requested_tool_confirmations}
        answered = {part.function_response.id for part in turn.parts if part.function_response is not None}
        for event in list(session.events):
            for question in event.get_function_calls():
                paused = calls.named(paused_call_id(question) or "")
                if question.name != CONFIRMATION or question.id not in answered or paused is None or not paused.id:
                    continue
                if paused.id in requested:
                    continue
                asked = ToolConfirmation.model_validate((question.args or {}).get("toolConfirmation") or {})
                response = types.FunctionResponse(id=paused.id, name=paused.name, response=_UNCONFIRMED)
                request = Event(
                    author=event.author,
                    branch=event.branch,
                    invocation_id=event.invocation_id,
                    content=types.Content(role="user", parts=[types.Part(function_response=response)]),
                    actions=EventActions(requested_tool_confirmations={paused.id: asked}),
                )
                await self._threads.service.append_event(session, request)

    def _changes(self, session: Session, heard: Sequence[Message]) -> dict[str, Any]:
        """What the client's state and context, and having heard these messages, change in the session."""
        changes = {
            **accept_state(self._input.state, allow_scopes=self._settings["allow_scoped_state_keys"]),
            **marks(heard),
        }
        if self._input.context:
            changes[CONTEXT_KEY] = _describe_context(self._input)
        if session.state.get(RESUMED_KEY):
            changes[RESUMED_KEY] = None  # else a program that goes back to ag_ui_adk would resume that one
        # An event carries what is new alone, else a long thread's events would repeat its whole account.
        state = session.state
        return {key: value for key, value in changes.items() if key not in state or state[key] != value}

    # -- through --

    async def _invoke(self, run: Run, turn: _Turn) -> None:
        for taken in turn.asked.answers:
            await taken.record(run)
        events = self._runner.run_async(
            user_id=turn.user_id,
            session_id=turn.session_id,
            new_message=turn.asked.message,
            state_delta=turn.changes,
            run_config=turn.config,
        )
        failure: str | None = None
        invocation: Invocation | None = None
        async with aclosing(events):
            async for event in events:
                if event.partial:
                    continue
                invocation = self._plugin.invocation(event.invocation_id) or invocation
                failure = _failure(event) if event.error_code and not _has_content(event) else None
                if event.actions.state_delta:
                    await run.record(self._state.delta(event.actions.state_delta))
                names = (response.name or "" for response in event.get_function_responses())
                self._predicted.update(dict.fromkeys(filter(self._predictions.asks_about, names)))
        if invocation is not None and invocation.failure is not None:
            failure = invocation.failure
        if failure is not None:
            raise AgentFailed(failure)

    def _run_config(self) -> RunConfig:
        if self._settings["run_config_factory"] is not None:
            config: RunConfig = self._settings["run_config_factory"](self._input)
        else:
            config = _STREAMING.model_copy()
        if not self._input.context:
            return config
        metadata = {"ag_ui_context": _describe_context(self._input), **(config.custom_metadata or {})}
        return config.model_copy(update={"custom_metadata": metadata})

    async def _ask_about_predictions(self, run: Run) -> None:
        """Asks the client's user about what was shown before it was there, once per tool.

        These are the last calls of a run: front ends disable the buttons of a dialog when anything comes after it.
        """
        asked = {call.name for call in run.calls}
        for tool_name in self._predicted if CONFIRM_TOOL not in asked else ():
            call_id = await import_call(run, f"adk-{run.engine.new_call_id()}", CONFIRM_TOOL, {})
            question = Question(
                reason=CONFIRM_TOOL,
                message=f"{tool_name} has made changes. Keep them?",
                metadata={"predict_state": self._predictions.payloads(tool_name)},
            )
            await run.await_answer(call_id, question)

    # -- the session --

    async def _mark_pending(self, run: Run, session: Session) -> None:
        if not (unanswered_in(session) or self._predicted or has_pending_marks(session)):
            return
        awaiting = await run.engine.journal.calls(
            thread_id=run.thread_id, principal=run.principal, states=[CallState.AWAITING]
        )
        known_as = {call.wire_id: call.call_id for call in awaiting}
        confirmations = [call.call_id for call in awaiting if call.name == CONFIRM_TOOL]
        if changes := pending_marks(session, known_as, confirmations):
            await self._append(session, None, changes)

    @property
    def _is_resumable(self) -> bool:
        config = self._runner.resumability_config
        return config is not None and config.is_resumable

    @property
    def _agent_name(self) -> str:
        return str(self._runner.agent.name)

    async def _append(
        self,
        session: Session,
        content: types.Content | None,
        changes: dict[str, Any],
        *,
        invocation_id: str = "",
        branch: str | None = None,
    ) -> None:
        actions = EventActions(state_delta=changes)
        event = Event(author="user", content=content, actions=actions, invocation_id=invocation_id, branch=branch)
        await self._threads.service.append_event(session, event)


class AgentFailed(Exception):
    """google-adk's last word was an error."""


def _describe_context(given: RunAgentInput) -> list[dict[str, str]]:
    return [{"description": each.description, "value": each.value} for each in given.context or ()]


def _instructions(messages: Sequence[Message]) -> str | None:
    texts = [message.content for message in messages if isinstance(message, SystemMessage | DeveloperMessage)]
    return "\n\n".join(text for text in texts if text) or None


def _is_unanswered(session: Session) -> bool:
    """Whether a user's message is the last that was said."""
    last = next((event for event in reversed(session.events) if _has_content(event)), None)
    return last is not None and last.author == "user" and not last.get_function_responses()


def _sent_again(messages: Sequence[Message], run_id: str) -> list[Message]:
    """A user's message with which the input ends although the session has had it: its run failed, or another answer is
    wanted, perhaps to other words.
    """
    last = messages[-1] if messages else None
    if not isinstance(last, UserMessage):
        return []
    name = last.id.rpartition(AGAIN)[0] or last.id
    return [last.model_copy(update={"id": f"{name}{AGAIN}{run_id}"})]


def _has_content(event: Event) -> bool:
    return event.content is not None and bool(event.content.parts)


def _failure(event: Event) -> str:
    return f"{event.error_code}: {event.error_message}" if event.error_message else str(event.error_code)


# -- inside google-adk --


class HostedPlugin(CallstreamPlugin):
    _answering: frozenset[str] = frozenset()
    """The invocations that begin with answers. Their context may have the message with which they began at first."""
    _said_of: frozenset[str] = frozenset()
    join_text: bool | None = None
    """Whether google-adk gets the text of models by the passage; None: where nothing of the application could see less."""

    @classmethod
    def like(cls, other: CallstreamPlugin, callstream: Callstream, *, stream_arguments: bool) -> Self:
        """With the settings of a plugin that the application registered itself. Either may turn streaming off."""
        settings = other.settings
        return cls(
            callstream,
            name=other.name,
            on_truncated=settings.on_truncated,
            repair_signatures=settings.repair_signatures,
            stream_arguments=settings.stream_arguments and stream_arguments,
        )

    def trust_mcp_hints(self) -> None:
        """Tools of MCP servers are what they say of themselves."""
        self._execution.trusts_mcp_hints = True

    def _joins_text(self, context: InvocationContext) -> bool:
        seeing = self._judges.of_pieces(context)
        joins = not seeing if self.join_text is None else self.join_text
        name = "" if context.agent is None else context.agent.name
        if name not in self._said_of:
            self._said_of |= {name}
            if joins:
                logger.info(
                    "agent %s: text of its model is shown from the wire; google-adk gets it by the passage", name
                )
            else:
                why = " and ".join(dict.fromkeys(seeing)) or "join_text"
                logger.info("agent %s: google-adk gets text of its model piece by piece, for %s", name, why)
        return joins

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        if any(part.function_response is not None for part in user_message.parts or ()):
            self._answering |= {invocation_context.invocation_id}
        return None

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
        ended = await super().before_run_callback(invocation_context=invocation_context)
        invocation = self.invocation(invocation_context.invocation_id)
        given = current_input.get()
        agent = invocation_context.agent
        if invocation is not None and given is not None and agent is not None and given.agent_name == agent.name:
            invocation.given_up = list(given.given_up)
        if invocation is not None:
            invocation.is_resumed = invocation.invocation_id in self._answering
        self._answering -= {invocation_context.invocation_id}
        return ended

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        if _lacks_answers(llm_request.contents):
            return LlmResponse(turn_complete=True)
        invocation = self.invocation(callback_context.invocation_id)
        directory = None if invocation is None else invocation.run.directory
        await _fill_in(llm_request.contents, callback_context.session, directory)
        given = current_input.get()
        if given is not None and given.instructions and given.agent_name == callback_context.agent_name:
            llm_request.append_instructions([given.instructions])
        return await super().before_model_callback(callback_context=callback_context, llm_request=llm_request)


async def _fill_in(contents: list[types.Content], session: Session, directory: Directory | None) -> None:
    """Puts a word in the place of every answer that has not come, and the last answer in the place of an earlier one.

    Or the answer, if the session has it: google-adk leaves out what came between a call and its answer, and that may be
    the answer to a call of an earlier turn. Of such a call it shows what the tool returned when it asked to be confirmed.
    Or what the journal has of a call that is over, if a crash kept that from the session.
    """
    known = _Answers(session)
    for place in range(len(contents) - 1, -1, -1):
        calls = [part.function_call for part in contents[place].parts or () if part.function_call is not None]
        if not calls:
            continue
        after = contents[place + 1] if place + 1 < len(contents) else None
        parts = list((after.parts if after else None) or ())
        given = [part for part in parts if part.function_response is not None]
        has_answers = bool(given)
        answers = [known.answers_to(call) for call in reversed(calls)][::-1]
        words = []
        for call, answered in zip(calls, answers, strict=True):
            part = _take(given, call)
            if part is None:
                last = answered[-1] if answered else await _word_for(known.unanswered(call), directory)
                words.append(_answer(call.id, call.name, last))
            elif part.function_response is not None and part.function_response.response in answered[:-1]:
                parts[parts.index(part)] = _answer(call.id, call.name, answered[-1])
        if after is not None and has_answers:
            contents[place + 1] = types.Content(role=after.role, parts=[*parts, *words])
        elif words:
            contents.insert(place + 1, types.Content(role="user", parts=words))


async def _word_for(call_id: str | None, directory: Directory | None) -> dict[str, Any]:
    """What the model is told of a call that has no answer in the session."""
    call = None if directory is None or call_id is None else await directory.find_by_wire_id(call_id)
    if call is None or not (call.state in HAS_OUTCOME or call.state is CallState.DISCARDED):
        return {"status": "no answer yet"}
    return ClientAnswer.recorded(call).response


def _answer(call_id: str | None, name: str | None, response: dict[str, Any]) -> types.Part:
    return types.Part(function_response=types.FunctionResponse(id=call_id, name=name, response=response))


class _Answers:
    """What a session has as answers to its calls. Asked for the calls of a request, the last one first."""

    def __init__(self, session: Session) -> None:
        self._answered: list[tuple[types.FunctionCall, list[dict[str, Any]]]] = []
        newest: dict[str | None, list[dict[str, Any]]] = {}  # an id may be used again
        for event in session.events:
            for call in event.get_function_calls():
                newest[call.id] = []
                self._answered.append((call, newest[call.id]))
            for response in event.get_function_responses():
                newest.get(response.id, []).append(response.response or {})

    def answers_to(self, call: types.FunctionCall) -> list[dict[str, Any]]:
        """In the order in which they came.

        Ids that google-adk minted are not in a request: there, name and arguments tell.
        """
        return self._find(call, is_answered=True)[1]

    def unanswered(self, call: types.FunctionCall) -> str | None:
        """The id that the last call like this one without an answer has in the session."""
        return self._find(call, is_answered=False)[0]

    def _find(self, call: types.FunctionCall, *, is_answered: bool) -> tuple[str | None, list[dict[str, Any]]]:
        for place in range(len(self._answered) - 1, -1, -1):
            known, answers = self._answered[place]
            is_it = known.id == call.id if call.id else known.args == call.args
            if bool(answers) is is_answered and known.name == call.name and is_it:
                del self._answered[place]
                return known.id, answers
        return None, []


def _take(parts: list[types.Part], call: types.FunctionCall) -> types.Part | None:
    """Takes the answer to a call out of a list. Calls whose ids google-adk minted have none here: names tell."""
    for part in parts:
        response = part.function_response
        if response is not None and response.id == call.id and response.name == call.name:
            parts.remove(part)
            return part
    return None


def _lacks_answers(contents: list[types.Content]) -> bool:
    """Whether some of the model's last calls lack their answers, and no message came since."""
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
