"""Tools on their way through google-adk: the barrier, the refusal, progress, and the outcome.

A result is what the model reads. If no later callback can change it, it is recorded as soon as the tool has returned; else
when google-adk makes an event from it. An exception is the tool's failure unless another callback turns it into a result.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextvars import ContextVar
from functools import partial
from typing import Any

import msgspec
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.tool_context import ToolContext
from google.adk.tools.transfer_to_agent_tool import transfer_to_agent
from google.genai import types
from pydantic_core import to_jsonable_python

from callstream.adk.calls import (
    HOST_QUESTIONS,
    SessionCalls,
    calls_around,
    import_call,
    outcome,
    paused_call_id,
    present_question,
    question_in,
)
from callstream.adk.eventtexts import Judges
from callstream.adk.invocations import USER, Invocation, Speaker
from callstream.adk.partials import MINTED_PREFIX, as_written
from callstream.adk.tools import LiveStream, function_of, result_of, stream_end
from callstream.calls import HAS_OUTCOME, REFUSED, Call, CallState
from callstream.errors import CallRejected, RunOver, UsageError
from callstream.events import CallProgressed, OutputKept
from callstream.runtime.claims import QUESTION, RUNNING, only_claim
from callstream.runtime.continuing import Replay, pack, unpack
from callstream.runtime.run import current_model_call, current_tool
from callstream.tools import call_claims, current_progress

logger = logging.getLogger("callstream")

current_agent_tool: ContextVar[AgentTool | None] = ContextVar("callstream_agent_tool", default=None)
"""The tool in whose context this code runs, if that tool runs an agent of its own."""

_ACTIONS, _PAUSED = 0, 1
"""What is kept of a tool, by its call: its requests to google-adk, and its return value, if that is not its result."""


class _AskingCall(msgspec.Struct):
    """A call whose tool has asked a person and returned. ``response``: what google-adk made of its return value."""

    speaker: Speaker
    is_long_running: bool
    response: dict[str, Any] | None = None


class Execution:
    """The plugin's work around the tools of one invocation. ``judges`` may change what they return.

    ``trusts_mcp_hints``: whether a tool of an MCP server may run twice if it is declared read-only or idempotent.
    """

    def __init__(self, invocation: Invocation, judges: Judges, *, trusts_mcp_hints: bool) -> None:
        self._invocation = invocation
        self._run = invocation.run
        self._judges = judges
        self._trusts_mcp_hints = trusts_mcp_hints
        self._errors: dict[str, BaseException] = {}
        """Exceptions of tools, by call, until it is known whether another callback turns them into results."""
        self._asking: dict[str, _AskingCall] = {}
        """Calls whose tools have asked a person, until google-adk asks the question."""
        self._reported: set[str] = set()
        """Calls that agents made by themselves, until they report the results."""
        self._first_values: set[str] = set()
        """Calls of long-running tools that have returned something, until google-adk makes an event of it."""
        self._streaming: set[str] = set()
        """Calls whose tools are still running in the background, in live mode."""

    async def begin(
        self, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Waits for the call's hooks. Returns the error for the model if its tool must not run.

        It is called in the tool's own context, so the context variables that it sets are visible only to the tool.
        """
        run, replay = self._run, self._run.replay
        if (done := await self._done_before(tool_context)) is not None:
            return done
        try:
            call = await self._call_for(tool, tool_args, tool_context)
            if run.earlier.asks(call.call_id, function_of(tool)):
                return _ask_about(tool_context)
            if replay is not None and (again := await self._give_again(replay, call, tool, tool_context)) is not None:
                return again
            if (decided := _decision_about(tool_context)) is not None:
                if call.state is not CallState.EXECUTING:
                    await run.execute(call.call_id)
                return decided
            if (early := run.early.begun(call.call_id)) is not None:
                await run.ready(call.call_id)
                await early.wait_until_over()
                await run.ready(call.call_id)
                run.make_current()
                call_claims.set(only_claim(call, early.tool, early))  # google-adk calls it, which returns the result
                return None
            function = function_of(tool)
            if function is not None:
                await run.convert(call.call_id, function, self._unshown(call, tool_args, tool_context))
            if call.state not in RUNNING:  # else it is running already, and runs again
                call = await run.execute(call.call_id, is_safe=self._may_run_again(tool))
        except CallRejected as refused:
            return {"error": str(refused)}
        except RunOver as over:
            return {"error": str(over)}
        current_model_call.set(None)
        current_tool.set((run, call.call_id))
        current_agent_tool.set(tool if isinstance(tool, AgentTool) else None)
        run.make_current()
        call_claims.set(None if function is None else only_claim(call, function))
        current_progress.set(run.progress_of(call.call_id))
        if isinstance(tool, LiveStream):
            self._streaming.add(call.call_id)
            stream_end.set(partial(self._end_stream, call))
        return None

    async def _done_before(self, tool_context: ToolContext) -> dict[str, Any] | None:
        """The outcome of a finished Workflow that google-adk restarts because one beside it was interrupted; else None."""
        named, session = tool_context.function_call_id or "", tool_context.session
        if not any(named in calls_around(event) for event in session.events):
            return None
        call = self._call_of(tool_context) or await self._run.directory.find_by_wire_id(named)
        if call is None or call.state not in HAS_OUTCOME or named in SessionCalls(session).responded:
            return None
        return {"error": call.error} if call.state is CallState.FAILED else _as_response(call.result)

    async def _give_again(
        self, replay: Replay, call: Call, tool: BaseTool, context: ToolContext
    ) -> dict[str, Any] | None:
        """The outcome of a call from an earlier attempt of the run; None if its tool has to run."""
        paused = replay.outputs.get((call.call_id, _PAUSED))
        if not replay.has(call.call_id) or (call.state in RUNNING and isinstance(tool, AgentTool)):
            return None
        if paused is None:
            function, is_safe = function_of(tool), self._may_run_again(tool)
            earlier = await self._run.earlier.resolve(call.call_id, function, is_safe=is_safe, as_result=_as_kept)
            if earlier is None or earlier.state not in HAS_OUTCOME:
                return None
            call = earlier
        replay.given.add(call.call_id)
        if (done := replay.outputs.get((call.call_id, _ACTIONS))) is not None:
            _do_again(done, context)
        if paused is not None:
            return await self._pause_again(replay, call, tool, context, json.loads(unpack(paused)))
        return {"error": call.error} if call.state is CallState.FAILED else _as_response(call.result)

    async def _pause_again(
        self, replay: Replay, call: Call, tool: BaseTool, context: ToolContext, first: Any
    ) -> dict[str, Any]:
        """The return value of a tool whose call awaits an answer, or has been answered since."""
        if call.state in RUNNING:
            await self._pause(call, tool, context, first)
        elif first is not None and not _asks(context) and call.call_id not in replay.progressed:
            self._first_values.add(call.call_id)
        return {} if first is None else _as_response(first)  # for {}, as for None, google-adk makes no event

    def _may_run_again(self, tool: BaseTool) -> bool:
        """Whether a tool not made with ``@tool`` declares that running it twice does no harm, and is trusted."""
        return _is_hosts_own(tool) or (self._trusts_mcp_hints and _is_harmless(tool))

    def was_given_again(self, context: ToolContext) -> bool:
        """Whether the result of a call is from an earlier attempt of the run."""
        call, replay = self._call_of(context), self._run.replay
        return call is not None and replay is not None and call.call_id in replay.given

    def _call_of(self, context: ToolContext) -> Call | None:
        return self._invocation.find_call(Speaker.within(context), context.function_call_id)

    async def _call_for(self, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext) -> Call:
        named = tool_context.function_call_id or ""
        speaker = Speaker.within(tool_context)
        call = self._invocation.find_call(speaker, named)
        replay = self._run.replay
        is_again = replay is not None and call is not None and call.call_id not in replay.given
        if call is not None and (call.state is CallState.DISCARDED or not call.is_final or is_again):
            return call
        if call is None:
            try:
                asked = await self._run.directory.find_by_wire_id(named)
                if asked is not None and replay is not None and replay.has(asked.call_id):
                    call = self._run.call(asked.call_id)  # an earlier attempt has taken it up
                    self._invocation.known_calls.bind(speaker, named, call.call_id)
                    return call
                call = None if asked is None else await self._run.resume(asked.call_id)
            except UsageError:
                call = None  # google-adk has it from elsewhere: another plugin, or an older session
        if call is None or call.is_final:
            is_hidden = self._invocation.withheld_call(speaker, named) is not None  # the application removed it
            shown = {} if is_hidden else tool_args
            made = await import_call(self._run, named, tool.name, shown, function=function_of(tool))
            call = self._run.call(made)
        self._invocation.known_calls.bind(speaker, named, call.call_id)
        return call

    def _unshown(self, call: Call, tool_args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
        """The arguments that google-adk has for the tool, if they differ from those that are shown."""
        if not _is_other(call, tool_args):
            return None
        written = self._invocation.withheld_call(Speaker.within(tool_context), tool_context.function_call_id or "")
        return tool_args if written is None else as_written(tool_args, written.args)

    async def record_return(self, tool: BaseTool, tool_context: ToolContext, result: Any) -> None:
        """Records the result: the tool has returned, or another callback turned its exception into a result."""
        call = self._call_of(tool_context)
        if call is None or call.state not in RUNNING or self._run.outcome is not None:
            return
        if call.call_id in self._streaming:
            return
        self._errors.pop(call.call_id, None)
        pauses = _asks(tool_context) or tool.is_long_running
        if self._run.keeping is not None:
            done = _kept_actions(tool_context.actions)
            kept = [] if done is None else [OutputKept(call.call_id, _ACTIONS, done)]
            if pauses:
                kept.append(OutputKept(call.call_id, _PAUSED, pack(json.dumps(_as_json(result)).encode())))
            if kept:
                await self._run.record(kept)
        if pauses:
            await self._pause(call, tool, tool_context, result)
        elif result is not None and not self._judges.of_tools(tool_context.get_invocation_context()):
            await self._finish(call, result)

    async def _pause(self, call: Call, tool: BaseTool, tool_context: ToolContext, result: Any) -> None:
        """The tool has returned, and its call awaits an answer."""
        asks = _asks(tool_context)
        is_silent = tool.is_long_running and not result  # then google-adk makes no event, and asks no question
        if asks and not is_silent and not self._invocation.is_live:
            self._asking[call.call_id] = _AskingCall(Speaker.within(tool_context), tool.is_long_running)
            return
        # In a live session, google-adk never asks its question, so there the call itself has to be answered.
        asked = types.FunctionCall(name=call.name, args=call.args) if call.name in HOST_QUESTIONS else None
        await self._run.await_answer(call.call_id, question_in(asked) if asked is not None else None)
        if not asks and asked is None and result is not None:
            self._first_values.add(call.call_id)

    def note_error(self, tool_context: ToolContext, error: BaseException) -> None:
        call = self._call_of(tool_context)
        if call is not None and call.state in RUNNING:
            self._errors[call.call_id] = error

    async def read_event(self, event: Event) -> None:
        """Records results as the model will read them, for calls without one; and calls that no model of this run made.

        The latter are google-adk's own questions, and the calls that custom and remote agents report.
        """
        if event.partial or self._run.outcome is not None:
            return
        for function_call in event.get_function_calls():
            if event.author == USER:
                continue
            if function_call.name in HOST_QUESTIONS:
                await self._ask(event, function_call)
            elif (
                not self._invocation.is_live and self._invocation.find_call(Speaker.of(event), function_call.id) is None
            ):
                await self._report(event, function_call)
        for response in event.get_function_responses():
            call = self._invocation.find_call(Speaker.of(event), response.id)
            if call is None or call.call_id in self._streaming:
                continue
            if call.call_id in self._first_values:
                self._first_values.discard(call.call_id)
                await self._run.record([CallProgressed(call.call_id, _as_json(response.response))])
                continue
            is_delegated = event.author == USER and call.state is CallState.ARGS_COMPLETE
            if call.state not in RUNNING and call.call_id not in self._reported and not is_delegated:
                continue
            self._reported.discard(call.call_id)
            self._errors.pop(call.call_id, None)
            asking = self._asking.get(call.call_id)
            if asking is not None:
                asking.response = response.response
            else:
                await self._finish(call, response.response)

    async def _report(self, event: Event, function_call: types.FunctionCall) -> None:
        """Records a call that an agent has made by itself, and whose result, if any, it will report too."""
        run, named = self._run, function_call.id or ""
        minted = named or f"{MINTED_PREFIX}{run.engine.new_call_id()}"
        call_id = await import_call(
            run, minted, function_call.name or "", function_call.args or {}, author=event.author
        )
        self._invocation.known_calls.bind(Speaker.of(event), named, call_id)
        if named in (event.long_running_tool_ids or ()):
            await run.await_answer(call_id)
        else:
            self._reported.add(call_id)

    async def _ask(self, event: Event, question: types.FunctionCall) -> None:
        run, speaker = self._run, Speaker.of(event)
        if self._invocation.find_call(speaker, question.id or "") is not None:
            return  # the model's own call: google-adk has a tool with which a model can ask
        paused = self._invocation.find_call(speaker, paused_call_id(question)) or self._around(event)
        about = None if paused is None else paused.call_id
        if run.keeping is not None:
            await run.keeping.name_question(f"{question.name} {about}", partial(_rename, event, question))
        named = question.id or ""
        earlier = await run.directory.find_by_wire_id(named)
        if earlier is not None and earlier.state is CallState.AWAITING:
            return  # a workflow that continues in part repeats its open questions
        if about is not None and self._asking.pop(about, None) is not None:
            await run.await_answer(about, is_paused=True)
        question = present_question(question, about)
        if earlier is not None and earlier.run_id == run.run_id and not earlier.is_final:
            call_id = earlier.call_id
        else:
            call_id = await import_call(run, named, question.name or "", question.args or {}, author=event.author)
        self._invocation.known_calls.bind(speaker, named, call_id)
        await run.await_answer(call_id, question_in(question, about))

    def _around(self, event: Event) -> Call | None:
        """The innermost call whose tool is a Workflow that contains the asking node."""
        running = {call.wire_id: call for call in self._invocation.calls() if call.state is CallState.EXECUTING}
        found = [running[wire_id] for wire_id in calls_around(event) if wire_id in running]
        return found[-1] if found else None

    async def finish_unasked(self, *speakers: Speaker) -> None:
        """Ends calls whose tools asked a person but whose questions google-adk did not ask, for these speakers or for all.

        It does not if a tool that runs again after an answer asks again: then the model reads what the tool returned.
        """
        for call_id, asking in list(self._asking.items()):
            if speakers and asking.speaker not in speakers:
                continue
            del self._asking[call_id]
            if asking.response is None:
                continue
            if asking.is_long_running:
                await self._run.await_answer(call_id)
            else:
                await self._finish(self._run.call(call_id), asking.response)

    async def pause_interrupted(self, session: Session) -> None:
        """Pauses calls of Workflows in which a node has asked a person: they have not ended, and continue with the answer.

        google-adk cancels such a Workflow if another one beside it is interrupted, and restarts it with the other's answer.
        """
        asked_within = SessionCalls(session).asked_within
        for call in self._invocation.calls():
            error = self._errors.get(call.call_id)
            if call.state is not CallState.EXECUTING or call.wire_id not in asked_within:
                continue
            if error is None or isinstance(error, asyncio.CancelledError):
                self._errors.pop(call.call_id, None)
                await self._run.await_answer(call.call_id, is_paused=True)

    async def fail_raised(self) -> None:
        """Fails calls whose tools raised an exception that no callback turned into a result."""
        errors, self._errors = self._errors, {}
        for call_id, error in errors.items():
            if self._run.call(call_id).state in RUNNING:
                await self._run.fail(call_id, error)

    async def fail_unanswerable(self) -> None:
        """Fails calls that still await an answer when the agent of a tool has ended: they will never get one."""
        within = self._invocation.within
        if within is None:
            return
        for call in self._invocation.calls():
            if call.state is CallState.AWAITING:
                await self._run.fail(
                    call.call_id,
                    f"agent {within.agent.name!r} is a tool and has ended: google-adk cannot resume it, so no "
                    "answer can reach this call",
                )

    async def _end_stream(self, call: Call, values: list[Any], error: BaseException | None) -> None:
        self._streaming.discard(call.call_id)
        if self._run.outcome is None:
            await self._finish(call, result_of(values), error)

    async def _finish(self, call: Call, response: Any, raised: BaseException | None = None) -> None:
        result, error = outcome(_as_kept(response))
        failure = error if raised is None else raised
        try:
            if failure is not None:
                await self._run.fail(call.call_id, failure)
            else:
                await self._run.complete(call.call_id, result)
        except RunOver:
            pass  # the run's end has recorded the outcome of the call


def _asks(context: ToolContext) -> bool:
    """Whether the tool has asked a person something."""
    actions, named = context.actions, context.function_call_id
    return named in actions.requested_tool_confirmations or named in actions.requested_auth_configs


def _rename(event: Event, question: types.FunctionCall, known_as: str | None) -> str:
    """Makes google-adk ask its question under the id that it had before. Returns the id that it now has."""
    if known_as is not None and question.id is not None:
        event.long_running_tool_ids = {known_as, *(event.long_running_tool_ids or ())} - {question.id}
        question.id = known_as
    return question.id or ""


def _as_response(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"result": value}


def _as_kept(value: Any) -> Any:
    return _as_json(_as_response(value))


def _as_json(value: Any) -> Any:
    return to_jsonable_python(value, bytes_mode="base64", fallback=repr)


def _is_other(call: Call, tool_args: dict[str, Any]) -> bool:
    """Whether google-adk has other arguments for the tool than those shown: a callback has changed one of the two."""
    return call.encoding == "json" and isinstance(call.args, dict | None) and (call.args or {}) != tool_args


# -- tools of a run that continues in another process --


def _kept_actions(actions: EventActions) -> str | None:
    """A tool's requests to google-adk beside its return value, to be kept; None if there are none."""
    done = actions.model_dump(mode="json", exclude_defaults=True, by_alias=False, fallback=repr)
    return pack(json.dumps(done).encode()) if done else None


def _do_again(data: str, context: ToolContext) -> None:
    """Repeats these requests to google-adk for a tool that does not run again."""
    done = EventActions.model_validate_json(unpack(data))
    for name in done.model_fields_set - {"state_delta"}:
        setattr(context.actions, name, getattr(done, name))
    for key, value in done.state_delta.items():
        context.state[key] = value


_HARMLESS = ("readOnlyHint", "read_only_hint", "idempotentHint", "idempotent_hint")
"""The hints, by the names that they have in different versions of mcp."""


def _is_harmless(tool: BaseTool) -> bool:
    """Whether it is the tool of an MCP server that declares it read-only or idempotent."""
    hints = getattr(getattr(tool, "raw_mcp_tool", None), "annotations", None)
    return any(getattr(hints, name, None) is True for name in _HARMLESS)


def _is_hosts_own(tool: BaseTool) -> bool:
    """Whether all it does is to tell google-adk what comes next."""
    return getattr(tool, "func", None) in (transfer_to_agent, exit_loop)


_ASKED = {"error": "interrupted: the process stopped while this tool ran. A person is asked what becomes of it."}


def _ask_about(context: ToolContext) -> dict[str, Any]:
    """Makes google-adk ask a person whether the tool may run again. Returns the placeholder for its result until then."""
    context.request_confirmation(hint=QUESTION)
    context.actions.skip_summarization = True
    return _ASKED


def _decision_about(context: ToolContext) -> dict[str, Any] | None:
    """The tool's result as decided by the person who was asked; None if no one was asked, or if the tool is to run."""
    decided, named = context.tool_confirmation, context.function_call_id
    if decided is None or decided.confirmed or named is None:
        return None
    asked = (event.actions.requested_tool_confirmations.get(named) for event in reversed(context.session.events))
    if next((each.hint for each in asked if each is not None), None) != QUESTION:
        return None
    if not isinstance(decided.payload, dict) or "result" not in decided.payload:
        return {"error": REFUSED}
    return _as_response(decided.payload["result"])
