"""The order in which the parts of a response leave a collapser, and text that leaves by the passage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from callstream import codec
from callstream.events import Encoding
from callstream.wire.framing import Frame


class CollapsibleCall(msgspec.Struct, eq=False):
    """A call on its way through the collapser. A wire adds what it keeps of the call's frames."""

    call_id: str
    collapsed: bool = True
    name: str = ""
    provider_id: str | None = None
    signature: str | None = None
    encoding: Encoding = "json"
    args_json: str = ""
    state: Literal["open", "completed", "left_out"] = "open"
    placed: bool = False  # it has its place in the order
    is_aside: bool = False  # it had one in the body before, and goes on in this
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
    """Bytes to forward. ``call_ids``: the collapsed calls that are whole in them, by the decoder's ids."""

    data: bytes
    call_ids: tuple[str, ...] = ()


class Passing(msgspec.Struct, eq=False):
    """A frame that leaves when its turn comes. ``write`` is asked then what it leaves as, where that depends on the wire."""

    frame: Frame
    write: Callable[[], list[Output]] | None = None


class Reasoning(Passing):
    """A frame of reasoning. ``names``: what tells this reasoning from all other in later requests, if the frame has it."""

    names: Sequence[object] = ()


class Aside(Passing):
    """A frame that says nothing, such as a ping: what comes before it has not led to it."""


class Over:
    """The response before it has ended."""


Slot: TypeAlias = Passing | CollapsibleCall | Over
"""A frame, a collapsed call, which leaves here or is left out, or the end of a response."""


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
        self.append(call)

    def set_aside(self) -> None:
        """Removes the calls that are not decided: they are placed anew when they go on."""
        for slot in [slot for slot in self if not _is_decided(slot)]:
            assert isinstance(slot, CollapsibleCall)
            slot.placed, slot.is_aside = False, True
            self.remove(slot)

    def pop_decided(self) -> list[Slot]:
        """The slots at the head, up to the first of which it is not decided what becomes of it."""
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
"""A frame, and the payload that it is to be written with; None: its own."""


P = TypeVar("P", bound=msgspec.Struct)


class TextForm(msgspec.Struct, Generic[P], frozen=True):
    """How a wire writes text.

    ``payloads`` reads what holds text and nothing else, by a strict type; ``passage`` says which passage that is part of, or
    None if it is anything else all the same. ``with_text`` is a payload with another text.
    """

    payloads: msgspec.json.Decoder[P]
    passage: Callable[[P], Passage | None]
    with_text: Callable[[dict[str, Any], str], dict[str, Any]]

    def passage_of(self, payload: bytes) -> Passage | None:
        """Which passage the payload adds text to, None if it holds anything else."""
        try:
            read = self.payloads.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return self.passage(read)


class Passages:
    """Holds frames of one passage back, and gives them as one.

    The frame that leaves is the last of them with all of the text, because what else it may hold (figures of usage, a
    number) counts for all before it. A wire says by a strict type which frames hold nothing but text, so that anything
    unknown in a frame, a signature, a citation, an end, keeps it as it is.
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
