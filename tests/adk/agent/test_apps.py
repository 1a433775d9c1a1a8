"""Several apps on one Callstream: a thread of one is not shown to the other, though both have an id in common."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ag_ui.core import RunAgentInput
from google.adk.sessions import InMemorySessionService

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.testing import Finish, Text
from tests.adk.hosting import Models, agent_of, scripted
from tests.server.serving import Server, run_input, served

from .agents import gemini
from .clients import Client


@asynccontextmanager
async def apps(cs: Callstream, models: Models, **options: Any) -> AsyncIterator[tuple[ADKAgent, ADKAgent]]:
    """Two apps of one user on one Callstream, whose models say which of them it is."""
    async with (
        scripted("gemini", [[Text("I am first."), Finish()]] * 3) as first,
        scripted("gemini", [[Text("I am second."), Finish()]] * 3) as second,
    ):
        yield (
            ADKAgent(agent_of(gemini(models, first)), "first", user_id="user", callstream=cs, **options),
            ADKAgent(agent_of(gemini(models, second)), "second", user_id="user", callstream=cs, **options),
        )


def said(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages]


async def test_a_snapshot_has_the_messages_of_its_own_app(cs: Callstream, models: Models) -> None:
    async with apps(cs, models, emit_messages_snapshot=True) as (first, second):
        await Client(first).send("Who are you?")
        events = await Client(second).send("And you?")
        (snapshot,) = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
        assert said(snapshot["messages"]) == ["And you?", "I am second."]
        state = await first.thread_state("thread")
        assert said(state["messages"]) == ["Who are you?", "I am first."]


async def test_a_thread_is_imported_though_another_app_has_one_of_its_id(cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with apps(cs, models, session_service=sessions) as (first, second), Callstream() as other:
        async with scripted("gemini", [[Text("I was second."), Finish()]]) as provider:
            root = agent_of(gemini(models, provider))
            past = ADKAgent(root, "second", user_id="user", callstream=other, session_service=sessions)
            await Client(past).send("Who were you?")
        await Client(first).send("Who are you?")
        await second.import_thread("thread")
        state = await second.thread_state("thread")
        assert said(state["messages"]) == ["Who were you?", "I was second."]


async def test_an_app_that_is_named_by_its_request_has_its_own_messages(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Text("First."), Finish()], [Text("Second."), Finish()]]) as provider:
        agent = ADKAgent(
            agent_of(gemini(models, provider)),
            user_id="user",
            callstream=cs,
            app_name_extractor=lambda given: str(given.forwarded_props.get("app")),
            emit_messages_snapshot=True,
        )
        await Client(agent).send("One", forwardedProps={"app": "first"})
        events = await Client(agent).send("Two", forwardedProps={"app": "second"})
    (snapshot,) = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    assert said(snapshot["messages"]) == ["Two", "Second."]


async def test_an_equal_request_to_another_app_is_a_run_of_that_app(cs: Callstream, models: Models) -> None:
    given = RunAgentInput.model_validate(run_input("Who are you?", runId="run"))
    async with apps(cs, models) as agents:
        shown = [b"".join([part async for part in agent.run_sse(given, once=True)]).decode() for agent in agents * 2]
    assert ["I am first." in text for text in shown] == [True, False, True, False]
    assert ["I am second." in text for text in shown] == [False, True, False, True]
    assert len(await cs.journal.runs(thread_id="thread")) == 2


@asynccontextmanager
async def servers(cs: Callstream, models: Models) -> AsyncIterator[tuple[Server, Server]]:
    """A server for each app, after a turn of the first."""
    async with apps(cs, models) as (first, second), served(first) as one, served(second) as two:
        async with one.run("Who are you?", runId="run") as stream:
            assert "I am first." in str(await stream.all())
        yield one, two


async def test_servers_show_and_stop_what_is_of_their_app(cs: Callstream, models: Models) -> None:
    async with servers(cs, models) as (one, two):
        async with two.connect() as joined:
            assert joined.status == 404
        assert (await two.get("/ui/thread/messages")).json() == []
        assert (await two.get("/agui", params={"threadId": "thread"})).json()["activeRun"] is None
        for asked in ({"runId": "run"}, {"runId": "run", "offset": "1"}):
            assert (await two.get("/agui", params=asked)).status_code == 404
        async with two.run("Who are you?", runId="run") as stream:
            events = await stream.all()
            assert stream.run_id == "run~2"
        assert "I am second." in str(events)
        for server, other in ((one, "second"), (two, "first")):
            async with server.connect() as joined:
                assert f"I am {other}." not in str(await joined.all())
            assert f"I am {other}." not in (await server.get("/ui/thread/messages")).text


async def test_a_client_that_comes_back_is_shown_the_run_of_its_app(cs: Callstream, models: Models) -> None:
    given = run_input("Who are you?", runId="run")
    async with servers(cs, models) as (one, two):
        statuses = []
        for server in (one, two):
            async with server.stream("POST", "/agui", json=given, headers={"Last-Event-ID": "1"}) as stream:
                statuses.append(stream.status)
        assert statuses == [200, 404]


async def test_runs_that_name_no_app_are_of_every_app(cs: Callstream, models: Models) -> None:
    """Those of a program, and those that were journaled before runs kept it."""
    async with apps(cs, models) as (first, _), cs.run("thread", principal="user") as run:
        await run.finish()
        rows = await cs.journal.runs(thread_id="thread")
        assert await first.own_runs(rows) == rows


async def test_clients_of_copilotkit_know_the_app_by_its_name(cs: Callstream, models: Models) -> None:
    async with apps(cs, models) as (first, _), served(first) as server:
        told = (await server.get("/copilotkit/info")).json()
        assert list(told["agents"]) == ["default", "first"]
