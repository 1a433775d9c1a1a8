"""How answers and failures of calls read."""

from __future__ import annotations

from typing import Any

import msgspec

from callstream.agui import View
from callstream.agui.shown import result_text
from callstream.events import CallDiscarded, CallFailed


def error_text(outcome: CallDiscarded | CallFailed, view: View) -> str:
    """Why a call has no result, as far as a client may know."""
    told = msgspec.json.decode(result_text(outcome, view))
    detail = told.get("detail")
    return f"{told['error']}: {detail}" if detail else str(told["error"])


def says_no(answer: Any) -> bool:
    """Whether the answer to a question forbids what was asked about, however the host spells it."""
    said = [answer.get(key) for key in ("confirmed", "approved", "accepted")] if isinstance(answer, dict) else [answer]
    return any(each is False for each in said)
