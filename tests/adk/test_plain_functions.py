"""Plain functions with a ``progress_callback``, without ``@tool``, as google-adk's users write them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.base_toolset import BaseToolset

from callstream import Callstream, Progress, no_progress, tool
from callstream.adk import ADKAgent, StreamingTool
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall

from .agent.clients import Client
from .hosting import PATHS, Host, Models, agent_of, answer, responses_in, scripted

Report = Callable[[Any], Awaitable[None]]
END = [Text("Done."), Finish()]
CALL = [ToolCall("work", {"query": "moon"}), Finish()]


async def annotated(query: str, tool_context: ToolContext, progress_callback: Report | None = None) -> str:
    """Works.

    Args:
        query: What to look for.
        progress_callback: Told of each step.
    """
    assert progress_callback is not None
    await progress_callback({"step": 1})
    return f"{query} found by {tool_context.agent_name}"


async def unannotated(query: str, tool_context: ToolContext, progress_callback=None) -> str:  # type: ignore[no-untyped-def]
    """Works."""
    return await annotated(query, tool_context, progress_callback)


async def generator(
    query: str, tool_context: ToolContext, progress_callback: Report | None = None
) -> AsyncIterator[str]:
    """Works."""
    yield await annotated(query, tool_context, progress_callback)


def sync(query: str, tool_context: ToolContext, progress_callback: Any = None) -> str:
    """Works."""
    progress_callback({"step": 1})
    return f"{query} found by {tool_context.agent_name}"


async def typed(query: str, tool_context: ToolContext, report: Progress = no_progress) -> str:
    """Works."""
    return await annotated(query, tool_context, report)


KINDS = (annotated, unannotated, generator, sync, typed)
WRAPS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda function: function,
    "FunctionTool": FunctionTool,
    "StreamingTool": StreamingTool,
}


def named(function: Any, wrap: str = "plain") -> Any:
    """The tool ``work``; functions stay as they are, for their users may call them too."""
    made = FunctionTool(function) if wrap == "plain" else WRAPS[wrap](function)
    made.name = "work"
    return made


@pytest.fixture
def told(cs: Callstream) -> list[tuple[str, Any]]:
    reports: list[tuple[str, Any]] = []
    cs.on_tool_progress = lambda name, call_id, data: reports.append((name, data))
    return reports


@pytest.mark.parametrize("function", KINDS, ids=[each.__name__ for each in KINDS])
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("path", PATHS)
async def test_progress_of_a_plain_function(
    path: str, wrap: str, function: Any, cs: Callstream, models: Models, told: list[Any]
) -> None:
    name = function.__name__ if wrap == "plain" else "work"
    made = function if wrap == "plain" else named(function, wrap)
    async with scripted("gemini", [[ToolCall(name, {"query": "moon"}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), made))
        events = await host.run()
        sent = "".join(request.body.decode() for request in provider.requests)
    assert told == [(name, {"step": 1})]
    assert [result for _, result in responses_in(events)] == [{"result": "moon found by writer"}]
    assert "progress" not in sent
    assert "report" not in sent
    assert "step" not in sent


async def test_functions_of_one_name_in_two_agents(cs: Callstream, models: Models, told: list[Any]) -> None:
    """They are not the same tool, and none has hooks by which they could be mixed up."""

    def other(query: str, progress_callback: Any = None) -> str:
        """Works too."""
        progress_callback("other")
        return query

    async with scripted("gemini", [CALL, END, CALL, END]) as provider:
        model = models(provider)
        first = LlmAgent(name="first", model=model, tools=[named(annotated)])
        second = LlmAgent(name="second", model=model, tools=[named(other)])
        await Host(cs, SequentialAgent(name="both", sub_agents=[first, second])).run()
    assert told == [("work", {"step": 1}), ("work", "other")]


async def test_a_person_answers_a_plain_function(cs: Callstream, models: Models, told: list[Any]) -> None:
    def ask(query: str, progress_callback: Any = None) -> None:
        """Asks."""
        progress_callback("asked")

    async with scripted("gemini", [[ToolCall("ask", {"query": "moon"}), Finish()]]) as provider:
        host = Host(cs, agent_of(models(provider), LongRunningFunctionTool(ask)))
        await host.run()
    assert told == [("ask", "asked")]
    assert [call.state for call in await host.calls()] == [CallState.AWAITING]


async def test_a_plain_function_asks_for_confirmation_as_before(
    cs: Callstream, models: Models, told: list[Any]
) -> None:
    made = FunctionTool(annotated, require_confirmation=True)
    async with scripted("gemini", [[ToolCall("annotated", {"query": "moon"}), Finish()]]) as provider:
        host = Host(cs, agent_of(models(provider), made))
        events = await host.run()
    asked = [call.name for event in events for call in event.get_function_calls()]
    assert "adk_request_confirmation" in asked
    assert told == []


@pytest.mark.parametrize("function", KINDS, ids=[each.__name__ for each in KINDS])
@pytest.mark.parametrize("is_made", [False, True])
async def test_no_tool_runs_before_its_confirmation(
    is_made: bool, function: Any, cs: Callstream, models: Models, told: list[Any]
) -> None:
    """Whatever stands in for it: it runs in a thread, or several values of it are collected."""
    made = FunctionTool(tool(function) if is_made else function, require_confirmation=True)
    async with scripted("gemini", [[ToolCall(made.name, {"query": "moon"}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider), made))
        events = await host.run()
        (question,) = [
            call for event in events for call in event.get_function_calls() if call.name == "adk_request_confirmation"
        ]
        assert told == []
        events = await host.run([answer("adk_request_confirmation", question.id, {"confirmed": True})])
    assert told == [(made.name, {"step": 1})]
    assert [result for _, result in responses_in(events)] == [{"result": "moon found by writer"}]


async def test_a_parameter_that_a_model_fills_in_stays(cs: Callstream, models: Models) -> None:
    def set_bar(progress: int, title=None) -> str:  # type: ignore[no-untyped-def]
        """Sets the bar."""
        return f"{progress} %"

    async with scripted("gemini", [[ToolCall("set_bar", {"progress": 7}), Finish()], END]) as provider:
        events = await Host(cs, agent_of(models(provider), set_bar)).run()
        assert "progress" in provider.requests[0].body.decode()
    assert [result for _, result in responses_in(events)] == [{"result": "7 %"}]


async def test_adk_agent_leaves_the_agents_tools_as_they_are(cs: Callstream, models: Models, told: list[Any]) -> None:
    async with scripted("gemini", [[ToolCall("annotated", {"query": "moon"}), Finish()], END]) as provider:
        agent = agent_of(models(provider), annotated)
        client = Client(ADKAgent(adk_agent=agent, app_name="app", callstream=cs))
        await client.send()
        assert "progress" not in provider.requests[0].body.decode()
    assert told == [("annotated", {"step": 1})]
    assert agent.tools == [annotated]


class Box(BaseToolset):
    """A toolset of somebody's own: what it has is known only when google-adk asks it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        return [FunctionTool(self._function)]


async def test_a_hint_where_a_toolset_has_the_function(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "callstream")
    async with scripted("gemini", [END]) as provider:
        with pytest.raises(Exception, match="JsonSchema"):
            await Host(cs, agent_of(models(provider), Box(annotated))).run()
    assert "agent writer: google-adk cannot declare one of its tools" in caplog.text
    async with scripted("gemini", [END, END]) as provider:
        host = Host(cs, agent_of(models(provider), Box(unannotated)))
        await host.run()
        await host.run()
    hints = [record.getMessage() for record in caplog.records if "of a toolset has a parameter" in record.message]
    assert len(hints) == 1
    assert "agent writer: tool unannotated" in hints[0]
