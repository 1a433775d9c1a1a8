"""OpenAI Agents."""

from __future__ import annotations

from typing import Any


async def run(base_url: str, cs: Any, tools: Any, model: str = "OpenAIChatCompletionsModel") -> Any:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key="none", http_client=cs.http_client())
    made: Any = getattr(agents, model)(model="gpt-4o", openai_client=client)
    agent = agents.Agent(name="writer", model=made, tools=[agents.function_tool(tools.write)])
    result = agents.Runner.run_streamed(agent, "go")
    async for _ in result.stream_events():
        pass
    return result.final_output
