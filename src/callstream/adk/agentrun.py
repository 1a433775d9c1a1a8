"""One run of an ``ADKAgent``: from a client's input to google-adk's last event.

Everything that the client is to see goes into the journal; nothing is emitted from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from ag_ui.core import DeveloperMessage, Message, RunAgentInput, SystemMessage, UserMessage
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.agentoptions import AgentSettings
from callstream.adk.answers import imported
from callstream.adk.clientanswers import ClientAnswers, TurnAnswers, answers_in
from callstream.adk.clienttools import ClientInput, current_input
from callstream.adk.contents import parts_of, received
from callstream.adk.predictions import CONFIRM_TOOL, Predictions
from callstream.adk.sharedstate import SharedState, taken
from callstream.adk.threads import CONTEXT_KEY, Threads, marks, split
from callstream.calls import Call
from callstream.events import Question
from callstream.runtime import Run


class AgentRun:
    """``work`` is the run. It is given a started run of the journal and ends it, however it ends."""

    def __init__(self, runner: Runner, threads: Threads, settings: AgentSettings, given: RunAgentInput) -> None:
        self._runner = runner
        self._threads = threads
        self._settings = settings
        self._input = given
        self._predictions = Predictions(settings.predict_state)
        self._predicted: dict[str, None] = {}  # the tools that have run and whose changes need the user's consent
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
            await self._ask_about_predictions(run)

    # -- in --

    async def _incoming(self, run: Run, session: Session) -> tuple[list[types.Content], dict[str, Any], dict[str, Any]]:
        """What google-adk is to be asked, one after the other, what changes in the session, and what marks the messages."""
        past, new = split(self._input.messages, session)
        if not session.events and past and self._settings.seed_first_run_history:
            await self._threads.seed(session, past, self._agent_name)
        said = [message for message in new if isinstance(message, UserMessage)]
        for message in said:
            await run.record([received(message)])
        parts = [part for message in said for part in parts_of(message.content)]
        answers = list(answers_in(self._input, new))
        answered = await ClientAnswers(run, session, self._runner.agent).take(answers, alone=not parts)
        parts += [types.Part(text=sentence) for sentence in answered.sentences]
        heard = [message for message in self._input.messages if message.id not in answered.held]
        changes = self._changes(session, [message for message in heard if message not in said])
        asked = await self._told(session, answered.turns, goes_on=not parts)
        if parts:
            asked.append(types.Content(role="user", parts=parts))
        return asked, changes, marks(message for message in said if message.id not in answered.held)

    async def _told(self, session: Session, turns: Sequence[TurnAnswers], *, goes_on: bool) -> list[types.Content]:
        """Puts answers into the session, but for those that google-adk is to be asked with: they are returned.

        ``goes_on``: google-adk is to go on with the last turn.
        """
        asked: list[types.Content] = []
        for turn in turns:
            content = types.Content(role="user", parts=turn.parts)
            if turn.to_host or (goes_on and turn is turns[-1]):
                asked.append(content)
            else:
                # google-adk goes on with one turn and takes answers to one turn only, a model wants them by themselves,
                # right after the calls; and what stands beside an answer to a question of google-adk's is not shown to it.
                await self._append(session, content, {}, invocation_id=turn.invocation_id)
        return asked

    def _changes(self, session: Session, heard: Sequence[Message]) -> dict[str, Any]:
        """What the client's state and context, and having heard these messages, change in the session."""
        changes = {**taken(self._input.state, allow_scopes=self._settings.allow_scoped_state_keys), **marks(heard)}
        if self._input.context:
            changes[CONTEXT_KEY] = _described(self._input)
        # An event carries what is new alone, else a long thread's events would repeat its whole account.
        state = session.state
        return {key: value for key, value in changes.items() if key not in state or state[key] != value}

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
                names = (response.name or "" for response in event.get_function_responses())
                self._predicted.update(dict.fromkeys(filter(self._predictions.asks_about, names)))
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

    async def _ask_about_predictions(self, run: Run) -> None:
        """Asks the client's user about what was shown before it was there, once per tool.

        These are the last calls of a run: front ends disable the buttons of a dialog when anything comes after it.
        """
        for tool_name in self._predicted:
            call_id = await imported(run, f"adk-{run.callstream.new_call_id()}", CONFIRM_TOOL, {})
            question = Question(
                reason=CONFIRM_TOOL,
                message=f"{tool_name} has made changes. Keep them?",
                metadata={"predict_state": self._predictions.payloads(tool_name)},
            )
            await run.await_answer(call_id, question)

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


def _described(given: RunAgentInput) -> list[dict[str, str]]:
    return [{"description": each.description, "value": each.value} for each in given.context or ()]


def _instructions(messages: Sequence[Message]) -> str | None:
    texts = [message.content for message in messages if isinstance(message, SystemMessage | DeveloperMessage)]
    return "\n\n".join(text for text in texts if text) or None


def _has_content(event: Event) -> bool:
    return event.content is not None and bool(event.content.parts)


def _failure(event: Event) -> str:
    return f"{event.error_code}: {event.error_message}" if event.error_message else str(event.error_code)
