"""Gemini's Interactions API: named events, one step after another; a call's arguments are text."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from callstream.testing.encoders.encoder import argument_text, named_event
from callstream.testing.encoders.gemini import GoogleEncoder
from callstream.testing.script import Failure, Text, Thought, ToolCall

_MOMENT = "2026-05-15T18:52:03Z"


class GeminiInteractionsEncoder(GoogleEncoder):
    """A call's signature is that of the thought before it, so it comes as a separate thought step."""

    model = "gemini-3-flash-preview"
    path = re.compile(r"/interactions$")
    resumed_path = re.compile(r"/interactions/[^/]+$")
    place = "/v1beta/interactions"
    ends = ("completed", "requires_action", "incomplete")

    def begin(self) -> Iterator[bytes]:
        yield _event("interaction.created", interaction=self._interaction())
        yield _event("interaction.status_update", interaction_id=self._id, status="in_progress")

    def text(self, step: Text) -> Iterator[bytes]:
        yield self._start({"type": "model_output"})
        self.content[-1]["content"] = [{"type": "text", "text": step.text}]
        for piece in self.pieces(step.text, step.size):
            yield self._delta(type="text", text=piece)
        yield self._stop()

    def thought(self, step: Thought) -> Iterator[bytes]:
        yield self._start({"type": "thought"})
        made_up = base64.b64encode(b"thought %d of %d" % (len(self.content), self.response_number)).decode()
        signature = step.signature or made_up
        self.content[-1] |= {"summary": [{"type": "text", "text": step.text}], "signature": signature}
        for piece in self.pieces(step.text, step.size):
            yield self._delta(type="thought_summary", content={"type": "text", "text": piece})
        yield self._delta(type="thought_signature", signature=signature)
        yield self._stop()

    def call(self, call: ToolCall) -> Iterator[bytes]:
        if call.signature:
            yield self._start({"type": "thought"})
            self.content[-1]["signature"] = call.signature
            yield self._delta(type="thought_signature", signature=call.signature)
            yield self._stop()
        text = argument_text(call)
        args = self.parsed(text) if call.carrying == "first" else {}
        yield self._start({**self.named(call, "fc_"), "type": "function_call", "name": call.name, "arguments": args})
        pieces = self.argument_pieces(call, text)
        for piece in {None: pieces, "first": [], "last": [text]}[call.carrying]:
            yield self._delta(type="arguments_delta", arguments=piece)
        if call.stop_after is None:
            self.content[-1]["arguments"] = self.parsed(text)
            yield self._stop()

    def failure(self, step: Failure) -> Iterator[bytes]:
        yield _event("error", error={"code": step.kind or "unavailable", "message": step.message})

    def finish(self) -> Iterator[bytes]:
        yield _event("interaction.completed", interaction=self._interaction() | self._end())
        yield b"event: done\ndata: [DONE]\n\n"

    def whole(self) -> Any:
        return self._interaction() | self._end() | {"steps": self.content}

    @property
    def _id(self) -> str:
        return f"v1_{self.response_number}"

    def _interaction(self) -> dict[str, Any]:
        status = self.finish_reason or "in_progress"
        return {"id": self._id, "status": status, "object": "interaction", "model": self.model_name}

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
        self.content.append(dict(step))
        return _event("step.start", index=len(self.content) - 1, step=step)

    def _delta(self, **delta: Any) -> bytes:
        return _event("step.delta", index=len(self.content) - 1, delta=delta)

    def _stop(self) -> bytes:
        return _event("step.stop", index=len(self.content) - 1)


def _event(name: str, **fields: Any) -> bytes:
    return named_event(name, {**fields, "event_type": name})
