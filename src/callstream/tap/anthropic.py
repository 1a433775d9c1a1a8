"""Anthropic Messages: a whole call is its block's start and stop as they came, and one delta with all of its input.

A call whose input came in its start (programmatic calls, compatible servers) is given that form too: not every reader of
streams looks for it there, and one that does not would run the tool with nothing.

Thinking and redacted thinking are held until what follows is decided: a message that ends in thinking is refused when
it is sent back, and so is a call whose thinking is missing. Blocks after one that was left out are numbered anew,
because the SDK takes the index of a block for its place in the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from callstream.tap.frames import payload_of, write_json
from callstream.tap.order import NumberedCall, NumberedRewriter, Output, Passing, Reasoning, decoded, edited, value_of

THINKING = ("thinking", "redacted_thinking")


class _Block(msgspec.Struct):
    type: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    index: int | None = None
    content_block: _Block | None = None


_EVENTS = msgspec.json.Decoder(_Event)


class BlockCall(NumberedCall):
    """A call and the frames of its block that leave with it."""

    start: bytes
    delta: bytes | None = None  # the first one
    stop: bytes | None = None


class MessageStart(Passing):
    """A new message: its blocks are numbered from the beginning."""

    __slots__ = ()


class AnthropicRewriter(NumberedRewriter[BlockCall]):
    _call_type = BlockCall

    def _is_mere_delta(self, call: BlockCall, raw: bytes) -> bool:
        if call.delta is None:
            call.delta = raw
        return True

    def _take(self, raw: bytes, pieces: Sequence[str | None]) -> None:
        payload = payload_of(raw)
        event: _Event | None = decoded(payload, _EVENTS) if payload else None
        if event is None:
            self._add_aside(raw)
            return
        call = self._calls.get(pieces[0]) if pieces else None
        if call is not None and call.collapsed:
            self._withhold(call, event, raw)
            return
        match event.type:
            case "content_block_start" if event.content_block is not None and event.content_block.type in THINKING:
                thinking = self._reasoning[event.index] = Reasoning(raw, event.index)
                self._slots.append(thinking)
            case "content_block_delta" if event.index in self._reasoning:
                self._add_reasoning(self._reasoning[event.index], raw, is_last=False)
            case "content_block_stop" if event.index in self._reasoning:
                self._add_reasoning(self._reasoning.pop(event.index), raw, is_last=True)
            case "message_start":
                self._reasoning.clear()
                self._slots.append(MessageStart(raw, counts=False))
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                self._slots.append(Passing(raw))
            case _:
                self._add_aside(raw)

    def _withhold(self, call: BlockCall, event: _Event, raw: bytes) -> None:
        match event.type:
            case "content_block_start":
                call.start, call.index = raw, event.index
                self._reasoning.pop(event.index, None)
                self._place(call)
            case "content_block_delta":
                call.delta = call.delta or raw
            case _:
                call.stop = raw

    def _whole(self, call: BlockCall) -> list[Output]:
        start = value_of(call.start)
        block = start["content_block"]
        delta = call.delta
        if block.get("input"):
            frames = [self._passed(edited(call.start, start, {**start, "content_block": {**block, "input": {}}}))]
            delta = delta or _delta_of(start)
        else:
            frames = [self._passed(call.start)]
        if delta is not None:
            before = value_of(delta)
            after = {**before, "delta": {**before["delta"], "partial_json": call.args_json}}
            frames.append(self._passed(edited(delta, before, after)))
        if call.stop is not None:
            frames.append(self._passed(call.stop))
        return [Output(b"".join(frames), (call.call_id,))]

    def _passes(self, slot: Passing) -> list[Output]:
        if isinstance(slot, MessageStart):
            self._missing.clear()
        return super()._passes(slot)

    def _passed(self, raw: bytes) -> bytes:
        if not self._missing:
            return raw
        event = value_of(raw)
        if not isinstance(event, dict) or not isinstance(event.get("index"), int):
            return raw
        return edited(raw, event, {**event, "index": self._moved_up(event["index"])})


def _delta_of(start: dict[str, Any]) -> bytes:
    """An empty delta for the block of that start."""
    delta = {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}}
    if "index" in start:
        delta["index"] = start["index"]
    return b"event: content_block_delta\ndata: " + write_json(delta) + b"\n\n"
