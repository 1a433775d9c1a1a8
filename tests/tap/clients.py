"""The real SDKs, each asked once and streamed through its raw stream; what they put together."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
from google import genai
from google.genai import types

from callstream import Callstream
from callstream.testing import ScriptedProvider

SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}, "content": {"type": "string"}}}
NAMES = ("write", "other", "slow", "fast")


class Answer:
    """Text and calls of a response as its SDK has them."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[tuple[str | None, str, Any]] = []
        self.finish: Any = None
        self.events = 0


def _loads(text: str) -> Any:
    return json.loads(text) if text else {}


async def ask_anthropic(client: anthropic.AsyncAnthropic) -> Answer:
    answer = Answer()
    texts: dict[int, str] = {}
    blocks: dict[int, Any] = {}
    tools: Any = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    stream = await client.messages.create(
        model="claude", max_tokens=100, messages=[{"role": "user", "content": "go"}], tools=tools, stream=True
    )
    async for event in stream:
        answer.events += 1
        if event.type == "content_block_start":
            blocks[event.index] = event.content_block
            texts[event.index] = ""
        elif event.type == "content_block_delta":
            texts[event.index] += getattr(event.delta, "partial_json", None) or getattr(event.delta, "text", None) or ""
        elif event.type == "message_delta":
            answer.finish = event.delta.stop_reason
    for index, block in sorted(blocks.items()):
        if block.type == "tool_use":
            answer.calls.append((block.id, block.name, _loads(texts[index])))
        elif block.type == "text":
            answer.text += texts[index]
    return answer


async def ask_openai_chat(client: openai.AsyncOpenAI) -> Answer:
    answer = Answer()
    calls: dict[int, list[Any]] = {}
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    stream = await client.chat.completions.create(
        model="gpt", messages=[{"role": "user", "content": "go"}], tools=tools, stream=True
    )
    async for chunk in stream:
        answer.events += 1
        for choice in chunk.choices:
            answer.text += choice.delta.content or ""
            answer.finish = choice.finish_reason or answer.finish
            for delta in choice.delta.tool_calls or ():
                call = calls.setdefault(delta.index, [delta.id, "", ""])
                call[1] += (delta.function and delta.function.name) or ""
                call[2] += (delta.function and delta.function.arguments) or ""
    answer.calls = [(call_id, name, _loads(text)) for _, (call_id, name, text) in sorted(calls.items())]
    return answer


async def ask_openai_responses(client: openai.AsyncOpenAI) -> Answer:
    answer = Answer()
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
    stream = await client.responses.create(model="gpt", input="go", tools=tools, stream=True, store=False)
    async for event in stream:
        answer.events += 1
        if event.type == "response.output_text.delta":
            answer.text += event.delta
        elif event.type == "response.output_item.done" and event.item.type == "function_call":
            answer.calls.append((event.item.call_id, event.item.name, _loads(event.item.arguments)))
        elif event.type in ("response.completed", "response.incomplete"):
            answer.finish = event.response.status
            final = [
                (i.call_id, i.name, _loads(i.arguments)) for i in event.response.output if i.type == "function_call"
            ]
            assert final == answer.calls
    return answer


async def ask_gemini(client: genai.Client) -> Answer:
    answer = Answer()
    declared: Any = [{"function_declarations": [{"name": name, "parameters_json_schema": SCHEMA} for name in NAMES]}]
    config = types.GenerateContentConfig(
        tools=declared, automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    stream = await client.aio.models.generate_content_stream(model="gemini-3", contents="go", config=config)
    async for chunk in stream:
        answer.events += 1
        for candidate in chunk.candidates or ():
            answer.finish = candidate.finish_reason or answer.finish
            for part in (candidate.content and candidate.content.parts) or ():
                if part.function_call is not None:
                    answer.calls.append((part.function_call.id, part.function_call.name or "", part.function_call.args))
                elif part.text and not part.thought:
                    answer.text += part.text
    return answer


ASK: dict[str, Any] = {
    "anthropic": ask_anthropic,
    "openai_chat": ask_openai_chat,
    "openai_responses": ask_openai_responses,
    "gemini": ask_gemini,
}


@asynccontextmanager
async def sdk(wire: str, provider: ScriptedProvider, cs: Callstream | None, **options: Any) -> AsyncIterator[Any]:
    """The SDK's client for the provider, with the tap in it if there is a Callstream."""
    retries = options.pop("max_retries", 0)
    make = options.pop("client", None)
    match wire:
        case "anthropic":
            http = None if cs is None else (make or cs.httpx2_client)(**options)
            async with anthropic.AsyncAnthropic(
                base_url=provider.base_url, api_key="none", http_client=http, max_retries=retries
            ) as client:
                yield client
        case "gemini":
            import httpx

            http = httpx.AsyncClient() if cs is None else (make or cs.httpx_client)(**options)
            async with http:
                http_options = types.HttpOptions(
                    base_url=provider.base_url,
                    httpx_async_client=http,
                    retry_options=types.HttpRetryOptions(attempts=retries + 1, initial_delay=0.01),
                )
                yield genai.Client(api_key="none", http_options=http_options)
        case _:
            http = None if cs is None else (make or cs.httpx_client)(**options)
            async with openai.AsyncOpenAI(
                base_url=provider.base_url, api_key="none", http_client=http, max_retries=retries
            ) as client:
                yield client


async def ask(wire: str, provider: ScriptedProvider, cs: Callstream | None, **options: Any) -> Answer:
    async with sdk(wire, provider, cs, **options) as client:
        answer: Answer = await ASK[wire](client)
        return answer
