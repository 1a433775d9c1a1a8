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
_BLANK = b" \t\n\r"
_LOOK = 64
"""So many bytes tell nearly always whether there is more than white space."""


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

    __slots__ = ("_escaped", "_in_string", "_scanned", "_text")

    def __init__(self) -> None:
        self._text = bytearray()
        self._scanned = 0  # bytes of it
        self._in_string = False
        self._escaped = False

    def append(self, text: str) -> str:
        """Takes a piece in and returns it as strict text."""
        if not text.isprintable() and _CONTROL.search(text):  # the first answers at once for nearly every piece
            self._scan(codec.from_utf8(self._text[self._scanned :]))
            text = self._scan(text)
            self._text += codec.utf8(text)
            self._scanned = len(self._text)
        else:
            self._text += text.encode()  # the caller has escaped surrogates
        return text

    def append_raw(self, text: str) -> str:
        """Takes in a piece of free text, which is left as it is."""
        self._text += codec.utf8(text)
        return text

    def join(self) -> str:
        return codec.from_utf8(self._text)

    @property
    def is_blank(self) -> bool:
        return not self._text[:_LOOK].strip(_BLANK) and not self._text.strip(_BLANK)

    def ends_with(self, character: str) -> bool:
        """Whether the text ends so, white space aside."""
        end = self._text[-_LOOK:].rstrip(_BLANK) or self._text.rstrip(_BLANK)
        return end.endswith(character.encode())

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
