"""A tool that is not async reports its progress while it works, not after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool

from callstream import Callstream, Progress, no_progress, tool
from callstream.adk.tools import with_progress
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall

from .hosting import PATHS, Host, Models, agent_of, scripted

PATIENCE = 20.0
"""Seconds until a tool gives up waiting for its report to be heard."""


class Kit(BaseToolset):
    def __init__(self, *tools: Any) -> None:
        super().__init__()
        self._tools = [FunctionTool(each) for each in tools]

    async def get_tools(self, readonly_context: Any = None) -> Any:
        return self._tools


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "tool": lambda made, plain: made,
    "function tool": lambda made, plain: FunctionTool(made),
    "long-running": lambda made, plain: LongRunningFunctionTool(made),
    "toolset": lambda made, plain: Kit(made),
    "plain": lambda made, plain: plain,
    "plain function tool": lambda made, plain: FunctionTool(plain),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("way", WAYS)
async def test_a_report_is_heard_while_a_sync_tool_works(way: str, path: str, cs: Callstream, models: Models) -> None:
    heard = threading.Event()
    in_time: list[bool] = []
    cs.on_tool_progress = lambda name, call_id, data: heard.set()

    def work(steps: int, report: Any) -> dict[str, int]:
        report(1, steps)
        in_time.append(heard.wait(PATIENCE))
        return {"steps": steps}

    @tool
    def count(steps: int, progress: Progress = no_progress) -> dict[str, int]:
        """Counts."""
        return work(steps, progress)

    def plain(steps: int, progress_callback: Any = None) -> dict[str, int]:
        """Counts."""
        return work(steps, progress_callback)

    plain.__name__ = "count"
    script = [[ToolCall("count", {"steps": 3}), Finish()], [Text("Done."), Finish()]]
    async with scripted("gemini", script) as provider:
        host = Host(cs, agent_of(models(provider, path), WAYS[way](count, plain)))
        await host.run()
        assert "progress" not in provider.requests[0].body.decode()
    assert in_time == [True]
    [call] = await host.calls()
    assert call.state is (CallState.AWAITING if way == "long-running" else CallState.COMPLETED)
    assert call.args == {"steps": 3}


async def test_a_sync_tool_that_raises_stop_iteration_fails() -> None:
    def find(name: str, progress: Progress = no_progress) -> str:
        progress("looking")
        return next(each for each in () if each == name)

    made = with_progress(find)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await made.func(name="x")
