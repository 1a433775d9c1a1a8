"""A server with an agent of google-adk, its sessions in SQLite or PostgreSQL, and what is left of its work."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiosqlite
import asyncpg
import httpx
import msgspec
from google.adk.agents import LlmAgent
from google.adk.artifacts import FileArtifactService
from google.adk.models import Gemini
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from google.genai import types
from mcp import StdioServerParameters

from callstream import Callstream, open_journal
from callstream.adk import ADKAgent
from callstream.journal import Housekeeping
from callstream.server import ServerSettings
from tests.server.serving import Server, served

ROOT = Path(__file__).parents[3]
MCP_SERVER = ROOT / "tests" / "adk" / "mcpserver.py"
_SETTLE_SECONDS = 20.0


class Stage(msgspec.Struct):
    """What the players use. ``before``: the tasks that there were before anything was stopped."""

    server: Server
    agent: ADKAgent
    callstream: Callstream
    sessions: Any
    place: str
    """The SQLite file, or the URL of PostgreSQL."""
    before: set[str]

    async def failures(self) -> list[str]:
        """Why runs failed."""
        return [
            f"{row.run_id}: {row.reason}" for row in await self.callstream.journal.runs() if row.outcome == "failed"
        ]

    async def left(self) -> dict[str, int]:
        """Locks, cursors and tasks that nobody needs any more, once everything has come to rest."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _SETTLE_SECONDS
        while True:
            gc.collect()
            found = {"locks": await self._locks(), "cursors": self._cursors(), "tasks": len(self.other_tasks())}
            if not any(found.values()) or loop.time() > until:
                return found
            await asyncio.sleep(0.2)

    async def _locks(self) -> int:
        if isinstance(self.sessions, SqliteSessionService):
            connection = sqlite3.connect(self.place, timeout=0, isolation_level=None)
            try:
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return 1
            finally:
                connection.close()
            return 0
        connection = await asyncpg.connect(self.place)
        try:
            return int(
                await connection.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
                    " AND (xact_start IS NOT NULL OR state LIKE 'idle in transaction%')"
                )
            )
        finally:
            await connection.close()

    def _cursors(self) -> int:
        """Of google-adk's sessions: cursors and connections of SQLite, or connections that are not back in their pool."""
        if isinstance(self.sessions, SqliteSessionService):
            return sum(isinstance(each, aiosqlite.Cursor | aiosqlite.Connection) for each in gc.get_objects())
        return int(self.sessions.db_engine.pool.checkedout())

    def other_tasks(self) -> list[str]:
        """Tasks that were not there before: runs, stops, calls of services, streams of clients."""
        return [name for name in map(_describe, asyncio.all_tasks()) if name not in self.before]

    def figures(self) -> tuple[float, int]:
        """Resident memory in MB, and open file descriptors."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir("/proc/self/fd"))


def _describe(task: asyncio.Task[Any]) -> str:
    """The name of a task that has one, else its coroutine's."""
    coroutine = task.get_coro()
    named = getattr(coroutine, "__qualname__", repr(coroutine))
    return named if task.get_name().startswith("Task-") else f"{task.get_name()} ({named})"


def _agent(provider: str, tools: McpToolset) -> LlmAgent:
    async def work(label: str, tool_context: ToolContext) -> str:
        """Works."""
        await tool_context.save_artifact("work.txt", types.Part(text=label))
        await asyncio.sleep(0.03)
        tool_context.state["worked"] = label
        return "worked"

    def approve(what: str) -> None:
        """Asks a person."""

    options = types.HttpOptions(base_url=provider, retry_options=types.HttpRetryOptions(attempts=1))
    model = Gemini(model="gemini-2.5-flash", client_kwargs={"api_key": "none", "http_options": options})
    return LlmAgent(name="worker", model=model, tools=[work, LongRunningFunctionTool(approve), tools])


@contextmanager
def _provider() -> Iterator[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.server.stops.provider"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


@asynccontextmanager
async def stage(kind: str, folder: Path, postgres: str) -> AsyncIterator[Stage]:
    """``kind``: "sqlite" or "postgres", for sessions and journal. ``postgres``: the URL of a server."""
    if kind == "sqlite":
        place, journal = str(folder / "sessions.db"), f"sqlite:///{folder}/calls.db"
        sessions: Any = SqliteSessionService(place)
    else:
        place = journal = postgres
        uri = urlsplit(postgres)
        host = parse_qs(uri.query).get("host", [uri.hostname or ""])[0]
        url = f"postgresql+asyncpg://{uri.username}@/{uri.path.lstrip('/')}?host={host}"
        given = {"connect_args": {"password": uri.password}} if uri.password else {}
        sessions = DatabaseSessionService(url, pool_size=10, max_overflow=10, pool_timeout=60, **given)
    parameters = StdioServerParameters(command=sys.executable, args=[str(MCP_SERVER)])
    tools = McpToolset(connection_params=StdioConnectionParams(server_params=parameters, timeout=60))
    with _provider() as provider:
        callstream = Callstream(open_journal(journal, housekeeping=Housekeeping(compact_after=10.0)))
        agent = ADKAgent(
            _agent(provider, tools),
            app_name="stops",
            user_id="somebody",
            callstream=callstream,
            session_service=sessions,
            artifact_service=FileArtifactService(root_dir=folder / "artifacts"),
            max_concurrent_executions=100,
        )
        settings = ServerSettings(on_disconnect="stop", disconnect_grace=0.0, busy_wait=20.0, max_runs=None)
        # The server closes idle connections after 5 s, as httpx does: one of them must not be used in that very moment.
        limits = httpx.Limits(keepalive_expiry=2)
        async with (
            served(agent, settings=settings) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30, limits=limits) as server.client,
        ):
            made = Stage(server, agent, callstream, sessions, place, set())
            for text in ("work", "count", "hello"):  # opens what stays open
                async with server.run(text, thread="first") as stream:
                    events = await stream.all()
                assert events[-1]["type"] == "RUN_FINISHED", events[-1]
            made.before = set(map(_describe, asyncio.all_tasks()))
            yield made
        await agent.close()
        await callstream.aclose()
        if kind != "sqlite":
            await sessions.close()
