"""Threads that began before Callstream: they are shown, and they go on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models import Gemini
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.adk.workflow import START, Workflow
from google.genai import types

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset
from callstream.calls import CallState
from callstream.events import CallCompleted, CallStarted
from callstream.server import ServerSettings
from callstream.testing import Finish, Parallel, Text, Thought, ToolCall
from tests.adk.hosting import STREAMED, Models, agent_of, scripted
from tests.agui.model import StrictClient
from tests.server.serving import Server, served, tool_message

END = [Text("Done."), Finish()]


def look(place: str) -> str:
    """Looks."""
    return f"seen {place}"


def ask(question: str) -> dict[str, str]:
    """Asks a person."""
    return {"status": "pending"}


def erase(path: str) -> str:
    """Erases."""
    return f"erased {path}"


async def begun(
    sessions: BaseSessionService,
    agent: LlmAgent,
    *texts: str,
    user_id: str = "user",
    state: dict[str, Any] | None = None,
) -> None:
    """A thread under a plain Runner of google-adk, which knows nothing of Callstream."""
    runner = Runner(app=App(name="app", root_agent=agent), session_service=sessions)
    await sessions.create_session(app_name="app", user_id=user_id, session_id="thread", state=state)
    for text in texts:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(user_id=user_id, session_id="thread", new_message=message, run_config=STREAMED):
            pass


def untapped(models: Models, provider: Any) -> Gemini:
    made: Any = models._untapped(provider, "tap", None)
    models._clients.append(made.api_client.aio)
    return made


def hosted(cs: Callstream, sessions: BaseSessionService, agent: LlmAgent, **options: Any) -> ADKAgent:
    return ADKAgent(
        adk_agent=agent, app_name="app", **{"user_id": "user", **options}, callstream=cs, session_service=sessions
    )


async def joined(server: Server) -> StrictClient:
    client = StrictClient()
    async with server.connect() as stream:
        assert stream.status == 200
        for event in await stream.all():
            client.take(event)
    assert not client.is_running
    return client


def shown(client: StrictClient) -> list[tuple[str, Any]]:
    return [
        (message["role"], [call["function"] for call in message.get("toolCalls", ())] or message["content"])
        for message in client.messages
    ]


async def run_all(server: Server, **given: Any) -> list[dict[str, Any]]:
    async with server.run(None, **given) as stream:
        assert stream.status == 200
        return await stream.all()


SCRIPT = [
    [Thought("Hm."), Text("I look."), ToolCall("look", {"place": "here 🌊"}), Finish()],
    [Text("And I ask."), ToolCall("ask", {"question": "May I?"}), Finish()],
    END,
    END,
]


async def test_old_thread_goes_on(cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", SCRIPT) as provider:
        agent = agent_of(untapped(models, provider), look, LongRunningFunctionTool(ask))
        await begun(sessions, agent, "Go", state={"colour": "red"})
        requests = len(provider.requests)
        async with served(hosted(cs, sessions, agent)) as server:
            client = await joined(server)
            assert shown(client)[:5] == [
                ("user", "Go"),
                ("reasoning", "Hm."),
                ("assistant", [{"name": "look", "arguments": '{"place":"here 🌊"}'}]),
                ("tool", '{"result":"seen here 🌊"}'),
                ("assistant", [{"name": "ask", "arguments": '{"question":"May I?"}'}]),
            ]
            assert client.state == {"colour": "red"}
            assert client.ended is not None
            (pending,) = client.ended["outcome"]["pendingToolCallIds"]
            assert shown(await joined(server)) == shown(client)
            (row,) = (await server.get("/api/runs?thread_id=thread")).json()["runs"]
            assert row["outcome"] == "finished"

            answer = tool_message(pending, {"allowed": True})
            events = await run_all(server, messages=[*client.messages, answer])
            assert events[-1]["outcome"] == {"type": "success"}
            sent = json.loads(provider.requests[requests].body)["contents"]
            assert sent[-1]["parts"][0]["functionResponse"]["response"] == {"allowed": True}
            said = [
                part for content in sent for part in content["parts"] if content["role"] == "user" and "text" in part
            ]
            assert said == [{"text": "Go"}]
            again = await joined(server)
            late = [message for message in again.messages if message.get("toolCallId") != pending]
            assert late[: len(client.messages)] == client.messages
            assert [call.state for call in await cs.journal.calls()] == [CallState.COMPLETED] * 2
            # The answer counts once.
            answer = tool_message(pending, {"allowed": False})
            await run_all(server, messages=[*again.messages, answer])
            assert len(provider.requests) == requests + 1


async def test_old_thread_goes_on_without_being_joined_first(cs: Callstream, models: Models) -> None:
    """A page that has kept its messages answers at once; whoever joins later sees all of it."""
    sessions = InMemorySessionService()
    async with scripted("gemini", SCRIPT) as provider:
        agent = agent_of(untapped(models, provider), look, LongRunningFunctionTool(ask))
        await begun(sessions, agent, "Go")
        session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
        assert session is not None
        asked = [call for event in session.events for call in event.get_function_calls() if call.name == "ask"]
        async with served(hosted(cs, sessions, agent)) as server:
            await run_all(server, messages=[tool_message(asked[-1].id or "", "yes")])
            client = await joined(server)
    assert [role for role, _ in shown(client)] == [
        "user", "reasoning", "assistant", "tool", "assistant", "tool", "assistant", "assistant",
    ]  # fmt: skip


async def test_old_thread_of_ag_ui_adk_sends_nothing_twice(cs: Callstream, models: Models) -> None:
    """It kept account of messages under the client's ids, which whoever joins does not know."""
    sessions = InMemorySessionService()
    async with scripted("gemini", [END, END]) as provider:
        agent = agent_of(untapped(models, provider), AGUIToolset())
        account = {"_ag_ui_thread_id": "thread", "_ag_ui_processed_message_ids": ["u1"]}
        await begun(sessions, agent, "First", state=account)
        async with served(hosted(cs, sessions, agent)) as server:
            client = await joined(server)
            messages = [*client.messages, {"id": "u2", "role": "user", "content": "Second"}]
            await run_all(server, messages=messages)
        texts = [
            part["text"]
            for content in json.loads(provider.requests[1].body)["contents"]
            for part in content["parts"]
            if content["role"] == "user"
        ]
    assert texts == ["First", "Second"]


async def test_old_thread_that_awaits_a_confirmation(cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", [[ToolCall("erase", {"path": "/x"}), Finish()], END]) as provider:
        agent = agent_of(untapped(models, provider), FunctionTool(erase, require_confirmation=True))
        await begun(sessions, agent, "Erase")
        async with served(hosted(cs, sessions, agent)) as server:
            client = await joined(server)
            assert client.ended is not None
            (pending,) = client.ended["outcome"]["pendingToolCallIds"]
            events = await run_all(server, messages=[*client.messages, tool_message(pending, {"confirmed": True})])
        assert "erased /x" in provider.requests[-1].body.decode()
    assert events[-1]["outcome"] == {"type": "success"}


@pytest.mark.parametrize("place", ["agent", "workflow"])
async def test_old_thread_whose_server_tool_never_returned(place: str, cs: Callstream, models: Models) -> None:
    """A process died in it. No client may say what it would have returned."""
    sessions = InMemorySessionService()
    async with scripted("gemini", [END]) as provider:
        agent: Any = agent_of(untapped(models, provider), look)
        if place == "workflow":
            agent = Workflow(name="flow", edges=[(START, agent)])
        await begun(sessions, agent)
        session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
        assert session is not None
        part = types.Part(function_call=types.FunctionCall(id="adk-1", name="look", args={"place": "x"}))
        await sessions.append_event(session, Event(author="writer", content=types.Content(role="model", parts=[part])))
        async with served(hosted(cs, sessions, agent)) as server:
            client = await joined(server)
            assert client.ended is not None
            assert client.ended["outcome"] == {"type": "success"}
            await run_all(server, messages=[*client.messages, tool_message("adk-1", "all is well")])
            assert [call.state for call in await cs.journal.calls()] == [CallState.RELEASED]
        assert not provider.requests


async def test_old_thread_with_ids_that_come_twice(cs: Callstream, models: Models) -> None:
    """Some hosts give every call the same id."""
    sessions = InMemorySessionService()
    for name in ("0", "0~2"):
        async with cs.run("another thread") as run:
            response = run.response("gemini")
            await response.record([CallStarted(name, "look", name), CallCompleted(name, "{}")])
    both = [ToolCall("look", {"place": "a"}, call_id="0"), ToolCall("look", {"place": "b"}, call_id="1")]
    script = [[Parallel(both), Finish()], [ToolCall("look", {"place": "c"}, call_id="0"), Finish()], END]
    async with scripted("gemini", script) as provider:
        agent = agent_of(untapped(models, provider), look)
        await begun(sessions, agent, "Go")
        async with served(hosted(cs, sessions, agent)) as server:
            client = await joined(server)
    results = {message["toolCallId"]: message["content"] for message in client.messages if message["role"] == "tool"}
    calls = [call for message in client.messages for call in message.get("toolCalls", ())]
    assert [(json.loads(call["function"]["arguments"])["place"], results[call["id"]]) for call in calls] == [
        (place, json.dumps({"result": f"seen {place}"}, separators=(",", ":"))) for place in "abc"
    ]
    assert len({call["id"] for call in calls}) == 3


async def test_old_thread_is_imported_once_by_many(url: str, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", SCRIPT) as provider:
        agent = agent_of(untapped(models, provider), look, LongRunningFunctionTool(ask))
        await begun(sessions, agent, "Go")
        replicas = [Callstream(url) for _ in range(3)]
        hosts = [hosted(replica, sessions, agent) for replica in replicas]
        await asyncio.gather(*(host.import_thread("thread") for host in hosts for _ in range(4)))
        assert len(await replicas[0].journal.runs()) == 1
        assert len(await replicas[1].journal.calls()) == 2
        for replica in replicas:
            await replica.aclose()


@pytest.mark.parametrize("who", ["user", "stranger"])
async def test_old_thread_is_its_owner_s(who: str, cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", SCRIPT) as provider:
        agent = agent_of(untapped(models, provider), look, LongRunningFunctionTool(ask))
        await begun(sessions, agent, "Go")
        host = hosted(cs, sessions, agent, user_id=None)
        async with served(
            host, auth=lambda request: request.headers.get("x-user"), settings=ServerSettings()
        ) as server:
            server.headers = {"x-user": who}
            async with server.connect() as stream:
                assert stream.status == (200 if who == "user" else 404)
            assert len(await cs.journal.runs()) == (1 if who == "user" else 0)


async def test_old_thread_cannot_be_hidden_by_somebody_who_takes_its_run_s_id(cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", [*SCRIPT, END, END]) as provider:
        agent = agent_of(untapped(models, provider), look, LongRunningFunctionTool(ask))
        await begun(sessions, agent, "Go")
        async with Callstream() as elsewhere:
            await hosted(elsewhere, sessions, agent).import_thread("thread")
            [known] = await elsewhere.journal.runs()
        host = hosted(cs, sessions, agent, user_id=None)
        async with served(host, auth=lambda request: request.headers.get("x-user")) as server:
            server.headers = {"x-user": "stranger"}
            for number in ("", "~2"):
                async with server.run("Go", thread=f"own{number}", runId=known.run_id + number) as stream:
                    await stream.all()
            server.headers = {"x-user": "user"}
            for _ in range(2):
                async with server.connect() as stream:
                    assert stream.status == 200
                    await stream.all()
            assert len(await cs.journal.runs(thread_id="thread")) == 1


async def test_forgotten_thread_is_not_imported_again(cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", [*SCRIPT, END]) as provider:
        agent = agent_of(untapped(models, provider), look, LongRunningFunctionTool(ask))
        await begun(sessions, agent, "Go")
        host = hosted(cs, sessions, agent)
        async with served(host) as server:
            before = await joined(server)
            assert before.ended is not None
            (pending,) = before.ended["outcome"]["pendingToolCallIds"]
            assert await cs.journal.forget(thread="thread") == 1
            async with server.connect() as stream:
                assert stream.status == 404
            state = await host.thread_state("thread")
            assert state is not None
            assert state["messages"] == []
            async with server.run("And now?") as stream:
                await stream.all()
            [run] = await cs.journal.runs(thread_id="thread")
            assert not run.run_id.startswith("import_")
            assert await cs.journal.calls(thread_id="thread") == []
            client = await joined(server)
            assert [message["content"] for message in client.messages] == ["And now?", "Done."]
            # A page that still shows what was forgotten cannot bring it back.
            answer = tool_message(pending, {"allowed": True})
            events = await run_all(server, messages=[*before.messages, answer])
            assert events[-1]["type"] == "RUN_ERROR"
            assert await cs.journal.calls(thread_id="thread") == []


async def test_new_threads_are_not_imported(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = agent_of(untapped(models, provider))
        async with served(hosted(cs, InMemorySessionService(), agent)) as server:
            async with server.connect() as stream:
                assert stream.status == 404
            async with server.run("Go") as stream:
                await stream.all()
            assert len(await cs.journal.runs()) == 1
