"""Runs of a server that the command has started."""

from __future__ import annotations

import json
from typing import Any

import httpx

from .commands import PATIENCE, Server

APPROVING = '''
from google.adk.agents import Agent
from google.adk.tools import LongRunningFunctionTool

def approve(what: str) -> None:
    """Asks a person."""

root_agent = Agent(name="asker", model="gemini-2.5-flash", tools=[LongRunningFunctionTool(approve)])
'''


def asked(server: Server, said: str = "Weather?", thread: str = "t1", run: str = "r1", **headers: str) -> list[Any]:
    """The AG-UI events of a run."""
    given = {
        "threadId": thread,
        "runId": run,
        "messages": [{"id": f"m-{run}", "role": "user", "content": said}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }
    answer = httpx.post(f"{server.url}/agui", json=given, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
