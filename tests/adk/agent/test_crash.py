"""A process dies in the middle of arguments; an agent in another one goes on with the thread."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from google.adk.models import Gemini
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from callstream import Callstream
from callstream.calls import CallState
from tests.adk import crashing
from tests.adk.hosting import agent_of, scripted
from tests.adk.test_crash import AGAIN, END, STALLED

from .agents import adk_agent
from .clients import Client


@pytest.mark.slow
@pytest.mark.subprocess
async def test_crash_in_the_middle_of_arguments_of_an_agent(tmp_path: Path) -> None:
    crashing.undone.clear()
    async with scripted("gemini", [STALLED, AGAIN, END]) as provider:
        arguments = ["-m", "tests.adk.crashing", provider.base_url, str(tmp_path), "tap"]
        process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", *arguments)
        assert await asyncio.wait_for(process.wait(), 240) == -signal.SIGKILL
        await asyncio.sleep(crashing.LEASE + 0.2)  # the dead process owns its run that long
        async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
            options = types.HttpOptions(base_url=provider.base_url)
            model = Gemini(model="gemini-3-flash-preview", client_kwargs={"api_key": "none", "http_options": options})
            sessions = SqliteSessionService(f"{tmp_path}/sessions.db")
            client = Client(adk_agent(cs, agent_of(model, crashing.write), session_service=sessions), "session")
            await client.send("two")
            assert "Done." in client.text()
            calls = await cs.journal.calls()
    assert [reason for _, reason in crashing.undone] == ["interrupted"]
    assert [call.state for call in calls] == [CallState.DISCARDED, CallState.COMPLETED]
