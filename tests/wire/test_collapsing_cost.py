"""Withheld deltas cost little: the frame is not taken apart, and nothing of it is kept but the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from callstream.testing import Text, Thought, ToolCall, encode
from callstream.testing.encoders import ENCODERS
from callstream.wire import WIRES, provider_of
from callstream.wire.framing import Frame
from tests.wire.collapsing import Tap, named


def taken_apart(tap: Tap, frames: Sequence[bytes], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    taken: list[bytes] = []
    take = tap.collapser._place

    def counted(frame: Frame, chunk: Any, pieces: Sequence[str | None]) -> None:
        taken.append(frame.raw)
        take(frame, chunk, pieces)

    monkeypatch.setattr(tap.collapser, "_place", counted)
    for frame in frames:
        tap.feed(frame)
    tap.end()
    return taken


@pytest.mark.parametrize("wire", [wire for wire in WIRES if ENCODERS[wire].streams_arguments])
def test_withheld_delta_is_not_taken_apart(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = list(encode(wire, [ToolCall("write", {"content": 'x\n"y\\' * 400}, size=8)]))
    assert len(frames) > 200
    tap = Tap(wire)
    assert len(taken_apart(tap, frames, monkeypatch)) < 20
    assert len(tap.tapped.call_ids) == 1


@pytest.mark.parametrize("wire", [wire for wire in WIRES if provider_of(wire).collapser.text_form is not None])
@pytest.mark.parametrize("said", [Text("Hello there. " * 100, size=4), Thought("Let me see. " * 100, size=4)])
def test_joined_delta_is_not_taken_apart(wire: str, said: Text | Thought, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = list(encode(wire, [said]))
    assert len(frames) > 200
    tap = Tap(wire, joins_text=True)
    assert len(taken_apart(tap, frames, monkeypatch)) < 20


@pytest.mark.parametrize("wire", WIRES)
def test_text_passes_at_once_and_untouched(wire: str) -> None:
    frames = list(encode(wire, [Text("Hello there. " * 20, size=8)]))
    tap = Tap(wire, named("write"))
    assert [tap.feed(frame) for frame in frames] == frames
    assert tap.end() == b""
