"""What hooks receive while arguments arrive, and the signal that informs them that the tool will not run.

Text is only parsed as JSON on demand: for a field hook, or a raw hook that looks at ``changes`` or ``args``. Then every
character is read once. A delta that was kept and is asked after later ones have been read parses its text again from the
beginning; it always says what was known at that delta.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import msgspec

from callstream.errors import WireError
from callstream.events import Encoding
from callstream.jsontext.path import Path
from callstream.jsontext.stream import Change, JsonStream


class ArgsText:
    """The argument text of one call, piece by piece, and its values. May be used in any thread."""

    def __init__(self, encoding: Encoding = "json") -> None:
        self._encoding: Encoding = encoding
        self._pieces: list[str] = []
        self._lock = threading.Lock()
        self._stream: JsonStream | _FreeText | None = None
        self._read = 0
        self._changes: list[Change] = []

    @property
    def error(self) -> WireError | None:
        """The mistake in the text, once reading has reached it."""
        return self._stream.error if self._stream is not None else None

    def add(self, text: str) -> int:
        """Adds the next piece, unread, and returns its index."""
        self._pieces.append(text)
        return len(self._pieces) - 1

    @property
    def whole(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def changes_at(self, index: int) -> list[Change]:
        """What the piece at that index changed."""
        with self._lock:
            return self._read_at(index)[1]

    def value_at(self, index: int) -> Any:
        """What was known after the piece at that index."""
        with self._lock:
            return self._read_at(index)[0].value

    def _read_at(self, index: int) -> tuple[JsonStream | _FreeText, list[Change]]:
        """A reader that has read up to the end of the piece at that index, and what that piece changed."""
        if self._read > index + 1:
            again = self._new_stream()
            again.feed("".join(self._pieces[:index]))
            return again, again.feed(self._pieces[index])
        if self._stream is None:
            self._stream = self._new_stream()
        if self._read < index:
            self._stream.feed("".join(self._pieces[self._read : index]))
            self._read = index
        if self._read == index:
            self._changes = self._stream.feed(self._pieces[index])
            self._read = index + 1
        return self._stream, self._changes

    def _new_stream(self) -> JsonStream | _FreeText:
        return JsonStream(unique_names=True) if self._encoding == "json" else _FreeText()


class _FreeText:
    """Reads the input of a free-text tool: one string, at the root, which cannot contain a mistake."""

    error = None

    def __init__(self) -> None:
        self.value = ""

    def feed(self, text: str) -> list[Change]:
        self.value += text
        return [Change((), "append", text)]


class ArgsDelta(msgspec.Struct, frozen=True):
    """A piece of argument text as it arrived, or several adjacent ones that had to wait.

    ``seq`` is the number of the run's record that has its last piece, ``tool_arg_delta.seq`` in the journal's database. It
    grows from delta to delta. ``changes`` and ``args`` are read from the text on demand. If the text has a mistake they
    return what came before it, and raise WireError if that was nothing. A delta that is made by hand, to test a hook, is
    read as the beginning of its call.
    """

    call_id: str
    tool_name: str
    seq: int
    text: str
    source: ArgsText | None = None
    index: int = 0

    @property
    def changes(self) -> list[Change]:
        """What the text changed in the arguments."""
        return (self.source or self._alone()).changes_at(self.index)

    @property
    def args(self) -> Any:
        """The arguments as far as they were known at this delta; a string being written shows its beginning."""
        return (self.source or self._alone()).value_at(self.index)

    def _alone(self) -> ArgsText:
        source = ArgsText()
        source.add(self.text)
        return source

    def __repr__(self) -> str:
        return f"ArgsDelta({self.call_id!r}, {self.tool_name!r}, seq={self.seq}, text={self.text!r})"


class FieldDelta(msgspec.Struct, frozen=True):
    """How one field grew with a delta.

    ``text`` is what was added to it if it is a string; joined, it is the string. Anything else is only in ``value``.
    ``first`` is true once, at the field's beginning, and ``complete`` at its end.
    """

    call_id: str
    tool_name: str
    seq: int
    path: Path
    text: str
    complete: bool = False
    first: bool = False
    delta: ArgsDelta | None = None
    whole: Any = msgspec.UNSET

    @property
    def value(self) -> Any:
        """The field as far as it was known at this delta."""
        if self.whole is not msgspec.UNSET:
            return self.whole
        if self.delta is None:
            return self.text
        value = self.delta.args
        for step in self.path:
            value = value[step]
        return value

    def __repr__(self) -> str:
        return (
            f"FieldDelta({self.call_id!r}, {self.tool_name!r}, seq={self.seq}, path={self.path!r}, text={self.text!r}, "
            f"complete={self.complete})"
        )


# -- the signal --------------------------------------------------------------------------------------------------------


class AbortSignal:
    """Tells every hook of one call that its tool will not run. Set at most once; may be read and set in any thread.

    ``abort`` is for the signal's creator; a hook that wants to refuse the call raises ``Reject``.
    """

    __slots__ = ("_lock", "_reason", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def aborted(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why, or None if it was not aborted."""
        return self._reason

    async def wait(self) -> str:
        """Waits until the signal is set, and returns the reason."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if self._reason is not None:
                return self._reason
            self._waiting.append(entry)
        try:
            await event.wait()
        finally:
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)
        return cast(str, self._reason)

    def abort(self, reason: str) -> bool:
        """Sets the signal. Returns false and changes nothing if it was set before."""
        with self._lock:
            if self._reason is not None:
                return False
            self._reason = reason
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
        return True

    def __repr__(self) -> str:
        return f"AbortSignal(reason={self._reason!r})"
