"""Tools of MCP servers: their calls are live like others, and their progress arrives on the same channel."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="google-adk reaches MCP servers through the package mcp")

with warnings.catch_warnings():
    # google-adk 2.12 says here that it makes use of a feature of its own.
    warnings.filterwarnings("ignore", r"\[EXPERIMENTAL\]")
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from mcp import StdioServerParameters

from callstream import Callstream
from callstream.adk import mcp_progress
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall

from .hosting import PATHS, Host, Models, agent_of, scripted, text_of


@pytest.mark.subprocess
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:MCPTool class is deprecated")
@pytest.mark.parametrize("path", PATHS)
async def test_progress_out_of_band_from_an_mcp_server(path: str, cs: Callstream, models: Models) -> None:
    reported: list[Any] = []
    cs.on_tool_progress = lambda name, call_id, data: reported.append((name, data))
    script = Path(__file__).parent / "mcpserver.py"
    server = StdioServerParameters(command=sys.executable, args=[str(script)])
    tools = McpToolset(
        connection_params=StdioConnectionParams(server_params=server, timeout=30), progress_callback=mcp_progress
    )
    try:
        async with scripted(
            "gemini", [[ToolCall("count", {"upto": 3}), Finish()], [Text("Done."), Finish()]]
        ) as provider:
            host = Host(cs, agent_of(models(provider, path), tools))
            assert "Done." in text_of(await host.run())
            assert "at 3" not in provider.requests[1].body.decode()
    finally:
        await tools.close()
    (call,) = await host.calls()
    assert (call.name, call.state, call.args) == ("count", CallState.COMPLETED, {"upto": 3})
    assert reported[-1] == ("count", {"done": 3.0, "total": 3.0, "message": "at 3"})
