"""Gemini's Interactions API over the tap: continuation, streams that are taken up again, and Vertex."""

from __future__ import annotations

from typing import Any

import httpx
from google import genai
from google.genai import types
from google.oauth2.credentials import Credentials

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Finish, ReceivedRequest, ScriptedProvider, Text, ToolCall
from callstream.testing.bodies import BodiesProvider
from callstream.testing.encoders import encode
from tests.sdks import SDKS

WIRE = "gemini_interactions"
SDK = SDKS[WIRE]
ARGS = {"title": "Notes", "content": "one two three"}


async def test_continuation_is_two_exchanges_of_one_stream(cs: Callstream) -> None:
    """The SDK sends the second request itself, and yields both streams as one."""

    def hop(call: ToolCall, token: bytes) -> list[bytes]:
        status = b'"status":"requires_continuation"'
        frames = encode(WIRE, [call, Finish("requires_continuation")])
        return [frame.replace(status, status + b',"continuation_token":"' + token + b'"') for frame in frames]

    bodies = [
        hop(ToolCall("write", ARGS, call_id="a"), b"t1"),
        hop(ToolCall("write", ARGS, call_id="b", stop_after=2), b"t2"),
    ]
    last = list(encode(WIRE, [Text("Done.")], first_id=3))
    async with BodiesProvider(WIRE, [*bodies, last]) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(collapse="all"), 0) as client, cs.run("t"):
            stream = await client.aio.interactions.create(model="gemini-3", input="go", stream=True)
            events = [event async for event in stream]
        continued = [request.json.get("continuation_token") for request in provider.requests]
    assert continued == [None, "t1", "t2"]
    kinds = [event.event_type for event in events]
    assert kinds.count("interaction.created") == 3
    assert [
        event.step.id for event in events if event.event_type == "step.start" and event.step.type == "function_call"
    ] == ["a"]
    whole, open_ = await cs.journal.calls()
    assert (whole.provider_id, whole.state) == ("a", CallState.RELEASED)
    assert (open_.state, open_.reason) == (CallState.DISCARDED, "truncated")


async def test_stream_is_taken_up_again_with_get(cs: Callstream) -> None:
    async with ScriptedProvider(WIRE, [Text("Here."), ToolCall("write", ARGS, call_id="a")]) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(collapse="all"), 0) as client:
            stream = await client.aio.interactions.get("v1_abc", stream=True, last_event_id="e7")
            answer = SDK.fold([event async for event in stream])
            state = await client.aio.interactions.get("v1_abc")
        resumed, asked = provider.requests
    assert (answer.calls, answer.pieces) == ([("a", "write", ARGS)], 1)
    assert (resumed.method, resumed.query["last_event_id"]) == ("GET", "e7")
    assert [step.type for step in state.steps] == ["model_output", "function_call"]
    assert asked.method == "GET"
    (call,) = await cs.journal.calls()
    assert (call.provider_id, call.name) == ("a", "write")


async def test_a_stated_wire_reads_get_too(cs: Callstream) -> None:
    async with ScriptedProvider(WIRE, [ToolCall("write", ARGS, call_id="a")]) as provider:
        async with cs.httpx_client(wire=WIRE, collapse="all") as client:
            await client.get(f"{provider.base_url}/v1/interactions/v1_abc", params={"stream": "true"})
            await client.get(f"{provider.base_url}/v1/elsewhere")
    assert len(await cs.journal.calls()) == 1


async def test_vertex(cs: Callstream) -> None:
    async with ScriptedProvider(WIRE, [ToolCall("write", ARGS, call_id="a")]) as provider:
        async with cs.httpx_client(collapse="all") as http:
            options = types.HttpOptions(base_url=provider.base_url, httpx_async_client=http)
            credentials: Any = Credentials("none")  # type: ignore[no-untyped-call]
            client = genai.Client(
                vertexai=True, project="p", location="l", credentials=credentials, http_options=options
            )
            stream = await client.aio.interactions.create(model="gemini-3", input="go", stream=True)
            answer = SDK.fold([event async for event in stream])
        paths = [request.path for request in provider.requests]
    assert paths == ["/v1beta1/projects/p/locations/l/interactions"]
    assert answer.calls == [("a", "write", ARGS)]
    assert len(await cs.journal.calls()) == 1


async def test_results_of_a_program_complete_its_calls(cs: Callstream) -> None:
    def script(request: ReceivedRequest) -> list[Any]:
        return [Text("Done.")] if isinstance(request.json["input"], list) else [ToolCall("write", ARGS, call_id="a")]

    async with ScriptedProvider(WIRE, script) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(), 0) as client, cs.run("thread"):
            first = await client.aio.interactions.create(model="gemini-3", input="go")
            result: Any = {"type": "function_result", "call_id": "a", "name": "write", "result": {"words": 3}}
            await client.aio.interactions.create(model="gemini-3", input=[result], previous_interaction_id=first.id)
    (listed,) = await cs.journal.calls()
    call = await cs.journal.call(listed.call_id)
    assert call is not None
    assert (call.state, call.result) == (CallState.COMPLETED, {"words": 3})


async def test_sync_client(cs: Callstream) -> None:
    with ScriptedProvider(WIRE, [ToolCall("write", ARGS, call_id="a")]) as provider:
        with httpx.Client(transport=cs.transport(collapse="all")) as http:  # type: ignore[arg-type]
            options = types.HttpOptions(base_url=provider.base_url, httpx_client=http)
            client = genai.Client(api_key="none", http_options=options)
            events = list(client.interactions.create(model="gemini-3", input="go", stream=True))
    assert SDK.fold(events).calls == [("a", "write", ARGS)]
