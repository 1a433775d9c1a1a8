"""What is added to a request: a note to the model at its end, and Anthropic's field on its tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.testing.encoders import WIRES
from callstream.wire import provider_of
from callstream.wire.requests import Request

NOTE = "write did not run"
TEXT = {"type": "text", "text": NOTE}
USER = {"role": "user", "content": "go"}
MODEL = {"role": "assistant", "content": "well"}
SYSTEM = {"role": "system", "content": "Be brief."}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "written"}
BLOCK = {"type": "text", "text": "go"}


def noted(wire: str, request: Any) -> Any:
    made = provider_of(wire).add_notes(Request("/v1/x", json.dumps(request).encode()), {"c1": NOTE})
    return None if made is None else json.loads(made.body)


@pytest.mark.parametrize(
    ("wire", "request_", "expected"),
    [
        ("anthropic", {"messages": [USER]}, {"messages": [{"role": "user", "content": [BLOCK, TEXT]}]}),
        (
            "anthropic",
            {"messages": [MODEL, {"role": "user", "content": [BLOCK]}, SYSTEM]},
            {"messages": [MODEL, {"role": "user", "content": [BLOCK, TEXT]}, SYSTEM]},
        ),
        ("openai_chat", {"messages": [USER]}, {"messages": [{**USER, "content": f"go\n\n{NOTE}"}]}),
        ("openai_chat", {"messages": [RESULT]}, {"messages": [{**RESULT, "content": f"written\n\n{NOTE}"}]}),
        (
            "openai_chat",
            {"messages": [{**USER, "content": [BLOCK]}]},
            {"messages": [{**USER, "content": [BLOCK, TEXT]}]},
        ),
        ("openai_responses", {"input": "go"}, {"input": [USER, {"role": "user", "content": NOTE}]}),
        (
            "openai_responses",
            {"input": "go", "previous_response_id": "r1"},
            {
                "input": [{"type": "function_call_output", "call_id": "c1", "output": NOTE}, USER],
                "previous_response_id": "r1",
            },
        ),
        ("openai_responses", {"input": [USER]}, {"input": [USER, {"role": "user", "content": NOTE}]}),
        (
            "gemini",
            {"contents": [{"parts": [{"text": "go"}]}]},
            {"contents": [{"parts": [{"text": "go"}]}, {"role": "user", "parts": [{"text": NOTE}]}]},
        ),
        (
            "gemini",
            {"contents": {"parts": [{"text": "go"}]}},
            {"contents": [{"parts": [{"text": "go"}]}, {"role": "user", "parts": [{"text": NOTE}]}]},
        ),
    ],
)
def test_a_note_stands_at_the_end(wire: str, request_: Any, expected: Any) -> None:
    assert noted(wire, request_) == expected


@pytest.mark.parametrize(
    ("wire", "request_"),
    [
        ("anthropic", {"messages": [USER, MODEL]}),
        ("anthropic", {"messages": [SYSTEM]}),
        ("anthropic", {"messages": [{"role": "user", "content": ""}]}),
        ("openai_chat", {"messages": [USER, MODEL]}),
        ("openai_chat", {"messages": [{"role": "user", "content": None}]}),
        ("openai_responses", {"input": []}),
        ("gemini", {"contents": [{"role": "model", "parts": []}]}),
        *[(wire, {}) for wire in WIRES],
    ],
)
def test_a_request_without_a_place_for_a_note(wire: str, request_: Any) -> None:
    assert noted(wire, request_) is None


def asked(wire: str, request: Any, path: str = "/v1/messages") -> Any:
    return json.loads(provider_of(wire).ask_for_pieces(Request(path, json.dumps(request).encode())).body)


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "write"},
        {"name": "write", "input_schema": {}, "type": "computer_20250124"},
        {"name": "write", "input_schema": {}, "eager_input_streaming": None},
        {"input_schema": {}},
        "odd",
    ],
)
def test_anthropics_field_is_for_tools_of_the_program(tool: Any) -> None:
    assert asked("anthropic", {"tools": [tool]}) == {"tools": [tool]}
    sound = {"name": "write", "input_schema": {}, "type": None}
    assert asked("anthropic", {"tools": [tool, sound]})["tools"] == [tool, {**sound, "eager_input_streaming": True}]


@pytest.mark.parametrize(
    "request_", [{"model": 7}, {"model": "glm-5", "stream": True}, {"model": "glm-5", "tools": [7]}]
)
def test_a_request_of_openais_wire_that_asks_for_nothing(request_: Any) -> None:
    assert asked("openai_chat", request_, "/api/v1/chat/completions") == request_
