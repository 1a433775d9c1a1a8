"""What the tap reads in requests and whole answers, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from callstream import CallState, Callstream
from callstream.errors import UsageError
from callstream.events import ArgsAppended, MessageReceived
from callstream.tap import TapSettings
from callstream.testing import ScriptedProvider, Text, ToolCall, encode
from tests.tap.clients import SCHEMA, ask, sdk
from tests.tap.test_tap import ARGS, WRITE, journaled


async def test_whole_answers_are_journaled_and_wait_for_hooks(cs: Callstream) -> None:
    seen: list[str] = []
    cs.on_args_delta("write", lambda delta, signal: seen.append(delta.text))
    async with ScriptedProvider("anthropic", [WRITE]) as provider, sdk("anthropic", provider, cs) as client:
        tools: Any = [{"name": "write", "input_schema": SCHEMA}]
        message = await client.messages.create(
            model="claude", max_tokens=10, messages=[{"role": "user", "content": "go"}], tools=tools
        )
    assert message.content[0].input == ARGS
    assert len(seen) == 1
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert kept.args == ARGS


async def test_results_in_the_next_request_complete_the_calls_of_a_program_that_knows_nothing(cs: Callstream) -> None:
    async with (
        ScriptedProvider("anthropic", [[WRITE], [Text("Done.")]]) as provider,
        sdk("anthropic", provider, cs) as client,
    ):
        tools: Any = [{"name": "write", "input_schema": SCHEMA}]
        messages: list[Any] = [{"role": "user", "content": "go"}]
        async with client.messages.stream(model="claude", max_tokens=10, messages=messages, tools=tools) as stream:
            answer = await stream.get_final_message()
        (waiting,) = await cs.journal.runs()
        assert waiting.outcome is None
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "written"}
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        async with client.messages.stream(model="claude", max_tokens=10, messages=messages, tools=tools) as stream:
            await stream.get_final_message()
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state, kept.result) == (CallState.COMPLETED, "written")
    runs = await cs.journal.runs()
    assert [run.outcome for run in runs] == ["finished", "finished"]
    assert len({run.thread_id for run in runs}) == 1


async def test_what_no_request_answers_is_released_when_callstream_closes() -> None:
    cs = Callstream("memory:kept-open")
    async with ScriptedProvider("anthropic", [WRITE]) as provider:
        await ask("anthropic", provider, cs)
    watcher = Callstream("memory:kept-open")
    await cs.aclose()
    kept = await watcher.journal.call("c1")
    assert kept is not None
    assert kept.state is CallState.RELEASED
    await watcher.aclose()


async def test_the_input_of_a_run_is_read_from_its_requests(cs: Callstream) -> None:
    async with ScriptedProvider("openai_responses", [Text("Hello.")]) as provider:
        async with cs.run("thread") as run:
            await ask("openai_responses", provider, cs)
            await ask("openai_responses", provider, cs)
    events = [record.event async for record in cs.journal.read(run.run_id)]
    assert [event.text for event in events if isinstance(event, MessageReceived)] == ["go"]


async def test_unknown_paths_pass_untouched(cs: Callstream) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"got": request.content.decode()}, headers={"x-kept": "yes"})

    transport = cs.transport(httpx.MockTransport(answer))
    async with httpx.AsyncClient(transport=transport) as client:
        response = await client.post("http://127.0.0.1/v1/embeddings", content=b"data: {}")
    assert response.json() == {"got": "data: {}"}
    assert response.headers["x-kept"] == "yes"
    assert await cs.journal.runs() == []


async def test_an_inner_transport_of_the_users_and_a_stated_wire(cs: Callstream) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["content-length"] == str(len(request.content))
        body = b"".join(encode("openai_chat", [WRITE]))
        return httpx.Response(200, content=body, headers={"content-type": "text/event-stream"})

    transport = cs.transport(httpx.MockTransport(answer), wire="openai_chat", collapse="all")
    async with httpx.AsyncClient(transport=transport) as client:
        response = await client.post("http://127.0.0.1/my/gateway", json={"messages": []})
    assert response.text.count('"tool_calls":[') == 1
    assert (await cs.journal.calls())[0].name == "write"


async def test_wrong_settings_are_told(cs: Callstream) -> None:
    with pytest.raises(UsageError, match="expected one of the wires"):
        cs.transport(wire="telepathy")
    with pytest.raises(UsageError, match="expected collapse"):
        cs.transport(collapse="some")  # type: ignore[arg-type]


async def test_vertex_is_asked_for_streamed_arguments_with_the_right_length(cs: Callstream) -> None:
    async with ScriptedProvider("gemini", [WRITE]) as provider:
        async with cs.httpx_client(collapse="all") as client:
            path = (
                "/v1beta1/projects/p/locations/global/publishers/google/models/gemini-3:streamGenerateContent?alt=sse"
            )
            tools = [{"functionDeclarations": [{"name": "write"}]}]
            body = {"contents": [{"role": "user", "parts": [{"text": "go"}]}], "tools": tools}
            response = await client.post(f"{provider.origin}{path}", json=body)
    assert response.status_code == 200
    asked = provider.requests[0].json
    assert asked["toolConfig"]["functionCallingConfig"]["streamFunctionCallArguments"] is True
    assert len([event for event in await journaled(cs, "c1") if isinstance(event, ArgsAppended)]) > 5


async def test_lost_signatures_are_repaired_where_it_is_asked_for(cs: Callstream) -> None:
    history = [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "write", "args": {}, "id": "c1"}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "write", "id": "c1", "response": {}}}]},
    ]
    scripts = [[ToolCall("write", {}, call_id="c1")], [Text("Done.")]]
    async with ScriptedProvider("gemini", scripts, strict_signatures=True) as provider:
        settings = TapSettings(repair_gemini_signatures=True)
        async with cs.run("thread"), httpx.AsyncClient(transport=cs.transport(settings=settings)) as client:
            url = f"{provider.base_url}/v1beta/models/gemini-3:streamGenerateContent?alt=sse"
            await client.post(url, json={"contents": history[:1]})
            answer = await client.post(url, json={"contents": history})
    assert answer.status_code == 200, answer.text
