from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic

from tests.sdks.sdk import MESSAGES, NAMES, SCHEMA, Answer, Sdk, loads


class AnthropicSdk(Sdk):
    library = "httpx2_client"

    def client(self, base_url: str, http: Any, retries: int) -> Any:
        return anthropic.AsyncAnthropic(base_url=base_url, api_key="none", http_client=http, max_retries=retries)

    async def stream(self, client: Any) -> AsyncIterator[Any]:
        tools: Any = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
        stream: AsyncIterator[Any] = await client.messages.create(
            model="claude", max_tokens=100, messages=MESSAGES, tools=tools, stream=True
        )
        return stream

    def fold(self, events: list[Any]) -> Answer:
        answer = Answer()
        texts: dict[int, str] = {}
        blocks: dict[int, Any] = {}
        for event in events:
            if event.type == "content_block_start":
                blocks[event.index] = event.content_block
                texts[event.index] = ""
            elif event.type == "content_block_delta":
                piece = getattr(event.delta, "partial_json", None)
                answer.pieces += bool(piece)
                texts[event.index] += piece or getattr(event.delta, "text", None) or ""
                answer.thoughts += getattr(event.delta, "thinking", None) or ""
            elif event.type == "message_delta":
                answer.finish = event.delta.stop_reason
        for index, block in sorted(blocks.items()):
            if block.type == "tool_use":
                answer.calls.append((block.id, block.name, loads(texts[index]) or block.input))
            elif block.type == "text":
                answer.text += texts[index]
        return answer

    async def whole(self, client: Any) -> Answer:
        message = await client.messages.create(model="claude", max_tokens=100, messages=MESSAGES)
        answer = Answer()
        answer.finish = message.stop_reason
        for block in message.content:
            answer.text += block.text if block.type == "text" else ""
            answer.thoughts += block.thinking if block.type == "thinking" else ""
            if block.type == "tool_use":
                answer.calls.append((block.id, block.name, block.input))
        return answer

    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        return f"{base_url}/v1/messages", {"model": "m", "max_tokens": 1, "stream": True, "messages": []}
