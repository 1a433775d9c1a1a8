"""The agent that is given stays as it was: a copy of it is tapped and run."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.workflow import START, Workflow

from callstream import Callstream, UsageError
from callstream.adk import ADKAgent, CallstreamPlugin
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import Models, agent_of, scripted

from .agents import END, adk_agent, gemini
from .clients import Client, kinds


async def test_from_app_keeps_plugins(cs: Callstream, models: Models) -> None:
    from google.adk.plugins.base_plugin import BasePlugin

    class Counting(BasePlugin):
        runs = 0

        async def before_run_callback(self, **_: Any) -> None:
            self.runs += 1

    counting = Counting("counting")
    async with scripted("gemini", [END]) as provider:
        app = App(
            name="app",
            root_agent=agent_of(gemini(models, provider)),
            plugins=[counting, CallstreamPlugin(cs, on_truncated="fail")],
        )
        agent = ADKAgent.from_app(app, user_id="user")
        assert agent.callstream is cs
        client = Client(agent)
        await client.send()
    assert client.text() == "Done."
    assert counting.runs == 1
    assert len(await cs.journal.runs()) == 1


async def test_agent_is_copied(cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture) -> None:
    async with scripted("gemini", [END]) as provider:
        child = LlmAgent(name="child", model=gemini(models, provider))
        agent = LlmAgent(name="writer", model=gemini(models, provider), sub_agents=[child])
        with caplog.at_level(logging.INFO, "callstream"):
            adk_agent(cs, agent)
    assert agent.model.client_kwargs["http_options"].httpx_async_client is None  # type: ignore[union-attr, index]
    assert child.parent_agent is agent
    assert [record.getMessage() for record in caplog.records if record.name.startswith("callstream")] == [
        f"agent {name}: model gemini-3-flash-preview (Gemini) is read at the wire" for name in ("writer", "child")
    ]


def test_what_is_no_agent_is_told() -> None:
    agent: Any = LlmAgent(name="writer", model="gemini-3-flash-preview")
    app: Any = App(name="app", root_agent=agent)
    with pytest.raises(UsageError, match="got NoneType"):
        ADKAgent()
    with pytest.raises(UsageError, match=r"got an App: use ADKAgent\.from_app"):
        ADKAgent(app)
    with pytest.raises(UsageError, match="needs an App of google-adk, got LlmAgent"):
        ADKAgent.from_app(agent)


def test_unknown_parameter() -> None:
    agent = LlmAgent(name="writer", model="gemini-3-flash-preview")
    with pytest.raises(UsageError, match="no parameter 'session_manager'"):
        ADKAgent(adk_agent=agent, session_manager=object())  # type: ignore[call-arg]


async def test_workflow_is_copied(cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture) -> None:
    """Models of its nodes are tapped, in workflows inside of it and in agents that are tools too; nothing is changed."""
    ran: list[str] = []

    def write(body: str) -> str:
        """Writes."""
        ran.append(body)
        return "written"

    def upper(node_input: Any) -> str:
        return str(node_input).upper()

    script = [
        [Text("draft"), Finish()],
        [ToolCall("write", {"body": "a long body of text"}), Finish()],
        [Text("Written."), Finish()],
        [Text("Checked."), Finish()],
    ]
    async with scripted("gemini", script) as provider:
        drafter = LlmAgent(name="drafter", model=gemini(models, provider))
        writer = LlmAgent(name="writer", model=gemini(models, provider), tools=[write])
        checker = LlmAgent(name="checker", model=gemini(models, provider))
        inner = Workflow(name="inner", edges=[(START, writer)])
        flow = Workflow(name="flow", edges=[(START, drafter, upper, inner, checker)])
        before = [id(node) for node in flow.graph.nodes], list(flow.edges)  # type: ignore[union-attr]
        with caplog.at_level(logging.INFO, "callstream"):
            agent = ADKAgent(adk_agent=flow, app_name="app", user_id="user", callstream=cs)
        client = Client(agent)
        events = await client.send()
    assert sorted(record.getMessage() for record in caplog.records if "model" in record.getMessage()) == [
        f"agent {name}: model gemini-3-flash-preview (Gemini) is read at the wire"
        for name in ("checker", "drafter", "writer")
    ]
    assert ([id(node) for node in flow.graph.nodes], list(flow.edges)) == before  # type: ignore[union-attr]
    for each in (drafter, writer, checker):
        assert each.model.client_kwargs["http_options"].httpx_async_client is None  # type: ignore[union-attr, index]
    (call,) = client.calls()
    assert ran == ["a long body of text"] == [call["args"]["body"]]
    assert kinds(events).count("TOOL_CALL_ARGS") > 1
    assert client.text() == "draftWritten.Checked."
