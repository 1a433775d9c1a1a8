"""The call of the model that a tool runs for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Any

    from callstream.calls import Call
    from callstream.tools.streamed import Joined

_called: ContextVar[Call | None] = ContextVar("callstream_called", default=None)


def current_call() -> Call | None:
    """Inside a tool: the call that it runs for, as its hooks have seen it; None if no model has called it."""
    return _called.get()


class ClaimedCall(NamedTuple):
    """The model's call that a call of a tool in Python means, and the tool itself where it has begun already."""

    call: Call
    joined: Joined | None = None


class CallClaims(Protocol):
    """The calls of a run, for tools that are called in Python."""

    def find(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimedCall | None:
        """The one that a call of the tool with these arguments means, which is claimed by that; None if there is none."""
        ...


call_claims: ContextVar[CallClaims | None] = ContextVar("callstream_call_claims", default=None)
"""Where a tool that is called in this context looks for its call."""


@contextmanager
def running_for(call: Call | None) -> Iterator[None]:
    """The tool of that call runs: it knows the call, and tools that it calls run for no call. None changes nothing."""
    if call is None:
        yield
        return
    tokens = _called.set(call), call_claims.set(None)
    try:
        yield
    finally:
        try:
            _called.reset(tokens[0])
            call_claims.reset(tokens[1])
        except ValueError:
            pass  # a generator may be closed in another context than it began in
