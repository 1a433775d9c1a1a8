"""The shapes of arguments: each says on every wire what it is said to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import httpx
import pytest

from callstream.errors import UsageError
from callstream.events import ArgsAppended, CallCompleted, CallStarted
from callstream.testing import WIRES
from callstream.testing.bodies import BodiesProvider
from callstream.testing.encoders import ENCODERS
from callstream.testing.shapes import SHAPES, Shape
from callstream.wire import decoder_for

SCHEMA = {"type": "object", "properties": {"items": {"type": "array"}, "o": {"type": "object"}}}


def calls_in(wire: str, body: list[bytes]) -> Iterator[tuple[str, object]]:
    numbers = count(1)
    decoder = decoder_for(wire, new_id=lambda: f"c{next(numbers)}", tools={"alpha": SCHEMA, "beta": SCHEMA})
    events = [event for frame in body for event in decoder.feed(frame)] + decoder.end()
    names = {event.call_id: event.name for event in events if isinstance(event, CallStarted)}
    for event in events:
        if isinstance(event, CallCompleted):
            pieces = [e.text for e in events if isinstance(e, ArgsAppended) and e.call_id == event.call_id]
            yield names[event.call_id], json.loads("".join(pieces))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_shape_has_its_calls(shape: Shape, wire: str) -> None:
    first, last = shape.bodies(wire)
    assert tuple(calls_in(wire, first)) == shape.calls
    assert list(calls_in(wire, last)) == []


def test_shapes_have_names_of_their_own() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "gemini" and ENCODERS[wire].streams_arguments])
@pytest.mark.parametrize("carrying", ["first", "last"])
def test_piece_that_carries_data_is_another_stream(carrying: str, wire: str) -> None:
    """What the shape is about is in the bytes, not only in its name."""
    plain = next(shape for shape in SHAPES if shape.name == "one string")
    made = next(shape for shape in SHAPES if shape.carrying == carrying)
    assert made.calls == plain.calls
    assert len(made.frames(wire)) < len(plain.frames(wire))


def test_bodies_in_turn_then_the_last() -> None:
    with BodiesProvider("openai_chat", [[b"data: 1\n\n"], [b"data: 2\n\n", b"data: 3\n\n"]]) as provider:
        got = [
            httpx.post(f"{provider.base_url}/chat/completions", json={"stream": True, "model": "m"}).text
            for _ in range(3)
        ]
    assert got == ["data: 1\n\n", "data: 2\n\ndata: 3\n\n", "data: 2\n\ndata: 3\n\n"]


def test_bodies_are_streams() -> None:
    with pytest.raises(UsageError, match="request for a stream"), BodiesProvider("openai_chat", [[b""]]) as provider:
        assert httpx.post(f"{provider.base_url}/chat/completions", json={"model": "m"}).status_code == 500
    with pytest.raises(UsageError, match="at least one body"):
        BodiesProvider("gemini", [])
