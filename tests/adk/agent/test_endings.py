"""What a run of an agent came to: no failure looks like a success, and nothing that was said is lost."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.apps import App
from google.adk.sessions import InMemorySessionService
from google.adk.tools import LongRunningFunctionTool
from google.adk.workflow import START, Workflow

from callstream import Callstream
from callstream.adk import ADKAgent, CallstreamPlugin
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import Models, agent_of, by_agent, scripted

from .agents import adk_agent, gemini
from .clients import Client

CUT_OFF = [Text("I write."), ToolCall("write", {"content": "The moon pulls the sea."}, stop_after=2), Finish("length")]


def write(content: str) -> str:
    """Writes."""
    raise AssertionError("it must not run")


async def test_a_run_that_failed_on_a_cut_off_call_is_shown_as_failed(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [CUT_OFF]) as provider:
        app = App(
            name="app",
            root_agent=agent_of(gemini(models, provider), write),
            plugins=[CallstreamPlugin(cs, on_truncated="fail")],
        )
        client = Client(ADKAgent.from_app(app, user_id="user", show_errors=True))
        events = await client.send()
    assert client.text() == "I write."
    assert events[-1]["type"] == "RUN_ERROR"
    assert "cut off" in events[-1]["message"]
    assert [run.outcome for run in await cs.journal.runs()] == ["failed"]


async def test_a_run_that_failed_on_the_fourth_cut_off_call_is_shown_as_failed(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [CUT_OFF] * 4) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), write)))
        events = await client.send()
    assert events[-1]["type"] == "RUN_ERROR"
    assert [run.outcome for run in await cs.journal.runs()] == ["failed"]


def approve(what: str) -> None:
    """Asks."""


def asking(model: Any) -> LlmAgent:
    tools = [LongRunningFunctionTool(approve)]
    return LlmAgent(
        name="helper", description="asks", model=model, instruction="HELPER", tools=tools, output_key="draft"
    )


def root(model: Any) -> Any:
    return asking(model)


def transfer(model: Any) -> Any:
    return LlmAgent(name="boss", model=model, instruction="BOSS", sub_agents=[asking(model)])


def sequence(model: Any) -> Any:
    return SequentialAgent(name="steps", sub_agents=[asking(model)])


def workflow(model: Any) -> Any:
    return Workflow(name="flow", edges=[(START, asking(model))])


@pytest.mark.parametrize("build", [root, transfer, sequence, workflow])
async def test_output_key_has_the_text_before_a_question(build: Any, cs: Callstream, models: Models) -> None:
    scripts = {
        "HELPER": [[Text("May I? "), ToolCall("approve", {"what": "x"}), Finish()], [Text("Done."), Finish()]],
        "BOSS": [[ToolCall("transfer_to_agent", {"agent_name": "helper"}), Finish()]],
    }
    async with scripted("gemini", by_agent(scripts)) as provider:
        client = Client(adk_agent(cs, build(gemini(models, provider))))
        await client.send()
        (pending,) = client.pending()
        await client.answer({pending: "yes"})
    assert client.state["draft"] == "May I? Done."


class _SessionsAway(InMemorySessionService):
    """Can be away, as a database can."""

    is_away = False

    async def get_session(self, **given: Any) -> Any:
        if self.is_away:
            raise ConnectionError("the database of the sessions is at 10.0.0.7")
        return await super().get_session(**given)


async def test_an_answer_that_comes_while_the_sessions_are_away_is_not_lost(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does the caller get an exception: what ends a run is its last event."""
    sessions = _SessionsAway()
    script = [[ToolCall("approve", {"what": "it"}), Finish()], [Text("Approved."), Finish()]]
    async with scripted("gemini", script) as provider:
        root = LlmAgent(name="asker", model=gemini(models, provider), tools=[LongRunningFunctionTool(approve)])
        client = Client(adk_agent(cs, root, session_service=sessions))
        await client.send()
        (call_id,) = client.pending()
        sessions.is_away = True
        events = await client.answer({call_id: {"approved": True}})
        assert [(event["type"], event["code"]) for event in events] == [("RUN_ERROR", "failed")]
        assert "10.0.0.7" not in events[0]["message"]
        assert "10.0.0.7" in caplog.text
        sessions.is_away = False
        await client.run()
        assert client.text() == "Approved."
