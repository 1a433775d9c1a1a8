"""Scripted providers for every wire, and what the SDKs call the ends of their answers."""

from __future__ import annotations

from typing import Any

import httpx
import httpx2
import pytest
from google.genai import types as genai_types

from callstream.testing import (
    ScriptedProvider,
)
from tests.testing.asking import WIRES

each_wire = pytest.mark.parametrize("wire", WIRES)
either_form = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
PARIS = {"city": "Paris, the one in France", "unit": "°C"}


BROKEN = (httpx.TransportError, httpx2.TransportError)
PATHS = {
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
}


def scripted(wire: str, script: Any, **options: Any) -> ScriptedProvider:
    """A provider that streams arguments, on every wire."""
    return ScriptedProvider(wire, script, **({"stream_args_unasked": True} if wire == "gemini" else {}), **options)


async def posted(provider: ScriptedProvider, body: Any = None, path: str | None = None) -> httpx.Response:
    async with httpx.AsyncClient(verify=False) as client:  # which saves reading certificates
        return await client.post(provider.origin + (path or PATHS[provider.wire]), json=body or {"stream": True})


def content(role: str, *parts: genai_types.Part) -> genai_types.Content:
    return genai_types.Content(role=role, parts=list(parts))


def answered(*names: str) -> genai_types.Content:
    return content("user", *(genai_types.Part.from_function_response(name=n, response={"ok": True}) for n in names))
