from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import cohere
import httpx

from tests.sdks.sdk import MESSAGES, NAMES, SCHEMA, Answer, Sdk, loads


class CohereSdk(Sdk):
    takes_httpx2 = False
    retries_streams = False

    @asynccontextmanager
    async def client(self, base_url: str, http: Any, retries: int) -> AsyncIterator[Any]:
        async with http or httpx.AsyncClient() as own:
            yield cohere.AsyncClientV2(api_key="none", base_url=base_url, httpx_client=own, max_retries=retries)

    async def stream(self, client: Any) -> AsyncIterator[Any]:
        tools: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
        stream: AsyncIterator[Any] = client.chat_stream(model="command-a", messages=MESSAGES, tools=tools)
        return stream

    def fold(self, events: list[Any]) -> Answer:
        """The SDK hands the events on; programs put them together by index, as here."""
        answer = Answer()
        calls: dict[int, list[Any]] = {}
        for event in events:
            match event.type:
                case "content-start" | "content-delta":
                    content = event.delta.message.content
                    answer.text += getattr(content, "text", None) or ""
                    answer.thoughts += getattr(content, "thinking", None) or ""
                case "tool-plan-delta":
                    answer.thoughts += event.delta.message.tool_plan
                case "tool-call-start":
                    call = event.delta.message.tool_calls
                    assert event.index not in calls
                    calls[event.index] = [call.id, call.function.name, call.function.arguments]
                case "tool-call-delta":
                    calls[event.index][2] += event.delta.message.tool_calls.function.arguments
                    answer.pieces += 1
                case "message-end":
                    answer.finish = event.delta.finish_reason
        assert sorted(calls) == list(range(len(calls)))
        answer.calls = [(call_id, name, loads(text)) for call_id, name, text in calls.values()]
        return answer

    async def whole(self, client: Any) -> Answer:
        response = await client.chat(model="command-a", messages=MESSAGES)
        answer = Answer()
        answer.finish = response.finish_reason
        answer.thoughts = response.message.tool_plan or ""
        for content in response.message.content or ():
            answer.text += getattr(content, "text", None) or ""
            answer.thoughts += getattr(content, "thinking", None) or ""
        for call in response.message.tool_calls or ():
            answer.calls.append((call.id, call.function.name, loads(call.function.arguments)))
        return answer

    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        return f"{base_url}/v2/chat", {"model": "m", "stream": True, "messages": []}
