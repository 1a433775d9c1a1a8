"""Responses in which a call is a block: a start that names it, deltas of its arguments, and a stop, distinguished by number.

A whole call is its block's start and stop as they came, and between them one delta with all of its arguments. Where the
start brought arguments (some servers, and Anthropic's programmatic calls), they are moved into that delta: not every
reader of streams looks for them in the start, and one that does not would run the tool with nothing.

Blocks after one that was left out are numbered anew, because SDKs take a block's number for its place in the message.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, TypeAlias

from callstream.wire.collapsing import NumberedCall, NumberedCollapser, Output, Passing, changed, read_json
from callstream.wire.framing import Frame

Part: TypeAlias = Literal["start", "delta", "stop"]


class BlockCall(NumberedCall):
    """A call and the frames of its block that leave with it."""

    start: Frame
    delta: Frame | None = None  # the first one
    stop: Frame | None = None


class NewMessage(Passing):
    """The beginning of a message: its blocks are numbered from the beginning."""

    __slots__ = ()


class BlockCollapser(NumberedCollapser[BlockCall]):
    """Writes a call as one block. A wire says what its frames look like, and which field has the number of a block."""

    _call_type = BlockCall
    _number: ClassVar[str] = "index"

    def _split(self, start: dict[str, Any]) -> tuple[dict[str, Any], Frame | None]:
        """The payload of a call's start without the arguments that it may have brought, and a delta for them."""
        return start, None

    @abstractmethod
    def _with_arguments(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        """The payload of a delta with other arguments."""

    def _has_number(self, event: dict[str, Any]) -> bool:
        """Whether an event has the number of a block that may move up."""
        return isinstance(event.get(self._number), int)

    def _is_mere_delta(self, call: BlockCall, frame: Frame, chunk: Any) -> bool:
        if call.delta is None:
            call.delta = frame
        return True

    def _withhold(self, call: BlockCall, part: Part, index: int | None, frame: Frame) -> None:
        """Keeps what is needed of a frame of a collapsed call."""
        match part:
            case "start":
                call.start, call.index = frame, index
                self._reasoning.discard(index)
                self._slots.place(call)
            case "delta":
                call.delta = call.delta or frame
            case _:
                call.stop = frame

    def _whole(self, call: BlockCall) -> list[Output]:
        start = read_json(call.start.payload)
        bare, made = self._split(start)
        leaving = [self._passed(call.start, changed(start, bare))]
        delta = call.delta or made
        if delta is not None:
            before = read_json(delta.payload)
            leaving.append(self._passed(delta, changed(before, self._with_arguments(before, call.args_json))))
        if call.stop is not None:
            leaving.append(self._passed(call.stop))
        return [Output(b"".join(leaving), (call.call_id,))]

    def _passes_slot(self, slot: Passing) -> list[Output]:
        if isinstance(slot, NewMessage):
            self._missing.clear()
        return super()._passes_slot(slot)

    def _passed(self, frame: Frame, value: Any = None) -> bytes:
        if self._missing:
            event = read_json(frame.payload) if value is None else value
            if isinstance(event, dict) and self._has_number(event):
                value = changed(event, {**event, self._number: self._moved_up(event[self._number])}) or value
        return super()._passed(frame, value)
