from __future__ import annotations

from typing import Any

WIRE = "anthropic"


async def ask(base_url: str, cs: Any) -> Any:
    from agent_framework import Message
    from agent_framework.anthropic import AnthropicClient
    from anthropic import AsyncAnthropic

    from tests.frameworks.langchain_openai_async import write

    client = AsyncAnthropic(base_url=base_url, api_key="none", http_client=cs.http_client())
    model: Any = AnthropicClient(model="claude-sonnet-5-5", anthropic_client=client)
    model.function_invocation_configuration["enabled"] = False
    stream = model.get_response([Message("user", ["go"])], stream=True, options={"tools": [write]})
    answer = await stream.get_final_response()
    (call,) = [part for message in answer.messages for part in message.contents if part.type == "function_call"]
    return call.name, call.parse_arguments()
