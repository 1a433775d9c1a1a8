"""What a client of ``ADKAgent`` is sent of the translator's events: what the settings add to them and hold back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from callstream.adk.agentoptions import AgentSettings
from callstream.adk.predictions import Custom, Predictions
from callstream.agui import AguiEvent
from callstream.agui.events import ToolCallArgs, ToolCallEnd, ToolCallResult, ToolCallStart

ShownEvent: TypeAlias = AguiEvent | Custom


class Presentation:
    """One stream's. ``answered``: the calls for which the client has a result already; a second would confuse it."""

    def __init__(self, settings: AgentSettings, answered: frozenset[str] = frozenset()) -> None:
        self._answered = answered
        self._predictions = Predictions(settings.predict_state)
        self._streams = settings.streaming_function_call_arguments
        self._held: dict[str, list[str]] = {}

    def shown(self, events: Iterable[AguiEvent]) -> list[ShownEvent]:
        made: list[ShownEvent] = []
        for event in events:
            if isinstance(event, ToolCallStart):
                announced = self._predictions.announced(event.tool_call_name, event.metadata)
                if announced is not None:
                    made.append(announced)
            elif isinstance(event, ToolCallResult) and event.tool_call_id in self._answered:
                continue
            elif isinstance(event, ToolCallArgs) and not self._streams:
                self._held.setdefault(event.tool_call_id, []).append(event.delta)
                continue
            elif isinstance(event, ToolCallEnd) and (held := self._held.pop(event.tool_call_id, None)):
                whole = "".join(held)
                made.append(ToolCallArgs(tool_call_id=event.tool_call_id, delta=whole, metadata=event.metadata))
            made.append(event)
        return made
