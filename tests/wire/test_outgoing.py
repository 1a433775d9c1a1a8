from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.wire import WIRES, provider_at, provider_of
from callstream.wire.gemini import SENTINEL
from callstream.wire.requests import LoneReasoning, Request

VERTEX = "/v1beta1/projects/p/locations/global/publishers/google/models/gemini-3:streamGenerateContent"
STUDIO = "/v1beta/models/gemini-3:streamGenerateContent"


@pytest.mark.parametrize(
    ("path", "wire"),
    [
        (STUDIO, "gemini"),
        (VERTEX, "gemini"),
        ("/v1beta/models/gemini-3:generateContent", "gemini"),
        ("/v1/messages", "anthropic"),
        ("/gateway/anthropic/v1/messages/", "anthropic"),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/claude@1:streamRawPredict", "anthropic"),
        ("/v1/chat/completions", "openai_chat"),
        ("/openai/deployments/gpt/chat/completions", "openai_chat"),
        ("/v1/responses", "openai_responses"),
        ("/v2/chat", "cohere"),
        ("/api/chat", "ollama"),
        ("/v1/agents/completions", "openai_chat"),
        ("/v1/conversations", None),
        ("/api/generate", None),
        ("/v1beta/interactions", "gemini_interactions"),
        ("/v1beta1/projects/p/locations/l/interactions", "gemini_interactions"),
        ("/v1/interactions/v1_abc/cancel", None),
        ("/v1/interactions/v1_abc", None),
        ("/v1/chat", None),
        ("/model/us.amazon.nova-2-lite-v1:0/converse-stream", "bedrock_converse"),
        ("/model/arn:aws:bedrock:us-east-1:1:inference-profile/us.claude/converse", "bedrock_converse"),
        ("/model/anthropic.claude/invoke-with-response-stream", "bedrock_invoke"),
        ("/model/anthropic.claude/invoke", "bedrock_invoke"),
        ("/model/anthropic.claude/async-invoke", None),
        ("/v1/messages/count_tokens", None),
        ("/v1/messages/batches", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/embeddings", None),
        ("/v1beta/models/gemini-3:countTokens", None),
    ],
)
def test_the_wire_is_recognised_by_path(path: str, wire: str | None) -> None:
    provider = provider_at(path)
    assert (provider.wire if provider else None) == wire


@pytest.mark.parametrize(
    ("wire", "status", "content_type", "path", "kind"),
    [
        ("anthropic", 200, "text/event-stream; charset=utf-8", "/v1/messages", "stream"),
        ("anthropic", 200, "application/json", "/v1/messages", "whole"),
        ("anthropic", 429, "application/json", "/v1/messages", None),
        ("anthropic", 200, "text/html", "/v1/messages", None),
        ("gemini", 200, "application/json; charset=UTF-8", STUDIO, "stream"),
        ("gemini", 200, "application/json", "/v1beta/models/g:generateContent", "whole"),
    ],
)
def test_the_answer_is_recognised_by_content_type(
    wire: str, status: int, content_type: str, path: str, kind: str | None
) -> None:
    assert provider_of(wire).answer_kind(Request(path, b""), status, content_type) == kind


TOOLS = [{"functionDeclarations": [{"name": "write", "parameters": {"type": "OBJECT"}}]}]


def streamed(request: dict[str, Any], path: str = VERTEX) -> Any:
    asked = provider_of("gemini").ask_for_pieces(Request(path, json.dumps(request).encode()))
    return json.loads(asked.body)


def test_vertex_is_asked_to_stream_arguments() -> None:
    asked = streamed({"contents": [], "tools": TOOLS})
    assert asked["toolConfig"] == {"functionCallingConfig": {"streamFunctionCallArguments": True}}
    kept = streamed({"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}, "x": 1}})
    assert kept["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "streamFunctionCallArguments": True}, "x": 1}


@pytest.mark.parametrize(
    "request_",
    [
        {"contents": []},
        {"tools": [{"googleSearch": {}}]},
        {"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": False}}},
        {"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
        {"tools": TOOLS, "toolConfig": "odd"},
        {"tools": "odd"},
    ],
)
def test_a_request_that_does_not_want_streamed_arguments_is_left_alone(request_: dict[str, Any]) -> None:
    assert streamed(request_) == request_


def test_only_vertex_is_asked() -> None:
    assert streamed({"tools": TOOLS}, STUDIO) == {"tools": TOOLS}
    for body in (b"not json", b"[1]"):
        assert provider_of("gemini").ask_for_pieces(Request(VERTEX, body)).body == body
    for wire in ("anthropic", "openai_chat", "openai_responses"):
        request = Request(VERTEX, json.dumps({"tools": TOOLS}).encode())
        assert provider_of(wire).ask_for_pieces(request) is request


def signed(contents: list[Any], known: dict[str, str] | None = None) -> Any:
    request = Request(STUDIO, json.dumps({"contents": contents}).encode())
    asked = provider_of("gemini").sign(request, lambda call_id, name: (known or {}).get(call_id or ""))
    return json.loads(asked.body)["contents"]


def model(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(calls)}


CALL = {"functionCall": {"id": "c1", "name": "write", "args": {}}}
USER = {"role": "user", "parts": [{"text": "go"}]}
RESULT = {"role": "user", "parts": [{"functionResponse": {"name": "write", "response": {}}}]}


def test_signatures_repaired_from_what_is_known_and_with_the_sentinel_only_where_nothing_is() -> None:
    assert signed([USER, model(CALL), RESULT], {"c1": "real"})[1]["parts"][0]["thoughtSignature"] == "real"
    assert signed([USER, model(CALL), RESULT])[1]["parts"][0]["thoughtSignature"] == SENTINEL
    parallel = signed([USER, model({"text": "x"}, CALL, CALL), RESULT, model(CALL)])
    assert [part.get("thoughtSignature") for part in parallel[1]["parts"]] == [None, SENTINEL, None]
    assert parallel[3]["parts"][0]["thoughtSignature"] == SENTINEL


def test_signatures_repaired_leaves_the_rest_alone() -> None:
    present = {**CALL, "thoughtSignature": "theirs"}
    untouched: list[list[Any]] = [[USER, model(present), RESULT], [USER, model(CALL), RESULT, USER], [USER], []]
    for contents in untouched:
        assert signed(contents) == contents
    request = Request("/v1/messages", b'{"messages": []}')
    assert provider_of("anthropic").sign(request, lambda call_id, name: "x") is request
    assert provider_of("gemini").sign(Request(STUDIO, b"odd"), lambda call_id, name: "x").body == b"odd"


@pytest.mark.parametrize(
    ("wire", "tools"),
    [
        ("gemini", [{"functionDeclarations": [{"name": "write", "parametersJsonSchema": {"a": 1}}, "odd"]}, "odd"]),
        ("gemini", [{"function_declarations": [{"name": "write", "parameters": {"a": 1}}]}, {"googleSearch": {}}]),
        ("anthropic", [{"name": "write", "input_schema": {"a": 1}}]),
        ("openai_chat", [{"type": "function", "function": {"name": "write", "parameters": {"a": 1}}}, {"custom": 1}]),
        ("openai_responses", [{"type": "function", "name": "write", "parameters": {"a": 1}}, {"type": "web_search"}]),
        (
            "gemini_interactions",
            [{"type": "function", "name": "write", "parameters": {"a": 1}}, {"type": "mcp_server", "name": "x"}],
        ),
        ("ollama", [{"type": "function", "function": {"name": "write", "parameters": {"a": 1}}}]),
        ("cohere", [{"type": "function", "function": {"name": "write", "parameters": {"a": 1}}}, "odd"]),
    ],
)
def test_declared_tools_are_read_for_every_wire(wire: str, tools: Any) -> None:
    provider = provider_of(wire)
    assert provider.declared_tools(Request("/", json.dumps({"tools": tools}).encode())) == {"write": {"a": 1}}
    assert provider.declared_tools(Request("/", b"odd")) == {}


@pytest.mark.parametrize(
    ("wire", "fields", "names"),
    [
        (
            "openai_chat",
            {
                "tools": [
                    {"type": "function", "function": {"name": "a"}},
                    {"type": "custom", "custom": {"name": "b"}},
                    "odd",
                ],
                "functions": [{"name": "c"}],
            },
            ("a", "b", "c"),
        ),
        (
            "openai_responses",
            {
                "tools": [
                    {"type": "function", "name": "a"},
                    {"type": "custom", "name": "b"},
                    {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "c"}]},
                ]
            },
            ("a", "b", "crm", "c"),
        ),
        ("openai_responses", {"tools": [{"type": "function", "name": "a"}, {"type": "tool_search"}]}, ()),
        ("gemini", {"tools": [{"functionDeclarations": [{"name": "a"}]}, {"googleSearch": {}}]}, ("a",)),
        ("gemini", {"tools": [{"functionDeclarations": [{"name": "a"}]}, {"computerUse": {}}]}, ()),
        ("gemini_interactions", {"tools": [{"type": "function", "name": "a"}]}, ("a",)),
        ("gemini_interactions", {"tools": [{"type": "function", "name": "a"}, {"type": "computer_use"}]}, ()),
        ("anthropic", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, ("bash",)),
        ("anthropic", {}, ()),
    ],
)
def test_what_calls_may_be_named(wire: str, fields: Any, names: Any) -> None:
    assert provider_of(wire).offered_names(Request("/", json.dumps(fields).encode())) == names


def test_what_a_server_keeps_itself() -> None:
    def stored(**request: Any) -> bool:
        return provider_of("openai_responses").is_stored(Request("/v1/responses", json.dumps(request).encode()))

    assert stored(input="x")
    assert not stored(store=False)
    assert stored(store=False, previous_response_id="r")
    assert stored(store=False, conversation="c")
    assert not provider_of("anthropic").is_stored(Request("/v1/messages", b"{}"))


ASKED: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "go"}]}
MORE: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "and?"}]}
LONE: dict[str, tuple[dict[str, Any], Any]] = {
    "anthropic": (
        {"messages": [ASKED, {"role": "assistant", "content": [{"type": "thinking", "signature": "s"}]}, MORE]},
        [{"role": "user", "content": [*ASKED["content"], *MORE["content"]]}],
    ),
    "anthropic, redacted": (
        {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "s"}]},
                MORE,
            ]
        },
        [{"role": "user", "content": "go"}, MORE],
    ),
    "bedrock_converse": (
        {
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "content": [
                        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
                        {"reasoningContent": {"redactedContent": "t"}},
                        {"text": "Hi"},
                    ],
                },
            ]
        },
        [
            ASKED,
            {"role": "assistant", "content": [{"reasoningContent": {"redactedContent": "t"}}, {"text": "Hi"}]},
        ],
    ),
    "openai_responses": (
        {
            "input": [
                {"role": "user", "content": "go"},
                {"type": "reasoning", "id": "s"},
                {"type": "reasoning", "id": "t"},
                {"type": "function_call", "call_id": "c"},
            ]
        },
        [
            {"role": "user", "content": "go"},
            {"type": "reasoning", "id": "t"},
            {"type": "function_call", "call_id": "c"},
        ],
    ),
    "gemini_interactions": (
        {"input": [{"type": "thought", "signature": "s"}, {"type": "thought", "signature": "t"}]},
        [{"type": "thought", "signature": "t"}],
    ),
}


@pytest.mark.parametrize("case", LONE)
def test_lone_reasoning_is_taken_out_of_requests(case: str) -> None:
    provider = provider_of(case.partition(",")[0])
    given, expected = LONE[case]
    lone = LoneReasoning()
    request = Request("/", json.dumps(given).encode())
    assert provider.without_lone_reasoning(request, lone) is request
    lone.add("s")
    [(_, sent)] = json.loads(provider.without_lone_reasoning(request, lone).body).items()
    assert sent == expected


@pytest.mark.parametrize("wire", ["anthropic", "bedrock_converse", "openai_responses", "gemini_interactions", "gemini"])
def test_requests_without_lone_reasoning_stay_as_they_are(wire: str) -> None:
    lone = LoneReasoning()
    lone.add("s")
    for body in (b"{}", b'{"input": "go"}', b'{"messages": [{"role": "assistant", "content": "Hi"}], "input": [1]}'):
        request = Request("/", body)
        assert provider_of(wire).without_lone_reasoning(request, lone) is request


def test_only_the_latest_lone_reasoning_is_remembered() -> None:
    lone = LoneReasoning()
    for number in range(10_001):
        lone.add(str(number))
    assert not lone.has("0", None, 3)
    assert lone.has("0", "10000")


@pytest.mark.parametrize("wire", WIRES)
def test_what_follows_a_checkpoint_is_asked_for_where_answers_have_them(wire: str) -> None:
    provider, request = provider_of(wire), Request(VERTEX, b'{"contents": []}')
    asked = provider.from_checkpoint(request, "token")
    if provider.checkpoint is None:
        assert asked is request
    else:
        assert provider.continued(asked) == "token"
        assert provider.checkpoint.search(b'data: {"continuationToken": "token"}\n\n')
