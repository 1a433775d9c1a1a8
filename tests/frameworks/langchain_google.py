from __future__ import annotations

from typing import Any

WIRE = "gemini"


async def ask(base_url: str, cs: Any) -> Any:
    from langchain_google_genai import ChatGoogleGenerativeAI

    from tests.frameworks.langchain_openai_async import write

    model: Any = ChatGoogleGenerativeAI(
        model="gemini-3-pro", api_key="none", base_url=base_url, client_args={"transport": cs.transport()}
    )
    whole: Any = None
    async for chunk in model.bind_tools([write]).astream("go"):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    return call["name"], call["args"]
