"""The first run of a thread may bring a conversation that began elsewhere: it is the thread's from then on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import Tool

from callstream import Callstream
from callstream.adk import AGUIToolset
from callstream.calls import CallState
from callstream.testing import Finish, Text
from tests.adk.hosting import Models, agent_of, scripted
from tests.server.serving import served

from .agents import END, adk_agent, gemini, texts_in
from .clients import Client, dumped, kinds

RED = '{"colour":"red"}'
PAINT = Tool(name="paint", description="Paints.", parameters={"type": "object", "properties": {}})


def user(name: str, text: str) -> dict[str, Any]:
    return {"id": name, "role": "user", "content": text}


def assistant(name: str, text: str | None = None, *, calls: str | None = None, args: str = "{}") -> dict[str, Any]:
    message: dict[str, Any] = {"id": name, "role": "assistant"}
    if text is not None:
        message["content"] = text
    if calls is not None:
        function = {"name": "paint", "arguments": args}
        message["toolCalls"] = [{"id": calls, "type": "function", "function": function}]
    return message


def result(name: str, of: str, text: str) -> dict[str, Any]:
    return {"id": name, "role": "tool", "toolCallId": of, "content": text}


def told(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Who said what: a call is told by its id."""
    said = []
    for message in messages:
        calls = [call["id"] for call in message.get("toolCalls") or ()]
        said.append((message["role"], ", ".join([message.get("content") or "", *calls]).strip(", ")))
    return said


async def test_it_is_in_the_snapshot_and_in_the_threads_state(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END, END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), emit_messages_snapshot=True)
        client = Client(agent)
        client.messages = [user("u1", "one"), assistant("a1", "One.")]
        events = await client.send("two")
        [shown] = [event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
        assert told(shown) == [("user", "one"), ("assistant", "One."), ("user", "two"), ("assistant", "Done.")]
        assert [message["id"] for message in shown[:3]] == ["u1", "a1", "user-1"], "the client knows them by these"
        state = await agent.thread_state("thread")
        assert told(state["messages"]) == told(shown)
        events = await client.send("three")
        [shown] = [event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
        assert told(shown)[4:] == [("user", "three"), ("assistant", "Done.")]
    assert texts_in(json.loads(provider.requests[1].body)) == ["one", "One.", "two", "Done.", "three"]
    assert [row.run_id for row in await cs.journal.runs(thread_id="thread")][:2] == ["run-4", "run-2"]


async def test_a_call_in_it_is_not_announced_again(cs: Callstream, models: Models) -> None:
    """The client has it, under another message; and it has said something else since."""
    async with scripted("gemini", [END]) as provider:
        client = Client(
            adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset()), emit_messages_snapshot=True), tools=[PAINT]
        )
        client.messages = [user("u1", "one"), assistant("a1", calls="old", args='{"n":1}'), result("r1", "old", RED)]
        events = await client.send("two")
        assert not [event for event in events if event["type"].startswith("TOOL_CALL")]
        [shown] = [event["messages"] for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    said = [("user", "one"), ("assistant", "old"), ("tool", RED), ("user", "two"), ("assistant", "Done.")]
    assert told(shown) == said
    contents = json.loads(provider.requests[0].body)["contents"]
    assert [next(iter(part)) for content in contents for part in content["parts"]] == [
        "text",
        "functionCall",
        "functionResponse",
        "text",
    ]
    assert await cs.journal.calls(thread_id="thread") == [], "no client says what was called here"


async def test_an_answer_at_its_end_reaches_the_agent(cs: Callstream, models: Models) -> None:
    """The server has lost everything while the client's tool was running."""
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        client.messages = [user("u1", "one"), assistant("a1", calls="old"), result("r1", "old", RED)]
        events = await client.run()
        shown = (await client.agent.thread_state("thread"))["messages"]
        assert told(shown) == [("user", "one"), ("assistant", "old"), ("tool", RED), ("assistant", "Done.")]
        assert client.text() == "Done."
        assert not [event for event in events if event["type"].startswith("TOOL_CALL")]
    parts = [part for each in json.loads(provider.requests[0].body)["contents"] for part in each["parts"]]
    [response] = [part["functionResponse"] for part in parts if "functionResponse" in part]
    assert response["response"] == {"colour": "red"}
    [call] = await cs.journal.calls(thread_id="thread")
    assert (call.state, call.result) == (CallState.COMPLETED, {"colour": "red"})


async def test_an_answer_to_one_of_two_calls_announces_neither(cs: Callstream, models: Models) -> None:
    """A client that is told twice that a call begins has its arguments twice, and runs its tool again."""
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        asked = assistant("a1", calls="first")
        asked["toolCalls"].append({**asked["toolCalls"][0], "id": "second"})
        client.messages = [user("u1", "one"), asked, result("r1", "first", RED)]
        events = [dumped(event) async for event in client.agent.run(client.input())]
        assert kinds(events) == ["RUN_STARTED", "RUN_FINISHED"]
        assert events[-1]["outcome"]["pendingToolCallIds"] == ["second"]
        client.messages.append(result("r2", "second", RED))
        await client.run()
        assert client.text() == "Done."
        shown = (await client.agent.thread_state("thread"))["messages"]
    assert [message["id"] for message in shown[:4]] == ["u1", "a1", "r1", "r2"]
    assert len(shown) == 5


async def test_parts_of_a_result_are_shown_as_their_text(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        image = {"type": "image", "source": {"type": "data", "value": "aGVsbG8=", "mimeType": "image/png"}}
        answer = {**result("r1", "old", ""), "content": [{"type": "text", "text": "red"}, image]}
        client.messages = [user("u1", "one"), assistant("a1", calls="old"), answer, assistant("a2", "Two.")]
        await client.send("three")
        shown = (await client.agent.thread_state("thread"))["messages"]
    assert told(shown)[2] == ("tool", "red")


async def test_a_call_id_may_come_twice(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        turns = [[assistant(f"a{n}", calls="0"), result(f"r{n}", "0", str(n))] for n in range(2)]
        client.messages = [user("u1", "one"), *turns[0], *turns[1], assistant("a2", "Two.")]
        await client.send("three")
        shown = (await client.agent.thread_state("thread"))["messages"]
    assert [message["id"] for message in shown][:6] == ["u1", "a0", "r0", "a1", "r1", "a2"]


async def test_an_answer_for_a_tool_of_the_servers_is_refused(cs: Callstream, models: Models) -> None:
    """Nothing of it is kept, so that it is there when the person says something else."""

    def paint() -> str:
        """Paints."""
        return "blue"

    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), paint)))
        client.messages = [user("u1", "one"), assistant("a1", calls="old"), result("r1", "old", RED)]
        [error] = [dumped(event) async for event in client.agent.run(client.input())]
        assert (error["type"], error["code"]) == ("RUN_ERROR", "answer_refused")
        assert not provider.requests
        await client.send("two")
        assert client.text() == "Done."
        shown = (await client.agent.thread_state("thread"))["messages"]
    assert told(shown)[:4] == [("user", "one"), ("assistant", "old"), ("tool", RED), ("user", "two")]
    assert '"colour"' in provider.requests[0].body.decode()


async def test_of_messages_with_one_id_the_first_is_shown(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        client.messages = [user("same", "one"), assistant("same", "One."), user("same", "two"), assistant("a", "Two.")]
        await client.send("three")
        assert client.text() == "Done."
        assert texts_in(json.loads(provider.requests[0].body)) == ["one", "One.", "two", "Two.", "three"]
        state = await client.agent.thread_state("thread")
    assert [text for _, text in told(state["messages"])] == ["one", "Two.", "three", "Done."]


async def test_without_seeding_no_call_of_it_is_answered(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset()), seed_first_run_history=False)
        client = Client(agent, tools=[PAINT])
        client.messages = [user("u1", "one"), assistant("a1", calls="old"), result("r1", "old", RED)]
        [error] = [dumped(event) async for event in agent.run(client.input())]
        assert error["code"] == "answer_refused"


async def test_without_seeding_nothing_of_it_is_kept(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), seed_first_run_history=False)
        client = Client(agent)
        client.messages = [user("u1", "one"), assistant("a1", "One.")]
        await client.send("two")
        state = await agent.thread_state("thread")
    assert told(state["messages"]) == [("user", "two"), ("assistant", "Done.")]
    assert texts_in(json.loads(provider.requests[0].body)) == ["two"]


async def test_a_call_that_nobody_made_is_not_answered(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        client.messages = [user("u1", "one"), assistant("a1", "One."), result("r1", "none", RED)]
        events = [dumped(event) async for event in client.agent.run(client.input())]
        assert [(event["type"], event["code"]) for event in events] == [("RUN_ERROR", "answer_refused")]
        assert not provider.requests


async def test_what_was_forgotten_does_not_come_back(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END, END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        client = Client(agent)
        await client.send("one")
        await cs.journal.forget(thread="thread")
        await agent._threads.delete(("app", "user", "thread"))
        await client.send("two")
        assert client.text() == "Done."
        state = await agent.thread_state("thread")
    assert told(state["messages"]) == [("user", "two"), ("assistant", "Done.")]


@pytest.mark.parametrize("text", ["", "x" * 100_000])
async def test_any_text_may_be_in_it(cs: Callstream, models: Models, text: str) -> None:
    async with scripted("gemini", [[Text("Done."), Finish()]]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        client.messages = [user("u1", text), assistant("a1", text)]
        await client.send("two")
        state = await client.agent.thread_state("thread")
    brought = [("user", text), ("assistant", text)]
    assert told(state["messages"]) == [*brought, ("user", "two"), ("assistant", "Done.")]


async def test_a_client_that_joins_later_sees_it(cs: Callstream, models: Models) -> None:
    """After a reload the page asks the server."""
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        async with served(agent) as server:
            messages = [user("u1", "one"), assistant("a1", "One."), user("u2", "two")]
            async with server.run(None, messages=messages) as stream:
                await stream.all()
            async with server.connect("thread") as stream:
                joined = await stream.all()
    [shown] = [event["messages"] for event in joined if event["type"] == "MESSAGES_SNAPSHOT"]
    assert told(shown) == [("user", "one"), ("assistant", "One."), ("user", "two"), ("assistant", "Done.")]


async def test_a_credential_in_it_is_not_kept(cs: Callstream, models: Models) -> None:
    """It was asked for by another server, and whoever reads the journal need not have it."""
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        asked = assistant("a1", calls="key")
        asked["toolCalls"][0]["function"]["name"] = "adk_request_credential"
        client.messages = [user("u1", "one"), asked, result("r1", "key", "s3cret"), assistant("a2", "Two.")]
        await client.send("three")
        assert client.text() == "Done."
    rows = await cs.journal.runs(thread_id="thread")
    records = await cs.journal.read_whole([row.run_id for row in rows])
    assert "s3cret" not in repr(records)
    assert "s3cret" not in provider.requests[0].body.decode()
