"""The forms of a scripted provider's answers: compressed, as an array, on Vertex, paced."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import types as genai_types
from google.oauth2.credentials import Credentials

from callstream.testing import (
    STAMP,
    Delay,
    Failure,
    Finish,
    HttpError,
    Parallel,
    ScriptedProvider,
    Text,
    Thought,
    ToolCall,
    Truncated,
)
from tests.testing.asking import QUESTION, asked, client_of, gemini, gemini_options, gemini_said

from .answering import PARIS, each_wire, either_form, posted, scripted


@each_wire
@either_form
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_answers_are_read(wire: str, stream: bool, encoding: Any) -> None:
    async with scripted(wire, [Text("Short. " * 20, size=9), ToolCall("a", PARIS)], encoding=encoding) as provider:
        said = await asked(provider, stream=stream)
    assert (said.text, said.calls) == ("Short. " * 20, [("a", PARIS)])


async def test_compression_flushes_after_each_event() -> None:
    script = [Text("One. "), Delay(60), Text("Two.")]
    async with (
        ScriptedProvider("anthropic", script, encoding="gzip") as provider,
        httpx.AsyncClient(verify=False) as client,
    ):
        headers = {"accept-encoding": "identity"}
        request = client.stream("POST", provider.origin + "/v1/messages", json={"stream": True}, headers=headers)
        async with asyncio.timeout(20), request as answer:
            assert answer.headers["content-encoding"] == "gzip"
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                if "content_block_stop" in text:
                    break
    assert '"text":"One. "' in text


async def test_gemini_without_sse_is_a_json_array() -> None:
    async with ScriptedProvider("gemini", [Text("One, two.", size=3), Delay(0)]) as provider:
        answer = await posted(provider, path="/v1beta/models/m:streamGenerateContent")
    assert answer.headers["content-type"].startswith("application/json")
    texts = [item["candidates"][0]["content"]["parts"][0]["text"] for item in answer.json()]
    assert "".join(texts) == "One, two."


@pytest.mark.parametrize(("end", "is_json"), [(Failure("No."), True), (Truncated(), False)])
async def test_a_json_array_is_whole_only_if_the_stream_is(end: Any, is_json: bool) -> None:
    async with ScriptedProvider("gemini", [Text("One"), end]) as provider:
        answer = await posted(provider, path="/v1beta/models/m:streamGenerateContent")
    assert answer.text.endswith("]") is is_json


async def test_a_refusal_of_a_json_array_is_in_an_array() -> None:
    async with ScriptedProvider("gemini", [HttpError(503)]) as provider:
        answer = await posted(provider, path="/v1beta/models/m:streamGenerateContent")
    assert answer.json()[0]["error"]["status"] == "UNAVAILABLE"


@either_form
async def test_gemini_on_vertex_streams_arguments_when_the_sdk_asks_for_it(stream: bool) -> None:
    async with ScriptedProvider("gemini", [ToolCall("get_weather", PARIS)]) as provider:
        client = genai.Client(
            vertexai=True,
            project="p",
            location="l",
            credentials=Credentials(token="none"),
            http_options=gemini_options(provider),
        )
        calling = genai_types.FunctionCallingConfig(stream_function_call_arguments=True)
        config = genai_types.GenerateContentConfig(
            tool_config=genai_types.ToolConfig(function_calling_config=calling),
            automatic_function_calling=genai_types.AutomaticFunctionCallingConfig(disable=True),
        )
        async with client.aio as aio:
            said = await gemini(aio, stream, config=config)
        [request] = provider.requests
    assert said.calls == [("get_weather", PARIS)]
    assert (said.pieces > 4) is stream
    verb = "streamGenerateContent" if stream else "generateContent"
    assert request.path == f"/v1beta1/projects/p/locations/l/publishers/google/models/gemini-3-pro:{verb}"


@either_form
async def test_anthropic_on_vertex(stream: bool) -> None:
    verb = "streamRawPredict" if stream else "rawPredict"
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider:
        path = f"/v1/projects/p/locations/l/publishers/anthropic/models/claude@1:{verb}"
        answer = await posted(provider, {"anthropic_version": "vertex-2023-10-16"}, path)
    assert ("event: message_stop" in answer.text) is stream
    assert '"claude@1"' in answer.text


def test_gemini_from_a_sync_client() -> None:
    with ScriptedProvider("gemini", [Thought("Hm."), Text("Hello", size=2), ToolCall("a", {"x": "y"})]) as provider:
        with genai.Client(api_key="none", http_options=gemini_options(provider)) as client:
            chunks = list(client.models.generate_content_stream(model="gemini-3-pro", contents=QUESTION))
            whole = client.models.generate_content(model="gemini-3-pro", contents=QUESTION)
    for said in (gemini_said(chunks), gemini_said([whole])):
        assert (said.text, said.thoughts, said.calls) == ("Hello", "Hm.", [("a", {"x": "y"})])


@pytest.mark.parametrize("asks", [True, False])
async def test_gemini_streams_arguments_when_asked(asks: bool) -> None:
    script = [
        Parallel([ToolCall("a", {"x": "long enough"}), ToolCall("b", {"x": "long enough"})]),
        ToolCall("c", {"x": "long"}),
    ]
    body = {"toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": asks}}}
    async with ScriptedProvider("gemini", script) as provider:
        assert ("partialArgs" in (await posted(provider, body)).text) is asks
        assert "partialArgs" not in (await posted(provider)).text


async def test_gemini_does_not_tell_of_a_call_that_never_ends_unless_it_streams_it() -> None:
    script = [ToolCall("a", {"x": "long enough"}, stop_after=1), Finish("length")]
    async with ScriptedProvider("gemini", script) as provider:
        said = await asked(provider)
    assert (said.calls, said.finish) == ([], "MAX_TOKENS")


@pytest.mark.parametrize("asks", [True, False])
async def test_chat_tells_usage_when_asked(asks: bool) -> None:
    body = {"stream": True, "stream_options": {"include_usage": asks}}
    async with ScriptedProvider("openai_chat", [[Text("Hi"), Delay(0)]]) as provider:
        answer = await posted(provider, body)
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [chunk["choices"] for chunk in chunks].count([]) == int(asks)
    assert all(("usage" in chunk) is asks for chunk in chunks)


async def test_stamps_tell_when_a_frame_was_sent() -> None:
    before = time.monotonic_ns()
    async with ScriptedProvider("openai_chat", [Text(STAMP * 3, size=len(STAMP)), Delay(0)], stamp=True) as provider:
        said = await asked(provider)
    stamps = [int(said.text[at : at + 20]) for at in (0, 20, 40)]
    assert before < stamps[0] <= stamps[1] <= stamps[2] < time.monotonic_ns()


async def test_stamps_tell_the_time_of_sending_and_not_of_making() -> None:
    before = time.monotonic_ns()
    async with ScriptedProvider("openai_chat", [Text(STAMP)], stamp=True, deltas_per_second=20) as provider:
        said = await asked(provider)
    # The first event is the role's, so the text is sent a twentieth of a second after it.
    assert int(said.text) >= before + 50_000_000


async def test_pace_holds_events_back() -> None:
    """So slow that nothing but the first event can come while the test looks."""
    async with ScriptedProvider("openai_chat", [Text("abcdef", size=1)], deltas_per_second=0.01) as provider:
        async with client_of(provider) as client:
            stream = await client.chat.completions.create(model="m", messages=[], stream=True)
            async with asyncio.timeout(20):
                await anext(aiter(stream))
            assert provider.requests[0].sent == 1
            await stream.close()


async def test_pace_goes_on_to_the_end() -> None:
    async with ScriptedProvider("anthropic", [Text("abcdef", size=1), Delay(0)], deltas_per_second=5000) as provider:
        assert (await asked(provider)).text == "abcdef"
