"""A JSON document after a patch (RFC 6902). The original document is not changed; a patch applies whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from callstream.errors import UsageError

_INDEX = re.compile(r"0|[1-9][0-9]*")


def apply_patch(document: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """The document after all operations. Raises UsageError, naming the first one that does not apply."""
    for number, operation in enumerate(operations):
        try:
            document = _after(document, operation)
        except (LookupError, TypeError, ValueError) as error:
            raise UsageError(f"operation {number} of the patch does not apply: {operation!r:.200} ({error})") from None
    return document


def _after(document: Any, operation: Mapping[str, Any]) -> Any:
    path = _steps(operation["path"])
    match operation["op"]:
        case "add":
            return _add(document, path, operation["value"])
        case "remove":
            return _remove(document, path)
        case "replace":
            _at(document, path)
            return _replace(document, path, operation["value"])
        case "move":
            origin = _steps(operation["from"])
            if len(path) > len(origin) and path[: len(origin)] == origin:
                raise ValueError("a value cannot be moved into itself")
            return _add(_remove(document, origin), path, _at(document, origin))
        case "copy":
            return _add(document, path, _at(document, _steps(operation["from"])))
        case "test":
            if equality_key(_at(document, path)) != equality_key(operation["value"]):
                raise ValueError("the value is a different one")
            return document
        case other:
            raise ValueError(f"no operation {other!r}")


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"expected a JSON pointer, got {pointer!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _at(document: Any, path: list[str]) -> Any:
    for step in path:
        document = document[_key(document, step)]
    return document


def _key(container: Any, step: str) -> str | int:
    """The key or index that a step stands for, which must exist."""
    if isinstance(container, dict):
        if step not in container:
            raise LookupError(f"there is no {step!r}")
        return step
    if isinstance(container, list) and _INDEX.fullmatch(step) and int(step) < len(container):
        return int(step)
    raise LookupError(f"there is no {step!r}")


def _replace(document: Any, path: list[str], value: Any) -> Any:
    """A copy with another value at the path; everything beside the path is shared with the document."""
    if not path:
        return value
    key = _key(document, path[0])
    copy = document.copy()
    copy[key] = _replace(document[key], path[1:], value)
    return copy


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    *way, last = path
    container = _at(document, way)
    if isinstance(container, dict):
        return _replace(document, way, {**container, last: value})
    if not isinstance(container, list):
        raise LookupError(f"there is nothing to add {last!r} to")
    index = len(container) if last == "-" else int(last) if _INDEX.fullmatch(last) else len(container) + 1
    if index > len(container):
        raise LookupError(f"there is no place {last!r}")
    return _replace(document, way, [*container[:index], value, *container[index:]])


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        return None
    *way, last = path
    container = _at(document, way)
    key = _key(container, last)
    copy = container.copy()
    del copy[key]
    return _replace(document, way, copy)


def equality_key(value: Any) -> Any:
    """Equal for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return ("array", *map(equality_key, value))
        case dict():
            return ("object", frozenset((name, equality_key(member)) for name, member in value.items()))
        case _:
            return value
