"""A fault of a call's arguments: where it is, what was expected there and what came, in a sentence for the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from callstream.jsontext.path import Path, format_path

_MAX_SHOWN: Final = 40
_MAX_SENTENCES: Final = 5


class Fault(msgspec.Struct, frozen=True):
    """One thing that does not fit. ``got`` is None where nothing is at ``path``.

    ``rule`` is a sentence about the value for what "should be …" cannot express, such as a validator's own message.
    """

    path: Path
    expected: str
    got: str | None = None
    rule: str | None = None

    def __str__(self) -> str:
        subject = f"the argument {_name(self.path)!r}" if self.path else "the arguments"
        if self.rule is not None:
            return f"{subject}: {self.rule}" if self.got is None else f"{subject}: {self.rule}, got {self.got}"
        if self.got is None:
            return f"{subject} is missing" if self.path else "the arguments are missing"
        return f"{subject} should be {self.expected}, got {self.got}"


class UnknownArgument(Fault, frozen=True):
    """A name that the tool, or the object that it is in, does not have. ``known`` are those that the object has."""

    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        if len(self.path) == 1:
            return f"there is no argument {_name(self.path)!r}"
        text = f"there is no field {self.path[-1]!r} in the argument {_name(self.path[:-1])!r}"
        return f"{text}, whose fields are {', '.join(self.known)}" if self.known else text


class Misfit(ValueError):
    """A value does not fit its annotation. The paths of the faults begin at the value."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults

    def within(self, path: Path) -> list[Fault]:
        """The faults as seen from where the value is at this path."""
        return [msgspec.structs.replace(fault, path=(*path, *fault.path)) for fault in self.faults]


def _name(path: Path) -> str:
    """``guest.rooms[0]``: a path as it is written in Python, without the root."""
    return str(path[0]) if len(path) == 1 else format_path(path).removeprefix("$.")


def describe(faults: Sequence[Fault], names: Iterable[str] = ()) -> str:
    """The faults for the model, one sentence each, and the names of the tool's arguments if there are any."""
    sentences = [str(fault) for fault in faults[:_MAX_SENTENCES]]
    text = ". ".join([sentences[0], *(sentence[0].upper() + sentence[1:] for sentence in sentences[1:])])
    if len(faults) > len(sentences):
        text += f". There are {len(faults) - len(sentences)} more faults like these"
    listed = ", ".join(names)
    return f"{text}; its arguments are {listed}" if listed else text


def show(value: Any) -> str:
    """A value of JSON as a sentence names it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value!r:.{_MAX_SHOWN}}"
        case str():
            return f"the string {value!r}" if len(value) <= _MAX_SHOWN else f"the string {value[:_MAX_SHOWN]!r}…"
        case list() | tuple():
            return "an array"
        case dict():
            return "an object"
        case _:
            return f"{type(value).__name__} {value!r:.{_MAX_SHOWN}}"
