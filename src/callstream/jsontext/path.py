"""A path to one place in a JSON document: the tuple ``("a", 0)`` and the text ``$.a[0]``.

The text is a singular query of RFC 9535: names after a dot or quoted in brackets, indices in brackets. ``parse_path`` also
takes bare names that the standard would quote (``$.my-key``), because providers send them. ``format_path`` writes a
bare name only where the standard allows one, and halves of surrogate pairs as escapes: the text can be encoded.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, TypeAlias

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


# -- places of a schema --
#
# What a JSON Schema says about one place of a document: whether there is such a place, whether it is an array.
#
# Only what a schema states itself is read: types, properties, items, unions and references inside the same schema, in
# JSON Schema's spelling or Gemini's (``ARRAY``). Anything else in it is passed over.


def wants_array(schema: Any, path: Path) -> bool:
    """True where the schema allows an array at the path and no object; False too where it says nothing."""
    places = _alternatives([schema], schema)
    for step in path:
        places = _alternatives([_inside(place, step) for place in places], schema)
    kinds = {kind for place in places for kind in _kinds(place)}
    return "array" in kinds and "object" not in kinds


def has_place(schema: Any, path: Path) -> bool:
    """Whether the schema names the path, or allows anything there. False where it says nothing."""
    places = _alternatives([schema], schema)
    for step in path:
        below = [_inside(place, step) for place in places]
        if any(place is True for place in below):
            return True
        places = _alternatives(below, schema)
    return bool(places)


def lacks_place(schema: Any, path: Path) -> bool:
    """Whether nothing can be at the path: all that may be on the way is described, and none of it leads there."""
    places = _alternatives([schema], schema)
    for step in path:
        if any(_is_open(place, step) for place in places):
            return False
        places = _alternatives([_inside(place, step) for place in places], schema)
    return not places


def _is_open(place: dict[str, Any], step: str | int) -> bool:
    """Whether the place may have anything below it at that step, since the schema does not say what."""
    kinds = _kinds(place)
    if not kinds:
        return not any(word in place for word in ("anyOf", "oneOf", "allOf", "$ref", "enum", "const"))
    if isinstance(step, str):
        return "object" in kinds and place.get("additionalProperties", "properties" not in place) is True
    return "array" in kinds and place.get("items", "prefixItems" not in place) is True


def _inside(place: dict[str, Any], step: str | int) -> Any:
    if isinstance(step, str):
        return (place.get("properties") or {}).get(step, place.get("additionalProperties"))
    prefix = place.get("prefixItems") or []
    return prefix[step] if step < len(prefix) else place.get("items")


def _alternatives(places: list[Any], root: Any) -> list[dict[str, Any]]:
    """The schemas with everything that they refer to or unite, each once."""
    found: dict[int, dict[str, Any]] = {}
    queue = list(places)
    while queue:
        place = queue.pop()
        if not isinstance(place, dict) or id(place) in found:
            continue
        found[id(place)] = place
        for union in ("anyOf", "oneOf", "allOf"):
            queue += place.get(union) or []
        reference = place.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            queue.append(_resolved(reference, root))
    return list(found.values())


def _resolved(reference: str, root: Any) -> Any:
    target = root
    for part in reference.split("/")[1:]:
        target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
    return target


def _kinds(place: dict[str, Any]) -> list[str]:
    named = place.get("type")
    if named is not None:
        return [str(kind).lower() for kind in (named if isinstance(named, list) else [named])]
    return [kind for kind, key in (("array", "items"), ("object", "properties")) if key in place]
