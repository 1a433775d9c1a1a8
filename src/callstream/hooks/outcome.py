"""What can be set for the hooks of a call, and what they come to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import msgspec

from callstream.calls import Call
from callstream.tools import ErrorPolicy, Tool


class HookSettings(msgspec.Struct, frozen=True):
    """The limits of hooks. Times are in seconds; ``math.inf`` is no limit."""

    timeout: float = 30.0
    """How long a hook may take for one delta before it is cancelled and counts as raised."""
    grace: float = 5.0
    """How long a cancelled hook may keep running before it is abandoned."""
    abort_notice: float = 0.25
    """How long a running hook has to see the signal and end by itself before an abort cancels it."""
    on_error: ErrorPolicy = "fail_call"
    queue_deltas: int = 64
    queue_chars: int = 65_536

    def for_tool(self, tool: Tool[Any]) -> HookSettings:
        """These settings with what the tool says itself."""
        timeout = self.timeout if tool.hook_timeout is None else tool.hook_timeout
        return msgspec.structs.replace(self, timeout=timeout, on_error=tool.on_hook_error or self.on_error)


class Outcome(msgspec.Struct, frozen=True):
    """What the hooks of a call came to.

    ``reason`` is one word, which the signal and the abort hooks are told: that of ``abort``, or for a failure the
    DiscardReason that fits it. ``detail`` is a sentence; after a ``Reject`` the one for the model. ``fails_run``: the
    policy ``fail_run`` wants ``error`` raised in the run. ``abandoned``: a hook of this call still runs, because it
    ignored its cancellation.
    """

    kind: Literal["ready", "rejected", "failed", "aborted"]
    reason: str = ""
    detail: str | None = None
    error: Exception | None = None
    fails_run: bool = False
    abandoned: bool = False

    @property
    def ready(self) -> bool:
        return self.kind == "ready"


OnFailure: TypeAlias = Callable[[Outcome], Awaitable[Call]]
"""Records the outcome of a failed or rejected call before its abort hooks run, and returns the call as recorded.

It runs in the task of the hooks, so it must not wait for ``settled()`` of the same call. What it raises, ``settled()``
raises.
"""


class HookCutOff(TimeoutError):
    """A hook was cancelled because its time was up."""
