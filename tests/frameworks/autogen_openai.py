from __future__ import annotations

import json
from typing import Any


async def ask(base_url: str, cs: Any) -> Any:
    from autogen_core.models import UserMessage
    from autogen_core.tools import FunctionTool
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    from tests.frameworks.langchain_openai_async import write

    client: Any = OpenAIChatCompletionClient(
        model="gpt-4o", base_url=base_url, api_key="none", http_client=cs.http_client()
    )
    tools: Any = [FunctionTool(write, description="Writes.")]
    *_, last = [each async for each in client.create_stream([UserMessage(content="go", source="user")], tools=tools)]
    (call,) = last.content
    return call.name, json.loads(call.arguments)
