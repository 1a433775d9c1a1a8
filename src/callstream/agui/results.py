"""What a call's result says to the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, assert_never

from callstream.agui.events import json_bytes
from callstream.agui.view import View
from callstream.events import CallDiscarded, CallFailed, CallReleased, CallReturned, DiscardReason

_DISCARDED: Final[Mapping[DiscardReason, str]] = {
    "truncated": "the call was cut off before its arguments were complete; the tool did not run",
    "malformed": "the arguments of the call are not valid; the tool did not run",
    "rejected": "the call was rejected; the tool did not run",
    "aborted": "the run was stopped; the tool did not run",
    "interrupted": "the call was interrupted; the tool did not run",
}


def result_text(outcome: CallReturned | CallFailed | CallDiscarded | CallReleased, view: View) -> str:
    """What a result says: the text that a tool returned, anything else as JSON, an error as ``{"error": …}``."""
    said: Any
    match outcome:
        case CallReturned(result=str(text)):
            return text
        case CallReturned(result=result):
            said = result
        case CallFailed(error=error):
            said = {"error": error if view.errors else "the tool failed"}
        case CallDiscarded(reason=reason, detail=detail):
            said = {"error": _DISCARDED[reason], "reason": reason}
            if detail and (view.errors or reason == "rejected"):
                said["detail"] = detail
        case CallReleased():
            said = {"status": "released", "detail": "the tool's outcome was not seen"}
        case _:
            assert_never(outcome)
    return json_bytes(said).decode()
