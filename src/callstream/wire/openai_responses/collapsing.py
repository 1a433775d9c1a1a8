"""OpenAI Responses: a whole call is the events of its item, the deltas among them folded into one.

The events are those that the server sent, with its own sequence numbers; a server that sends only some of them (no
deltas, or the finished item alone, or nothing but the final response) is passed on as it is. What is made the same
where it is not: the item's id, which some servers change from event to event, and the arguments, which may hold
characters that JSON forbids. Sequence numbers stay strictly increasing, and only where calls were interleaved are
frames numbered anew.

A call that is left out is left out of the final response too, since that is where programs take calls from. Reasoning
stays there, as in the events; it is known by its item's id, and by its encrypted content.

A response that the server keeps is its own copy, and still holds the call that was left out. Whether the server then
accepts a next turn without an answer to that call is for the server to say; to hand the call out as if it could be
executed would be worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from callstream import codec
from callstream.wire.collapsing import NumberedCollapser, Output, changed, read_json
from callstream.wire.decoder import Decoder
from callstream.wire.framing import Frame
from callstream.wire.openai_responses.decoding import CALL_ITEMS, DELTAS, ENDS, StreamEvent
from callstream.wire.passages import Passage, StrictText
from callstream.wire.slots import NumberedCall, Passing, Reasoning

ADDED = "response.output_item.added"
DONE = "response.output_item.done"
ASIDES = ("response.in_progress", "response.queued", "response.failed")


class ItemCall(NumberedCall):
    """A call and the frames of its item that leave with it."""

    added: Frame | None = None
    delta: Frame | None = None  # the first one
    text_done: Frame | None = None
    item_done: Frame | None = None

    @property
    def text_field(self) -> str:
        return "arguments" if self.encoding == "json" else "input"


class ResponseStart(Passing):
    """A new response: its items are numbered from the beginning."""

    __slots__ = ()


class ResponseEnd(Passing):
    """The final response. ``pieces``: the calls in its output; ``first_seen``: those that came with nothing else."""

    __slots__ = ("first_seen", "pieces")

    def __init__(self, frame: Frame, pieces: Sequence[str | None], first_seen: tuple[str, ...]) -> None:
        super().__init__(frame, counts=False)
        self.pieces = pieces
        self.first_seen = first_seen


class ResponsesText:
    """A delta of a message's text or of reasoning."""

    class Event(StrictText):
        type: str
        delta: str
        item_id: Any = None
        output_index: int | None = None
        content_index: int | None = None
        summary_index: int | None = None
        sequence_number: Any = None
        obfuscation: Any = None
        logprobs: list[Any] | None = None

    _TYPES: ClassVar = (
        "response.output_text.delta",
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
    )

    def passage_of(self, payload: bytes) -> Passage | None:
        try:
            event = _TEXT_EVENTS.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if event.type not in self._TYPES or event.logprobs:
            return None
        return (event.type, event.output_index, event.content_index, event.summary_index)

    def with_text(self, payload: dict[str, Any], text: str) -> dict[str, Any]:
        made = {**payload, "delta": text}
        made.pop("obfuscation", None)
        return made


_TEXT_EVENTS = msgspec.json.Decoder(ResponsesText.Event)


class OpenAIResponsesCollapser(NumberedCollapser[ItemCall]):
    _call_type = ItemCall
    text_form = ResponsesText()

    def __init__(self, decoder: Decoder[Any], **settings: Any) -> None:
        super().__init__(decoder, **settings)
        self._floor: int | None = None  # the last sequence number that left, while later frames may have lower ones
        self._sign_of_life: bytes | None = None

    @property
    def keep_alive(self) -> bytes:
        """That the response is in progress, once more: clients that count events count it, and all know it."""
        return self._sign_of_life or super().keep_alive

    def _is_mere_delta(self, call: ItemCall, frame: Frame, chunk: Any) -> bool:
        return call.delta is not None and chunk.type in DELTAS

    # -- places --

    def _take(self, frame: Frame, chunk: StreamEvent | None, pieces: Sequence[str | None]) -> None:
        if chunk is None:
            self._slots.add_aside(frame)
        elif chunk.type in ENDS:
            new = [call for piece in pieces if (call := self._calls[piece]).collapsed and not call.placed]
            for call in new:
                call.placed = call.gone = True
            first_seen = tuple(call.call_id for call in new if call.state == "completed")
            self._slots.append(ResponseEnd(frame, pieces, first_seen))
        elif pieces and (call := self._calls[pieces[0]]).collapsed:
            self._withhold(call, chunk, frame)
        elif not self._is_reasoning(chunk, frame):
            self._pass_on(chunk, frame)

    def _withhold(self, call: ItemCall, event: StreamEvent, frame: Frame) -> None:
        if call.gone:  # a server repeats itself
            if call.state == "completed":
                self._slots.append(Passing(frame))
            return
        if call.index is None:
            call.index = event.output_index
        match event.type:
            case kind if kind == ADDED:
                call.added = call.added or frame
            case kind if kind == DONE:
                call.item_done = frame
            case kind if kind.endswith(".delta"):
                call.delta = call.delta or frame
            case _:
                call.text_done = frame
        if not call.placed:
            self._slots.place(call)

    def _is_reasoning(self, event: StreamEvent, frame: Frame) -> bool:
        """Takes in a frame of a reasoning item; false if it is none."""
        if event.item is not None and event.item.type == "reasoning":
            (self._reasoning.discard if event.type == DONE else self._reasoning.add)(event.output_index)
            self._slots.append(Reasoning(frame, event.item.id, event.item.encrypted_content))
        elif event.output_index in self._reasoning or event.type.startswith("response.reasoning"):
            self._slots.append(Reasoning(frame))
        else:
            return False
        return True

    def _pass_on(self, event: StreamEvent, frame: Frame) -> None:
        if event.type == "response.created":
            self._sign_of_life = _in_progress(frame)
            self._reasoning.clear()
            self._slots.append(ResponseStart(frame, counts=False))
        elif event.type in ASIDES or not event.type.startswith("response."):
            self._slots.add_aside(frame)
        else:
            self._slots.append(Passing(frame))

    # -- leaving --

    def _whole(self, call: ItemCall) -> list[Output]:
        item_id: str | None = None
        leaving = []
        for frame in (call.added, call.delta, call.text_done, call.item_done):
            if frame is None:
                continue
            event = read_json(frame.payload)
            item = event.get("item")
            item_id = item_id or (item["id"] if item and item.get("id") else event.get("item_id"))
            numbered = self._numbered(self._unified(call, event, item_id))
            leaving.append(super()._passed(frame, changed(event, numbered)))
            self._floor = numbered.get("sequence_number", self._floor)
        return [Output(b"".join(leaving), (call.call_id,))]

    def _unified(self, call: ItemCall, event: dict[str, Any], item_id: str | None) -> dict[str, Any]:
        """The event with the whole arguments, or with none before they come, and with the one id of its item."""
        event = dict(event)
        field = call.text_field
        item = event.get("item")
        if event.get("item_id") and item_id:
            event["item_id"] = item_id
        if item is not None:
            event["item"] = item = dict(item)
            if event["type"] == DONE or (item.get(field) and call.delta is None):
                item[field] = call.args_text
            elif item.get(field):
                item[field] = ""
            if item.get("id"):
                item["id"] = item_id
        elif event["type"].endswith(".delta"):
            event["delta"] = call.args_text
            event.pop("obfuscation", None)  # padding to the length of the delta that it came with
        else:
            event[field] = call.args_text
        return event

    def _passes_slot(self, slot: Passing) -> list[Output]:
        if isinstance(slot, ResponseEnd):
            return [self._ended(slot)]
        if isinstance(slot, ResponseStart):
            self._missing.clear()
            self._floor = None
        return super()._passes_slot(slot)

    def _passed(self, frame: Frame, value: Any = None) -> bytes:
        if not self._missing and self._floor is None:
            return super()._passed(frame, value)
        event = read_json(frame.payload) if value is None else value
        if not isinstance(event, dict):
            return super()._passed(frame)
        numbered = self._numbered(event)
        number = numbered.get("sequence_number")
        if isinstance(number, int):
            self._floor = None if number == event["sequence_number"] else number
        return super()._passed(frame, changed(event, numbered) or value)

    def _numbered(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event with numbers that follow those that have left."""
        event = dict(event)
        index = event.get("output_index")
        if isinstance(index, int):
            event["output_index"] = self._moved_up(index)
        number = event.get("sequence_number")
        if self._floor is not None and isinstance(number, int) and number <= self._floor:
            event["sequence_number"] = self._floor + 1
        return event

    def _ended(self, slot: ResponseEnd) -> Output:
        event = read_json(slot.frame.payload)
        output = (event.get("response") or {}).get("output")
        after = self._numbered(event)
        if isinstance(output, list):
            after["response"] = {**event["response"], "output": self._kept(output, list(slot.pieces))}
        self._missing.clear()
        return Output(super()._passed(slot.frame, changed(event, after)), slot.first_seen)

    def _kept(self, output: list[dict[str, Any]], pieces: list[str | None]) -> list[dict[str, Any]]:
        """The items of the final response without what was left out, with the arguments that the calls have."""
        found = [(item, self._call_of(item, pieces)) for item in output]
        return [
            item if call is None else {**item, call.text_field: call.args_text}
            for item, call in found
            if call is None or call.state != "left_out"
        ]

    def _call_of(self, item: dict[str, Any], pieces: list[str | None]) -> ItemCall | None:
        """The collapsed call that an item is. A second end of a response is not attributed: there the ids tell."""
        if item.get("type") not in CALL_ITEMS:
            return None
        call = self._calls.get(pieces.pop(0) if pieces else item.get("call_id") or item.get("id"))
        return call if call is not None and call.collapsed else None


def _in_progress(created: Frame) -> bytes | None:
    event = read_json(created.payload)
    if not isinstance(event, dict):
        return None
    return b"event: response.in_progress\ndata: %b\n\n" % codec.encode_line({**event, "type": "response.in_progress"})
