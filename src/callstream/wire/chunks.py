"""Responses whose chunks may hold pieces of several calls, and more: each chunk is split, and its parts find their places.

A wire splits a chunk into chunks, each with a piece of one collapsed call or with none. What says something by itself, and
is no piece of a collapsed call, passes: content before a call leaves before it, a finish reason after it. What says nothing
by itself goes with the call, which keeps all that its parts bring (``add``) and leaves in a chunk made of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from callstream.wire.collapsing import Collapser, CollapsibleCall, Output, Passing, read_json
from callstream.wire.framing import Frame


class ChunkCall(CollapsibleCall, ABC):
    """A call that is folded from the parts of its chunks. ``frame`` and ``began_in``: the first of these, as it came."""

    def __init__(self, call_id: str, *, collapsed: bool = True) -> None:
        super().__init__(call_id, collapsed=collapsed)
        self.frame = Frame()
        self.began_in: dict[str, Any] = {}

    @abstractmethod
    def add(self, part: dict[str, Any]) -> None:
        """Adds what a part of a chunk holds."""


class OwnedPiece(NamedTuple):
    """A piece of a chunk, and whose it is. ``begins``: the call begins with it; ``is_withheld``: it leaves with the call."""

    piece: dict[str, Any]
    call: Any = None
    begins: bool = False
    is_withheld: bool = False


class Split(NamedTuple):
    """A part of a chunk, and the call that it is withheld for. ``begun``: pieces with which calls begin that pass in it."""

    part: dict[str, Any]
    call: Any = None
    begun: Sequence[tuple[int, OwnedPiece]] = ()


class Chunk(Passing):
    """A chunk with pieces of calls, or a part of one: then ``is_changed``, and ``value`` takes the place of the frame's."""

    __slots__ = ("begun", "is_changed", "value")

    def __init__(self, frame: Frame, split: Split, *, is_changed: bool) -> None:
        super().__init__(frame)
        self.value = split.part
        self.begun = split.begun
        self.is_changed = is_changed


S = TypeVar("S", bound=ChunkCall)


class ChunkCollapser(Collapser[S]):
    """Gives the parts of chunks their places. A wire says how a chunk is split."""

    @abstractmethod
    def _split(self, chunk: dict[str, Any], calls: Sequence[S | None]) -> Iterable[Split]:
        """The parts of a chunk in their order. ``calls``: whose its pieces are; those after an error have no owner."""

    def _place(self, frame: Frame, chunk: Any, pieces: Sequence[str | None]) -> None:
        value = read_json(frame.payload) if pieces else None
        if value is None:
            self._slots.append(Passing(frame))
            return
        for split in self._split(value, [self._calls.get(piece) for piece in pieces]):
            call = split.call
            if call is None:
                self._slots.append(Chunk(frame, split, is_changed=split.part != value))
                continue
            if not call.began_in or call.is_aside:
                call.frame, call.began_in = frame, value
                self._slots.place(call)
            call.add(split.part)

    def _passes_slot(self, slot: Passing) -> list[Output]:
        return self._passes_chunk(slot) if isinstance(slot, Chunk) else super()._passes_slot(slot)

    def _passes_chunk(self, slot: Chunk) -> list[Output]:
        """A chunk whose turn has come."""
        return [Output(self._passed(slot.frame, slot.value if slot.is_changed else None))]
