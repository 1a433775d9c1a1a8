from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai

from tests.sdks.sdk import MESSAGES, NAMES, SCHEMA, Answer, Sdk, loads


class ChatSdk(Sdk):
    def client(self, base_url: str, http: Any, retries: int) -> Any:
        return openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http, max_retries=retries)

    async def stream(self, client: Any) -> AsyncIterator[Any]:
        tools: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
        stream: AsyncIterator[Any] = await client.chat.completions.create(
            model="gpt", messages=MESSAGES, tools=tools, stream=True
        )
        return stream

    def fold(self, events: list[Any]) -> Answer:
        answer = Answer()
        calls: dict[int, list[Any]] = {}
        for choice in (choice for chunk in events for choice in chunk.choices):
            answer.text += choice.delta.content or ""
            answer.thoughts += getattr(choice.delta, "reasoning_content", None) or ""
            answer.finish = choice.finish_reason or answer.finish
            for delta in choice.delta.tool_calls or ():
                call = calls.setdefault(delta.index, [delta.id, "", ""])
                call[1] += (delta.function and delta.function.name) or ""
                piece = (delta.function and delta.function.arguments) or ""
                answer.pieces += bool(piece)
                call[2] += piece
        answer.calls = [(call_id, name, loads(text)) for _, (call_id, name, text) in sorted(calls.items())]
        return answer

    async def whole(self, client: Any) -> Answer:
        [choice] = (await client.chat.completions.create(model="gpt", messages=MESSAGES)).choices
        answer = Answer()
        answer.finish = choice.finish_reason
        answer.text = choice.message.content or ""
        answer.thoughts = getattr(choice.message, "reasoning_content", None) or ""
        for call in choice.message.tool_calls or ():
            answer.calls.append((call.id, call.function.name, loads(call.function.arguments)))
        return answer

    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        return f"{base_url}/chat/completions", {"model": "m", "stream": True, "messages": []}


class ResponsesSdk(ChatSdk):
    async def stream(self, client: Any) -> AsyncIterator[Any]:
        tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
        stream: AsyncIterator[Any] = await client.responses.create(
            model="gpt", input="go", tools=tools, stream=True, store=False
        )
        return stream

    def fold(self, events: list[Any]) -> Answer:
        answer = Answer()
        for event in events:
            if event.type == "response.output_text.delta":
                answer.text += event.delta
            elif event.type == "response.function_call_arguments.delta":
                answer.pieces += 1
            elif event.type == "response.output_item.done" and event.item.type == "function_call":
                answer.calls.append((event.item.call_id, event.item.name, loads(event.item.arguments)))
            elif event.type in ("response.completed", "response.incomplete"):
                final = _of_response(event.response)
                answer.finish, answer.thoughts = final.finish, final.thoughts
                assert final.calls == answer.calls
        return answer

    async def whole(self, client: Any) -> Answer:
        return _of_response(await client.responses.create(model="gpt", input="go"))

    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        return f"{base_url}/responses", {"model": "m", "stream": True, "input": "go", "store": False}


def _of_response(response: Any) -> Answer:
    answer = Answer()
    answer.finish = response.status
    answer.text = response.output_text
    for item in response.output:
        if item.type == "reasoning":
            answer.thoughts += "".join(part.text for part in item.summary)
        elif item.type == "function_call":
            answer.calls.append((item.call_id, item.name, loads(item.arguments)))
    return answer
