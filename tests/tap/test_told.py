"""What requests tell the model of calls that the program never got."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from callstream import Callstream, tool
from callstream.testing import Finish, ScriptedProvider, Text, Thought, ToolCall
from callstream.wire import provider_of
from callstream.wire.requests import Request

GOOD = {"title": "Tides", "content": "The moon pulls."}
MIXED = [
    ToolCall("write", {**GOOD, "title": 3}, call_id="bad"),
    ToolCall("write", GOOD, call_id="good"),
]


@tool
async def write(title: str, content: str) -> str:
    """Writes a document."""
    return "written"


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream(tools=[write]) as made:
        yield made


async def test_a_refused_call_stays_beside_the_sound_one_in_chat(cs: Callstream) -> None:
    """As a call of its own with a result of its own, in every request after it; the sound call's result is left alone."""
    messages: list[Any] = [{"role": "user", "content": "go"}]
    script = [MIXED, [ToolCall("write", GOOD, call_id="more")], [Text("Done.")]]
    async with (
        ScriptedProvider("openai_chat", script) as provider,
        openai.AsyncOpenAI(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client,
        cs.run("thread"),
    ):
        for _ in range(3):
            async with client.chat.completions.stream(
                model="m", messages=messages, tools=[write.schema("openai_chat")]
            ) as stream:
                answer = (await stream.get_final_completion()).choices[0].message
            messages.append(answer.to_dict())
            for call in answer.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "written"})
        for request in provider.requests[1:]:
            called, *results = request.json["messages"][1:4]
            assert [call["id"] for call in called["tool_calls"]] == ["good", "bad"]
            assert [result["tool_call_id"] for result in results] == ["good", "bad"]
            assert results[0]["content"] == "written"
            assert "'title' should be a string" in results[1]["content"]
            assert json.dumps(request.json).count("should be a string") == 1


@pytest.mark.parametrize("store", [True, False])
async def test_reasoning_that_led_to_a_refused_call_is_not_sent_back(cs: Callstream, store: bool) -> None:
    """The loop of the quickstart for Responses. OpenAI refuses reasoning without what it led to."""
    cut = [Thought("Hm."), ToolCall("write", GOOD, call_id="bad", stop_after=2), Finish("length")]
    script = [cut, [Thought("Ah."), ToolCall("write", GOOD, call_id="good")], [Text("Done.")]]
    messages: list[Any] = [{"role": "user", "content": "go"}]
    async with (
        ScriptedProvider("openai_responses", script) as provider,
        openai.AsyncOpenAI(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client,
        cs.run("thread", rejected="forward") as run,
    ):
        declared: Any = [write.schema("openai_responses")]
        while True:
            answer: Any = None
            async for event in await client.responses.create(
                model="m", input=messages, tools=declared, stream=True, store=store
            ):
                if event.type in ("response.completed", "response.incomplete"):
                    answer = event.response
            messages += [item.to_dict() for item in answer.output]
            results = await run.run_tools()
            if not results:
                break
            called = [item.call_id for item in answer.output if item.type == "function_call"]
            for result in results:
                if result.wire_id in called:
                    messages.append({"type": "function_call_output", "call_id": result.wire_id, "output": result.text})
                else:
                    messages.append({"role": "user", "content": result.text})
    sent = [[item.get("type") or item["role"] for item in request.json["input"]] for request in provider.requests]
    assert sent == [
        ["user"],
        ["user", "user"],
        ["user", "user", "reasoning", "function_call", "function_call_output"],
    ]


@pytest.fixture
def refused() -> Any:
    from callstream.wire.requests import RefusedCall

    return RefusedCall("bad", "write", {"title": 3}, "no", provider_id="bad", beside=("good",))


CONVERSATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "anthropic": (
        {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "good", "name": "write", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "good", "content": "ok"},
                        {"type": "text", "text": "and?"},
                    ],
                },
            ]
        },
        {
            "messages": [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "good", "name": "write", "input": {}},
                        {"type": "tool_use", "id": "bad", "name": "write", "input": {"title": 3}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "good", "content": "ok"},
                        {"type": "tool_result", "tool_use_id": "bad", "content": "no", "is_error": True},
                        {"type": "text", "text": "and?"},
                    ],
                },
            ]
        },
    ),
    "openai_responses": (
        {
            "input": [
                {"role": "user", "content": "go"},
                {"type": "function_call", "call_id": "good", "name": "write", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "good", "output": "ok"},
                {"role": "user", "content": "and?"},
            ]
        },
        {
            "input": [
                {"role": "user", "content": "go"},
                {"type": "function_call", "call_id": "good", "name": "write", "arguments": "{}"},
                {"type": "function_call", "call_id": "bad", "name": "write", "arguments": '{"title":3}'},
                {"type": "function_call_output", "call_id": "good", "output": "ok"},
                {"type": "function_call_output", "call_id": "bad", "output": "no"},
                {"role": "user", "content": "and?"},
            ]
        },
    ),
    "gemini": (
        {
            "contents": [
                {"role": "user", "parts": [{"text": "go"}]},
                {"role": "model", "parts": [{"functionCall": {"id": "good", "name": "write", "args": {}}}]},
                {"role": "user", "parts": [{"functionResponse": {"id": "good", "name": "write", "response": {}}}]},
            ]
        },
        {
            "contents": [
                {"role": "user", "parts": [{"text": "go"}]},
                {
                    "role": "model",
                    "parts": [
                        {"functionCall": {"id": "good", "name": "write", "args": {}}},
                        {"functionCall": {"id": "bad", "name": "write", "args": {"title": 3}}},
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": {"id": "good", "name": "write", "response": {}}},
                        {"functionResponse": {"id": "bad", "name": "write", "response": {"error": "no"}}},
                    ],
                },
            ]
        },
    ),
}


@pytest.mark.parametrize("wire", CONVERSATIONS)
def test_a_call_is_put_back_beside_the_others_of_its_response(wire: str, refused: Any) -> None:
    before, after = CONVERSATIONS[wire]
    request = Request("/", json.dumps(before).encode())
    assert provider_of(wire).restore(request, [refused]) == [refused]
    assert request.rewritten().fields == after


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses", "gemini", "cohere"])
@pytest.mark.parametrize("has_call", [True, False])
def test_a_call_is_not_put_back_where_the_others_have_no_results(wire: str, has_call: bool, refused: Any) -> None:
    before, _ = CONVERSATIONS.get(wire, ({"messages": [{"role": "user", "content": "go"}]}, {}))
    field = next(iter(before))
    chat_call = {"role": "assistant", "tool_calls": [{"id": "good"}]}
    kept = [*before[field][:2], *([chat_call] if wire == "openai_chat" else [])] if has_call else before[field][:1]
    request = Request("/", json.dumps({field: kept}).encode())
    assert provider_of(wire).restore(request, [refused]) == []
    assert request.fields == {field: kept}
    for nothing in (b"{}", b'{"messages":1,"input":1,"contents":1}'):
        assert provider_of(wire).restore(Request("/", nothing), [refused]) == []
