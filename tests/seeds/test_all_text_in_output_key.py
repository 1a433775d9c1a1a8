"""An agent that speaks before, between and after its calls has all of it in its ``output_key``."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools import ToolContext
from pydantic import BaseModel

from callstream import Callstream
from callstream.testing import Finish, Text, Thought, ToolCall
from tests.adk.hosting import PATHS, Host, Models, scripted

SCRIPT = [
    [Thought("Hm."), Text("Intro one. Intro two.", size=5), ToolCall("lookup", {"topic": "moon"}), Finish()],
    [Text("Progress.", size=3), ToolCall("lookup", {"topic": "tides"}), Finish()],
    [Text("Conclusion one. Conclusion two.", size=5), Finish()],
]
ALL = "Intro one. Intro two.Progress.Conclusion one. Conclusion two."


def lookup(topic: str) -> str:
    """Looks a topic up."""
    return f"all about {topic}"


@pytest.mark.parametrize("path", PATHS)
async def test_the_state_has_all_text_of_the_invocation(path: str, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [*SCRIPT, [Text("Another answer."), Finish()]]) as provider:
        agent = LlmAgent(name="writer", model=models(provider, path), tools=[lookup], output_key="report")
        host = Host(cs, agent)
        values: list[Any] = []
        async for event in host.stream("Write"):
            if not event.partial and "report" in event.actions.state_delta:
                values.append(event.actions.state_delta["report"])
        assert values == ["Intro one. Intro two.", "Intro one. Intro two.Progress.", ALL]
        assert (await host.session()).state["report"] == ALL
        await host.run("Once more")
    assert (await host.session()).state["report"] == "Another answer."


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", ["", "Conclusion one. Conclusion two.", "mine"])
async def test_what_the_application_writes_stays(path: str, value: str, cs: Callstream, models: Models) -> None:
    def publish(callback_context: Any) -> None:
        callback_context.state["report"] = value

    async with scripted("gemini", SCRIPT) as provider:
        model = models(provider, path)
        agent = LlmAgent(name="writer", model=model, tools=[lookup], output_key="report", after_agent_callback=publish)
        host = Host(cs, agent)
        await host.run("Write")
    assert (await host.session()).state["report"] == value


async def test_a_tool_may_read_what_was_said_before(cs: Callstream, models: Models) -> None:
    seen: list[Any] = []

    def review(tool_context: ToolContext) -> str:
        """Reviews what was written."""
        seen.append(tool_context.state["report"])
        return "fine"

    async with scripted(
        "gemini", [[Text("Draft."), ToolCall("review", {}), Finish()], [Text("Ok."), Finish()]]
    ) as provider:
        agent = LlmAgent(name="writer", model=models(provider), tools=[review], output_key="report")
        await Host(cs, agent).run("Write")
    assert seen == ["Draft."]


async def test_an_output_schema_is_untouched(cs: Callstream, models: Models) -> None:
    class Report(BaseModel):
        title: str

    async with scripted("gemini", [[Text('{"title": "Moon"}'), Finish()]]) as provider:
        agent = LlmAgent(name="writer", model=models(provider), output_schema=Report, output_key="report")
        host = Host(cs, agent)
        await host.run("Write")
    assert (await host.session()).state["report"] == {"title": "Moon"}
