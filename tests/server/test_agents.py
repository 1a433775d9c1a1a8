"""Agents that know nothing of a journal: whatever they yield, it is a run or an error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from starlette.applications import Starlette

from callstream import Callstream
from callstream.errors import UsageError
from callstream.server import create_app

from .agents import Scripted
from .serving import run_input, served, tool_message
from .yielding import PICK, call, ran


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


async def test_what_a_client_brings_to_a_new_thread_is_its_past(cs: Callstream) -> None:
    """For clients that join it; what is sent along later is in the thread's runs."""
    said = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "a2", "delta": "Two."}
    brought = [
        {"id": "u1", "role": "user", "content": "one"},
        {"id": "a1", "role": "assistant", "content": "One.", "metadata": {"mine": 1}},
    ]
    async with served(Scripted([said]), callstream=cs) as server:
        for again in ([], [{"id": "a2", "role": "assistant", "content": "Two."}]):
            messages = [*brought, *again, {"id": f"u{2 + len(again)}", "role": "user", "content": "two"}]
            await ran(server, messages=messages)
        async with server.connect() as joined:
            events = await joined.all()
    [shown] = [event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    assert [message["id"] for message in shown] == ["u1", "a1", "u2", "a2", "u3"]
    assert shown[1] == {"id": "a1", "role": "assistant", "content": "One."}


@pytest.mark.parametrize("more", [[], [{"id": "u2", "role": "user", "content": "two"}]])
async def test_an_answer_that_a_client_brings_is_the_agents_to_read(cs: Callstream, more: list[Any]) -> None:
    seen: list[list[str]] = []

    async def agent(given: RunAgentInput) -> AsyncIterator[Any]:
        seen.append([message.id for message in given.messages])
        yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": "a2", "delta": "Two."}

    asked = {"id": "c1", "type": "function", "function": {"name": "pick", "arguments": "{}"}}
    brought = [
        {"id": "u1", "role": "user", "content": "one"},
        {"id": "a1", "role": "assistant", "toolCalls": [asked]},
        {"id": "r1", "role": "tool", "toolCallId": "c1", "content": "red"},
    ]
    async with served(agent, callstream=cs) as server:
        events = await ran(server, messages=[*brought, *more], tools=PICK)
        assert events[-1]["type"] == "RUN_FINISHED"
        async with server.connect() as joined:
            told = await joined.all()
    names = [message["id"] for message in [*brought, *more]]
    assert seen == [names]
    [shown] = [event["messages"] for event in told if event["type"] == "MESSAGES_SNAPSHOT"]
    assert [message["id"] for message in shown] == [*names, "a2"]


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


def takes_three(given: RunAgentInput, model: str, *, depth: int = 1, more: Any) -> None:
    """No agent either."""


class Demanding:
    async def run(self, given: RunAgentInput, model: str) -> None:
        """Takes too much."""


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        (takes_nothing, "takes_nothing()"),
        (takes_three, "takes_three(given, model, *, depth=1, more)"),
        (Demanding(), "Demanding.run(given, model)"),
        (_Class, "_Class.run(self, given)"),
        (Starlette(), "Starlette(scope, receive, send)"),
        ("agent", "str"),
    ],
)
def test_what_is_no_agent_is_named_with_its_parameters(agent: Any, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        create_app(agent, callstream=Callstream())
    assert str(refused.value) == (
        "expected an agent: an object with run(input), or a function that can be called with the input alone; "
        f"got {named}"
    )


def test_a_journals_url_is_no_callstream() -> None:
    wrong: Any = "sqlite:///calls.db"
    with pytest.raises(UsageError, match="expected a Callstream, got str"):
        create_app(_Class(), callstream=wrong)


@pytest.mark.parametrize(
    "agent", [_Class(), _Class().run, lambda given, more=1: None, lambda *given: None, partial(print)]
)
def test_what_can_be_run_on_an_input_is_an_agent(agent: Any) -> None:
    assert create_app(agent, callstream=Callstream())
