from __future__ import annotations

import json
from typing import Any

import httpx


def ask(base_url: str, cs: Any) -> Any:
    import litellm

    litellm.client_session = httpx.Client(transport=cs.transport())
    schema = {"type": "object", "properties": {"title": {"type": "string"}, "content": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "write", "parameters": schema}}]
    messages = [{"role": "user", "content": "go"}]
    name, text = "", ""
    for chunk in litellm.completion(
        "openai/gpt", messages=messages, tools=tools, api_base=base_url, api_key="none", stream=True
    ):
        for piece in chunk.choices[0].delta.tool_calls or ():
            name += piece.function.name or ""
            text += piece.function.arguments or ""
    return name, json.loads(text)
