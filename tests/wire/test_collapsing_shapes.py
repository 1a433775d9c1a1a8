"""Every shape of arguments, through a collapser and the wire's own SDK."""

from __future__ import annotations

import pytest

from callstream.testing.shapes import SHAPES, Shape
from tests.sdks import READ
from tests.wire.collapsing import no, tapped

WIRES = [wire for wire in READ if wire not in ("gemini", "anthropic", "openai_chat", "openai_responses")]
"""The others are read by google-adk's models, in ``tests/adk/test_shapes.py``."""


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_sdk_gets_every_shape_exactly(shape: Shape, wire: str) -> None:
    body = b"".join(shape.frames(wire))
    whole = tapped(wire, [body])
    made = READ[wire](whole.body)
    assert tuple((name, args) for _, name, args in made.calls) == shape.calls
    assert made.pieces <= len(shape.calls)
    assert len(whole.call_ids) == len(shape.calls)
    assert tapped(wire, [body], no).body == body
