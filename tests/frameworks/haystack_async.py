from __future__ import annotations

import json
from typing import Any


async def ask(base_url: str, cs: Any) -> Any:
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    from tests.frameworks.langchain_openai_async import write

    async def look(chunk: Any) -> None:
        pass

    generator: Any = OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model="gpt-4o",
        api_base_url=base_url,
        http_client_kwargs={"transport": cs.transport()},
    )
    answer = await generator.run_async(
        [ChatMessage.from_user("go")], tools=[create_tool_from_function(write)], streaming_callback=look
    )
    (call,) = answer["replies"][0].tool_calls
    return call.tool_name, json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments
