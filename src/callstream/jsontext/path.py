"""A path to one place in a JSON document: the tuple ``("a", 0)`` and the text ``$.a[0]``.

The text is a singular query of RFC 9535: names after a dot or quoted in brackets, indices in brackets. ``parse_path`` also
takes bare names that the standard would quote (``$.my-key``), because providers send them. ``format_path`` writes a
bare name only where the standard allows one, and halves of surrogate pairs as escapes: the text can be encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote

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


# -- places in a schema --
#
# What a JSON Schema says about one place in a document: whether that place exists, whether it is an array.
#
# Only explicit statements are read: types, properties, items, unions and references inside the same schema, in JSON
# Schema's spelling or Gemini's (``ARRAY``). Everything else is ignored.


def wants_array(schema: Any, path: Path) -> bool:
    """Whether the schema allows an array at the path but no object. False where it says nothing."""
    kinds = {kind for place in _places_at(schema, path) or () for kind in _kinds(place)}
    return "array" in kinds and "object" not in kinds


def has_place(schema: Any, path: Path) -> bool:
    """Whether the schema names the path, or allows anything there. False where it says nothing."""
    return _places_at(schema, path, lambda place, step: _inside(place, step) is True) != []


def lacks_place(schema: Any, path: Path) -> bool:
    """Whether there can be nothing at the path: everything on the way is described, and none of it leads there."""
    return _places_at(schema, path, _is_open) == []


def _places_at(
    schema: Any, path: Path, takes_anything: Callable[[dict[str, Any], str | int], bool] | None = None
) -> list[dict[str, Any]] | None:
    """What the schema says about the path; None if a place on the way accepts anything at the next step."""
    places = _alternatives([schema], schema)
    for step in path:
        if takes_anything is not None and any(takes_anything(place, step) for place in places):
            return None
        places = _alternatives([_inside(place, step) for place in places], schema)
    return places


def _is_open(place: dict[str, Any], step: str | int) -> bool:
    """Whether the place may have anything at that step, because the schema does not restrict it."""
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


def _alternatives(places: list[Any], schema: Any) -> list[dict[str, Any]]:
    """The schemas and everything that they refer to or unite, each once."""
    found: dict[int, dict[str, Any]] = {}
    queue = list(places)
    while queue:
        place = queue.pop()
        if not isinstance(place, dict) or id(place) in found:
            continue
        found[id(place)] = place
        for union in ("anyOf", "oneOf", "allOf"):
            queue += place.get(union) or []
        queue.append(resolve(schema, place.get("$ref")))
    return list(found.values())


def resolve(schema: Any, reference: Any) -> Any:
    """The target of a reference into the schema itself; for any other reference, a schema that everything fits."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return True
    found = schema
    for name in unquote(reference[1:]).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return True
    return found


def _kinds(place: dict[str, Any]) -> list[str]:
    named = place.get("type")
    if named is not None:
        return [str(kind).lower() for kind in (named if isinstance(named, list) else [named])]
    return [kind for kind, key in (("array", "items"), ("object", "properties")) if key in place]
