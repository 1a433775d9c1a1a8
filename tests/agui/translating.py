"""Records of a run, and the AG-UI events that they become."""

from __future__ import annotations

from typing import Any

from callstream.agui import AguiEvent, Translator, View
from callstream.events import (
    Record,
    RunEnded,
    RunEvent,
    RunStarted,
)
from tests.agui.model import as_json

STARTED = RunStarted("thread")
FINISHED = RunEnded("finished")


def records(*events: RunEvent, run_id: str = "run") -> list[Record]:
    return [Record(run_id, number, 0.0, event) for number, event in enumerate((STARTED, *events), start=1)]


def events_of(*events: RunEvent, view: View | None = None) -> list[AguiEvent]:
    """What is sent of the events after RUN_STARTED."""
    translator = Translator(view)
    return [event for record in records(*events) for event in translator.feed(record)][1:]


def sent(*events: RunEvent, view: View | None = None) -> list[dict[str, Any]]:
    """The same as JSON, checked by the official models, without metadata."""
    told = [as_json(event) for event in events_of(*events, view=view)]
    for event in told:
        del event["metadata"]
    return told


def kinds(*events: RunEvent, view: View | None = None) -> list[str]:
    return [event["type"] for event in sent(*events, view=view)]
