"""A copy of an agent tree in which models that take a client are tapped. The original stays as it is.

Sub-agents, the nodes of workflows and the agents of AgentTools are copied too. What a node keeps to itself (the node of a
parallel worker, the agents that a function calls) is taken as it is: their models are read from their partial events,
unless they were tapped by whoever made them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.workflow import BaseNode, Workflow

from callstream.adk.clienttools import AGUIToolset
from callstream.adk.models import tap_model
from callstream.adk.tools import with_progress
from callstream.runtime import Callstream


def tapped_tree(root: BaseNode, callstream: Callstream) -> BaseNode:
    """The copy; what cannot be copied is in it as it is. Raises what google-adk says to the name of a model it knows not."""
    return _node(root, callstream)


def client_toolsets(root: BaseNode) -> Iterator[AGUIToolset]:
    """The places for client tools in a tree of agents."""
    for agent in _llm_agents(root):
        for tool in agent.tools:
            if isinstance(tool, AGUIToolset):
                yield tool
            elif isinstance(tool, AgentTool):
                yield from client_toolsets(tool.agent)


def server_tools(root: BaseNode) -> frozenset[str]:
    """The names of tools that run here and return at once: nobody else can answer their calls."""
    return frozenset(
        name
        for agent in _llm_agents(root)
        for tool in agent.tools
        if not (isinstance(tool, BaseTool) and tool.is_long_running) and (name := _name_of(tool)) is not None
    )


def _llm_agents(root: BaseNode) -> Iterator[LlmAgent]:
    """The agents of a tree that have a model, those in the nodes of workflows included."""
    if isinstance(root, LlmAgent):
        yield root
    if isinstance(root, BaseAgent):
        for agent in root.sub_agents:
            yield from _llm_agents(agent)
    elif isinstance(root, Workflow) and root.graph is not None:
        for node in root.graph.nodes:
            yield from _llm_agents(node)


def _node(node: BaseNode, callstream: Callstream) -> BaseNode:
    if isinstance(node, BaseAgent):
        return _copied(node, callstream, inherits=False)
    if isinstance(node, Workflow) and node.graph is not None:
        graph = node.graph
        # A node may have several edges, and has to stay one node.
        copies = {id(each): _node(each, callstream) for each in graph.nodes}
        edges = [
            edge.model_copy(
                update={
                    "from_node": copies.get(id(edge.from_node), edge.from_node),
                    "to_node": copies.get(id(edge.to_node), edge.to_node),
                }
            )
            for edge in graph.edges
        ]
        nodes = [copies[id(each)] for each in graph.nodes]
        return node.model_copy(update={"graph": graph.model_copy(update={"nodes": nodes, "edges": edges})})
    if "tool" in type(node).model_fields:
        tool = getattr(node, "tool")  # noqa: B009  a node that is a tool; its class has no public name
        return node.model_copy(update={"tool": _tool(tool, callstream, frozenset())})
    return node


def _copied(agent: BaseAgent, callstream: Callstream, *, inherits: bool) -> BaseAgent:
    update: dict[str, Any] = {}
    if isinstance(agent, LlmAgent):
        # An agent without a model has that of the nearest agent above that has one.
        if agent.model or not inherits:
            update["model"] = tap_model(agent.model or agent.canonical_model, callstream, agent.name)
            inherits = True
        taken = frozenset(name for tool in agent.tools if (name := _name_of(tool)) is not None)
        update["tools"] = [_tool(tool, callstream, taken) for tool in agent.tools]
    update["sub_agents"] = [_copied(child, callstream, inherits=inherits) for child in agent.sub_agents]
    return agent.clone(update=update)


def _tool(tool: Any, callstream: Callstream, taken: frozenset[str]) -> Any:
    if isinstance(tool, AGUIToolset):
        return tool.beside(taken)
    if type(tool) is AgentTool:
        made = copy.copy(tool)
        made.agent = _copied(tool.agent, callstream, inherits=False)
        return made
    return with_progress(tool)


def _name_of(tool: Any) -> str | None:
    if isinstance(tool, BaseTool):
        return tool.name
    return getattr(tool, "__name__", None) if callable(tool) else None
