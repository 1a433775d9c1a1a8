"""Gemini on Vertex streams arguments only when it is asked to: the tap asks, once, unless the request says itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google import genai
from google.genai import types

from callstream import Callstream, tool
from callstream.testing import ScriptedProvider, ToolCall
from callstream.testing.bodies import BodiesProvider

ARGS = {"title": "Notes", "content": "one two three " * 5}
SCRIPT = [ToolCall("write", ARGS, call_id="c1")]
PROJECT = "/v1beta1/projects/p/locations/global/publishers/google/models/gemini-3:streamGenerateContent"
API_KEY = "/v1beta1/publishers/google/models/gemini-3:streamGenerateContent"
TUNED = "/v1beta1/projects/p/locations/global/endpoints/123:streamGenerateContent"
STUDIO = "/v1beta/models/gemini-3:streamGenerateContent"
CAMEL = "streamFunctionCallArguments"
SNAKE = "stream_function_call_arguments"
TOOLS = [{"functionDeclarations": [{"name": "write"}]}]


def calling_config(request: Any) -> dict[str, Any]:
    """The one object that says how functions are called, in a request that has each field once."""
    (outer,) = [request[name] for name in ("toolConfig", "tool_config") if name in request]
    (inner,) = [outer[name] for name in ("functionCallingConfig", "function_calling_config") if name in outer]
    return dict(inner)


async def sent(cs: Callstream, path: str, body: dict[str, Any]) -> Any:
    """What reaches the provider of a request, and that its answer is read."""
    async with ScriptedProvider("gemini", SCRIPT) as provider, cs.httpx_client(collapse="all") as client:
        body = {"contents": [{"role": "user", "parts": [{"text": "go"}]}], **body}
        response = await client.post(f"{provider.origin}{path}?alt=sse", json=body)
        assert response.status_code == 200, response.text
        return provider.requests[0].json


async def asked_by_sdk(cs: Callstream, config: Any, model: str = "gemini-3") -> Any:
    """What reaches the provider when google-genai asks with that calling config."""
    async with ScriptedProvider("gemini", SCRIPT) as provider, cs.httpx_client(collapse="all") as http:
        options = types.HttpOptions(base_url=provider.base_url, httpx_async_client=http)
        client = genai.Client(vertexai=True, api_key="none", http_options=options)
        made = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="write")])],
            tool_config=types.ToolConfig(function_calling_config=config) if config is not None else None,
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )
        async for _ in await client.aio.models.generate_content_stream(model=model, contents="go", config=made):
            pass
        return provider.requests[0].json


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("name", [CAMEL, SNAKE])
async def test_asks_for_pieces_as_the_agent_itself_says_with_google_genai(
    cs: Callstream, asks: bool, name: str
) -> None:
    calling = calling_config(await asked_by_sdk(cs, types.FunctionCallingConfig(**{name: asks})))
    assert [value for field, value in calling.items() if field in (CAMEL, SNAKE)] == [asks]


@pytest.mark.parametrize("config", [None, types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)])
async def test_asks_for_pieces_once_where_google_genai_says_nothing(cs: Callstream, config: Any) -> None:
    calling = calling_config(await asked_by_sdk(cs, config))
    assert [value for field, value in calling.items() if field in (CAMEL, SNAKE)] == [True]


@pytest.mark.parametrize("model", ["gemini-3", "projects/p/locations/global/endpoints/123"])
async def test_asks_for_pieces_of_tuned_models_too(cs: Callstream, model: str) -> None:
    assert calling_config(await asked_by_sdk(cs, None, model))[CAMEL] is True


@pytest.mark.parametrize("path", [PROJECT, API_KEY, TUNED])
async def test_asks_for_pieces_on_every_path_of_vertex(cs: Callstream, path: str) -> None:
    assert calling_config(await sent(cs, path, {"tools": TOOLS})) == {CAMEL: True}
    call = await cs.journal.call("c1")
    assert call is not None
    assert call.args == ARGS


async def test_asks_for_pieces_of_vertex_alone(cs: Callstream) -> None:
    assert "toolConfig" not in await sent(cs, STUDIO, {"tools": TOOLS})


@pytest.mark.parametrize("outer", ["toolConfig", "tool_config"])
@pytest.mark.parametrize("inner", ["functionCallingConfig", "function_calling_config"])
async def test_asks_for_pieces_in_the_spelling_that_is_there(cs: Callstream, outer: str, inner: str) -> None:
    for config in ({"mode": "ANY"}, {}, None):
        received = await sent(cs, PROJECT, {"tools": TOOLS, outer: {inner: config}})
        assert received[outer] == {inner: {**(config or {}), CAMEL: True}}
        assert calling_config(received)
    received = await sent(cs, PROJECT, {"tools": TOOLS, outer: None})
    assert calling_config(received) == {CAMEL: True}


@pytest.mark.parametrize("asks", [True, False, None])
@pytest.mark.parametrize("name", [CAMEL, SNAKE])
@pytest.mark.parametrize("outer", ["toolConfig", "tool_config"])
@pytest.mark.parametrize("inner", ["functionCallingConfig", "function_calling_config"])
async def test_asks_for_pieces_never_where_the_request_says_itself(
    cs: Callstream, outer: str, inner: str, name: str, asks: bool | None
) -> None:
    config = {inner: {"mode": "ANY", name: asks}}
    received = await sent(cs, PROJECT, {"tools": TOOLS, outer: config})
    assert received[outer] == config
    assert len([field for field in received if field in ("toolConfig", "tool_config")]) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"toolConfig": {}, "tool_config": {}},
        {"toolConfig": {"functionCallingConfig": {}, "function_calling_config": {SNAKE: False}}},
        {"tool_config": {"function_calling_config": {"mode": "NONE"}}},
    ],
)
async def test_asks_for_pieces_never_where_nobody_could_say_what_that_means(cs: Callstream, config: Any) -> None:
    received = await sent(cs, PROJECT, {"tools": TOOLS, **config})
    assert {name: received[name] for name in ("toolConfig", "tool_config") if name in received} == config


@pytest.mark.parametrize("config", [{}, {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}])
async def test_asks_for_pieces_only_where_every_call_reaches_the_sdk_whole(config: Any) -> None:
    """The switch is the request's: a program would get the calls of other tools in pieces that it never asked for."""

    @tool
    def write(title: str, content: str) -> str:
        return "written"

    @tool(stream_arguments=False)
    def erase(title: str) -> str:
        return "erased"

    body = {"contents": [{"role": "user", "parts": [{"text": "go"}]}], **config}
    declared = {name: {"name": name} for name in ("write", "erase", "unknown")}
    async with (
        Callstream(tools=[write, erase]) as cs,
        ScriptedProvider("gemini", SCRIPT) as provider,
        cs.httpx_client() as client,
        cs.httpx_client(stream_arguments=False) as never,
        cs.httpx_client(collapse="none") as observing,
    ):

        async def asks(client: Any, *names: str) -> bool:
            tools = [{"functionDeclarations": [declared[name] for name in names]}]
            await client.post(f"{provider.origin}{PROJECT}?alt=sse", json={**body, "tools": tools})
            return CAMEL in str(provider.requests[-1].json)

        assert await asks(client, "write")
        assert not await asks(client, "write", "unknown")
        assert not await asks(client, "write", "erase")
        assert not await asks(never, "write")
        assert not await asks(observing, "write")


def vertex_chunk(*parts: dict[str, Any], **candidate: Any) -> bytes:
    body = {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, **candidate}],
        "modelVersion": "gemini-3",
    }
    return b"data: " + json.dumps(body).encode() + b"\r\n\r\n"


async def test_a_chat_of_google_genai_remembers_a_call_whose_end_is_that_of_the_answer(cs: Callstream) -> None:
    """As Vertex ends an answer: the last piece of the call comes with the finish reason."""
    call = [
        vertex_chunk({"functionCall": {"name": "write", "willContinue": True}, "thoughtSignature": "c2ln"}),
        vertex_chunk(
            {"functionCall": {"partialArgs": [{"jsonPath": "$.title", "stringValue": "No"}], "willContinue": True}}
        ),
        vertex_chunk({"functionCall": {}}, finishReason="STOP"),
    ]
    words = [vertex_chunk({"text": "Done."}, finishReason="STOP")]
    async with BodiesProvider("gemini", [call, words]) as provider, cs.httpx_client(collapse="all") as http:
        options = types.HttpOptions(base_url=provider.base_url, httpx_async_client=http)
        client = genai.Client(vertexai=True, api_key="none", http_options=options)
        config = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="write")])],
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )
        chat = client.aio.chats.create(model="gemini-3", config=config)
        async for _ in await chat.send_message_stream("go"):
            pass
        async for _ in await chat.send_message_stream("and?"):
            pass
        contents = provider.requests[1].json["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user"]
    (part,) = contents[1]["parts"]
    assert (part["functionCall"]["name"], part["functionCall"]["args"]) == ("write", {"title": "No"})
