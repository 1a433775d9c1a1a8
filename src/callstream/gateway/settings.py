"""A gateway's settings."""

from __future__ import annotations

import msgspec

from callstream.errors import UsageError

_MIB = 1024 * 1024


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds, sizes bytes."""

    linger: float | None = None
    """How long an answer is read on after its client has left. None: 60 where the client is known to come back or the
    provider bills to the end anyway, else 0; to the end for a client that sends a ``Callstream-`` header."""
    window: float = 300.0
    """How long after its end an answer that was not delivered can still be had by the same request."""
    answer_seconds: float = 600.0
    """How long an answer may take to begin."""
    stall_seconds: float = 120.0
    """How long a client may send nothing of its request, or read nothing of its answer. Then its connection is closed."""
    approval_seconds: float = 290.0
    """How long a call is held for a person to approve of it. Claude Code waits for less than five minutes."""
    keep_alive_seconds: float = 5.0
    """How often a client gets a sign of life while a call is held."""
    shutdown_seconds: float = 20.0
    """How long answers under way have to come to their end when the gateway is stopped."""
    max_body_bytes: int = 64 * _MIB
    """The body of a request; 413 beyond that."""
    max_answer_bytes: int = 64 * _MIB
    """An answer. A longer one breaks off."""
    max_kept_bytes: int = 256 * _MIB
    """All answers that are kept for clients that may come back; the oldest go first."""
    max_answers: int = 2000
    """Answers under way at once; 503 beyond that."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if value is not None and (
                value < 0 or (value == 0 and field not in ("linger", "window", "shutdown_seconds"))
            ):
                raise UsageError(f"{field} must be more than 0, got {value}")
