"""A JSON Schema against a value that is still being written: a fault is found as soon as nothing can mend it any more.

``Judge`` is told of a value in the order of its text: ``begin``, ``append`` for strings, what is inside, ``end``.
``faults`` grows by what is certain, so it says nothing that the rest of the document could turn; at the end of the root it
is the verdict. Why that holds: every schema that applies to a value has one ``Verdict`` there. It fails by a keyword that
is decided by what has come (a type by the first character, a maximum by one too many), or because one that it needs has
failed; ``anyOf`` has failed when all its branches have, and ``not`` or ``contains`` are decided when their value ends.

One value has one verdict per schema, however many lead to it, so the work is linear in the document for any schema.

All keywords but those of ``KEYWORDS`` fit, and so do references that lead out of the schema or nowhere, and patterns that
are no regular expressions of Python's. Types may be in Gemini's capitals, and ``nullable`` is known.
"""

from __future__ import annotations

from typing import Any, Final

from callstream.jsontext.path import Path
from callstream.tools.fault import Fault, show
from callstream.tools.keywords import equality_key, kind_of
from callstream.tools.verdict import Hear, Verdict

_MAX_FAULTS: Final = 100
"""Faults that are kept; nobody reads more."""
_MAX_NESTED: Final = 100
"""Schemas that may lead to each other at one value."""


class Judge:
    """``eager``: the first fault is enough, as early as it is certain. Else all faults are wanted.

    ``lenient``: a member of the root that is not required may be null, because models write null for what they leave out.
    ``outline``: only the types of the root and of its members are judged, and which members are required.
    ``formats``: strings are read by those of ``FORMATS``, as msgspec reads them.
    """

    def __init__(
        self, schema: Any, *, eager: bool = False, lenient: bool = False, outline: bool = False, formats: bool = False
    ) -> None:
        self.root = schema
        self.eager = eager
        self.lenient = lenient
        self.outline = outline
        self.formats = formats
        self.faults: list[Fault] = []
        self._frames: list[ValueFrame] = []

    def begin(self, step: str | int | None, kind: str, got: str) -> None:
        """A value begins: the root (``step`` is None), or a member or an item of the open container.

        ``kind`` is its type by the words of JSON Schema, where integers are numbers; ``got`` names it in sentences.
        """
        if step is None or not self._frames:
            frame = ValueFrame(self, (), kind, got)
            frame.check(self.root, self._hear_root)
        else:
            parent = self._frames[-1]
            frame = ValueFrame(self, (*parent.path, step), kind, got)
            parent.begin_child(step, frame)
        self._frames.append(frame)
        for check in frame.list_checks():
            check.begin()

    def append(self, text: str) -> None:
        """More of the string that is open."""
        self._frames[-1].append(text)

    def end(self, value: Any) -> None:
        """The open value is whole."""
        frame = self._frames.pop()
        frame.got = show(value) if frame.kind == "string" else frame.got
        for check in frame.list_checks():
            check.decide(value)
        if self._frames:
            self._frames[-1].end_child(value)

    def read(self, value: Any, step: str | int | None = None) -> None:
        """All of a value at once."""
        kind = kind_of(value)
        self.begin(step, kind, show(value))
        if self.outline and step is not None:
            pass  # what is inside is not judged, and may be deep
        elif kind == "string":
            self.append(value)
        elif kind == "object":
            for name, member in value.items():
                self.read(member, name)
        elif kind == "array":
            for index, item in enumerate(value):
                self.read(item, index)
        self.end(value)

    def _hear_root(self, faults: list[Fault] | None) -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults += [fault for fault in faults or () if fault not in self.faults]


class ValueFrame:
    """One value that is open: what has come of it, and a check for each schema that applies to it."""

    __slots__ = ("_checks", "count", "got", "judge", "kind", "length", "names", "path", "seen", "text")

    def __init__(self, judge: Judge, path: Path, kind: str, got: str) -> None:
        self.judge = judge
        self.path = path
        self.kind = kind
        self.got = got
        self.names: set[str] = set()
        self.count = 0
        self.length = 0
        self.text: str | None = ""
        self.seen: set[Any] = set()
        self._checks: dict[int, Verdict] = {}

    def check(self, schema: Any, hear: Hear, nested: int = 0) -> Verdict:
        """The check of that schema, which is told to somebody more."""
        found = self._checks.get(id(schema))
        if found is None:
            found = self._checks[id(schema)] = Verdict(self, schema)
            found.listeners.append(hear)
            if nested < _MAX_NESTED:
                found.expand(nested + 1)
        elif found.is_expanding:
            return found  # it refers to itself without anything in between, which says nothing
        else:
            found.listeners.append(hear)
        return found

    def list_checks(self) -> list[Verdict]:
        return list(self._checks.values())

    def begin_child(self, step: str | int, child: ValueFrame) -> None:
        self.count += 1
        if isinstance(step, str):
            self.names.add(step)
        for check in self._checks.values():
            check.begin_child(step, child)

    def end_child(self, value: Any) -> None:
        if self.kind != "array":
            return
        watching = [check for check in self._checks.values() if check.wants_unique]
        if watching:
            key = equality_key(value)
            if key in self.seen:
                for check in watching:
                    check.fail(Fault(self.path, "an array without equal items", f"two of {show(value)}"))
            self.seen.add(key)

    def append(self, text: str) -> None:
        self.length += len(text)
        watching = [check for check in self._checks.values() if check.watches_text]
        if watching:
            self.text = None if self.text is None else self.text + text
            for check in watching:
                check.append()
