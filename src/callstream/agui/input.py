"""What clients send: what their input and their answers mean.

How deep a value nests is measured without recursion, and before anything recurses into it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from callstream.errors import UsageError

CANCELLED: Final = "The user cancelled this."
"""What is said of a call whose interrupt was cancelled instead of answered."""

_MAX_DEPTH: Final = 64
"""Models' clients, session stores and validators recurse into an answer, and each gives up somewhere deeper than that."""


class _Message(Protocol):
    @property
    def role(self) -> str: ...


class _Input(Protocol):
    def model_dump(self, *, by_alias: bool) -> dict[str, Any]: ...


MessageT = TypeVar("MessageT", bound=_Message)


def since_spoken(messages: Sequence[MessageT]) -> list[MessageT]:
    """The messages since the model's last. Those before are in the thread's earlier runs."""
    spoken = [number for number, message in enumerate(messages, start=1) if message.role == "assistant"]
    return list(messages[spoken[-1] if spoken else 0 :])


def digest_of(run_input: _Input) -> str:
    """A name for an input: equal inputs have the same, in every process. A run keeps it, so that a repetition is known."""
    text = json.dumps(run_input.model_dump(by_alias=True), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def result_value(text: str) -> Any:
    """What a client's answer says: a value where it is JSON (without NaN and numbers that are endless), else the text.

    Raises UsageError where it nests too deep: as a text, too, others would read it and fail.
    """
    too_deep = UsageError(f"expected an answer whose JSON nests at most {_MAX_DEPTH} deep")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    except RecursionError:
        raise too_deep from None
    if is_deeper(value, _MAX_DEPTH):
        raise too_deep
    return value


def is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and arrays nest more than ``depth`` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
    return bool(level)
