"""Ollama's own client over the tap: calls come whole, and the stream is JSON lines."""

from __future__ import annotations

import asyncio
from typing import Any

import ollama
import pytest

from callstream import Callstream, Reject
from callstream.calls import CallState
from callstream.errors import CallRejected
from callstream.tap import Limits, TapSettings
from callstream.testing import Failure, ReceivedRequest, ScriptedProvider, Text, Thought, ToolCall
from tests.tap.clients import ask, sdk

ARGS = {"title": "Notes", "content": "one\u2028two ☃"}
SCRIPT = [
    Thought("Hm."),
    Text("Let me see.", size=4),
    ToolCall("write", ARGS, call_id="c1"),
    ToolCall("other", {}, call_id=""),
]


@pytest.mark.parametrize("collapse", ["known", "all", "none"])
async def test_the_client_gets_the_same_with_the_tap_as_without(collapse: str) -> None:
    async with Callstream() as cs, ScriptedProvider("ollama", SCRIPT) as provider:
        cs.on_args_delta("write", lambda delta, signal: None)
        tapped, plain = await ask("ollama", provider, cs, collapse=collapse), await ask("ollama", provider, None)
        assert tapped.told == plain.told
        assert [(name, args) for _, name, args in tapped.calls] == [("write", ARGS), ("other", {})]
        kept = [await cs.journal.call(call.call_id) for call in await cs.journal.calls()]
        assert [call and (call.name, call.args) for call in kept] == [("write", ARGS), ("other", {})]


async def test_the_client_stands_being_kept_alive() -> None:
    async def slow(delta: Any, signal: Any) -> None:
        await asyncio.sleep(0.05)

    settings = TapSettings(collapse="all", limits=Limits(keep_alive_every=0.005))
    async with Callstream() as cs, ScriptedProvider("ollama", SCRIPT) as provider:
        cs.on_args_delta("write", slow)
        answer = await ask("ollama", provider, cs, settings=settings)
    assert [args for _, _, args in answer.calls] == [ARGS, {}]


async def test_a_rejected_call_does_not_reach_the_program() -> None:
    async def refuse(call: Any, signal: Any) -> None:
        raise Reject("not today")

    async with Callstream() as cs, ScriptedProvider("ollama", SCRIPT) as provider:
        cs.on_args_complete("write", refuse)
        with pytest.raises(CallRejected, match="not today"):
            await ask("ollama", provider, cs)


async def test_an_error_in_the_stream_is_the_clients_to_raise() -> None:
    async with Callstream() as cs, ScriptedProvider("ollama", [Text("Hel"), Failure("out of memory")]) as provider:
        with pytest.raises(ollama.ResponseError, match="out of memory"):
            await ask("ollama", provider, cs)
        (run,) = await cs.journal.runs()
        assert run.outcome == "failed"


@pytest.mark.parametrize("stream", [True, False])
async def test_results_without_ids_complete_their_calls(stream: bool) -> None:
    def script(request: ReceivedRequest) -> list[Any]:
        if request.json["messages"][-1]["role"] == "tool":
            return [Text("Done.")]
        return [ToolCall("add", {"x": 1}), ToolCall("look", {"y": 2}), ToolCall("add", {"x": 3})]

    async with Callstream() as cs, ScriptedProvider("ollama", script) as provider:
        async with sdk("ollama", provider, cs) as client, cs.run("thread"):
            messages: list[Any] = [{"role": "user", "content": "go"}]
            made: list[Any] = []
            if stream:
                async for line in await client.chat(model="m", messages=messages, stream=True):
                    made += line.message.tool_calls or ()
            else:
                made = (await client.chat(model="m", messages=messages)).message.tool_calls
            messages.append({"role": "assistant", "content": "", "tool_calls": made})
            for call in (made[1], made[0], made[2]):
                result = str(dict(call.function.arguments))
                messages.append({"role": "tool", "content": result, "tool_name": call.function.name})
            await client.chat(model="m", messages=messages)
        found = [await cs.journal.call(call.call_id) for call in await cs.journal.calls()]
        assert [call and (call.state, call.result) for call in found] == [
            (CallState.COMPLETED, "{'x': 1}"),
            (CallState.COMPLETED, "{'y': 2}"),
            (CallState.COMPLETED, "{'x': 3}"),
        ]
