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

import msgspec

from callstream.jsontext.path import Path, format_path

_MAX_DEPTH: Final = 8
"""References and combinations followed below one value; a schema that refers to itself ends here."""
_MAX_SHOWN: Final = 40
_MAX_TOLD: Final = 5

_NAMES: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


class Fault(msgspec.Struct, frozen=True):
    """One thing that does not fit. ``got`` is None where nothing is at ``path``."""

    path: Path
    expected: str
    got: str | None = None

    def __str__(self) -> str:
        if not self.path:
            return f"the arguments should be {self.expected}, got {self.got}"
        name = self.path[0] if len(self.path) == 1 else format_path(self.path)
        if self.got is None:
            return f"the argument {name!r} is missing"
        return f"the argument {name!r} should be {self.expected}, got {self.got}"


def faults(schema: Any, value: Any) -> list[Fault]:
    """What in the arguments does not fit the schema, in the schema's order; nothing if they fit."""
    return list(_Checker(schema).check(schema, value, ()))


def misfit_of(schema: Any, value: Any) -> str | None:
    """The faults in words for the model; None if there are none."""
    found = faults(schema, value)
    if not found:
        return None
    names = schema.get("properties") if isinstance(schema, dict) else None
    told = ", and ".join(map(str, found[:_MAX_TOLD]))
    return f"{told}; its arguments are {', '.join(names)}" if names and isinstance(names, dict) else told


class _Checker:
    def __init__(self, root: Any) -> None:
        self._root = root

    def check(self, schema: Any, value: Any, path: Path, depth: int = 0) -> Iterator[Fault]:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return
        expected = _types(schema)
        if expected and not any(_is_of(type_, value) for type_ in expected):
            yield Fault(path, " or ".join(_NAMES[type_] for type_ in expected), _show(value))
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
            yield Fault(path, " or ".join(expected), _show(value))
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


def _show(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value!r:.{_MAX_SHOWN}}"
        case str():
            return f"the string {value!r}" if len(value) <= _MAX_SHOWN else f"the string {value[:_MAX_SHOWN]!r}…"
        case list():
            return "an array"
        case _:
            return "an object"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
