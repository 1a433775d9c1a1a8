"""One run of an ``ADKAgent``: from a client's input to google-adk's last event.

Everything that the client is to see goes into the journal; nothing is emitted from here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from ag_ui.core import DeveloperMessage, Message, RunAgentInput, SystemMessage, ToolMessage, UserMessage
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.agentoptions import AgentSettings
from callstream.adk.agenttree import server_tools
from callstream.adk.answers import HOST_QUESTIONS, imported
from callstream.adk.clienttools import ClientInput, current_input
from callstream.adk.contents import Answer, answer_in, parts_of, received, response_part
from callstream.adk.invocations import wire_id
from callstream.adk.predictions import CONFIRM_TOOL, Predictions, decision
from callstream.adk.sharedstate import SharedState, taken
from callstream.adk.threads import CONTEXT_KEY, Threads, marks, renamed, split
from callstream.calls import Call, CallState
from callstream.errors import UsageError
from callstream.events import CallAwaiting
from callstream.runtime import Run

logger = logging.getLogger("callstream")

_CONFIRMATION = "adk_request_confirmation"
_ANSWERED = (CallState.COMPLETED, CallState.FAILED)


class AgentRun:
    """``work`` is the run. It is given a started run of the journal and ends it, however it ends."""

    def __init__(self, runner: Runner, threads: Threads, settings: AgentSettings, given: RunAgentInput) -> None:
        self._runner = runner
        self._threads = threads
        self._settings = settings
        self._input = given
        self._predictions = Predictions(settings.predict_state)
        self._state = SharedState(given.state)

    async def work(self, run: Run, user_id: str, given_up: tuple[Call, ...]) -> None:
        instructions = _instructions(self._input.messages)
        current_input.set(ClientInput(tuple(self._input.tools or ()), instructions, self._agent_name, given_up))
        async with run, asyncio.timeout(self._settings.execution_timeout_seconds):
            session = await self._threads.open(self._runner.app_name, user_id, self._input.thread_id)
            messages, changes, said = await self._incoming(run, session)
            await run.record(self._state.snapshot({**session.state, **changes}))
            if not messages and (changes or said):
                await self._append(session, None, {**changes, **said})
            for number, message in enumerate(messages, start=1):
                # What a user said counts as heard with the turn that it begins, the last: one before may fail.
                delta = {**(changes if number == 1 else {}), **(said if number == len(messages) else {})}
                await self._invoke(run, session, message, delta)
            after = await self._threads.find(self._runner.app_name, user_id, self._input.thread_id)
            if after is not None:
                await run.record(self._state.snapshot(after.state))

    # -- in --

    async def _incoming(self, run: Run, session: Session) -> tuple[list[types.Content], dict[str, Any], dict[str, Any]]:
        """What google-adk is to be asked, one after the other, what changes in the session, and what marks the messages."""
        state = session.state
        past, new = split(self._input.messages, session)
        if not session.events and past and self._settings.seed_first_run_history:
            await self._threads.seed(session, past, self._agent_name)
        said = [message for message in new if isinstance(message, UserMessage)]
        for message in said:
            await run.record([received(message)])
        parts = [part for message in said for part in parts_of(message.content)]
        answered = await self._answered(run, session, [*self._answers(new)], alone=not parts)
        parts += [types.Part(text=sentence) for sentence in answered.sentences]
        asked: list[types.Content] = []
        turns = _by_turn(session, answered.parts)
        for number, (turn, answers) in enumerate(turns, start=1):
            content = types.Content(role="user", parts=answers)
            if _answers_host(answers) or (number == len(turns) and not parts):
                asked.append(content)
            else:
                # google-adk goes on with one turn and takes answers to one turn only, a model wants them by themselves,
                # right after the calls; and what stands beside an answer to a question of google-adk's is not shown to it.
                await self._append(session, content, {}, invocation_id=turn)
        if parts:
            asked.append(types.Content(role="user", parts=parts))
        changes = {
            **taken(self._input.state, allow_scopes=self._settings.allow_scoped_state_keys),
            **marks(each for each in self._input.messages if each.id not in answered.held and each not in said),
        }
        if self._input.context:
            changes[CONTEXT_KEY] = _described(self._input)
        # An event carries what is new alone, else a long thread's events would repeat its whole account.
        changes = {key: value for key, value in changes.items() if key not in state or state[key] != value}
        return asked, changes, marks(message for message in said if message.id not in answered.held)

    def _answers(self, new: Sequence[Message]) -> Iterator[Answer]:
        for message in new:
            if isinstance(message, ToolMessage):
                yield answer_in(message)
        for entry in self._input.resume or ():
            if entry.status == "cancelled":
                yield Answer(entry.interrupt_id, "", error="The user cancelled this.")
            else:
                payload = entry.payload
                yield Answer(entry.interrupt_id, payload if isinstance(payload, str) else json.dumps(payload))

    async def _answered(self, run: Run, session: Session, answers: Sequence[Answer], *, alone: bool) -> _Answered:
        """Records answers to calls that await them, and gives them as google-adk takes them, in the order of the calls.

        Those that came before are left out. One to a call that nobody made never reaches the model, and is an error if
        the run has nothing else to do. Where others of the same turn still await their answers, these are held back.
        """
        order = {call.id: number for number, call in enumerate(_function_calls(session))}
        responded = _responded(session)
        found: dict[str, types.Part] = {}
        made = _Answered()
        foreign: list[str] = []
        for answer in answers:
            asked = _question(session, answer.named)
            if asked is not None:
                # A client of ag_ui_adk was shown google-adk's own question.
                found[answer.named] = response_part(_confirming(answer), asked)
                continue
            call = await self._asked(run, session, renamed(session, answer.named))
            if call is None:
                foreign.append(answer.named)
                continue
            if call.state is not CallState.AWAITING:
                # One that came before counts only where a crash has kept it from the session.
                if call.state in _ANSWERED and wire_id(call) in order and wire_id(call) not in responded:
                    found.setdefault(wire_id(call), _kept(call, answer.media))
                continue
            if (question := _confirmation(session, call)) is not None:
                found[question.id or ""] = response_part(_confirming(answer), question)
                continue
            result = None if answer.error is not None else answer.result
            await run.answer(call.call_id, result, error=answer.error, message_id=answer.message_id)
            if call.name == CONFIRM_TOOL and wire_id(call) not in order:
                made.sentences.append(decision(answer.content))
            else:
                found[wire_id(call)] = response_part(answer, types.FunctionCall(id=wire_id(call), name=call.name))
        if foreign:
            if alone and not found and not made.sentences:
                raise UsageError(f"no call {foreign[0]!r} awaits an answer in thread {run.thread_id!r}")
            logger.warning("thread %s: answers to calls that nobody made are left out: %s", run.thread_id, foreign)
        if found:
            is_whole = await self._complete_turn(run, session, found)
            if not is_whole and alone:
                made.held = {answer.message_id for answer in answers if answer.message_id is not None}
                return made
        made.parts = [found[key] for key in sorted(found, key=lambda key: order.get(key, 0))]
        return made

    async def _complete_turn(self, run: Run, session: Session, found: dict[str, types.Part]) -> bool:
        """Adds the answers that were held back before. False if there are calls beside these that lack theirs."""
        responded = _responded(session)
        unconfirmed = {
            _asked_about(question)
            for question in _function_calls(session)
            if question.name == _CONFIRMATION and question.id not in found and question.id not in responded
        }
        is_whole = True
        for event in session.events:
            calls = event.get_function_calls()
            if not any(call.id in found for call in calls):
                continue
            for beside in calls:
                if not beside.id or beside.id in found:
                    continue
                if beside.id in unconfirmed:
                    is_whole = False  # what google-adk tells the model meanwhile is no answer
                    continue
                if beside.id in responded:
                    continue
                if beside.name in HOST_QUESTIONS:
                    is_whole = False
                    continue
                call = await self._meant(run, session, beside.id)
                if call is None or call.state is CallState.AWAITING:
                    is_whole = False
                elif call.state in _ANSWERED:
                    found[beside.id] = _kept(call)
        return is_whole

    async def _meant(self, run: Run, session: Session, wire_id: str) -> Call | None:
        """The call that the session means by an id, the newest of them."""
        listed = await run.callstream.journal.calls(
            thread_id=run.thread_id, provider_id=wire_id, principal=session.user_id
        )
        return await self._asked(run, session, listed[-1].call_id if listed else wire_id)

    async def _asked(self, run: Run, session: Session, named: str) -> Call | None:
        """The call that an answer means; one that is older than the journal is taken into it.

        Unless its tool is the server's: such a call is in a history that a client brought, and its answer his invention.
        """
        journal = run.callstream.journal
        call = await journal.call(named)
        if call is not None and call.thread_id == run.thread_id:
            # Two people may have threads of one name; their calls are their own.
            own = await journal.runs(run_id=call.run_id, principal=session.user_id, limit=1)
            return call if own else None
        listed = await journal.calls(thread_id=run.thread_id, provider_id=named, principal=session.user_id)
        if listed:
            return await journal.call(listed[-1].call_id)
        asked = next((each for each in _function_calls(session) if each.id == named), None)
        if asked is None or asked.name in server_tools(self._runner.agent):
            return None
        call_id = await imported(run, named, asked.name or "", asked.args or {})
        if named in _responded(session):
            await run.complete(call_id)
        else:
            await run.record([CallAwaiting(call_id)])
        return run.call(call_id)

    # -- through --

    async def _invoke(self, run: Run, session: Session, message: types.Content, changes: dict[str, Any]) -> None:
        events = self._runner.run_async(
            user_id=session.user_id,
            session_id=session.id,
            new_message=message,
            state_delta=changes,
            run_config=self._run_config(),
        )
        failure: str | None = None
        async with aclosing(events):
            async for event in events:
                if event.partial:
                    continue
                failure = _failure(event) if event.error_code and not _has_content(event) else None
                if event.actions.state_delta:
                    await run.record(self._state.delta(event.actions.state_delta))
                await self._ask_about_predictions(run, event)
        if failure is not None:
            raise AgentFailed(failure)

    def _run_config(self) -> RunConfig:
        if self._settings.run_config_factory is not None:
            config: RunConfig = self._settings.run_config_factory(self._input)
        else:
            config = RunConfig(streaming_mode=StreamingMode.SSE)
        if not self._input.context:
            return config
        metadata = {"ag_ui_context": _described(self._input), **(config.custom_metadata or {})}
        return config.model_copy(update={"custom_metadata": metadata})

    async def _ask_about_predictions(self, run: Run, event: Event) -> None:
        """Asks the client's user about what was shown to him before it was there."""
        if any(self._predictions.asks_about(response.name or "") for response in event.get_function_responses()):
            call_id = await imported(run, f"adk-{run.callstream.new_call_id()}", CONFIRM_TOOL, {})
            await run.await_answer(call_id)

    # -- the session --

    @property
    def _agent_name(self) -> str:
        return str(self._runner.agent.name)

    async def _append(
        self, session: Session, content: types.Content | None, changes: dict[str, Any], *, invocation_id: str = ""
    ) -> None:
        actions = EventActions(state_delta=changes)
        event = Event(author="user", content=content, actions=actions, invocation_id=invocation_id)
        await self._threads.service.append_event(session, event)


class AgentFailed(Exception):
    """google-adk's last word was an error."""


class _Answered(msgspec.Struct):
    """``parts`` for google-adk, ``sentences`` for the model, and the ids of messages whose answers are ``held`` back."""

    parts: list[types.Part] = []
    sentences: list[str] = []
    held: set[str] = set()


def _confirmation(session: Session, call: Call) -> types.FunctionCall | None:
    """The open question of google-adk itself whether that call may run."""
    answered = _responded(session)
    for asked in _function_calls(session):
        if asked.name == _CONFIRMATION and _asked_about(asked) == wire_id(call) and asked.id not in answered:
            return asked
    return None


def _asked_about(question: types.FunctionCall) -> str | None:
    """The call whose confirmation a question of google-adk asks for."""
    original = (question.args or {}).get("originalFunctionCall")
    return original.get("id") if isinstance(original, dict) else None


def _question(session: Session, named: str) -> types.FunctionCall | None:
    """The open question of google-adk itself that has that id."""
    asked = (call for call in _function_calls(session) if call.id == named and call.name == _CONFIRMATION)
    return next((call for call in asked if call.id not in _responded(session)), None)


def _confirming(answer: Answer) -> Answer:
    """Yes or no, however the client says it."""
    response = answer.response
    said = next((response[key] for key in ("confirmed", "approved", "accepted", "result") if key in response), False)
    confirmed = said is True or (
        isinstance(said, str) and said.strip().lower() in ("yes", "true", "approved", "confirmed")
    )
    told = {**response, "confirmed": confirmed} if "confirmed" in response else {"confirmed": confirmed}
    return Answer(answer.named, json.dumps(told), message_id=answer.message_id)


def _function_calls(session: Session) -> Iterator[types.FunctionCall]:
    for event in session.events:
        yield from event.get_function_calls()


def _by_turn(session: Session, responses: Sequence[types.Part]) -> list[tuple[str, list[types.Part]]]:
    """Answers by the turns whose calls they answer, those to questions of google-adk itself apart, after the others."""
    turns = {call.id: event.invocation_id for event in session.events for call in event.get_function_calls()}
    found: dict[str, tuple[list[types.Part], list[types.Part]]] = {}
    for part in responses:
        answered = part.function_response
        assert answered is not None
        others, questions = found.setdefault(turns.get(answered.id, ""), ([], []))
        (questions if _answers_host([part]) else others).append(part)
    return [(turn, parts) for turn, both in found.items() for parts in both if parts]


def _answers_host(parts: Sequence[types.Part]) -> bool:
    """Whether these are answers to questions of google-adk itself."""
    return any(part.function_response is not None and part.function_response.name in HOST_QUESTIONS for part in parts)


def _responded(session: Session) -> set[str | None]:
    return {each.id for event in session.events for each in event.get_function_responses()}


def _kept(call: Call, media: tuple[types.Part, ...] = ()) -> types.Part:
    """The answer that the journal has, as google-adk takes it. ``media``, which it has not, from the client's message."""
    error = call.error if call.state is CallState.FAILED else None
    content = call.result if isinstance(call.result, str) else json.dumps(call.result)
    answer = Answer(call.call_id, content, error=error, media=media)
    return response_part(answer, types.FunctionCall(id=wire_id(call), name=call.name))


def _described(given: RunAgentInput) -> list[dict[str, str]]:
    return [{"description": each.description, "value": each.value} for each in given.context or ()]


def _instructions(messages: Sequence[Message]) -> str | None:
    texts = [message.content for message in messages if isinstance(message, SystemMessage | DeveloperMessage)]
    return "\n\n".join(text for text in texts if text) or None


def _has_content(event: Event) -> bool:
    return event.content is not None and bool(event.content.parts)


def _failure(event: Event) -> str:
    return f"{event.error_code}: {event.error_message}" if event.error_message else str(event.error_code)
