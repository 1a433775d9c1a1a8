"""The real SDKs' sync clients, each asked once; what they put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import cohere
import httpx
import ollama
import openai
from google import genai
from google.genai import types

from callstream import Callstream
from callstream.testing import ScriptedProvider
from tests.sdks import SDKS, Answer
from tests.sdks.bedrock import KEYS
from tests.sdks.sdk import MESSAGES, NAMES, SCHEMA

_FUNCTIONS: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]


def stream_anthropic(client: anthropic.Anthropic) -> Any:
    tools: Any = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    return client.messages.create(model="claude", max_tokens=100, messages=MESSAGES, tools=tools, stream=True)


def stream_chat(client: openai.OpenAI) -> Any:
    return client.chat.completions.create(model="gpt", messages=MESSAGES, tools=_FUNCTIONS, stream=True)


def stream_responses(client: openai.OpenAI) -> Any:
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
    return client.responses.create(model="gpt", input="go", tools=tools, stream=True, store=False)


def stream_gemini(client: genai.Client) -> Any:
    declared: Any = [{"function_declarations": [{"name": name, "parameters_json_schema": SCHEMA} for name in NAMES]}]
    config = types.GenerateContentConfig(
        tools=declared, automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    return client.models.generate_content_stream(model="gemini-3", contents="go", config=config)


def stream_interactions(client: genai.Client) -> Any:
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
    return client.interactions.create(model="gemini-3", input="go", tools=tools, stream=True, store=False)


def stream_cohere(client: cohere.ClientV2) -> Any:
    return client.chat_stream(model="command-a", messages=MESSAGES, tools=_FUNCTIONS)


def stream_ollama(client: ollama.Client) -> Any:
    return client.chat(model="qwen3", messages=MESSAGES, tools=_FUNCTIONS, stream=True)


_STREAM: dict[str, Callable[[Any], Any]] = {
    "anthropic": stream_anthropic,
    "openai_chat": stream_chat,
    "openai_responses": stream_responses,
    "gemini": stream_gemini,
    "cohere": stream_cohere,
    "bedrock_invoke": stream_anthropic,
    "gemini_interactions": stream_interactions,
    "ollama": stream_ollama,
}
WIRES = tuple(_STREAM)


def ask_client(wire: str, client: Any) -> Answer:
    events = list(_STREAM[wire](client))
    answer = SDKS[wire].fold(events)
    answer.events = len(events)
    return answer


@contextmanager
def sdk(wire: str, provider: ScriptedProvider, cs: Callstream | None, **options: Any) -> Iterator[Any]:
    """The SDK's client for the provider, with the tap in it if there is a Callstream."""
    retries = options.pop("max_retries", 0)
    http: Any = None
    if cs is not None and SDKS[wire].takes_httpx2:
        http = cs.sync_http_client(**options)
    elif cs is not None:
        http = httpx.Client(transport=cs.transport(**options))
    with http or httpx.Client() as own:
        match wire:
            case "gemini" | "gemini_interactions":
                retry = types.HttpRetryOptions(attempts=retries + 1, initial_delay=0.01)
                options = {"base_url": provider.base_url, "httpx_client": own, "retry_options": retry}
                yield genai.Client(api_key="none", http_options=types.HttpOptions(**options))
            case "cohere":
                yield cohere.ClientV2(api_key="none", base_url=provider.base_url, httpx_client=own, max_retries=retries)
            case "ollama":  # takes no HTTP client, only what one is made of
                local = ollama.Client(provider.base_url, transport=cs.transport(**options) if cs is not None else None)
                yield local
                local._client.close()
            case "bedrock_invoke":
                keys: Any = {**KEYS, "http_client": http, "max_retries": retries}
                with anthropic.AnthropicBedrock(base_url=provider.base_url, **keys) as bedrock:
                    yield bedrock
            case _:
                kind: Any = anthropic.Anthropic if wire == "anthropic" else openai.OpenAI
                with kind(base_url=provider.base_url, api_key="none", http_client=http, max_retries=retries) as client:
                    yield client


def ask(wire: str, provider: ScriptedProvider, cs: Callstream | None, **options: Any) -> Answer:
    with sdk(wire, provider, cs, **options) as client:
        return ask_client(wire, client)
