"""AutoGen."""

from __future__ import annotations

from typing import Any


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    client: Any = OpenAIChatCompletionClient(
        model="gpt-4o", base_url=base_url, api_key="none", http_client=cs.http_client()
    )
    agent = AssistantAgent("writer", client, tools=[tools.write], max_tool_iterations=5, model_client_stream=True)
    return (await agent.run(task="go")).messages[-1].content
