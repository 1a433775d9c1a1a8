"""A provider's streamed response in, the same response out with each collapsed call whole.

A collapser stands between the provider's bytes and the SDK. It has the body cut into frames and each frame decoded, once,
and decides what leaves in which order. Each wire's collapser says what a call looks like there; what all share is here:

- A call that is not collapsed passes byte for byte, piece by piece.
- The pieces of a collapsed call are withheld. When the decoder has completed it, one whole call leaves in its place;
  when it has discarded it, the call is left out and what follows is numbered so that the stream stays valid.
- A completed call whose arguments do not fit (``Check``) is discarded as well, and left out, unless the program above
  refuses such calls by itself.
- Order is kept: everything that came after an undecided call waits behind it (``Slots``).
- Reasoning passes as it comes. If it led to nothing but calls that were left out, a later request must not bring it back
  (``_Thoughts``).
- While a call has no name, it is unknown whether it is collapsed: it waits, and everything after it.
- Where text is joined (``joins_text``), adjacent frames of one passage leave as one (``Passages``).
- Every other byte passes as it came.

A withheld delta must cost little, because there are thousands of them: it is recognised by its one event, and if the
frame holds nothing else (``_is_mere_delta``) nothing is done with it. Frames that have to be rewritten, a few for each
call, are read once more as plain JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar

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
    MessageStarted,
    ReasoningAppended,
    ResponseEnded,
    TextAppended,
    WireEvent,
)
from callstream.wire.decoder import Decoder
from callstream.wire.framing import Frame
from callstream.wire.requests import LoneReasoning
from callstream.wire.slots import (
    Aside,
    CollapsibleCall,
    NumberedCall,
    Output,
    Over,
    Passages,
    Passing,
    Reasoning,
    Slots,
    TextForm,
)


class _Thoughts:
    """The reasoning of one body that has left and has not led to anything so far.

    It is lone if it was followed directly by calls that were all left out, and by nothing else before the next reasoning
    or the end. If anything that it led to is forwarded, it is not lone.
    """

    def __init__(self, lone: LoneReasoning) -> None:
        self._lone = lone
        self._names: list[str] = []
        self._is_cut = False  # a call that followed was left out

    def think(self, names: Iterable[object] = ()) -> None:
        """More reasoning has left."""
        if self._is_cut:
            self.end()
        self._names += [name for name in names if isinstance(name, str) and name]

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


# -- the collapser -----------------------------------------------------------------------------------------------------


class Read(msgspec.Struct):
    """The events in some bytes of a body, and what may be forwarded once they are recorded.

    ``error``: the wire cannot be read any further; everything after this is forwarded as it is.
    """

    events: list[WireEvent]
    outputs: list[Output]
    error: WireError | None = None


Check: TypeAlias = Callable[[str, str], tuple[DiscardReason, str] | None]
"""Takes a tool's name and the whole text of its arguments. Why it must not run on these, and a detail; None if it may."""
Arrival: TypeAlias = tuple[Frame | None, Any, Sequence[str | None], bool]
"""A frame, the chunk that the decoder has read in it, the owners of its pieces, and whether the response ends with it."""
C = TypeVar("C", bound=CollapsibleCall)
N = TypeVar("N", bound=NumberedCall)


class Collapser(ABC, Generic[C]):
    """Rewrites one response body.

    ``collapse`` says by name which calls are to arrive whole; with None nothing is touched or held, so pass None where no
    tool of the request is to be collapsed. ``lone`` learns which reasoning led to nothing. ``check`` judges collapsed
    calls; with ``forwards_invalid``, calls that it refuses are discarded in the events and still forwarded.
    ``joins_text``: the layers above do not read text while it is being written, so it is forwarded passage by passage, on
    wires that have a ``text_form``.
    """

    _call_type: ClassVar[type[Any]] = CollapsibleCall
    text_form: ClassVar[TextForm[Any] | None] = None

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
        self._thoughts = _Thoughts(LoneReasoning() if lone is None else lone)
        self._nameless: set[str] = set()
        self._unread: list[Arrival] = []  # frames that wait for a name
        self._passes = False  # the wire broke: the rest is for the SDK to judge

    @property
    def is_holding(self) -> bool:
        """Whether something waits for the decision about a call, or for the end of its passage."""
        return bool(self._slots or self._unread or (self._passages is not None and self._passages.is_holding))

    @property
    def keep_alive(self) -> bytes:
        """What may be sent while something is held: the wire's own sign of life, so that the reader above counts it.

        An SDK drops anything that is not an event, so a framework that limits the time between events would not see that.
        """
        return self._framing.keep_alive

    @property
    def next_number(self) -> int:
        """The number that the next block of the message would have had, where blocks have numbers."""
        return 0

    @property
    def items(self) -> list[Any]:
        """The items that have ended, on wires where a later answer has to list them: calls as they left, all else as is."""
        return []

    def feed(self, data: bytes) -> Read:
        """Reads bytes of the body. Never raises: an error is part of the result."""
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
        """Gives the parts of the frame their places. ``chunk`` and ``pieces`` are what the decoder read in it."""

    @abstractmethod
    def _whole(self, call: C) -> list[Output]:
        """What leaves for a completed call."""

    @abstractmethod
    def _left_out(self, call: C) -> list[Output]:
        """What leaves for a call that is left out: the parts of its frames that have to leave all the same."""

    def _passed(self, frame: Frame, value: Any = None) -> bytes:
        """A frame as it leaves: with another value if one is given, and with numbers that fit what left before."""
        return self._framing.write(frame, None if value is None else codec.encode_line(value))

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
        """What leaves after this frame, which brought these events. In them, a call that does not fit becomes a discard."""
        pieces = self._decoder.pieces
        if self._passages is not None and not pieces and self._decoder.says_as_read:
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
                self._thoughts.think()  # a frame with a name holds more than text
                return self._pass(frame)
        ended = self._note(events)
        self._decoder.expects_piece = bool(pieces)
        self._arrive(frame, self._decoder.chunk, pieces, over=ended or self._decoder.error is not None)
        return self._leave()

    def _finish(self, events: list[WireEvent], frames: Sequence[Frame]) -> list[Output]:
        """What leaves at the end of the body, which brought these events and ended in these frames: everything.

        By then the decoder has completed or discarded every call, whether the body ended or the decoder broke; or it has
        paused, and the open calls leave in the next body.
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

    def _note(self, events: list[WireEvent]) -> bool:
        """Records what events say about calls. Returns whether a response ended in them."""
        ended = False
        for place, event in enumerate(events):
            match event:
                case CallStarted():
                    assert self._collapse is not None
                    self._calls[event.call_id] = self._call_type(
                        event.call_id,
                        collapsed=self._collapse(event.name),
                        name=event.name,
                        provider_id=event.provider_id,
                        signature=event.signature,
                        encoding=event.encoding,
                    )
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
                case ResponseEnded():
                    ended = True
                case _:
                    pass
        return ended

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
                    elif not isinstance(slot, Aside):
                        self._thoughts.lead()
                    if slot.frame.text is not None:
                        out += self._pass(slot.frame)
                    else:
                        out += self._release()
                        out += [Output(self._passed(slot.frame))] if slot.write is None else slot.write()
                case CollapsibleCall():
                    call: Any = slot
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
        said = events[1:] if events and type(events[0]) is MessageStarted else events
        if self._passages is None or len(said) != 1:
            return None
        [piece] = said
        if type(piece) is not TextAppended and type(piece) is not ReasoningAppended:
            return None
        text = piece.text
        passage = self._passages.passage_of(frame.payload) if text and frame.payload is not None else None
        return None if passage is None else (passage, text)

    def _pass(self, frame: Frame) -> list[Output]:
        """Lets a frame leave, after those that are held, or holds it too."""
        if self._passages is None or frame.text is None:
            return [*self._release(), Output(self._passed(frame))]
        held = self._passages.hold(frame)
        return [] if held is None else [Output(self._passed(*held))]

    def _release(self) -> list[Output]:
        held = None if self._passages is None else self._passages.release()
        return [] if held is None else [Output(self._passed(*held))]


class NumberedCollapser(Collapser[N]):
    """Rewrites a response with numbered blocks or items: those after one that was left out move up."""

    def __init__(self, decoder: Decoder[Any], **settings: Any) -> None:
        super().__init__(decoder, **settings)
        self._reasoning: set[int | None] = set()  # the numbers of open blocks or items of reasoning
        self._missing: list[int] = []  # the numbers of blocks or items that were left out
        self._highest = -1  # number that came

    @property
    def next_number(self) -> int:
        return self._moved_up(self._highest + 1)

    def _left_out(self, call: N) -> list[Output]:
        if call.index is not None:
            self._missing.append(call.index)
        return []

    def _begin_message(self, frame: Frame) -> list[Output]:
        """The first frame of a message or a response leaves: numbering starts over."""
        self._missing.clear()
        return [Output(self._passed(frame))]

    def _moved_up(self, index: int) -> int:
        return index - sum(missing < index for missing in self._missing)


# -- calls that are blocks ---------------------------------------------------------------------------------------------
# A start names the call, deltas bring its arguments, and a stop ends it; they are distinguished by the number of the block.

Part: TypeAlias = Literal["start", "delta", "stop", "message"]
"""What an event is: a part of a block, or the beginning of a message."""


class _BlockCall(NumberedCall):
    """A call and the frames of its block that leave with it."""

    start: Frame = msgspec.field(default_factory=Frame)
    delta: Frame | None = None  # the first one
    stop: Frame | None = None


class BlockCollapser(NumberedCollapser[_BlockCall]):
    """Writes a call as one block. A wire says what its frames look like, and which field has the number of a block.

    A whole call is its block's start and stop as they came, and between them one delta with all of its arguments. Where the
    start brought arguments (some servers, and Anthropic's programmatic calls), they are moved into that delta: not every
    reader of streams looks for them in the start, and one that does not would run the tool with nothing.

    Blocks after one that was left out are numbered anew, because SDKs take a block's number for its place in the message.
    """

    _call_type = _BlockCall
    _number: ClassVar[str] = "index"
    _parts: ClassVar[Mapping[str, Part]] = {}
    """What an event is, by its type."""
    _delta_event: ClassVar[bytes] = b""
    """The name of the event that brings arguments."""

    def _seen(self, frame: Frame, chunk: Any) -> tuple[Part | None, int | None]:
        """Which part of which block an event is; None for the part if it is something else."""
        return self._parts.get(chunk.type), chunk.index

    def _names_of(self, part: Part, index: int | None, chunk: Any) -> Sequence[object] | None:
        """The names that identify the reasoning in an event; None if it is not an event of reasoning."""
        return None

    def _without_arguments(self, start: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The payload of a call's start without its arguments, and that of a delta for them; None if it brought none."""
        return None

    @abstractmethod
    def _with_arguments(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        """The payload of a delta with other arguments."""

    def _has_number(self, event: dict[str, Any]) -> bool:
        """Whether an event has the number of a block that may move up."""
        return isinstance(event.get(self._number), int)

    def _is_mere_delta(self, call: _BlockCall, frame: Frame, chunk: Any) -> bool:
        if call.delta is None:
            call.delta = frame
        return True

    def _place(self, frame: Frame, chunk: Any, pieces: Sequence[str | None]) -> None:
        part, index = (None, None) if chunk is None else self._seen(frame, chunk)
        if index is not None and index > self._highest:
            self._highest = index
        call = self._calls.get(pieces[0]) if pieces else None
        if part is None:
            self._slots.append(Aside(frame))
        elif part == "message":
            self._reasoning.clear()
            self._highest = -1
            self._slots.append(Aside(frame, partial(self._begin_message, frame)))
        elif call is not None and call.collapsed:
            self._withhold(call, part, index, frame)
        elif (names := self._names_of(part, index, chunk)) is not None:
            self._reasoning.add(index)
            self._slots.append(Reasoning(frame, names=names))
        elif part == "stop" and index in self._reasoning:
            self._reasoning.discard(index)
            self._slots.append(Reasoning(frame))
        else:
            self._slots.append(Passing(frame))

    def _withhold(self, call: _BlockCall, part: Part, index: int | None, frame: Frame) -> None:
        """Keeps a frame of a collapsed call, if it is needed later."""
        match part:
            case "start":
                call.start, call.index = frame, index
                self._reasoning.discard(index)
                self._slots.place(call)
            case "delta":
                call.delta = call.delta or frame
            case _:
                call.stop = frame

    def _whole(self, call: _BlockCall) -> list[Output]:
        start = read_json(call.start.payload)
        bare, made = self._without_arguments(start) or (None, None)
        leaving = [self._passed(call.start, bare)]
        delta = call.delta
        if delta is None and made is not None:
            numbered = {**made, self._number: start[self._number]} if self._number in start else made
            delta = Frame(codec.encode(numbered), self._delta_event)
        if delta is not None:
            before = read_json(delta.payload)
            leaving.append(self._passed(delta, changed(before, self._with_arguments(before, call.args_json))))
        if call.stop is not None:
            leaving.append(self._passed(call.stop))
        return [Output(b"".join(leaving), (call.call_id,))]

    def _passed(self, frame: Frame, value: Any = None) -> bytes:
        if self._missing:
            event = read_json(frame.payload) if value is None else value
            if isinstance(event, dict) and self._has_number(event):
                value = changed(event, {**event, self._number: self._moved_up(event[self._number])}) or value
        return super()._passed(frame, value)


# -- calls in chunks that may hold more --------------------------------------------------------------------------------


class ChunkCall(CollapsibleCall):
    """A call that is folded from the parts of its chunks. ``frame`` and ``began_in``: the first of these, as it came."""

    frame: Frame = msgspec.field(default_factory=Frame)
    began_in: dict[str, Any] = msgspec.field(default_factory=dict)

    @abstractmethod
    def add(self, part: dict[str, Any]) -> None:
        """Adds what a part of a chunk holds."""


class OwnedPiece(NamedTuple):
    """A piece of a chunk, and its call. ``begins``: the call begins with it; ``is_withheld``: it leaves with the call."""

    piece: dict[str, Any]
    call: Any = None
    begins: bool = False
    is_withheld: bool = False


class Split(NamedTuple):
    """A part of a chunk, or all of it, and the call that it is withheld for.

    ``begun``: the pieces in it that begin a call and pass, each with its choice.
    """

    part: dict[str, Any]
    call: Any = None
    begun: Sequence[tuple[int, OwnedPiece]] = ()


S = TypeVar("S", bound=ChunkCall)


class ChunkCollapser(Collapser[S]):
    """Gives the parts of chunks their places, for responses whose chunks may hold pieces of several calls, and more.

    A wire splits a chunk into chunks, each with a piece of one collapsed call or with none. Anything meaningful by itself
    that is not a piece of a collapsed call passes: content before a call leaves before it, a finish reason after it. The
    rest goes with the call, which keeps all that its parts bring (``add``) and leaves in a chunk made of that.
    """

    @abstractmethod
    def _split(self, chunk: dict[str, Any], calls: Sequence[S | None]) -> Iterable[Split]:
        """The parts of a chunk in order. ``calls``: the owners of its pieces; those after an error have no owner."""

    def _place(self, frame: Frame, chunk: Any, pieces: Sequence[str | None]) -> None:
        value = read_json(frame.payload) if pieces else None
        if value is None:
            self._slots.append(Passing(frame))
            return
        for split in self._split(value, [self._calls.get(piece) for piece in pieces]):
            call = split.call
            if call is None:
                self._slots.append(Passing(frame, partial(self._pass_part, frame, value, split)))
                continue
            if not call.began_in or call.is_aside:
                call.frame, call.began_in = frame, value
                self._slots.place(call)
            call.add(split.part)

    def _pass_part(self, frame: Frame, chunk: dict[str, Any], split: Split) -> list[Output]:
        """A part of the frame's chunk whose turn has come."""
        return [Output(self._passed(frame, changed(chunk, split.part)))]


# -- what they share ---------------------------------------------------------------------------------------------------


def changed(before: Any, after: Any) -> Any:
    """The value to write a frame with; None if it is unchanged, so that the frame keeps its bytes."""
    return None if before == after else after


def judge(completed: CallCompleted, call: CollapsibleCall | CallStarted, check: Check | None) -> CallDiscarded | None:
    """The event that discards a completed call because its tool must not run on its arguments; None if it may."""
    wrong = check(call.name, completed.args_json or "") if check is not None and call.encoding == "json" else None
    return None if wrong is None else CallDiscarded(completed.call_id, *wrong)


def read_json(payload: bytes | None) -> Any:
    """The value of a payload, None where it is not JSON."""
    try:
        return codec.decode(payload or b"")
    except (ValueError, RecursionError):
        return None
