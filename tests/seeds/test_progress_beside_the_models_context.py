"""Plain functions that report their progress to one handler; the model hears nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from google.adk.tools import ToolContext

from callstream import Callstream
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import PATHS, Host, Models, agent_of, responses_in, scripted
from tests.adk.liveline import Line, asked, line
from tests.adk.liveprovider import COMPLETE, calls, text

__all__ = ["line"]

ONE = {"status": "running", "message": "Step 1: fetching data..."}
TWO = {"status": "running", "message": "Step 2: analyzing..."}
FOUND = {"status": "found", "count": 3}
RESULT = {"status": "done", "answer": 42}
ProgressCallback = Callable[[Any], Awaitable[None]]

pytestmark = pytest.mark.filterwarnings(
    "ignore:The `session.send` method is deprecated:DeprecationWarning", "ignore::ResourceWarning"
)


async def long_running_task(
    query: str, tool_context: ToolContext, progress_callback: ProgressCallback | None = None
) -> dict[str, Any]:
    """Researches a question."""
    assert tool_context.function_call_id
    if progress_callback:
        await progress_callback(ONE)
    await asyncio.sleep(0)
    if progress_callback:
        await progress_callback(TWO)
    return RESULT


async def long_running_stream(
    query: str, tool_context: ToolContext, progress_callback: ProgressCallback | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Researches a question step by step."""
    if progress_callback:
        await progress_callback(ONE)
    yield FOUND
    if progress_callback:
        await progress_callback(TWO)
    yield RESULT


async def unannotated_task(query: str, tool_context: ToolContext, progress_callback=None) -> dict[str, Any]:  # type: ignore[no-untyped-def]
    """Researches a question."""
    return await long_running_task(query, tool_context, progress_callback)


TASKS = (long_running_task, long_running_stream, unannotated_task)


class Heard:
    """The handler, and what it heard."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str, Any]] = []

    async def handler(self, tool_name: str, function_call_id: str, data: Any) -> None:
        self.reports.append((tool_name, function_call_id, data))


@pytest.mark.parametrize("task", TASKS, ids=[task.__name__ for task in TASKS])
@pytest.mark.parametrize("path", PATHS)
async def test_every_report_reaches_the_handler(path: str, task: Any, cs: Callstream, models: Models) -> None:
    heard = Heard()
    cs.on_tool_progress = heard.handler
    name = task.__name__
    script = [[ToolCall(name, {"query": "moon"}), Finish()], [Text("Done."), Finish()]]
    async with scripted("gemini", script) as provider:
        host = Host(cs, agent_of(models(provider, path), task))
        events = await host.run()
        requests = "".join(request.body.decode() for request in provider.requests)
    (call,) = await host.calls()
    assert heard.reports == [(name, call.call_id, ONE), (name, call.call_id, TWO)]
    assert "progress_callback" not in requests
    assert "Step" not in requests
    whole = {"result": [FOUND, RESULT]} if task is long_running_stream else RESULT
    assert responses_in(events) == [(call.call_id, whole)]


async def test_the_handler_may_take_keywords_only(cs: Callstream, models: Models) -> None:
    reports: list[Any] = []

    async def handler(*, tool_name: str, function_call_id: str, data: Any) -> None:
        reports.append((tool_name, data))

    cs.on_tool_progress = handler  # type: ignore[assignment]
    script = [[ToolCall("long_running_task", {"query": "moon"}), Finish()], [Text("Done."), Finish()]]
    async with scripted("gemini", script) as provider:
        await Host(cs, agent_of(models(provider), long_running_task)).run()
    assert reports == [("long_running_task", ONE), ("long_running_task", TWO)]


@pytest.mark.parametrize("task", TASKS, ids=[task.__name__ for task in TASKS])
async def test_every_report_reaches_the_handler_in_live_mode(task: Any, line: Line) -> None:
    heard = Heard()
    line.cs.on_tool_progress = heard.handler
    name = task.__name__
    answers: list[Any] = [[*text("Done."), COMPLETE]]
    if task is long_running_stream:
        answers = [[], [], *answers]  # pending, and two values
    async with line.provider([[calls(asked(name, "fc-1", query="moon"))], *answers]) as provider:
        host = Host(line.cs, agent_of(line.model(provider), task))
        await line.talk(host, "Go")
    assert heard.reports == [(name, "fc-1", ONE), (name, "fc-1", TWO)]
    assert "progress_callback" not in str(provider.setups)
    assert "Step" not in str(provider.received)
    sent = [result["response"] for result in provider.results]
    assert RESULT in sent
    assert (FOUND in sent) is (task is long_running_stream)
