from __future__ import annotations

from typing import Any


async def ask(base_url: str, cs: Any) -> Any:
    from langchain_xai import ChatXAI

    from tests.frameworks.langchain_openai_async import write

    model: Any = ChatXAI(model="grok", xai_api_base=base_url, api_key="none", http_async_client=cs.http_client())
    whole: Any = None
    async for chunk in model.bind_tools([write]).astream("go"):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    return call["name"], call["args"]
