"""An MCP server: a tool that reports its progress, and one that waits for a file: ``python mcpserver.py``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("counting")


@server.tool()
async def count(upto: int, ctx: Context) -> str:
    """Counts."""
    for number in range(1, upto + 1):
        await ctx.report_progress(number, upto, f"at {number}")
    return f"counted to {upto}"


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
async def look(folder: str) -> str:
    """Looks into a folder, when there is a file ``ready``; each time it begins is a line in ``began``."""
    place = Path(folder)
    await asyncio.to_thread(_add_line, place / "began")
    while not (place / "ready").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return "all is there"


def _add_line(path: Path) -> None:
    with path.open("a") as file:
        file.write("began\n")


if __name__ == "__main__":
    server.run("stdio")
