"""The google-adk plugin: every invocation becomes a run, every model call is read, and every tool is behind the barrier.

Register it first: a plugin that returns a value hides the ones after it. This one uses only plugin callbacks, and returns a
value only if it refuses a call, ends an invocation that has nothing to do, or removes an answer that was given before.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import msgspec
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic.errors import PydanticInvalidForJsonSchema

from callstream.adk.answers import Incoming
from callstream.adk.calls import give_up_rewound
from callstream.adk.eventtexts import EventTexts, Judges, LiveTranscript, OutputKeys, record_judged
from callstream.adk.execution import Execution, current_agent_tool
from callstream.adk.invocations import Endings, Invocation, OnTruncated, Speaker, Step, guard, join_halves, open_run
from callstream.adk.partials import minted_id
from callstream.adk.requests import fill_in_answers, lacks_answers, repair, restore_wire_ids
from callstream.adk.settings import AgentOptions
from callstream.adk.tapping import is_tapped, why_not_tapped
from callstream.adk.tools import (
    check_early,
    collapsed_names,
    collect_generators,
    current_input,
    register_tools,
    streamed_names,
    takes_progress,
    tools_by_name,
    watch_generators,
    with_progress,
)
from callstream.calls import Call
from callstream.callstream import Callstream
from callstream.errors import RunOver, UsageError
from callstream.runtime import Run, current_run
from callstream.runtime.run import current_model_call
from callstream.wire.gemini.decoding import CONTINUES

logger = logging.getLogger("callstream")


class _Followed(msgspec.Struct, frozen=True, eq=False):
    """A running invocation, with everything that follows it."""

    invocation: Invocation
    execution: Execution
    outputs: OutputKeys
    texts: EventTexts
    live: LiveTranscript | None


class CallstreamPlugin(BasePlugin):
    """``App(plugins=[CallstreamPlugin(cs)])``.

    ``on_truncated``: what happens when the model did not finish a call. ``"tell_model"`` answers the call with an error
    that the model reads, and continues, at most three times in an invocation; ``"fail"`` ends the invocation with an error
    event. The tool never runs.

    ``repair_signatures`` adds thought signatures that Gemini needs and the history lacks. ``closes_callstream``: closing
    the runner closes the Callstream too; leave it out if several runners share one. ``stream_arguments``: whether
    providers that stream arguments only on request are asked to.
    """

    def __init__(
        self,
        callstream: Callstream,
        *,
        name: str = "callstream",
        on_truncated: OnTruncated = "tell_model",
        repair_signatures: bool = True,
        closes_callstream: bool = False,
        stream_arguments: bool = True,
    ) -> None:
        super().__init__(name=name)
        if not isinstance(callstream, Callstream):
            raise UsageError(f"expected a Callstream, got {type(callstream).__name__}")
        if on_truncated not in ("tell_model", "fail"):
            raise UsageError(f"expected on_truncated to be 'tell_model' or 'fail', got {on_truncated!r}")
        self.callstream = callstream
        callstream.engine.has_host = True
        self.on_truncated: OnTruncated = on_truncated
        self.repair_signatures = repair_signatures
        self.stream_arguments = stream_arguments
        self._closes_callstream = closes_callstream
        self.trusts_mcp_hints = False
        """Whether the hints of MCP servers about their tools are trusted."""
        self._invocations: dict[str, _Followed] = {}
        self._incoming: dict[str, Incoming] = {}
        self._judges = Judges(self)
        self._endings = Endings(self.forget)
        self._warned_of: set[tuple[str, str]] = set()

    def invocation(self, invocation_id: str) -> Invocation | None:
        """The invocation of that id, while it runs."""
        known = self._invocations.get(invocation_id)
        return None if known is None else known.invocation

    def _joins_text(self, context: InvocationContext) -> bool:
        """Whether google-adk gets text in whole passages. Not here: a program may read the Runner's partial events."""
        return False

    # -- the invocation --

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        incoming = Incoming(user_message)
        outer, session = self._outer_run(), invocation_context.session
        whose = (session.id, session.user_id) if outer is None else (outer.thread_id, outer.principal)
        await incoming.check(self.callstream, session, *whose)
        self._incoming[invocation_context.invocation_id] = incoming
        return incoming.replacement()

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
        incoming = self._incoming.pop(invocation_context.invocation_id, None)
        if incoming is not None and incoming.has_nothing_new:
            return types.Content(role="model", parts=[])
        if incoming is not None:
            incoming.restore_branch(invocation_context)
        joined = self._outer_run()
        given_up = await self._given_up(joined, invocation_context)
        run = joined or await open_run(self.callstream, invocation_context)
        run.host_traces = True  # from now on, google-adk makes the spans of its agents and tools
        within = current_agent_tool.get() if joined is not None else None
        invocation = Invocation(invocation_context, run, owns_run=joined is None, within=within)
        outputs = OutputKeys(invocation)
        self._invocations[invocation.invocation_id] = _Followed(
            invocation,
            Execution(invocation, self._judges, trusts_mcp_hints=self.trusts_mcp_hints),
            outputs,
            EventTexts(invocation),
            LiveTranscript(invocation, self._judges, outputs, self.on_truncated) if invocation.is_live else None,
        )
        if joined is None:
            self._endings.watch(invocation, invocation_context)
        invocation.given_up = given_up
        if joined is None:
            await give_up_rewound(run, invocation_context.session)
        if incoming is not None:
            invocation.is_resumed = incoming.is_answer
            await self._record(incoming, run, invocation_context)
        return None

    async def _given_up(self, joined: Run | None, context: InvocationContext) -> list[Call]:
        """Calls that a process left behind in the thread when it died."""
        session = context.session
        return [] if joined else await self.callstream.orphaned_calls.find(session.id, session.user_id)

    async def _record(self, incoming: Incoming, run: Run, context: InvocationContext) -> None:
        await incoming.record(run, context)

    def _outer_run(self) -> Run | None:
        """The run that the program, or the tool whose agent it runs, has opened around an invocation."""
        outer = current_run()
        return outer if outer is not None and outer.engine is self.callstream.engine else None

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> Event | None:
        # If agent and caller share a task, the caller's own requests are not the agent's.
        current_model_call.set(None)
        known = self._invocations.get(invocation_context.invocation_id)
        if known is None:
            return None
        invocation = known.invocation
        invocation.correct_branch(event)
        read_live = None if known.live is None else await known.live.read(event, invocation_context)
        step = read_live or invocation.step_of(event.actions)
        known.outputs.event(event)
        judged = await self._judges.judge(invocation_context, event)
        shown = judged or event
        is_judged = step is not None and step.was_read and step.withholds
        if step is not None and is_judged:
            await record_judged(invocation, step, shown)
        await known.texts.read(shown, is_judged=is_judged)
        await known.execution.read_event(shown)
        return judged

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        known = self._invocations.get(invocation_context.invocation_id)
        if known is None:
            return
        error, invocation = sys.exc_info()[1], known.invocation
        if invocation_context.is_aborted:
            error = asyncio.CancelledError()
        elif invocation.failure is not None:
            error = _Failed(invocation.failure)
        if error is None and invocation.run.outcome is None:
            await known.execution.pause_interrupted(invocation_context.session)
        await self._end(known, error)

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        known = self._invocations.get(invocation_context.invocation_id)
        if known is not None:
            await self._end(known, error)

    async def close(self) -> None:
        """Waits for ends that are being written. Stops no runs: they may be those of another Runner with this plugin."""
        await self._endings.wait()
        if self._closes_callstream:
            await self.callstream.aclose()

    def forget(self, run: Run) -> None:
        """Forgets the invocations of a run that is over: google-adk makes no callback at the end of a cancelled one."""
        for invocation in [each.invocation for each in self._invocations.values() if each.invocation.run is run]:
            self._forget(invocation)

    def _forget(self, invocation: Invocation) -> None:
        self._invocations.pop(invocation.invocation_id, None)
        invocation.watches.close()

    async def _end(self, known: _Followed, error: BaseException | None) -> None:
        invocation = known.invocation
        self._forget(invocation)
        if invocation.run.outcome is None:
            await known.execution.fail_raised()
            await known.execution.finish_unasked()
            await known.execution.fail_unanswerable()
        if invocation.owns_run:
            await invocation.run.end(error)

    # -- the agent --

    async def before_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> types.Content | None:
        known = self._invocations.get(callback_context.invocation_id)
        self._judges.agent_begins(agent, callback_context.invocation_id)
        if isinstance(agent, LlmAgent):
            tools = [with_progress(tool) for tool in agent.tools]
            if any(made is not tool for made, tool in zip(tools, agent.tools, strict=True)):
                agent.tools = tools  # before google-adk declares them to the model
        if known is not None:
            if known.live is not None and isinstance(agent, LlmAgent):
                known.live.agent_begins(agent, register_tools(self.callstream, tools_by_name(agent.tools)))
            invocation = known.invocation
            root = invocation.root_agent
            if invocation.owns_run and isinstance(root, LlmAgent) and root.name == agent.name and root.timeout is None:
                # It runs in a task of its own, which is cancelled along with the task that drives the invocation. The latter
                # may continue after that, as in asyncio.timeout(), and there is no callback for it.
                self._endings.watch_task(invocation)
            known.outputs.agent_begins(agent, callback_context)
        return None

    async def after_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> types.Content | None:
        known = self._invocations.get(callback_context.invocation_id)
        self._judges.agent_ends(agent, callback_context.invocation_id)
        if known is not None:
            known.outputs.agent_ends(agent, callback_context)
        return None

    async def on_agent_error_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext, error: Exception
    ) -> None:
        known = self._invocations.get(callback_context.invocation_id)
        self._judges.agent_ends(agent, callback_context.invocation_id)
        if known is None:
            return
        if isinstance(error, PydanticInvalidForJsonSchema):
            logger.error(
                "agent %s: google-adk cannot declare one of its tools to the model; a parameter for progress in a tool of a "
                "toolset is hidden from it by @callstream.tool",
                agent.name,
            )
        known.outputs.agent_ends(agent, callback_context)
        if known.invocation.run.outcome is None:
            await known.execution.fail_raised()

    # -- the model --

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        known = self._invocations.get(callback_context.invocation_id)
        if known is None or known.invocation.run.outcome is not None:
            return None
        invocation, live = known.invocation, known.live
        await known.execution.finish_unasked(Speaker.within(callback_context))
        functions = register_tools(self.callstream, llm_request.tools_dict)
        invocation.given_up = await self.callstream.orphaned_calls.tell(invocation.given_up)
        await check_early(invocation.run, llm_request.tools_dict, self._warned_of)
        self._warn_of_progress(callback_context.agent_name, llm_request.tools_dict)
        if live is not None and not live.is_asked(callback_context.agent_name):
            # google-adk shows plugins what a user says to a live model; the answer comes as events.
            live.tools[callback_context.agent_name] = functions
            watch_generators(llm_request.tools_dict)
            for content in llm_request.contents:
                await live.hear(content)
            return None
        streamed = streamed_names(llm_request.tools_dict) if self.stream_arguments else frozenset()
        collect_generators(llm_request.tools_dict)
        if self.repair_signatures:
            author, run = callback_context.agent_name, invocation.run
            has_signed = invocation.has_signed(author)
            await repair(llm_request, callback_context.session, run, author=author, has_signed=has_signed)
        await restore_wire_ids(llm_request, invocation.run.directory)
        names = collapsed_names(llm_request.tools_dict)
        context = callback_context.get_invocation_context()
        filters = self._judges.text_filters(context)
        step = Step(
            invocation.run,
            author=callback_context.agent_name,
            collapses=names.__contains__,
            refuses=True,
            reports=True,
            new_call_id=minted_id,
            streams=streamed.__contains__,
            withholds=filters is None,
            tools=functions,
            joins_text=self._joins_text(context),
            text_filters=filters or (),
            actions=callback_context.actions,
            speaker=Speaker.within(callback_context),
            tool_names=tuple(llm_request.tools_dict),
            request=llm_request,
        )
        invocation.begin(step)
        current_model_call.set(step)
        return None

    def _warn_of_progress(self, agent_name: str, tools: dict[str, BaseTool]) -> None:
        for name in [name for name, tool in tools.items() if takes_progress(tool)]:
            if (agent_name, name) not in self._warned_of:
                self._warned_of.add((agent_name, name))
                logger.warning(
                    "agent %s: tool %s of a toolset has a parameter for progress, which google-adk declares to the model; "
                    "decorate its function with @callstream.tool",
                    agent_name,
                    name,
                )

    def _warn_of_litellm(self, context: CallbackContext) -> None:
        name = context.agent_name
        why = None if (name, "litellm") in self._warned_of else why_not_tapped(context.get_invocation_context().agent)
        if why is not None:
            self._warned_of.add((name, "litellm"))
            logger.warning("agent %s: %s: the model is read from its partial events", name, why)

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        invocation = self.invocation(callback_context.invocation_id)
        step = invocation.step_of(callback_context.actions) if invocation is not None else None
        if invocation is None or step is None or invocation.run.outcome is not None:
            return None
        try:
            if step.read_by_tap and not step.has_failed:
                step.request = None
            else:
                if not step.has_failed:
                    self._warn_of_litellm(callback_context)
                await step.read(llm_response)
            if llm_response.partial:
                return None
            if CONTINUES in (llm_response.finish_reason, llm_response.error_code):
                await step.end_paused()
            await step.record_nameless()
        except RunOver:
            return None
        join_halves(llm_response)
        guard(invocation, step, llm_response, self.on_truncated)
        return None

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        invocation = self.invocation(callback_context.invocation_id)
        step = invocation.step_of(callback_context.actions) if invocation is not None else None
        if step is not None:
            try:
                await step.interrupt(error)
            except RunOver:
                pass
        if callback_context.is_aborted:
            # The run was stopped, so its request broke off; that is not an error of the model.
            return LlmResponse(error_code="ABORTED", error_message="the run was stopped", turn_complete=True)
        return None

    # -- the tools --

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        known = self._invocations.get(tool_context.invocation_id)
        return None if known is None else await known.execution.begin(tool, tool_args, tool_context)

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: dict[str, Any]
    ) -> dict[str, Any] | None:
        known = self._invocations.get(tool_context.invocation_id)
        if known is None:
            return None
        if known.execution.was_given_again(tool_context):
            return result  # other callbacks have seen it before
        try:
            await known.execution.record_return(tool, tool_context, result)
        except RunOver:
            pass  # the run's end has recorded the outcome of the call, or another process continues the run
        return None

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        known = self._invocations.get(tool_context.invocation_id)
        if known is not None:
            known.execution.note_error(tool_context, error)
        return None


class _Failed(Exception):
    """The error with which a failed run is ended if google-adk itself ended without an exception."""


# -- as ADKAgent uses it --


class HostedPlugin(CallstreamPlugin):
    """The plugin inside an ``ADKAgent``, which has begun a run with the client's messages in it.

    It asks no model while calls of the last turn await answers.
    """

    def __init__(self, callstream: Callstream, registered: CallstreamPlugin | None, options: AgentOptions) -> None:
        """``registered``: the plugin that the application registered itself. It or ``options`` can turn streaming off."""
        like = registered or CallstreamPlugin(callstream)
        super().__init__(
            callstream,
            name=like.name,
            on_truncated=like.on_truncated,
            repair_signatures=like.repair_signatures,
            stream_arguments=like.stream_arguments and options["stream_arguments"],
        )
        self.trusts_mcp_hints = options["trust_mcp_hints"]
        self._join_text = options["join_text"]

    def _joins_text(self, context: InvocationContext) -> bool:
        seeing = self._judges.of_pieces(context)
        joins = not seeing if self._join_text is None else self._join_text
        name = "" if context.agent is None else context.agent.name
        if (name, "joined text") not in self._warned_of:
            self._warned_of.add((name, "joined text"))
            if not is_tapped(getattr(context.agent, "canonical_model", "")):
                logger.info(
                    "agent %s: google-adk gets text of its model piece by piece: that is where it is read from", name
                )
            elif joins:
                logger.info(
                    "agent %s: text of its model is shown from the wire; google-adk gets it in whole passages", name
                )
            else:
                why = " and ".join(dict.fromkeys(seeing)) or "join_text"
                logger.info("agent %s: google-adk gets text of its model piece by piece, for %s", name, why)
        return joins

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        # Not the message that the context has later: that may be the one with which a resumed invocation first began.
        self._incoming[invocation_context.invocation_id] = Incoming(user_message)
        return None

    async def _given_up(self, joined: Run | None, context: InvocationContext) -> list[Call]:
        client, agent = current_input.get(), context.agent
        return list(client.given_up) if client and agent and client.agent_name == agent.name else []

    async def _record(self, incoming: Incoming, run: Run, context: InvocationContext) -> None:
        """Nothing: the message is in the run already."""

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        if lacks_answers(llm_request.contents):
            return LlmResponse(turn_complete=True)
        invocation = self.invocation(callback_context.invocation_id)
        directory = None if invocation is None else invocation.run.directory
        await fill_in_answers(llm_request.contents, callback_context.session, directory)
        client = current_input.get()
        if client is not None and client.instructions and client.agent_name == callback_context.agent_name:
            llm_request.append_instructions([client.instructions])
        return await super().before_model_callback(callback_context=callback_context, llm_request=llm_request)
