from __future__ import annotations

from typing import Any

WIRE = "anthropic"


async def ask(base_url: str, cs: Any) -> Any:
    from agno.models.anthropic import Claude
    from anthropic import AsyncAnthropic

    given: list[Any] = []
    client = AsyncAnthropic(base_url=base_url, api_key="none", http_client=cs.http_client())
    model = Claude(id="claude-sonnet-5-5", async_client=client)
    [event async for event in agent_of(model, given).arun("go", stream=True)]
    return given[0]


def agent_of(model: Any, given: list[Any]) -> Any:
    """An agent that ends with its call."""
    from agno.agent import Agent
    from agno.tools import tool

    @tool(stop_after_tool_call=True)
    def write(title: str, content: str) -> str:
        """Writes."""
        given.append(("write", {"title": title, "content": content}))
        return title

    return Agent(model=model, tools=[write], telemetry=False)
