"""Provider wires: the bytes of a response in, events out; the body of a request in, its tool results out.

One module or package per wire holds everything peculiar to its provider: how requests look, how answers are decoded, and
how a collapsed call is written back. A new one gets a line in ``PROVIDERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from callstream.errors import UsageError
from callstream.events import RequestEvent
from callstream.wire.anthropic import Anthropic
from callstream.wire.bedrock import BedrockConverse, BedrockInvoke
from callstream.wire.cohere import Cohere
from callstream.wire.decoder import Decoder
from callstream.wire.gemini import Gemini
from callstream.wire.gemini_interactions import GeminiInteractions
from callstream.wire.ollama import Ollama
from callstream.wire.openai_chat import OpenAIChat
from callstream.wire.openai_responses import OpenAIResponses
from callstream.wire.provider import Provider

__all__ = ["WIRES", "Decoder", "decoder_for", "provider_at", "provider_of", "results_in"]

PROVIDERS: tuple[Provider, ...] = (
    Gemini(),
    Anthropic(),
    OpenAIChat(),
    OpenAIResponses(),
    Cohere(),
    BedrockConverse(),
    BedrockInvoke(),
    GeminiInteractions(),
    Ollama(),
)
WIRES: tuple[str, ...] = tuple(provider.wire for provider in PROVIDERS)


def decoder_for(
    wire: str,
    *,
    new_id: Callable[[], str] | None = None,
    tools: Mapping[str, dict[str, Any]] | None = None,
) -> Decoder[Any]:
    """A fresh decoder for one response of the wire.

    ``new_id`` mints ids for calls to which the provider gave none (default: ``call_1``, ``call_2``, …). ``tools`` maps
    the names of the request's tools to their JSON Schemas: with them Gemini's empty arrays and nameless calls can be
    recognised.
    """
    return provider_of(wire).decoder(new_id=new_id, tools=tools)


def results_in(wire: str, request_body: bytes) -> list[RequestEvent]:
    """The tool results and the new user messages of a request, as events, in the order of the conversation.

    Raises WireError for a body that is not a request of the wire.
    """
    return provider_of(wire).results_in(request_body)


def provider_of(wire: str) -> Provider:
    """The provider whose wire has that name."""
    for provider in PROVIDERS:
        if provider.wire == wire:
            return provider
    raise UsageError(f"expected one of the wires {', '.join(WIRES)}, got {wire!r}")


def provider_at(path: str, method: str = "POST") -> Provider | None:
    """The provider whose requests go to such a path; None if there is none."""
    path = path.rstrip("/")
    return next((provider for provider in PROVIDERS if provider.is_at(path, method)), None)
