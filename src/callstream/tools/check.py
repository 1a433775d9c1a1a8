"""Whether the arguments of a call fit the JSON Schema that the tool was declared with, at the end or while they are written.

Which keywords are judged, and why a verdict is final, is said in ``judge``. A schema that cannot be judged must not keep a
tool from running, so everything else fits. An optional argument may be null, because models write null for what they leave
out.
"""

from __future__ import annotations

from typing import Any

from callstream.codec import repeated_name
from callstream.errors import WireError
from callstream.events import DiscardReason
from callstream.jsontext import Change, JsonStream
from callstream.tools.fault import Fault, describe, show
from callstream.tools.judge import Judge
from callstream.tools.keywords import kind_of


def faults(schema: Any, value: Any, *, lenient: bool = True, formats: bool = False) -> list[Fault]:
    """What in the arguments does not fit the schema; nothing if they fit. ``formats``: dates and the like are read, too."""
    judge = Judge(schema, lenient=lenient, formats=formats)
    judge.read(value)
    return judge.faults


def outline_faults(schema: Any, value: Any) -> list[Fault]:
    """Which arguments are missing, and which are of another type. Whose tool it is may be lenient in the rest."""
    judge = Judge(schema, lenient=True, outline=True)
    judge.read(value)
    return judge.faults


def argument_names(schema: Any) -> list[str]:
    """The names of the arguments that a tool was declared with."""
    names = schema.get("properties") if isinstance(schema, dict) else None
    return list(names) if isinstance(names, dict) else []


class StreamCheck:
    """Judges arguments while they are written. ``faults`` are certain: no text that may follow can mend them.

    A name that comes twice in an object is a fault of its own kind (``duplicate``): readers of JSON disagree about what it
    means, so a verdict about the first value could turn. Text that is not JSON is not judged here.
    """

    def __init__(self, schema: Any, *, lenient: bool = True) -> None:
        self._judge = Judge(schema, eager=True, lenient=lenient)
        self._lenient = lenient
        self._argument_names = argument_names(schema)
        self._stream = JsonStream()
        self._names: list[set[str]] = []  # of every value that is open
        self._has_begun = False
        self._is_over = False
        self.duplicate: str | None = None
        """The name that came twice."""

    @property
    def faults(self) -> list[Fault]:
        return self._judge.faults

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    @property
    def is_refused(self) -> bool:
        return bool(self.faults) or self.duplicate is not None

    def feed(self, text: str) -> bool:
        """Reads more of the text. Whether the call is refused."""
        self._has_begun = True
        if not self.is_refused and self._stream.error is None:
            try:
                self._apply(self._stream.feed(text))
            except WireError:
                pass  # not JSON, or more than fits into memory: that is judged elsewhere
        return self.is_refused

    def end(self) -> bool:
        """The text is whole: a number, if it is nothing else, is known now. Whether the call is refused."""
        try:
            value = self._stream.close()
        except WireError:
            return self.is_refused
        if not self._is_over and not self._names:
            self._apply([Change((), "set", value)])
        return self.is_refused

    @property
    def refusal(self) -> tuple[DiscardReason, str] | None:
        """Why the call is discarded, if it is."""
        if self.duplicate is not None:
            return "malformed", repeated_name(self.duplicate)
        return ("invalid", describe(self.faults, self._argument_names)) if self.faults else None

    def _apply(self, changes: list[Change]) -> None:
        for change in changes:
            if self._lenient and not change.path and change.value is None:
                self._judge.read({})  # some models write null for no arguments
                self._is_over = True
                return
            if change.kind != "close" and len(self._names) == len(change.path):
                self._begin(change)
            if self.is_refused:
                return
            if change.kind == "append":
                self._judge.append(change.value)
            elif change.kind != "open":
                self._end(change.value)

    def _begin(self, change: Change) -> None:
        step = change.path[-1] if change.path else None
        if isinstance(step, str):
            if step in self._names[-1]:
                self.duplicate = step
                return
            self._names[-1].add(step)
        self._names.append(set())
        got = "a string" if change.kind == "append" else show(change.value)
        self._judge.begin(step, kind_of(change.value), got)

    def _end(self, value: Any) -> None:
        self._names.pop()
        self._judge.end(value)
        self._is_over = not self._names
