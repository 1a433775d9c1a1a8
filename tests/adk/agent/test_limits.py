"""Runs of an agent: how long, how many, one after another in a thread, and what they keep."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from google.adk.sessions import InMemorySessionService

from callstream import Callstream
from callstream.adk.threads import Threads
from callstream.events import TextAppended
from callstream.testing import Delay, Finish, Text, ToolCall
from tests.adk.hosting import Models, agent_of, scripted

from .agents import END, adk_agent, gemini, texts_in
from .clients import Client, kinds


async def test_execution_timeout(cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture) -> None:
    slow = [Text("Slow"), Delay(30), Text("ly."), Finish()]
    async with scripted("gemini", lambda request: END if b"again" in request.body else slow) as provider:
        root, sessions = agent_of(gemini(models, provider)), InMemorySessionService()
        client = Client(adk_agent(cs, root, execution_timeout_seconds=0.5, session_service=sessions))
        events = await client.send()
        assert kinds(events)[-1] == "RUN_ERROR"
        client.agent = adk_agent(cs, root, session_service=sessions)
        await client.send("again")
    assert client.text() == "Done."


async def test_too_many_runs(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Text("Slow"), Delay(30), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), max_concurrent_executions=1)
        first = agent.run(Client(agent).input(messages=[{"id": "m", "role": "user", "content": "Go"}]))
        while (await anext(first)).type != "TEXT_MESSAGE_CONTENT":
            pass
        other = Client(agent, "other")
        events = await other.send()
        assert kinds(events) == ["RUN_ERROR"]
        await first.aclose()
        await other.send()
        assert other.text() == "Done."
    assert [run.outcome for run in await cs.journal.runs()] == ["finished", "cancelled"]


async def test_no_runs_at_all(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), max_concurrent_executions=0)
        [error] = await Client(agent).send()
        assert (error["type"], error["message"]) == ("RUN_ERROR", "No runs are taken here.")
        assert not provider.requests


async def test_close_stops_runs(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Text("Slow"), Delay(30), Finish()]]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        client = Client(agent)
        events = agent.run(client.input(messages=[{"id": "m", "role": "user", "content": "Go"}]))
        seen = [(await anext(events)).type]
        await agent.close()
        seen += [event.type async for event in events]
    assert seen[-1] == "RUN_FINISHED"
    assert [run.outcome for run in await cs.journal.runs()] == ["cancelled"]


async def test_runs_of_one_thread_take_turns(cs: Callstream, models: Models) -> None:
    """The second finds the session as the first has left it; other threads do not wait."""
    gate = asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "waited"

    script = [[Text("One"), ToolCall("wait", {}), Finish()], END, END, [Text("Two"), Finish()]]
    async with scripted("gemini", script) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), wait))
        messages = [{"id": "m1", "role": "user", "content": "first"}]
        first = agent.run(Client(agent).input(runId="a", messages=messages))
        while (await anext(first)).type != "TOOL_CALL_END":
            pass
        messages = [*messages, {"id": "m2", "role": "user", "content": "second"}]
        second = asyncio.create_task(collected(agent.run(Client(agent).input(runId="b", messages=messages))))
        other = Client(agent, "other")
        await other.send("elsewhere")
        assert other.text() == "Done."
        assert [run.run_id for run in await cs.journal.runs(thread_id="thread")] == ["a"]
        gate.set()
        assert (await collected(first))[-1] == "RUN_FINISHED"
        assert (await second)[-1] == "RUN_FINISHED"
        asked = [texts_in(request.json) for request in provider.requests]
    assert asked == [["first"], ["elsewhere"], ["first", "One"], ["first", "One", "Done.", "second"]]
    runs = await cs.journal.runs(thread_id="thread")
    assert [(run.run_id, run.outcome) for run in runs] == [("b", "finished"), ("a", "finished")]
    assert runs[1].ended_at is not None
    assert runs[1].ended_at <= runs[0].started_at


async def test_run_that_waits_for_its_thread_can_leave(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Text("Slow"), Delay(30), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        messages = [{"id": "m", "role": "user", "content": "Go"}]
        first = agent.run(Client(agent).input(runId="a", messages=messages))
        while (await anext(first)).type != "TEXT_MESSAGE_CONTENT":
            pass
        leaving = asyncio.create_task(collected(agent.run(Client(agent).input(runId="b", messages=messages))))
        staying = asyncio.create_task(collected(agent.run(Client(agent).input(runId="c", messages=messages))))
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.wait({leaving})
        await agent.close()
        await first.aclose()
        assert await staying == ["RUN_ERROR"]
    assert [(run.run_id, run.outcome) for run in await cs.journal.runs()] == [("a", "cancelled")]


async def collected(events: Any) -> list[str]:
    return [event.type async for event in events]


async def test_sessions_of_threads_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients name as many threads as they like."""
    monkeypatch.setattr("callstream.adk.threads._REMEMBERED", 3)
    for thread_is_session, most in ((True, 0), (False, 3)):
        threads = Threads(InMemorySessionService(), thread_is_session=thread_is_session)
        made = {name: (await threads.open(("app", "user", name))).id for name in "abcdefgh"}
        assert len(threads._session_ids) <= most
        for name, session_id in made.items():
            found = await threads.find(("app", "user", name))
            assert found is not None
            assert found.id == session_id
        assert len(threads._session_ids) <= most


async def test_a_run_does_not_keep_its_input(cs: Callstream, models: Models) -> None:
    """It holds the history of the thread, which may be long, and the model may take its time."""
    async with scripted("gemini", [[Text("Slow"), Delay(30), Finish()]]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        given = Client(agent).input(messages=[{"id": "m", "role": "user", "content": "Go"}])
        kept = weakref.ref(given)
        started = await agent.begin(given)
        run, work = started.run, asyncio.create_task(started.work())
        del given, started
        async for record in cs.journal.follow(run.run_id):
            if isinstance(record.event, TextAppended):
                break
        gc.collect()
        assert kept() is None
        await run.stop()
        work.cancel()
        await asyncio.wait({work})
