"""Which call of a model a framework means that gives no id: by equal arguments."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from callstream.tools import Streamed, Tool


def means_call(
    tool: Tool[Any], written: dict[str, Any], typed: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> bool:
    """Whether a call of the tool in Python is the one that the model made: what it wrote is equal, all else at its default.

    ``written`` are the arguments as JSON, ``typed`` the values that were made of them; a framework may have made its own. A
    parameter without a default that the model gave nothing for is the framework's own, such as its context.
    """
    signature = inspect.signature(tool)
    values = typed if isinstance(typed, dict) else {}
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return False
    for name, parameter in signature.parameters.items():
        if name in written:
            # a value that came after the tool had started counts if it is the default
            converted = values.get(name, parameter.default if values else None)
            if name not in bound or not _is_equal(bound[name], written[name], converted):
                return False
        elif name in bound and parameter.default is not parameter.empty and bound[name] != parameter.default:
            return False
    return True


def began_as(tool: Tool[Any], typed: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call of the tool in Python has all that an early run of it began with."""
    try:
        bound = inspect.signature(tool).bind_partial(*args, **kwargs).arguments
    except TypeError:
        return False
    begun = {name: value for name, value in typed.items() if not isinstance(value, Streamed)}
    return all(name in bound and _is_equal(bound[name], value, value) for name, value in begun.items())


def _is_equal(value: Any, written: Any, converted: Any) -> bool:
    try:
        return value in (written, converted) or bool(msgspec.to_builtins(value, enc_hook=_dump) == written)
    except (TypeError, ValueError):
        return False


def _dump(value: Any) -> Any:
    if not hasattr(value, "model_dump"):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return value.model_dump(mode="json")
