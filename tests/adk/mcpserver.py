"""An MCP server with one tool that reports its progress: ``python mcpserver.py``."""

from __future__ import annotations

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("counting")


@server.tool()
async def count(upto: int, ctx: Context) -> str:
    """Counts."""
    for number in range(1, upto + 1):
        await ctx.report_progress(number, upto, f"at {number}")
    return f"counted to {upto}"


if __name__ == "__main__":
    server.run("stdio")
