"""Ollama's chat: JSON lines; calls come whole, one per line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from callstream.codec import encode_line
from callstream.errors import UsageError
from callstream.testing.encoders.encoder import Encoder, Form
from callstream.testing.script import Text, Thought, ToolCall

_MOMENT = "2026-08-05T08:10:56.372032Z"


class OllamaEncoder(Encoder):
    """A call that never ends is not sent at all: the server holds a call back until it is whole."""

    model = "qwen3:4b"
    path = re.compile(r"/api/chat$")
    place = "/api/chat"
    upstream = "http://127.0.0.1:11434"
    variables = ("OLLAMA_HOST",)
    credentials = (("OLLAMA_API_KEY", "none"),)
    stream_type = "application/x-ndjson"
    streams_arguments = False
    ends = ("stop", "stop", "length")

    @classmethod
    def form_of(cls, verb: str, query: Mapping[str, str], fields: Mapping[str, Any]) -> Form:
        return "whole" if fields.get("stream") is False else "events"

    def __init__(self, model: str | None, first_id: int) -> None:
        super().__init__(model, first_id)
        self._message: dict[str, Any] = {"role": "assistant", "content": ""}

    def text(self, step: Text) -> Iterator[bytes]:
        self._message["content"] += step.text
        for piece in self.pieces(step.text, step.size):
            yield self._line(content=piece)

    def thought(self, step: Thought) -> Iterator[bytes]:
        self._message["thinking"] = self._message.get("thinking", "") + step.text
        for piece in self.pieces(step.text, step.size):
            yield self._line(thinking=piece)

    def call(self, call: ToolCall) -> Iterator[bytes]:
        if call.text is not None or not isinstance(call.args, dict):
            raise UsageError(f"the wire 'ollama' has arguments as an object, not as text: {call!r:.80}")
        if call.stop_after is not None:
            return
        self.sent += len(str(call.args))
        function = {"index": len(self.tool_calls), "name": call.name, "arguments": call.args}
        entry = {**self.named(call, "call_"), "function": function}
        self.tool_calls.append(entry)
        yield self._line(tool_calls=[entry])

    def framed(self, payload: Any) -> bytes:
        return encode_line(payload) + b"\n"

    def finish(self) -> Iterator[bytes]:
        yield self.framed(self._answer({"role": "assistant", "content": ""}))

    def whole(self) -> Any:
        return self._answer(self._message | ({"tool_calls": self.tool_calls} if self.tool_calls else {}))

    def error_body(self, status: int, kind: str, message: str) -> Any:
        return {"error": message}

    def _line(self, **message: Any) -> bytes:
        said = {"role": "assistant", "content": "", **message}
        return self.framed({"model": self.model_name, "created_at": _MOMENT, "message": said, "done": False})

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self.model_name,
            "created_at": _MOMENT,
            "message": message,
            "done": True,
            "done_reason": self.finish_reason,
            "total_duration": 7_577_982_042,
            "load_duration": 58_847_000,
            "prompt_eval_count": 25,
            "prompt_eval_duration": 707_514_083,
            "eval_count": self.output_tokens,
            "eval_duration": 6_286_536_118,
        }
