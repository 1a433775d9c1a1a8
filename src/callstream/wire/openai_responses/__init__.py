"""OpenAI Responses: ``POST /v1/responses``, and the servers that speak it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from callstream.wire.openai_responses.collapsing import OpenAIResponsesCollapser
from callstream.wire.openai_responses.decoding import CALL_ITEMS, OpenAIResponsesDecoder
from callstream.wire.openai_responses.joining import OpenAIResponsesJoint
from callstream.wire.openai_responses.requests import ask_again, read_turns, restore, without_lone_reasoning
from callstream.wire.provider import Provider
from callstream.wire.requests import Notes, RefusedCall, Request, Turn, note_text, objects_in, schemas
from callstream.wire.thoughts import LoneReasoning
from callstream.wire.whole import IsLeftOut, kept


class OpenAIResponses(Provider):
    wire = "openai_responses"
    path = re.compile(r"/responses$")
    decoder = OpenAIResponsesDecoder
    collapser = OpenAIResponsesCollapser
    joint = OpenAIResponsesJoint

    def turns(self, body: bytes) -> Iterator[Turn]:
        return read_turns(body)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return schemas((tool, tool.get("parameters")) for tool in objects_in(request.fields.get("tools")))

    def offered_names(self, request: Request) -> tuple[str, ...]:
        """Those of namespaces too. A search for tools may find any others."""
        tools = objects_in(request.fields.get("tools"))
        if any(tool.get("type") == "tool_search" for tool in tools):
            return ()
        inner = [each for tool in tools if tool.get("type") == "namespace" for each in objects_in(tool.get("tools"))]
        return tuple({**self.declared_tools(request), **schemas((each, None) for each in inner)})

    def is_stored(self, request: Request) -> bool:
        fields = request.fields
        return fields.get("store") is not False or bool(
            fields.get("previous_response_id") or fields.get("conversation")
        )

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        """A message of the user's. Where the server's own copy is continued, the calls are in it and need an output."""
        fields = request.fields
        said = fields.get("input")
        items = [{"role": "user", "content": said}] if isinstance(said, str) else said
        if not isinstance(items, list) or not items:
            return None
        if fields.get("previous_response_id") or fields.get("conversation"):
            kind = "function_call_output"
            outputs = [{"type": kind, "call_id": wire_id, "output": text} for wire_id, text in notes.items()]
            fields["input"] = [*outputs, *items]
        else:
            fields["input"] = [*items, {"role": "user", "content": note_text(notes)}]
        return request.rewritten()

    def ask_again(self, request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
        return ask_again(request, said, refused)

    def restore(self, request: Request, refused: Sequence[RefusedCall]) -> list[RefusedCall]:
        return [call for call in refused if restore(request, call)]

    def without_lone_reasoning(self, request: Request, lone: LoneReasoning) -> Request:
        return without_lone_reasoning(request, lone)

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        answer["output"] = list(
            kept(
                answer["output"],
                is_left_out=lambda item: item.get("type") in CALL_ITEMS and is_left_out(),
                is_reasoning=lambda item: item.get("type") == "reasoning" and not stored,
            )
        )
