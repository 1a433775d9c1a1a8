"""A process that dies in the middle of arguments: ``python -m tests.adk.crashing URL FOLDER PATH [LEASE]``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.adk.models import Gemini
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from callstream import Call, Callstream, FieldDelta, open_journal, tool
from callstream.adk import tapped

from .hosting import Host, agent_of

LEASE = 0.5

undone: list[tuple[str | None, str]] = []


@tool
async def write(content: str) -> str:
    """Writes."""
    return "ok"


@write.on_field("content")
async def grow(field: FieldDelta, signal_: Any) -> None:
    if "moon" in field.value and len(sys.argv) > 3:
        os.kill(os.getpid(), signal.SIGKILL)


@write.on_args_abort
async def undo(call: Call, reason: str) -> None:
    undone.append((call.args_json, reason))


@asynccontextmanager
async def host_of(cs: Callstream, base_url: str, folder: str, path: str) -> AsyncIterator[Host]:
    options = types.HttpOptions(base_url=base_url)
    model = Gemini(model="gemini-3-flash-preview", client_kwargs={"api_key": "none", "http_options": options})
    agent = agent_of(tapped(model, cs) if path == "tap" else model, write)
    try:
        yield Host(cs, agent, sessions=SqliteSessionService(f"{folder}/sessions.db"))
    finally:
        await model.api_client.aio.aclose()  # google-adk leaves its clients open


async def main(base_url: str, folder: str, path: str, lease: str = str(LEASE)) -> None:
    async with Callstream(open_journal(f"sqlite:///{folder}/calls.db", lease_ttl=float(lease))) as cs:
        async with host_of(cs, base_url, folder, path) as host:
            await host.run("one")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
