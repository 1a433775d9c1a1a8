"""What a JSON Schema says about one place of a document: whether there is such a place, whether it is an array.

Only what a schema states itself is read: types, properties, items, unions and references inside the same schema, in
JSON Schema's spelling or Gemini's (``ARRAY``). Anything else in it is passed over.
"""

from __future__ import annotations

from typing import Any

from callstream.jsontext.path import Path


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
