"""What a client's input means, whoever runs the agent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

CANCELLED: Final = "The user cancelled this."
"""What is said of a call whose interrupt was cancelled instead of answered."""


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


def digest_of(given: _Input) -> str:
    """A name for an input: equal inputs have the same, in every process. A run keeps it, so that a repetition is known."""
    text = json.dumps(given.model_dump(by_alias=True), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
