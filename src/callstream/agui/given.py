"""What a client's input means, whoever runs the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

CANCELLED: Final = "The user cancelled this."
"""What is said of a call whose interrupt was cancelled instead of answered."""


class _Message(Protocol):
    @property
    def role(self) -> str: ...


MessageT = TypeVar("MessageT", bound=_Message)


def since_spoken(messages: Sequence[MessageT]) -> list[MessageT]:
    """The messages since the model's last. Those before are in the thread's earlier runs."""
    spoken = [number for number, message in enumerate(messages, start=1) if message.role == "assistant"]
    return list(messages[spoken[-1] if spoken else 0 :])
