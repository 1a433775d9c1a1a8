from __future__ import annotations

from typing import Any

WIRE = "ollama"
IS_WHOLE = True  # Ollama sends the arguments of a call in one piece


async def ask(base_url: str, cs: Any) -> Any:
    from langchain_ollama import ChatOllama

    from tests.frameworks.langchain_openai_async import write

    model: Any = ChatOllama(model="m", base_url=base_url, async_client_kwargs={"transport": cs.transport()})
    whole: Any = None
    async for chunk in model.bind_tools([write]).astream("go"):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    return call["name"], call["args"]
