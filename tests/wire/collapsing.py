"""Bodies on their way through a collapser, as in the tap."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from callstream.errors import WireError
from callstream.events import CallCompleted, WireEvent
from callstream.wire import decoder_for, provider_of
from callstream.wire.collapsing import Collapser, Output, Read
from callstream.wire.framing import SseFraming
from callstream.wire.requests import LoneReasoning
from tests.captures import Capture, declared_tools
from tests.decoding import calls, ended, fed, merged, reasoning, splits, text

Collapse = Callable[[str], bool]


def every(name: str) -> bool:
    return True


def no(name: str) -> bool:
    return False


def named(*names: str) -> Collapse:
    return lambda name: name in names


class Tapped(msgspec.Struct):
    """What came out of the collapser, what the decoder read beside it, and the error that it ended with."""

    outputs: list[Output]
    events: list[WireEvent]
    lone: LoneReasoning
    error: WireError | None = None

    @property
    def body(self) -> bytes:
        return b"".join(output.data for output in self.outputs)

    @property
    def call_ids(self) -> list[str]:
        return [call_id for output in self.outputs for call_id in output.call_ids]

    @property
    def parts(self) -> list[tuple[bytes, tuple[str, ...]]]:
        """What left, cut only where a whole call is among it."""
        parts: list[tuple[bytes, tuple[str, ...]]] = []
        for output in self.outputs:
            if parts and not output.call_ids and not parts[-1][1]:
                parts[-1] = (parts[-1][0] + output.data, ())
            else:
                parts.append((output.data, output.call_ids))
        return parts


class Tap:
    """One response on its way, piece by piece."""

    def __init__(
        self, wire: str, collapse: Collapse | None = every, *, joins_text: bool = False, **settings: Any
    ) -> None:
        self.lone = LoneReasoning()
        self.decoder = decoder_for(wire, **settings)
        self.collapser: Collapser[Any] = provider_of(wire).collapser(
            self.decoder, collapse=collapse, lone=self.lone, joins_text=joins_text
        )
        self.tapped = Tapped([], [], self.lone)

    def feed(self, data: bytes) -> bytes:
        """What leaves now."""
        return self._take(self.collapser.feed(data))

    def end(self) -> bytes:
        left = self._take(self.collapser.end())
        assert not self.collapser.is_holding
        self.tapped.error = self.tapped.error or self.decoder.error
        return left

    def _take(self, read: Read) -> bytes:
        self.tapped.outputs += read.outputs
        self.tapped.events += read.events
        self.tapped.error = self.tapped.error or read.error
        return b"".join(output.data for output in read.outputs)


def tapped(wire: str, pieces: Iterable[bytes], collapse: Collapse | None = every, **settings: Any) -> Tapped:
    tap = Tap(wire, collapse, **settings)
    for piece in pieces:
        tap.feed(piece)
    tap.end()
    return tap.tapped


def tapped_at_any_split(wire: str, body: bytes, collapse: Collapse | None = every, **settings: Any) -> Tapped:
    """The body whole, after trying that every split gives the same bytes."""
    expected = tapped(wire, [body], collapse, **settings)
    for pieces in splits(body, count=4):
        assert tapped(wire, pieces, collapse, **settings).parts == expected.parts
    return expected


def payloads(body: bytes) -> list[Any]:
    """The JSON payloads of a body of events, in order."""
    found = [frame.payload or b"" for frame in SseFraming().feed(body)]
    return [json.loads(payload) for payload in found if payload.startswith(b"{")]


def tools_of(capture: Capture) -> dict[str, Any]:
    return {tool["name"]: tool.get("parameters") or tool.get("input_schema") or {} for tool in declared_tools(capture)}


class Told(msgspec.Struct):
    """What a body tells, as far as it must be the same before and after."""

    calls: list[tuple[str, str | None, str | None, str | None]]
    text: str
    reasoning: str
    finishes: list[str | None]
    error: str | None


def told(wire: str, body: bytes, **settings: Any) -> Told:
    events, error = fed(decoder_for(wire, **settings), [body])
    return told_by(events, error)


def told_by(events: list[WireEvent], error: WireError | None = None) -> Told:
    completed = {event.call_id for event in events if isinstance(event, CallCompleted)}
    assert len(completed) == sum(call.outcome == "completed" for call in calls(events))
    return Told(
        calls=[
            (call.name, call.provider_id, call.args_json, call.signature)
            for call in calls(events)
            if call.outcome == "completed"
        ],
        text=text(events),
        reasoning=reasoning(events),
        finishes=[end.finish_reason for end in ended(merged(events))],
        error=error.provider_message if error is not None else None,
    )
