"""Encoded streams look like the recorded ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.testing import (
    WIRES,
    Script,
    Text,
    Thought,
    ToolCall,
    encode,
    encode_whole,
)
from callstream.testing.encoders import ENCODERS
from tests import captures
from tests.testing.encoded import (
    payloads,
    sent_by,
)
from tests.testing.test_encoders import RECORDINGS, every_wire

FULL: Script = [
    Thought("Let me think.", 6),
    Text("I will look.", 6),
    ToolCall("cook", {"recipe": {"steps": [{"a": "boil", "n": 2}, {"a": "eat", "n": 0.5}]}, "for": "two"}),
    ToolCall("read_theme"),
    ToolCall("get_weather", {"city": "Paris"}, streamed=False),
]


@every_wire
def test_the_same_script_gives_the_same_bytes(wire: str) -> None:
    assert list(encode(wire, FULL)) == list(encode(wire, FULL))
    named = list(encode(wire, FULL, model="other")) != list(encode(wire, FULL))
    assert named or wire in ("cohere", "bedrock_converse")  # whose streams do not name the model


@pytest.mark.parametrize("wire", [wire for wire in WIRES if "event-stream" in ENCODERS[wire].stream_type[:17]])
def test_one_server_sent_event_a_chunk(wire: str) -> None:
    for chunk in encode(wire, FULL):
        newline = b"\r\n" if wire == "gemini" else b"\n"
        assert chunk.endswith(newline * 2)
        lines = chunk.removesuffix(newline * 2).split(newline)
        assert [line.split(b": ")[0] for line in lines] in ([b"data"], [b"event", b"data"])
        assert not any(b"\n" in line or b"\r" in line for line in lines)


@every_wire
def test_text_that_is_not_utf8_can_be_sent(wire: str) -> None:
    body = sent_by(wire, list(encode(wire, [Text("\ud800 é")]))).decode()
    assert "\\ud800 é" in body or "\\ud800 \\u00e9" in body


def test_responses_events_are_numbered_and_name_their_items() -> None:
    events = payloads("openai_responses", FULL)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]
        if event["type"] == "response.output_item.done":
            assert event["item"] == output[event["output_index"]]
    assert events[-1]["response"] == json.loads(encode_whole("openai_responses", FULL))


def test_the_small_signs_of_life() -> None:
    assert b'event: ping\ndata: {"type": "ping"}\n\n' in list(encode("anthropic", FULL))
    assert list(encode("openai_chat", FULL))[-1] == b"data: [DONE]\n\n"
    assert payloads("openai_chat", FULL)[-1]["choices"] == []
    assert payloads("openai_chat", FULL)[0]["choices"][0]["delta"]["role"] == "assistant"


def shape(value: Any, path: str = "") -> set[str]:
    """The fields of a payload with their kinds, told apart by the ``type`` of the object that they are in."""
    if isinstance(value, list):
        return {found for item in value for found in shape(item, f"{path}[]")}
    if isinstance(value, dict) and not path.endswith((".args", ".input", ".metadata", ".arguments")):
        kind = value.get("type")
        path = f"{path}<{kind}>" if isinstance(kind, str) else path
        return {found for key, item in value.items() for found in shape(item, f"{path}.{key}")}
    return {path}


RECORDED = {
    "gemini": ["vertex", "google-ai-studio"],
    "anthropic": ["anthropic"],
    "openai_chat": ["openai", "azure", "zai"],
    "openai_responses": ["openai", "azure", "openai-chatgpt"],
    "cohere": ["cohere"],
    "bedrock_converse": ["bedrock"],
    "bedrock_invoke": ["bedrock", "anthropic"],
    "gemini_interactions": ["google-ai-studio"],
    "ollama": ["ollama"],
}
NOT_RECORDED = {".delta.reasoningContent.text", ".delta.reasoningContent.signature"}
"""Of Converse, where no stream with reasoning was recorded: as the service describes it."""


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the project")
@every_wire
def test_no_field_is_invented(wire: str) -> None:
    """Every field that we send is in some recorded stream of that wire's own providers, in the same place."""
    recorded: set[str] = set()
    for line in (RECORDINGS / "MANIFEST.jsonl").read_text().splitlines():
        capture = json.loads(line)
        wires = {captures.WIRES[wire], *(["anthropic_messages"] if wire == "bedrock_invoke" else [])}
        if capture["wire"] in wires and capture["provider"] in RECORDED[wire]:
            for text in (RECORDINGS / capture["file"]).read_bytes().decode().splitlines():
                text = text.removeprefix("data:").strip()
                if text.startswith("{"):
                    event = json.loads(text)
                    recorded |= shape(*event.values() if wire == "bedrock_converse" else (event,))
    ours = {found for payload in payloads(wire, FULL) for found in shape(payload)}
    # No recording shows a summary of thoughts; google-genai's types have it.
    typed = {found for found in ours if wire == "gemini_interactions" and found.startswith(".delta<thought_summary>")}
    assert ours - recorded - typed - (NOT_RECORDED if wire == "bedrock_converse" else set()) == set()
