from __future__ import annotations

import json
from typing import Any


async def ask(base_url: str, cs: Any) -> Any:
    from openai import AsyncOpenAI
    from strands.models.openai import OpenAIModel

    client = AsyncOpenAI(base_url=base_url, api_key="none", http_client=cs.http_client())
    return await call_of(OpenAIModel(client=client, model_id="gpt"))


async def call_of(model: Any) -> Any:
    """The one call of a model's answer, as Strands puts it together."""
    schema = {"type": "object", "properties": {"title": {"type": "string"}, "content": {"type": "string"}}}
    tools: Any = [{"name": "write", "description": "Writes.", "inputSchema": {"json": schema}}]
    name, text = "", ""
    async for event in model.stream([{"role": "user", "content": [{"text": "go"}]}], tools):
        start = event.get("contentBlockStart", {}).get("start", {}).get("toolUse", {})
        delta = event.get("contentBlockDelta", {}).get("delta", {}).get("toolUse", {})
        name += start.get("name", "")
        text += delta.get("input", "")
    return name, json.loads(text)
