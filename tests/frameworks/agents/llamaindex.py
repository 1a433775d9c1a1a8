"""LlamaIndex."""

from __future__ import annotations

from typing import Any


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai import OpenAI

    llm: Any = OpenAI(model="gpt-4o", api_base=base_url, api_key="none", async_http_client=cs.httpx_client())
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(async_fn=tools.write)], llm=llm)
    return str(await agent.run("go"))
