"""Pydantic AI."""

from __future__ import annotations

from typing import Any


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(
        base_url=base_url, api_key="none", http_client=DefaultAsyncHttpxClient(transport=cs.transport())
    )
    model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client))

    async def watch(context: Any, events: Any) -> None:
        async for _ in events:
            pass

    return (await Agent(model, tools=[tools.write]).run("go", event_stream_handler=watch)).output
