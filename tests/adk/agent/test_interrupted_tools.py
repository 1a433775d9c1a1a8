"""Tools that were running when their process died: a person is asked, or an MCP server is believed."""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from google.adk.sessions.sqlite_session_service import SqliteSessionService

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"\[EXPERIMENTAL\]")
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from mcp import StdioServerParameters

from callstream import Callstream, open_journal, tool
from callstream.adk import ADKAgent
from callstream.calls import CallState
from callstream.runtime import Driver, DriverSettings
from callstream.testing import Finish, ReceivedRequest, Script, Text, ToolCall
from tests.adk import hosting
from tests.adk.hosting import Models, agent_of, scripted

from .agents import gemini
from .clients import Client


class Stage:
    """One application in two processes: in the first one its tool hangs."""

    def __init__(self, folder: Path, models: Models, provider: Any, replay: Any = "ask") -> None:
        self._folder = folder
        self._models = models
        self.provider = provider
        self._replay = replay
        self.ran: list[int] = []
        self.hanging = asyncio.Event()
        self.options: dict[str, Any] = {}

    def tool(self, *, hangs: bool) -> Any:
        @tool(replay=self._replay)
        async def pay(amount: int) -> dict[str, str]:
            """Pays."""
            self.ran.append(amount)
            if hangs:
                self.hanging.set()
                await asyncio.Event().wait()
            return {"status": "paid"}

        return pay

    def agent(self, *, hangs: bool) -> ADKAgent:
        cs = Callstream(open_journal(f"sqlite:///{self._folder / 'calls.db'}", housekeeping=None))
        sessions = SqliteSessionService(str(self._folder / "sessions.db"))
        root = agent_of(gemini(self._models, self.provider), self.tool(hangs=hangs))
        return ADKAgent(
            root,
            app_name="app",
            user_id="user",
            session_service=sessions,
            callstream=cs,
            continues=True,
            **self.options,
        )

    async def leave_running(self) -> None:
        """Begins a run, whose process then is gone."""
        agent = self.agent(hangs=True)
        sending = asyncio.create_task(Client(agent).send("Pay 5."))
        await self.hanging.wait()
        (run,) = agent.callstream.engine.active_runs
        assert await run.hand_over()
        sending.cancel()
        await asyncio.wait({sending})
        await agent.callstream.aclose()

    async def go_on(self, agent: ADKAgent) -> None:
        (run_id,) = await agent.callstream.journal.adopt({"app"})
        driver = Driver(agent.callstream.engine, DriverSettings())
        await driver.begin(lambda: agent.go_on(run_id))
        async for _ in agent.callstream.journal.follow(run_id):
            pass
        await driver.aclose()


def says(request: ReceivedRequest) -> Script:
    answered = request.body.count(b'"functionResponse"')
    return [Text("Done."), Finish()] if answered else [ToolCall("pay", {"amount": 5}), Finish()]


@pytest.fixture
async def stage(tmp_path: Path, models: Models) -> AsyncIterator[Stage]:
    async with scripted("gemini", says) as provider:
        yield Stage(tmp_path, models, provider)


@pytest.mark.parametrize(
    ("said", "ran", "told"),
    [
        ({"confirmed": True}, [5, 5], "paid"),
        ({"confirmed": False, "payload": {"result": {"status": "found"}}}, [5], "found"),
        ({"confirmed": False, "payload": {"result": "it is done"}}, [5], "it is done"),
        ({"confirmed": False}, [5], "a person has decided"),
    ],
)
async def test_a_person_says_what_becomes_of_it(stage: Stage, said: Any, ran: list[int], told: str) -> None:
    await stage.leave_running()
    agent = stage.agent(hangs=False)
    await stage.go_on(agent)
    journal = agent.callstream.journal
    (row,) = await journal.runs()
    assert (row.outcome, stage.ran) == ("finished", [5])
    paid, question = await journal.calls()
    assert (paid.state, question.state) == (CallState.AWAITING, CallState.AWAITING)
    assert len(stage.provider.requests) == 1
    answer = {"id": "a", "role": "tool", "toolCallId": question.call_id, "content": json.dumps(said)}
    given = {"threadId": row.thread_id, "runId": "answering", "messages": [answer], "protocolVersion": "1.0"}
    empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    events = [event async for event in agent.run(RunAgentInput.model_validate({**given, **empty}))]
    assert "".join(event.delta for event in events if event.type == "TEXT_MESSAGE_CONTENT") == "Done."
    assert stage.ran == ran
    assert told in stage.provider.requests[-1].body.decode()
    assert not [call for call in await journal.calls() if not call.is_final]
    await agent.callstream.aclose()


async def test_a_tool_that_was_not_to_be_asked_about_then_is_not_now(stage: Stage) -> None:
    stage._replay = "unsafe"
    await stage.leave_running()
    stage._replay = "ask"
    agent = stage.agent(hangs=False)
    await stage.go_on(agent)
    assert [call.state for call in await agent.callstream.journal.calls()] == [CallState.FAILED]
    assert "may or may not have taken effect" in stage.provider.requests[-1].body.decode()
    await agent.callstream.aclose()


# -- tools of MCP servers --


class McpStage(Stage):
    """Its tool is one of an MCP server, and waits there for a file."""

    def __init__(self, folder: Path, models: Models, provider: Any) -> None:
        super().__init__(folder, models, provider)
        self.folder = folder
        self.toolsets: list[McpToolset] = []

    def tool(self, *, hangs: bool) -> Any:
        script = Path(hosting.__file__).parent / "mcpserver.py"
        server = StdioServerParameters(command=sys.executable, args=[str(script)])
        self.toolsets.append(
            McpToolset(connection_params=StdioConnectionParams(server_params=server, timeout=60), tool_filter=["look"])
        )
        return self.toolsets[-1]

    async def wait_for_it(self) -> None:
        while not (self.folder / "began").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self.hanging.set()

    def began(self) -> int:
        return len((self.folder / "began").read_text().splitlines())


@pytest.mark.subprocess
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:MCPTool class is deprecated")
@pytest.mark.parametrize("trusts", [True, False])
async def test_what_an_mcp_server_says_of_its_tools_counts_if_it_is_trusted(
    trusts: bool, tmp_path: Path, models: Models
) -> None:
    def says(request: ReceivedRequest) -> Script:
        answered = b'"functionResponse"' in request.body
        return [Text("Done."), Finish()] if answered else [ToolCall("look", {"folder": str(tmp_path)}), Finish()]

    async with scripted("gemini", says) as provider:
        stage = McpStage(tmp_path, models, provider)
        stage.options = {"trust_mcp_hints": trusts}
        waiting = asyncio.create_task(stage.wait_for_it())
        await stage.leave_running()
        await waiting
        await asyncio.to_thread((tmp_path / "ready").touch)
        agent = stage.agent(hangs=False)
        try:
            await stage.go_on(agent)
        finally:
            for toolset in stage.toolsets:
                await toolset.close()
            await agent.callstream.aclose()
        told = provider.requests[-1].body.decode()
    assert stage.began() == (2 if trusts else 1)
    assert ("all is there" if trusts else "may or may not have taken effect") in told
