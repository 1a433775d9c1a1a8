"""Calls whose arguments do not fit: held back on every wire, streamed or not, or forwarded to those who refuse them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.events import CallDiscarded, DiscardReason
from callstream.testing import Text, ToolCall, encode, encode_whole
from callstream.testing.encoders import WIRES
from callstream.wire import decoder_for, provider_of
from callstream.wire.provider import discard_invalid
from tests.decoding import calls
from tests.wire.collapsing import every, named, no

SCRIPT = [
    Text("I write."),
    ToolCall("write", {"title": 7}, call_id="c1"),
    ToolCall("write", {"title": "Tides"}, call_id="c2"),
    ToolCall("other", {"title": 7}, call_id="c3"),
]


def check(name: str, args_json: str) -> tuple[DiscardReason, str] | None:
    return None if isinstance(json.loads(args_json).get("title"), str) else ("invalid", f"the title of {name}")


def titles(found: Any) -> list[Any]:
    return [json.loads(call.args_json)["title"] for call in calls(found) if call.outcome == "completed"]


def tap(wire: str, collapse: Any, *, forwards_invalid: bool = False) -> tuple[list[Any], list[Any], list[str]]:
    """What is recorded of the script, what its reader gets, and which calls it waits for."""
    provider = provider_of(wire)
    decoder = decoder_for(wire)
    collapser = provider.collapser(decoder, collapse=collapse, check=check, forwards_invalid=forwards_invalid)
    reads = [collapser.feed(frame) for frame in encode(wire, SCRIPT)] + [collapser.end()]
    events = [event for read in reads for event in read.events]
    outputs = [output for read in reads for output in read.outputs]
    body = b"".join(output.data for output in outputs)
    reader = decoder_for(wire)
    return events, [*reader.feed(body), *reader.end()], [call_id for output in outputs for call_id in output.call_ids]


def discarded(events: list[Any]) -> list[tuple[str, str | None]]:
    return [(event.reason, event.detail) for event in events if isinstance(event, CallDiscarded)]


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_that_does_not_fit_is_left_out(wire: str) -> None:
    events, got, _ = tap(wire, named("write"))
    assert discarded(events) == [("invalid", "the title of write")]
    assert titles(events) == titles(got) == ["Tides", 7]


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_that_does_not_fit_is_forwarded_to_those_who_refuse_it(wire: str) -> None:
    events, got, call_ids = tap(wire, every, forwards_invalid=True)
    assert discarded(events) == [("invalid", "the title of write"), ("invalid", "the title of other")]
    assert titles(events) == ["Tides"]
    assert titles(got) == [7, "Tides", 7]
    assert len(call_ids) == 3


@pytest.mark.parametrize("wire", WIRES)
def test_calls_that_pass_in_pieces_are_not_judged(wire: str) -> None:
    events, got, _ = tap(wire, no)
    assert titles(events) == titles(got) == [7, "Tides", 7]


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_that_is_not_streamed(wire: str) -> None:
    provider = provider_of(wire)
    body = encode_whole(wire, SCRIPT)
    decoder = decoder_for(wire)
    events = discard_invalid(decoder.whole(body), named("write"), check)
    assert discarded(events) == [("invalid", "the title of write")]
    left = provider.without_unfinished(body, decoder, events, collapse=named("write"))
    assert titles(decoder_for(wire).whole(left)) == ["Tides", 7]
    assert discard_invalid(events, every, None) == events


def test_free_text_has_no_schema() -> None:
    wire = "openai_responses"
    script = [ToolCall("patch", custom=True, text="*** Begin", call_id="c1")]
    provider, decoder = provider_of(wire), decoder_for(wire)
    collapser = provider.collapser(decoder, collapse=every, check=lambda name, text: ("invalid", name))
    events = [event for frame in encode(wire, script) for event in collapser.feed(frame).events]
    assert discarded(events) == []
    body = encode_whole(wire, script)
    whole = discard_invalid(decoder_for(wire).whole(body), every, lambda name, text: ("invalid", name))
    assert discarded(whole) == []
