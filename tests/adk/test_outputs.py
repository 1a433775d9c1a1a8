"""``output_key`` gets all text of the turn."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent, LoopAgent, SequentialAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.adk.workflow import START, Workflow
from google.genai import types
from pydantic import BaseModel

from callstream import Callstream
from callstream.testing import Finish, Text, ToolCall

from .hosting import PATHS, STREAMED, WHOLE, FakeLlm, Host, Models, answer, function_calls_in, scripted

SCRIPT = [
    [Text("Intro one. Intro two.", size=6), ToolCall("note", {"text": "x"}), Finish()],
    [Text("Progress."), ToolCall("note", {"text": "y"}), Finish()],
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
        [Text("Before. "), ToolCall("approve", {"what": "x"}), Finish()],
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


async def bare_state(agent: Any) -> dict[str, Any]:
    """The state that google-adk has after one message, without the plugin."""
    runner = InMemoryRunner(agent, app_name="app")
    runner.auto_create_session = True
    message = types.Content(role="user", parts=[types.Part(text="Go")])
    events = runner.run_async(user_id="user", session_id="session", new_message=message, run_config=STREAMED)
    async for _ in events:
        pass
    session = await runner.session_service.get_session(app_name="app", user_id="user", session_id="session")
    assert session is not None
    return session.state


SAID = "All is said."


def written_by_its_tool(model: Any, value: str) -> Any:
    def publish(tool_context: ToolContext) -> str:
        tool_context.state["draft"] = value
        tool_context.actions.skip_summarization = True
        return "published"

    return writer(model, publish, note)


def written_by_another_agents_tool(model: Any, value: str) -> Any:
    def publish(tool_context: ToolContext) -> str:
        tool_context.state["draft"] = value
        return "published"

    publisher = LlmAgent(name="publisher", model=model, tools=[publish])
    return SequentialAgent(name="seq", sub_agents=[writer(model), publisher])


def written_by_a_callback(model: Any, value: str) -> Any:
    def publish(callback_context: Any) -> None:
        callback_context.state["draft"] = value

    return writer(model, after_agent_callback=publish)


def written_by_a_callback_of_a_node(model: Any, value: str) -> Any:
    return Workflow(name="flow", edges=[(START, written_by_a_callback(model, value))])


def written_by_a_later_node(model: Any, value: str) -> Any:
    def publish(ctx: Any) -> str:
        ctx.state["draft"] = value
        return "published"

    return Workflow(name="flow", edges=[(START, writer(model), publish)])


def said_by_a_callback(model: Any, value: str) -> Any:
    def append(callback_context: Any) -> types.Content:
        return types.Content(role="model", parts=[types.Part(text=f"{value} Signed.")])

    return writer(model, after_agent_callback=append)


FIRST = [Text("First. "), ToolCall("note", {"text": "x"}), Finish()]
OTHERS = [
    (written_by_its_tool, [FIRST, [Text(SAID), ToolCall("publish", {}), Finish()]]),
    (
        written_by_another_agents_tool,
        [FIRST, [Text(SAID), Finish()], [ToolCall("publish", {}), Finish()], [Text("ok"), Finish()]],
    ),
    (written_by_a_callback, [FIRST, [Text(SAID), Finish()]]),
    (written_by_a_callback_of_a_node, [FIRST, [Text(SAID), Finish()]]),
    (written_by_a_later_node, [FIRST, [Text(SAID), Finish()]]),
    (said_by_a_callback, [FIRST, [Text(SAID), Finish()]]),
]


@pytest.mark.parametrize("value", ["", SAID, "Another text."], ids=["empty", "as said", "another"])
@pytest.mark.parametrize(("build", "script"), OTHERS, ids=[build.__name__ for build, _ in OTHERS])
@pytest.mark.parametrize("path", PATHS)
async def test_output_key_is_the_applications(
    path: str, build: Any, script: Any, value: str, cs: Callstream, models: Models
) -> None:
    """What somebody else wrote into the key stays, as under google-adk alone."""
    async with scripted("gemini", script) as provider:
        bare = await bare_state(build(models(provider, "partial"), value))
    async with scripted("gemini", script) as provider:
        host = Host(cs, build(models(provider, path), value))
        await host.run()
        session = await host.session()
    assert session.state["draft"] == bare["draft"]
    assert session.state["draft"] == (f"First. {SAID}" if build is said_by_a_callback else value)


@pytest.mark.parametrize("build", [root, sequential, workflow])
async def test_an_answer_without_text_does_not_empty_the_key(build: Any, cs: Callstream) -> None:
    """google-adk overwrites the key if a model's last answer has an empty text."""

    def response(*parts: types.Part) -> LlmResponse:
        content = types.Content(role="model", parts=list(parts))
        return LlmResponse(content=content, finish_reason=types.FinishReason.STOP)

    def answers() -> list[list[LlmResponse]]:
        call = types.Part(function_call=types.FunctionCall(name="note", args={"text": "x"}))
        return [[response(types.Part(text="All."), call)], [response(types.Part(text=""))]]

    assert (await bare_state(build(FakeLlm(answers=answers()))))["draft"] == ""
    host = Host(cs, build(FakeLlm(answers=answers())))
    await host.run()
    assert (await host.session()).state["draft"] == "All."


@pytest.mark.parametrize("path", PATHS)
async def test_output_key_whole_around_a_delegated_task(path: str, cs: Callstream, models: Models) -> None:
    """google-adk runs an agent anew after a task that it delegated; it is still the same turn."""
    script = [
        [Text("Let me ask. "), ToolCall("researcher", {"request": "moon"}), Finish()],
        [ToolCall("finish_task", {"result": "round"}), Finish()],
        [Text("It is round."), Finish()],
    ]
    async with scripted("gemini", script) as provider:
        model = models(provider, path)
        researcher = LlmAgent(name="researcher", model=model, mode="task", description="Looks things up.")
        host = Host(cs, LlmAgent(name="writer", model=model, sub_agents=[researcher], output_key="draft"))
        await host.run()
    assert (await host.session()).state["draft"] == "Let me ask. It is round."
