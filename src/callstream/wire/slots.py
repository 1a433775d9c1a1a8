"""The order in which the parts of a response leave a collapser.

What waits is one queue of slots, in the order of the bytes, and only its head ever leaves. A frame becomes slots when it
arrives and all of its pieces have names, so each slot's place is final from the beginning; what is still open is a question
about a call (is it completed?), and the head leaves when its question is answered. At the end of the body every question is
answered, so nothing stays behind.

Reasoning leaves as it comes. Whether it has led to something is known later (``thoughts``).
"""

from __future__ import annotations

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


class Reasoning(Passing):
    """A frame of reasoning. ``names``: what tells this reasoning from all other in later requests, if the frame has it."""

    __slots__ = ("names",)

    def __init__(self, frame: Frame, *names: object) -> None:
        super().__init__(frame, counts=False)
        self.names = [name for name in names if isinstance(name, str) and name]


class Over:
    """The response before it has ended."""


Slot: TypeAlias = Passing | CallSlot | Over


class Slots(list[Slot]):
    """Those that wait, in the order of the bytes."""

    __slots__ = ()

    def place(self, call: CollapsibleCall) -> None:
        """The call, when it is decided, leaves here."""
        call.placed = True
        self.append(CallSlot(call))

    def add_aside(self, frame: Frame) -> None:
        """A frame that says nothing, such as a ping."""
        self.append(Passing(frame, counts=False))

    def take(self) -> list[Slot]:
        """The slots at the head, up to the first of which it is not decided what becomes of it."""
        undecided = next((place for place, slot in enumerate(self) if not _is_decided(slot)), len(self))
        taken = self[:undecided]
        del self[:undecided]
        return taken


def _is_decided(slot: Slot) -> bool:
    if not isinstance(slot, CallSlot):
        return True
    slot.call.gone = slot.call.state != "open"
    return slot.call.gone
