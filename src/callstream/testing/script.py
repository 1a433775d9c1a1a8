"""What a provider is to answer, said without any provider's words: a script is a sequence of steps.

::

    [
        Thought("Where does the user live?"),
        Text("Let me look."),
        Call("get_weather", {"city": "Paris"}),
        Finish(),
    ]

``Finish``, ``Failure``, ``Truncated`` and ``Cut`` end a response; a script that has none of them ends with ``Finish()``.
``encoders`` turns a script into the bytes of each wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from callstream.errors import UsageError


class Text(msgspec.Struct, frozen=True):
    """Text of the answer, ``size`` characters a delta; all of it in one delta without a size."""

    text: str
    size: int | None = None


class Thought(msgspec.Struct, frozen=True):
    """Reasoning that the provider shows. ``signature`` is its encrypted form, where the wire has one."""

    text: str
    size: int | None = None
    signature: str | None = None


class Call(msgspec.Struct, frozen=True):
    """A tool call.

    ``call_id``: None lets the encoder number it where the wire has ids, "" leaves the id out of the bytes. ``size``:
    characters a delta. ``signature``: Gemini's thought signature, base64. ``streamed``: False sends the arguments whole,
    as the wire does that. ``text`` is the argument text to send in place of ``args``: pretty-printed, malformed, or with
    ``custom`` the input of a free-text tool. ``stop_after``: only that many deltas come, and the wire never ends the
    call; say with the next step whether the body just stops or the response finishes for lack of tokens.
    """

    name: str
    args: Any = {}
    call_id: str | None = None
    size: int = 8
    signature: str | None = None
    streamed: bool = True
    text: str | None = None
    custom: bool = False
    stop_after: int | None = None


class Parallel(msgspec.Struct, frozen=True):
    """Calls whose deltas alternate, on the wires that tell them apart; on the others one call after another."""

    calls: Sequence[Call]


class Finish(msgspec.Struct, frozen=True):
    """The normal end. ``reason`` is the wire's own word; None is the one that fits, ``length`` is known to every wire."""

    reason: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """The wire's own error object, and the end of the body. ``kind`` is the wire's name for such an error."""

    message: str
    kind: str | None = None


class Truncated(msgspec.Struct, frozen=True):
    """The body ends here, properly, but without a finish."""


class Delay(msgspec.Struct, frozen=True):
    """Nothing comes for that long. It is for whoever sends the bytes: encoders pass it on."""

    seconds: float


class Cut(msgspec.Struct, frozen=True):
    """The connection breaks here. It is for whoever sends the bytes: encoders pass it on."""


Step: TypeAlias = Text | Thought | Call | Parallel | Finish | Failure | Truncated | Delay | Cut
Script: TypeAlias = Sequence[Step]


def checked(script: Script) -> list[Step]:
    """The steps of a script that ends exactly once, at its end."""
    steps = list(script)
    for step in steps[:-1]:
        if isinstance(step, Finish | Failure | Truncated | Cut):
            raise UsageError(f"{step!r} ends the response, but the script goes on after it")
    if not steps or not isinstance(steps[-1], Finish | Failure | Truncated | Cut):
        steps.append(Finish())
    return steps
