"""Behind the real CopilotKit runtime: stream, stop, reload, answer a client tool.

Its packages are some 270 MB, so they are installed by ``make copilotkit`` alone, which then runs these tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.server import ServerSettings
from callstream.testing import Finish, Text, ToolCall
from tests.adk.agent.agents import adk_agent, gemini
from tests.adk.hosting import Models, agent_of, scripted
from tests.agui.model import StrictClient
from tests.server.serving import Server, Stream, run_input, served, tool_message

from .scenes import PAINT, tools_of

FOLDER = Path(__file__).parents[1] / "copilotkit"
END = [Text("Done.", size=2), Finish()]
WRITE = {"title": "A wave", "body": "It rises 🌊, and it falls.\n" * 3}

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(shutil.which("node") is None, reason="the CopilotKit runtime needs node"),
    pytest.mark.skipif(not (FOLDER / "node_modules").is_dir(), reason="run `make copilotkit` to install CopilotKit"),
]


class Runtime:
    """CopilotKit's runtime, as its front end knows it."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http

    @asynccontextmanager
    async def stream(self, what: str, given: dict[str, Any]) -> AsyncIterator[Stream]:
        headers = {"accept": "text/event-stream"}
        async with self._http.stream(
            "POST", f"{self._url}/agent/default/{what}", json=given, headers=headers
        ) as response:
            assert response.status_code == 200, await response.aread()
            yield Stream(response)

    async def run(self, client: StrictClient, **given: Any) -> list[dict[str, Any]]:
        body = as_copilotkit(messages=[each for each in client.messages if each["role"] != "activity"], **given)
        async with self.stream("run", body) as stream:
            events = await stream.all()
        for event in events:
            client.take(event)
        assert not client.is_running
        return events

    async def stop(self, thread_id: str) -> Any:
        return (await self._http.post(f"{self._url}/agent/default/stop/{thread_id}")).json()


@asynccontextmanager
async def copilotkit(
    script: list[Any], cs: Callstream, models: Models, ran: list[Any], pace: float = 200.0
) -> AsyncIterator[tuple[Server, Runtime]]:
    # Their stop button ends the request, and nothing more.
    settings = ServerSettings(on_disconnect="stop", disconnect_grace=0.3, older_clients=True, inspector=False)
    async with scripted("gemini", script, deltas_per_second=pace) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), *tools_of(cs, ran)))
        async with served(agent, settings=settings) as server:
            process = await asyncio.create_subprocess_exec(
                *("node", "runtime.mjs", server.url),
                cwd=FOLDER,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "COPILOTKIT_TELEMETRY_DISABLED": "true", "DO_NOT_TRACK": "1"},
            )
            assert process.stdout is not None
            try:
                url = (await process.stdout.readline()).decode().strip()
                async with httpx.AsyncClient(timeout=60) as http:
                    yield server, Runtime(url, http)
            finally:
                process.kill()
                await process.wait()


def as_copilotkit(**given: Any) -> dict[str, Any]:
    """Its client is older than AG-UI 1.0, and says so by saying nothing."""
    return {name: value for name, value in run_input(None, **given).items() if name != "protocolVersion"}


class OlderClient(StrictClient):
    def _run_finished(self, event: dict[str, Any]) -> None:
        self._end(event)
        assert event.get("outcome", {"type": "success"}) == {"type": "success"}


def user(text: str) -> StrictClient:
    return OlderClient([{"id": "u1", "role": "user", "content": text}])


def arguments(client: StrictClient) -> list[Any]:
    calls = [call for message in client.messages for call in message.get("toolCalls", ())]
    return [json.loads(call["function"]["arguments"]) for call in calls]


async def test_copilotkit_streams(cs: Callstream, models: Models) -> None:
    ran: list[Any] = []
    script = [[Text("I write.", size=2), ToolCall("write", WRITE), Finish()], END]
    async with copilotkit(script, cs, models, ran, pace=30) as (_, runtime):
        client = user("Go")
        events = await runtime.run(client)
        kinds = [event["type"] for event in events]
        assert kinds.count("TOOL_CALL_ARGS") > 1
        assert kinds[-1] == "RUN_FINISHED"
        assert arguments(client) == [WRITE] == [args for _, args in ran]
        assert client.messages[-1]["content"] == "Done."


async def test_copilotkit_stops(cs: Callstream, models: Models) -> None:
    ran: list[Any] = []
    long = {"title": "x", "body": "long " * 2000}
    async with copilotkit([[ToolCall("write", long), Finish()]], cs, models, ran, pace=50) as (server, runtime):
        body = as_copilotkit(messages=user("Go").messages)
        async with runtime.stream("run", body) as stream:
            await stream.until("TOOL_CALL_ARGS")
            assert (await runtime.stop("thread"))["stopped"] is True
            await stream.all()
        row = await server.finished(body["runId"])
        assert (row["outcome"], row["reason"]) == ("cancelled", "the client left")
        assert [call.state for call in await cs.journal.calls()] == [CallState.DISCARDED]
    assert ran == []


async def test_copilotkit_reloads_in_the_middle_of_arguments(cs: Callstream, models: Models) -> None:
    ran: list[Any] = []
    script = [[Text("I write."), ToolCall("write", WRITE), Finish()], END]
    async with copilotkit(script, cs, models, ran, pace=30) as (_, runtime):
        body = as_copilotkit(messages=user("Go").messages)
        async with runtime.stream("run", body) as stream:
            await stream.until("TOOL_CALL_ARGS")
            client: StrictClient = OlderClient()
            async with runtime.stream("connect", as_copilotkit()) as joined:
                events = await joined.all()
            await stream.all()
        for event in events:
            client.take(event)
        kinds = [event["type"] for event in events]
        assert kinds[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        assert kinds[-1] == "RUN_FINISHED"
        assert "TOOL_CALL_ARGS" in kinds
        assert arguments(client) == [WRITE] == [args for _, args in ran]
        # And after the end.
        late = OlderClient()
        async with runtime.stream("connect", as_copilotkit()) as joined:
            for event in await joined.all():
                late.take(event)
        assert [message["id"] for message in late.messages] == [message["id"] for message in client.messages]


async def test_copilotkit_answers_a_client_tool(cs: Callstream, models: Models) -> None:
    script = [[Text("I paint."), ToolCall("paint", {"color": "red", "size": 3}), Finish()], END]
    async with copilotkit(script, cs, models, []) as (_, runtime):
        client = user("Go")
        await runtime.run(client, tools=[PAINT])
        (call,) = await cs.journal.calls()
        assert call.state is CallState.AWAITING
        assert arguments(client) == [{"color": "red", "size": 3}]
        client.put_result(tool_message(call.call_id, {"painted": True}))
        await runtime.run(client, tools=[PAINT])
        assert client.messages[-1]["content"] == "Done."
        (call,) = await cs.journal.calls()
        assert (call.state, call.result) == (CallState.COMPLETED, {"painted": True})
