"""What a request says of results and messages, on every wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.errors import UsageError, WireError
from callstream.events import MessageReceived, ResultReceived
from callstream.wire import WIRES, results_in


def read(wire: str, request: Any) -> list[Any]:
    return results_in(wire, request if isinstance(request, bytes) else json.dumps(request).encode())


def gemini(*contents: Any) -> list[Any]:
    return read("gemini", {"contents": list(contents), "tools": []})


def anthropic(*messages: Any) -> list[Any]:
    return read("anthropic", {"model": "m", "system": "Be kind.", "messages": list(messages)})


def chat(*messages: Any) -> list[Any]:
    return read("openai_chat", {"model": "m", "messages": list(messages)})


def responses(*items: Any, **more: Any) -> list[Any]:
    return read("openai_responses", {"model": "m", "input": list(items), **more})


# -- several turns, results in parallel --


def test_results_in_request_gemini() -> None:
    def call(name: str, call_id: str | None = None) -> Any:
        return {"functionCall": {"name": name, "args": {}, **({"id": call_id} if call_id else {})}}

    def answer(name: str, response: Any, **more: Any) -> Any:
        return {"functionResponse": {"name": name, "response": response, **more}}

    assert gemini(
        {"role": "user", "parts": [{"text": "First"}]},
        {"role": "model", "parts": [{"text": "Hm", "thought": True}, call("a", "1")]},
        {"role": "user", "parts": [answer("a", {"result": 1}, id="1")]},
        {"role": "model", "parts": [call("b"), call("b")]},
        {"role": "user", "parts": [answer("b", {"error": "boom"}), answer("b", {"result": [2]}), {"text": "And?"}]},
    ) == [
        ResultReceived("1", "a", {"result": 1}, latest=False),
        ResultReceived(None, "b", {"error": "boom"}, is_error=True),
        ResultReceived(None, "b", {"result": [2]}),
        MessageReceived("user", "And?"),
    ]


def test_results_in_request_anthropic() -> None:
    def use(name: str, call_id: str) -> Any:
        return {"type": "tool_use", "id": call_id, "name": name, "input": {}}

    def result(call_id: str, content: Any, **more: Any) -> Any:
        return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}

    assert anthropic(
        {"role": "user", "content": "First"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hm"}, use("a", "t1")]},
        {"role": "user", "content": [result("t1", "one")]},
        {"role": "assistant", "content": [use("b", "t2"), use("c", "t3")]},
        {
            "role": "user",
            "content": [
                result("t3", [{"type": "text", "text": "three"}], is_error=True),
                result("t2", None, is_error=None),
                {"type": "text", "text": "And?"},
            ],
        },
    ) == [
        ResultReceived("t1", "a", "one", latest=False),
        ResultReceived("t3", "c", [{"type": "text", "text": "three"}], is_error=True),
        ResultReceived("t2", "b", None),
        MessageReceived("user", "And?"),
    ]


def test_results_in_request_openai_chat() -> None:
    def calls(*pairs: tuple[str, str]) -> Any:
        made = [{"id": call_id, "type": "function", "function": {"name": name}} for call_id, name in pairs]
        return {"role": "assistant", "content": None, "tool_calls": made}

    custom = {"id": "3", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}}
    assert chat(
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "First"},
        calls(("1", "a")),
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": [{"type": "text", "text": "Sec"}, {"type": "text", "text": "ond"}]},
        {**calls(("2", "b")), "tool_calls": [*calls(("2", "b"))["tool_calls"], custom, {"id": "4"}]},
        {
            "role": "tool",
            "tool_call_id": "3",
            "content": [{"type": "text", "text": "th"}, {"type": "text", "text": "ree"}],
        },
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "image_url"}, {"type": "text", "text": "x"}]},
        {"role": "function", "name": "old", "content": "legacy"},
        {"role": "developer", "content": "Go on."},
    ) == [
        ResultReceived("1", "a", "one", latest=False),
        ResultReceived("3", "sql", "three"),
        ResultReceived("2", "b", [{"type": "image_url"}, {"type": "text", "text": "x"}]),
        ResultReceived(None, "old", "legacy"),
    ]


def test_results_in_request_openai_responses() -> None:
    def call(call_id: str, name: str, kind: str = "function_call") -> Any:
        return {"type": kind, "call_id": call_id, "name": name, "arguments": "{}"}

    def output(call_id: str, value: Any, kind: str = "function_call_output") -> Any:
        return {"type": kind, "call_id": call_id, "output": value}

    assert responses(
        {"role": "user", "content": "First"},
        {"type": "reasoning", "summary": []},
        call("1", "a"),
        output("1", "one"),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Second"}]},
        call("2", "b"),
        call("3", "patch", "custom_tool_call"),
        output("3", "done", "custom_tool_call_output"),
        {"type": "computer_call_output", "call_id": "9", "output": {}},
        {"type": "mcp_approval_response", "approve": True},
        output("2", [{"type": "input_text", "text": "two"}]),
        {"role": "developer", "content": "Go on."},
        {"role": "user", "content": "And?"},
    ) == [
        ResultReceived("1", "a", "one", latest=False),
        ResultReceived("3", "patch", "done"),
        ResultReceived("2", "b", "two"),
        MessageReceived("user", "And?"),
    ]


def test_results_alone_continue_a_response_that_the_server_keeps() -> None:
    item = {"type": "function_call_output", "call_id": "1", "output": "one"}
    assert responses(item, previous_response_id="resp_1") == [ResultReceived("1", None, "one")]


# -- contents that are not lists, media --


def test_contents_as_strings_and_nothing_at_all() -> None:
    assert read("openai_responses", {"input": "Hi"}) == [MessageReceived("user", "Hi")]
    assert gemini({"parts": [{"text": "Hi"}]}) == [MessageReceived("user", "Hi")]
    assert read("gemini", {"contents": {"parts": [{"text": "Hi"}]}}) == [MessageReceived("user", "Hi")]
    assert anthropic({"role": "user", "content": ""}, {"role": "system", "content": "no"}) == []
    assert chat({"role": "user", "content": None}) == chat({"role": "user"}) == []
    assert gemini({"role": "user"}, {"role": "user", "parts": []}) == []
    assert responses({"role": "user", "content": 5}) == []
    for wire in WIRES:
        assert read(wire, {}) == []


def test_media_are_named_by_kind() -> None:
    assert gemini(
        {
            "role": "user",
            "parts": [
                {"inlineData": {"mimeType": "image/png", "data": "x"}},
                {"inline_data": {"mime_type": "image/gif", "data": "x"}},
                {"fileData": {"fileUri": "gs://x"}},
                {"file_data": {"mime_type": "audio/wav"}},
                {"text": "Look"},
            ],
        }
    ) == [MessageReceived("user", "Look", attachments=("image/png", "image/gif", "file", "audio/wav"))]
    assert anthropic(
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
                {"type": "document", "source": {"type": "file", "file_id": "f"}},
                {"type": "search_result", "source": "https://example.org", "title": "x", "content": []},
            ],
        }
    ) == [MessageReceived("user", "", attachments=("image/png", "document"))]
    assert chat({"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "Look"}, "odd"]}) == [
        MessageReceived("user", "Look", attachments=("image_url",))
    ]


def test_snake_case_is_gemini_s_too() -> None:
    assert gemini(
        {"role": "model", "parts": [{"function_call": {"id": "1", "name": "a"}}]},
        {"role": "function", "parts": [{"function_response": {"id": "1", "response": {"error": 1, "output": 2}}}]},
    ) == [ResultReceived("1", "a", {"error": 1, "output": 2})]


# -- which turn is the last, which name an id has --


def test_prefill_does_not_end_the_last_turn() -> None:
    assert anthropic(
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "one"}]},
        {"role": "assistant", "content": "The answer is"},
    ) == [ResultReceived("1", "a", "one")]


def test_id_reuse_gives_each_result_the_name_of_its_own_call() -> None:
    def turn(name: str, content: str) -> list[Any]:
        function = {"id": "0", "type": "function", "function": {"name": name, "arguments": "{}"}}
        return [
            {"role": "assistant", "tool_calls": [function]},
            {"role": "tool", "tool_call_id": "0", "content": content},
        ]

    assert chat(*turn("a", "one"), *turn("b", "two")) == [
        ResultReceived("0", "a", "one", latest=False),
        ResultReceived("0", "b", "two"),
    ]


def test_messages_come_from_the_last_turn_alone() -> None:
    assert chat(
        {"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}
    ) == [MessageReceived("user", "3")]
    assert chat({"role": "user", "content": "1"}, {"role": "user", "content": "2"}) == [
        MessageReceived("user", "1"),
        MessageReceived("user", "2"),
    ]


# -- the door --


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[]", b'"text"', b"\xff", b"[" * 100_000, b'{"messages": 1, "contents": 1, "input": 1}']
)
def test_body_that_is_no_request(wire: str, body: bytes) -> None:
    with pytest.raises(WireError, match=f"expected the body of a {wire} request"):
        results_in(wire, body)


@pytest.mark.parametrize("wire", WIRES)
def test_body_that_is_no_request_is_not_quoted(wire: str) -> None:
    """What is wrong with a request is logged, and no conversation is."""
    with pytest.raises(WireError) as refused:
        results_in(wire, b'{"contents": [{"parts": [{"text": "secret"}]}], "n": NaN, "messages": "secret", "input": 1}')
    assert "secret" not in str(refused.value)


def test_lone_surrogates_are_replaced() -> None:
    assert read("openai_chat", b'{"messages": [{"role": "user", "content": "a\\ud83d \\ud83d\\ude00"}]}') == [
        MessageReceived("user", "a\ufffd 😀")
    ]


def test_unknown_wire_is_the_caller_s_fault() -> None:
    with pytest.raises(UsageError, match="expected one of the wires"):
        results_in("smoke_signals", b"{}")
