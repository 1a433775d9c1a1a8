"""A name that comes twice in an object makes a call malformed, whichever wire brought it and however it came."""

from __future__ import annotations

import json

import pytest

from callstream import codec
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded, WireEvent
from callstream.testing import ToolCall, encode
from callstream.wire import decoder_for

TEXT = '{"a": "first", "b": {"a": 1}, "a": "second"}'
DETAIL = "the name 'a' comes twice in an object"
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": TEXT}}
WHOLE = {
    "openai_chat": {
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [CALL]}}]
    },
    "openai_responses": {
        "id": "r1",
        "status": "completed",
        "output": [{"type": "function_call", "id": "fc1", "call_id": "c1", "name": "f", "arguments": TEXT}],
    },
    "cohere": {"id": "m1", "finish_reason": "TOOL_CALL", "message": {"role": "assistant", "tool_calls": [CALL]}},
}


def assert_malformed(events: list[WireEvent]) -> None:
    assert [event for event in events if isinstance(event, CallDiscarded)] == [CallDiscarded("c1", "malformed", DETAIL)]
    assert not [event for event in events if isinstance(event, CallCompleted)]
    assert "".join(event.text for event in events if isinstance(event, ArgsAppended)) == TEXT


@pytest.mark.parametrize(
    "wire", ["anthropic", "openai_chat", "openai_responses", "bedrock_converse", "cohere", "gemini_interactions"]
)
def test_duplicate_key_malformed_when_streamed(wire: str) -> None:
    decoder = decoder_for(wire)
    chunks = encode(wire, [ToolCall("f", text=TEXT, call_id="c1", size=5)])
    assert_malformed([event for chunk in chunks for event in decoder.feed(chunk)] + decoder.end())


@pytest.mark.parametrize("wire", WHOLE)
def test_duplicate_key_malformed_when_whole(wire: str) -> None:
    assert_malformed(decoder_for(wire).whole(json.dumps(WHOLE[wire]).encode()))


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("{}", None),
        ('{"a": {"b": 1}, "b": {"a": 1}}', None),
        (TEXT, DETAIL),
        ('[{"a": 1, "\\u0061": 2}]', DETAIL),
        ('{"a": 1, "a": 2', "the arguments are not JSON"),
        ('[{"a": 1, "a": 2}, nothing]', "the arguments are not JSON"),
        ("NaN", "the arguments are not JSON"),
        ("[" * 200_000, "the arguments are not JSON"),
    ],
)
def test_mistakes_of_arguments(text: str, mistake: str | None) -> None:
    assert codec.mistake_in(text) == mistake
