"""Anthropic's tool_runner."""

from __future__ import annotations

from typing import Any

WIRE = "anthropic"


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    from anthropic import AsyncAnthropic, beta_async_tool

    http = cs.http_client() if hasattr(cs, "http_client") else None
    client: Any = AsyncAnthropic(base_url=base_url, api_key="none", http_client=http)
    runner = client.beta.messages.tool_runner(
        model="claude",
        max_tokens=999,
        messages=[{"role": "user", "content": "go"}],
        tools=[beta_async_tool(tools.write)],
        stream=True,
    )
    message: Any = None
    async for stream in runner:
        message = await stream.get_final_message()
    return "".join(block.text for block in message.content if block.type == "text")
