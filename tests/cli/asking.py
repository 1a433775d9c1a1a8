"""Runs of a server that the command has started."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def asked(
    server: Server,
    said: str = "Weather?",
    thread: str = "t1",
    run: str = "r1",
    seen: Callable[[Any], None] = lambda event: None,
    **headers: str,
) -> list[Any]:
    """The AG-UI events of a run; each is ``seen`` when it comes."""
    given = {
        "threadId": thread,
        "runId": run,
        "messages": [{"id": f"m-{run}", "role": "user", "content": said}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }
    events: list[Any] = []
    with httpx.stream("POST", f"{server.url}/agui", json=given, headers=headers, timeout=PATIENCE) as answer:
        if answer.status_code != 200:
            answer.read()
            raise AssertionError(answer.text)
        for line in answer.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
                seen(events[-1])
    return events
