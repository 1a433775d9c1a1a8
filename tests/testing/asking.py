"""Asks each provider through its own SDK, and says what came in no provider's words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import msgspec
import openai
from google import genai
from google.genai import types as genai_types

from callstream.testing.provider import ProviderServer

WIRES = ("gemini", "anthropic", "openai_chat", "openai_responses")
QUESTION = "What is the weather in Paris?"


class Said(msgspec.Struct):
    """What an SDK made of an answer. ``pieces`` counts the deltas of arguments that it saw."""

    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str, Any]] = []
    call_ids: list[str | None] = []
    pieces: int = 0
    finish: str | None = None


@asynccontextmanager
async def client_of(provider: ProviderServer, **options: Any) -> AsyncIterator[Any]:
    """The SDK's own async client for the provider's wire, spared the reading of certificates, which takes long."""
    match provider.wire:
        case "gemini":
            client = genai.Client(api_key="none", http_options=gemini_options(provider, **options))
            async with client.aio as aio:
                yield aio
        case "anthropic":
            http: Any = anthropic.DefaultAsyncHttpxClient(verify=False)
            given = {"base_url": provider.base_url, "api_key": "none", "http_client": http, **options}
            async with anthropic.AsyncAnthropic(**given) as client:
                yield client
        case _:
            http = openai.DefaultAsyncHttpxClient(verify=False)
            given = {"base_url": provider.base_url, "api_key": "none", "http_client": http, **options}
            async with openai.AsyncOpenAI(**given) as client:
                yield client


def gemini_options(provider: ProviderServer, **options: Any) -> genai_types.HttpOptions:
    quick = {"client_args": {"verify": False}, "async_client_args": {"verify": False}}
    return genai_types.HttpOptions(base_url=provider.base_url, **{**quick, **options})


async def asked(provider: ProviderServer, *, stream: bool = True, **options: Any) -> Said:
    """One question, one answer."""
    async with client_of(provider, **options) as client:
        return await ask(client, provider.wire, stream=stream)


async def ask(client: Any, wire: str, *, stream: bool = True) -> Said:
    asks = {"gemini": gemini, "anthropic": claude, "openai_chat": chat, "openai_responses": responses}
    return await asks[wire](client, stream)


async def gemini(client: Any, stream: bool, config: Any = None) -> Said:
    question: Any = {"model": "gemini-3-pro", "contents": QUESTION, "config": config}
    if not stream:
        return gemini_said([await client.models.generate_content(**question)])
    chunks = await client.models.generate_content_stream(**question)
    return gemini_said([chunk async for chunk in chunks])


def gemini_said(chunks: list[Any]) -> Said:
    """google-genai leaves partial arguments to its caller; here strings alone are put together."""
    said = Said()
    args: dict[str, Any] = {}
    for chunk in chunks:
        [candidate] = chunk.candidates
        said.finish = candidate.finish_reason.value if candidate.finish_reason else said.finish
        for part in candidate.content.parts or []:
            call = part.function_call
            if call is None:
                said.thoughts += (part.text or "") if part.thought else ""
                said.text += "" if part.thought else part.text or ""
                continue
            if call.name is not None:
                args = dict(call.args or {})
                said.calls.append((call.name, args))
                said.call_ids.append(call.id)
            for piece in call.partial_args or []:
                said.pieces += 1
                key = piece.json_path.removeprefix("$.")
                args[key] = args.get(key, "") + piece.string_value
    return said


async def claude(client: Any, stream: bool) -> Said:
    said = Said()
    question: Any = {
        "model": "claude-opus-4-5",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    if stream:
        async with client.messages.stream(**question) as events:
            async for event in events:
                said.pieces += event.type == "input_json"
            message = await events.get_final_message()
    else:
        message = await client.messages.create(**question)
    said.finish = message.stop_reason
    for block in message.content:
        match block.type:
            case "text":
                said.text += block.text
            case "thinking":
                said.thoughts += block.thinking
            case "tool_use":
                said.calls.append((block.name, block.input))
                said.call_ids.append(block.id)
    return said


async def chat(client: Any, stream: bool) -> Said:
    said = Said()
    question: Any = {"model": "gpt-4o", "messages": [{"role": "user", "content": QUESTION}]}
    if stream:
        arguments: list[str] = []
        async for chunk in await client.chat.completions.create(**question, stream=True):
            [choice] = chunk.choices
            said.finish = choice.finish_reason or said.finish
            said.text += choice.delta.content or ""
            said.thoughts += getattr(choice.delta, "reasoning_content", None) or ""
            for piece in choice.delta.tool_calls or []:
                if piece.function.name is not None:
                    arguments.append("")
                    said.calls.append((piece.function.name, None))
                    said.call_ids.append(piece.id)
                said.pieces += bool(piece.function.arguments)
                arguments[piece.index] += piece.function.arguments
    else:
        [choice] = (await client.chat.completions.create(**question)).choices
        said.finish = choice.finish_reason
        said.text = choice.message.content or ""
        said.thoughts = getattr(choice.message, "reasoning_content", None) or ""
        calls = choice.message.tool_calls or []
        said.calls = [(call.function.name, None) for call in calls]
        said.call_ids = [call.id for call in calls]
        arguments = [call.function.arguments for call in calls]
    said.calls = [(name, _parsed(text)) for (name, _), text in zip(said.calls, arguments, strict=True)]
    return said


async def responses(client: Any, stream: bool) -> Said:
    said = Said()
    question: Any = {"model": "gpt-5", "input": QUESTION}
    if stream:
        # Not its streaming helper, which has no last response to give for one that is incomplete.
        response = None
        async for event in await client.responses.create(**question, stream=True):
            said.pieces += event.type == "response.function_call_arguments.delta"
            response = getattr(event, "response", response)
    else:
        response = await client.responses.create(**question)
    said.finish = response.status
    said.text = response.output_text
    for item in response.output:
        if item.type == "reasoning":
            said.thoughts += "".join(part.text for part in item.summary)
        elif item.type == "function_call":
            said.calls.append((item.name, _parsed(item.arguments)))
            said.call_ids.append(item.call_id)
    return said


def _parsed(text: str) -> Any:
    """The arguments, or their text where it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
