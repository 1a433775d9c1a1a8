"""The values of a document that is being written: strings and scalars (leaves) in containers (branches).

A node knows its path and how much of it the text holds; who puts nodes into the text, and when, is the writer's affair.
"""

from __future__ import annotations

import math
from enum import Enum
from json.encoder import encode_basestring
from typing import TypeAlias

from callstream.codec import escape_surrogates, from_utf8, utf8
from callstream.errors import UsageError, WireError
from callstream.jsontext.path import Path


class State(Enum):
    UNWRITTEN = 0
    OPEN = 1
    CLOSED = 2


class Leaf:
    """A string (as UTF-8) or a scalar (its literal). ``stale``: the text holds an older value."""

    __slots__ = ("done", "path", "stale", "state", "value")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = State.UNWRITTEN
        self.value: bytearray | str = ""
        self.done = False
        self.stale = False

    def assign(self, value: str | float | None, more: bool) -> None:
        changed = True
        if not isinstance(value, str):
            before, self.value = self.value, literal(value)
            changed = self.value != before
        else:
            if isinstance(self.value, str):
                self.value = bytearray()
            else:
                changed = value != ""
            self.value += utf8(value)
        self.done = not more
        self.stale = self.stale or (changed and self.state is State.CLOSED)

    def string(self) -> str | None:
        return None if isinstance(self.value, str) else from_utf8(self.value)

    def text(self) -> str:
        return self.value if isinstance(self.value, str) else f'"{escape(from_utf8(self.value))}"'


class Branch:
    """A container. ``array`` is None until something says what it is; ``count`` members are in the text.

    ``waiting`` holds the children that are to be written next, in order of arrival: of an array at most the next item.
    """

    __slots__ = (
        "array",
        "bracketed",
        "children",
        "count",
        "declared",
        "path",
        "state",
        "waiting",
    )

    stale = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = State.UNWRITTEN
        self.array: bool | None = None
        self.bracketed = False
        self.declared = False
        self.count = 0
        self.children: dict[str | int, Node] = {}
        self.waiting: dict[str | int, Node] = {}


Node: TypeAlias = Leaf | Branch


def escape(text: str) -> str:
    """The inside of a JSON string. Surrogates are escaped one by one, so that halves in two pieces make a pair."""
    escaped = encode_basestring(text)[1:-1]
    return escaped if escaped.isascii() else escape_surrogates(escaped)


def label(branch: Branch, step: str | int) -> str:
    """What stands before a child that ``branch.count`` counts already: a comma, a name."""
    comma = "," if branch.count > 1 else ""
    return f'{comma}"{escape(step)}":' if isinstance(step, str) else comma


def literal(value: float | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if not isinstance(value, float):
        raise UsageError(f"expected a string, a number, a boolean, None or EMPTY, got {type(value).__name__}")
    if not math.isfinite(value):
        raise WireError(f"expected a number that JSON can express, got {value!r}")
    return str(int(value)) if value.is_integer() else repr(value)


def shown(node: Node | None) -> str:
    """What a node holds, for an error message."""
    if node is None:
        return "nothing"
    if isinstance(node, Leaf):
        return f"{node.text():.80}"
    return "an array" if node.array else "an object"
