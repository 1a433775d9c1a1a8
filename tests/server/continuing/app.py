"""The application that is served: an agent of google-adk of the kind that the environment names."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.models import Gemini
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.tools import AgentTool
from google.genai import types

from callstream import tool
from callstream.tools import current_call

PROVIDER, WIRE, KIND, LOG = (os.environ[f"CONTINUING_{name}"] for name in ("PROVIDER", "WIRE", "KIND", "LOG"))
_log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(**told: Any) -> None:
    os.write(_log, json.dumps(told).encode() + b"\n")


def model() -> Any:
    if WIRE == "anthropic":
        os.environ.update(ANTHROPIC_BASE_URL=PROVIDER, ANTHROPIC_API_KEY="none")
        return AnthropicLlm(model="claude-sonnet-4-5")
    options = types.HttpOptions(base_url=PROVIDER, retry_options=types.HttpRetryOptions(attempts=1))
    return Gemini(model="gemini-2.5-flash", client_kwargs={"api_key": "none", "http_options": options})


async def work(did: str, label: str, seconds: float) -> str:
    call = current_call()
    assert call is not None
    key = call.idempotency_key
    note(did=did, at="start", label=label, key=key)
    await asyncio.sleep(seconds)
    note(did=did, at="end", label=label, key=key)
    return f"{did} {label}"


def agent(name: str, *more: Any) -> LlmAgent:
    @tool(name=f"{name}_look", replay="safe")
    async def look(label: str) -> str:
        """Looks something up."""
        return await work("look", label, 0.05)

    @tool(name=f"{name}_write")
    async def write(label: str, body: str) -> str:
        """Writes something that must not be written twice."""
        return await work("write", label, 0.4)

    return LlmAgent(name=name, model=model(), instruction=f"You are {name}.", tools=[look, write, *more])


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
        case _:
            inner = AgentTool(agent("first"))
            return LlmAgent(name="outer", model=model(), instruction="You are outer.", tools=[inner])


root_agent = made(KIND)
