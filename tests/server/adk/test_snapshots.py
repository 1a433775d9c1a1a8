"""``emit_messages_snapshot``: a run ends with the messages of its thread, on every stream that has its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from callstream import Callstream
from callstream.testing import Finish, Text
from tests.adk.agent.agents import adk_agent, gemini
from tests.adk.hosting import Models, agent_of, scripted
from tests.server.serving import Server, run_input, served


@asynccontextmanager
async def serving_snapshots(cs: Callstream, models: Models, *answers: str, pace: float = 500) -> AsyncIterator[Server]:
    script = [[Text(answer, size=2), Finish()] for answer in answers]
    async with scripted("gemini", script, deltas_per_second=pace) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), emit_messages_snapshot=True)
        async with served(agent) as server:
            yield server


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def contents(snapshot: dict[str, Any]) -> list[str]:
    return [message["content"] for message in snapshot["messages"]]


async def test_a_run_ends_with_the_messages_of_its_thread(cs: Callstream, models: Models) -> None:
    async with serving_snapshots(cs, models, "First.", "Second.") as server:
        async with server.run("one") as stream:
            await stream.all()
        async with server.run("two") as stream:
            events = await stream.all()
    assert kinds(events)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert contents(events[-2]) == ["one", "First.", "two", "Second."]


async def test_a_client_that_joins_gets_it_at_the_end_too(cs: Callstream, models: Models) -> None:
    async with serving_snapshots(cs, models, "A longer answer.", pace=20) as server:
        async with server.run("one") as first:
            await first.until("TEXT_MESSAGE_CONTENT")
            async with server.connect() as joined:
                events = await joined.all()
            await first.all()
    assert kinds(events)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert contents(events[-2]) == ["one", "A longer answer."]


@pytest.mark.parametrize("left", [1, 2, 3])
async def test_a_client_that_comes_back_gets_it_once(cs: Callstream, models: Models, left: int) -> None:
    """Wherever it was cut off: before the snapshot, between that and the run's end."""
    async with serving_snapshots(cs, models, "Done.") as server:
        places: list[str | None] = []
        events = []
        async with server.run("one") as stream:
            async for event in stream:
                events.append(event)
                places.append(stream.id)
        place = {"last-event-id": str(places[-1 - left])}
        async with server.stream("GET", f"/agui?runId={stream.run_id}", headers=place) as again:
            assert await again.all() == events[-left:]


async def test_a_thread_without_messages_has_no_snapshot_of_them(cs: Callstream, models: Models) -> None:
    async with serving_snapshots(cs, models, "Nothing.") as server:
        async with server.stream("POST", "/agui", json=run_input(None)) as stream:
            assert kinds(await stream.all()) == ["RUN_STARTED", "RUN_FINISHED"]


async def test_it_has_the_thread_and_nothing_that_the_client_made_up(cs: Callstream, models: Models) -> None:
    async with serving_snapshots(cs, models, "First.", "Second.") as server:
        async with server.run("one") as stream:
            await stream.all()
        made_up = {"id": "made-up", "role": "assistant", "content": "Never said."}
        asked = run_input("two")
        asked["messages"].insert(0, made_up)
        async with server.stream("POST", "/agui", json=asked) as stream:
            events = await stream.all()
    assert contents(events[-2]) == ["one", "First.", "two", "Second."]
