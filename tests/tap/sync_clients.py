"""The real SDKs' sync clients: each asked once and streamed through its raw stream; what they put together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import openai
from google import genai
from google.genai import types

from callstream import Callstream
from callstream.testing import ScriptedProvider
from tests.sdks.sdk import NAMES, SCHEMA, Answer
from tests.sdks.sdk import loads as _loads


def ask_anthropic(client: anthropic.Anthropic) -> Answer:
    answer = Answer()
    tools: Any = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    with client.messages.stream(
        model="claude", max_tokens=100, messages=[{"role": "user", "content": "go"}], tools=tools
    ) as stream:
        for _ in stream:
            answer.events += 1
        message = stream.get_final_message()
    answer.finish = message.stop_reason
    for block in message.content:
        if block.type == "tool_use":
            answer.calls.append((block.id, block.name, block.input))
        elif block.type == "text":
            answer.text += block.text
    return answer


def ask_openai_chat(client: openai.OpenAI) -> Answer:
    answer = Answer()
    calls: dict[int, list[Any]] = {}
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    for chunk in client.chat.completions.create(
        model="gpt", messages=[{"role": "user", "content": "go"}], tools=tools, stream=True
    ):
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


def ask_openai_responses(client: openai.OpenAI) -> Answer:
    answer = Answer()
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
    for event in client.responses.create(model="gpt", input="go", tools=tools, stream=True, store=False):
        answer.events += 1
        if event.type == "response.output_text.delta":
            answer.text += event.delta
        elif event.type == "response.output_item.done" and event.item.type == "function_call":
            answer.calls.append((event.item.call_id, event.item.name, _loads(event.item.arguments)))
        elif event.type in ("response.completed", "response.incomplete"):
            answer.finish = event.response.status
    return answer


def ask_gemini(client: genai.Client) -> Answer:
    answer = Answer()
    declared: Any = [{"function_declarations": [{"name": name, "parameters_json_schema": SCHEMA} for name in NAMES]}]
    config = types.GenerateContentConfig(
        tools=declared, automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    for chunk in client.models.generate_content_stream(model="gemini-3", contents="go", config=config):
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


@contextmanager
def sdk(wire: str, provider: ScriptedProvider, cs: Callstream | None, **options: Any) -> Iterator[Any]:
    """The SDK's client for the provider, with the tap in it if there is a Callstream."""
    retries = options.pop("max_retries", 0)
    http: Any = None if cs is None else cs.sync_http_client(**options)
    if wire == "gemini":
        with http or httpx.Client() as client:
            yield genai.Client(
                api_key="none",
                http_options=types.HttpOptions(
                    base_url=provider.base_url,
                    httpx_client=client,
                    retry_options=types.HttpRetryOptions(attempts=retries + 1, initial_delay=0.01),
                ),
            )
        return
    kind: Any = anthropic.Anthropic if wire == "anthropic" else openai.OpenAI
    with kind(base_url=provider.base_url, api_key="none", http_client=http, max_retries=retries) as client:
        yield client


def ask(wire: str, provider: ScriptedProvider, cs: Callstream | None, **options: Any) -> Answer:
    with sdk(wire, provider, cs, **options) as client:
        answer: Answer = ASK[wire](client)
        return answer
