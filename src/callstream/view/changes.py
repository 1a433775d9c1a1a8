"""What a record changed in the view of its run. Interfaces are tables over these.

A change names what it is about by its place in the view, which has changed already. What is written grows as JSON text for
every call: the input of a free-text tool is the inside of one JSON string, whose quotes come with the first piece and at the
end.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from callstream.view.items import AnswerView, CallView, InputView, MessageView, Outcome, Part


class Began(msgspec.Struct, frozen=True, gc=False):
    """The first change of every run. ``input``: what it was started with."""

    input: Any


class InputCame(msgspec.Struct, frozen=True, gc=False):
    item: InputView


class MessageBegan(msgspec.Struct, frozen=True, gc=False):
    """A model began a message; nothing of it may have come yet."""

    message: MessageView


class Opened(msgspec.Struct, frozen=True, gc=False):
    """A passage or a call began. Text follows, or what ends it."""

    part: Part


class Grew(msgspec.Struct, frozen=True, gc=False):
    """``text``: what was added, as it was written. ``json``: the same of a call's arguments, as JSON text."""

    part: Part
    text: str
    json: str = ""


class Closed(msgspec.Struct, frozen=True, gc=False):
    """A passage ended, or the provider ended the arguments of a call."""

    part: Part


class Signed(msgspec.Struct, frozen=True, gc=False):
    """A thought signature came after the call had begun; ``call.signature`` has it."""

    call: CallView


class RanEarly(msgspec.Struct, frozen=True, gc=False):
    """The tool began while its call was being written."""

    call: CallView


class Asked(msgspec.Struct, frozen=True, gc=False):
    """The call awaits an answer, or the answer to another call that asks about it (``call.is_paused``)."""

    call: CallView


class Progressed(msgspec.Struct, frozen=True, gc=False):
    """A running tool reported ``data`` to its interface."""

    call: CallView | AnswerView
    data: Any


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A call ended. ``cut_off``: its arguments were being written, and will not be finished."""

    call: CallView | AnswerView
    outcome: Outcome
    cut_off: bool = False


class StateMoved(msgspec.Struct, frozen=True, gc=False):
    """The shared state is another. ``patch``: how it came from the one before; None if all of it was replaced."""

    state: Any
    patch: list[dict[str, Any]] | None = None


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The last change of every run; everything is closed and settled, or awaits an answer."""


ViewChange: TypeAlias = (
    Began
    | InputCame
    | MessageBegan
    | Opened
    | Grew
    | Closed
    | Signed
    | RanEarly
    | Asked
    | Progressed
    | Settled
    | StateMoved
    | Ended
)
