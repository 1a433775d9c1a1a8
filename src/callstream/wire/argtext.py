"""The argument text of one call, made strict as it passes.

Models write raw line breaks and tabs inside JSON strings, which JSON forbids. They are escaped here, so that the text
that leaves is strict and every later reader agrees. Where strings begin and end is only worked out when a control
character shows up, and then from where the last look ended: every character is looked at once.
"""

from __future__ import annotations

import re
from typing import Any

from callstream import codec
from callstream.errors import WireError

_CONTROL = re.compile(r"[\x00-\x1f]")
_MARK = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPE = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BLANK = " \t\n\r"


def json_text(value: Any) -> str:
    """A value as compact JSON text that can be encoded as UTF-8, lone surrogates as escapes."""
    try:
        return codec.encode(value).decode()
    except RecursionError:
        raise WireError("expected arguments that are nested less deep") from None


def text_of(arguments: Any) -> str:
    """Arguments as text; some servers send them as an object, or null."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json_text(arguments)


class ArgumentText:
    """Collects the pieces of one call's arguments."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._unscanned: list[str] = []
        self._in_string = False
        self._escaped = False

    def append(self, text: str) -> str:
        """Takes a piece in and returns it as strict text."""
        if not text.isprintable() and _CONTROL.search(text):  # the first answers at once for nearly every piece
            for earlier in self._unscanned:
                self._scan(earlier)
            self._unscanned.clear()
            text = self._scan(text)
        else:
            self._unscanned.append(text)
        self._pieces.append(text)
        return text

    def append_raw(self, text: str) -> str:
        """Takes in a piece of free text, which is left as it is."""
        self._pieces.append(text)
        return text

    def join(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def is_blank(self) -> bool:
        return not any(piece.strip(_BLANK) for piece in self._pieces)

    def ends_with(self, character: str) -> bool:
        """Whether the text ends so, white space aside."""
        return next((last for piece in reversed(self._pieces) if (last := piece.rstrip(_BLANK)[-1:])), "") == character

    def _scan(self, text: str) -> str:
        strict: list[str] = []
        taken = 0
        skip = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        for mark in _MARK.finditer(text):
            at = mark.start()
            if at < skip:
                continue
            character = mark[0]
            if character == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                continue
            elif character == "\\":
                skip = at + 2
            else:
                strict += (text[taken:at], _SHORT_ESCAPE.get(character) or f"\\u{ord(character):04x}")
                taken = at + 1
        self._escaped = self._escaped or skip > len(text)
        if not strict:
            return text
        strict.append(text[taken:])
        return "".join(strict)
