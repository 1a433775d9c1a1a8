"""OpenAI chat completions: ``POST /v1/chat/completions``, and the many servers that speak it in their own way.

Mistral's agents speak it at ``/v1/agents/completions``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from callstream.wire.openai_chat import requests
from callstream.wire.openai_chat.collapsing import OpenAIChatCollapser
from callstream.wire.openai_chat.decoding import OpenAIChatDecoder
from callstream.wire.openai_chat.joining import OpenAIChatJoint
from callstream.wire.provider import Provider
from callstream.wire.requests import Asks, Notes, RefusedCall, Request, Turn, all_tools, note_text
from callstream.wire.whole import IsLeftOut


class OpenAIChat(Provider):
    wire = "openai_chat"
    path = re.compile(r"/(?:chat|agents)/completions$")
    decoder = OpenAIChatDecoder
    collapser = OpenAIChatCollapser
    joint = OpenAIChatJoint
    pieces_field = re.compile(rb"tool_stream|eager_input_streaming")

    def turns(self, body: bytes) -> Iterator[Turn]:
        return requests.read_turns(body)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return requests.declared_functions(request)

    def offered_names(self, request: Request) -> tuple[str, ...]:
        return requests.offered_names(request)

    def ask_for_pieces(self, request: Request, asks: Asks = all_tools) -> Request:
        return requests.ask_for_pieces(request, asks)

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        return requests.add_note(request, note_text(notes))

    def ask_again(self, request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
        return requests.ask_again(request, said, refused)

    def restore(self, request: Request, refused: Sequence[RefusedCall]) -> list[RefusedCall]:
        return [call for call in refused if requests.restore(request, call)]

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        for choice in answer["choices"]:
            message = choice.get("message") or {}
            if message.get("tool_calls"):
                message["tool_calls"] = [entry for entry in message["tool_calls"] if not is_left_out()]
                if not message["tool_calls"]:
                    del message["tool_calls"]
            if message.get("function_call") is not None and is_left_out():
                del message["function_call"]
