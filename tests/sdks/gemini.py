from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from google import genai
from google.genai import types

from tests.sdks.sdk import NAMES, SCHEMA, Answer, Sdk


class GeminiSdk(Sdk):
    """google-genai gives streamed calls in pieces and leaves them so: only whole ones have their arguments here."""

    @asynccontextmanager
    async def client(self, base_url: str, http: Any, retries: int) -> AsyncIterator[Any]:
        async with http or httpx.AsyncClient() as own:
            options = types.HttpOptions(
                base_url=base_url,
                httpx_async_client=own,
                retry_options=types.HttpRetryOptions(attempts=retries + 1, initial_delay=0.01),
            )
            yield genai.Client(api_key="none", http_options=options)

    async def stream(self, client: Any) -> AsyncIterator[Any]:
        declared: Any = [
            {"function_declarations": [{"name": name, "parameters_json_schema": SCHEMA} for name in NAMES]}
        ]
        config = types.GenerateContentConfig(
            tools=declared, automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
        )
        stream: AsyncIterator[Any] = await client.aio.models.generate_content_stream(
            model="gemini-3", contents="go", config=config
        )
        return stream

    def fold(self, events: list[Any]) -> Answer:
        answer = Answer()
        for candidate in (candidate for chunk in events for candidate in chunk.candidates or ()):
            answer.finish = candidate.finish_reason or answer.finish
            for part in (candidate.content and candidate.content.parts) or ():
                call = part.function_call
                if call is not None:
                    answer.pieces += len(call.partial_args or ())
                    answer.calls.append((call.id, call.name or "", call.args))
                elif part.text and part.thought:
                    answer.thoughts += part.text
                elif part.text:
                    answer.text += part.text
        return answer

    async def whole(self, client: Any) -> Answer:
        return self.fold([await client.aio.models.generate_content(model="gemini-3", contents="go")])

    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        return f"{base_url}/v1beta/models/g:streamGenerateContent?alt=sse", {"contents": []}
