"""OpenAI's Chat Completions: unnamed events, a chunk with the role first, usage and ``[DONE]`` last.

Thoughts are ``reasoning_content``, as the compatible servers that show them send them; a call's signature is where
Gemini's compatible endpoint puts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from callstream.testing.encoders.encoder import CREATED, OpenAIEncoder, argument_text
from callstream.testing.script import Text, Thought, ToolCall


class OpenAIChatEncoder(OpenAIEncoder):
    model = "gpt-4o-mini-2024-07-18"
    path = re.compile(r"/(?:chat|agents)/completions$")
    place = "/v1/chat/completions"
    ends = ("stop", "tool_calls", "length")

    def __init__(self, model: str | None, first_id: int) -> None:
        super().__init__(model, first_id)
        self._begun = False
        self._text = ""
        self._reasoning = ""
        self._held: list[dict[str, Any]] = []
        """Pieces that the next chunk carries in addition to its own."""

    def text(self, step: Text) -> Iterator[bytes]:
        yield from self._role("")
        self._text += step.text
        for piece in self.pieces(step.text, step.size):
            yield self._chunk({"content": piece})

    def thought(self, step: Thought) -> Iterator[bytes]:
        yield from self._role("")
        self._reasoning += step.text
        for piece in self.pieces(step.text, step.size):
            yield self._chunk({"reasoning_content": piece})

    def calls(self, calls: Sequence[ToolCall]) -> Iterator[bytes]:
        yield from self._role(None)
        yield from super().calls(calls)

    def call(self, call: ToolCall) -> Iterator[bytes]:
        pieces = self.argument_pieces(call, argument_text(call))
        function = {"name": call.name, "arguments": "".join(pieces)}
        entry: dict[str, Any] = {**self.named(call, "call_"), "type": "function", "function": function}
        if call.signature is not None:
            entry["extra_content"] = {"google": {"thought_signature": call.signature}}
        index = len(self.tool_calls)
        self.tool_calls.append(entry)
        at_once = len(pieces) if not call.streamed else 1 if call.carrying == "first" else 0
        head = {"index": index, **entry, "function": function | {"arguments": "".join(pieces[:at_once])}}
        later = [{"index": index, "function": {"arguments": piece}} for piece in pieces[at_once:]]
        held = [later.pop()] if later and call.carrying == "last" else []
        for part in [head, *later]:
            yield self._chunk({"tool_calls": [part]})
        self._held += held

    def finish(self) -> Iterator[bytes]:
        yield from self._role("")
        yield self._chunk({}, self.finish_reason)
        yield self.framed(self._envelope("chat.completion.chunk", [], self._usage()))
        yield b"data: [DONE]\n\n"

    def whole(self) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": self._text or None}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        message |= {"refusal": None, "annotations": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
        return self._envelope("chat.completion", [choice], self._usage())

    def _role(self, content: str | None) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            yield self._chunk({"role": "assistant", "content": content, "refusal": None})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        if self._held:
            delta = delta | {"tool_calls": [*self._held, *delta.get("tool_calls", ())]}
            self._held = []
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self.framed(self._envelope("chat.completion.chunk", [choice], None))

    def _envelope(self, kind: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.response_number}",
            "object": kind,
            "created": CREATED,
            "model": self.model_name,
            "service_tier": "default",
            "system_fingerprint": "fp_callstream",
            "choices": choices,
            "usage": usage,
        }

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": 25,
            "completion_tokens": self.output_tokens,
            "total_tokens": 25 + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }
