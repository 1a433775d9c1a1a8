"""What of an application may change what a model wrote, or what a tool returned, before google-adk shows it.

Callbacks, plugins, planners and agents of the application's own. Where there is one, nothing is shown or journaled before
it has judged the whole: a secret may be cut in two, and what was shown cannot be taken back. Elsewhere all stays live.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final, TypeVar

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.planners.base_planner import BasePlanner
from google.adk.planners.built_in_planner import BuiltInPlanner
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types

from callstream.adk.tapping import is_watched
from callstream.runtime import TextFilter

logger = logging.getLogger("callstream")

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
"""What an agent of the application's own defines, by google-adk's documentation."""

_around: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("callstream_agents_around", default=())
"""The application's own agents that this task runs in, by invocation and name."""


def observes(extension: Extension) -> Extension:
    """Marks a callback, plugin, planner or agent class that changes nothing of what models write and tools return.

    What it sees is then shown live: it is not waited for. ``@observes`` above a function or class, or ``observes(plugin)``.
    """
    setattr(getattr(extension, "__func__", extension), _OBSERVES, True)
    return extension


class AgentTextFilter(TextFilter):
    """A ``TextFilter`` that is an ``after_model_callback``: text and reasoning of the agent's model stay live.

    ``LlmAgent(…, after_model_callback=AgentTextFilter.redacting(…))``. Sessions and ``output_key`` get what it shows.
    """

    def __call__(self, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """Filters a whole answer in place. Of partial ones, whose text is not judged to its end, none is left."""
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
    """What the text of adjacent parts belongs to: reasoning (True) or the answer (False); None for other parts."""
    return bool(part.thought) if part.text else None


class Judges:
    """Who judges what an agent shows, seen from a plugin of Callstream's: all of its application's extension points."""

    def __init__(self, plugin: BasePlugin) -> None:
        self._plugin = plugin
        self._said_of: set[str] = set()

    def of_model(self, context: InvocationContext) -> list[str]:
        """What may change an answer of the agent's model, in words; empty if nothing may, or nothing but text filters."""
        found = [*self._callbacks("after_model_callback", context), *self._of_events(context)]
        if _rewrites(getattr(context.agent, "planner", None)):
            found.append(f"planner {type(getattr(context.agent, 'planner', None)).__name__}")
        name = "" if context.agent is None else context.agent.name
        if found and name not in self._said_of:
            self._said_of.add(name)
            logger.info(
                "agent %s: what its model writes is shown when %s has judged it, not as it arrives; "
                "callstream.adk.observes marks what changes nothing",
                name,
                " and ".join(dict.fromkeys(found)),
            )
        return found

    def text_filters(self, context: InvocationContext) -> list[AgentTextFilter]:
        """Those of the agent, in their order."""
        own = getattr(context.agent, "canonical_after_model_callbacks", None) or ()
        return [each for each in own if isinstance(each, AgentTextFilter)]

    def of_pieces(self, context: InvocationContext) -> list[str]:
        """What of the application can see an answer of the agent's model while it is written, in words."""
        found = [
            *self._callbacks("after_model_callback", context, observers=True),
            *self._plugins("on_event_callback", context, observers=True),
            *self._of_events(context),
        ]
        planner = getattr(context.agent, "planner", None)
        if _rewrites(planner):
            found.append(f"planner {type(planner).__name__}")
        return [*found, *_in_model(getattr(context.agent, "canonical_model", None))]

    def of_tools(self, context: InvocationContext) -> bool:
        """Whether anything may change what a tool of the agent returned."""
        return any(self._callbacks("after_tool_callback", context)) or any(self._of_events(context))

    async def judge(self, context: InvocationContext, event: Event) -> Event | None:
        """Has the other plugins judge an event, in their order; None if none of them may change it.

        The first that returns an event replaces it. google-adk does not ask them again, as it gets an event from here.
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

    def _of_events(self, context: InvocationContext) -> Iterator[str]:
        yield from self._plugins("on_event_callback", context)
        yield from (f"agent {name}" for id_, name in _around.get() if id_ == context.invocation_id)

    def _plugins(self, callback: str, context: InvocationContext, *, observers: bool = False) -> Iterator[str]:
        for other in self._others(context):
            overrides = getattr(type(other), callback) is not getattr(BasePlugin, callback)
            if overrides and (observers or not _is_observer(other)):
                yield f"plugin {other.name}"

    def _others(self, context: InvocationContext) -> list[BasePlugin]:
        """The plugins after ours. One before ours has had its say, and hides from ours what it replaces."""
        plugins = context.plugin_manager.plugins
        return plugins[plugins.index(self._plugin) + 1 :] if self._plugin in plugins else []


def _is_observer(extension: Any) -> bool:
    kind = type(extension)
    return hasattr(extension, _OBSERVES) or f"{kind.__module__}.{kind.__qualname__}" in _OBSERVERS


def _rewrites(planner: Any) -> bool:
    """Whether the planner of an agent changes the parts of an answer. True stands for google-adk's PlanReActPlanner."""
    if not planner or _is_observer(planner):
        return False
    unchanged = (BasePlanner.process_planning_response, BuiltInPlanner.process_planning_response)
    return not isinstance(planner, BasePlanner) or type(planner).process_planning_response not in unchanged


def _in_model(model: Any) -> Iterator[str]:
    """What of the application sees an answer on its way out of the model's class."""
    method = getattr(type(model), "generate_content_async", None)
    if not str(getattr(method, "__module__", "google.adk")).startswith("google.adk") and not _is_observer(model):
        yield f"model {type(model).__name__}"
    if is_watched(model):
        yield "litellm.callbacks"


def _is_own(agent: BaseAgent) -> bool:
    """Whether an agent is of the application's own making, so that it may change the events of those that it runs."""
    if _is_observer(agent):
        return False
    methods = (getattr(type(agent), name, None) for name in _OVERRIDDEN)
    return any(not str(getattr(method, "__module__", "google.adk")).startswith("google.adk") for method in methods)
