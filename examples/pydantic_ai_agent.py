"""A Pydantic AI agent that knows nothing of Callstream: the tap sits in its provider's HTTP client.

Run it as it is, and a scripted provider answers; with ANTHROPIC_API_KEY set, the real one does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable

from anthropic import AsyncAnthropic
from offline import scripted, show
from pydantic_ai import Agent, AgentStreamEvent, RunContext
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from callstream import Callstream


async def main() -> None:
    cs = Callstream(journal="memory:")
    with scripted("anthropic") as provider:
        live = bool(os.environ.get("ANTHROPIC_API_KEY"))
        where = {} if live else {"base_url": provider.base_url, "api_key": "none"}
        client = AsyncAnthropic(http_client=cs.http_client(collapse="all"), **where)  # the one parameter
        agent = Agent(AnthropicModel("claude-sonnet-5-5", provider=AnthropicProvider(anthropic_client=client)))

        @agent.tool_plain
        def write_document(title: str, content: str) -> dict[str, int]:
            """Writes a document."""
            return {"characters": len(content)}

        @agent.tool_plain
        def look_up(topic: str) -> str:
            """Looks a topic up."""
            return f"what is known of {topic}"

        async def watch(context: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
            async for _ in events:  # asking for events makes Pydantic AI stream
                pass

        async with cs.run("tea"):
            answer = await agent.run("Write down how to make tea.", event_stream_handler=watch)
        print(answer.output)
        await client.close()
    await show(cs)
    await cs.aclose()


if __name__ == "__main__":
    asyncio.run(main())
