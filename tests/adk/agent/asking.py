"""Agents that ask, and how a client answers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi.openapi.models import APIKey, APIKeyIn
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.request_input import RequestInput
from google.adk.tools import FunctionTool, ToolContext
from google.adk.workflow import START, Workflow

from callstream.testing import Finish, Text

from .clients import Client

ASKED = [Text("A manager is asked."), Finish()]
"""What the model says to what a tool returns beside its question. A resumable app does not ask the model then."""
COLOR = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}


class Painting:
    """A workflow that asks a person, and what came of it."""

    def __init__(self, **asked: Any) -> None:
        self.painted: list[Any] = []

        def ask(node_input: Any) -> RequestInput:
            return RequestInput(**{"message": "Which color?", "payload": {"choices": ["red"]}, **asked})

        def paint(node_input: Any) -> str:
            self.painted.append(node_input)
            return "painted"

        self.workflow = Workflow(name="painting", edges=[(START, ask, paint)])


class Remover:
    """A tool that a person has to confirm, and what it removed."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        def remove(path: str) -> str:
            """Removes."""
            self.ran.append(path)
            return "removed"

        self.tool = FunctionTool(remove, require_confirmation=True)


class TimeOff:
    """A tool that asks with a hint and a payload, and what it was told."""

    def __init__(self) -> None:
        self.confirmed: list[Any] = []

    def tool(self) -> Callable[..., dict[str, Any]]:
        def time_off(days: int, tool_context: ToolContext) -> dict[str, Any]:
            """Requests time off."""
            confirmation = tool_context.tool_confirmation
            if confirmation is None:
                tool_context.request_confirmation(hint="How many days are fine?", payload={"approved_days": 0})
                return {"status": "a manager is asked"}
            self.confirmed.append((confirmation.confirmed, confirmation.payload))
            return {"approved": confirmation.payload["approved_days"] if confirmation.confirmed else 0}

        return time_off


API_KEY = AuthConfig(
    auth_scheme=APIKey(**{"in": APIKeyIn.header, "name": "X-Key"}),
    raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY),
    credential_key="key",
)


def asked_in(client: Client, *, interrupts: bool) -> dict[str, Any]:
    """The one question of the last run: its call, and the interrupt if there are such."""
    assert client.ended is not None
    outcome = client.ended["outcome"]
    if interrupts:
        (interrupt,) = outcome["interrupts"]
        return {"interrupt": interrupt, **next(call for call in client.calls() if call["id"] == interrupt["id"])}
    (pending,) = outcome["pendingToolCallIds"]
    return next(call for call in client.calls() if call["id"] == pending)


async def reply(client: Client, call_id: str, value: Any, *, interrupts: bool) -> list[dict[str, Any]]:
    if interrupts:
        return await client.run(resume=[{"interruptId": call_id, "status": "resolved", "payload": value}])
    return await client.answer({call_id: value})
