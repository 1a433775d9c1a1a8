"""Whether the arguments of a call fit the JSON Schema that the tool was declared with.

What is looked at: that the arguments are an object where the schema says so, that every required argument is there, and
that each argument has one of the declared types. ``$ref`` into the schema itself, ``anyOf``, ``oneOf`` and ``allOf`` are
followed; so are Gemini's own words (types in capitals, ``nullable``). Everything else fits, since a schema that cannot be
judged here must not keep a tool from running: other keywords, unknown types, references that lead nowhere. An optional
argument may be null, because models write null for what they leave out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from callstream.jsontext.path import Path
from callstream.tools.fault import Fault, describe, show

_MAX_DEPTH: Final = 8
"""References and combinations followed below one value; a schema that refers to itself ends here."""

_NAMES: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def faults(schema: Any, value: Any) -> list[Fault]:
    """What in the arguments does not fit the schema, in the schema's order; nothing if they fit."""
    return list(_Checker(schema).check(schema, value, ()))


def misfit_of(schema: Any, value: Any) -> str | None:
    """The faults in words for the model; None if there are none."""
    found = faults(schema, value)
    return describe(found, argument_names(schema)) if found else None


def argument_names(schema: Any) -> list[str]:
    """The names of the arguments that a tool was declared with."""
    names = schema.get("properties") if isinstance(schema, dict) else None
    return list(names) if isinstance(names, dict) else []


class _Checker:
    def __init__(self, root: Any) -> None:
        self._root = root

    def check(self, schema: Any, value: Any, path: Path, depth: int = 0) -> Iterator[Fault]:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return
        expected = _types(schema)
        if expected and not any(_is_of(type_, value) for type_ in expected):
            yield Fault(path, " or ".join(_NAMES[type_] for type_ in expected), show(value))
            return
        if "$ref" in schema:
            yield from self.check(self._resolve(schema["$ref"]), value, path, depth + 1)
        for part in _list(schema.get("allOf")):
            yield from self.check(part, value, path, depth + 1)
        for word in ("anyOf", "oneOf"):
            yield from self._check_choice(_list(schema.get(word)), value, path, depth + 1)
        if not path and isinstance(value, dict):
            yield from self._check_members(schema, value, depth + 1)

    def _check_choice(self, branches: list[Any], value: Any, path: Path, depth: int) -> Iterator[Fault]:
        """One of the branches has to fit. Where none does, the branch that comes nearest is the one that was meant."""
        tried = [list(self.check(branch, value, path, depth)) for branch in branches]
        if not tried or not all(tried):
            return
        if all(found[0].path == path for found in tried):
            expected = list(dict.fromkeys(found[0].expected for found in tried))
            yield Fault(path, " or ".join(expected), show(value))
        else:
            yield from min((found for found in tried if found[0].path != path), key=len)

    def _check_members(self, schema: dict[str, Any], value: Mapping[str, Any], depth: int) -> Iterator[Fault]:
        required = [name for name in _list(schema.get("required")) if isinstance(name, str)]
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        for name in required:
            if name not in value:
                yield Fault((name,), "a value")
        for name, member in properties.items():
            if name in value and (value[name] is not None or name in required):
                yield from self.check(member, value[name], (name,), depth)

    def _resolve(self, reference: Any) -> Any:
        """What a reference into the schema itself means; None for any other."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found = self._root
        for name in reference[1:].split("/")[1:]:
            found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found


def _types(schema: dict[str, Any]) -> list[str]:
    """The types that a schema names, by the words of JSON Schema; none if it names one that is not known."""
    stated = schema.get("type")
    names = [
        name.lower() if isinstance(name, str) else "" for name in (stated if isinstance(stated, list) else [stated])
    ]
    if not all(name in _NAMES for name in names):
        return []
    return [*names, "null"] if schema.get("nullable") is True else names


def _is_of(type_: str, value: Any) -> bool:
    match type_:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":  # by JSON Schema, 5.0 is one
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return is_whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return value is None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
