"""Strands."""

from __future__ import annotations

from typing import Any


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    import strands
    from openai import AsyncOpenAI
    from strands.models.openai import OpenAIModel

    client = AsyncOpenAI(base_url=base_url, api_key="none", http_client=cs.http_client())
    model: Any = OpenAIModel(client=client, model_id="gpt-4o")
    agent: Any = strands.Agent(model=model, tools=[strands.tool(tools.write)], callback_handler=None)
    return str(await agent.invoke_async("go"))
