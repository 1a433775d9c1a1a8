"""What leaves of a Converse stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callstream.wire.bedrock_converse.decoding import StreamEvent
from callstream.wire.blocks import BlockCollapser, NewMessage, Part
from callstream.wire.framing import Frame
from callstream.wire.slots import Passing, Reasoning


class ConverseCollapser(BlockCollapser):
    """Reasoning is known by its signature or by what was redacted, as on Anthropic's own wire."""

    _number = "contentBlockIndex"

    def _take(self, frame: Frame, chunk: StreamEvent | None, pieces: Sequence[str | None]) -> None:
        if chunk is None:
            self._slots.add_aside(frame)
            return
        index = chunk.contentBlockIndex
        call = self._calls.get(pieces[0]) if pieces else None
        if call is not None and call.collapsed:
            self._withhold(call, _PARTS[frame.event], index, frame)
            return
        match frame.event:
            case b"contentBlockDelta" if (
                chunk.delta is not None and (thought := chunk.delta.reasoningContent) is not None
            ):
                self._reasoning.add(index)
                self._slots.append(Reasoning(frame, thought.signature, thought.redactedContent))
            case b"contentBlockStop" if index in self._reasoning:
                self._reasoning.discard(index)
                self._slots.append(Reasoning(frame))
            case b"messageStart":
                self._reasoning.clear()
                self._slots.append(NewMessage(frame, counts=False))
            case b"contentBlockStart" | b"contentBlockDelta" | b"contentBlockStop":
                self._slots.append(Passing(frame))
            case _:
                self._slots.add_aside(frame)

    def _with_arguments(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        return {**delta, "delta": {"toolUse": {**delta["delta"]["toolUse"], "input": text}}}


_PARTS: dict[bytes, Part] = {b"contentBlockStart": "start", b"contentBlockDelta": "delta", b"contentBlockStop": "stop"}
