"""TanStack AI's ChatClient: it continues the run that it began, and a page that is loaded joins it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from callstream import Callstream
from tests.agui.judge import NodeProgram
from tests.agui.test_other_clients import FOLDER, install_others

from .agents import Stepping
from .serving import served


@pytest.fixture(scope="module")
def tanstack() -> Iterator[NodeProgram]:
    install_others()
    with NodeProgram("tanstack.mjs", FOLDER) as program:
        yield program


async def live(tanstack: NodeProgram, **question: Any) -> dict[str, Any]:
    told: dict[str, Any] = await asyncio.to_thread(tanstack.ask, {"threadId": "thread", **question})
    assert "failed" not in told, told["failed"]
    return told


def arguments(told: dict[str, Any]) -> list[str]:
    return [part["arguments"] for each in told["messages"] for part in each["parts"] if part["type"] == "tool-call"]


@pytest.mark.parametrize("drop", [1, 2])
async def test_a_dropped_post_continues_its_run(cs: Callstream, tanstack: NodeProgram, drop: int) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        client = asyncio.create_task(live(tanstack, url=server.url, send="Go", drop=drop))
        while not await cs.journal.runs():  # noqa: ASYNC110  # it is the client that begins it
            await asyncio.sleep(0.01)
        for _ in agent.pieces:
            await asyncio.sleep(0.1)
            agent.step()
        told = await client
        assert len(await cs.journal.runs()) == len(agent.executed) == 1
    assert told["errors"] == []
    assert arguments(told) == ["".join(agent.pieces)]
    assert [request.split()[0] for request in told["requests"]] == ["POST", "POST"]


async def test_a_page_that_is_loaded_joins_the_run(cs: Callstream, tanstack: NodeProgram) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server, server.run("Write it") as stream:
        await stream.until("TOOL_CALL_START")
        agent.step(2)
        client = asyncio.create_task(live(tanstack, url=server.url))
        while len(server.connections) < 2:  # noqa: ASYNC110  # nothing tells when it has joined
            await asyncio.sleep(0.01)
        for _ in range(3):
            await asyncio.sleep(0.05)
            agent.step()
        await stream.all()
        told = await client
        later = await live(tanstack, url=server.url)
        assert len(await cs.journal.runs()) == 1
    for each in (told, later):
        assert each["errors"] == []
        assert [message["role"] for message in each["messages"]] == ["user", "assistant"]
        assert arguments(each) == ["".join(agent.pieces)]


async def test_what_there_is_to_join(cs: Callstream) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        nothing = {"messages": [], "activeRun": None, "interrupts": None}
        assert (await server.get("/agui?threadId=nowhere")).json() == nothing
        assert (await server.get("/agui?offset=-1&runId=nowhere")).status_code == 404
        async with server.run() as stream:
            events = await stream.all()
        assert (await server.get("/agui?threadId=thread")).json()["activeRun"] == {"runId": stream.run_id}
        async with server.stream("GET", f"/agui?runId={stream.run_id}&offset=1") as rest:
            left = await rest.all()
        assert (left[0], left[-1]) == (events[1], events[-1])
        assert "".join(event.get("delta", "") for event in left) == "".join(event.get("delta", "") for event in events)
        assert (await server.get(f"/agui?runId={stream.run_id}&offset=x")).status_code == 400
