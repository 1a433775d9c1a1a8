"""What a client of ``ADKAgent`` is sent of each record: the translator's events, and what the settings add to them."""

from __future__ import annotations

from typing import TypeAlias

from callstream.adk.agentoptions import AgentSettings
from callstream.adk.predictions import Custom, Predictions
from callstream.agui import AguiEvent, Translator, View
from callstream.agui.events import ToolCallArgs, ToolCallEnd, ToolCallResult, ToolCallStart
from callstream.events import Record

OutgoingEvent: TypeAlias = AguiEvent | Custom


class Outgoing:
    """``answered``: the calls for which the client has a result already. A second one would only confuse it."""

    def __init__(self, view: View, settings: AgentSettings, answered: frozenset[str] = frozenset()) -> None:
        self._answered = answered
        self._translator = Translator(view)
        self._predictions = Predictions(settings.predict_state)
        self._streams = settings.streaming_function_call_arguments
        self._held: dict[str, list[str]] = {}

    @property
    def seq(self) -> int:
        """The number of the last record taken in."""
        return self._translator.seq

    def feed(self, record: Record) -> list[OutgoingEvent]:
        return self._sent(self._translator.feed(record))

    def end(self) -> list[OutgoingEvent]:
        """For a stream that has to end before its run."""
        return self._sent(self._translator.end())

    def _sent(self, events: list[AguiEvent]) -> list[OutgoingEvent]:
        made: list[OutgoingEvent] = []
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
