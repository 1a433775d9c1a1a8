"""An MCP server that outlives the servers: what it writes is noted in the same log."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer


@contextmanager
def mcp_server(log: Path) -> Iterator[str]:
    """Its address."""
    made = MCPServer("writing", log_level="ERROR")

    def note(at: str, label: str) -> None:
        with log.open("a") as file:
            file.write(json.dumps({"did": "write", "at": at, "label": label, "key": None}) + "\n")

    @made.tool(name="first_write")
    async def write(label: str, body: str) -> str:
        """Writes something that must not be written twice."""
        note("start", label)
        await asyncio.sleep(0.4)
        note("end", label)
        return f"write {label}"

    listening = socket.create_server(("127.0.0.1", 0))
    app = made.streamable_http_app(stateless_http=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
