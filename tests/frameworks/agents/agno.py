"""agno."""

from __future__ import annotations

from typing import Any


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=base_url, api_key="none", http_client=cs.http_client())
    agent: Any = Agent(model=OpenAIChat(id="gpt-4o", async_client=client), tools=[tools.write], telemetry=False)
    said = [event async for event in agent.arun("go", stream=True)]
    return "".join(str(event.content) for event in said if getattr(event, "content", None))
