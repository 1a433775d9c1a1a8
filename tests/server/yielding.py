"""Agents that yield AG-UI events."""

from __future__ import annotations

from typing import Any

from tests.agui.model import StrictClient

from .serving import Server

PICK = [{"name": "pick", "description": "", "parameters": {"type": "object"}}]


def call(call_id: str, name: str = "pick", args: str = '{"a":1}') -> list[dict[str, Any]]:
    return [
        {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name},
        {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": args},
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
    ]


async def ran(server: Server, text: str | None = "Go", **given: Any) -> list[dict[str, Any]]:
    async with server.run(text, **given) as stream:
        events = await stream.all()
    client = StrictClient()
    for event in events:
        client.take(event)
    assert not client.is_running
    return events
