"""OpenAI chat completions: ``POST /v1/chat/completions``, and the many servers that speak it in their own way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from callstream.wire.collapsing import IsLeftOut
from callstream.wire.openai_chat.collapsing import OpenAIChatCollapser
from callstream.wire.openai_chat.decoding import OpenAIChatDecoder
from callstream.wire.openai_chat.requests import declared_functions, read_turns
from callstream.wire.provider import Provider
from callstream.wire.requests import Request, Turn


class OpenAIChat(Provider):
    wire = "openai_chat"
    path = re.compile(r"/chat/completions$")
    decoder = OpenAIChatDecoder
    collapser = OpenAIChatCollapser

    def turns(self, body: bytes) -> Iterator[Turn]:
        return read_turns(body)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return declared_functions(request)

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        for choice in answer["choices"]:
            message = choice.get("message") or {}
            if message.get("tool_calls"):
                message["tool_calls"] = [entry for entry in message["tool_calls"] if not is_left_out()]
                if not message["tool_calls"]:
                    del message["tool_calls"]
            if message.get("function_call") is not None and is_left_out():
                del message["function_call"]
