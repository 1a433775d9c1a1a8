"""Gemini's Interactions API: named events, one step after another; a call's arguments are text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from callstream.testing.encoders.encoder import (
    Carrying,
    Encoder,
    argument_text,
    merge_frames,
    named_event,
    numbers_of,
    payload_of,
    refuse_custom,
    with_payload,
)
from callstream.testing.encoders.gemini import KINDS
from callstream.testing.script import Failure, HttpError, Text, Thought, ToolCall

_MOMENT = "2026-05-15T18:52:03Z"


class GeminiInteractionsEncoder(Encoder):
    """A signature of a call is that of the thought before it, so it comes as a thought step of its own."""

    model = "gemini-3-flash-preview"
    path = re.compile(r"/interactions$")
    resumed_path = re.compile(r"/interactions/[^/]+$")
    place = "/v1beta/interactions"
    upstream = "https://generativelanguage.googleapis.com"
    variables = ("GOOGLE_GEMINI_BASE_URL",)
    credentials = (("GEMINI_API_KEY", "none"),)
    stream_type = "text/event-stream"
    failure_status = 503

    @classmethod
    def carry(cls, frames: list[bytes], carrying: Carrying) -> list[bytes]:
        """First: the step starts with all of its arguments, without deltas. Last: one delta has all of them."""
        start = numbers_of(frames, '"type":"function_call"')[0]
        end = next(number for number in numbers_of(frames, '"step.stop"') if number > start)
        while end - start > 2:
            frames = merge_frames(frames, start + 2, start + 1, _append_arguments)
            end -= 1
        if carrying == "last":
            return frames
        payload = payload_of(frames[start])
        payload["step"]["arguments"] = json.loads(payload_of(frames[start + 1])["delta"]["arguments"])
        return [*frames[:start], with_payload(frames[start], payload), *frames[end:]]

    def __init__(self, model: str | None, first_id: int) -> None:
        super().__init__(model, first_id)
        self._steps: list[dict[str, Any]] = []
        self._status = "in_progress"

    def begin(self) -> Iterator[bytes]:
        yield _event("interaction.created", interaction=self._interaction())
        yield _event("interaction.status_update", interaction_id=self._id, status=self._status)

    def text(self, step: Text) -> Iterator[bytes]:
        yield self._start({"type": "model_output"})
        self._steps[-1]["content"] = [{"type": "text", "text": step.text}]
        for piece in self.pieces(step.text, step.size):
            yield self._delta(type="text", text=piece)
        yield self._stop()

    def thought(self, step: Thought) -> Iterator[bytes]:
        yield self._start({"type": "thought"})
        made_up = base64.b64encode(b"thought %d of %d" % (len(self._steps), self.response_number)).decode()
        signature = step.signature or made_up
        self._steps[-1] |= {"summary": [{"type": "text", "text": step.text}], "signature": signature}
        for piece in self.pieces(step.text, step.size):
            yield self._delta(type="thought_summary", content={"type": "text", "text": piece})
        yield self._delta(type="thought_signature", signature=signature)
        yield self._stop()

    def calls(self, calls: Sequence[ToolCall]) -> Iterator[bytes]:
        for call in calls:
            if call.signature:
                yield self._start({"type": "thought"})
                self._steps[-1]["signature"] = call.signature
                yield self._delta(type="thought_signature", signature=call.signature)
                yield self._stop()
            yield from self._call(call)

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        refuse_custom(call, "gemini_interactions")
        text = argument_text(call)
        yield self._start({**self.named(call, "fc_"), "type": "function_call", "name": call.name, "arguments": {}})
        for piece in self.argument_pieces(call, text):
            yield self._delta(type="arguments_delta", arguments=piece)
        if call.stop_after is None:
            self._steps[-1]["arguments"] = self.parsed(text)
            yield self._stop()

    def failure(self, step: Failure) -> Iterator[bytes]:
        yield _event("error", error={"code": step.kind or "unavailable", "message": step.message})

    def finish(self, reason: str | None) -> Iterator[bytes]:
        called = any(step["type"] == "function_call" for step in self._steps)
        words = {None: "requires_action" if called else "completed", "length": "incomplete"}
        self._status = words.get(reason) or str(reason)
        yield _event("interaction.completed", interaction=self._interaction() | self._end())
        yield b"event: done\ndata: [DONE]\n\n"

    def whole(self) -> Any:
        self.refuse_malformed("a whole interaction")
        return self._interaction() | self._end() | {"steps": self._steps}

    def error(self, step: Failure) -> Any:
        return {"error": {"code": 503, "message": step.message, "status": step.kind or "UNAVAILABLE"}}

    def refusal(self, step: HttpError) -> Any:
        kind = step.kind or KINDS.get(step.status, "UNKNOWN")
        return {"error": {"code": step.status, "message": step.message, "status": kind}}

    @property
    def _id(self) -> str:
        return f"v1_{self.response_number}"

    def _interaction(self) -> dict[str, Any]:
        return {"id": self._id, "status": self._status, "object": "interaction", "model": self.model_name}

    def _end(self) -> dict[str, Any]:
        usage = {
            "total_tokens": 25 + self.output_tokens,
            "total_input_tokens": 25,
            "input_tokens_by_modality": [{"modality": "text", "tokens": 25}],
            "total_cached_tokens": 0,
            "total_output_tokens": self.output_tokens,
            "total_tool_use_tokens": 0,
            "total_thought_tokens": 0,
        }
        return {"usage": usage, "created": _MOMENT, "updated": _MOMENT, "service_tier": "standard"}

    def _start(self, step: dict[str, Any]) -> bytes:
        self._steps.append(dict(step))
        return _event("step.start", index=len(self._steps) - 1, step=step)

    def _delta(self, **delta: Any) -> bytes:
        return _event("step.delta", index=len(self._steps) - 1, delta=delta)

    def _stop(self) -> bytes:
        return _event("step.stop", index=len(self._steps) - 1)


def _event(name: str, **fields: Any) -> bytes:
    return named_event(name, {**fields, "event_type": name})


def _append_arguments(taken: dict[str, Any], into: dict[str, Any]) -> None:
    into["delta"]["arguments"] += taken["delta"]["arguments"]
