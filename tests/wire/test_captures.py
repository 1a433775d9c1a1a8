"""Every recorded body of the four wires, cut in every way."""

from __future__ import annotations

import json

import pytest

from callstream.wire import decoder_for
from tests import captures
from tests.captures import Capture, body, each_capture, raw_body, reads
from tests.decoding import calls, check_order, fed, merged, outcome, splits

WIRE_OF = {name: wire for wire, name in captures.WIRES.items()}


@each_capture(*captures.WIRES, slow_above=3_000)
def test_any_split_same_events(capture: Capture) -> None:
    wire, data = WIRE_OF[capture.wire], body(capture)
    expected = outcome(wire, [data])
    assert expected.events or expected.error
    for pieces in splits(data):
        assert outcome(wire, pieces) == expected
    recorded = reads(capture)
    if recorded is not None:
        assert outcome(wire, recorded) == expected
    raw = raw_body(capture)
    if raw is not None:
        assert outcome(wire, [raw]) == expected


@each_capture(*captures.WIRES)
def test_recorded_calls_exact(capture: Capture) -> None:
    events, error = fed(decoder_for(WIRE_OF[capture.wire]), [body(capture)])
    found = calls(events)
    assert [call.name for call in found] == [call.name for call in capture.client_calls]
    for call, recorded in zip(found, capture.client_calls, strict=True):
        if recorded.id:
            assert call.provider_id == recorded.id
        assert (call.outcome == "completed") is recorded.complete
        if recorded.final_args_json is not None:
            assert call.args == json.loads(recorded.final_args_json)
        if isinstance(recorded.args_text, str) and recorded.args_text.strip():
            assert call.text == recorded.args_text
    assert (error is not None) is ("error_only_stream" in capture.quirks or "error_chunk" in capture.quirks)


@each_capture(*captures.WIRES)
def test_fold_equals_args(capture: Capture) -> None:
    events, _ = fed(decoder_for(WIRE_OF[capture.wire]), [body(capture)])
    check_order(events)
    for call in calls(merged(events)):
        if call.outcome == "completed" and call.encoding == "json":
            assert call.text == call.args_json
            json.loads(call.text, parse_constant=pytest.fail)
        elif call.outcome == "completed":
            assert json.loads(call.args_json or "") == call.text


@each_capture(*captures.WIRES)
def test_truncated_body_completes_no_unfinished_call(capture: Capture) -> None:
    """Cut anywhere, a body completes no call that the whole body does not, and none with other arguments."""
    wire, data = WIRE_OF[capture.wire], body(capture)
    events, _ = fed(decoder_for(wire), [data])
    expected = calls(events)
    for places in range(1, 12):
        events, _ = fed(decoder_for(wire), [data[: len(data) * places // 12]])
        for call, full in zip(calls(events), expected, strict=False):
            assert call.name == full.name
            assert full.text.startswith(call.text)
            assert call.outcome != "open"
            if call.outcome == "completed":
                assert call.args_json == full.args_json
