"""Amazon Bedrock, Converse: ``POST /model/{id}/converse-stream`` and ``/converse``, for the models of all makers.

Events of an AWS event stream, whose type is in the headers. A call is a content block whose start has a ``toolUse``;
``server_tool_use`` runs on the provider's side and is not a client call. Blocks are distinguished by ``contentBlockIndex``;
those of text and reasoning have no start. ``messageStop`` says how the message ended; ``metadata`` with the usage follows
it, or comes before it.

A guardrail, or the service that found the model's tool use malformed, objects to a call whose block was stopped before:
such a call does not count, even if its text parses. So the end of the last block is believed when anything else follows:
another block, the end of the message or of the body, or an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from callstream.wire.bedrock_converse import requests
from callstream.wire.bedrock_converse.collapsing import ConverseCollapser
from callstream.wire.bedrock_converse.decoding import ConverseDecoder
from callstream.wire.eventstream import CONTENT_TYPE
from callstream.wire.provider import Provider
from callstream.wire.requests import Asks, Notes, Request, Turn, all_tools
from callstream.wire.thoughts import LoneReasoning
from callstream.wire.whole import IsLeftOut, kept


class BedrockConverse(Provider):
    wire = "bedrock_converse"
    path = re.compile(r"/model/.+/converse(?:-stream)?$")
    decoder = ConverseDecoder
    collapser = ConverseCollapser
    stream_types = (CONTENT_TYPE,)
    pieces_field = re.compile(rb"invalid beta flag|fine-grained-tool-streaming")

    def turns(self, body: bytes) -> Iterator[Turn]:
        return requests.read_turns(body)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return requests.declared_tools(request)

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith("/converse-stream")

    def ask_by_beta(self, request: Request, asks: Asks = all_tools) -> Request:
        return requests.ask_by_beta(request, asks)

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        return requests.add_notes(request, notes)

    def without_lone_reasoning(self, request: Request, lone: LoneReasoning) -> Request:
        return requests.without_lone_reasoning(request, lone)

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        message = answer["output"]["message"]
        message["content"] = list(
            kept(
                message["content"],
                is_left_out=lambda block: _is_client_call(block.get("toolUse")) and is_left_out(),
                is_reasoning=lambda block: "reasoningContent" in block,
            )
        )


def _is_client_call(use: Any) -> bool:
    return isinstance(use, dict) and use.get("type") in (None, "tool_use")
