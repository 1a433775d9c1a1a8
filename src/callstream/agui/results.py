"""What a call's result says to the client, and what a client's answer says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, assert_never

import msgspec

from callstream.agui.depth import is_deeper
from callstream.agui.events import json_bytes
from callstream.agui.view import View
from callstream.errors import UsageError
from callstream.events import CallDiscarded, CallFailed, CallReleased, CallReturned, DiscardReason

_DISCARDED: Final[Mapping[DiscardReason, str]] = {
    "truncated": "the call was cut off before its arguments were complete; the tool did not run",
    "malformed": "the arguments of the call are not valid; the tool did not run",
    "rejected": "the call was rejected; the tool did not run",
    "aborted": "the run was stopped; the tool did not run",
    "interrupted": "the call was interrupted; the tool did not run",
}

_MAX_DEPTH: Final = 64
"""Models' clients, session stores and validators recurse into an answer, and each gives up somewhere deeper than that."""


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
