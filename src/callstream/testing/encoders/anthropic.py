"""Anthropic's Messages API: named events, one content block after another, ``message_start`` to ``message_stop``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from callstream.errors import UsageError
from callstream.testing.encoders.encoder import (
    Carrying,
    Encoder,
    Form,
    argument_text,
    dumps,
    numbers_of,
    payload_of,
    refuse_custom,
    with_payload,
)
from callstream.testing.script import Failure, HttpError, Text, Thought, ToolCall

_SPACED = (", ", ": ")  # the model's own habit
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicEncoder(Encoder):
    model = "claude-sonnet-5-5-20250929"
    path = re.compile(
        r"/messages$|/publishers/anthropic/models/(?P<model>[^/:]+):(?P<verb>streamRawPredict|rawPredict)$"
    )
    place = "/v1/messages"
    upstream = "https://api.anthropic.com"
    variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_BASE_URL",)
    credentials: ClassVar[tuple[tuple[str, str | None], ...]] = (("ANTHROPIC_API_KEY", "none"),)
    request_id = "request-id"
    failure_status = 529

    @classmethod
    def carry(cls, frames: list[bytes], carrying: Carrying) -> list[bytes]:
        """First: no empty delta comes before the first of the text. Last: one delta has all of the first call's text."""
        if carrying == "first":
            empty = numbers_of(frames, '"partial_json":""')[0]
            return [*frames[:empty], *frames[empty + 1 :]]
        end = numbers_of(frames, "content_block_stop")[0]
        deltas = [number for number in numbers_of(frames, "input_json_delta") if number < end]
        payload = payload_of(frames[deltas[-1]])
        payload["delta"]["partial_json"] = "".join(
            payload_of(frames[number])["delta"]["partial_json"] for number in deltas
        )
        return [*frames[: deltas[0]], with_payload(frames[deltas[-1]], payload), *frames[end:]]

    @classmethod
    def form_of(cls, verb: str | None, query: Mapping[str, str], fields: Mapping[str, Any]) -> Form:
        return "events" if verb == "streamRawPredict" else super().form_of(verb, query, fields)

    def __init__(self, model: str | None, first_id: int) -> None:
        super().__init__(model, first_id)
        self._content: list[dict[str, Any]] = []
        self._open = False
        self._stop_reason: str | None = None
        self._malformed: str | None = None

    def begin(self) -> Iterator[bytes]:
        yield _event("message_start", message=self._message(1))

    def text(self, step: Text) -> Iterator[bytes]:
        yield from self._start({"type": "text", "text": ""})
        for piece in self.pieces(step.text, step.size):
            yield self._delta(type="text_delta", text=piece)
        self._content[-1]["text"] = step.text
        yield self._stop()

    def thought(self, step: Thought) -> Iterator[bytes]:
        signature = step.signature or f"sig_{self.response_number}_{len(self._content)}"
        yield from self._start({"type": "thinking", "thinking": "", "signature": ""})
        for piece in self.pieces(step.text, step.size):
            yield self._delta(type="thinking_delta", thinking=piece)
        yield self._delta(type="signature_delta", signature=signature)
        self._content[-1] |= {"thinking": step.text, "signature": signature}
        yield self._stop()

    def calls(self, calls: Sequence[ToolCall]) -> Iterator[bytes]:
        for call in calls:
            yield from self._call(call)

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        refuse_custom(call, "anthropic")
        text = argument_text(call, _SPACED)
        call_id = self.call_id(call, "toolu_")
        block = {"type": "tool_use", "id": call_id, "name": call.name, "input": {}, "caller": {"type": "direct"}}
        if call_id is None:
            del block["id"]
        pieces = self.argument_pieces(call, text)
        args = _parsed(text)
        if not call.streamed and call.stop_after is None and args is not None:
            # A call that came whole has its input in the start of its block, and no delta.
            yield from self._start(block | {"input": args})
            yield self._stop()
            return
        yield from self._start(block)
        for piece in ["", *pieces]:
            yield self._delta(type="input_json_delta", partial_json=piece)
        if call.stop_after is None:
            self._content[-1]["input"] = args
            self._malformed = text if args is None else self._malformed
            yield self._stop()

    def failure(self, step: Failure) -> Iterator[bytes]:
        error = self.error(step)
        yield _event("error", **{key: value for key, value in error.items() if key != "type"})

    def finish(self, reason: str | None) -> Iterator[bytes]:
        if self._open:  # the API ends a block that ran out of tokens as it ends any other
            yield self._stop()
        called = any(block["type"] == "tool_use" for block in self._content)
        words = {None: "tool_use" if called else "end_turn", "length": "max_tokens"}
        self._stop_reason = words.get(reason, reason)
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None, "stop_details": None}
        usage = _usage(self.output_tokens)
        del usage["cache_creation"], usage["service_tier"]
        yield _event("message_delta", delta=delta, usage=usage)
        yield _event("message_stop")

    def whole(self) -> Any:
        if self._malformed is not None:
            raise UsageError(f"a whole anthropic answer cannot carry text that is not JSON: {self._malformed!r:.80}")
        return self._message(self.output_tokens) | {"content": self._content}

    def error(self, step: Failure) -> Any:
        kind = step.kind or "overloaded_error"
        request_id = f"req_{self.response_number}"
        return {"type": "error", "error": {"type": kind, "message": step.message}, "request_id": request_id}

    def refusal(self, step: HttpError) -> Any:
        return self.error(Failure(step.message, step.kind or _KINDS.get(step.status, "api_error")))

    def _message(self, output_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model_name,
            "id": f"msg_{self.response_number}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": self._stop_reason,
            "stop_sequence": None,
            "stop_details": None,
            "usage": _usage(output_tokens),
        }

    def _start(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield _event("content_block_start", index=len(self._content), content_block=block)
        if not self._content:
            yield b'event: ping\ndata: {"type": "ping"}\n\n'
        self._content.append(dict(block))
        self._open = True

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=len(self._content) - 1, delta=delta)

    def _stop(self) -> bytes:
        self._open = False
        return _event("content_block_stop", index=len(self._content) - 1)


def _usage(output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": 25,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {dumps({'type': name, **fields})}\n\n".encode()


def _parsed(text: str) -> Any:
    """The input as a whole answer holds it; None for text that is not JSON, which only a stream can carry."""
    try:
        return json.loads(text)
    except ValueError:
        return None
