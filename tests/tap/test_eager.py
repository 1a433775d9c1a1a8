"""Providers that stream arguments only on request are asked to, once, and where they refuse, the request goes without."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic, AuthenticationError, BadRequestError
from openai import AsyncOpenAI

from callstream import Callstream, FieldDelta, tool
from callstream.tap import TapSettings
from callstream.testing import (
    HttpError,
    ReceivedRequest,
    ScriptedProvider,
    Text,
    ToolCall,
    eager_refusal,
    eager_tools,
    encode,
)

ARGS = {"title": "Tides", "content": "The moon pulls, and the sea follows. " * 6}
SCRIPT = [ToolCall("write", ARGS)]
EAGER = "eager_input_streaming"


@tool
def write(title: str, content: str) -> str:
    """Writes a document."""
    return "written"


@tool(stream_arguments=False)
def erase(title: str) -> str:
    """Erases a document."""
    return "erased"


DECLARED: dict[str, Any] = write.schema("anthropic")
UNKNOWN: dict[str, Any] = {"name": "unknown", "input_schema": {"type": "object"}}


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream(tools=[write, erase]) as callstream:
        yield callstream


async def ask(
    cs: Callstream | None, provider: ScriptedProvider, tools: list[Any], *, stream: bool = True, **options: Any
) -> Any:
    http_client = None if cs is None else cs.httpx2_client(**options)
    async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=http_client) as client:
        asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}], "tools": tools}
        if not stream:
            return await client.messages.create(**asked)
        async with client.messages.stream(**asked) as answer:
            return await answer.get_final_message()


def asked_for(request: ReceivedRequest) -> dict[str, Any]:
    """What each tool of a request says of it."""
    return {tool["name"]: tool[EAGER] for tool in request.json["tools"] if EAGER in tool}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_asks_for_the_tools_whose_calls_reach_the_sdk_whole(cs: Callstream, stream: bool) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    bash = {"type": "bash_20250124", "name": "bash"}
    stated = [{**DECLARED, "name": f"said_{value}", EAGER: value} for value in (True, False, None)]
    tools = [DECLARED, {**DECLARED, "name": "custom", "type": "custom"}, erase.schema("anthropic"), search, bash]
    async with ScriptedProvider("anthropic", SCRIPT) as provider:
        await ask(cs, provider, [*tools, *stated, UNKNOWN], stream=stream)
        await ask(cs, provider, [*tools, *stated, UNKNOWN], stream=stream, collapse="all")
        await ask(cs, provider, [*tools, *stated], stream=stream, collapse="none")
        await ask(cs, provider, [*tools, *stated], stream=stream, collapse="all", stream_arguments=False)
        said = {"said_True": True, "said_False": False, "said_None": None}
        assert [asked_for(request) for request in provider.requests] == [
            {"write": True, **said},
            {"write": True, "custom": True, "unknown": True, **said},
            said,
            said,
        ]


async def test_pieces_of_a_value_come_while_it_is_written(cs: Callstream) -> None:
    """Beside the same program that does not ask: there the value comes in one piece."""
    pieces: dict[bool, list[str]] = {True: [], False: []}
    async with ScriptedProvider("anthropic", SCRIPT, eager="known") as provider:
        for asks in (True, False):
            async with Callstream(tools=[write]) as asking:

                async def grow(field: FieldDelta, signal: Any, asks: bool = asks) -> None:
                    pieces[asks].append(field.text)

                asking.on_field("write", "content", grow)
                answer = await ask(asking, provider, [DECLARED], stream_arguments=asks)
                assert answer.content[0].input == ARGS
    assert "".join(pieces[True]) == "".join(pieces[False]) == ARGS["content"]
    assert len([text for text in pieces[False] if text]) == 1
    assert [eager_tools(request) for request in provider.requests] == [{"write"}, set()]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wrapped", [0, 1, 2])
async def test_a_refusal_is_asked_once_more_without(
    cs: Callstream, caplog: pytest.LogCaptureFixture, wrapped: int, stream: bool
) -> None:
    def script(request: ReceivedRequest) -> Any:
        refusal = eager_refusal(request, wrapped=wrapped)
        return SCRIPT if refusal is None else [refusal]

    async with ScriptedProvider("anthropic", script, encoding="gzip" if wrapped == 1 else None) as provider:
        await ask(None, provider, [DECLARED], stream=stream)
        for _ in range(2):
            answer = await ask(cs, provider, [DECLARED], stream=stream)
            assert answer.content[0].input == ARGS
        original, refused, again, later = provider.requests
        assert asked_for(refused) == {"write": True}
        assert again.body == original.body == later.body
        assert again.headers.get("content-length") == str(len(again.body))
    [line] = [record for record in caplog.records if "refuses to be asked" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith(f"{provider.origin}/v1/messages refuses")


async def test_requests_at_once_are_all_answered_and_logged_once(
    cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedProvider("anthropic", SCRIPT, eager="refused") as provider:
        answers = await asyncio.gather(*(ask(cs, provider, [DECLARED]) for _ in range(6)))
    assert [answer.content[0].input for answer in answers] == [ARGS] * 6
    assert sum("refuses to be asked" in record.getMessage() for record in caplog.records) == 1


async def test_an_error_of_another_kind_is_the_sdks(cs: Callstream) -> None:
    async with ScriptedProvider("anthropic", [HttpError(400, "max_tokens: too large")]) as provider:
        with pytest.raises(BadRequestError, match="max_tokens: too large"):
            await ask(cs, provider, [DECLARED])
        assert len(provider.requests) == 1


async def test_a_request_that_is_refused_without_the_field_too_may_be_asked_again(cs: Callstream) -> None:
    """An error that repeats the request names the field without meaning it."""
    echo = [HttpError(400, f"cannot read: {EAGER}")]
    async with ScriptedProvider("anthropic", [echo, [HttpError(400, "too long")], SCRIPT]) as provider:
        with pytest.raises(BadRequestError, match="too long"):
            await ask(cs, provider, [DECLARED])
        await ask(cs, provider, [DECLARED])
        assert [asked_for(request) for request in provider.requests] == [{"write": True}, {}, {"write": True}]


async def test_the_sdks_own_retry_follows_a_refusal(cs: Callstream) -> None:
    def script(request: ReceivedRequest) -> Any:
        if (refusal := eager_refusal(request)) is not None:
            return [refusal]
        return [HttpError(529, "overloaded", retry_after=0.01)] if len(provider.requests) == 2 else SCRIPT

    async with ScriptedProvider("anthropic", script) as provider:
        answer = await ask(cs, provider, [DECLARED])
        assert answer.content[0].input == ARGS
        assert [asked_for(request) for request in provider.requests] == [{"write": True}, {}, {}]


VERTEX = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-sonnet-5"


@pytest.mark.parametrize("verb", ["streamRawPredict", "rawPredict"])
async def test_claude_on_vertex_is_asked_too(cs: Callstream, verb: str) -> None:
    async with ScriptedProvider("anthropic", SCRIPT) as provider, cs.httpx2_client() as client:
        body = {"messages": [{"role": "user", "content": "go"}], "tools": [DECLARED], "stream": verb != "rawPredict"}
        answer = await client.post(f"{provider.origin}{VERTEX}:{verb}", json=body)
        assert answer.status_code == 200
        assert asked_for(provider.requests[0]) == {"write": True}


async def test_a_sync_client_asks_and_is_refused_alike() -> None:
    def ask_blocking(cs: Callstream, base_url: str) -> Any:
        with Anthropic(base_url=base_url, api_key="none", http_client=cs.sync_http_client()) as client:
            return client.messages.create(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "go"}], tools=[DECLARED]
            )

    with Callstream(tools=[write]) as cs, ScriptedProvider("anthropic", SCRIPT, eager="refused") as provider:
        for _ in range(2):
            answer = await asyncio.to_thread(ask_blocking, cs, provider.base_url)
            assert answer.content[0].input == ARGS
        assert [asked_for(request) for request in provider.requests] == [{"write": True}, {}, {}]


@pytest.mark.parametrize("opted", [True, False])
async def test_bedrock_is_asked_by_beta_where_that_is_wanted(cs: Callstream, opted: bool) -> None:
    def script(request: ReceivedRequest) -> Any:
        return [HttpError(400, "invalid beta flag")] if request.json.get("anthropic_beta") else SCRIPT

    settings = TapSettings(bedrock_beta=opted)
    async with (
        ScriptedProvider("bedrock_invoke", script) as provider,
        cs.httpx2_client(settings=settings) as client,
    ):
        body = {"anthropic_version": "v", "messages": [{"role": "user", "content": "go"}], "tools": [DECLARED]}
        for _ in range(2):
            answer = await client.post(f"{provider.origin}/model/anthropic.claude/invoke", json=body)
            assert answer.json()["content"][0]["input"] == ARGS
        betas = [request.json.get("anthropic_beta") for request in provider.requests]
        assert betas == ([["fine-grained-tool-streaming-2025-05-14"], None, None] if opted else [None, None])


# -- OpenAI's wire --


async def asked_of(cs: Callstream, path: str, *, provider: ScriptedProvider, **request: Any) -> Any:
    async with AsyncOpenAI(
        base_url=f"{provider.origin}{path}", api_key="none", http_client=cs.http_client(), max_retries=0
    ) as client:
        tools: Any = request.pop("tools", [write.schema("openai_chat")])
        asked = {"messages": [{"role": "user", "content": "go"}], "stream": True, **request}
        answer = await client.chat.completions.create(**asked, tools=tools)
        if asked["stream"]:
            async for _ in answer:
                pass
        return provider.requests[-1].json


@pytest.mark.parametrize("model", ["glm-4.6", "glm-4.7-flash", "glm-5", "z-ai/glm-4.6", "zai-org/GLM-5-FP8"])
async def test_glm_is_asked_for_its_stream(cs: Callstream, model: str) -> None:
    async with ScriptedProvider("openai_chat", SCRIPT) as provider:
        assert (await asked_of(cs, "/api/paas/v4", provider=provider, model=model))["tool_stream"] is True


@pytest.mark.parametrize(
    "request_",
    [
        {"model": "glm-4.5v"},
        {"model": "gpt-5"},
        {"model": "glm-4.6", "stream": False},
        {"model": "glm-4.6", "tools": [write.schema("openai_chat"), erase.schema("openai_chat")]},
    ],
)
async def test_glm_is_asked_where_its_documentation_has_it(cs: Callstream, request_: Any) -> None:
    async with ScriptedProvider("openai_chat", SCRIPT) as provider:
        assert "tool_stream" not in await asked_of(cs, "/api/paas/v4", provider=provider, **request_)


@pytest.mark.parametrize("said", [True, False])
async def test_glm_goes_by_what_the_request_says(cs: Callstream, said: bool) -> None:
    async with ScriptedProvider("openai_chat", SCRIPT) as provider:
        body = await asked_of(cs, "/v1", provider=provider, model="glm-4.6", extra_body={"tool_stream": said})
        assert body["tool_stream"] is said


async def test_a_server_that_does_not_know_glms_field(cs: Callstream) -> None:
    def script(request: ReceivedRequest) -> Any:
        return [HttpError(422, "body.tool_stream: extra inputs")] if "tool_stream" in request.json else [Text("Yes.")]

    async with ScriptedProvider("openai_chat", script) as provider:
        for _ in range(2):
            assert "tool_stream" not in await asked_of(cs, "/v1", provider=provider, model="glm-4.6")
        assert len(provider.requests) == 3


async def test_openrouter_hands_anthropics_field_to_anthropics_models(cs: Callstream) -> None:
    tools = [write.schema("openai_chat"), erase.schema("openai_chat")]
    async with ScriptedProvider("openai_chat", SCRIPT) as provider:
        for path, model, expected in (
            ("/api/v1", "anthropic/claude-sonnet-5-5", [True, None]),
            ("/api/v1", "openai/gpt-5", [None, None]),
            ("/v1", "anthropic/claude-sonnet-5-5", [None, None]),
        ):
            body = await asked_of(cs, path, provider=provider, model=model, tools=tools)
            assert [entry.get(EAGER) for entry in body["tools"]] == expected
        stated = [{**tools[0], EAGER: False}]
        body = await asked_of(cs, "/api/v1", provider=provider, model="anthropic/claude", tools=stated)
        assert body["tools"] == stated


@pytest.mark.parametrize("status", [401, 403])
async def test_a_body_that_an_auth_has_signed_arrives_as_it_was_signed(cs: Callstream, status: int) -> None:
    """The auth of an HTTP client signs before the tap sees the request, and nothing in the refusal names the field."""

    class Signing(httpx2.Auth):
        requires_request_body = True

        def auth_flow(self, request: httpx2.Request) -> Any:
            request.headers["x-signature"] = sha256(request.content).hexdigest()
            yield request

    def respond(request: ReceivedRequest) -> list[Any]:
        is_signed = request.headers["x-signature"] == sha256(request.body).hexdigest()
        return SCRIPT if is_signed else [HttpError(status, "the signature does not match")]

    async with ScriptedProvider("anthropic", respond) as provider:
        for _ in range(2):
            message = await ask(cs, provider, [DECLARED], auth=Signing())
            assert [block.input for block in message.content] == [ARGS]
        assert [asked_for(request) for request in provider.requests] == [{"write": True}, {}, {}]


async def test_a_key_that_is_wrong_is_not_tried_twice_each_time(cs: Callstream) -> None:
    async with ScriptedProvider("anthropic", [HttpError(401, "wrong key")]) as provider:
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                await ask(cs, provider, [DECLARED])
        assert len(provider.requests) == 4


NAMED = f"tools.0: {EAGER}: Extra inputs are not permitted"


@pytest.mark.parametrize("status", [403, 500])
async def test_a_refusal_that_names_the_field_counts_whatever_its_status(cs: Callstream, status: int) -> None:
    def respond(request: ReceivedRequest) -> list[Any]:
        return [HttpError(status, NAMED)] if asked_for(request) else SCRIPT

    async with ScriptedProvider("anthropic", respond) as provider:
        for _ in range(2):
            answer = await ask(cs, provider, [DECLARED])
            assert [block.input for block in answer.content] == [ARGS]
        assert [asked_for(request) for request in provider.requests] == [{"write": True}, {}, {}]


async def test_a_stream_that_begins_with_an_error_which_names_the_field_is_a_refusal(cs: Callstream) -> None:
    bodies = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": NAMED}}
        refusal = f"event: error\ndata: {json.dumps(error)}\n\n".encode()
        content = refusal if EAGER.encode() in request.content else b"".join(encode("anthropic", SCRIPT))
        return httpx2.Response(200, content=content, headers={"content-type": "text/event-stream"})

    transport = cs.transport(httpx2.MockTransport(answer))
    async with httpx2.AsyncClient(transport=transport) as client:
        for _ in range(2):
            asked = {"model": "m", "stream": True, "messages": [], "tools": [DECLARED]}
            response = await client.post("http://127.0.0.1/v1/messages", json=asked)
            assert b"invalid_request_error" not in response.content
            assert b"message_stop" in response.content
    assert [EAGER.encode() in body for body in bodies] == [True, False, False]


async def test_mounts_of_a_client_are_tapped(cs: Callstream) -> None:
    async with ScriptedProvider("anthropic", SCRIPT) as provider:
        mounts = {"all://127.0.0.1": httpx2.AsyncHTTPTransport(), "all://elsewhere": None}
        answer = await ask(cs, provider, [DECLARED], mounts=mounts)
        assert [block.input for block in answer.content] == [ARGS]
    assert [call.name for call in await cs.journal.calls()] == ["write"]
