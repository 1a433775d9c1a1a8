"""What an application of google-adk has to offer to a server: an ``ADKAgent`` of it, and where its models are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.registry import LLMRegistry
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import BaseNode, Workflow

from callstream.adk.agent import ADKAgent
from callstream.adk.models import is_tapped, tapped
from callstream.adk.plugin import CallstreamPlugin
from callstream.errors import UsageError
from callstream.runtime import Callstream

ModelPath: TypeAlias = Literal["wire", "partial events", "unknown"]


class ModelOnPath(msgspec.Struct, frozen=True):
    """One agent's model, and where it is read. ``detail`` says why that is not known."""

    agent: str
    model: str
    kind: str
    path: ModelPath
    detail: str | None = None


def is_adk(target: object) -> bool:
    """Whether it is something of google-adk's that ``adk_agent`` takes."""
    return isinstance(target, ADKAgent | App | BaseNode)


def own_callstream(target: object) -> Callstream | None:
    """The Callstream that an application brings itself, in an ``ADKAgent`` or in its plugins."""
    if isinstance(target, ADKAgent):
        return target.callstream
    plugins = target.plugins if isinstance(target, App) else []
    found = next((plugin.callstream for plugin in plugins if isinstance(plugin, CallstreamPlugin)), None)
    return found if isinstance(found, Callstream) else None


def has_sessions(target: object) -> bool:
    """Whether an application says itself where its sessions are."""
    return isinstance(target, ADKAgent)


def adk_agent(target: object, callstream: Callstream | None, **options: Any) -> ADKAgent:
    """An ``ADKAgent`` of an App, an agent or a workflow, unchanged itself; an ``ADKAgent`` is returned as it is."""
    if isinstance(target, ADKAgent):
        return target
    if isinstance(target, App):
        return ADKAgent.from_app(target, callstream=callstream, **options)
    if isinstance(target, BaseNode):
        return ADKAgent(target, callstream=callstream, **options)
    raise UsageError(f"expected an App, an agent or a workflow of google-adk, got {type(target).__name__}")


def model_paths(target: object) -> list[ModelOnPath]:
    """Where the models of an application are read, agent by agent. Nothing is asked of any model."""
    if isinstance(target, ADKAgent):
        target = target._app
    root = target.root_agent if isinstance(target, App) else target
    callstream = Callstream()
    return list(_paths(root, callstream, inherits=False, is_copied=True))


def _paths(node: Any, callstream: Callstream, *, inherits: bool, is_copied: bool) -> Iterator[ModelOnPath]:
    """By the rules of ``tapped_tree``."""
    if isinstance(node, LlmAgent):
        if node.model or not inherits:
            yield _path(node, callstream, is_copied=is_copied)
            inherits = True
        for tool in node.tools:
            if isinstance(tool, AgentTool):
                yield from _paths(
                    tool.agent, callstream, inherits=False, is_copied=is_copied and type(tool) is AgentTool
                )
    if isinstance(node, BaseAgent):
        for child in node.sub_agents:
            yield from _paths(child, callstream, inherits=inherits, is_copied=is_copied)
    if isinstance(node, Workflow) and node.graph is not None:
        for each in node.graph.nodes:
            yield from _paths(each, callstream, inherits=False, is_copied=is_copied)


def _path(agent: LlmAgent, callstream: Callstream, *, is_copied: bool) -> ModelOnPath:
    model = agent.model or agent.canonical_model
    named = model.model if isinstance(model, BaseLlm) else model
    try:
        llm = LLMRegistry.new_llm(model) if isinstance(model, str) else model
        at_the_wire = is_tapped(llm) or (is_copied and tapped(llm, callstream) is not llm)
    except Exception as error:  # noqa: BLE001  # what a provider's client raises without a key is any kind of error
        return ModelOnPath(agent.name, named, type(model).__name__, "unknown", f"{type(error).__name__}: {error}")
    return ModelOnPath(agent.name, named, type(llm).__name__, "wire" if at_the_wire else "partial events")
