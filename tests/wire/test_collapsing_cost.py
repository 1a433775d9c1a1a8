"""Withheld deltas cost little: the frame is not taken apart, and nothing of it is kept but the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from callstream.testing import Text, ToolCall, encode
from callstream.testing.encoders import ENCODERS
from callstream.wire import WIRES
from callstream.wire.framing import Frame
from tests.wire.collapsing import Tap, named


@pytest.mark.parametrize("wire", [wire for wire in WIRES if ENCODERS[wire].streams_arguments])
def test_withheld_delta_is_not_taken_apart(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = list(encode(wire, [ToolCall("write", {"content": 'x\n"y\\' * 400}, size=8)]))
    assert len(frames) > 200
    tap = Tap(wire)
    taken: list[bytes] = []
    take = tap.collapser._place

    def counted(frame: Frame, chunk: Any, pieces: Sequence[str | None]) -> None:
        taken.append(frame.raw)
        take(frame, chunk, pieces)

    monkeypatch.setattr(tap.collapser, "_place", counted)
    for frame in frames:
        tap.feed(frame)
    tap.end()
    assert len(taken) < 20
    assert len(tap.tapped.call_ids) == 1


@pytest.mark.parametrize("wire", WIRES)
def test_text_passes_at_once_and_untouched(wire: str) -> None:
    frames = list(encode(wire, [Text("Hello there. " * 20, size=8)]))
    tap = Tap(wire, named("write"))
    assert [tap.feed(frame) for frame in frames] == frames
    assert tap.end() == b""
