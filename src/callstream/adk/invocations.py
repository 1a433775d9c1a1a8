"""A google-adk invocation in Callstream: the run that it belongs to, and which call each of its ids means.

An invocation opens a run of its own, unless it is inside one already: that of a program that opened it around the runner,
or that of the tool whose agent it runs. google-adk continues an interrupted invocation under its old id, but a run ends
only once, so the run of such an invocation gets the id with a number.

A response may have calls that the model did not finish. Their tools do not run, whatever the model class: such a call is
discarded, and the barrier before the tool refuses it. ``guard`` handles them in google-adk: either it adds the call to the
response, so that the refusal reaches the model as its result, or the response becomes an error that ends the invocation.
"""

from __future__ import annotations

import asyncio
import base64
import weakref
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import msgspec
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from callstream.adk.calls import paused_call_id
from callstream.adk.partials import PartialReader
from callstream.calls import Call, CallState, refusal
from callstream.callstream import Callstream
from callstream.codec import SurrogateJoin
from callstream.errors import message_of
from callstream.events import CallDiscarded, CallStarted
from callstream.runtime import Response, Run
from callstream.runtime.run import ModelCall

# -- which call google-adk means by an id ------------------------------------------------------------------------------

USER = "user"
"""The author of events that google-adk makes on behalf of another agent: the result of a task that the agent delegated."""


class Speaker(NamedTuple):
    """An agent of an invocation in one of its branches."""

    agent: str
    branch: str | None

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(event.author, event.branch)

    @classmethod
    def within(cls, context: CallbackContext) -> Self:
        return cls(context.agent_name, context.branch)


class _KnownCalls:
    """The ``call_id`` of each call of an invocation that google-adk knows.

    An id identifies a call only together with who made it: the models of agents that run in parallel may use the same ids,
    and so may one model in two of its turns. All of google-adk agrees on the agent, but not on the branch: whatever runs
    after parallel agents has no branch in its contexts, but that of one of these agents in its events. So the branch only
    decides between calls of one agent, which a Workflow may run several times at once.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[Speaker, str]] = {}

    def bind(self, speaker: Speaker, function_call_id: str, call_id: str) -> None:
        """From now on the speaker means this call by the id."""
        meant = self._known.setdefault(function_call_id, {})
        meant.pop(speaker, None)
        meant[speaker] = call_id

    def find(self, speaker: Speaker, function_call_id: str | None) -> tuple[Speaker, str] | None:
        """The call that is meant, and who made it: the newest one of the speaker, else the newest one of the agent."""
        meant = self._known.get(function_call_id or "", {})
        if speaker in meant:
            return speaker, meant[speaker]
        theirs = [(who, call_id) for who, call_id in meant.items() if speaker.agent in (who.agent, USER)]
        return theirs[-1] if theirs else None

    def call_ids(self) -> list[str]:
        """All of them, in no particular order."""
        return list(dict.fromkeys(call_id for meant in self._known.values() for call_id in meant.values()))


# -- invocations -------------------------------------------------------------------------------------------------------

UNNAMED = "unnamed_call"
"""The name that a nameless call gets in the model's history: providers refuse an empty one."""

_ABORT_POLL = 0.1
"""Seconds."""


class Step(ModelCall, eq=False, kw_only=True):
    """One call of a model by an invocation, from before its request to its last response.

    ``actions`` are those of the event that google-adk builds from it: every callback of the step gets the same object.
    """

    actions: EventActions
    speaker: Speaker
    tool_names: tuple[str, ...] = ()
    request: LlmRequest | None = None
    """It has the whole conversation, so it is kept only until it is known where the responses are read."""
    shown: set[str] = msgspec.field(default_factory=set)
    """The calls that google-adk was given in a response."""
    taken_out: list[Call] = msgspec.field(default_factory=list)
    """Unfinished calls because of which the invocation ends, if they have not been shown yet."""
    has_failed: bool = False
    reader: PartialReader | None = None
    response: Response | None = None
    """The response that is being read here, not by the tap."""

    def calls(self) -> list[Call]:
        """The calls of the responses that were read until now, in order."""
        found: list[Call] = []
        for response in self.responses:
            known = {call.call_id: call for call in response.run.calls}
            found += [known[call_id] for call_id in response.call_ids.values() if call_id in known]
        return found

    async def read(self, response: LlmResponse) -> None:
        """Reads a response of a model that the tap did not see."""
        if self.reader is None or self.response is None:
            if self.run.keeping is not None:
                await self.run.keeping.give_up("a model is read from its partial events, without a tap")
            tools = declared_tools(self.request) if self.request is not None else {}
            self.reader = PartialReader(self.new_call_id or self.run.engine.new_call_id, tools)
            self.request = None
            self.response = self._new_response()
        events = self.reader.read(response)
        if events:
            await self.response.record(events)

    async def record_nameless(self) -> None:
        """Turns nameless calls into calls with a name, so that the model can learn of them as of any others."""
        for response in list(self.responses):
            nameless, response.nameless = response.nameless, []
            for dropped in nameless:
                detail = f"the call came without a name; the tools are {', '.join(self.tool_names)}"
                await self._new_response().record(
                    [CallStarted(dropped.call_id, UNNAMED, None), CallDiscarded(dropped.call_id, "malformed", detail)]
                )

    async def end_paused(self) -> None:
        """Ends paused responses: the SDK does not ask for their rest."""
        for response in self.responses:
            if isinstance(response, Response) and response.is_paused:
                await response.end()

    def _new_response(self) -> Response:
        made = self.run.response(
            "gemini",
            author=self.author,
            early="report",
            withheld=self.withholds,
            own_tools=self.tools,
            text_filters=self.text_filters,
        )
        self.responses.append(made)
        return made

    @property
    def was_read(self) -> bool:
        """Whether anything of it was read, here or by the tap. A callback may have answered in the model's place."""
        return self.read_by_tap or self.response is not None

    async def interrupt(self, error: BaseException) -> None:
        """The model failed: its unfinished response is given up. Anything that comes now is a callback's answer instead."""
        self.has_failed = True
        response, self.response, self.reader = self.response, None, None
        if response is not None:
            await response.interrupt(detail=f"{type(error).__name__}: {message_of(error)}")


class Invocation:
    """One invocation, from ``before_run_callback`` to its end, however it ends."""

    def __init__(
        self, context: InvocationContext, run: Run, *, owns_run: bool, within: AgentTool | None = None
    ) -> None:
        self.invocation_id = context.invocation_id
        self.run = run
        self.owns_run = owns_run
        self.within = within
        """The tool whose agent it runs. Its session ends with the tool's call, so google-adk cannot resume it."""
        self.is_resumed = False
        """Whether it continues a turn that was interrupted by a question to a person."""
        self.failure: str | None = None
        """Why the run has failed although google-adk ended normally."""
        self.cut_offs = 0
        self.given_up: list[Call] = []
        """Calls of a process that died, whose abort hooks have yet to be called."""
        self.root_agent = context.agent
        self.is_live = context.live_request_queue is not None
        self._context = weakref.ref(context)
        self._steps: list[Step] = []
        self.known_calls = _KnownCalls()
        self.watches = ExitStack()
        """Watches over the run and its tasks. To be closed when the invocation ends by itself, or is forgotten."""
        self.watches.callback(run.on_stop(self._abort))

    def _abort(self, reason: str) -> None:
        """Stopping the run stops google-adk."""
        context = self._context()
        if context is not None:
            context.abort()

    def hang_up(self) -> None:
        """Ends a live invocation as its user would."""
        context = self._context()
        if context is not None and context.live_request_queue is not None:
            context.live_request_queue.close()

    # -- steps --

    def begin(self, step: Step) -> None:
        self._steps = [other for other in self._steps if other.actions is not step.actions]
        self._steps.append(step)

    def step_of(self, actions: EventActions) -> Step | None:
        return next((step for step in reversed(self._steps) if step.actions is actions), None)

    def last_step(self, speaker: Speaker) -> Step | None:
        """The agent's last step: in its branch if there is one, else in any."""
        theirs = [step for step in reversed(self._steps) if step.speaker.agent == speaker.agent]
        return next((step for step in theirs if step.speaker == speaker), theirs[0] if theirs else None)

    def withheld_call(self, speaker: Speaker, function_call_id: str) -> Call | None:
        """The call as the model wrote it, if the application may have changed or removed it."""
        withheld = (step for step in reversed(self._steps) if step.withholds and step.speaker.agent == speaker.agent)
        return next((call for step in withheld for call in step.calls() if call.wire_id == function_call_id), None)

    def has_signed(self, author: str) -> bool:
        """Whether the model of an agent has given a call of this invocation a thought signature."""
        asked = (step for step in self._steps if step.author == author)
        return any(call.signature for step in asked for call in step.calls())

    def bind(self, step: Step, parts: list[types.Part]) -> None:
        """Binds each function call of a response to its call, and gives those without an id the id of their call."""
        free = [call for call in step.calls() if call.call_id not in step.shown]
        for part in parts:
            function_call = part.function_call
            if function_call is None:
                continue
            call = _meant(function_call, free)
            if call is None:
                continue
            free.remove(call)
            step.shown.add(call.call_id)
            function_call.id = self._id_of(call)
            function_call.name = function_call.name or call.name
            if not step.withholds:
                self.known_calls.bind(step.speaker, function_call.id, call.call_id)

    def _id_of(self, call: Call) -> str:
        """The id by which google-adk is to know a call: the model's own, unless a concurrent call has the same.

        google-adk assigns an answer to the last call with its id, of any agent. Requests have the model's own ids again, see
        ``restore_wire_ids``. A live model is sent its results unchanged.
        """
        twins = (each for each in self.run.calls if each.wire_id == call.wire_id and each.call_id != call.call_id)
        return call.call_id if not self.is_live and any(not each.is_final for each in twins) else call.wire_id

    def find_call(self, speaker: Speaker, function_call_id: str | None) -> Call | None:
        """The call of this run that google-adk means by an id."""
        found = self.known_calls.find(speaker, function_call_id)
        return None if found is None else self.run.call(found[1])

    def correct_branch(self, event: Event) -> None:
        """Puts an event into the branch in which its calls were made.

        In the branch of an agent that has ended, google-adk would not find a call that a person has confirmed.
        """
        calls, responses = event.get_function_calls(), event.get_function_responses()
        step = self.step_of(event.actions)
        if calls and step is not None:
            event.branch = step.speaker.branch
            return
        named = [call.id for call in calls] + [paused_call_id(call) for call in calls] + [each.id for each in responses]
        for function_call_id in named:
            found = self.known_calls.find(Speaker.of(event), function_call_id)
            if found is not None:
                event.branch = found[0].branch
                return

    def calls(self) -> list[Call]:
        """The calls of this invocation that google-adk knows."""
        return [self.run.call(call_id) for call_id in self.known_calls.call_ids()]


def declared_tools(request: LlmRequest) -> dict[str, dict[str, object]]:
    """The JSON Schemas of a request's tools by name."""
    found: dict[str, dict[str, object]] = {}
    tools = [tool for tool in request.config.tools or () if isinstance(tool, types.Tool)]
    for declaration in [each for tool in tools for each in tool.function_declarations or ()]:
        schema = declaration.parameters_json_schema
        if not isinstance(schema, dict) and declaration.parameters is not None:
            schema = declaration.parameters.model_dump(mode="json", exclude_none=True, by_alias=True)
        found[declaration.name or ""] = schema if isinstance(schema, dict) else {}
    return found


def _meant(function_call: types.FunctionCall, calls: list[Call]) -> Call | None:
    for call in calls:
        if function_call.id is not None and call.wire_id == function_call.id:
            return call
    unnamed = [call for call in calls if call.provider_id is None and call.name == function_call.name]
    complete = [call for call in unnamed if call.state is not CallState.DISCARDED]
    return next(iter(complete or unnamed), None)


async def open_run(callstream: Callstream, context: InvocationContext) -> Run:
    """A run of the invocation's own."""
    await callstream.journal.open()
    run_id = await callstream.free_run_id(context.invocation_id)
    return await callstream.start(
        context.session.id, run_id, principal=context.user_id, as_current=False, host_traces=True
    )


class Endings:
    """Ends the runs of invocations that end without a callback: google-adk calls none for a cancelled task.

    ``forget``: called with such a run after it has ended.
    """

    def __init__(self, forget: Callable[[Run], None]) -> None:
        self._forget = forget
        self._ending: set[asyncio.Task[None]] = set()
        self._watching: set[asyncio.Task[None]] = set()

    def watch(self, invocation: Invocation, context: InvocationContext) -> None:
        """Stops the run if the task that drives the invocation is cancelled, or if the invocation is no longer referenced.

        Also if it is aborted while a model stalls: google-adk cancels agents that run as nodes, but agents of the older kind
        check ``is_aborted`` only between two events, so it is polled here.
        """
        if isinstance(context.agent, BaseAgent) and not isinstance(context.agent, LlmAgent):
            self._keep(self._stop_if_aborted(invocation, context), self._watching)
        self.watch_task(invocation)
        loop = asyncio.get_running_loop()

        def forgotten() -> None:
            if not loop.is_closed() and invocation.run.outcome is None:
                loop.call_soon_threadsafe(self._stop, invocation)

        finalizer = weakref.finalize(context, forgotten)
        finalizer.atexit = False
        invocation.watches.callback(finalizer.detach)

    def watch_task(self, invocation: Invocation) -> None:
        """Stops the run if the current task is cancelled before the invocation has ended. The task may live much longer."""
        task = asyncio.current_task()

        def done(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                self._stop(invocation)

        if task is not None:
            task.add_done_callback(done)
            invocation.watches.callback(task.remove_done_callback, done)

    def _stop(self, invocation: Invocation) -> None:
        self._keep(self._end(invocation.run), self._ending)

    async def _end(self, run: Run) -> None:
        if run.outcome is None:
            await run.stop("cancelled")
        self._forget(run)

    async def _stop_if_aborted(self, invocation: Invocation, context: InvocationContext) -> None:
        watched = weakref.ref(context)
        del context
        while invocation.run.outcome is None and (context_now := watched()) is not None:
            if context_now.is_aborted:
                await invocation.run.stop("aborted")
                return
            del context_now
            await asyncio.sleep(_ABORT_POLL)

    def _keep(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def wait(self) -> None:
        """Waits for the ends that are being written in this event loop."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[task for task in self._ending if task.get_loop() is loop])


# -- the text of a whole response --


def join_halves(response: LlmResponse) -> None:
    """Replaces halves of surrogate pairs in its text as in the text that is shown: no session store can hold them.

    Some model classes repeat the reasoning in ``custom_metadata``.
    """
    for part in (response.content and response.content.parts) or ():
        if part.text:
            part.text = _joined(part.text)
    response.custom_metadata = _joined(response.custom_metadata)


def _joined(value: Any) -> Any:
    match value:
        case str():
            halves = SurrogateJoin()
            return halves.feed(value) + halves.end()
        case list():
            return [_joined(each) for each in value]
        case dict():
            return {name: _joined(each) for name, each in value.items()}
    return value


# -- calls that the model did not finish --


OnTruncated: TypeAlias = Literal["tell_model", "fail"]

MAX_CUT_OFFS = 3
"""How often in an invocation the model may try again; one that never finishes a call would loop forever."""


def guard(invocation: Invocation, step: Step, response: LlmResponse, on_truncated: OnTruncated) -> None:
    """Binds the calls of a whole response, and deals with those that the model did not finish. Changes the response."""
    parts = list((response.content and response.content.parts) or ())
    shown_before = set(step.shown)
    invocation.bind(step, parts)
    lost = [call for call in step.calls() if _is_lost(call) and call.call_id not in shown_before]
    if not lost:
        return
    invocation.cut_offs += 1
    if on_truncated == "fail" or invocation.cut_offs > MAX_CUT_OFFS:
        said = refusal(lost[0])
        invocation.failure = said
        step.taken_out = lost if step.withholds else []
        kept = [part for part in parts if part.function_call is None]
        response.content = types.Content(role="model", parts=kept) if kept else None
        response.error_code = f"{lost[0].reason}_tool_call".upper()
        response.error_message = said
        response.turn_complete = True
        return
    missing = [call for call in lost if call.call_id not in step.shown]
    added = [_part(call) for call in missing]
    if added:
        response.content = types.Content(role="model", parts=[*parts, *added])
        invocation.bind(step, added)


def _is_lost(call: Call) -> bool:
    return call.state is CallState.DISCARDED and call.reason in ("truncated", "malformed")


def _part(call: Call) -> types.Part:
    part = types.Part(function_call=types.FunctionCall(id=call.wire_id, name=call.name, args={}))
    if call.signature is not None:
        part.thought_signature = base64.b64decode(call.signature)
    return part
