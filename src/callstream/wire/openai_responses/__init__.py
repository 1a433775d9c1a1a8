"""OpenAI Responses: ``POST /v1/responses``, and the servers that speak it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from callstream.wire.collapsing import IsLeftOut, kept
from callstream.wire.openai_responses.collapsing import OpenAIResponsesCollapser
from callstream.wire.openai_responses.decoding import CALL_ITEMS, OpenAIResponsesDecoder
from callstream.wire.openai_responses.requests import read_turns
from callstream.wire.provider import Provider
from callstream.wire.requests import Request, Turn, objects_in, schemas


class OpenAIResponses(Provider):
    wire = "openai_responses"
    path = re.compile(r"/responses$")
    decoder = OpenAIResponsesDecoder
    collapser = OpenAIResponsesCollapser

    def turns(self, body: bytes) -> Iterator[Turn]:
        return read_turns(body)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return schemas((tool, tool.get("parameters")) for tool in objects_in(request.fields.get("tools")))

    def is_stored(self, request: Request) -> bool:
        fields = request.fields
        return fields.get("store") is not False or bool(
            fields.get("previous_response_id") or fields.get("conversation")
        )

    def add_note(self, request: Request, text: str) -> Request | None:
        said = request.fields.get("input")
        if isinstance(said, str):
            request.fields["input"] = f"{said}\n\n{text}"
        elif isinstance(said, list) and said:
            request.fields["input"] = [*said, {"role": "user", "content": text}]
        else:
            return None
        return request.rewritten()

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        answer["output"] = list(
            kept(
                answer["output"],
                is_left_out=lambda item: item.get("type") in CALL_ITEMS and is_left_out(),
                is_reasoning=lambda item: item.get("type") == "reasoning" and not stored,
            )
        )
