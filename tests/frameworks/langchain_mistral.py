from __future__ import annotations

from typing import Any


async def ask(base_url: str, cs: Any) -> Any:
    from langchain_mistralai import ChatMistralAI

    from tests.frameworks.langchain_openai_async import write

    client = cs.httpx_client(base_url=base_url, headers={"Accept": "application/json"})
    model: Any = ChatMistralAI(model="m", api_key="none", async_client=client)
    whole: Any = None
    async for chunk in model.bind_tools([write]).astream("go"):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    return call["name"], call["args"]
