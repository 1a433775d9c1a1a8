"""OpenAI's Responses API: every output item is added, grows and is done; the last event holds all of them again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from callstream.testing.encoders.encoder import CREATED, OpenAIEncoder, argument_text, named_event
from callstream.testing.script import Failure, Text, Thought, ToolCall

_FIELDS = {"function_call": "arguments", "custom_tool_call": "input"}


class OpenAIResponsesEncoder(OpenAIEncoder):
    model = "gpt-5-2025-08-07"
    path = re.compile(r"/responses$")
    place = "/v1/responses"
    resumed_path = re.compile(r"/responses/[^/]+$")
    has_custom = True
    ends = ("completed", "completed", "max_output_tokens")

    def __init__(self, model: str | None, first_id: int) -> None:
        super().__init__(model, first_id)
        self._sequence_number = 0
        self._open: set[int] = set()
        self._state: dict[str, Any] = {"status": "in_progress"}

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response())
        yield self._event("response.in_progress", response=self._response())

    def text(self, step: Text) -> Iterator[bytes]:
        index = self._add("msg", {"type": "message", "status": "in_progress", "content": [], "role": "assistant"})
        item_id = self.content[index]["id"]
        place = {"item_id": item_id, "output_index": index, "content_index": 0}
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        yield self._added(index)
        yield self._event("response.content_part.added", **place, part=part)
        for piece in self.pieces(step.text, step.size):
            yield self._event("response.output_text.delta", **place, delta=piece, logprobs=[], **_padding(piece))
        part = part | {"text": step.text}
        yield self._event("response.output_text.done", **place, text=step.text, logprobs=[])
        yield self._event("response.content_part.done", **place, part=part)
        yield self._done(index, status="completed", content=[part])

    def thought(self, step: Thought) -> Iterator[bytes]:
        item: dict[str, Any] = {"type": "reasoning", "summary": []}
        if step.signature is not None:
            item["encrypted_content"] = step.signature
        index = self._add("rs", item)
        place = {"item_id": self.content[index]["id"], "output_index": index, "summary_index": 0}
        part = {"type": "summary_text", "text": step.text}
        yield self._added(index)
        yield self._event("response.reasoning_summary_part.added", **place, part=part | {"text": ""})
        for piece in self.pieces(step.text, step.size):
            yield self._event("response.reasoning_summary_text.delta", **place, delta=piece, **_padding(piece))
        yield self._event("response.reasoning_summary_text.done", **place, text=step.text)
        yield self._event("response.reasoning_summary_part.done", **place, part=part)
        yield self._done(index, summary=[part])

    def call(self, call: ToolCall) -> Iterator[bytes]:
        kind, prefix = ("custom_tool_call", "ctc") if call.custom else ("function_call", "fc")
        key = _FIELDS[kind]
        named = self.named(call, "call_", "call_id")
        namespace = {} if call.namespace is None or call.custom else {"namespace": call.namespace}
        fields = {"type": kind, "status": "in_progress", key: "", **named, "name": call.name, **namespace}
        index = self._add(prefix, fields)
        item = self.content[index]
        pieces = self.argument_pieces(call, argument_text(call))
        if call.carrying == "first":
            item[key] = "".join(pieces)
        yield self._added(index)
        self._open.add(index)
        deltas = {None: pieces, "first": [], "last": pieces[:-1]}[call.carrying]
        for piece in deltas if call.streamed else []:  # servers that do not stream arguments send only their end
            place = {"item_id": item["id"], "output_index": index}
            yield self._event(f"response.{kind}_{key}.delta", **place, delta=piece, **_padding(piece))
        item[key] = "".join(pieces)
        if call.stop_after is None:
            yield from self._end_call(index, "completed")

    def _end_call(self, index: int, status: str) -> Iterator[bytes]:
        item = self.content[index]
        key = _FIELDS[item["type"]]
        self._open.remove(index)
        yield self._event(
            f"response.{item['type']}_{key}.done", **{key: item[key]}, item_id=item["id"], output_index=index
        )
        yield self._done(index, status=status)

    def failure(self, step: Failure) -> Iterator[bytes]:
        code = step.kind or "server_error"
        yield self._event("error", code=code, message=step.message, param=None)
        self._state = {"status": "failed", "error": {"code": code, "message": step.message}}
        yield self._event("response.failed", response=self._response())

    def finish(self) -> Iterator[bytes]:
        for index in sorted(self._open):
            yield from self._end_call(index, "incomplete")
        if self.finish_reason == "completed":
            self._state = {"status": "completed", "completed_at": CREATED + 1}
            yield self._event("response.completed", response=self._response())
        else:
            self._state = {"status": "incomplete", "incomplete_details": {"reason": self.finish_reason}}
            yield self._event("response.incomplete", response=self._response())

    def whole(self) -> Any:
        return self._response()

    def _add(self, prefix: str, item: dict[str, Any]) -> int:
        """Gives an item its id and its place in the output."""
        index = len(self.content)
        self.content.append({"id": f"{prefix}_{self.response_number}_{index}", **item})
        return index

    def _added(self, index: int) -> bytes:
        return self._event("response.output_item.added", item=self.content[index], output_index=index)

    def _done(self, index: int, **fields: Any) -> bytes:
        self.content[index] |= fields
        return self._event("response.output_item.done", item=self.content[index], output_index=index)

    def _event(self, name: str, **fields: Any) -> bytes:
        payload = {"type": name, **fields, "sequence_number": self._sequence_number}
        self._sequence_number += 1
        return named_event(name, payload)

    def _response(self) -> dict[str, Any]:
        running = self._state["status"] == "in_progress"
        return {
            "id": f"resp_{self.response_number}",
            "object": "response",
            "created_at": CREATED,
            "status": "in_progress",
            "background": False,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "max_tool_calls": None,
            "model": self.model_name,
            "output": [] if running else self.content,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "safety_identifier": None,
            "service_tier": "auto" if running else "default",
            "store": False,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None if running else self._usage(),
            "user": None,
            "metadata": {},
            **self._state,
        }

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": 25,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 25 + self.output_tokens,
        }


def _padding(delta: str) -> dict[str, str]:
    """The API pads deltas, so that their length on the network does not reveal their content."""
    return {"obfuscation": "0123456789abcdef"[len(delta) % 16 :]}
