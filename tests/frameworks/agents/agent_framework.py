"""agent-framework."""

from __future__ import annotations

from typing import Any


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    import agent_framework
    from agent_framework import openai as clients
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    client = AsyncOpenAI(
        base_url=base_url, api_key="none", http_client=DefaultAsyncHttpxClient(transport=cs.transport())
    )
    kind: Any = getattr(clients, "OpenAIChatCompletionClient", None)
    if kind is not None:
        model = kind(model="gpt-4o", async_client=client)
        agent: Any = agent_framework.Agent(client=model, tools=[tools.write])
        return (await agent.run("go", stream=True).get_final_response()).text
    model = clients.OpenAIChatClient(model_id="gpt-4o", async_client=client)
    agent = agent_framework.ChatAgent(chat_client=model, tools=[tools.write])
    return "".join([update.text or "" async for update in agent.run_stream("go")])
