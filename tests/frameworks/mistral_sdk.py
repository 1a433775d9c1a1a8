from __future__ import annotations

import json
from typing import Any


async def ask(base_url: str, cs: Any) -> Any:
    try:
        from mistralai.client import Mistral
    except ImportError:  # before version 2
        from mistralai import Mistral

    schema = {"type": "object", "properties": {"title": {"type": "string"}, "content": {"type": "string"}}}
    tools: Any = [{"type": "function", "function": {"name": "write", "parameters": schema}}]
    client: Any = Mistral(api_key="none", server_url=base_url.removesuffix("/v1"), async_client=cs.httpx_client())
    stream = await client.chat.stream_async(model="m", messages=[{"role": "user", "content": "go"}], tools=tools)
    calls = [call async for event in stream for call in event.data.choices[0].delta.tool_calls or ()]
    (call,) = calls
    return call.function.name, json.loads(call.function.arguments)
