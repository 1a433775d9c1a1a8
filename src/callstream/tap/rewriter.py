"""Rewriters by wire: a provider's streamed response in, the same response out with each collapsed call whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from callstream.tap.anthropic import AnthropicRewriter
from callstream.tap.gemini import GeminiRewriter
from callstream.tap.openai_chat import OpenAIChatRewriter
from callstream.tap.openai_responses import OpenAIResponsesRewriter
from callstream.tap.order import Output
from callstream.tap.order import Rewriter as _Rewriter
from callstream.wire import Decoder

__all__ = ["Output", "Rewriter", "rewriter_for"]

Rewriter: TypeAlias = _Rewriter[Any]

_REWRITERS: dict[str, type[Rewriter]] = {
    "gemini": GeminiRewriter,
    "anthropic": AnthropicRewriter,
    "openai_chat": OpenAIChatRewriter,
    "openai_responses": OpenAIResponsesRewriter,
}


def rewriter_for(decoder: Decoder[Any], *, collapse: Callable[[str], bool] | None, stored: bool = False) -> Rewriter:
    """The rewriter of the response that this decoder reads.

    ``collapse`` says by name which calls are to arrive whole; with None nothing is touched, and reasoning is not held
    either, so it is to be preferred where no tool of the request would be. ``stored``: the server keeps the response.
    """
    return _REWRITERS[decoder.wire](decoder, collapse=collapse, stored=stored)
