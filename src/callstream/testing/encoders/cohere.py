"""Cohere's Chat API, version 2: named events; contents and calls are numbered separately."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from callstream.testing.encoders.encoder import Encoder, argument_text, named_event
from callstream.testing.script import Failure, Text, Thought, ToolCall

_SPACED = (", ", ": ")  # the model's own habit


class CohereEncoder(Encoder):
    model = "command-a-03-2025"
    path = re.compile(r"/v2/chat$")
    place = "/v2/chat"
    upstream = "https://api.cohere.com"
    variables = ("CO_API_URL",)
    credentials = (("CO_API_KEY", "none"),)
    stream_type = "text/event-stream"
    request_id = "x-request-id"
    ends = ("COMPLETE", "TOOL_CALL", "MAX_TOKENS")

    def begin(self) -> Iterator[bytes]:
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        yield _event("message-start", id=self._id, delta={"message": message})

    def text(self, step: Text) -> Iterator[bytes]:
        return self._block("text", step)

    def thought(self, step: Thought) -> Iterator[bytes]:
        return self._block("thinking", step)

    def _block(self, kind: str, step: Text | Thought) -> Iterator[bytes]:
        index = len(self.content)
        self.content.append({"type": kind, kind: step.text})
        yield _event("content-start", index=index, delta={"message": {"content": {"type": kind, kind: ""}}})
        for piece in self.pieces(step.text, step.size):
            yield _event("content-delta", index=index, delta={"message": {"content": {kind: piece}}})
        yield _event("content-end", index=index)

    def call(self, call: ToolCall) -> Iterator[bytes]:
        index = len(self.tool_calls)
        text = argument_text(call, _SPACED)
        pieces = self.argument_pieces(call, text)
        function = {"name": call.name, "arguments": "".join(pieces)}
        entry: dict[str, Any] = {**self.named(call, f"{call.name}_"), "type": "function", "function": function}
        self.tool_calls.append(entry)
        at_once = 1 if call.carrying == "first" else 0
        head = entry | {"function": function | {"arguments": "".join(pieces[:at_once])}}
        yield _event("tool-call-start", index=index, delta={"message": {"tool_calls": head}})
        for piece in [text] if call.carrying == "last" else pieces[at_once:]:
            delta = {"message": {"tool_calls": {"function": {"arguments": piece}}}}
            yield _event("tool-call-delta", index=index, delta=delta)
        if call.stop_after is None:
            yield _event("tool-call-end", index=index)

    def failure(self, step: Failure) -> Iterator[bytes]:
        yield _event("message-end", delta={"finish_reason": "ERROR", "error": step.message, "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def finish(self) -> Iterator[bytes]:
        yield _event("message-end", delta={"finish_reason": self.finish_reason, "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def whole(self) -> Any:
        message: dict[str, Any] = {"role": "assistant"}
        if self.content:
            message["content"] = self.content
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return {
            "id": self._id,
            "finish_reason": self.finish_reason,
            "message": message,
            "usage": self._usage(),
        }

    def error_body(self, status: int, kind: str, message: str) -> Any:
        return {"id": self._id, "message": message}

    @property
    def _id(self) -> str:
        return f"chat-{self.response_number}"

    def _usage(self) -> dict[str, Any]:
        counted = {"input_tokens": 25, "output_tokens": self.output_tokens}
        return {"billed_units": counted, "tokens": counted, "cached_tokens": 0}


def _event(name: str, **fields: Any) -> bytes:
    return named_event(name, {"type": name, **fields})
