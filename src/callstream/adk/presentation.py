"""What a client of ``ADKAgent`` is sent of the translator's events: what the settings add to them and hold back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from callstream.adk.agentoptions import AgentSettings
from callstream.adk.predictions import Custom, Predictions
from callstream.agui import AguiEvent
from callstream.agui.events import MessagesSnapshot, ToolCallArgs, ToolCallEnd, ToolCallResult, ToolCallStart
from callstream.agui.messages import AssistantMessage

ShownEvent: TypeAlias = AguiEvent | Custom


class Presentation:
    """One stream's. ``answered``: the calls for which the client has a result already; a second would confuse it.

    The result of a tool whose changes the client's user has to confirm is held back: the client shows the changes
    already, and a result says that they are made.
    """

    def __init__(self, settings: AgentSettings, answered: frozenset[str] = frozenset()) -> None:
        self._held_back = set(answered)
        self._predictions = Predictions(settings.predict_state)
        self._announced: set[str] = set()
        self._streams = settings.streaming_function_call_arguments
        self._held: dict[str, list[str]] = {}

    def shown(self, events: Iterable[AguiEvent]) -> list[ShownEvent]:
        made: list[ShownEvent] = []
        for event in events:
            if isinstance(event, ToolCallStart):
                made += self._announcement(event)
            elif isinstance(event, MessagesSnapshot):
                self._look_for_predictions(event)
            elif isinstance(event, ToolCallResult) and event.tool_call_id in self._held_back:
                continue
            elif isinstance(event, ToolCallArgs) and not self._streams:
                self._held.setdefault(event.tool_call_id, []).append(event.delta)
                continue
            elif isinstance(event, ToolCallEnd) and (held := self._held.pop(event.tool_call_id, None)):
                whole = "".join(held)
                made.append(ToolCallArgs(tool_call_id=event.tool_call_id, delta=whole, metadata=event.metadata))
            made.append(event)
        return made

    def _announcement(self, started: ToolCallStart) -> list[ShownEvent]:
        """Tells the client which state a tool's arguments will become, once, before it sees the first call."""
        name = started.tool_call_name
        if self._predictions.asks_about(name):
            self._held_back.add(started.tool_call_id)
        payloads = self._predictions.payloads(name)
        if not payloads or name in self._announced:
            return []
        self._announced.add(name)
        return [Custom(name="PredictState", value=payloads, metadata=started.metadata)]

    def _look_for_predictions(self, snapshot: MessagesSnapshot) -> None:
        """A client that joins learns of calls by a snapshot, and of their results later."""
        for message in snapshot.messages:
            for call in message.tool_calls or () if isinstance(message, AssistantMessage) else ():
                if self._predictions.asks_about(call.function.name):
                    self._held_back.add(call.id)
