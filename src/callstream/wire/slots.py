"""The order in which the parts of a response leave a collapser, and text that leaves passage by passage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from callstream import codec
from callstream.events import Encoding
from callstream.wire.framing import Frame


class CollapsibleCall(msgspec.Struct, eq=False):
    """A call on its way through the collapser. A wire adds the frames of the call that it keeps."""

    call_id: str
    collapsed: bool = True
    name: str = ""
    provider_id: str | None = None
    signature: str | None = None
    encoding: Encoding = "json"
    args_json: str = ""
    state: Literal["open", "completed", "left_out"] = "open"
    placed: bool = False  # it has its place in the order
    is_aside: bool = False  # it had its place in the body before, and goes on in this one
    gone: bool = False  # it was forwarded or left out

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


class Output(msgspec.Struct, frozen=True):
    """Bytes to forward. ``call_ids``: the collapsed calls that they contain whole, by the decoder's ids."""

    data: bytes
    call_ids: tuple[str, ...] = ()


class Passing(msgspec.Struct, eq=False):
    """A frame that leaves when its turn comes. Where a wire rewrites it, ``write`` is called then for what leaves."""

    frame: Frame
    write: Callable[[], list[Output]] | None = None


class Reasoning(Passing):
    """A frame of reasoning. ``names``: what identifies this reasoning in later requests, if the frame has it."""

    names: Sequence[object] = ()


class Aside(Passing):
    """A frame that says nothing, such as a ping: reasoning before it cannot have led to it."""


class Over:
    """The end of a response: what follows belongs to another one."""


Slot: TypeAlias = Passing | CollapsibleCall | Over
"""A frame, a collapsed call, which leaves here or is left out, or the end of a response."""


class Slots(list[Slot]):
    """The waiting slots, in the order of the bytes; only the head ever leaves.

    A frame becomes slots when it has arrived and all of its pieces have names, so each slot's place is final from the
    beginning. The only open question can be whether a call is completed; the head leaves when its question is answered.
    At the end of the body every question is answered, so nothing stays behind; or the response pauses, and the calls that
    are open are placed anew in the next body. Reasoning leaves as it comes; whether it has led to anything is only known
    later (``collapsing._Thoughts``).
    """

    __slots__ = ()

    def place(self, call: CollapsibleCall) -> None:
        """Gives the call its place: it leaves here once it is decided."""
        call.placed, call.is_aside = True, False
        self.append(call)

    def set_aside(self) -> None:
        """Removes the undecided calls: they are placed anew when they go on."""
        for slot in [slot for slot in self if not _is_decided(slot)]:
            assert isinstance(slot, CollapsibleCall)
            slot.placed, slot.is_aside = False, True
            self.remove(slot)

    def pop_decided(self) -> list[Slot]:
        """The slots at the head, up to the first undecided call."""
        undecided = next((place for place, slot in enumerate(self) if not _is_decided(slot)), len(self))
        decided = self[:undecided]
        del self[:undecided]
        return decided


def _is_decided(slot: Slot) -> bool:
    if not isinstance(slot, CollapsibleCall):
        return True
    slot.gone = slot.state != "open"
    return slot.gone


# -- text that is joined -----------------------------------------------------------------------------------------------

Passage: TypeAlias = tuple[object, ...]
"""What a frame's text belongs to: only text of the same passage is joined."""
Joined: TypeAlias = tuple[Frame, dict[str, Any] | None]
"""A frame, and the payload to write it with; None for its own."""


P = TypeVar("P", bound=msgspec.Struct)


class TextForm(msgspec.Struct, Generic[P], frozen=True):
    """How a wire writes text.

    ``payloads`` reads payloads that hold text and nothing else, by a strict type; ``passage`` says which passage such a
    payload is part of, None if it is something else after all. ``with_text`` returns a payload with another text.
    """

    payloads: msgspec.json.Decoder[P]
    passage: Callable[[P], Passage | None]
    with_text: Callable[[dict[str, Any], str], dict[str, Any]]

    def passage_of(self, payload: bytes) -> Passage | None:
        """The passage that the payload adds text to, None if it holds anything else."""
        try:
            read = self.payloads.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return self.passage(read)


class Passages:
    """Holds back the frames of one passage, and returns them as one.

    The frame that leaves is the last of them with all of the text, because whatever else it holds (usage figures, a
    number) covers those before it. A wire's strict type says which frames hold nothing but text, so a frame with anything
    unknown in it, a signature, a citation, an end, is left as it is.
    """

    def __init__(self, form: TextForm[Any]) -> None:
        self.passage_of = form.passage_of
        self._form = form
        self._passage: object = None
        self._texts: list[str] = []
        self._last = Frame()

    @property
    def is_holding(self) -> bool:
        return bool(self._texts)

    def hold(self, frame: Frame) -> Joined | None:
        """Holds a frame back. Returns what was held so far if that is another passage."""
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
