"""What a client of ``ADKAgent`` is sent of the translator's events: what the options add to them and hold back.

Most of it is predicted state, which a client may show before it is there: an argument of a tool that will become a key
of the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from callstream.agui import AguiEvent
from callstream.agui.events import MessagesSnapshot, ToolCallArgs, ToolCallEnd, ToolCallResult, ToolCallStart
from callstream.agui.input import result_value
from callstream.agui.messages import AssistantMessage, Metadata

CONFIRM_TOOL: Final = "confirm_changes"
"""The call that asks the client's user whether what was shown may stay. The model knows nothing of it."""


@dataclass
class PredictStateMapping:
    """While ``tool`` is being called, the client shows its ``tool_argument`` as ``state_key``.

    ``emit_confirm_tool``: a run in which the tool has returned ends with a ``confirm_changes`` call, which asks the
    client's user whether the changes may stay. The tool's own result is then not sent to the client.
    """

    state_key: str
    tool: str
    tool_argument: str
    emit_confirm_tool: bool = True

    def to_payload(self) -> dict[str, str]:
        return {"state_key": self.state_key, "tool": self.tool, "tool_argument": self.tool_argument}


class CustomEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="CUSTOM"):
    """AG-UI's event for what an application adds to the protocol."""

    name: str
    value: Any
    metadata: Metadata


class Predictions:
    """The mappings of an agent, and what they add to a run."""

    def __init__(self, mappings: PredictStateMapping | Iterable[PredictStateMapping] | None) -> None:
        self._mappings = (mappings,) if isinstance(mappings, PredictStateMapping) else tuple(mappings or ())

    def payloads(self, tool_name: str) -> list[dict[str, str]]:
        """A tool's mappings as the client gets them; empty if nothing is predicted from its calls."""
        return [mapping.to_payload() for mapping in self._mappings if mapping.tool == tool_name]

    def asks_about(self, tool_name: str) -> bool:
        return any(mapping.tool == tool_name and mapping.emit_confirm_tool for mapping in self._mappings)


def decision(content: str) -> str:
    """What a client's user said to ``confirm_changes``, as a sentence for the model."""
    said: Any = result_value(content)
    if said is content:
        said = content.strip().lower()
    if isinstance(said, dict):
        said = next((said[key] for key in ("accepted", "approved", "confirmed") if key in said), said)
    if said is True or said in ("accepted", "approved", "confirmed", "accept", "approve", "confirm", "yes"):
        return "The user accepted the changes."
    if said is False or said in ("rejected", "declined", "reject", "decline", "no"):
        return "The user rejected the changes."
    return f"The user answered the question about the changes: {content}"


ShownEvent: TypeAlias = AguiEvent | CustomEvent


class Presentation:
    """One stream's. ``answered``: the calls for which the client has a result already; a second would confuse it.

    The result of a tool whose changes the client's user has to confirm is held back: the client shows the changes
    already, and a result says that they are made.
    """

    _announced: frozenset[str] = frozenset()

    def __init__(self, predictions: Predictions, *, streams_arguments: bool, answered: frozenset[str]) -> None:
        self._held_back = set(answered)
        self._predictions = predictions
        self._streams = streams_arguments
        self._held: dict[str, list[str]] = {}

    def show(self, events: Iterable[AguiEvent]) -> list[ShownEvent]:
        made: list[ShownEvent] = []
        for event in events:
            if isinstance(event, ToolCallArgs):
                if not self._streams:
                    self._held.setdefault(event.tool_call_id, []).append(event.delta)
                    continue
            elif isinstance(event, ToolCallStart):
                made += self._announcement(event)
            elif isinstance(event, MessagesSnapshot):
                self._look_for_predictions(event)
            elif isinstance(event, ToolCallResult) and event.tool_call_id in self._held_back:
                continue
            elif isinstance(event, ToolCallEnd) and (held := self._held.pop(event.tool_call_id, None)):
                whole = "".join(held)
                made.append(
                    ToolCallArgs(
                        tool_call_id=event.tool_call_id,
                        delta=whole,
                        metadata=event.metadata,
                        subagent_run_id=event.subagent_run_id,
                    )
                )
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
        self._announced |= {name}
        return [CustomEvent(name="PredictState", value=payloads, metadata=started.metadata)]

    def _look_for_predictions(self, snapshot: MessagesSnapshot) -> None:
        """A client that joins learns of calls by a snapshot, and of their results later."""
        for message in snapshot.messages:
            for call in message.tool_calls or () if isinstance(message, AssistantMessage) else ():
                if self._predictions.asks_about(call.function.name):
                    self._held_back.add(call.id)
