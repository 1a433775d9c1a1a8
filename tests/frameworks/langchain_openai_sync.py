from __future__ import annotations

from typing import Any


def ask(base_url: str, cs: Any) -> Any:
    from langchain_openai import ChatOpenAI

    from tests.frameworks.langchain_openai_async import write

    model: Any = ChatOpenAI(model="gpt", base_url=base_url, api_key="none", http_client=cs.sync_http_client())
    whole: Any = None
    for chunk in model.bind_tools([write]).stream("go"):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    return call["name"], call["args"]
