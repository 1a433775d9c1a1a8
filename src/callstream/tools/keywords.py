"""The keywords of JSON Schema that concern one value by itself, and how they are read.

A schema may be anything: invalid keyword values are ignored. Patterns are ECMA regular expressions, read here by Python's
``re``, which differs in details (``\\d`` takes digits of all scripts); a pattern that does not compile is ignored.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import msgspec

from callstream.jsontext.patch import equality_key
from callstream.tools.schema import FORMATS, limit

_TYPES: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
TYPE_WORDS: Final = _TYPES | {
    "str": _TYPES["string"],
    "int": _TYPES["integer"],
    "float": _TYPES["number"],
    "bool": _TYPES["boolean"],
}
"""The words for a type, by its name in JSON Schema or in Python."""
_BOUNDS: Final[tuple[tuple[str, Callable[[float, float], bool], str], ...]] = (
    ("minimum", operator.lt, "at least"),
    ("exclusiveMinimum", operator.le, "greater than"),
    ("maximum", operator.gt, "at most"),
    ("exclusiveMaximum", operator.ge, "less than"),
)
"""For each bound: the test that a number beyond it meets, and the words for what was expected."""
_MAX_SHOWN: Final = 200


def kind_of(value: Any) -> str:
    """The type of a value as JSON Schema names it, with integers as numbers."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "number"


def expected_types(schema: dict[str, Any]) -> list[tuple[str, str]]:
    """The types that a schema names, each with the words for it; none if it names an unknown type."""
    stated = schema.get("type")
    names = [
        name.lower() if isinstance(name, str) else "" for name in (stated if isinstance(stated, list) else [stated])
    ]
    if not all(name in _TYPES for name in names):
        return []
    if schema.get("nullable") is True:
        names.append("null")
    stated_format = schema.get("format")
    if "string" not in names or not isinstance(stated_format, str) or stated_format not in FORMATS:
        return [(name, _TYPES[name]) for name in names]
    if stated_format == "decimal" and "number" not in names:  # a number is one as well
        names.append("number")
    words = FORMATS[stated_format][0]
    return [(name, words if name == "string" else _TYPES[name]) for name in names]


def is_of(type_: str, kind: str, value: Any = None) -> bool:
    """Whether a value of that kind may have the type; for a number with ``value`` given, whether it does."""
    if type_ == "integer" and kind == "number":  # in JSON Schema, 5.0 is an integer
        return not isinstance(value, float) or value.is_integer()
    return type_ == kind


def choices_of(schema: dict[str, Any]) -> list[Any] | None:
    """The values that ``enum`` and ``const`` allow; None if there is neither."""
    choices = schema.get("enum")
    choices = choices if isinstance(choices, list) else None
    if "const" not in schema:
        return choices
    const = equality_key(schema["const"])
    return [schema["const"]] if choices is None else [each for each in choices if equality_key(each) == const]


def alternatives_of(choices: list[Any]) -> str:
    """The choices in a sentence."""
    written = ", ".join(json.dumps(choice, ensure_ascii=False, default=str) for choice in choices)
    written = written if len(written) <= _MAX_SHOWN else f"{written[:_MAX_SHOWN]}…"
    return written if len(choices) == 1 else f"one of {written}"


def scalar_faults(schema: dict[str, Any], value: float) -> Iterator[str]:
    """What was expected of a number that does not fit."""
    for word, is_beyond, expected in _BOUNDS:
        bound = limit(schema, word)
        if bound is not None and is_beyond(value, bound):
            yield f"{expected} {bound}"
    step = limit(schema, "multipleOf")
    if step is not None and not _is_multiple(value, step):
        yield f"a multiple of {step}"


def _is_multiple(value: float, step: float) -> bool:
    """Compares decimal digits as written: 0.0075 is a multiple of 0.0001."""
    if step == 0 or not (math.isfinite(value) and math.isfinite(step)):
        return True
    return Fraction(Decimal(str(value))) % Fraction(Decimal(str(step))) == 0


def string_faults(schema: dict[str, Any], value: str, *, formats: bool = False) -> Iterator[str]:
    """What was expected of a whole string that does not fit; too long is found earlier. ``formats``: judges these, too."""
    least = limit(schema, "minLength")
    if least is not None and len(value) < least:
        yield f"at least {least:g} characters long"
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and not matches(pattern, value):
        yield f"a string that matches {pattern!r}"
    expected = _format_fault(schema, value) if formats else None
    if expected is not None:
        yield expected


def _format_fault(schema: dict[str, Any], value: str) -> str | None:
    """What was expected of a string that does not fit its format or encoding."""
    stated = "base64" if schema.get("contentEncoding") == "base64" else schema.get("format")
    if not isinstance(stated, str) or stated not in FORMATS:
        return None
    words, type_ = FORMATS[stated]
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return words
    return None


def matches(pattern: str, text: str) -> bool:
    compiled = _compile(pattern)
    return compiled is None or compiled.search(text) is not None


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None
