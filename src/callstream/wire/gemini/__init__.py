"""Gemini ``streamGenerateContent`` and ``generateContent``, on AI Studio and on Vertex."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from callstream.wire.gemini import requests
from callstream.wire.gemini.collapsing import GeminiCollapser
from callstream.wire.gemini.decoding import GeminiDecoder
from callstream.wire.gemini.joining import GeminiJoint
from callstream.wire.gemini.requests import SIGNATURE
from callstream.wire.provider import AnswerKind, Provider
from callstream.wire.requests import Asks, KnownSignature, Notes, RefusedCall, Request, Turn, all_tools, note_text
from callstream.wire.whole import IsLeftOut


class Gemini(Provider):
    wire = "gemini"
    path = re.compile(r":(?:streamGenerateContent|generateContent)$")
    decoder = GeminiDecoder
    collapser = GeminiCollapser
    joint = GeminiJoint
    signs_calls = True
    pieces_field = re.compile(rb"stream_?function_?call_?arguments", re.IGNORECASE)

    def turns(self, body: bytes) -> Iterator[Turn]:
        return requests.read_turns(body)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return requests.declared_tools(request)

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

    def sign(self, request: Request, known: KnownSignature) -> Request:
        return requests.sign(request, known)

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith(":streamGenerateContent")

    def answer_kind(self, request: Request, status: int, content_type: str) -> AnswerKind | None:
        kind = super().answer_kind(request, status, content_type)
        # Without alt=sse the stream is a JSON array.
        return "stream" if kind == "whole" and self.is_streamed(request) else kind

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        """A signature moves to the next call."""
        for candidate in answer.get("candidates") or ():
            content = candidate.get("content") or {}
            moved = None
            parts = []
            for part in content.get("parts") or ():
                if "functionCall" in part:
                    if is_left_out():
                        moved = moved or part.get(SIGNATURE)
                        continue
                    if moved is not None:
                        part.setdefault(SIGNATURE, moved)
                        moved = None
                parts.append(part)
            if "parts" in content:
                content["parts"] = parts
