"""The order in which the parts of a response leave a collapser.

What waits is one queue of slots, in the order of the bytes, and only its head ever leaves. A frame becomes slots when it
arrives and all of its pieces have names, so each slot's place is final from the beginning; what is still open is a question
about a slot (is the call completed? has the reasoning led to something?), and the head leaves when its question is answered.
At the end of the body every question is answered, so nothing stays behind.
"""

from __future__ import annotations

from itertools import islice
from typing import Literal, TypeAlias

import msgspec

from callstream.events import Encoding
from callstream.wire.framing import Frame


class CollapsibleCall:
    """A call on its way through the collapser. A wire adds what it keeps of the call's frames."""

    def __init__(self, call_id: str, *, collapsed: bool = True) -> None:
        self.call_id = call_id
        self.collapsed = collapsed
        self.name = ""
        self.provider_id: str | None = None
        self.signature: str | None = None
        self.encoding: Encoding = "json"
        self.args_json = ""
        self.state: Literal["open", "completed", "left_out"] = "open"
        self.placed = False  # it has its place in the order
        self.gone = False  # it was forwarded or left out

    @property
    def wire_id(self) -> str:
        """The id in the bytes: the provider's wherever it sent one."""
        return self.provider_id or self.call_id

    @property
    def args_text(self) -> str:
        """The arguments as the wire writes them: JSON text, or the input of a free-text tool itself."""
        return self.args_json if self.encoding == "json" else msgspec.json.decode(self.args_json, type=str)


class NumberedCall(CollapsibleCall):
    """A call whose block or item has a number in the response."""

    index: int | None = None


class Passing:
    """A frame that leaves when its turn comes. ``counts``: reasoning before it has led to something."""

    __slots__ = ("counts", "frame")

    def __init__(self, frame: Frame, *, counts: bool = True) -> None:
        self.frame = frame
        self.counts = counts


class CallSlot:
    """Where a collapsed call leaves, or is left out."""

    __slots__ = ("call",)

    def __init__(self, call: CollapsibleCall) -> None:
        self.call = call


class Reasoning:
    """A block or item of reasoning. ``index``: its number in the wire; ``forwarded``: None until that is decided."""

    __slots__ = ("forwarded", "frames", "index", "is_open")

    def __init__(self, frame: Frame, index: int | None, *, is_open: bool = True) -> None:
        self.frames = [(frame, True)]  # true for its own, false for what came between them
        self.index = index
        self.is_open = is_open
        self.forwarded: bool | None = None


class Over:
    """The response before it has ended."""


Slot: TypeAlias = Passing | CallSlot | Reasoning | Over


class Slots(list[Slot]):
    """Those that wait, in the order of the bytes."""

    __slots__ = ()

    def place(self, call: CollapsibleCall) -> None:
        """The call, when it is decided, leaves here."""
        call.placed = True
        self.append(CallSlot(call))

    def add_reasoning(self, slot: Reasoning, frame: Frame, *, is_last: bool) -> None:
        """More of a block or item that has its slot, which may have left."""
        slot.is_open = not is_last
        if slot.forwarded is None:
            slot.frames.append((frame, True))
        elif slot.forwarded:
            self.append(Passing(frame))

    def add_aside(self, frame: Frame) -> None:
        """A frame that says nothing, such as a ping. Between frames of reasoning it keeps its place."""
        last = self[-1] if self else None
        if isinstance(last, Reasoning) and last.is_open:
            last.frames.append((frame, False))
        else:
            self.append(Passing(frame, counts=False))

    def take(self) -> list[Slot]:
        """The slots at the head, up to the first of which it is not decided what becomes of it."""
        undecided = next((place for place in range(len(self)) if not self._is_decided(place)), len(self))
        taken = self[:undecided]
        del self[:undecided]
        return taken

    def _is_decided(self, place: int) -> bool:
        slot = self[place]
        if isinstance(slot, CallSlot):
            slot.call.gone = slot.call.state != "open"
            return slot.call.gone
        if isinstance(slot, Reasoning):
            slot.forwarded = self._led_to_something(place)
            return slot.forwarded is not None
        return True

    def _led_to_something(self, place: int) -> bool | None:
        """Whether the reasoning in that place is forwarded; None while that cannot be told."""
        left_out = False
        for slot in islice(self, place + 1, None):
            match slot:
                case Reasoning() if left_out:
                    return False
                case CallSlot() if slot.call.state == "open":
                    return None
                case CallSlot() if slot.call.state == "completed":
                    return True
                case CallSlot():
                    left_out = True
                case Passing() if slot.counts:
                    return True
                case Over():
                    return not left_out
                case _:
                    pass  # more of the same reasoning, or a frame that says nothing
        return None
