"""OpenAI Agents, Responses."""

from __future__ import annotations

from typing import Any

from tests.frameworks.agents import agents

WIRE = "openai_responses"


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    return await agents.run(base_url, cs, tools, "OpenAIResponsesModel")
