"""What all collapsers share, where no wire's own tests show it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.events import WireEvent
from callstream.testing import Text, ToolCall, encode
from callstream.wire import WIRES, decoder_for, provider_of
from callstream.wire.framing import Frame
from tests.decoding import calls, sse
from tests.wire.collapsing import Tap, every, payloads, tapped
from tests.wire.payloads import block_stop, message, partial_json, tool_use

SCRIPT = [Text("Hello there.", size=4), ToolCall("write", {"title": "Notes"}, call_id="c1")]


@pytest.mark.parametrize("wire", WIRES)
def test_where_nothing_is_collapsed_every_piece_passes_at_once(wire: str) -> None:
    body = b"".join(encode(wire, SCRIPT))
    pieces = [body[start : start + 50] for start in range(0, len(body), 50)]
    tap = Tap(wire, None)
    assert [tap.feed(piece) for piece in pieces] == pieces
    assert tap.end() == b""
    assert [call.outcome for call in calls(tap.tapped.events)] == ["completed"]
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    expected = ping if wire == "anthropic" else decoder_for(wire).framing.keep_alive
    assert tap.collapser.keep_alive == expected != b""
    assert not tap.collapser.is_holding


@pytest.mark.parametrize(
    ("wire", "sign"),
    [
        ("anthropic", {"type": "ping"}),
        ("openai_chat", {"object": "chat.completion.chunk", "choices": []}),
        ("openai_responses", {"type": "keepalive", "sequence_number": 0}),
    ],
)
def test_keepalive_per_wire_is_an_event_of_the_wire(wire: str, sign: dict[str, Any]) -> None:
    """Frameworks limit the time between two events, and see nothing of an empty line."""
    tap = Tap(wire, every)
    for frame in list(encode(wire, SCRIPT))[:-3]:
        tap.feed(frame)
    assert tap.collapser.is_holding
    (frame,) = decoder_for(wire).framing.feed(tap.collapser.keep_alive)
    assert json.loads(frame.payload or b"").items() >= sign.items()
    assert decoder_for(wire).feed(tap.collapser.keep_alive) == []


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("collapse", [None, every])
def test_what_follows_an_error_passes_as_it_comes(wire: str, collapse: Any) -> None:
    tap = Tap(wire, collapse)
    tap.feed(b"".join(list(encode(wire, [Text("Hello there.", size=4)]))[:3]))
    for piece in (b"data: {broken\n\nhalf a", b" line\n\n", b"more of it"):
        tap.feed(piece)
    assert tap.tapped.error is not None
    assert tap.feed(b" and more") == b" and more"
    assert tap.end() == b""
    assert tap.tapped.body.endswith(b"data: {broken\n\nhalf a line\n\nmore of it and more")


@pytest.mark.parametrize("wire", ["gemini", "openai_chat"])
def test_a_withheld_delta_is_decoded_once(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = Tap(wire)
    frames = list(encode(wire, [ToolCall("write", {"content": "one two three " * 40}, size=8)]))
    bare = note_bare_chunks(tap, monkeypatch)
    for frame in frames:
        tap.feed(frame)
    tap.end()
    assert bare.count(True) > len(frames) - 8
    assert tap.tapped.call_ids


@pytest.mark.parametrize("wire", ["gemini", "openai_chat"])
def test_text_after_a_call_is_not_taken_for_a_piece_of_it(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [ToolCall("write", {"content": "one two three"}, size=2), Text("And so on. " * 3, size=3)]
    tap = Tap(wire)
    bare = note_bare_chunks(tap, monkeypatch)
    for frame in encode(wire, script):
        tap.feed(frame)
    tap.end()
    assert not bare[-1]
    assert not tap.decoder.expects_piece


def note_bare_chunks(tap: Tap, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every frame, whether it held a bare piece of a call: what was read is not kept for longer than needed."""
    bare: list[bool] = []
    read = tap.decoder.read

    def noting(frame: Frame) -> list[WireEvent]:
        events = read(frame)
        bare.append(tap.decoder.is_bare)
        return events

    monkeypatch.setattr(tap.decoder, "read", noting)
    return bare


def test_a_call_with_its_input_in_a_start_without_an_index() -> None:
    start = tool_use(given={"a": 1})
    stop = block_stop()
    del start["index"], stop["index"]
    body = sse(*message(start, stop))
    found = payloads(tapped("anthropic", [body]).body)
    deltas = [event for event in found if event["type"] == "content_block_delta"]
    assert [delta["delta"]["partial_json"] for delta in deltas] == ['{"a":1}']
    assert "index" not in deltas[0]
    indexed = payloads(tapped("anthropic", [sse(*message(tool_use(given={"a": 1}), block_stop()))]).body)
    assert [event["index"] for event in indexed if event["type"] == "content_block_delta"] == [0]
    assert partial_json("")["delta"]["type"] == deltas[0]["delta"]["type"]


def test_what_is_left_out_of_whole_answers() -> None:
    """One call of two, and answers that lack what they usually have."""
    answer: dict[str, Any] = {
        "choices": [{"message": {"tool_calls": [{"id": "a"}, {"id": "b"}]}}, {"message": None}, {"message": {}}]
    }
    decisions = iter([True, False])
    provider_of("openai_chat").leave_out(answer, lambda: next(decisions), stored=False)
    assert answer["choices"][0]["message"]["tool_calls"] == [{"id": "b"}]
    parts = [{"functionCall": {"name": "a"}}, {"text": "t"}, {"functionCall": {"name": "b"}}]
    given: dict[str, Any] = {"candidates": [{}, {"content": {"parts": parts}}, {"content": {"role": "model"}}]}
    decisions = iter([True, False])
    provider_of("gemini").leave_out(given, lambda: next(decisions), stored=False)
    assert given["candidates"][1]["content"]["parts"] == parts[1:]
    assert given["candidates"][2] == {"content": {"role": "model"}}
