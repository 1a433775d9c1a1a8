"""State that a client may show before it is there: which argument of which tool will become which key of the state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from callstream.agui.given import result_value
from callstream.agui.messages import Metadata

CONFIRM_TOOL: Final = "confirm_changes"
"""The call that asks the client's user whether what was shown may stay. The model knows nothing of it."""


@dataclass
class PredictStateMapping:
    """While ``tool`` is being called, the client shows its ``tool_argument`` as ``state_key``.

    ``emit_confirm_tool``: a run in which the tool has returned ends with a ``confirm_changes`` call, which asks the
    client's user whether the changes may stay. The tool's own result is then not sent to the client.
    ``stream_tool_call`` is taken for compatibility: here every call streams.
    """

    state_key: str
    tool: str
    tool_argument: str
    emit_confirm_tool: bool = True
    stream_tool_call: bool = False

    def to_payload(self) -> dict[str, str]:
        return {"state_key": self.state_key, "tool": self.tool, "tool_argument": self.tool_argument}


class Custom(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="CUSTOM"):
    """AG-UI's event for what an application adds to the protocol."""

    name: str
    value: Any
    metadata: Metadata


def mappings_in(given: PredictStateMapping | Iterable[PredictStateMapping] | None) -> tuple[PredictStateMapping, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, PredictStateMapping) else tuple(given)


class Predictions:
    """The mappings of an agent, and what they add to a run."""

    def __init__(self, mappings: tuple[PredictStateMapping, ...]) -> None:
        self._mappings = mappings

    def payloads(self, tool_name: str) -> list[dict[str, str]]:
        """What a client is told of a tool; empty if nothing is predicted from its calls."""
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
