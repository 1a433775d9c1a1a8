"""Agents that know nothing of a journal: answers to their calls, and client tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from anthropic import AsyncAnthropic

from callstream import Callstream, Reject, current_run, tool
from callstream.events import ArgsAppended, CallCompleted, CallStarted
from callstream.testing import ScriptedProvider, ToolCall

from .agents import Scripted
from .serving import Server, served, tool_message
from .yielding import PICK, call, ran


@pytest.mark.parametrize("way", ["tool message", "interrupt"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_an_answer_reaches_the_agent_and_the_approved_tool_runs(url: str, way: str, restarted: bool) -> None:
    ran_with: list[str] = []

    @tool
    async def delete(path: str) -> str:
        ran_with.append(path)
        return f"{path} is gone"

    async def agent(given: RunAgentInput) -> AsyncIterator[Any]:
        run = current_run()
        assert run is not None
        answers = {entry.interrupt_id: entry.payload for entry in given.resume or ()}
        answers |= {each.tool_call_id: json.loads(each.content) for each in given.messages if each.role == "tool"}
        for call_id, answer in answers.items():
            if answer == "break":
                raise RuntimeError("the agent broke before it looked at the answer")
            call = await run.resume(call_id)
            assert call is not None
            if answer["approved"]:
                await run.invoke(call.call_id)
            else:
                await run.fail(call.call_id, "The user does not want it.")
        if not answers:
            for call_id in ("a", "b", "c"):
                text = json.dumps({"path": call_id})
                await run.record([CallStarted(call_id, "delete", call_id), ArgsAppended(call_id, text)])
                await run.record([CallCompleted(call_id, text)])
                await run.await_answer(call_id)
        yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": run.run_id, "delta": "Done."}

    async def answer(server: Server, call_id: str, said: Any) -> str:
        given: dict[str, Any] = {"messages": [tool_message(call_id, said)]}
        if way == "interrupt":
            given = {"resume": [{"interruptId": call_id, "status": "resolved", "payload": said}]}
        async with server.run(None, **given) as stream:
            return str((await stream.all())[-1]["type"])

    async with AsyncExitStack() as stack:
        cs = await stack.enter_async_context(Callstream(url, [delete]))
        server = await stack.enter_async_context(served(agent, callstream=cs))
        await ran(server)
        if restarted:
            await stack.aclose()
            cs = await stack.enter_async_context(Callstream(url, [delete]))
            server = await stack.enter_async_context(served(agent, callstream=cs))
        assert await answer(server, "a", "break") == "RUN_ERROR"
        assert (await server.get("/api/calls/a")).json()["state"] == "awaiting"
        assert await answer(server, "a", {"approved": True}) == "RUN_FINISHED"
        assert await answer(server, "b", {"approved": False}) == "RUN_FINISHED"
        rows = [(await server.get(f"/api/calls/{call_id}")).json() for call_id in "abc"]
        assert [row["state"] for row in rows] == ["completed", "failed", "awaiting"]
        assert (rows[0]["result"], ran_with) == ("a is gone", ["a"])


async def test_an_answer_that_the_agent_leaves_as_it_is_is_the_result(cs: Callstream) -> None:
    async def agent(given: RunAgentInput) -> AsyncIterator[Any]:
        run = current_run()
        assert run is not None
        if not any(message.role == "tool" for message in given.messages):
            await run.record([CallStarted("q", "ask", "q"), ArgsAppended("q", "{}"), CallCompleted("q", "{}")])
            await run.await_answer("q")
        yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": run.run_id, "delta": "Done."}

    async with served(agent, callstream=cs) as server:
        await ran(server)
        await ran(server, None, messages=[tool_message("q", "blue")])
        row = (await server.get("/api/calls/q")).json()
        assert (row["state"], row["result"]) == ("completed", "blue")
        async with server.connect() as joined:
            results = [event["content"] for event in await joined.all() if event["type"] == "TOOL_CALL_RESULT"]
        assert results == ["blue"]


async def test_an_answer_is_no_result_of_a_tool_that_has_to_run(url: str, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def delete(path: str) -> str:
        raise AssertionError("nobody has approved it")

    async def agent(given: RunAgentInput) -> AsyncIterator[Any]:
        run = current_run()
        assert run is not None
        if not any(message.role == "tool" for message in given.messages):
            text = '{"path": "a"}'
            await run.record([CallStarted("d", "delete", "d"), ArgsAppended("d", text), CallCompleted("d", text)])
            await run.await_answer("d")
        yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": run.run_id, "delta": "Done."}

    async with Callstream(url, [delete]) as cs, served(agent, callstream=cs) as server:
        await ran(server)
        await ran(server, None, messages=[tool_message("d", {"approved": True})])
        row = (await server.get("/api/calls/d")).json()
        assert (row["state"], row.get("result")) == ("awaiting", None)
        assert "the agent did not take the answer to call d of tool delete" in caplog.text


async def test_id_reuse_new_call_in_one_run(cs: Callstream) -> None:
    result = {"type": "TOOL_CALL_RESULT", "messageId": "r", "toolCallId": "0"}
    agent = Scripted([*call("0"), {**result, "content": "first"}, *call("0"), {**result, "content": "second"}])
    async with served(agent, callstream=cs) as server:
        events = await ran(server)
        results = {event["toolCallId"]: event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"}
        assert results == {"0": "first", "0~2": "second"}


async def test_progress_that_an_agent_tells_is_shown(cs: Callstream) -> None:
    def progress(value: int) -> dict[str, Any]:
        content = {"toolCallId": "c", "progress": value}
        return {"type": "ACTIVITY_SNAPSHOT", "messageId": "p", "activityType": "tool_progress", "content": content}

    result = {"type": "TOOL_CALL_RESULT", "messageId": "r", "toolCallId": "c", "content": "done"}
    async with served(Scripted([*call("c"), progress(1), progress(2), result]), callstream=cs) as server:
        events = await ran(server)
        shown = [event["content"]["progress"] for event in events if event["type"] == "ACTIVITY_SNAPSHOT"]
        assert shown[-1] == 2
        assert events[-1]["outcome"] == {"type": "success"}


async def test_a_client_tool_that_a_hook_rejects_is_told_to_the_client_and_fails_nothing_else(cs: Callstream) -> None:
    async def refuse(call: Any, signal: Any) -> None:
        raise Reject("not that one")

    cs.on_args_complete("pick", refuse)
    async with served(Scripted([*call("c")]), callstream=cs) as server:
        events = await ran(server, tools=PICK)
        (result,) = (event for event in events if event["type"] == "TOOL_CALL_RESULT")
        assert "not that one" in result["content"]
        assert events[-1]["outcome"] == {"type": "success"}


async def test_a_client_tool_that_a_tapped_model_calls_awaits_its_answer(cs: Callstream) -> None:
    """Whether the agent is a generator or a coroutine that only asks."""
    async with ScriptedProvider("anthropic", [ToolCall("pick", {"a": 1})]) as provider:

        async def agent(given: RunAgentInput) -> None:
            tapped = cs.httpx2_client(wire="anthropic")
            async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=tapped) as client:
                await client.messages.create(
                    model="claude-opus-4-5",
                    max_tokens=100,
                    messages=[{"role": "user", "content": "Go"}],
                    tools=[{"name": "pick", "input_schema": {"type": "object"}}],
                )

        async with served(agent, callstream=cs) as server:
            events = await ran(server, tools=PICK)
            assert len(events[-1]["outcome"]["pendingToolCallIds"]) == 1
