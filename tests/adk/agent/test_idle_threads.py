"""The memory of an ``ADKAgent`` with its default services is bounded: threads that nobody uses are forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.memory import InMemoryMemoryService
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools import LongRunningFunctionTool

from callstream import Callstream, UsageError
from callstream.adk import ADKAgent
from callstream.adk.threads import IdleThreads, Threads
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import FakeLlm, Models, agent_of, scripted

from .agents import END, gemini
from .clients import Client

DAY = 24 * 3600.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def threads_in(cs: Callstream) -> list[str]:
    return sorted({run.thread_id for run in await cs.journal.runs()})


async def sessions_in(service: InMemorySessionService) -> list[str]:
    listed = await service.list_sessions(app_name="app", user_id="user")
    return sorted(session.id for session in listed.sessions)


async def test_threads_are_forgotten_after_the_timeout(models: Models) -> None:
    script = [[Text(f"Answer {number}."), Finish()] for number in range(4)]
    async with scripted("gemini", script) as provider:
        agent = ADKAgent(
            adk_agent=agent_of(models(provider, "none")), app_name="app", user_id="user", session_timeout_seconds=0.001
        )
        for thread in ("one", "two", "three"):
            await Client(agent, thread).send()
        assert "one" not in await threads_in(agent.callstream)
        client = Client(agent, "one")
        client.messages = [
            {"id": "1", "role": "user", "content": "Before"},
            {"id": "2", "role": "assistant", "content": "Ok"},
        ]
        await client.send("After")
        # It is begun anew, with the history that the client sends.
        assert all(word in provider.requests[3].body.decode() for word in ("Before", "Ok", "After"))
        await agent.close()


async def test_what_the_agent_was_given_is_kept(cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", [END, END, END]) as provider:
        given: dict[str, Any] = {"app_name": "app", "user_id": "user", "session_timeout_seconds": 0.001}
        agent = ADKAgent(agent_of(gemini(models, provider)), callstream=cs, session_service=sessions, **given)
        for thread in ("one", "two", "three"):
            await Client(agent, thread).send()
    assert await threads_in(cs) == ["one", "three", "two"]
    assert await sessions_in(sessions) == ["one", "three", "two"]


async def test_a_thread_that_awaits_an_answer_is_kept_for_a_day(models: Models) -> None:
    def approve(what: str) -> None:
        """Asks."""

    clock = Clock()
    service = InMemorySessionService()
    threads = Threads(service, thread_is_session=None)
    async with (
        scripted("gemini", [[ToolCall("approve", {"what": "x"}), Finish()], END]) as provider,
        Callstream() as cs,
    ):
        root = agent_of(gemini(models, provider), LongRunningFunctionTool(approve))
        agent = ADKAgent(root, app_name="app", user_id="user", callstream=cs, session_service=service)
        idle = IdleThreads(60, cs.journal, threads, owns_journal=True, clock=clock)
        for thread in ("asks", "says"):
            await Client(agent, thread).send()
            idle.use(("app", "user", thread))
        clock.now += 61
        await idle.forget({"says"})
        assert await sessions_in(service) == ["asks", "says"]
        clock.now += 61
        await idle.forget(set())
        assert await threads_in(cs) == await sessions_in(service) == ["asks"]
        clock.now += DAY
        await idle.forget(set())
        assert await threads_in(cs) == await sessions_in(service) == []


async def test_without_a_timeout_a_thread_is_forgotten_when_another_begins(models: Models) -> None:
    async with scripted("gemini", [END, END, END]) as provider:
        agent = ADKAgent(
            adk_agent=agent_of(models(provider, "none")), app_name="app", user_id="user", session_timeout_seconds=0
        )
        first = Client(agent, "one")
        await first.send("Hello")
        await first.send("Still here")
        assert "Hello" in provider.requests[1].body.decode()
        assert await threads_in(agent.callstream) == ["one"]
        await Client(agent, "two").send()
        assert await threads_in(agent.callstream) == ["two"]
        await agent.close()


@pytest.mark.parametrize("option", ["session_timeout_seconds", "max_concurrent_executions"])
def test_limits_are_not_negative(option: str) -> None:
    agent = LlmAgent(name="writer", model=FakeLlm())
    for error in (UsageError, ValueError):
        with pytest.raises(error, match=f"{option} must not be negative"):
            ADKAgent(adk_agent=agent, **{option: -1})  # type: ignore[misc]


class Memory(InMemoryMemoryService):
    def __init__(self) -> None:
        super().__init__()
        self.added: list[str] = []

    async def add_session_to_memory(self, session: Session) -> None:
        if session.id == "broken":
            raise ValueError("this one not")
        assert session.events
        self.added.append(session.id)
        await super().add_session_to_memory(session)


@pytest.mark.parametrize("kept_by", ["agent", "program"])
async def test_a_memory_service_gets_threads_after_the_timeout(
    kept_by: str, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory()
    given: dict[str, Any] = {"session_service": InMemorySessionService()} if kept_by == "program" else {}
    async with scripted("gemini", [END] * 6) as provider:
        agent = ADKAgent(
            adk_agent=agent_of(models(provider, "none")),
            app_name="app",
            user_id="user",
            session_timeout_seconds=0,
            memory_service=memory,
            **given,
        )
        for thread in ("one", "broken", "two", "last"):
            await Client(agent, thread).send("Sunshine")
        await agent.close()
    assert memory.added == ["one", "two"]
    assert "the session of thread broken could not be added to memory" in caplog.text
    found = await memory.search_memory(app_name="app", user_id="user", query="sunshine")
    assert found.memories
    if kept_by == "program":
        assert await sessions_in(given["session_service"]) == ["broken", "last", "one", "two"]


async def test_a_memory_service_gets_nothing_where_that_is_off(models: Models) -> None:
    memory = Memory()
    async with scripted("gemini", [END, END]) as provider:
        agent = ADKAgent(
            adk_agent=agent_of(models(provider, "none")),
            app_name="app",
            user_id="user",
            session_timeout_seconds=0,
            memory_service=memory,
            save_session_to_memory_on_cleanup=False,
        )
        for thread in ("one", "two"):
            await Client(agent, thread).send()
        await agent.close()
    assert memory.added == []
