"""Provider wires: the bytes of a response in, events out; the body of a request in, its tool results out.

One module a wire, and everything that is peculiar to a provider is in its module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from callstream.errors import UsageError
from callstream.wire.anthropic import AnthropicDecoder
from callstream.wire.decoder import Decoder
from callstream.wire.gemini import GeminiDecoder
from callstream.wire.openai_chat import OpenAIChatDecoder
from callstream.wire.openai_responses import OpenAIResponsesDecoder
from callstream.wire.requests import results_in

__all__ = ["WIRES", "Decoder", "Wire", "decoder_for", "results_in"]

Wire: TypeAlias = Literal["gemini", "anthropic", "openai_chat", "openai_responses"]

_DECODERS: dict[str, type[Decoder[Any]]] = {
    decoder.wire: decoder for decoder in (GeminiDecoder, AnthropicDecoder, OpenAIChatDecoder, OpenAIResponsesDecoder)
}
WIRES: tuple[str, ...] = tuple(_DECODERS)


def decoder_for(
    wire: str,
    *,
    new_id: Callable[[], str] | None = None,
    tools: Mapping[str, dict[str, Any]] | None = None,
) -> Decoder[Any]:
    """A fresh decoder for one response of the wire.

    ``new_id`` mints ids for calls to which the provider gave none (default: ``call_1``, ``call_2``, …). ``tools`` maps
    the names of the request's tools to their JSON Schemas: with them Gemini's empty arrays and nameless calls can be
    told.
    """
    try:
        decoder = _DECODERS[wire]
    except KeyError:
        raise UsageError(f"expected one of the wires {', '.join(WIRES)}, got {wire!r}") from None
    return decoder(new_id=new_id, tools=tools)
