"""Bodies on their way through splitter, decoder and rewriter, as the tap does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from callstream.errors import WireError
from callstream.events import CallCompleted, WireEvent
from callstream.tap.frames import FrameSplitter, payload_of
from callstream.tap.rewriter import Output, Rewriter, rewriter_for
from callstream.wire import decoder_for
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
    """What came out of the rewriter, what the decoder read beside it, and the error that it ended with."""

    outputs: list[Output]
    events: list[WireEvent]
    error: WireError | None = None

    @property
    def body(self) -> bytes:
        return b"".join(output.data for output in self.outputs)

    @property
    def call_ids(self) -> list[str]:
        return [call_id for output in self.outputs for call_id in output.call_ids]


class Tap:
    """One response on its way, piece by piece."""

    def __init__(self, wire: str, collapse: Collapse | None = every, *, stored: bool = False, **settings: Any) -> None:
        self.decoder = decoder_for(wire, **settings)
        self.rewriter: Rewriter = rewriter_for(self.decoder, collapse=collapse, stored=stored)
        self.splitter = FrameSplitter()
        self.tapped = Tapped([], [])

    def feed(self, data: bytes) -> bytes:
        """What leaves now."""
        before = len(self.tapped.outputs)
        for frame in self.splitter.feed(data):
            self._frame(frame)
        return self._left_since(before)

    def end(self) -> bytes:
        before = len(self.tapped.outputs)
        for frame in self.splitter.end():
            self._frame(frame)
        events: list[WireEvent] = []
        if self.tapped.error is None:
            try:
                events = self.decoder.end()
            except WireError as error:
                self.tapped.error = error
        self.tapped.events += events
        self.tapped.outputs += self.rewriter.end(events)
        assert not self.rewriter.is_holding
        try:
            self.decoder.feed(b"")  # a decoder that broke at the end says so now
        except WireError as error:
            self.tapped.error = error
        return self._left_since(before)

    def _left_since(self, before: int) -> bytes:
        return b"".join(output.data for output in self.tapped.outputs[before:])

    def _frame(self, frame: bytes) -> None:
        events: list[WireEvent] = []
        try:
            events = self.decoder.feed(frame)
        except WireError as error:
            self.tapped.error = error
            self.tapped.outputs += [*self.rewriter.end([]), Output(frame)]
            return
        self.tapped.events += events
        self.tapped.outputs += self.rewriter.frame(frame, events)


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
        assert tapped(wire, pieces, collapse, **settings).outputs == expected.outputs
    return expected


def payloads(body: bytes) -> list[Any]:
    """The JSON payloads of a body of events, in order."""
    found = [payload_of(frame) for frame in FrameSplitter().feed(body)]
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
