"""The application that is served: an agent of google-adk of the kind that the environment names."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm
from google.adk.models import Gemini
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.tools import AgentTool, FunctionTool, LongRunningFunctionTool
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.adk.workflow import START, FunctionNode, Workflow
from google.genai import types

from callstream import tool
from callstream.adk import AGUIToolset
from callstream.tools import current_call

PROVIDER, WIRE, KIND, LOG = (os.environ[f"CONTINUING_{name}"] for name in ("PROVIDER", "WIRE", "KIND", "LOG"))
_log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(**told: Any) -> None:
    os.write(_log, json.dumps(told).encode() + b"\n")


def model() -> Any:
    match WIRE:
        case "anthropic":
            os.environ.update(ANTHROPIC_BASE_URL=PROVIDER, ANTHROPIC_API_KEY="none")
            return AnthropicLlm(model="claude-sonnet-4-5")
        case "openai_chat":
            return OpenAILlm(model="gpt-4o", api_key="none", base_url=PROVIDER)
        case "openai_responses":
            return OpenAIResponsesLlm(model="gpt-5", store=False, api_key="none", base_url=PROVIDER)
    options = types.HttpOptions(base_url=PROVIDER, retry_options=types.HttpRetryOptions(attempts=1))
    return Gemini(model="gemini-2.5-flash", client_kwargs={"api_key": "none", "http_options": options})


async def work(did: str, label: str, seconds: float) -> str:
    call = current_call()
    key = None if call is None else call.idempotency_key
    note(did=did, at="start", label=label, key=key)
    await asyncio.sleep(seconds)
    note(did=did, at="end", label=label, key=key)
    return f"{did} {label}"


def agent(name: str, *more: Any, without: Sequence[str] = ()) -> LlmAgent:
    @tool(name=f"{name}_look", replay="safe")
    async def look(label: str) -> str:
        """Looks something up."""
        return await work("look", label, 0.05)

    @tool(name=f"{name}_write")
    async def write(label: str, body: str) -> str:
        """Writes something that must not be written twice."""
        return await work("write", label, 0.3)

    tools = [each for each in (look, write) if each.__name__ not in without]
    return LlmAgent(name=name, model=model(), instruction=f"You are {name}.", tools=[*tools, *more])


def mcp_tools() -> McpToolset:
    return McpToolset(connection_params=StreamableHTTPConnectionParams(url=os.environ["CONTINUING_MCP"]))


async def order(label: str) -> dict[str, str]:
    """Orders something; a person says when it has come."""
    await work("write", f"{label}-order", 0.2)
    return {"status": "ordered"}


@tool(name="first_sign")
async def sign(label: str) -> str:
    """Signs something, if a person agrees."""
    return await work("write", f"{label}-sign", 0.4)


@tool(name="first_look", replay="safe")
async def die(label: str) -> str:
    """Kills its process, but for one label."""
    if label == "run-0":
        os.kill(os.getpid(), signal.SIGKILL)
    return await work("look", label, 0.05)


def audience_agent() -> LlmAgent:
    """Its tools hang once in threads whose names say so: see tests/server/continuing/audience.py."""

    def is_marked(thread: str) -> bool:
        mark = Path(f"{LOG}.{thread}")
        is_there = mark.exists()
        mark.touch()
        return is_there

    async def hang(did: str, label: str, place: int) -> str:
        thread = label.rstrip("ab")
        if thread.endswith(f"-{place}") and not is_marked(thread):
            await asyncio.sleep(3600)
        return f"{did} {label}"

    @tool(name="first_look", replay="safe")
    async def look(label: str) -> str:
        """Looks something up."""
        return await hang("look", label, 8)

    @tool(name="first_write", replay="safe")
    async def write(label: str, body: str) -> str:
        """Writes something."""
        return await hang("write", label, 9)

    return LlmAgent(name="first", model=model(), instruction="You are first.", tools=[look, write, AGUIToolset()])


async def prepare(node_input: str) -> str:
    """The first node: what the agent after it is asked."""
    await work("node", f"{node_input} prepare", 0.3)
    return f"Prepared: {node_input}"


async def check(node_input: str) -> str:
    await work("node", f"{node_input} check", 0.3)
    return f"Checked: {node_input}"


def workflow() -> Workflow:
    first, last = (FunctionNode(func=each, rerun_on_resume=True) for each in (prepare, check))
    return Workflow(name="flow", edges=[(START, first, agent("first"), last, agent("second"))])


def made(kind: str) -> Any:
    match kind:
        case "llm":
            return agent("first")
        case "sequential":
            return SequentialAgent(name="both", sub_agents=[agent("first"), agent("second")])
        case "parallel":
            return ParallelAgent(name="both", sub_agents=[agent("first"), agent("second")])
        case "loop":
            return LoopAgent(name="again", sub_agents=[agent("first")], max_iterations=2)
        case "transfer":
            return LlmAgent(name="head", model=model(), instruction="You are head.", sub_agents=[agent("first")])
        case "audience":
            return audience_agent()
        case "deadly":
            return agent("first", die, without=["first_look"])
        case "workflow":
            return workflow()
        case "mcp":
            return agent("first", mcp_tools(), without=["first_write"])
        case "long_running":
            order.__name__ = "first_order"
            return agent("first", LongRunningFunctionTool(order))
        case "confirmation":
            return agent("first", FunctionTool(sign, require_confirmation=True))
        case _:
            inner = AgentTool(agent("first"))
            return LlmAgent(name="outer", model=model(), instruction="You are outer.", tools=[inner])


root_agent = made(KIND)
