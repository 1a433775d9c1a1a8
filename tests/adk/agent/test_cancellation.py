"""Whatever ends a run, no service of google-adk is cancelled in the middle of a call."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.artifacts import FileArtifactService
from google.adk.events.event import Event
from google.adk.memory import InMemoryMemoryService
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from callstream import Callstream, adk
from callstream.runtime import Driver, DriverSettings
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import Host, Models, agent_of, scripted
from tests.gated import PATIENCE

from .agents import adk_agent, gemini
from .clients import Client
from .stepping import Steps, stepping

SESSION_METHODS = ("get_session", "list_sessions", "create_session", "append_event")
SCRIPT = [ToolCall("note", {"text": "x"}), Finish()], [Text("Done."), Finish()]


async def note(text: str, tool_context: ToolContext) -> str:
    """Keeps a note."""
    tool_context.state["noted"] = text
    return text


class SlowSessions(InMemorySessionService):
    """Waits in the middle of a write until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.appending = asyncio.Event()
        self.go_on = asyncio.Event()
        self.finished = asyncio.Event()
        self.read_while_writing = 0

    async def get_session(self, **kwargs: Any) -> Any:
        self.read_while_writing += self.appending.is_set() and not self.finished.is_set()
        return await super().get_session(**kwargs)

    async def append_event(self, session: Any, event: Any) -> Any:
        self.appending.set()
        await self.go_on.wait()
        appended = await super().append_event(session, event)
        self.finished.set()
        return appended


async def consume(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("way", ["disconnect", "stop", "limit", "close"])
async def test_a_run_ends_after_the_call_of_the_session_service_that_it_is_in(
    way: str, cs: Callstream, models: Models
) -> None:
    sessions = SlowSessions()
    seconds = 1.0  # until the service is called: a busy machine takes its time
    options: dict[str, Any] = {"execution_timeout_seconds": seconds} if way == "limit" else {}
    async with scripted("gemini", [[Text("Done."), Finish()]]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions, **options)
        client = Client(agent)
        client.messages.append({"id": "1", "role": "user", "content": "Go"})
        task = asyncio.create_task(consume(agent.run(client.input())))
        await sessions.appending.wait()
        (row,) = await cs.journal.runs(active=True)
        ending = asyncio.ensure_future(asyncio.sleep(0.2))
        match way:
            case "disconnect":
                task.cancel()
            case "limit":
                await asyncio.sleep(seconds)
            case "stop":
                run = cs.active_run(row.run_id)
                assert run is not None
                ending = asyncio.ensure_future(run.stop("stopped"))
            case "close":
                ending = asyncio.ensure_future(agent.close())
        await asyncio.wait({ending}, timeout=0.2)
        sessions.go_on.set()
        await ending
        with suppress(asyncio.CancelledError):
            await task
        assert sessions.finished.is_set()
        assert (await cs.journal.runs(active=True)) == []
        await agent.close()


@pytest.mark.parametrize("program_is_first", [True, False])
async def test_runs_of_a_program_and_of_a_server_beside_it_take_turns_in_a_thread(
    cs: Callstream, models: Models, program_is_first: bool
) -> None:
    """The server's client may have left without the server knowing it: its run still writes to the session."""
    sessions = SlowSessions()
    async with scripted("gemini", [[Text("Done."), Finish()], [Text("Done."), Finish()]]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions)
        server = Driver(cs.engine, DriverSettings())
        client = Client(agent)

        async def serve() -> None:
            run_id = await server.begin(partial(agent.begin, client.input(), exclusive=True))
            await consume(cs.journal.follow(run_id))

        async def run() -> None:
            await consume(agent.run(client.input()))

        client.messages.append({"id": "1", "role": "user", "content": "First"})
        first = asyncio.create_task(run() if program_is_first else serve())
        await sessions.appending.wait()
        client.messages.append({"id": "2", "role": "user", "content": "Second"})
        second = asyncio.create_task(serve() if program_is_first else run())
        while len(await cs.journal.runs()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert sessions.read_while_writing == 0
        sessions.go_on.set()
        await asyncio.gather(first, second)
        assert [row.outcome for row in await cs.journal.runs()] == ["finished", "finished"]
        await server.aclose()
        await agent.close()


@pytest.mark.parametrize("same_driver", [True, False])
async def test_the_next_run_of_a_thread_waits_for_what_a_stopped_one_still_writes(
    cs: Callstream, models: Models, same_driver: bool
) -> None:
    """Else it would read a session that lacks that, and its own words would be refused or lost.

    A server has a driver of its own, and so has an ``ADKAgent`` that a program runs beside it.
    """
    sessions = SlowSessions()
    async with scripted("gemini", [[Text("Done."), Finish()]]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions)
        driver = Driver(cs.engine, DriverSettings())
        client = Client(agent)
        client.messages.append({"id": "1", "role": "user", "content": "First"})
        first = await driver.begin(partial(agent.begin, client.input(), exclusive=True))
        await sessions.appending.wait()
        stopping = asyncio.create_task(driver.stop(first, "stopped"))
        while await cs.journal.runs(active=True):  # noqa: ASYNC110
            await asyncio.sleep(0)
        client.messages.append({"id": "2", "role": "user", "content": "Second"})
        other = driver if same_driver else Driver(cs.engine, DriverSettings())
        second = await other.begin(partial(agent.begin, client.input(), exclusive=True))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sessions.finished.is_set()
        assert sessions.read_while_writing == 0
        sessions.go_on.set()
        await stopping
        async for _ in cs.journal.follow(second):
            pass
        assert sessions.read_while_writing == 0
        (row,) = await cs.journal.runs(run_id=second)
        assert row.outcome == "finished"
        await driver.aclose()
        await other.aclose()
        await agent.close()


class _Waiting(BaseAgent):
    """An agent that asks no model, and waits for something that never comes."""

    started: Any
    cancelled: Any

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        self.started.set()
        try:
            await asyncio.Event().wait()
            yield Event(author=self.name)
        finally:
            self.cancelled.set()


async def test_closing_an_agent_ends_what_its_runs_wait_for(cs: Callstream) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()
    waiting = _Waiting(name="waiting", started=started, cancelled=cancelled)
    agent = adk.ADKAgent(adk_agent=waiting, app_name="app", user_id="user", callstream=cs)
    client = Client(agent)
    client.messages.append({"id": "1", "role": "user", "content": "Go"})
    task = asyncio.create_task(consume(agent.run(client.input())))
    await asyncio.wait_for(started.wait(), PATIENCE)
    await agent.close()
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    await asyncio.wait_for(task, PATIENCE)
    assert [row.outcome for row in await cs.journal.runs()] == ["cancelled"]


async def test_a_shielded_service_passes_for_the_one_that_it_is(tmp_path: Path) -> None:
    service = SqliteSessionService(f"{tmp_path}/sessions.db")
    made = adk.shielded(service)
    assert isinstance(made, SqliteSessionService)
    assert isinstance(made, BaseSessionService)
    assert repr(made) == repr(service)
    assert set(dir(made)) == set(dir(service))
    made.of_the_program = 1  # type: ignore[attr-defined]
    assert service.of_the_program == 1  # type: ignore[attr-defined]
    del made.of_the_program  # type: ignore[attr-defined]
    assert not hasattr(service, "of_the_program")
    assert adk.shielded(made) is made
    assert adk.shielded(None) is None
    in_memory = InMemorySessionService()
    assert adk.shielded(in_memory) is in_memory
    session = await made.create_session(app_name="app", user_id="user")
    assert await service.get_session(app_name="app", user_id="user", session_id=session.id) == session


async def test_a_call_of_a_service_that_hangs_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callstream.adk.services._CALL_SECONDS", 0.05)
    sessions = SlowSessions()
    session = await sessions.create_session(app_name="app", user_id="user")
    task = asyncio.create_task(adk.shielded(sessions).append_event(session, _event()))
    await sessions.appending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not sessions.finished.is_set()
    sessions.go_on.set()
    await sessions.finished.wait()


async def test_what_a_service_raises_reaches_its_caller(tmp_path: Path) -> None:
    sessions = adk.shielded(SqliteSessionService(f"{tmp_path}/sessions.db"))
    await sessions.create_session(app_name="app", user_id="user", session_id="one")
    with pytest.raises(Exception, match="already exists"):
        await sessions.create_session(app_name="app", user_id="user", session_id="one")


def _event() -> Any:
    from google.adk.events.event import Event

    return Event(author="user", content=types.Content(role="user", parts=[types.Part(text="x")]))


# -- every await --


def assert_unlocked(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "database"])
async def test_a_run_cancelled_at_any_await_of_its_sessions_leaves_no_lock(
    kind: str, cs: Callstream, models: Models, tmp_path: Path
) -> None:
    place = tmp_path / "sessions.db"
    if kind == "sqlite":
        sessions: Any = SqliteSessionService(str(place))
    else:
        database = pytest.importorskip("google.adk.sessions.database_session_service")
        sessions = database.DatabaseSessionService(f"sqlite+aiosqlite:///{place}")
    stepping(sessions, *SESSION_METHODS)
    async with scripted("gemini", [step for _ in range(2000) for step in SCRIPT]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), note), session_service=sessions)
        await Client(agent, "first").send()
        number = 0
        while sessions.steps.has_come:
            number += 1
            client = Client(agent, f"thread {number}")
            client.messages.append({"id": "1", "role": "user", "content": "Go"})
            task = asyncio.create_task(consume(agent.run(client.input())))
            steps = sessions.steps = Steps(number, task.cancel)
            with suppress(asyncio.CancelledError):
                await task
            assert steps.interrupted == 0
            assert_unlocked(place)
        assert number > 50
        sessions.steps = Steps()
        await Client(agent, "last").send()
        await agent.close()
    if kind == "database":
        await sessions.close()


async def test_a_run_cancelled_while_it_saves_an_artifact_leaves_it_whole(
    cs: Callstream, models: Models, tmp_path: Path
) -> None:
    async def save(tool_context: ToolContext) -> str:
        """Saves."""
        await tool_context.save_artifact("a.txt", types.Part(text="whole"))
        return "saved"

    artifacts = stepping(FileArtifactService(root_dir=tmp_path), "save_artifact")
    memory = stepping(InMemoryMemoryService(), "search_memory")
    async with scripted("gemini", [[ToolCall("save", {}), Finish()]]) as provider:
        root = agent_of(gemini(models, provider), save)
        agent = adk_agent(cs, root, artifact_service=artifacts, memory_service=memory)
        client = Client(agent)
        client.messages.append({"id": "1", "role": "user", "content": "Go"})
        task = asyncio.create_task(consume(agent.run(client.input())))
        artifacts.steps = Steps(1, task.cancel)
        with suppress(asyncio.CancelledError):
            await task
        assert artifacts.steps.count >= 1
        assert artifacts.steps.interrupted == 0
        await agent.close()
    found = await artifacts.load_artifact(app_name="app", user_id="user", session_id="thread", filename="a.txt")
    assert found is not None
    assert found.text == "whole"


async def test_a_runner_of_the_programs_own_can_have_a_shielded_service(
    cs: Callstream, models: Models, tmp_path: Path
) -> None:
    sessions = stepping(SqliteSessionService(f"{tmp_path}/sessions.db"), *SESSION_METHODS)
    async with scripted("gemini", [[Text("Done."), Finish()]] * 9) as provider:
        host = Host(cs, agent_of(models(provider)), sessions=adk.shielded(sessions))
        await host.run()
        task = asyncio.create_task(host.run())
        sessions.steps = Steps(sessions.steps.count // 2, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sessions.steps.interrupted == 0
        assert_unlocked(tmp_path / "sessions.db")
        await host.runner.close()
