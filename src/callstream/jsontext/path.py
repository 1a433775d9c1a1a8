"""A path to one place in a JSON document: the tuple ``("a", 0)`` and the text ``$.a[0]``.

The text is a singular query of RFC 9535: names after a dot or quoted in brackets, indices in brackets. ``parse_path`` also
takes bare names that the standard would quote (``$.my-key``), because providers send them. ``format_path`` writes a
bare name only where the standard allows one, and halves of surrogate pairs as escapes: the text can be encoded.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

from callstream.errors import WireError

Path: TypeAlias = tuple[str | int, ...]

_SEGMENT = re.compile(
    r"""
      \.(?P<bare>[^.\[\]*'"\x00-\x20]+)
    | \[[ \t\n\r]*(?P<index>0|[1-9][0-9]*)[ \t\n\r]*\]
    | \[[ \t\n\r]*'(?P<single>(?:[^'\\\x00-\x1f]|\\(?:[bfnrt/\\']|u[0-9A-Fa-f]{4}))*)'[ \t\n\r]*\]
    | \[[ \t\n\r]*"(?P<double>(?:[^"\\\x00-\x1f]|\\(?:[bfnrt/\\"]|u[0-9A-Fa-f]{4}))*)"[ \t\n\r]*\]
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:u([Dd][89ABab][0-9A-Fa-f]{2})\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|(.))")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\", "'": "'", '"': '"'}
_SHORTHAND = re.compile(r"[A-Za-z_\x80-\ud7ff\ue000-\U0010ffff][A-Za-z0-9_\x80-\ud7ff\ue000-\U0010ffff]*")
_MUST_ESCAPE = re.compile(r"[\x00-\x1f'\\\ud800-\udfff]")
_SHORT_ESCAPE = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "'": "\\'", "\\": "\\\\"}
_MAX_INDEX_DIGITS = 18


@lru_cache(maxsize=1024)
def parse_path(text: str) -> Path:
    """The tuple of a path text. Raises WireError for anything that does not name exactly one place."""
    if not text.startswith("$"):
        raise WireError(f"expected a JSON path that begins with $, got {text!r}", position=0)
    path: list[str | int] = []
    position = 1
    while position < len(text):
        segment = _SEGMENT.match(text, position)
        if segment is None:
            raise WireError(
                f"expected .name, ['name'] or [index] in the JSON path {text!r}, "
                f"got {text[position : position + 20]!r}",
                position=position,
            )
        kind = segment.lastgroup
        found = segment[kind]  # type: ignore[index]  # every alternative is a named group
        if kind == "index":
            if len(found) > _MAX_INDEX_DIGITS:
                raise WireError(f"expected an array index, got one of {len(found)} digits", position=position)
            path.append(int(found))
        elif kind == "bare":
            path.append(found)
        else:
            path.append(_ESCAPE.sub(_unescape, found))
        position = segment.end()
    return tuple(path)


def format_path(path: Path) -> str:
    """The text of a path: ``$.a[0]``, with brackets and quotes around names that need them."""
    text = ["$"]
    for step in path:
        if isinstance(step, int):
            text.append(f"[{step}]")
        elif _SHORTHAND.fullmatch(step):
            text.append(f".{step}")
        else:
            text.append(f"['{_MUST_ESCAPE.sub(_escape, step)}']")
    return "".join(text)


def _unescape(match: re.Match[str]) -> str:
    high, low, single, letter = match.groups()
    if high is not None:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
    if single is not None:
        return chr(int(single, 16))
    return _ESCAPED[letter]


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT_ESCAPE.get(character) or f"\\u{ord(character):04x}"
