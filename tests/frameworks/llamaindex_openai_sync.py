from __future__ import annotations

from typing import Any

import httpx


def ask(base_url: str, cs: Any) -> Any:
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai import OpenAI

    from tests.frameworks.langchain_openai_async import write

    client = httpx.Client(transport=cs.transport())
    llm: Any = OpenAI(model="gpt-4o", api_base=base_url, api_key="none", http_client=client)
    *_, last = llm.stream_chat_with_tools([FunctionTool.from_defaults(write)], user_msg="go")
    (call,) = llm.get_tool_calls_from_response(last)
    return call.tool_name, call.tool_kwargs
