"""A provider's streamed response in, the same response out with each collapsed call whole.

A collapser stands between the provider's bytes and the SDK. It has the body cut into frames and each frame decoded, once,
and decides what leaves in which order. Each wire's collapser says how a call looks on that wire; what all share is here:

- A call that is not collapsed passes byte for byte, piece by piece.
- The pieces of a collapsed call are withheld. When the decoder has completed it, one whole call leaves in its place;
  when it has discarded it, the call is left out and what follows is numbered so that the stream stays valid.
- A completed call whose arguments do not fit (``Check``) is discarded as well, and left out, unless the program above
  refuses such calls by itself.
- Nothing overtakes: what came after an undecided call waits behind it (``Slots``).
- Reasoning passes as it comes. Where it has led to nothing but calls that were left out, a later request must not bring it
  back (``thoughts``).
- While a call has no name, it is unknown whether it is collapsed: it waits, and everything after it.
- Where text is joined (``joins_text``), adjacent frames of one passage leave as one (``Passages``): they are not seen above.
- Every other byte passes as it came.

A withheld delta must cost little, because there are thousands of them: it is recognised by its one event, and if the
frame holds nothing else (``_is_mere_delta``) nothing is done with it. Frames of which something has to be written anew,
a few for each call, are read once more as plain JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from callstream import codec
from callstream.errors import WireError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallSigned,
    CallStarted,
    DiscardReason,
    Encoding,
    MessageStarted,
    ReasoningAppended,
    ResponseEnded,
    TextAppended,
    WireEvent,
)
from callstream.wire.decoder import Decoder
from callstream.wire.framing import Frame

# Reasoning that led to nothing, because the calls that it led to were left out.
#
# Reasoning leaves as it comes, and what becomes of the calls after it is known later. Providers refuse a history in which
# reasoning leads to nothing, so what is found to be lone is remembered by its names, and taken out of later requests
# (``Provider.without_lone_reasoning``).

_MOST = 10_000


class LoneReasoning:
    """The names of lone reasoning, the latest of them: signatures, ids, whatever tells reasoning from other in requests."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._names)

    def has(self, *names: object) -> bool:
        """Whether one of these, of which a request may have any, is the name of lone reasoning."""
        return any(isinstance(name, str) and name in self._names for name in names)

    def add(self, name: str) -> None:
        self._names[name] = None
        if len(self._names) > _MOST:
            self._names.popitem(last=False)

    def discard(self, name: str) -> None:
        """Servers that do not sign use a name again."""
        self._names.pop(name, None)


class Thoughts:
    """The reasoning of one body that has left and has not led to anything so far.

    It is lone if calls followed it directly which were all left out, and nothing else came before the next reasoning or
    the end. As long as anything that it led to is forwarded, it is not.
    """

    def __init__(self, lone: LoneReasoning) -> None:
        self._lone = lone
        self._names: list[str] = []
        self._is_cut = False  # a call that followed was left out

    def think(self, names: list[str]) -> None:
        """More reasoning has left."""
        if self._is_cut:
            self.end()
        self._names += names

    def lead(self) -> None:
        """Something that reasoning leads to has left."""
        if self._names:
            for name in self._names:
                self._lone.discard(name)
            self._names = []
        self._is_cut = False

    def miss(self) -> None:
        """A call was left out."""
        self._is_cut = True

    def end(self) -> None:
        """Nothing follows that the reasoning may have led to."""
        for name in self._names if self._is_cut else ():
            self._lone.add(name)
        self._names = []
        self._is_cut = False


# -- the order in which the parts of a response leave ------------------------------------------------------------------


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
        self.is_aside = False  # it had one in the body before, and goes on in this
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
    """Those that wait, in the order of the bytes; only the head ever leaves.

    A frame becomes slots when it arrives and all of its pieces have names, so each slot's place is final from the
    beginning; what is still open is a question about a call (is it completed?), and the head leaves when its question is
    answered. At the end of the body every question is answered, so nothing stays behind; or the response pauses, and the
    calls that are open are placed anew in the next body. Reasoning leaves as it comes; whether it has led to something is
    known later (``thoughts``).
    """

    __slots__ = ()

    def place(self, call: CollapsibleCall) -> None:
        """The call, when it is decided, leaves here."""
        call.placed, call.is_aside = True, False
        self.append(CallSlot(call))

    def add_aside(self, frame: Frame) -> None:
        """A frame that says nothing, such as a ping."""
        self.append(Passing(frame, counts=False))

    def set_aside(self) -> None:
        """Removes the calls that are not decided: they are placed anew when they go on."""
        for slot in [slot for slot in self if not _is_decided(slot)]:
            assert isinstance(slot, CallSlot)
            slot.call.placed, slot.call.is_aside = False, True
            self.remove(slot)

    def pop_decided(self) -> list[Slot]:
        """The slots at the head, up to the first of which it is not decided what becomes of it."""
        undecided = next((place for place, slot in enumerate(self) if not _is_decided(slot)), len(self))
        decided = self[:undecided]
        del self[:undecided]
        return decided


def _is_decided(slot: Slot) -> bool:
    if not isinstance(slot, CallSlot):
        return True
    slot.call.gone = slot.call.state != "open"
    return slot.call.gone


# -- text that is joined -----------------------------------------------------------------------------------------------

Passage: TypeAlias = tuple[object, ...]
"""What a frame's text belongs to: only text of the same passage is joined."""
Joined: TypeAlias = tuple[Frame, dict[str, Any] | None]
"""A frame, and the payload that it is to be written with; None: its own."""


class TextForm(Protocol):
    """How a wire writes text."""

    def passage_of(self, payload: bytes) -> Passage | None:
        """Which passage the payload adds text to, None if it holds anything else."""

    def with_text(self, payload: dict[str, Any], text: str) -> dict[str, Any]:
        """The payload with another text."""


class Passages:
    """Holds frames of one passage back, and gives them as one.

    The frame that leaves is the last of them with all of the text, because what else it may hold (figures of usage, a
    number) counts for all before it. A wire says by a strict type which frames hold nothing but text, so that anything
    unknown in a frame, a signature, a citation, an end, keeps it as it is.
    """

    def __init__(self, form: TextForm) -> None:
        self.passage_of = form.passage_of
        self._form = form
        self._passage: object = None
        self._texts: list[str] = []
        self._last = Frame()

    @property
    def is_holding(self) -> bool:
        return bool(self._texts)

    def hold(self, frame: Frame) -> Joined | None:
        """Holds a frame back. Returns what was held of another passage."""
        assert frame.text is not None
        passage, text = frame.text
        held = self.release() if passage != self._passage else None
        self._passage, self._last = passage, frame
        self._texts.append(text)
        return held

    def release(self) -> Joined | None:
        """What is held, as one frame."""
        if not self._texts:
            return None
        texts, self._texts, self._passage = self._texts, [], None
        if len(texts) == 1:
            return self._last, None
        return self._last, self._form.with_text(codec.decode(self._last.payload or b""), "".join(texts))


class StrictText(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The root of the types that a wire's frames of text are read as."""


# -- the collapser -----------------------------------------------------------------------------------------------------


class Output(msgspec.Struct, frozen=True):
    """Bytes to forward. ``call_ids``: the collapsed calls that are whole in them, by the decoder's ids."""

    data: bytes
    call_ids: tuple[str, ...] = ()


class Read(msgspec.Struct):
    """What some bytes of a body say, and what may be forwarded once that is recorded.

    ``error``: the wire cannot be read any further; what comes from now on is forwarded as it is.
    """

    events: list[WireEvent]
    outputs: list[Output]
    error: WireError | None = None


Check: TypeAlias = Callable[[str, str], tuple[DiscardReason, str] | None]
"""Why the tool of that name must not run on that whole argument text, and the detail; None if it may."""
Arrival: TypeAlias = tuple[Frame | None, Any, Sequence[str | None], bool]
"""A frame, what the decoder has read in it, whose pieces are in it, and whether the response is over with it."""
C = TypeVar("C", bound=CollapsibleCall)
N = TypeVar("N", bound=NumberedCall)


class Collapser(ABC, Generic[C]):
    """Rewrites one response body.

    ``collapse`` says by name which calls are to arrive whole; with None nothing is touched or held, so it is to be
    preferred where no tool of the request would be. ``lone`` learns which reasoning led to nothing. ``check`` judges
    collapsed calls; ``forwards_invalid``: what it refuses is discarded, and forwarded all the same. ``joins_text``: text
    is not read above while it is written, so it is forwarded by the passage, on wires that have a ``text_form``.
    """

    _call_type: ClassVar[type[Any]] = CollapsibleCall
    text_form: ClassVar[TextForm | None] = None

    def __init__(
        self,
        decoder: Decoder[Any],
        *,
        collapse: Callable[[str], bool] | None,
        lone: LoneReasoning | None = None,
        check: Check | None = None,
        forwards_invalid: bool = False,
        joins_text: bool = False,
    ) -> None:
        self._decoder = decoder
        self._passages = Passages(self.text_form) if joins_text and self.text_form is not None else None
        self._check = check
        self._forwards_invalid = forwards_invalid
        self._framing = decoder.framing
        self._collapse = collapse
        self._calls: dict[str | None, C] = {}
        self._slots = Slots()
        self._thoughts = Thoughts(LoneReasoning() if lone is None else lone)
        self._nameless: set[str] = set()
        self._unread: list[Arrival] = []  # frames that wait for a name
        self._passes = False  # the wire broke: what still comes is the SDK's to judge

    @property
    def is_holding(self) -> bool:
        """Whether something waits for the decision about a call, or for the end of its passage."""
        return bool(self._slots or self._unread or (self._passages is not None and self._passages.is_holding))

    @property
    def keep_alive(self) -> bytes:
        """What may be sent while something is held: the wire's own sign of life, so that it counts for the reader above.

        An SDK drops what is not an event, and a framework that limits the time between two events does not see it.
        """
        return self._framing.keep_alive

    @property
    def next_number(self) -> int:
        """The number that the next block of the message would have had, where blocks have numbers."""
        return 0

    @property
    def items(self) -> list[Any]:
        """The items that have ended, calls excepted, where a later answer has to list them."""
        return []

    def feed(self, data: bytes) -> Read:
        """Reads bytes of the body. Raises nothing: an error is part of what was read."""
        if self._passes:
            return Read([], [Output(data)] if data else [])
        if self._collapse is None:
            return self._observe(data)
        read = Read([], [])
        frames = self._framing.feed(data)
        for number, frame in enumerate(frames):
            try:
                events = self._decoder.read(frame)
            except WireError as error:
                self._passes = True
                read.error = error
                left = [frame.raw for frame in frames[number:]] + [self._framing.pop_rest()]
                read.outputs += self._finish([], [])
                read.outputs += [Output(raw) for raw in left if raw]
                return read
            read.outputs += self._accept(frame, events)
            read.events += events
        self._decoder.chunk = None  # it may be a while until the next
        return read

    def end(self) -> Read:
        """The end of the body: everything leaves. Calls that are still open are left out."""
        if self._passes:
            return Read([], [])
        frames = self._framing.end()
        try:
            events, error = self._decoder.read_end(frames), None
        except WireError as broken:
            events, error = [], broken
        outputs = self._finish(events, frames)
        self._framing = self._decoder.framing  # another, where the response goes on in another body
        return Read(events, outputs, error)

    # -- what a wire defines --

    def _is_mere_delta(self, call: C, frame: Frame, chunk: Any) -> bool:
        """Whether the frame, which brought a collapsed call some arguments, holds nothing else worth looking at."""
        return self._decoder.is_bare

    @abstractmethod
    def _place(self, frame: Frame, chunk: Any, pieces: Sequence[str | None]) -> None:
        """Gives the parts of the frame their places. ``chunk`` and ``pieces`` are what the decoder has read in it."""

    @abstractmethod
    def _whole(self, call: C) -> list[Output]:
        """A completed call."""

    @abstractmethod
    def _left_out(self, call: C) -> list[Output]:
        """A call that is left out; what of its frames has to leave all the same."""

    def _passed(self, frame: Frame, value: Any = None) -> bytes:
        """A frame as it leaves: with another value if there is one, and with the numbers that fit what left before."""
        return self._framing.write(frame, None if value is None else codec.encode_line(value))

    def _passes_slot(self, slot: Passing) -> list[Output]:
        """A frame whose turn has come."""
        return [Output(self._passed(slot.frame))]

    def _over(self) -> None:
        """The response is over, and another may follow in the same body."""

    # -- what they share --

    def _observe(self, data: bytes) -> Read:
        read = Read([], [Output(data)])
        try:
            read.events = self._decoder.feed(data)
        except WireError as error:
            self._passes = True
            read.error = error
        return read

    def _accept(self, frame: Frame, events: list[WireEvent]) -> list[Output]:
        """What leaves after this frame, which brought these events. A call that does not fit is discarded in them."""
        pieces = self._decoder.pieces
        if self._passages is not None and not pieces:
            frame.text = self._text_in(frame, events)
        if len(events) == 1 and not self._unread:
            kind = type(events[0])
            if kind is ArgsAppended and len(pieces) == 1 and not self._decoder.any_end:
                call = self._calls.get(pieces[0])
                if (
                    call is not None
                    and call.collapsed
                    and call.placed
                    and self._is_mere_delta(call, frame, self._decoder.chunk)
                ):
                    self._decoder.expects_piece = True
                    return []
            elif kind is TextAppended and not pieces and not self._slots:
                self._decoder.expects_piece = False
                self._thoughts.lead()
                return self._pass(frame)
            elif kind is ReasoningAppended and frame.text is not None and not self._slots:
                self._decoder.expects_piece = False
                self._thoughts.think([])  # a frame with a name holds more than text
                return self._pass(frame)
        self._note(events)
        self._decoder.expects_piece = bool(pieces)
        ended = any(type(event) is ResponseEnded for event in events)
        self._arrive(frame, self._decoder.chunk, pieces, over=ended or self._decoder.error is not None)
        return self._leave()

    def _finish(self, events: list[WireEvent], frames: Sequence[Frame]) -> list[Output]:
        """What leaves at the end of the body, which brought these events and ended in these frames: everything.

        The decoder has completed or discarded every call by then, at the end of the body as well as when it broke; or it
        has paused, and the calls that are open leave in the next body.
        """
        if self._collapse is None:
            return []
        self._note(events)
        is_over = not self._decoder.is_paused
        tail: Frame | None = None
        for frame in frames:
            if frame.payload is None:
                self._arrive(frame, None, (), over=False)
            else:
                tail = frame
        if tail is not None:
            self._arrive(tail, self._decoder.chunk, self._decoder.pieces, over=is_over)
        elif is_over:
            self._arrive(None, None, (), over=True)
        if not is_over:
            self._slots.set_aside()
        return [*self._leave(), *self._release()]

    def _note(self, events: list[WireEvent]) -> None:
        for place, event in enumerate(events):
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
                    discarded = judge(event, done, self._check) if done.collapsed else None
                    if discarded is not None:
                        events[place] = discarded
                        is_forwarded = self._forwards_invalid and discarded.reason == "invalid"
                        done.state = "completed" if is_forwarded else "left_out"
                case CallDiscarded():
                    # One that never got a name never started.
                    self._calls.setdefault(event.call_id, self._call_type(event.call_id)).state = "left_out"
                    self._nameless.discard(event.call_id)
                case _:
                    pass

    def _arrive(self, frame: Frame | None, chunk: Any, pieces: Sequence[str | None], *, over: bool) -> None:
        self._nameless |= {piece for piece in pieces if piece is not None and piece not in self._calls}
        self._unread.append((frame, chunk, pieces, over))
        if self._nameless:
            return
        waiting, self._unread = self._unread, []
        for arrived, read, owners, ended in waiting:
            if ended:
                self._slots.append(Over())
            if arrived is not None and arrived.bytes_ != b"":
                self._place(arrived, read, owners)

    def _leave(self) -> list[Output]:
        out: list[Output] = []
        for slot in self._slots.pop_decided():
            match slot:
                case Passing():
                    if isinstance(slot, Reasoning):
                        self._thoughts.think(slot.names)
                    elif slot.counts:
                        self._thoughts.lead()
                    if slot.frame.text is not None:
                        out += self._pass(slot.frame)
                    else:
                        out += self._release()
                        out += self._passes_slot(slot)
                case CallSlot():
                    call: Any = slot.call
                    out += self._release()
                    if call.state == "completed":
                        self._thoughts.lead()
                        out += self._whole(call)
                    else:
                        self._thoughts.miss()
                        out += self._left_out(call)
                case _:
                    self._thoughts.end()
                    self._over()
        return out

    # -- text that is joined --

    def _text_in(self, frame: Frame, events: list[WireEvent]) -> tuple[object, str] | None:
        """The passage and the text of a frame that holds nothing else."""
        said = [event for event in events if type(event) is not MessageStarted]
        if self._passages is None or len(said) != 1:
            return None
        [piece] = said
        if type(piece) is not TextAppended and type(piece) is not ReasoningAppended:
            return None
        text = piece.text
        passage = self._passages.passage_of(frame.payload) if text and frame.payload is not None else None
        return None if passage is None else (passage, text)

    def _pass(self, frame: Frame) -> list[Output]:
        """A frame that leaves, after what is held, unless it is held itself."""
        if self._passages is None or frame.text is None:
            return [*self._release(), Output(self._passed(frame))]
        held = self._passages.hold(frame)
        return [] if held is None else [Output(self._passed(*held))]

    def _release(self) -> list[Output]:
        held = None if self._passages is None else self._passages.release()
        return [] if held is None else [Output(self._passed(*held))]


class NumberedCollapser(Collapser[N]):
    """Rewrites a response whose blocks or items are numbered: those after one that was left out move up."""

    def __init__(self, decoder: Decoder[Any], **settings: Any) -> None:
        super().__init__(decoder, **settings)
        self._reasoning: set[int | None] = set()  # the numbers of open blocks or items of reasoning
        self._missing: list[int] = []  # the numbers of what was left out
        self._highest = -1  # of the numbers that came

    @property
    def next_number(self) -> int:
        return self._moved_up(self._highest + 1)

    def _left_out(self, call: N) -> list[Output]:
        if call.index is not None:
            self._missing.append(call.index)
        return []

    def _moved_up(self, index: int) -> int:
        return index - sum(missing < index for missing in self._missing)


def changed(before: Any, after: Any) -> Any:
    """The value that a frame is to be written with; None if it is the one that it has, so that its bytes stay."""
    return None if before == after else after


def judge(completed: CallCompleted, call: CollapsibleCall | CallStarted, check: Check | None) -> CallDiscarded | None:
    """That a completed call is discarded, because its tool must not run on its arguments; None if it may."""
    wrong = check(call.name, completed.args_json or "") if check is not None and call.encoding == "json" else None
    return None if wrong is None else CallDiscarded(completed.call_id, *wrong)


def read_json(payload: bytes | None) -> Any:
    """The value of a payload, None where it is not JSON."""
    try:
        return codec.decode(payload or b"")
    except (ValueError, RecursionError):
        return None
