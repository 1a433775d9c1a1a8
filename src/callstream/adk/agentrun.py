"""One run of an ``ADKAgent``: from a client's input to google-adk's last event.

``ClientTurn`` is the input before the run begins: what journal and session know of its thread, and whether its answers can
be accepted. ``AgentRun`` is the run. Everything for the client goes into the journal; nothing is emitted from here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from ag_ui.core import DeveloperMessage, Message, RunAgentInput, SystemMessage, ToolMessage, UserMessage
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.workflow import BaseNode
from google.genai import types

from callstream.adk.answers import ClientAnswers, TakenAnswer, TurnAnswers, answers_in, check_answers, parts_of
from callstream.adk.calls import (
    CONFIRM_TOOL,
    CONFIRMATION,
    CREDENTIAL,
    SessionCalls,
    give_up_rewound,
    import_call,
    message_received,
    paused_call_id,
)
from callstream.adk.history import history_events, import_session
from callstream.adk.invocations import Invocation
from callstream.adk.plugin import HostedPlugin
from callstream.adk.services import keep_session
from callstream.adk.settings import AgentOptions
from callstream.adk.tapping import server_tools
from callstream.adk.threads import (
    CONTEXT_KEY,
    RESUMED_KEY,
    SharedState,
    ThreadKey,
    Threads,
    accept_state,
    has_pending_marks,
    marks,
    pending_marks,
    split,
    unanswered_in,
)
from callstream.adk.tools import ClientInput, current_input
from callstream.agui.messages import AGAIN, as_history, called_in, digest_of, since_spoken
from callstream.agui.presentation import Predictions
from callstream.calls import Call, CallState
from callstream.events import MessageReceived, Question
from callstream.journal import Journal, RunRow
from callstream.runtime import Run
from callstream.runtime.answers import Directory
from callstream.runtime.driver import AppRuns

logger = logging.getLogger("callstream")

_UNCONFIRMED = {"status": "a person has been asked to confirm this call"}
"""The response of a tool that asked for confirmation, if the session does not have it."""


_STREAMING = RunConfig(streaming_mode=StreamingMode.SSE)


class _Turn(NamedTuple):
    """A message for google-adk, and the changes to the session's state that go with it.

    ``answers``: those in the message. They are recorded only when it is sent, since a turn before it may fail.
    """

    session_id: str
    message: types.Content
    answers: Sequence[TakenAnswer]
    changes: dict[str, Any]
    config: RunConfig


class _TurnDirectory(Directory):
    """The directory of one turn before its run begins: it looks up each id only once."""

    def __init__(self, journal: Journal, thread_id: str, principal: str | None) -> None:
        super().__init__(journal, thread_id, principal)
        self._found: dict[str, Call | None] = {}

    async def find(self, named: str) -> Call | None:
        if named not in self._found:
            self._found[named] = await super().find(named)
        return self._found[named]


class ClientTurn:
    """A client's input for a thread, with what the journal and google-adk know of the thread, each read once.

    From this, a request is refused or a run begins. ``heard``: a user's messages, sent along with answers, that runs of the
    thread have had although its session is gone. ``history``: the past of a conversation that began elsewhere.
    """

    def __init__(
        self, run_input: RunAgentInput, thread: ThreadKey, journal: Journal, threads: Threads, app_runs: AppRuns
    ) -> None:
        self.run_input = run_input
        self.thread = thread
        self._app_name, self._user_id, self._thread_id = thread
        self.directory = _TurnDirectory(journal, self._thread_id, self._user_id)
        self.runs: Sequence[RunRow] = ()
        self.heard: frozenset[str] = frozenset()
        self.history: Sequence[Message] = ()
        self._journal = journal
        self._app_runs = app_runs
        self.threads = threads
        self._session: Session | None = None
        self._has_session = False

    async def read(self, agent: BaseNode, *, seeds: bool) -> None:
        """``seeds``: whether earlier messages that the client sends to a new thread become the thread's past.

        Raises AnswerRefused if the client sends only answers, and one of them cannot be given to google-adk.
        """
        await self.import_thread(agent)
        self.directory.own_runs = frozenset(row.run_id for row in self.runs)
        await self._look_for_heard()
        if seeds:
            await self._look_for_history()
        await self._check_answers(agent, seeds=seeds)

    async def import_thread(self, agent: BaseNode) -> None:
        """Reads the runs of the thread. If the app has none, the content of its session becomes the first."""
        await self._journal.open()
        if await self._has_run():
            return
        try:
            session = await self._found_session()
        except Exception:  # noqa: BLE001  # whatever a session service raises, the run gets the same error and fails
            return
        if session is None or not session.events or await self._is_forgotten():
            return
        if not await self._has_run():  # one may have begun meanwhile, before the session was read
            await import_session(self._journal, session, self._thread_id, server_tools(agent))
            await self._read_runs()

    async def _has_run(self) -> bool:
        await self._read_runs()
        return await self._is_known()

    async def _read_runs(self) -> None:
        self.runs = await self._journal.runs(thread_id=self._thread_id, principal=self._user_id)

    async def _is_known(self) -> bool:
        """Whether a run of the thread belongs to the app. Most often, the newest does."""
        for rows in (self.runs[:1], self.runs[1:]):
            if rows and await self._app_runs.of(self._app_name, rows, self._journal):
                return True
        return False

    async def _is_forgotten(self) -> bool:
        return await self._journal.has_forgotten(self._thread_id, self._user_id)

    async def _look_for_heard(self) -> None:
        since = since_spoken(self.run_input.messages)
        said = {message.id for message in since if isinstance(message, UserMessage)}
        if not said or not any(isinstance(message, ToolMessage) for message in since):
            return
        session = await self._found_session()
        if session is not None and session.events:
            return
        rows = await self._app_runs.of(self._app_name, self.runs, self._journal)
        events = [record.event for record in await self._journal.read_whole([row.run_id for row in rows])]
        self.heard = frozenset(said & {event.message_id for event in events if isinstance(event, MessageReceived)})

    async def _look_for_history(self) -> None:
        """Finds the past that the client sends for a thread that is new here, and with which its session will begin.

        An answer is part of that past if a user's message follows it.
        """
        messages = self.run_input.messages
        if len(since_spoken(messages)) == len(messages) or await self._is_known() or await self._is_forgotten():
            return
        try:
            session = await self._found_session()
        except Exception:  # noqa: BLE001  # the run gets the same error and fails
            return
        if session is None or not session.events:
            said = [number for number, message in enumerate(messages) if isinstance(message, UserMessage)]
            past = messages[: max(said, default=0)]
            self.heard = frozenset(message.id for message in past if isinstance(message, ToolMessage))
            self.history, _ = split(messages, session or self._new_session(), self.heard)

    async def _check_answers(self, agent: BaseNode, *, seeds: bool) -> None:
        # The last message need not be a result: clients put a result next to its call, before what the model said later.
        run_input = self.run_input
        if not run_input.resume and (not run_input.messages or isinstance(run_input.messages[-1], UserMessage)):
            return
        session = await self._found_session() or self._new_session()
        past, new = split(run_input.messages, session, self.heard)
        if not any(isinstance(message, UserMessage) for message in new):
            answers = list(answers_in(run_input, new))
            await check_answers(self.directory, session, agent, answers, past if seeds else ())

    async def _found_session(self) -> Session | None:
        """google-adk's session before the run begins; None if there is none."""
        if not self._has_session:
            self._session = await self.threads.find(self.thread)
            self._has_session = True
        return self._session

    def _new_session(self) -> Session:
        return Session(id=self._thread_id, app_name=self._app_name, user_id=self._user_id)

    # -- what the run keeps of the input --

    async def credentials(self) -> set[str]:
        """The ids by which the client answers calls with a credential, or has answered them elsewhere."""
        brought = called_in(self.history)
        found = {named for named, name in brought.items() if name == CREDENTIAL}
        for message in since_spoken(self.run_input.messages):
            if isinstance(message, ToolMessage):
                call = await self.directory.find(message.tool_call_id)
                if call is not None and call.name == CREDENTIAL:
                    found.add(message.tool_call_id)
        return found

    def input_to_keep(self, credentials: set[str]) -> dict[str, Any]:
        """The app's name, and the messages after the model's last one: the others are in earlier runs.

        If there are no earlier runs, those too. Answers to calls for ``credentials`` are left out.
        """

        def without(messages: Iterable[Message]) -> list[Message]:
            return [
                message
                for message in messages
                if not (isinstance(message, ToolMessage) and message.tool_call_id in credentials)
            ]

        since = without(since_spoken(self.run_input.messages))
        kept: dict[str, Any] = {
            "messages": [message.model_dump(mode="json", by_alias=True) for message in since],
            "digest": digest_of(self.run_input),
            "app": self._app_name,
        }
        if self.history:
            kept["history"] = as_history(without(self.history))
        return kept


class AgentRun:
    """``work`` is the run: whatever happens, it ends the run that was started in the journal.

    ``given_up``: calls that a process left behind in the thread when it died.
    """

    def __init__(
        self,
        run: Run,
        turn: ClientTurn,
        runner: Runner,
        plugin: HostedPlugin,
        settings: AgentOptions,
        predictions: Predictions,
        *,
        given_up: tuple[Call, ...],
    ) -> None:
        self._run = run
        self._thread = turn.thread
        self._threads = turn.threads
        self._input = turn.run_input
        self._heard = turn.heard
        self._runner = runner
        self._plugin = plugin
        self._settings = settings
        self._predictions = predictions
        self._predicted: dict[str, None] = {}  # the tools that have run and whose changes need the user's consent
        self._state = SharedState(turn.run_input.state)
        self._given_up = given_up

    async def work(self) -> None:
        run = self._run
        instructions = _instructions(self._input.messages)
        current_input.set(ClientInput(tuple(self._input.tools or ()), instructions, self._agent_name, self._given_up))
        try:
            async with run, asyncio.timeout(self._settings["execution_timeout_seconds"]):
                turns = await self._turns()
                for turn in turns:
                    await self._invoke(turn)
                after = await self._threads.find(self._thread)
                if after is not None:
                    always = bool(turns) and self._settings["emit_state_snapshot"]
                    await run.record(self._state.snapshot(after.state, always=always))
                await self._ask_about_predictions()
                if after is not None:
                    await self._mark_pending(after)
        finally:
            self._plugin.forget(run)

    # -- in --

    async def _turns(self) -> list[_Turn]:
        """Takes the input into journal and session, and returns the turns for google-adk.

        Input and session hold the whole history of the thread, so neither is kept in memory while the model answers.
        """
        run = self._run
        session = await self._threads.open(self._thread)
        if run.keeping is not None and (run.replay is None or run.replay.session is None):
            await run.record([keep_session(session)])
        await give_up_rewound(run, session)
        turns, changes, said = await self._incoming(session)
        await run.record(self._state.snapshot({**session.state, **changes}))
        if not turns and (changes or said):
            await self._append(session, None, {**changes, **said})
        if turns:
            turns[0].changes.update(changes)
            # A user's message counts as heard with the turn that it begins, which is the last: one before may fail.
            turns[-1].changes.update(said)
        del self._input
        return turns

    def _turn(self, session: Session, message: types.Content, answers: Sequence[TakenAnswer] = ()) -> _Turn:
        answering = {taken.message_id for taken in answers}
        changes = marks(each for each in self._input.messages if each.id in answering)
        return _Turn(session.id, message, answers, changes, self._run_config())

    async def _incoming(self, session: Session) -> tuple[list[_Turn], dict[str, Any], dict[str, Any]]:
        """The turns for google-adk, in order; changes to the session's state; and the marks of the messages as heard."""
        run = self._run
        past, new = split(self._input.messages, session, self._heard)
        if not new and not self._input.resume and (self._settings["answer_again"] or _is_unanswered(session)):
            new = _sent_again(self._input.messages, run.run_id)
        if not session.events and past and self._settings["seed_first_run_history"]:
            for event in history_events(past, self._agent_name):
                await self._threads.service.append_event(session, event)
        said = [message for message in new if isinstance(message, UserMessage)]
        for message in said:
            await run.record([message_received(parts_of(message.content), message.id)])
        parts = [part for message in said for part in parts_of(message.content)]
        answers = list(answers_in(self._input, new))
        taking = ClientAnswers(run, session, self._runner.agent, resumable=self._resumes_turns)
        answered = await taking.accept(answers, alone=not parts)
        parts += [types.Part(text=sentence) for sentence in answered.sentences]
        turns = await self._append_answers(session, answered.turns, resumes=not parts)
        later = answered.held.union(taken.message_id for turn in turns for taken in turn.answers)
        heard = [message for message in self._input.messages if message.id not in later and message not in said]
        changes = self._changes(session, heard)
        if parts:
            turns.append(self._turn(session, types.Content(role="user", parts=parts)))
        return turns, changes, marks(message for message in said if message.id not in answered.held)

    async def _append_answers(self, session: Session, turns: Sequence[TurnAnswers], *, resumes: bool) -> list[_Turn]:
        """Puts answers into the session, except those that are sent to google-adk as turns: these are returned.

        ``resumes``: google-adk is to continue the last turn.
        """
        asked: list[_Turn] = []
        for place, turn in enumerate(turns):
            content = types.Content(role="user", parts=turn.parts)
            if turn.to_host:
                await self._append_requests(session, turn)
            if self._is_asked(turn, turns[place + 1 :], resumes=resumes):
                asked.append(self._turn(session, content, turn.unrecorded))
                continue
            # google-adk continues one turn and accepts answers to that turn only; a model wants answers by themselves,
            # right after the calls; and it is not shown what is next to an answer to one of google-adk's own questions.
            for taken in turn.unrecorded:
                await taken.record(self._run)
            await self._append(session, content, {}, invocation_id=turn.invocation_id, branch=turn.speaker.branch)
        return asked

    def _is_asked(self, turn: TurnAnswers, later: Sequence[TurnAnswers], *, resumes: bool) -> bool:
        """Whether these answers are sent to google-adk, and not merely put into the session.

        google-adk continues only the agent whose answers are in a message, so each agent gets a message of its own. Where
        it resumes whole turns it continues all agents whose answers are in the session: there, the last message of a turn
        is for all of them, and a sequence does not continue before all its parallel agents have their answers.
        """
        beside = [other for other in later if other.invocation_id == turn.invocation_id]
        if not turn.to_host and (not resumes or len(beside) < len(later)):
            return False
        if any(other.speaker == turn.speaker for other in beside):
            return False
        return not beside or not self._resumes_turns

    async def _append_requests(self, session: Session, turn: TurnAnswers) -> None:
        """Adds to the session that tools asked for confirmation, where only google-adk's own question is in it.

        ag_ui_adk leaves a run right after the question, and a crash may do so, too. google-adk does not accept a
        confirmation unless the tool's request is in the session as well.
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
        """The changes to the session's state from the client's state and context, and from having heard these messages."""
        changes = {
            **accept_state(self._input.state, allow_scopes=self._settings["allow_scoped_state_keys"]),
            **marks(heard),
        }
        if self._input.context:
            changes[CONTEXT_KEY] = _describe_context(self._input)
        if session.state.get(RESUMED_KEY):
            changes[RESUMED_KEY] = None  # else a program that goes back to ag_ui_adk would resume that invocation
        # An event carries only what is new, else each event of a long thread would repeat its whole state.
        state = session.state
        return {key: value for key, value in changes.items() if key not in state or state[key] != value}

    # -- through --

    async def _invoke(self, turn: _Turn) -> None:
        run = self._run
        for taken in turn.answers:
            await taken.record(run)
        events = self._runner.run_async(
            user_id=self._thread[1],
            session_id=turn.session_id,
            new_message=turn.message,
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

    async def _ask_about_predictions(self) -> None:
        """Asks the client's user about predicted state that was shown before it existed, once per tool.

        These are the last calls of a run: front ends disable the buttons of a dialog when anything comes after it.
        """
        run = self._run
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

    async def _mark_pending(self, session: Session) -> None:
        if not (unanswered_in(session) or self._predicted or has_pending_marks(session)):
            return
        run = self._run
        awaiting = await run.engine.journal.calls(
            thread_id=run.thread_id, principal=run.principal, states=[CallState.AWAITING]
        )
        known_as = {call.wire_id: call.call_id for call in awaiting}
        confirmations = [call.call_id for call in awaiting if call.name == CONFIRM_TOOL]
        if changes := pending_marks(session, known_as, confirmations):
            await self._append(session, None, changes)

    @property
    def _resumes_turns(self) -> bool:
        """Whether google-adk resumes a turn as a whole.

        It does so in a resumable app, unless an agent with a model that chats is the root: then it continues the agent
        that has asked.
        """
        config, root = self._runner.resumability_config, self._runner.agent
        if config is None or not config.is_resumable:
            return False
        return not isinstance(root, LlmAgent) or (root.mode or "chat") != "chat"

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
    """google-adk's last event was an error."""


def _describe_context(run_input: RunAgentInput) -> list[dict[str, str]]:
    return [{"description": each.description, "value": each.value} for each in run_input.context or ()]


def _instructions(messages: Sequence[Message]) -> str | None:
    texts = [message.content for message in messages if isinstance(message, SystemMessage | DeveloperMessage)]
    return "\n\n".join(text for text in texts if text) or None


def _is_unanswered(session: Session) -> bool:
    """Whether the last message is a user's."""
    last = next((event for event in reversed(session.events) if _has_content(event)), None)
    return last is not None and last.author == "user" and not last.get_function_responses()


def _sent_again(messages: Sequence[Message], run_id: str) -> list[Message]:
    """The user's message at the end of the input, if the session has had it before: its run failed, or the user wants
    another answer, perhaps to an edited message.
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
