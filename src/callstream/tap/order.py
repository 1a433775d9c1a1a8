"""What all rewriters share: whose a frame is, and the order in which frames leave.

A rewriter is told every frame of a response, and the events that the decoder read in it. It keeps these laws:

- A call that is not collapsed passes byte for byte, piece by piece.
- The pieces of a collapsed call are withheld. When the decoder has completed it, one whole call leaves in its place;
  when it has discarded it, the call is left out and what follows is numbered so that the stream stays valid.
- Nothing overtakes: what came after an undecided call waits behind it.
- Reasoning that a provider pairs with what follows it (see the wires) waits until that is decided. It is left out only
  where calls that directly followed it were, and nothing else came before the next reasoning or the end: providers
  refuse a history in which reasoning leads to nothing. As long as anything that it led to is forwarded, it is
  forwarded too.
- While a call has no name, nobody can say whether it is collapsed: it waits, and everything after it.
- Every other byte passes as it came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import msgspec

from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallSigned,
    CallStarted,
    Encoding,
    ResponseEnded,
    TextAppended,
    WireEvent,
)
from callstream.tap.frames import is_finished, payload_of, read_json, with_payload, write_json
from callstream.wire import Decoder


class Output(msgspec.Struct, frozen=True):
    """Bytes to forward. ``call_ids``: the collapsed calls that are whole in them, by the decoder's ids."""

    data: bytes
    call_ids: tuple[str, ...] = ()


CallState: TypeAlias = Literal["open", "completed", "left_out"]


class Call:
    """A call on its way through. A wire adds what it keeps of the call's frames."""

    def __init__(self, call_id: str, *, collapsed: bool = True) -> None:
        self.call_id = call_id
        self.collapsed = collapsed
        self.name = ""
        self.provider_id: str | None = None
        self.signature: str | None = None
        self.encoding: Encoding = "json"
        self.args_json = ""
        self.state: CallState = "open"
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


class NumberedCall(Call):
    """A call whose block or item has a number in the response."""

    index: int | None = None


class Passing:
    """A frame that leaves when its turn comes. ``counts``: reasoning before it has led to something."""

    __slots__ = ("counts", "raw")

    def __init__(self, raw: bytes, *, counts: bool = True) -> None:
        self.raw = raw
        self.counts = counts


class Place:
    """Where a collapsed call leaves, or is left out."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call


class Reasoning:
    """A block or item of reasoning. ``index``: its number in the wire; ``forwarded``: None until that is decided."""

    __slots__ = ("forwarded", "frames", "index", "is_open")

    def __init__(self, raw: bytes, index: int | None, *, is_open: bool = True) -> None:
        self.frames = [(raw, True)]  # true for its own, false for what came between them
        self.index = index
        self.is_open = is_open
        self.forwarded: bool | None = None


class Over:
    """The response before it has ended."""


Slot: TypeAlias = Passing | Place | Reasoning | Over
T = TypeVar("T")
C = TypeVar("C", bound=Call)
N = TypeVar("N", bound=NumberedCall)


class Rewriter(ABC, Generic[C]):
    """Rewrites one response body.

    ``collapse``: which tools' calls are to arrive whole; None: nothing is touched or held. ``stored``: the server keeps
    the response itself; only the Responses wire knows the difference.
    """

    _call_type: ClassVar[type[Any]] = Call

    def __init__(self, decoder: Decoder[Any], *, collapse: Callable[[str], bool] | None, stored: bool = False) -> None:
        self._decoder = decoder
        self._collapse = collapse
        self._stored = stored
        self._calls: dict[str | None, C] = {}
        self._slots: deque[Slot] = deque()
        self._nameless: set[str] = set()
        self._unread: list[tuple[bytes, Sequence[str | None], bool]] = []  # frames that wait for a name
        self._tail = b""  # the event that the body ended in

    @property
    def is_holding(self) -> bool:
        """Whether something waits for the decision about a call."""
        return bool(self._slots or self._unread)

    def frame(self, raw: bytes, events: Sequence[WireEvent]) -> list[Output]:
        """What leaves now. The decoder was fed exactly this frame and gave these events."""
        if self._collapse is None:
            return [Output(raw)]
        pieces = self._decoder.pieces
        if len(events) == 1 and not self._unread:
            kind = type(events[0])
            if kind is ArgsAppended and len(pieces) == 1:
                call = self._calls.get(pieces[0])
                if call is not None and call.collapsed and call.placed and self._is_mere_delta(call, raw):
                    return []
            elif kind is TextAppended and not pieces and not self._slots:
                return [Output(self._passed(raw))]
        self._note(events)
        if not self._is_finished(raw):
            self._tail = raw
        else:
            ended = any(type(event) is ResponseEnded for event in events)
            self._arrived(raw, pieces, over=ended or self._decoder.error is not None)
        return self._leaving()

    def end(self, events: Sequence[WireEvent]) -> list[Output]:
        """What leaves at the end of the body: everything. Calls that are still open are left out.

        The decoder was ended and gave these events, or it is broken and there are none.
        """
        if self._collapse is None:
            return []
        self._note(events)
        for call_id in self._nameless:
            self._calls[call_id] = self._call_type(call_id)
        self._nameless.clear()
        for call in self._calls.values():
            if call.state == "open":
                call.state = "left_out"
        self._arrived(self._tail, self._decoder.pieces if self._tail else (), over=True)
        self._tail = b""
        return self._leaving() + self._closed()

    # -- what a wire defines --

    @abstractmethod
    def _is_mere_delta(self, call: C, raw: bytes) -> bool:
        """Whether the frame, which brought a collapsed call some arguments, holds nothing else worth looking at."""

    @abstractmethod
    def _take(self, raw: bytes, pieces: Sequence[str | None]) -> None:
        """Gives the parts of the frame their places."""

    @abstractmethod
    def _whole(self, call: C) -> list[Output]:
        """A completed call."""

    @abstractmethod
    def _left_out(self, call: C) -> list[Output]:
        """A call that is left out; what of its frames has to leave all the same."""

    @abstractmethod
    def _passed(self, raw: bytes) -> bytes:
        """A frame as it leaves: with the numbers that it has after what was left out."""

    def _passes(self, slot: Passing) -> list[Output]:
        """A frame whose turn has come."""
        return [Output(self._passed(slot.raw))]

    def _reasoning_left_out(self, slot: Reasoning) -> None:
        """Reasoning that led to nothing."""

    def _over(self) -> None:
        """The response is over, and another may follow in the same body."""

    def _closed(self) -> list[Output]:
        """What the end of the body needs."""
        return []

    def _is_finished(self, raw: bytes) -> bool:
        return is_finished(raw)

    # -- what they share --

    def _note(self, events: Iterable[WireEvent]) -> None:
        for event in events:
            match event:
                case CallStarted():
                    assert self._collapse is not None
                    call = self._call_type(event.call_id, collapsed=self._collapse(event.name))
                    call.name, call.provider_id, call.signature = event.name, event.provider_id, event.signature
                    call.encoding = event.encoding
                    self._calls[event.call_id] = call
                    self._nameless.discard(event.call_id)
                case CallSigned():
                    self._calls[event.call_id].signature = event.signature
                case CallCompleted():
                    done = self._calls[event.call_id]
                    done.state, done.args_json = "completed", event.args_json or ""
                case CallDiscarded():
                    # One that never got a name never started.
                    self._calls.setdefault(event.call_id, self._call_type(event.call_id)).state = "left_out"
                    self._nameless.discard(event.call_id)
                case _:
                    pass

    def _arrived(self, raw: bytes, pieces: Sequence[str | None], *, over: bool) -> None:
        self._nameless |= {piece for piece in pieces if piece is not None and piece not in self._calls}
        self._unread.append((raw, pieces, over))
        if self._nameless:
            return
        waiting, self._unread = self._unread, []
        for frame, owners, ended in waiting:
            if ended:
                self._slots.append(Over())
            if frame:
                self._take(frame, owners)

    def _place(self, call: C) -> None:
        call.placed = True
        self._slots.append(Place(call))

    def _add_reasoning(self, slot: Reasoning, raw: bytes, *, is_last: bool) -> None:
        slot.is_open = not is_last
        if slot.forwarded is None:
            slot.frames.append((raw, True))
        elif slot.forwarded:
            self._slots.append(Passing(raw))

    def _add_aside(self, raw: bytes) -> None:
        """A frame that says nothing, such as a ping. Between frames of reasoning it keeps its place."""
        last = self._slots[-1] if self._slots else None
        if isinstance(last, Reasoning) and last.is_open:
            last.frames.append((raw, False))
        else:
            self._slots.append(Passing(raw, counts=False))

    def _leaving(self) -> list[Output]:
        out: list[Output] = []
        while self._slots:
            slot = self._slots[0]
            match slot:
                case Passing():
                    self._slots.popleft()
                    out += self._passes(slot)
                case Place():
                    call: Any = slot.call
                    if call.state == "open":
                        break
                    self._slots.popleft()
                    call.gone = True
                    out += self._whole(call) if call.state == "completed" else self._left_out(call)
                case Reasoning():
                    slot.forwarded = self._led_to_something()
                    if slot.forwarded is None:
                        break
                    self._slots.popleft()
                    if not slot.forwarded:
                        self._reasoning_left_out(slot)
                    out += [Output(self._passed(raw)) for raw, is_own in slot.frames if slot.forwarded or not is_own]
                case _:
                    self._slots.popleft()
                    self._over()
        return out

    def _led_to_something(self) -> bool | None:
        """Whether the reasoning at the head is forwarded; None while that cannot be told."""
        left_out = False
        for slot in islice(self._slots, 1, None):
            match slot:
                case Reasoning() if left_out:
                    return False
                case Place() if slot.call.state == "open":
                    return None
                case Place() if slot.call.state == "completed":
                    return True
                case Place():
                    left_out = True
                case Passing() if slot.counts:
                    return True
                case Over():
                    return not left_out
                case _:
                    pass  # more of the same reasoning, or a frame that says nothing
        return None


class NumberedRewriter(Rewriter[N]):
    """Rewrites a response whose blocks or items are numbered: those after one that was left out move up."""

    def __init__(self, decoder: Decoder[Any], **settings: Any) -> None:
        super().__init__(decoder, **settings)
        self._reasoning: dict[int | None, Reasoning] = {}  # the open blocks or items
        self._missing: list[int] = []  # the numbers of what was left out

    def _left_out(self, call: N) -> list[Output]:
        self._miss(call.index)
        return []

    def _reasoning_left_out(self, slot: Reasoning) -> None:
        self._miss(slot.index)

    def _miss(self, index: int | None) -> None:
        if index is not None:
            self._missing.append(index)

    def _moved_up(self, index: int) -> int:
        return index - sum(missing < index for missing in self._missing)


def kept(items: Iterable[T], is_left_out: Callable[[T], bool], is_reasoning: Callable[[T], bool]) -> Iterator[T]:
    """The items of a whole response without those that are left out, and without reasoning that led to these alone."""
    waiting: list[T] = []  # reasoning that may have led to nothing
    after_left_out = False
    for item in items:
        if is_left_out(item):
            after_left_out = True
            continue
        if not is_reasoning(item):
            yield from waiting
            yield item
            waiting = []
        elif after_left_out:
            waiting = [item]
        else:
            waiting.append(item)
        after_left_out = False
    if not after_left_out:
        yield from waiting


def edited(raw: bytes, before: Any, after: Any) -> bytes:
    """The event with another value; the same bytes where the value is the same."""
    return raw if before == after else with_payload(raw, write_json(after))


def value_of(raw: bytes) -> Any:
    """The JSON value of an event, None where it has none."""
    payload = payload_of(raw)
    return read_json(payload) if payload else None


def decoded(payload: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """The payload as the decoder's struct, None where it is something else."""
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a lone surrogate, or no JSON at all
        try:
            return msgspec.convert(read_json(payload), decoder.type)
        except msgspec.ValidationError:
            return None
