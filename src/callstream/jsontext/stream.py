"""JSON text in, changes out, while the text is still being written.

``JsonStream`` reads one JSON document (RFC 8259, strictly) in pieces of any size. Each ``feed`` returns what its piece
changed; ``value`` is the document as far as it is known. The laws:

- Chunk boundaries mean nothing: any split of a text gives the same changes, once adjacent appends are joined.
- What was shown is never taken back: strings grow, containers get more. Half an escape, half a surrogate pair, half a
  number or half a literal is held back until it is whole. Only a name that comes twice begins its path anew, and with
  ``unique_names``, as the arguments of calls are read, it is a mistake.
- No text is read again, except half an escape or literal: 11 characters at most.
- An object that ``value`` or a ``Change`` returned is never changed later. Parts are shared, also with later values: do
  not write to them.
- ``close()`` agrees with ``json.loads``, including types and order of keys, on everything that RFC 8259 allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from json import JSONDecoder
from sys import getrefcount
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from callstream.codec import repeated_name
from callstream.errors import UsageError, WireError
from callstream.jsontext.path import Path

ChangeKind: TypeAlias = Literal["open", "append", "set", "close"]


class Change(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened to the document, at one path. The path of the document itself is ``()``.

    - ``open``: an object or array begins; the value is an empty ``{}`` or ``[]``.
    - ``append``: the value is text to add to the string at the path. A string's first append comes with its opening
      quote, even if there is no text yet: so an empty string is an append of ``""`` and a close.
    - ``set``: the value is a number, true, false or null, whole.
    - ``close``: the string, object or array at the path is finished; the value is all of it.
    """

    path: Path
    kind: ChangeKind
    value: Any


# -- the part that has been read --
#
# The part of an unfinished document that has been read: containers and text that grow.
#
# A reader gets a value that never changes later, and pays only for what is new since its last look.


NOTHING = object()
"""Stands for a child where none is being written."""


class _OpenDocument:
    """A place that holds values, here the outermost one. ``items`` are the finished values in it."""

    __slots__ = ("items", "key", "path")

    def __init__(self, path: Path, items: Any) -> None:
        self.path = path
        self.items = items
        self.key = ""

    def next_path(self) -> Path:
        return self.path

    def add(self, value: Any) -> None:
        self.items.append(value)

    def reclaim(self) -> None:
        """Takes back the second-last copy that was shown, if no reader holds it."""

    def show(self, child: Any) -> Any:
        """The items, together with the child that is still being written, or NOTHING."""
        if child is NOTHING:
            return self.items[0] if self.items else None
        return child


class _Copy:
    """A container as it was shown: with its first ``count`` items, and perhaps a child that was half-written then."""

    __slots__ = ("child", "count", "items")

    def __init__(self, items: Any, count: int, child: Any) -> None:
        self.items = items
        self.count = count
        self.child = child


class _OpenContainer(_OpenDocument):
    """An open array or object, shown as a copy that never changes while a reader holds it.

    Copying every item at every look would be quadratic. So the last two copies are kept, and the older one, once no reader
    holds it, is brought up to date and shown again: an item is copied twice, however often it is looked at. Two,
    because a reader in a loop still holds the last copy while it asks for the next. Its reference count shows whether a
    reader holds a copy: one reference is ours, one is getrefcount's own argument. A copy inside another copy counts as
    held until the outer one was taken back; hence reclaim from the outside in, show from the inside out.
    """

    __slots__ = ("added", "last", "spare")

    def __init__(self, path: Path, items: Any, added: list[Any]) -> None:
        super().__init__(path, items)
        self.added = added
        """Everything that was added, in order: an array's items, an object's keys."""
        self.last: _Copy | None = None
        self.spare: _Copy | None = None

    def reclaim(self) -> None:
        copy = self.spare
        if copy is None:
            return
        if getrefcount(copy.items) > 2:
            self.spare = None
        else:
            self.remove_child(copy)

    def show(self, child: Any) -> Any:
        copy = self.spare
        count = len(self.added)
        if copy is None:
            copy = _Copy(self.items.copy(), count, None)
        elif copy.count < count:
            self.catch_up(copy)
            copy.count = count
        copy.child = None
        if child is not NOTHING:
            self.put_in_child(copy, child)
        self.spare, self.last = self.last, copy
        return copy.items

    def remove_child(self, copy: _Copy) -> None: ...

    def put_in_child(self, copy: _Copy, child: Any) -> None: ...

    def catch_up(self, copy: _Copy) -> None:
        """Adds the items finished since the copy was made."""


class _OpenArray(_OpenContainer):
    __slots__ = ()

    def __init__(self, path: Path) -> None:
        items: list[Any] = []
        super().__init__(path, items, items)

    def next_path(self) -> Path:
        return self.path + (len(self.items),)  # three times as fast as (*path, n)

    def remove_child(self, copy: _Copy) -> None:
        del copy.items[copy.count :]

    def put_in_child(self, copy: _Copy, child: Any) -> None:
        copy.items.append(child)

    def catch_up(self, copy: _Copy) -> None:
        copy.items += self.items[copy.count :]


class _OpenObject(_OpenContainer):
    """``key`` is that of the member being written."""

    __slots__ = ()

    def __init__(self, path: Path) -> None:
        super().__init__(path, {}, [])

    def next_path(self) -> Path:
        return self.path + (self.key,)

    def add(self, value: Any) -> None:
        self.items[self.key] = value
        self.added.append(self.key)

    def remove_child(self, copy: _Copy) -> None:
        if copy.child is not None:
            copy.items[copy.child] = None  # finished by now, or still being written: its current value follows

    def put_in_child(self, copy: _Copy, child: Any) -> None:
        copy.child = self.key
        copy.items[self.key] = child

    def catch_up(self, copy: _Copy) -> None:
        for key in self.added[copy.count :]:
            copy.items[key] = self.items[key]


class _GrowingText:
    """Text that grows by ``pieces`` and may be read at any time.

    Each read continues from the second-last text read: CPython's ``+=`` grows a string in place if nothing else refers to
    it. So a reader that keeps only the last text pays for the new part alone; one that keeps more pays one copy for each.
    """

    __slots__ = ("before", "between", "last", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.clear()

    def clear(self) -> None:
        self.pieces.clear()
        self.before = self.between = self.last = ""

    def read(self) -> str:
        if self.pieces:
            new = "".join(self.pieces)
            self.pieces.clear()
            text, self.before = self.before, ""
            text += self.between + new
            self.before, self.between, self.last = self.last, new, text
        return self.last


# -- reading --


class _State:
    """Where in the grammar the reader is. Its row in the table at the end of this file says what may come next."""

    __slots__ = ("actions", "expects", "otherwise")

    def __init__(self, expects: str) -> None:
        self.expects = expects
        self.actions: dict[str, _Action]
        self.otherwise: _Action


_VALUE = _State("a value")
_FIRST_ITEM = _State("a value or ]")
_AFTER_ITEM = _State(", or ]")
_FIRST_KEY = _State("a key in double quotes or }")
_KEY = _State("a key in double quotes")
_COLON = _State(":")
_AFTER_MEMBER = _State(", or }")
_IN_KEY = _State("the rest of a key")
_IN_STRING = _State("the rest of a string")
_IN_NUMBER = _State("the rest of an array or object")
_END = _State("nothing but white space")
_AFTER_VALUE = {_OpenDocument: _END, _OpenArray: _AFTER_ITEM, _OpenObject: _AFTER_MEMBER}


_LITERALS: dict[str, tuple[str, bool | None]] = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
_HEX = "[0-9A-Fa-f]"
_SPACE = re.compile(r"[ \t\n\r]*")
_SPECIAL = re.compile(r'["\\\x00-\x1f]')
# Four times _HEX and not {4}: before Python 3.11.5 a possessive group loses its place when a repeat inside it fails.
_STRING_TEXT = re.compile(rf'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u{_HEX * 4})*+')
_HALF_ESCAPE = re.compile(rf"\\(?:u{_HEX}{{0,3}})?\Z")
_WRONG_ESCAPE = re.compile(rf"\\(?:u{_HEX}{{0,3}})?.", re.DOTALL)
_HIGH_SURROGATE = re.compile(rf"\\u[Dd][89ABab]{_HEX * 2}")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([Ee][-+]?[0-9]+)?")
_NUMBER_TEXT = re.compile(r"[-+.0-9Ee]*")
_decode = JSONDecoder().raw_decode


class JsonStream:
    """Reads one JSON document piece by piece. Not for two threads at once.

    ``max_depth`` bounds how deep containers may be nested, ``max_items`` how many items an array may have, ``max_length``
    how many characters the document may have. A document beyond a limit is a mistake like any other, and with
    ``unique_names`` so is a name that comes twice in an object; otherwise the last value wins, as in ``json.loads``.

    ``feed`` costs time proportional to its text, whatever came before. ``value`` costs as much as is new since the last
    access, as long as earlier values are dropped; each one that is kept costs a copy of the references in every container
    that is still open, and of the string being written. Finished parts are shared.

    Changes that came before a mistake are not lost: the feed that finds the mistake raises WireError if it has no
    changes to return; otherwise it returns them, ``error`` is set, and the next feed or close raises. From then on every
    feed and close raises that same error, and ``value`` stays at the part before the mistake.
    """

    def __init__(
        self,
        *,
        max_depth: int = 256,
        max_items: int = 1_000_000,
        max_length: int = 1 << 26,
        unique_names: bool = False,
    ) -> None:
        if max_depth < 1 or max_items < 1 or max_length < 1:
            raise UsageError(f"expected limits of at least 1, got {max_depth=}, {max_items=}, {max_length=}")
        self._max_depth = max_depth
        self._max_items = max_items
        self._max_length = max_length
        self._unique_names = unique_names
        self._error: WireError | None = None
        self._state = _VALUE
        self._top = _OpenDocument((), [])  # the innermost open place
        self._outer: list[_OpenDocument] = []  # the places around it
        self._path: Path = ()  # of the string or number being read
        self._text = _GrowingText()  # of the string, key or number being read
        self._held = ""  # half an escape or literal
        self._length = 0  # of all text so far
        self._start = 0  # where in the document the text of this feed begins, held text included
        self._changes: list[Change] = []  # of the feed that is going on
        self._shown: Any = None
        self._stale = False  # whether there were changes since _shown was made

    @property
    def complete(self) -> bool:
        """Whether the document's value is finished. A lone number is, once white space or close() follows."""
        return self._state is _END and self._error is None

    @property
    def error(self) -> WireError | None:
        """The mistake in the document, once a feed has found it."""
        return self._error

    @property
    def value(self) -> Any:
        """The document as far as it is known: None before it begins, a string being written with the text it has."""
        if self._stale:
            top, outer = self._top, self._outer
            for place in outer:
                place.reclaim()
            top.reclaim()
            shown = top.show(self._text.read() if self._state is _IN_STRING else NOTHING)
            for place in reversed(outer):
                shown = place.show(shown)
            self._shown = shown
            self._stale = False
        return self._shown

    def feed(self, text: str) -> list[Change]:
        """Reads on and returns what changed."""
        length = self._length + len(text)
        if (
            self._state is _IN_STRING
            and not self._held
            and text
            and _SPECIAL.search(text) is None
            and length <= self._max_length
            and self._error is None
        ):  # Most of a long argument comes like this: nothing but text for the string being written.
            self._length = length
            self._text.pieces.append(text)
            self._stale = True
            return [Change(self._path, "append", text)]
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            if length <= self._max_length:
                self._read(text)
            else:
                self._read(text[: self._max_length - self._length])
                self._fail(f"expected a JSON text of at most {self._max_length} characters, got more", self._length)
        except WireError:
            if not self._changes:
                raise
        changes, self._changes = self._changes, []
        if changes:
            self._stale = True
        return changes

    def close(self) -> Any:
        """The whole document, which must be finished. Closing again returns the same."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._state is _IN_NUMBER and not self._outer:
            self._end_number(self._length)
            self._changes = []
            self._stale = True
        if self._state is not _END:
            self._fail(f"expected {self._state.expects}, got the end of the JSON text", self._length)
        return self.value

    def _read(self, text: str) -> None:
        self._start = self._length - len(self._held)
        self._length += len(text)
        if self._held:
            text = self._held + text
            self._held = ""
        index, end = 0, len(text)
        while index < end:
            state = self._state
            index = state.actions.get(text[index], state.otherwise)(self, text, index)

    # -- actions: each is called at text[index] and returns the index after what it has read ------------------------------

    def _skip(self, text: str, index: int) -> int:
        return _SPACE.match(text, index).end()  # type: ignore[union-attr]  # it matches everywhere

    def _refuse(self, text: str, index: int) -> NoReturn:
        self._fail(f"expected {self._state.expects} in the JSON text, got {text[index]!r}", self._start + index)

    def _begin_container(self, text: str, index: int) -> int:
        if len(self._outer) >= self._max_depth:
            self._fail(f"expected containers at most {self._max_depth} deep, got a deeper one", self._start + index)
        path = self._top.next_path()
        self._outer.append(self._top)
        if text[index] == "{":
            self._top, self._state = _OpenObject(path), _FIRST_KEY
        else:
            self._top, self._state = _OpenArray(path), _FIRST_ITEM
        self._changes.append(Change(path, "open", self._top.items.copy()))
        return index + 1

    def _end_container(self, text: str, index: int) -> int:
        container = self._top
        self._top = self._outer.pop()
        self._finish(container.path, "close", container.items)
        return index + 1

    def _next_item(self, text: str, index: int) -> int:
        if len(self._top.items) >= self._max_items:
            self._fail(f"expected arrays of at most {self._max_items} items, got a longer one", self._start + index)
        return _to_value(self, text, index)

    def _begin_key(self, text: str, index: int) -> int:
        self._text.clear()
        self._state = _IN_KEY
        return self._read_key(text, index + 1)

    def _read_key(self, text: str, index: int) -> int:
        piece, end = self._string_text(text, index)
        self._text.pieces.append(piece)
        if end < len(text):
            self._check_quote(text, end)
            key = self._text.read()
            if self._unique_names and key in self._top.items:
                self._fail(repeated_name(key), self._start + end)
            self._top.key = key
            self._state = _COLON
        return end + 1

    def _begin_string(self, text: str, index: int) -> int:
        self._path = self._top.next_path()
        self._text.clear()
        self._state = _IN_STRING
        return self._read_string(text, index + 1, first=True)

    def _read_string(self, text: str, index: int, first: bool = False) -> int:
        piece, end = self._string_text(text, index)
        if piece or first:
            self._text.pieces.append(piece)
            self._changes.append(Change(self._path, "append", piece))
        if end < len(text):
            self._check_quote(text, end)
            self._finish(self._path, "close", self._text.read())
        return end + 1

    def _begin_number(self, text: str, index: int) -> int:
        self._path = self._top.next_path()
        self._text.clear()
        self._state = _IN_NUMBER
        return self._read_number(text, index)

    def _read_number(self, text: str, index: int) -> int:
        end = _NUMBER_TEXT.match(text, index).end()  # type: ignore[union-attr]  # it matches everywhere
        self._text.pieces.append(text[index:end])
        if end < len(text):
            self._end_number(self._start + end)
        return end

    def _read_literal(self, text: str, index: int) -> int:
        word, value = _LITERALS[text[index]]
        came = text[index : index + len(word)]
        if came == word:
            self._finish(self._top.next_path(), "set", value)
        elif word.startswith(came):
            self._held = came
        else:
            right = next(at for at, letter in enumerate(came) if letter != word[at])
            self._fail(f"expected {word} in the JSON text, got {came[: right + 1]!r}", self._start + index + right)
        return index + len(word)

    # -- parts of actions -------------------------------------------------------------------------------------------------

    def _string_text(self, text: str, index: int) -> tuple[str, int]:
        """The decoded text of a string from the index on, and where it ends: at a quote, a mistake or the text's end.

        At the text's end, text that cannot be decoded yet is held: half an escape, the first half of a surrogate pair.
        """
        end = whole = _STRING_TEXT.match(text, index).end()  # type: ignore[union-attr]  # it matches everywhere
        if end == len(text) or _HALF_ESCAPE.match(text, end):
            if end - index >= 6 and text[end - 6] == "\\" and _HIGH_SURROGATE.match(text, end - 6):
                before = text[index : end - 6]
                if (len(before) - len(before.rstrip("\\"))) % 2 == 0:  # else its backslash is itself escaped
                    whole = end - 6
            self._held = text[whole:]
            end = len(text)
        raw = text[index:whole]
        return (_decode(f'"{raw}"')[0] if "\\" in raw else raw), end

    def _check_quote(self, text: str, index: int) -> None:
        if text[index] == '"':
            return
        if escape := _WRONG_ESCAPE.match(text, index):
            self._fail(f"expected an escape of JSON in a string, got {escape[0]!r}", self._start + index)
        self._fail(f"expected control characters escaped in a string, got {text[index]!r}", self._start + index)

    def _end_number(self, end: int) -> None:
        text = self._text.read()
        number = _NUMBER.fullmatch(text)
        if number is None:
            self._fail(f"expected a number of JSON, got {text[:40]!r}", end - len(text))
        try:
            value = int(text) if number.lastindex is None else float(text)
        except ValueError:
            self._fail(f"expected an integer that Python can read, got one of {len(text)} digits", end - len(text))
        self._finish(self._path, "set", value)

    def _finish(self, path: Path, kind: ChangeKind, value: Any) -> None:
        self._top.add(value)
        self._state = _AFTER_VALUE[type(self._top)]
        self._changes.append(Change(path, kind, value))

    def _fail(self, message: str, position: int) -> NoReturn:
        self._error = WireError(message, position=position)
        raise self._error


# -- the grammar: for each state, the characters that may come, and the action for each ------------------------------------

_Action: TypeAlias = Callable[[JsonStream, str, int], int]


def _to(state: _State) -> _Action:
    """The action that only moves on to a state, past the blank that most writers put there."""

    def go_on(stream: JsonStream, text: str, index: int) -> int:
        stream._state = state
        return index + 1 + text.startswith(" ", index + 1)

    return go_on


_S = JsonStream
_to_value = _to(_VALUE)
_SKIP: dict[str, _Action] = dict.fromkeys(" \t\n\r", _S._skip)
_BEGIN: dict[str, _Action] = {
    **dict.fromkeys("{[", _S._begin_container),
    '"': _S._begin_string,
    **dict.fromkeys("-0123456789", _S._begin_number),
    **dict.fromkeys("tfn", _S._read_literal),
}
_TABLE: dict[_State, dict[str, _Action]] = {
    _VALUE: _BEGIN,
    _FIRST_ITEM: _BEGIN | {"]": _S._end_container},
    _AFTER_ITEM: {",": _S._next_item, "]": _S._end_container},
    _FIRST_KEY: {'"': _S._begin_key, "}": _S._end_container},
    _KEY: {'"': _S._begin_key},
    _COLON: {":": _to_value},
    _AFTER_MEMBER: {",": _to(_KEY), "}": _S._end_container},
    _END: {},
}
_INSIDE: dict[_State, _Action] = {_IN_KEY: _S._read_key, _IN_STRING: _S._read_string, _IN_NUMBER: _S._read_number}

for _state, _row in _TABLE.items():
    _state.actions, _state.otherwise = _SKIP | _row, _S._refuse
for _state, _action in _INSIDE.items():
    _state.actions, _state.otherwise = {}, _action
