"""``output_key`` gets all text of the turn."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent, LoopAgent, SequentialAgent
from google.adk.tools import LongRunningFunctionTool
from google.adk.workflow import START, Workflow
from pydantic import BaseModel

from callstream import Callstream
from callstream.testing import Call as Calls
from callstream.testing import Finish, Text

from .hosting import PATHS, STREAMED, WHOLE, Host, Models, answer, function_calls_in, scripted

SCRIPT = [
    [Text("Intro one. Intro two.", size=6), Calls("note", {"text": "x"}), Finish()],
    [Text("Progress."), Calls("note", {"text": "y"}), Finish()],
    [Text("Conclusion one. Conclusion two."), Finish()],
]
STEPS = ["Intro one. Intro two.", "Intro one. Intro two.Progress."]
ALL = "Intro one. Intro two.Progress.Conclusion one. Conclusion two."


def note(text: str) -> str:
    return text


def writer(model: Any, *tools: Any, **options: Any) -> LlmAgent:
    return LlmAgent(name="writer", model=model, tools=list(tools) or [note], output_key="draft", **options)


def root(model: Any) -> Any:
    return writer(model)


def sequential(model: Any) -> Any:
    return SequentialAgent(name="seq", sub_agents=[writer(model)])


def workflow(model: Any) -> Any:
    return Workflow(name="flow", edges=[(START, writer(model))])


@pytest.mark.parametrize("config", [STREAMED, WHOLE], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("build", [root, sequential, workflow])
async def test_output_key_whole(build: Any, path: str, config: Any, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [*SCRIPT, [Text("Again."), Finish()]]) as provider:
        host = Host(cs, build(models(provider, path)))
        written: list[tuple[bool, Any]] = []
        async for event in host.stream("one", config=config):
            # Noted now, because google-adk's partial events share their actions with the event that they become.
            written.append((bool(event.partial), event.actions.state_delta.get("draft")))
        assert (await host.session()).state["draft"] == ALL
        values = [value for is_partial, value in written if not is_partial and value is not None]
        assert list(dict.fromkeys(values)) == [*STEPS, ALL]
        assert {value for is_partial, value in written if is_partial} <= {None}
        await host.run("two", config=config)
    assert (await host.session()).state["draft"] == "Again."


@pytest.mark.parametrize("build", [root, workflow])
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_output_key_whole_across_a_pause(
    path: str, build: Any, resumable: bool, cs: Callstream, models: Models
) -> None:
    def approve(what: str) -> None:
        """Asks."""

    script = [
        [Text("Before. "), Calls("approve", {"what": "x"}), Finish()],
        [Text("After."), Finish()],
    ]
    async with scripted("gemini", script) as provider:
        model = models(provider, path)
        agent: Any = writer(model, LongRunningFunctionTool(approve))
        if build is workflow:
            agent = Workflow(name="flow", edges=[(START, agent)])
        host = Host(cs, agent, resumable=resumable)
        events = await host.run()
        (asked,) = function_calls_in(events)
        assert (await host.session()).state["draft"] == "Before. "
        await host.run([answer("approve", asked.id, {"approved": True})])
    assert (await host.session()).state["draft"] == "Before. After."


async def test_output_key_whole_of_each_agent_and_each_round(cs: Callstream, models: Models) -> None:
    """Other authors' text is not the agent's, and every run of an agent starts empty."""
    script = [
        [Text("Draft one."), Finish()],
        [Text("Review."), Finish()],
        [Text("Draft two."), Finish()],
        [Text("Ok."), Finish()],
    ]
    async with scripted("gemini", script) as provider:
        model = models(provider)
        critic = LlmAgent(name="critic", model=model, output_key="review")
        host = Host(cs, LoopAgent(name="loop", sub_agents=[writer(model), critic], max_iterations=2))
        await host.run()
    state = (await host.session()).state
    assert (state["draft"], state["review"]) == ("Draft two.", "Ok.")


async def test_output_key_whole_leaves_output_schema_alone(cs: Callstream, models: Models) -> None:
    class Answer(BaseModel):
        word: str

    async with scripted("gemini", [[Text('{"word": "moon"}'), Finish()]]) as provider:
        agent = LlmAgent(name="writer", model=models(provider), output_schema=Answer, output_key="draft")
        host = Host(cs, agent)
        await host.run()
    assert (await host.session()).state["draft"] == {"word": "moon"}
