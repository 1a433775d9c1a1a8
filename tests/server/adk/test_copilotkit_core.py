"""CopilotKit's browser core, from npm, against the server itself: run, join, stop, tools of the page, approvals."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall
from tests import npm
from tests.adk.agent.agents import adk_agent, gemini
from tests.adk.hosting import Models, agent_of, scripted
from tests.agui.judge import NodeProgram
from tests.server.agents import Stepping
from tests.server.principals import by_name
from tests.server.serving import Server, run_input, served

from .scenes import LONG, tools_of

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "copilotkit" / "core"
END = [Text("Done.", size=2), Finish()]
WRITE = [Text("I write.", size=3), ToolCall("write", LONG), Finish()]
SIGN = [Text("May I?"), ToolCall("sign", {"name": "Ada"}), Finish()]
PAINT = [Text("I paint."), ToolCall("paint", {"color": "red", "size": 3}), Finish()]


@pytest.fixture(scope="module")
def browser() -> Iterator[NodeProgram]:
    try:
        npm.install(FOLDER)
    except npm.Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have CopilotKit's core: {reason}")
        pytest.skip(str(reason))
    with NodeProgram("core.mjs", FOLDER) as program:
        yield program


async def live(browser: NodeProgram, server: Server, *steps: dict[str, Any], **given: Any) -> dict[str, Any]:
    question = {"url": server.url, "threadId": "thread", "steps": steps, **given}
    told: dict[str, Any] = await asyncio.to_thread(browser.ask, question)
    assert "failed" not in told, told["failed"]
    return told


@asynccontextmanager
async def staged(
    cs: Callstream, models: Models, *script: Any, pace: float = 400.0, **options: Any
) -> AsyncIterator[tuple[Server, list[Any]]]:
    ran: list[Any] = []
    async with scripted("gemini", list(script), deltas_per_second=pace) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), *tools_of(cs, ran)), **options)
        async with served(agent) as server:
            yield server, ran


def arguments(told: dict[str, Any]) -> list[Any]:
    calls = [call for message in told["messages"] for call in message.get("toolCalls", ())]
    return [json.loads(call["function"]["arguments"]) for call in calls]


async def test_it_finds_the_agent_and_streams(cs: Callstream, models: Models, browser: NodeProgram) -> None:
    async with staged(cs, models, WRITE, END, END) as (server, ran):
        told = await live(browser, server, {"connect": True}, {"send": "Go"}, {"send": "And now?"})
        assert (told["status"], told["errors"]) == ("connected", [])
        assert "default" in told["agents"]
        assert arguments(told) == [LONG]
        assert ran == [("write", LONG)]
        assert [message["role"] for message in told["messages"]] == [
            *("user", "assistant", "tool", "assistant"),
            *("user", "assistant"),
        ]
        assert len(await cs.journal.runs()) == 2
        reloaded = await live(browser, server, {"connect": True})
        assert reloaded["messages"] == told["messages"]
        assert (reloaded["ran"], reloaded["errors"]) == ([], [])
        assert len(await cs.journal.runs()) == 2


@pytest.mark.parametrize("joins", [False, True])
async def test_its_stop_button_stops_the_run(cs: Callstream, browser: NodeProgram, joins: bool) -> None:
    """Of a run that it has begun, and of one that it has joined, whose id it does not name."""
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        if joins:
            async with server.run() as stream:
                await stream.until("TOOL_CALL_START")
                told = await live(browser, server, {"connect": True, "stop": 3})
        else:
            told = await live(browser, server, {"send": "Go", "stop": 3})
        assert told["errors"] == []
        assert "POST /copilotkit/agent/default/stop/thread 200" in told["requests"]
        [row] = await cs.journal.runs()
        assert (row.outcome, row.reason) == ("cancelled", "stopped by the client")
        [call] = await cs.journal.calls()
        assert call.state is CallState.DISCARDED
    assert (agent.executed, agent.cancelled) == ([], 1)


async def test_a_stop_is_of_the_active_run_alone(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        path = "/copilotkit/agent/stepping/stop/a/thread"
        assert (await server.post(path)).json() == {"stopped": False}
        given = run_input(thread="a/thread")
        async with server.stream("POST", "/copilotkit/agent/stepping/run", json=given) as stream:
            await stream.until("TOOL_CALL_START")
            for other in ({"runId": "another"}, {"runId": 7}):
                assert (await server.post(path, json=other)).json() == {"stopped": False}
            assert (await server.post(path, json={"runId": given["runId"]})).json() == {"stopped": True}
            await stream.all()
        assert (await server.post(path, json={"runId": given["runId"]})).json() == {"stopped": False}
        for what in ("run", "connect", "stop/a/thread"):
            answer = await server.post(f"/copilotkit/agent/nobody/{what}", json=given)
            assert (answer.status_code, answer.json()["error"]["message"]) == (404, "No such agent.")


async def test_connecting_takes_a_thread_and_looks_at_nothing_else(cs: Callstream) -> None:
    path = "/copilotkit/agent/default/connect"
    async with served(Stepping(free=True), callstream=cs) as server:
        async with server.run() as stream:
            await stream.all()
        told = await server.post(path, json={"threadId": "thread", "messages": "whatever it has"})
        assert '"type":"RUN_FINISHED"' in told.text
        for body in ([], {}, {"threadId": 7}, {"threadId": ""}):
            answer = await server.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "wrong_input")


async def test_a_tool_of_the_page_runs_once(cs: Callstream, models: Models, browser: NodeProgram) -> None:
    async with staged(cs, models, PAINT, END) as (server, _):
        tools = {"answers": {"paint": {"painted": True}}}
        told = await live(browser, server, {"send": "Go"}, {"reload": True, "connect": True}, **tools)
        assert told["errors"] == []
        assert told["ran"] == [["paint", {"color": "red", "size": 3}]]
        assert told["messages"][-1]["content"] == "Done."
        [call] = await cs.journal.calls()
        assert (call.state, call.result) == (CallState.COMPLETED, {"painted": True})
        assert len(await cs.journal.runs()) == 2


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_an_approval_by_a_person_on_the_page(
    cs: Callstream, models: Models, browser: NodeProgram, is_confirmed: bool
) -> None:
    """useHumanInTheLoop with google-adk's question; the page is reloaded before the answer, which counts once."""
    async with staged(cs, models, SIGN, END) as (server, ran):
        asked = await live(browser, server, {"send": "Sign it"})
        assert (asked["errors"], ran) == ([], [])
        answer = {"asks": {"adk_request_confirmation": {"confirmed": is_confirmed}}}
        told = await live(browser, server, {"connect": True}, {"reload": True, "connect": True}, **answer)
        assert told["errors"] == []
        assert [name for name, _ in told["ran"]] == ["adk_request_confirmation"]
        assert ran == ([("sign", {"name": "Ada"})] if is_confirmed else [])
        assert told["messages"][-1]["content"] == "Done."
        assert len(await cs.journal.runs()) == 2


async def test_an_approval_as_an_interrupt(cs: Callstream, models: Models, browser: NodeProgram) -> None:
    async with staged(cs, models, SIGN, END, emit_interrupt_outcome=True) as (server, ran):
        told = await live(browser, server, {"send": "Sign it"}, {"resume": {"confirmed": True}})
        assert told["errors"] == []
        assert ran == [("sign", {"name": "Ada"})]
        assert told["messages"][-1]["content"] == "Done."
        assert [row.outcome for row in await cs.journal.runs()] == ["finished"] * 2


async def test_others_and_their_threads_are_not_there(cs: Callstream, browser: NodeProgram) -> None:
    async with served(Stepping(free=True), callstream=cs, auth=by_name) as server:
        ann = await live(browser, server, {"send": "Go"}, headers={"x-user": "ann"})
        assert (len(ann["messages"]), ann["errors"]) == (3, [])
        assert (await live(browser, server, {"connect": True}))["status"] == "error"
        bob = await live(browser, server, {"connect": True}, {"send": "Mine now"}, headers={"x-user": "bob"})
        assert [message["role"] for message in bob["messages"]] == ["user"]
        for asked in ("connect 200", "run 404"):
            assert f"POST /copilotkit/agent/default/{asked}" in bob["requests"]
        assert "agent_run_failed" in [error.partition(":")[0] for error in bob["errors"]]
        assert len(await cs.journal.runs()) == 1
