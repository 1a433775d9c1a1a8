"""LangGraph."""

from __future__ import annotations

from typing import Any


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI
    from openai import DefaultAsyncHttpxClient

    client = DefaultAsyncHttpxClient(transport=cs.transport())
    model: Any = ChatOpenAI(model="gpt-4o", base_url=base_url, api_key="none", http_async_client=client, streaming=True)
    agent: Any = create_agent(model, tools=[tools.write])
    return (await agent.ainvoke({"messages": [("user", "go")]}))["messages"][-1].content
