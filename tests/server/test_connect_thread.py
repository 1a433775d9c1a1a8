"""The npm package's ``connectThread`` with the official client, and its ``Thread``: they come back by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from callstream import Callstream
from callstream.server import ServerSettings
from tests.agui.conftest import official_client
from tests.agui.judge import NodeProgram

from .agents import Stepping
from .serving import served

__all__ = ["official_client"]


@pytest.fixture(scope="module")
def joining(official_client: None) -> Iterator[NodeProgram]:
    with NodeProgram("joining.mjs") as program:
        yield program


async def live(joining: NodeProgram, **question: Any) -> dict[str, Any]:
    told: dict[str, Any] = await asyncio.to_thread(joining.ask, {"threadId": "thread", **question})
    return told


async def test_a_lost_connection_is_made_again_until_the_run_has_ended(cs: Callstream, joining: NodeProgram) -> None:
    agent = Stepping()
    settings = ServerSettings(heartbeat_seconds=0.05)  # so that there always is something more to read
    async with served(agent, callstream=cs, settings=settings) as server, server.run() as stream:
        await stream.until("TOOL_CALL_START")
        agent.step(2)
        client = asyncio.create_task(live(joining, url=server.url, drops=[1, 1, 1]))
        while len(server.connections) < 2:  # noqa: ASYNC110  # nothing tells when it has joined
            await asyncio.sleep(0.01)
        first = set(server.connections)
        while server.connections <= first:  # noqa: ASYNC110  # nor when it has come back
            await asyncio.sleep(0.01)
        for _ in range(3):
            agent.step()
            await asyncio.sleep(0.05)
        events = await stream.all()
        told = await client
        assert events[-1]["type"] == "RUN_FINISHED"
        assert told["ended"] == "ended"
        [call] = [call for message in told["messages"] for call in message.get("toolCalls", ())]
        assert call["function"]["arguments"] == "".join(agent.pieces)
        assert [(each["state"], each["args"]) for each in told["calls"]] == [
            ("done", {"content": "one two three four"})
        ]
        assert set(told["requests"]) == {"/threads/thread/connect"}
        assert told["states"].count("connecting") == len(told["requests"]) >= 2
        assert "lost" in told["states"]
        assert len(await cs.journal.runs()) == 1


async def test_leaving_and_what_is_not_there(cs: Callstream, joining: NodeProgram) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        assert (await live(joining, url=server.url, threadId="nowhere"))["ended"] == "missing"
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            assert (await live(joining, url=server.url, leave=2))["ended"] == "left"
            agent.step(5)
            assert (await stream.all())[-1]["type"] == "RUN_FINISHED"
        assert (await live(joining, url=server.url))["ended"] == "ended"
        assert len(await cs.journal.runs()) == 1


async def test_a_refusal_is_no_lost_connection(cs: Callstream, joining: NodeProgram) -> None:
    async with served(Stepping(), callstream=cs, auth=lambda request: None) as server:
        told = await live(joining, url=server.url)
        assert (told["ended"], len(told["requests"])) == ("rejected: 401", 1)


@pytest.mark.parametrize("lose", [None, "response"])
async def test_the_packages_own_client_comes_back_to_what_it_began(
    cs: Callstream, joining: NodeProgram, lose: str | None
) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        given = {} if lose is None else {"lose": lose}
        told = await live(joining, url=server.url, send="Go", drops=[1, 1, 1], **given)
        assert told["ended"] == "ended"
        assert [(each["state"], each["args"]) for each in told["calls"]] == [
            ("done", {"content": "one two three four"})
        ]
        assert told["requests"][0] == "/agui"
        assert set(told["requests"][1:]) <= {"/threads/thread/connect"}
        assert told["states"][-1] == "idle"
        assert len(await cs.journal.runs()) == 1


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_request_that_never_arrived_is_told_and_not_repeated(
    cs: Callstream, joining: NodeProgram, is_new: bool
) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        if not is_new:
            async with server.run(thread="thread") as stream:
                await stream.all()
        told = await live(joining, url=server.url, send="Go", lose="request")
        assert told["ended"] == "rejected: network error"
        assert told["requests"] == ["/agui", "/threads/thread/connect"]
        assert len(await cs.journal.runs()) == (0 if is_new else 1)


async def test_what_the_server_refuses_is_an_error(cs: Callstream, joining: NodeProgram) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        assert (await live(joining, url=server.url, send="x" * 20_000_000))["ended"] == "rejected: 413"
        assert (await live(joining, url=f"{server.url}/nowhere", send="Go"))["ended"] == "rejected: 404"
