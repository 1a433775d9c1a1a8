"""What a client is shown of a run, and how its results read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, assert_never

import msgspec

from callstream import codec
from callstream.agui.input import CANCELLED
from callstream.events import CallDiscarded, CallFailed, CallReleased, CallReturned, DiscardReason
from callstream.view import RunView

_DISCARDED: Final[Mapping[DiscardReason, str]] = {
    "truncated": "the call was cut off before its arguments were complete; the tool did not run",
    "malformed": "the arguments of the call are not valid; the tool did not run",
    "invalid": "the arguments of the call do not fit the tool; the tool did not run",
    "rejected": "the call was rejected; the tool did not run",
    "aborted": "the run was stopped; the tool did not run",
    "interrupted": "the call was interrupted; the tool did not run",
}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is shown, and how.

    ``errors``: whether it may read the text of errors (why a run or a tool failed), which may tell of internals;
    without it, it learns that they failed. What a hook says with ``Reject`` is meant to be read and is always shown.
    ``emit_interrupt_outcome``: calls that await an answer end the run as interrupts, except those of ``client_tools``
    (the names of the tools that the client brought; those in the run's journaled input are added), which it answers
    with tool messages in any case; without it, all of them are ``pendingToolCallIds``. ``response_schemas``: the JSON
    Schema of the answer, by tool name. ``silent``: the names of agents whose text is not shown, because it is meant for
    other agents. ``nested``: whether it is shown what the models say and call that tools ask, such as the agent of an
    AgentTool, as the work of a sub-agent.
    """

    reasoning: bool = True
    errors: bool = False
    emit_interrupt_outcome: bool = False
    client_tools: frozenset[str] = frozenset()
    response_schemas: Mapping[str, dict[str, Any]] = {}
    silent: frozenset[str] = frozenset()
    nested: bool = True

    def fold(self, *, state: Any = msgspec.UNSET, is_outline: bool = False) -> RunView:
        """An empty view of a run, which will have what is shown of it."""
        return RunView(
            state=state, reasoning=self.reasoning, silent=self.silent, nested=self.nested, is_outline=is_outline
        )


def result_text(outcome: CallReturned | CallFailed | CallDiscarded | CallReleased, view: View) -> str:
    """What a result says: the text that a tool returned, anything else as JSON, an error as ``{"error": …}``."""
    said: Any
    match outcome:
        case CallReturned(result=str(text)):
            return text
        case CallReturned(result=result):
            said = result
        case CallFailed(error=error):
            said = {"error": error if view.errors or error == CANCELLED else "the tool failed"}
        case CallDiscarded(reason=reason, detail=detail):
            said = {"error": _DISCARDED[reason], "reason": reason}
            if detail and (view.errors or reason in ("rejected", "invalid")):
                said["detail"] = detail
        case CallReleased():
            said = {"status": "released", "detail": "the tool's outcome was not seen"}
        case _:
            assert_never(outcome)
    return codec.encode(said).decode()
