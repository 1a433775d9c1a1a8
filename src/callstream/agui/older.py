"""Clients of AG-UI before 1.0. They declare no protocol version, and refuse what they do not know of a run's outcome.

CopilotKit's runtime is one of them. What the outcome no longer says it finds itself: a call of a tool that it brought,
without a result, waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from callstream.agui.events import Cancelled, RunFinished, Success


def for_older_client(events: Iterable[Any]) -> list[Any]:
    """The events with outcomes as such a client takes them."""
    return [_taken(event) if isinstance(event, RunFinished) else event for event in events]


def _taken(event: RunFinished) -> RunFinished:
    match event.outcome:
        case Success():
            return msgspec.structs.replace(event, outcome=Success())
        case Cancelled():
            return msgspec.structs.replace(event, outcome=None)
        case _:
            return event
