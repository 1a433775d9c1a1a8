from __future__ import annotations

from typing import Any


async def ask(base_url: str, cs: Any) -> Any:
    from langchain_openai import ChatOpenAI

    model: Any = ChatOpenAI(model="gpt", base_url=base_url, api_key="none", http_async_client=cs.http_client())
    whole: Any = None
    async for chunk in model.bind_tools([write]).astream("go"):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    return call["name"], call["args"]


def write(title: str, content: str) -> str:
    """Writes."""
    return title + content
