"""Answers with nothing but refused calls: the tap asks the model again, and the SDK gets the next answer in their place."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from callstream import Callstream, Reject, Settings, tool
from callstream.errors import CallRejected, UsageError
from callstream.events import CallStarted
from callstream.testing import Finish, HttpError, ReceivedRequest, ScriptedProvider, Text, Thought, ToolCall
from tests.sdks import SDKS
from tests.tap.clients import sdk

WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini")
ARGS = {"title": "Tides", "content": "The moon pulls, and the sea follows."}
GOOD = ToolCall("write", ARGS, call_id="good")
LONG = {"title": "Storms", "content": "x" * 90}
HALF = r'{"title": 3, "content": "\ud83d"}'

FAULTS: dict[str, tuple[list[Any], str, str]] = {
    "cut off": ([ToolCall("write", LONG, call_id="bad", stop_after=3), Finish("length")], "truncated", "were cut off"),
    "wrong type": ([ToolCall("write", {**LONG, "title": 3}, call_id="bad")], "invalid", "'title' should be a string"),
    "half a character": ([ToolCall("write", text=HALF, call_id="bad")], "invalid", "'title' should be a string"),
    "not JSON": ([ToolCall("write", text='{"title": nothing}', call_id="bad")], "malformed", "cannot be read"),
}


class Desk:
    def __init__(self, **settings: Any) -> None:
        self.aborted: list[tuple[str, str]] = []

        @tool
        async def write(title: str, content: str) -> str:
            """Writes a document."""
            return "written"

        @write.on_args_complete
        async def judge(call: Any, signal: Any) -> None:
            if call.args["title"] == "Secrets":
                raise Reject("nobody may write about secrets")

        @write.on_args_abort
        async def undo(call: Any, reason: str) -> None:
            self.aborted.append((call.wire_id, reason))

        self.write = write
        self.cs = Callstream(tools=[write], settings=Settings(**settings))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    async with made.cs:
        yield made


def faults_of(wire: str, name: str) -> tuple[list[Any], str, str]:
    if wire == "gemini" and name == "not JSON":
        pytest.skip("Gemini's arguments are no text")
    return FAULTS[name]


async def answer_of(wire: str, provider: ScriptedProvider, cs: Callstream, *, stream: bool, **options: Any) -> Any:
    async with sdk(wire, provider, cs, **options) as client:
        return await (SDKS[wire].ask(client) if stream else SDKS[wire].whole(client))


def result_of(wire: str, request: ReceivedRequest, call_id: str) -> str:
    """The result that a request has for a call, which it has to have made before."""
    body = request.json
    match wire:
        case "anthropic":
            *_, called, told = body["messages"]
            assert [block["id"] for block in called["content"] if block["type"] == "tool_use"] == [call_id]
            [result] = told["content"]
            assert result["is_error"] is True
            return str(result["content"])
        case "openai_chat":
            *_, called, told = body["messages"]
            assert [call["id"] for call in called["tool_calls"]] == [call_id]
            assert isinstance(json.loads(called["tool_calls"][0]["function"]["arguments"]), dict)
            assert told["tool_call_id"] == call_id
            return str(told["content"])
        case "openai_responses":
            *_, called, told = body["input"]
            assert (called["type"], called["call_id"]) == ("function_call", call_id)
            assert (told["type"], told["call_id"]) == ("function_call_output", call_id)
            return str(told["output"])
        case _:
            *_, called, told = body["contents"]
            assert called["parts"][-1]["functionCall"]["name"] == "write"
            assert called["parts"][-1]["thoughtSignature"]
            return str(told["parts"][0]["functionResponse"]["response"]["error"])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_next_answer_takes_the_place(desk: Desk, wire: str, stream: bool, fault: str) -> None:
    steps, reason, told = faults_of(wire, fault)
    if not stream and reason == "malformed" and wire == "anthropic":
        pytest.skip("an answer that is not streamed has its arguments as an object")
    if not stream and reason == "truncated" and wire == "gemini":
        pytest.skip("a whole answer of Gemini has no half calls")
    script = [[Text("Let me see. "), *steps], [Text("Once more."), GOOD]]
    async with ScriptedProvider(wire, script, stream_args_unasked=True) as provider, desk.cs.run("thread") as run:
        answer = await answer_of(wire, provider, desk.cs, stream=stream)
        assert [(name, args) for _, name, args in answer.calls] == [("write", ARGS)]
        assert answer.text == ("Let me see. Once more." if stream else "Once more.")
        assert [(str(call.state), call.reason) for call in run.calls] == [
            ("discarded", reason),
            ("args_complete", None),
        ]
        assert len(provider.requests) == 2
        assert told in result_of(wire, provider.requests[1], run.calls[0].wire_id)
        assert run.tool_use.untold(["write"]) == []
        records = [record async for record in desk.cs.journal.read(run.run_id)]
        started = [record for record in records if isinstance(record.event, CallStarted)]
        assert len({record.response_id for record in started}) == 2
        assert [result.call_id for result in await run.run_tools()] == ["good"]
    assert desk.aborted == [(run.calls[0].wire_id, reason)]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_rejected_call_is_told_where_the_run_wants_it(desk: Desk, wire: str, stream: bool) -> None:
    secret = ToolCall("write", {**ARGS, "title": "Secrets"}, call_id="bad")
    script = [[Text("Let me see. "), secret], [Text("Once more."), GOOD], [Text("Done.")]]
    async with ScriptedProvider(wire, script, stream_args_unasked=True) as provider:
        async with desk.cs.run("thread", rejected="ask") as run:
            answer = await answer_of(wire, provider, desk.cs, stream=stream)
        assert [(name, args) for _, name, args in answer.calls] == [("write", ARGS)]
        assert answer.text == ("Let me see. Once more." if stream else "Once more.")
        assert result_of(wire, provider.requests[1], run.calls[0].wire_id) == "nobody may write about secrets"
        assert desk.aborted == [(run.calls[0].wire_id, "rejected")]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_rejected_call_beside_a_sound_one_is_left_out(desk: Desk, wire: str, stream: bool) -> None:
    secret = ToolCall("write", {**ARGS, "title": "Secrets"}, call_id="bad")
    script = [[Text("Let me see."), secret, GOOD], [Text("Done.")]]
    async with ScriptedProvider(wire, script, stream_args_unasked=True) as provider:
        async with desk.cs.run("thread", rejected="ask"):
            answer = await answer_of(wire, provider, desk.cs, stream=stream)
        assert [args for _, _, args in answer.calls] == [ARGS]
        assert answer.finish in ("tool_use", "tool_calls", "completed", "STOP")
        assert len(provider.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_does_not_learn_is_an_error(desk: Desk, wire: str) -> None:
    async with ScriptedProvider(wire, FAULTS["wrong type"][0]) as provider, desk.cs.run("thread"):
        for stream in (True, False):
            with pytest.raises(CallRejected, match="'title' should be a string") as raised:
                await answer_of(wire, provider, desk.cs, stream=stream)
            assert any("asked again already" in note for note in raised.value.__notes__)
        assert len(provider.requests) == 4


@pytest.mark.parametrize("wire", ["cohere", "ollama", "gemini_interactions"])
async def test_a_whole_answer_can_be_asked_for_again_on_every_wire(desk: Desk, wire: str) -> None:
    script = [FAULTS["wrong type"][0], [GOOD]]
    async with ScriptedProvider(wire, script) as provider, desk.cs.run("thread"):
        answer = await answer_of(wire, provider, desk.cs, stream=False)
        assert [args for _, _, args in answer.calls] == [ARGS]
        assert "should be a string" in provider.requests[1].body.decode()


@pytest.mark.parametrize("wire", ["cohere", "ollama", "gemini_interactions", "bedrock_invoke"])
async def test_a_stream_that_cannot_be_continued_is_an_error(desk: Desk, wire: str) -> None:
    async with ScriptedProvider(wire, FAULTS["wrong type"][0]) as provider, desk.cs.run("thread"):
        with pytest.raises(CallRejected, match="'title' should be a string") as raised:
            await answer_of(wire, provider, desk.cs, stream=True)
        assert any("cannot be asked again here" in note for note in raised.value.__notes__)
        assert len(provider.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_a_provider_that_refuses_to_be_asked_is_an_error(desk: Desk, wire: str) -> None:
    script = [FAULTS["wrong type"][0], [HttpError(401)]]
    async with ScriptedProvider(wire, script) as provider, desk.cs.run("thread"):
        with pytest.raises(CallRejected, match="'title' should be a string") as raised:
            await answer_of(wire, provider, desk.cs, stream=True)
        assert any("answered 401" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_server_that_refuses_the_calls_is_told_in_a_note(desk: Desk, wire: str) -> None:
    script = [FAULTS["wrong type"][0], [HttpError(400)], [GOOD]]
    async with ScriptedProvider(wire, script) as provider, desk.cs.run("thread"):
        answer = await answer_of(wire, provider, desk.cs, stream=True)
        assert [name for _, name, _ in answer.calls] == ["write"]
        assert b"'title' should be a string" in provider.requests[2].body
        assert b'"bad"' not in provider.requests[2].body


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_outside_of_a_run_both_answers_are_one_run(desk: Desk, wire: str, stream: bool) -> None:
    script = [FAULTS["wrong type"][0], [Text("I give up.")]]
    async with ScriptedProvider(wire, script) as provider:
        assert (await answer_of(wire, provider, desk.cs, stream=stream)).text == "I give up."
    [run] = await desk.cs.journal.runs()
    assert run.outcome == "finished"


async def test_it_can_be_asked_more_often_or_not_at_all(desk: Desk) -> None:
    bad, _, told = FAULTS["wrong type"]
    async with ScriptedProvider("anthropic", [bad, bad, bad, [GOOD]]) as provider, desk.cs.run("thread"):
        answer = await answer_of("anthropic", provider, desk.cs, stream=True, ask_again=3)
        assert [name for _, name, _ in answer.calls] == ["write"]
    async with ScriptedProvider("anthropic", [bad, [Text("Oh.")]]) as provider, desk.cs.run("thread"):
        assert (await answer_of("anthropic", provider, desk.cs, stream=True, ask_again=0)).calls == []
        assert (await answer_of("anthropic", provider, desk.cs, stream=True, ask_again=0)).text == "Oh."
        assert told.encode() in provider.requests[1].body
    with pytest.raises(UsageError, match="0 or more, got -1"):
        desk.cs.http_client(ask_again=-1)


async def test_where_the_model_thinks_it_is_told_in_a_note(desk: Desk) -> None:
    """Its thoughts would have to come back with its calls."""
    script = [[Thought("Hm.", signature="s"), *FAULTS["wrong type"][0]], [Thought("Ah.", signature="t"), GOOD]]
    async with ScriptedProvider("anthropic", script) as provider, desk.cs.run("thread"):
        http = desk.cs.httpx2_client()
        async with (
            anthropic.AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=http) as client,
            client.messages.stream(
                model="m",
                max_tokens=2000,
                thinking={"type": "enabled", "budget_tokens": 1024},
                messages=[{"role": "user", "content": "go"}],
                tools=[desk.write.schema("anthropic")],
            ) as stream,
        ):
            answer = await stream.get_final_message()
    assert [block.type for block in answer.content] == ["thinking", "thinking", "tool_use"]
    [message] = provider.requests[1].json["messages"]
    assert "'title' should be a string" in message["content"][-1]["text"]


async def test_usage_counts_both_answers(desk: Desk) -> None:
    async with ScriptedProvider("openai_chat", [FAULTS["wrong type"][0], [GOOD]]) as provider:
        http = desk.cs.http_client()
        async with openai.AsyncOpenAI(base_url=provider.base_url, api_key="none", http_client=http) as client:
            one: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
            stream = await client.chat.completions.create(**one, stream=True, stream_options={"include_usage": True})
            chunks = [chunk async for chunk in stream]
    assert len({chunk.id for chunk in chunks}) == 1
    [usage] = [chunk.usage for chunk in chunks if chunk.usage is not None]
    alone = json.loads(json.dumps(usage.to_dict()))
    assert alone["total_tokens"] == alone["prompt_tokens"] + alone["completion_tokens"]
