from __future__ import annotations

from typing import Any

WIRE = "gemini"


async def ask(base_url: str, cs: Any) -> Any:
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.google_genai import GoogleGenAI

    from tests.frameworks.langchain_openai_async import write

    options: Any = {"base_url": base_url, "httpx_async_client": cs.httpx_client()}
    llm: Any = GoogleGenAI(
        model="gemini-3-pro", api_key="none", http_options=options, context_window=100_000, max_tokens=1000
    )
    *_, last = [
        each async for each in await llm.astream_chat_with_tools([FunctionTool.from_defaults(write)], user_msg="go")
    ]
    (call,) = llm.get_tool_calls_from_response(last)
    return call.tool_name, call.tool_kwargs
