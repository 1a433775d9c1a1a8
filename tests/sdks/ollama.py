from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ollama

from tests.sdks.sdk import MESSAGES, NAMES, SCHEMA, Answer, Sdk


class OllamaSdk(Sdk):
    """The client takes no HTTP client, only what one is made of; ids it does not keep."""

    stream_type = "application/x-ndjson"
    takes_httpx2 = False
    retries_streams = False

    @asynccontextmanager
    async def client(self, base_url: str, http: Any, retries: int) -> AsyncIterator[Any]:
        options = {} if http is None else {"transport": http._transport}
        client = ollama.AsyncClient(base_url, **options)
        try:
            yield client
        finally:
            await client._client.aclose()

    async def stream(self, client: Any) -> AsyncIterator[Any]:
        tools: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
        stream: AsyncIterator[Any] = await client.chat(model="qwen3", messages=MESSAGES, tools=tools, stream=True)
        return stream

    def fold(self, events: list[Any]) -> Answer:
        answer = Answer()
        for line in events:
            answer.text += line.message.content or ""
            answer.thoughts += line.message.thinking or ""
            answer.finish = line.done_reason or answer.finish
            for call in line.message.tool_calls or ():
                answer.calls.append((None, call.function.name, dict(call.function.arguments)))
        return answer

    async def whole(self, client: Any) -> Answer:
        return self.fold([await client.chat(model="qwen3", messages=MESSAGES)])

    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        return f"{base_url}/api/chat", {"model": "m", "messages": []}
