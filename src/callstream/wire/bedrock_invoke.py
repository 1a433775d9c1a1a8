"""Amazon Bedrock, InvokeModel: ``POST /model/{id}/invoke-with-response-stream`` and ``/invoke``, for Anthropic's models.

Each chunk of the AWS event stream holds one event of Anthropic's Messages wire; requests and whole answers are those of
Messages, too. The path does not say whose model answers, and each maker has a format of its own; Anthropic's requests are
recognised by their ``anthropic_version``. Answers to all others pass unread.
"""

from __future__ import annotations

import re
from typing import Any

from callstream.wire.anthropic import Anthropic, AnthropicDecoder, add_beta
from callstream.wire.eventstream import CONTENT_TYPE, ChunkFraming
from callstream.wire.framing import Framing
from callstream.wire.provider import AnswerKind
from callstream.wire.requests import Asks, Request, all_tools


class BedrockInvokeDecoder(AnthropicDecoder):
    wire = "bedrock_invoke"

    def _framing(self) -> Framing:
        return ChunkFraming()


class BedrockInvoke(Anthropic):
    wire = "bedrock_invoke"
    path = re.compile(r"/model/.+/invoke(?:-with-response-stream)?$")
    decoder = BedrockInvokeDecoder
    joint = None  # its frames are not server-sent events
    stream_types = (CONTENT_TYPE,)
    pieces_field = re.compile(rb"invalid beta flag|fine-grained-tool-streaming")

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return super().declared_tools(request) if _is_anthropic(request) else {}

    def ask_for_pieces(self, request: Request, asks: Asks = all_tools) -> Request:
        return request  # Bedrock refuses the field by which Anthropic's own API is asked

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith("/invoke-with-response-stream")

    def ask_by_beta(self, request: Request, asks: Asks = all_tools) -> Request:
        names = self.declared_tools(request)
        if not names or not all(map(asks, names)) or not add_beta(request.fields):
            return request
        return request.rewritten()

    def answer_kind(self, request: Request, status: int, content_type: str) -> AnswerKind | None:
        return super().answer_kind(request, status, content_type) if _is_anthropic(request) else None


def _is_anthropic(request: Request) -> bool:
    return "anthropic_version" in request.fields
