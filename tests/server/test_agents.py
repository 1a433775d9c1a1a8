"""Agents that know nothing of a journal: whatever they yield, their runs end, can be read, and name their calls once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from anthropic import AsyncAnthropic
from starlette.applications import Starlette

from callstream import Callstream, Reject, current_run, tool
from callstream.errors import UsageError
from callstream.events import ArgsAppended, CallCompleted, CallStarted
from callstream.server import create_app
from callstream.testing import Call, ScriptedProvider
from tests.agui.model import StrictClient

from .agents import Scripted
from .serving import Server, run_input, served, tool_message

PICK = [{"name": "pick", "description": "", "parameters": {"type": "object"}}]


def call(call_id: str, name: str = "pick", args: str = '{"a":1}') -> list[dict[str, Any]]:
    return [
        {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name},
        {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": args},
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
    ]


async def ran(server: Server, text: str | None = "Go", **given: Any) -> list[dict[str, Any]]:
    async with server.run(text, **given) as stream:
        events = await stream.all()
    client = StrictClient()
    for event in events:
        client.take(event)
    assert not client.is_running
    return events


async def test_a_call_whose_last_chunk_is_the_agents_last_word_is_complete(cs: Callstream) -> None:
    agent = Scripted([{"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "pick", "delta": '{"a":1}'}])
    async with served(agent, callstream=cs) as server:
        events = await ran(server, tools=PICK)
        assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c"]}


@pytest.mark.parametrize(
    "rubbish",
    [
        "text",
        5,
        {"no": "type"},
        {"type": "STATE_DELTA", "delta": "x"},
        {"type": "STATE_DELTA", "delta": ["x"]},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": None},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": 7, "delta": "x"},
        {"type": "TOOL_CALL_START", "toolCallId": 7, "toolCallName": "pick"},
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": None},
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "pick", "parentMessageId": 7},
        {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "tool-call", "entityId": "c", "encryptedValue": {}},
    ],
    ids=str,
)
async def test_rubbish_fails_its_run_which_can_still_be_read(cs: Callstream, rubbish: Any) -> None:
    async with served(Scripted([*call("c0"), rubbish]), callstream=cs) as server:
        async with server.run() as stream:
            events = await stream.all()
        assert events[-1]["type"] == "RUN_ERROR"
        row = await server.finished(stream.run_id)
        assert row["outcome"] == "failed"
        assert row["reason"].startswith("UsageError: expected ")
        async with server.connect() as joined:
            assert (await joined.all())[-1]["type"] == "RUN_ERROR"


async def test_run_error_of_an_agent_fails_its_run(cs: Callstream) -> None:
    error = {"type": "RUN_ERROR", "message": "out of paper", "code": "paper"}
    async with served(Scripted([HELLO, error, *call("c0")]), callstream=cs) as server:
        async with server.run() as stream:
            events = await stream.all()
        assert events[-1]["type"] == "RUN_ERROR"
        row = await server.finished(stream.run_id)
        assert (row["outcome"], row["reason"], row["calls"]) == ("failed", "AgentError: out of paper", [])


async def test_what_an_agent_says_of_its_own_run_is_left_out(cs: Callstream) -> None:
    said: list[Any] = [
        {"type": "RUN_STARTED", "threadId": "other", "runId": "other"},
        {"type": "STEP_STARTED", "stepName": "think"},
        {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "x", "role": "user", "content": "never said"}]},
        {"type": "CUSTOM", "name": "x", "value": 1},
        {"type": "ACTIVITY_SNAPSHOT", "messageId": "a", "activityType": "plan", "content": {"steps": []}},
        *call("c0"),
        *call("c1", name="own"),
        {"type": "STEP_FINISHED", "stepName": "think"},
        {
            "type": "RUN_FINISHED",
            "threadId": "other",
            "runId": "other",
            "outcome": {"type": "success", "pendingToolCallIds": ["c1"]},
        },
    ]
    async with served(Scripted(said), callstream=cs) as server:
        async with server.run(tools=PICK) as stream:
            events = await stream.all()
        assert events[0]["runId"] == stream.run_id
        assert {event["type"] for event in events} == {
            *("RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT", "RUN_FINISHED"),
        }
        assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c0"]}
        states = {call["call_id"]: call["state"] for call in (await server.finished(stream.run_id))["calls"]}
        assert states == {"c0": "awaiting", "c1": "released"}


class _Iterator:
    """An AsyncIterator and nothing more: it cannot be closed."""

    def __init__(self, events: list[Any]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self._events)
        except StopIteration:
            raise StopAsyncIteration from None


HELLO = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "Hello"}


def returns_an_iterator(given: RunAgentInput) -> Any:
    return _Iterator([HELLO])


async def returns_an_iterator_later(given: RunAgentInput) -> Any:
    return _Iterator([HELLO])


@pytest.mark.parametrize("agent", [returns_an_iterator, returns_an_iterator_later])
async def test_an_agent_may_give_any_async_iterator(cs: Callstream, agent: Any) -> None:
    async with served(agent, callstream=cs) as server:
        events = await ran(server)
        assert [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"] == ["Hello"]
        assert events[-1]["outcome"] == {"type": "success"}


def gives_a_list(given: RunAgentInput) -> Any:
    return [HELLO]


def is_a_generator(given: RunAgentInput) -> Any:
    yield HELLO


@pytest.mark.parametrize("agent", [gives_a_list, is_a_generator])
async def test_an_agent_that_gives_something_else_is_told_what_was_expected(cs: Callstream, agent: Any) -> None:
    async with served(agent, callstream=cs) as server, server.run() as stream:
        assert (await stream.all())[-1]["type"] == "RUN_ERROR"
        assert "expected the agent to give an async iterator" in (await server.finished(stream.run_id))["reason"]


async def test_id_reuse_new_call_of_an_agent_that_counts_its_calls_from_0(cs: Callstream) -> None:
    """Inside Callstream each has a name of its own; the agent hears of them as it named them."""
    inputs: list[RunAgentInput] = []
    told = [[*call("0")], [*call("0")], [], []]

    async def agent(given: RunAgentInput) -> AsyncIterator[Any]:
        inputs.append(given)
        for event in told.pop(0):
            yield event

    async with served(agent, callstream=cs) as server:
        first = await ran(server, thread="one", tools=PICK)
        second = await ran(server, thread="two", tools=PICK)
        assert first[-1]["outcome"]["pendingToolCallIds"] == ["0"]
        (shown,) = second[-1]["outcome"]["pendingToolCallIds"]
        assert shown == "0~2"
        said = {
            "id": "m",
            "role": "assistant",
            "toolCalls": [{"id": shown, "type": "function", "function": {"name": "pick", "arguments": '{"a":1}'}}],
        }
        await ran(server, None, thread="two", messages=[said, tool_message(shown, "mine")])
        assert (await server.get("/api/calls/0~2")).json()["result"] == "mine"
        assert (await server.get("/api/calls/0")).json()["state"] == "awaiting"
        assert inputs[-1].messages[0].tool_calls[0].id == "0"  # type: ignore[union-attr, index]
        assert inputs[-1].messages[1].tool_call_id == "0"  # type: ignore[union-attr]
        answer = [{"interruptId": "0", "status": "resolved", "payload": "yours"}]
        async with server.run(None, thread="one", resume=answer) as stream:
            await stream.all()
        assert (await server.get("/api/calls/0")).json()["result"] == "yours"


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
    async with ScriptedProvider("anthropic", [Call("pick", {"a": 1})]) as provider:

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


async def test_a_thread_with_half_a_surrogate_pair_in_it_goes_on(cs: Callstream) -> None:
    """A model may send one; clients keep it, and send it back as the escape that it came as."""
    told = [{"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "\ud83c"}]
    async with served(Scripted(told, []), callstream=cs) as server:
        events = await ran(server)
        assert "\ud83c" in [event.get("delta") for event in events]
        said = {"id": "m", "role": "assistant", "content": "\ud83c"}
        asked = {"id": "u2", "role": "user", "content": "half \udf88, whole \U0001f388"}
        given = json.dumps(run_input(None, messages=[said, asked]))  # all of it as escapes
        async with server.stream("POST", "/agui", content=given) as stream:
            assert (await stream.all())[-1]["outcome"] == {"type": "success"}
        async with server.connect() as joined:
            snapshot = (await joined.until("MESSAGES_SNAPSHOT"))[-1]
        assert snapshot["messages"][-1]["content"] == "half \ufffd, whole \U0001f388"


@pytest.mark.parametrize("body", [b'{"threadId": "\\ud83c', b'{"a": "\\ud83c", "b": NaN}', b'["\\ud83c"]'])
async def test_half_a_surrogate_pair_makes_nothing_else_right(cs: Callstream, body: bytes) -> None:
    async with served(Scripted(), callstream=cs) as server:
        assert (await server.post("/agui", content=body)).status_code in (400, 422)


class _Class:
    async def run(self, given: RunAgentInput) -> AsyncIterator[Any]:
        yield HELLO


def takes_nothing() -> None:
    """No agent."""


@pytest.mark.parametrize("agent", [_Class, takes_nothing, Starlette(), "agent", None])
def test_what_cannot_be_run_on_an_input_is_refused_before_anybody_asks(agent: Any) -> None:
    with pytest.raises(UsageError, match="expected an agent: an object with run"):
        create_app(agent, callstream=Callstream())


def test_a_journals_url_is_no_callstream() -> None:
    wrong: Any = "sqlite:///calls.db"
    with pytest.raises(UsageError, match="expected a Callstream, got str"):
        create_app(_Class(), callstream=wrong)


@pytest.mark.parametrize(
    "agent", [_Class(), _Class().run, lambda given, more=1: None, lambda *given: None, partial(print)]
)
def test_what_can_be_run_on_an_input_is_an_agent(agent: Any) -> None:
    assert create_app(agent, callstream=Callstream())
