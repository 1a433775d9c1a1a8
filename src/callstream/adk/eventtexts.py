"""Text in google-adk's events that was not read from a model's response.

Custom agents, nodes of a Workflow and callbacks make events with their own text, in pieces or whole. A callback may also
change a model's answer: where that is possible, the text is taken from the events and not from the model, so that clients
see what google-adk shows and nothing that a callback has removed; ``record_judged`` does that for whole answers.

Code that was run, its output, and images and files are shown as text: neither AG-UI nor the journal has another place for
them.

``Judges`` are the parts of an application that may change what a model wrote or a tool returned before google-adk shows
it: callbacks, plugins, planners and custom agents. Where there is one, nothing is shown or journaled before it has judged
the whole: a secret may be cut in two, and what was shown cannot be taken back. Elsewhere everything stays live.
"""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final, TypeVar

import msgspec
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.planners.base_planner import BasePlanner
from google.adk.planners.built_in_planner import BuiltInPlanner
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from google.genai import types

from callstream.adk.calls import message_received
from callstream.adk.invocations import Invocation, OnTruncated, Speaker, Step, guard
from callstream.adk.partials import append_text, as_written, end_response, minted_id, signature_of
from callstream.adk.tapping import is_watched
from callstream.calls import Call, CallState
from callstream.errors import RunOver
from callstream.runtime import Run, TextFilter
from callstream.tools import Tool
from callstream.wire.transcript import Transcript, json_text

logger = logging.getLogger("callstream")

MAX_IMAGE = 1 << 20
"""Bytes. For larger images, only the kind and the size are shown, since everything shown is kept in the journal."""


class EventTexts:
    """The text of an invocation's events so far: by model call, or by speaker for events of no model call."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._passages: dict[object, _Passage] = {}

    async def read(self, event: Event, *, is_judged: bool = False) -> None:
        """Records the text of an event, unless it was read from a model's response, or is the user's.

        A code executor makes events from an answer that has not ended yet, and only these are shown of it. ``is_judged``:
        the event's text is recorded already.
        """
        invocation = self._invocation
        if event.author == "user" or invocation.is_live or invocation.run.outcome is not None:
            return
        step = invocation.step_of(event.actions)
        if step is None and any(part.executable_code for part in _parts(event)):
            step = invocation.last_step(Speaker.of(event))  # a code executor makes another event from the answer
        was_read = is_judged or (step is not None and step.was_read and not step.withholds)
        # The code that an executor has found in an answer is in the text of the answer.
        has_code = was_read and step is not None and step.actions is not event.actions
        parts = [] if was_read else [part for part in _parts(event) if part.text]
        if not event.partial:
            parts += [types.Part(text=text) for part in _parts(event) if (text := _described(part, has_code=has_code))]
        if not parts:
            return
        key = step or Speaker.of(event)
        passage = self._passages.pop(key, None) or _Passage(invocation.run, event.author)
        try:
            if event.partial:
                self._passages[key] = passage
                await passage.preview(parts)
            else:
                await passage.end(parts)
        except RunOver:
            pass  # text after the end of the run is not shown


def _parts(event: Event) -> list[types.Part]:
    return list((event.content and event.content.parts) or ())


def _described(part: types.Part, *, has_code: bool) -> str:
    """A part that is not text, as Markdown; empty if it is shown elsewhere, as code is with ``has_code``."""
    if part.executable_code is not None:
        language = (part.executable_code.language or "").lower()
        return "" if has_code else f"\n```{language}\n{part.executable_code.code}\n```\n"
    if part.code_execution_result is not None:
        output = (part.code_execution_result.output or "").rstrip("\n")
        return f"\n```\n{output}\n```\n" if output else ""
    if part.file_data is not None:
        return f"\n[{part.file_data.mime_type or 'file'}]({part.file_data.file_uri})\n"
    blob = part.inline_data
    if blob is None or blob.data is None:
        return ""
    kind = blob.mime_type or "application/octet-stream"
    if not kind.startswith("image/") or len(blob.data) > MAX_IMAGE:
        return f"\n({kind}, {len(blob.data):,} bytes)\n"
    return f"\n![{kind}](data:{kind};base64,{base64.b64encode(blob.data).decode()})\n"


class _Passage:
    """One message: from a single event, or from several partial ones and a whole one."""

    def __init__(self, run: Run, author: str) -> None:
        self._response = run.response("gemini", author=author, early="never")
        self._transcript = Transcript(run.engine.new_call_id)
        self._shown = {True: "", False: ""}  # reasoning and text

    async def preview(self, parts: list[types.Part]) -> None:
        for part in parts:
            self._shown[bool(part.thought)] += part.text or ""
            append_text(self._transcript, part.text or "", bool(part.thought))
        await self._record()

    async def end(self, parts: list[types.Part]) -> None:
        """Shows the rest of the whole text. Shown text stays: if the whole text differs from it, a new message follows."""
        if not any(self._shown.values()):
            await self.preview(parts)
        else:
            for is_thought, shown in self._shown.items():
                whole = "".join(part.text or "" for part in parts if bool(part.thought) is is_thought)
                if shown.startswith(whole):
                    continue
                if not whole.startswith(shown):
                    self._transcript.end_messages()
                    shown = ""
                append_text(self._transcript, whole.removeprefix(shown), is_thought)
        self._transcript.end_messages()
        await self._record()

    async def _record(self) -> None:
        await self._response.record(self._transcript.pop())


# -- whole answers that the application may have changed ---------------------------------------------------------------


async def record_judged(invocation: Invocation, step: Step, event: Event) -> None:
    """Records a whole event that google-adk made from a withheld answer, as the application shows it after all its judges.

    The answer decides which calls are complete and valid. The event decides what is shown: a call that is missing from it
    was removed, and if it changes arguments, the changed ones count.
    """
    if event.partial or invocation.run.outcome is not None:
        return
    drafts, run = step.calls(), invocation.run
    response = run.response("gemini", author=step.author, early="never", own_tools=step.tools)
    transcript = Transcript(run.engine.new_call_id)
    bound: list[tuple[str, str]] = []
    for part in _said_or_shown(event):
        if part.function_call is not None:
            bound.append((part.function_call.id or "", _write_call(transcript, part, part.function_call, drafts)))
        else:
            append_text(transcript, part.text or "", bool(part.thought))
    # Calls that the model did not finish and that end the invocation. Their arguments are not shown.
    for lost in step.taken_out:
        call = transcript.open_call(lost.name, lost.provider_id, call_id=lost.call_id)
        transcript.discard_call(call, lost.reason or "truncated", lost.detail)
    step.taken_out = []
    end_response(transcript, event)
    try:
        await response.record(transcript.pop())
    except RunOver:
        return  # text after the end of the run is not shown
    for function_call_id, local in bound:
        invocation.known_calls.bind(step.speaker, function_call_id, response.call_ids[local])


def _write_call(transcript: Transcript, part: types.Part, shown: types.FunctionCall, drafts: list[Call]) -> str:
    """Writes a call as it is shown. Returns its id there. ``drafts``: the calls as the model wrote them, each used once."""
    draft = next((each for each in drafts if each.wire_id == shown.id), None)
    if draft is not None:
        drafts.remove(draft)
    args = as_written(shown.args or {}, None if draft is None else draft.args)
    is_as_written = draft is not None and args == (draft.args or {})
    provider_id = shown.id if draft is None else draft.provider_id
    signature = (draft and draft.signature) or signature_of(part)  # the model wants its own back, whatever is shown
    call = transcript.open_call(shown.name, provider_id, call_id=shown.id, signature=signature)
    if draft is not None and _is_refused(draft, is_as_written=is_as_written):
        if args:
            transcript.append_args(call, json_text(args))
        transcript.discard_call(call, draft.reason or "malformed", draft.detail)
    else:
        written = draft.args_json if draft is not None and is_as_written else None
        transcript.append_args(call, written or json_text(args))
        transcript.complete_whole(call)
    return call.call_id


def _is_refused(draft: Call, *, is_as_written: bool) -> bool:
    """Whether the tool of a call must not run. Invalid arguments may have been replaced by valid ones."""
    return draft.state is CallState.DISCARDED and (is_as_written or draft.reason != "invalid")


def _said_or_shown(event: Event) -> list[types.Part]:
    if event.output_transcription is not None:  # live mode: speech
        return [types.Part(text=event.output_transcription.text or "")]
    return _parts(event)


# ``output_key`` gets all text that the model wrote in the turn, and values that the application wrote are kept.
#
# google-adk itself writes the text of one run of an agent. It loses some of it if the agent is a node of a Workflow, and
# any text before a question to a person or a delegated task. Here a running value replaces the value that google-adk
# writes, in the events in which it writes one. The running value is the agent's own text, without partial events and
# thoughts. In live mode the transcription of the agent's speech counts too. Each run of an agent starts empty, and so does
# each turn in live mode; a run that continues after a question starts with its text from before. An agent with an
# ``output_schema`` is left alone.
#
# A value in any other event is the application's: a tool's, another agent's, a callback's. It stays, whatever it is. So
# does the text of an ``after_agent_callback``, which google-adk does not count as the agent's.


class _Output(msgspec.Struct):
    """The text of one run of an agent so far."""

    key: str
    text: str


class OutputKeys:
    """The running values of an invocation's running agents."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._outputs: dict[Speaker, _Output] = {}

    def agent_begins(self, agent: BaseAgent, context: CallbackContext) -> None:
        if not isinstance(agent, LlmAgent) or not agent.output_key or agent.output_schema or agent.mode == "task":
            return
        speaker, key = Speaker(agent.name, context.branch), agent.output_key
        if speaker not in self._outputs:  # google-adk enters an agent again after a delegated task, without ending it
            said = _said_before(self._invocation, speaker, context.session, key) if self._invocation.is_resumed else ""
            self._outputs[speaker] = _Output(key, said)

    def agent_ends(self, agent: BaseAgent, context: CallbackContext) -> None:
        """The model will write no more in this run of the agent. google-adk has waited for its events."""
        self._outputs.pop(Speaker(agent.name, context.branch), None)

    def event(self, event: Event) -> None:
        """Puts the running value into an event in which google-adk writes the agent's text."""
        output = self._output_of(Speaker.of(event))
        if output is None or event.partial:
            return
        written = event.actions.state_delta
        text = _text(event) if output.key in written else _spoken(event)
        if text:
            output.text += text
            written[output.key] = output.text
        elif output.text and written.get(output.key) == "" and _says_nothing(event):
            del written[output.key]

    def _output_of(self, speaker: Speaker) -> _Output | None:
        if speaker in self._outputs:
            return self._outputs[speaker]
        # A Workflow shows the output of a dynamic node in the branch of the node that asked for it.
        running = [output for other, output in self._outputs.items() if other.agent == speaker.agent]
        return running[0] if len(running) == 1 else None

    def turn_begins(self) -> None:
        """In live mode an invocation has many turns, and each starts empty."""
        for output in self._outputs.values():
            output.text = ""


def _said_before(invocation: Invocation, speaker: Speaker, session: Session, key: str) -> str:
    """The agent's text from before it was interrupted."""
    said = ""
    for event in session.events:
        if event.invocation_id == invocation.invocation_id and Speaker.of(event) == speaker:
            if event.actions.end_of_agent:
                said = ""
            elif key in event.actions.state_delta or key.startswith(State.TEMP_PREFIX):  # those are not stored
                said += _text(event)
    return said


def _says_nothing(event: Event) -> bool:
    """Whether google-adk takes an event for the agent's answer although it has no text."""
    is_empty = any(part.text == "" for part in _parts(event))
    return event.node_info.message_as_output or (event.is_final_response() and is_empty)


def _text(event: Event) -> str:
    return "".join(part.text for part in _parts(event) if part.text and not part.thought)


def _spoken(event: Event) -> str:
    """A model's speech in live mode: its transcription, once that is complete."""
    said = event.output_transcription
    return (said.text or "") if said is not None and said.finished else ""


# Live mode: a model answers over a connection that stays open.
#
# ``run_live`` calls no plugin around a model's answer. A plugin sees the events that google-adk makes from the answer, each
# before its tools run, and the user's text or speech, before the model gets it. Calls arrive whole. Text arrives in pieces
# and then whole; speech as a transcription, in pieces and then whole. A turn is over when the model says so after its last
# word, or when the user speaks again; a turn that ends with calls continues with their results.


class LiveTranscript:
    """Reads the events of one live invocation into its run."""

    def __init__(self, invocation: Invocation, judges: Judges, outputs: OutputKeys, on_truncated: OnTruncated) -> None:
        self._invocation = invocation
        self._judges = judges
        self._outputs = outputs
        self._on_truncated = on_truncated
        self._open: dict[bool, Step] = {}
        """The current speech (True) and the current text (False)."""
        self._goes_on = False
        self._is_new_turn = True
        """Whether the next text or speech begins a turn."""
        self._asked: set[str] = set()
        self.tools: dict[str, dict[str, Tool[Any]]] = {}
        """The functions of each agent's tools, by the names that its model uses."""

    def agent_begins(self, agent: LlmAgent, tools: dict[str, Tool[Any]]) -> None:
        """Some agents of a live workflow use ordinary requests; their answers are read like those of any agent.

        ``tools``: the functions of its tools. Those of toolsets are known only after the user's first message.
        """
        self.tools[agent.name] = tools
        if agent.mode == "single_turn":
            self._asked.add(agent.name)

    def is_asked(self, agent_name: str) -> bool:
        return agent_name in self._asked

    async def hear(self, content: types.Content) -> None:
        """A user wrote or said something."""
        self._is_new_turn = True
        await self._invocation.run.record([message_received(content.parts or ())])

    async def read(self, event: Event, context: InvocationContext) -> Step | None:
        """Takes in the model's text and calls from an event. Refuses incomplete calls, as all paths do."""
        if self._invocation.run.outcome is not None:
            return None
        step = None
        if self._says(event):
            if self._is_new_turn and not event.partial:
                self._outputs.turn_begins()
            self._goes_on = bool(event.get_function_calls())
            answer = _said_aloud(event) or event
            is_spoken = answer is not event
            step = self._open.pop(is_spoken, None) or self._step(event, context)
            if answer.partial:
                self._open[is_spoken] = step
            try:
                await step.read(answer)
            except RunOver:
                return None
            if not answer.partial and not is_spoken:
                guard(self._invocation, step, event, self._on_truncated)
            if not event.partial:
                self._is_new_turn = False
        if event.turn_complete and not self._goes_on:
            self._is_new_turn = True
        if self._invocation.failure is not None:
            self._invocation.hang_up()
        return step

    def _says(self, event: Event) -> bool:
        """Whether an event has text, speech or calls of the model. Content from a tool has the role of a user."""
        if event.author in ("user", *self._asked) or (event.content is not None and event.content.role == "user"):
            return False
        said_aloud = event.output_transcription is not None
        return said_aloud or any(part.text or part.function_call for part in _parts(event))

    def _step(self, event: Event, context: InvocationContext) -> Step:
        """A new step. If the application may still change the answer, nothing of it is recorded yet.

        Text filters decide which text is recorded; google-adk, which calls no callback for it, keeps all of it in the
        session.
        """
        filters = self._judges.text_filters(context)
        return Step(
            self._invocation.run,
            author=event.author,
            new_call_id=minted_id,
            withholds=filters is None,
            tools=self.tools.get(event.author, {}),
            text_filters=filters or (),
            actions=event.actions,
            speaker=Speaker.of(event),
        )


def _said_aloud(event: Event) -> LlmResponse | None:
    """The transcription in an event; None if it has none."""
    said = event.output_transcription
    if said is None:
        return None
    content = types.Content(role="model", parts=[types.Part(text=said.text or "")])
    return LlmResponse(content=content, partial=not said.finished)


# -- parts of the application that may change what is shown --

Extension = TypeVar("Extension")


_OBSERVES: Final = "__callstream_observes__"


_OBSERVERS: Final = frozenset(
    {
        "google.adk.plugins.logging_plugin.LoggingPlugin",
        "google.adk.plugins.debug_logging_plugin.DebugLoggingPlugin",
        "google.adk.plugins.bigquery_agent_analytics_plugin.BigQueryAgentAnalyticsPlugin",
        "google.adk.tools.model_consult._observability_plugin.ModelConsultObservabilityPlugin",
        "google.adk.evaluation.request_intercepter_plugin._RequestIntercepterPlugin",
    }
)
"""google-adk's own plugins that change nothing."""


_OVERRIDDEN: Final = ("run_async", "_run_async_impl", "run_live", "_run_live_impl")
"""The methods that a custom agent defines, according to google-adk's documentation."""


_around: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("callstream_agents_around", default=())
"""The custom agents that this task runs in, by invocation and name."""


def observes(extension: Extension) -> Extension:
    """Marks a callback, plugin, planner or agent class that does not change what models write or tools return.

    Callstream then does not wait for it: what it sees is shown live. ``@observes`` above a function or class, or
    ``observes(plugin)``.
    """
    setattr(getattr(extension, "__func__", extension), _OBSERVES, True)
    return extension


class AgentTextFilter(TextFilter):
    """A ``TextFilter`` to use as an ``after_model_callback``: text and reasoning of the agent's model stay live.

    ``LlmAgent(…, after_model_callback=AgentTextFilter.redacting(…))``. Sessions and ``output_key`` get the filtered text.
    """

    def __call__(self, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """Filters a whole answer in place. Removes the text of partial ones, which cannot be judged before their end."""
        content = llm_response.content
        if content is None or not any(part.text for part in content.parts or ()):
            return
        parts: list[types.Part] = []
        for kind, group in groupby(content.parts or (), _kind):
            if kind is None:
                parts += group
                continue
            same = list(group)
            said = "".join(part.text or "" for part in same)
            text = "" if llm_response.partial else self.whole(said)
            if text != said:
                llm_response.custom_metadata = None  # OpenAIResponsesLlm repeats the answer there
            for part in same:
                if text or part.thought_signature:
                    parts.append(part.model_copy(update={"text": text}))
                text = ""
        llm_response.content = content.model_copy(update={"parts": parts})


def _kind(part: types.Part) -> bool | None:
    """The kind of a part's text: reasoning (True) or answer (False); None for other parts."""
    return bool(part.thought) if part.text else None


class Judges:
    """Finds what may judge an agent's output, from Callstream's plugin: all extension points that the application uses."""

    def __init__(self, plugin: BasePlugin) -> None:
        self._plugin = plugin
        self._said_of: set[str] = set()

    def text_filters(self, context: InvocationContext) -> list[AgentTextFilter] | None:
        """The agent's text filters, in order; None if anything else may change an answer of its model."""
        found = list(self._of_answers(context))
        if not found:
            own = getattr(context.agent, "canonical_after_model_callbacks", None) or ()
            return [each for each in own if isinstance(each, AgentTextFilter)]
        name = "" if context.agent is None else context.agent.name
        if name not in self._said_of:
            self._said_of.add(name)
            logger.info(
                "agent %s: its model's output is shown after %s has judged it, not as it arrives; "
                "use callstream.adk.observes to mark extensions that change nothing",
                name,
                " and ".join(dict.fromkeys(found)),
            )
        return None

    def of_pieces(self, context: InvocationContext) -> list[str]:
        """The parts of the application that can see an answer of the agent's model while it is written, in words."""
        in_model = _in_model(getattr(context.agent, "canonical_model", None))
        return [*self._of_answers(context, observers=True), *in_model]

    def _of_answers(self, context: InvocationContext, *, observers: bool = False) -> Iterator[str]:
        yield from self._callbacks("after_model_callback", context, observers=observers)
        yield from self._of_events(context, observers=observers)
        planner = getattr(context.agent, "planner", None)
        if _rewrites(planner):
            yield f"planner {type(planner).__name__}"

    def of_tools(self, context: InvocationContext) -> bool:
        """Whether anything may change what a tool of the agent returned."""
        return any(self._callbacks("after_tool_callback", context)) or any(self._of_events(context))

    async def judge(self, context: InvocationContext, event: Event) -> Event | None:
        """Lets the other plugins judge an event, in their order; None if none of them may change it.

        The first plugin that returns an event replaces it. google-adk does not ask them again: it gets an event from here.
        """
        if not any(self._plugins("on_event_callback", context)):
            return None
        for other in self._others(context):
            try:
                changed = await other.on_event_callback(invocation_context=context, event=event)
            except Exception as error:
                raise RuntimeError(f"plugin {other.name!r} raised in on_event_callback: {error}") from error
            if changed is not None:
                kept = changed.model_fields_set - {"id", "invocation_id", "timestamp"}
                changes = {name: getattr(changed, name) for name in kept}
                return event.model_copy(update={**changes, "author": changed.author or event.author})
        return event

    def agent_begins(self, agent: BaseAgent, invocation_id: str) -> None:
        if _is_own(agent):
            here = [each for each in _around.get() if each[0] == invocation_id]
            _around.set((*here, (invocation_id, agent.name)))

    def agent_ends(self, agent: BaseAgent, invocation_id: str) -> None:
        around = _around.get()
        if (invocation_id, agent.name) in around:
            _around.set(around[: around.index((invocation_id, agent.name))])

    def _callbacks(self, callback: str, context: InvocationContext, *, observers: bool = False) -> Iterator[str]:
        own = getattr(context.agent, f"canonical_{callback}s", None) or ()
        judging = [each for each in own if not isinstance(each, AgentTextFilter)]
        if any(observers or not _is_observer(each) for each in judging):
            yield f"its {callback}"
        yield from self._plugins(callback, context, observers=observers)

    def _of_events(self, context: InvocationContext, *, observers: bool = False) -> Iterator[str]:
        yield from self._plugins("on_event_callback", context, observers=observers)
        yield from (f"agent {name}" for id_, name in _around.get() if id_ == context.invocation_id)

    def _plugins(self, callback: str, context: InvocationContext, *, observers: bool = False) -> Iterator[str]:
        for other in self._others(context):
            overrides = getattr(type(other), callback) is not getattr(BasePlugin, callback)
            if overrides and (observers or not _is_observer(other)):
                yield f"plugin {other.name}"

    def _others(self, context: InvocationContext) -> list[BasePlugin]:
        """The plugins after ours. Those before ours have run already, and ours does not see events that they replaced."""
        plugins = context.plugin_manager.plugins
        return plugins[plugins.index(self._plugin) + 1 :] if self._plugin in plugins else []


def _is_observer(extension: Any) -> bool:
    kind = type(extension)
    return hasattr(extension, _OBSERVES) or f"{kind.__module__}.{kind.__qualname__}" in _OBSERVERS


def _rewrites(planner: Any) -> bool:
    """Whether an agent's planner changes the parts of an answer. ``planner=True`` means google-adk's PlanReActPlanner."""
    if not planner or _is_observer(planner):
        return False
    unchanged = (BasePlanner.process_planning_response, BuiltInPlanner.process_planning_response)
    return not isinstance(planner, BasePlanner) or type(planner).process_planning_response not in unchanged


def _in_model(model: Any) -> Iterator[str]:
    """The parts of the application that see an answer on its way out of the model's class."""
    method = getattr(type(model), "generate_content_async", None)
    if not str(getattr(method, "__module__", "google.adk")).startswith("google.adk") and not _is_observer(model):
        yield f"model {type(model).__name__}"
    if "litellm" in sys.modules and is_watched(model):
        yield "litellm.callbacks"


def _is_own(agent: BaseAgent) -> bool:
    """Whether an agent is custom, so that it may change the events of the agents that it runs."""
    if _is_observer(agent):
        return False
    methods = (getattr(type(agent), name, None) for name in _OVERRIDDEN)
    return any(not str(getattr(method, "__module__", "google.adk")).startswith("google.adk") for method in methods)
