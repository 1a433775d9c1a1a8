"""Joining and stopping beside the endpoint that ag_ui_adk's users know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException
from google.adk.sessions import InMemorySessionService

from callstream import Callstream, UsageError
from callstream.ag_ui_adk import add_adk_fastapi_endpoint
from callstream.calls import CallState
from callstream.journal import open_journal
from callstream.testing import Finish, Text, ToolCall
from tests.adk.agent.agents import adk_agent, gemini
from tests.adk.hosting import Models, agent_of, scripted
from tests.agui.model import StrictClient
from tests.server.locking import write_lock
from tests.server.serving import Server, run_input, serving

END = [Text("Done.", size=2), Finish()]
ARGS = {"body": "a long text " * 6}
SCRIPT = [[Text("I write."), ToolCall("write", ARGS), Finish()], END]


@asynccontextmanager
async def endpoint(
    cs: Callstream, models: Models, ran: list[Any], pace: float = 30.0, *, turns: int = 1, **options: Any
) -> AsyncIterator[Server]:
    def write(body: str) -> str:
        """Writes."""
        ran.append({"body": body})
        return "written"

    async with scripted("gemini", SCRIPT * turns, deltas_per_second=pace) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), write), session_service=InMemorySessionService())
        app: Any = FastAPI()
        add_adk_fastapi_endpoint(app, agent, "/agent", **options)
        async with serving(app) as server:
            yield server
        await agent.close()


def folded(events: list[dict[str, Any]]) -> StrictClient:
    client = StrictClient()
    for event in events:
        client.take(event)
    assert not client.is_running
    return client


async def outcome_of(cs: Callstream, run_id: str) -> tuple[str | None, str | None]:
    async for _ in cs.journal.follow(run_id):
        pass
    (row,) = await cs.journal.runs(run_id=run_id)
    return row.outcome, row.reason


async def test_joined_in_the_middle_of_arguments(cs: Callstream, models: Models) -> None:
    ran: list[Any] = []
    async with endpoint(cs, models, ran) as server:
        async with server.stream("POST", "/agent", json=run_input()) as first:
            await first.until("TOOL_CALL_ARGS")
            async with server.stream("POST", "/agent/threads/thread/connect") as joined:
                events = await joined.all()
            await first.all()
        client = folded(events)
        assert [event["type"] for event in events[:2]] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        assert "TOOL_CALL_ARGS" in [event["type"] for event in events]
        assert client.messages[-1]["content"] == "Done."
        async with server.stream("POST", "/agent/threads/thread/connect", json=run_input()) as late:
            assert folded(await late.all()).messages == client.messages
        async with server.stream("POST", "/agent/threads/nobody's/connect") as unknown:
            assert unknown.status == 404
    assert ran == [ARGS]


async def test_stopped_by_another_request(cs: Callstream, models: Models) -> None:
    ran: list[Any] = []
    async with endpoint(cs, models, ran) as server:
        given = run_input()
        async with server.stream("POST", "/agent", json=given) as stream:
            await stream.until("TOOL_CALL_ARGS")
            answer = await server.post(f"/agent/runs/{given['runId']}/stop", json={"reason": "enough"})
            assert answer.json() == {"run_id": given["runId"], "outcome": "cancelled"}
            assert (await stream.all())[-1]["outcome"] == {"type": "cancelled"}
        assert await outcome_of(cs, given["runId"]) == ("cancelled", "enough")
        assert (await server.post("/agent/runs/none/stop")).status_code == 404
    assert ran == []


@pytest.mark.parametrize("on_disconnect", ["stop", "continue"])
async def test_client_that_disconnects(on_disconnect: str, cs: Callstream, models: Models) -> None:
    ran: list[Any] = []
    async with endpoint(cs, models, ran, on_disconnect=on_disconnect) as server:
        given = run_input()
        async with server.stream("POST", "/agent", json=given) as stream:
            await stream.until("TOOL_CALL_ARGS")
        outcome, _ = await outcome_of(cs, given["runId"])
        (call,) = await cs.journal.calls()
    if on_disconnect == "stop":
        assert (outcome, call.state, ran) == ("cancelled", CallState.DISCARDED, [])
    else:
        assert (outcome, call.state, ran) == ("finished", CallState.COMPLETED, [ARGS])


@pytest.mark.parametrize("on_disconnect", ["stop", "continue"])
async def test_retry_never_doubles(on_disconnect: str, cs: Callstream, models: Models) -> None:
    ran: list[Any] = []
    async with endpoint(cs, models, ran, pace=1000, turns=2, on_disconnect=on_disconnect) as server:
        given = run_input()
        whole = []
        async with server.stream("POST", "/agent", json=given) as stream:
            async for event in stream:
                whole.append((stream.id, event))
        want = folded([event for _, event in whole]).messages
        for place, (last, _) in list(enumerate(whole, start=1))[::5]:
            async with server.stream("POST", "/agent", json=given, headers={"last-event-id": last or ""}) as again:
                rest = await again.all()
            assert folded([*(event for _, event in whole[:place]), *rest]).messages == want
        async with server.stream("POST", "/agent", json=given) as again:
            assert folded(await again.all()).messages == want
        together = run_input(thread="another")
        streams = [server.post("/agent", json=together) for _ in range(3)]
        assert [answer.status_code for answer in await asyncio.gather(*streams)] == [200] * 3
        unknown = await server.client.post("/agent", json=run_input(), headers={"last-event-id": "1"})
        assert unknown.status_code == 404
        assert len(await cs.journal.runs()) == 2


async def test_ends_are_true_while_the_store_takes_no_writes(url: str, models: Models) -> None:
    journal = open_journal(url, retry_seconds=0.3)
    async with Callstream(journal) as cs, endpoint(cs, models, []) as server:
        async with server.stream("POST", "/agent", json=run_input()) as stream:
            await stream.until("TOOL_CALL_ARGS")
            with write_lock(url):
                last = (await stream.until("RUN_ERROR"))[-1]
                assert last["code"] == "incomplete"


async def test_dependencies_hold_for_joining_and_stopping(cs: Callstream, models: Models) -> None:
    def refuse() -> None:
        raise HTTPException(403)

    async with endpoint(cs, models, [], dependencies=[Depends(refuse)]) as server:
        for path in ("/agent", "/agent/threads/thread/connect", "/agent/runs/run/stop"):
            assert (await server.post(path, json=run_input())).status_code == 403


def test_on_disconnect_is_checked(cs: Callstream, models: Models) -> None:
    with pytest.raises(UsageError, match="on_disconnect"):
        add_adk_fastapi_endpoint(FastAPI(), None, on_disconnect="maybe")  # type: ignore[arg-type]
