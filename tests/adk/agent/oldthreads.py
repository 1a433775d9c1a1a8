"""Threads that ag_ui_adk 0.11.0 began and left with something pending, recorded with ag_ui_adk itself.

``threads/*.json`` was written by ``.venv-ag-ui-adk/bin/python -m tests.adk.agent.oldthreads`` (``make
.venv-ag-ui-adk/.installed`` makes that environment). Each has the session as google-adk keeps it, the messages as the
client has them, and the ids of the calls that the client knows, in order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent / "threads"
PAINT = {
    "name": "paint",
    "description": "Paints.",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
}


class OldThread(msgspec.Struct, frozen=True):
    session: dict[str, Any]
    messages: list[dict[str, Any]]
    calls: list[str]
    tools: list[dict[str, Any]]


def old_thread(name: str) -> OldThread:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=OldThread)


def approve(plan: str) -> None:
    """Asks a person."""


def write_document(document: str) -> str:
    """Writes."""
    return "written"


def delete(path: str) -> str:
    """Deletes."""
    return f"deleted {path}"


def remove_tool() -> Any:
    """A tool that asks from within, with google-adk's ``request_confirmation``."""
    from google.adk.tools import FunctionTool, ToolContext

    def remove(path: str, tool_context: ToolContext) -> dict[str, str]:
        """Removes."""
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint="Remove it?")
            return {"status": "a person is asked"}
        return {"status": "removed" if tool_context.tool_confirmation.confirmed else "kept"}

    remove.__annotations__["tool_context"] = ToolContext  # google-adk looks for the name in the module otherwise
    return FunctionTool(remove)


# -- recording --


class _Recording:
    """A client that keeps messages as AG-UI says, and an agent of ag_ui_adk behind it."""

    def __init__(self, agent: Any, tools: Sequence[dict[str, Any]] = ()) -> None:
        self._agent = agent
        self._tools = list(tools)
        self._state: Any = {}
        self._runs = 0
        self.messages: list[dict[str, Any]] = []
        self.calls: list[str] = []

    async def send(self, text: str) -> None:
        self.messages.append({"id": f"user-{len(self.messages)}", "role": "user", "content": text})
        await self._run()

    async def answer(self, call_id: str, content: str) -> None:
        message = {"id": f"tool-{len(self.messages)}", "role": "tool", "toolCallId": call_id, "content": content}
        self.messages.append(message)
        await self._run()

    async def _run(self) -> None:
        from ag_ui.core import RunAgentInput

        self._runs += 1
        given = {"threadId": "thread", "runId": f"run-{self._runs}", "messages": self.messages, "tools": self._tools}
        asked = RunAgentInput.model_validate({**given, "state": self._state, "context": [], "forwardedProps": {}})
        made: dict[str, dict[str, Any]] = {}
        async for event in self._agent.run(asked):
            self._take(event.model_dump(mode="json", by_alias=True), made)

    def _take(self, event: dict[str, Any], made: dict[str, dict[str, Any]]) -> None:
        match event["type"]:
            case "TEXT_MESSAGE_START":
                self.messages.append({"id": event["messageId"], "role": "assistant", "content": ""})
            case "TEXT_MESSAGE_CONTENT":
                self.messages[-1]["content"] += event["delta"]
            case "TOOL_CALL_START":
                call_id = event["toolCallId"]
                function = {"name": event["toolCallName"], "arguments": ""}
                made[call_id] = {"id": call_id, "type": "function", "function": function}
                self.calls.append(call_id)
                self.messages.append({"id": f"m-{call_id}", "role": "assistant", "toolCalls": [made[call_id]]})
            case "TOOL_CALL_ARGS":
                made[event["toolCallId"]]["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                result = {"id": event["messageId"], "role": "tool", "toolCallId": event["toolCallId"]}
                self.messages.append({**result, "content": event["content"]})
            case "STATE_SNAPSHOT":
                self._state = event["snapshot"]
            case "RUN_ERROR":
                raise RuntimeError(event["message"])


async def _record() -> None:
    from ag_ui_adk import ADKAgent, AGUIToolset, PredictStateMapping
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.apps.app import ResumabilityConfig
    from google.adk.models import Gemini
    from google.adk.sessions import InMemorySessionService
    from google.adk.tools import FunctionTool, LongRunningFunctionTool
    from google.genai import types

    from callstream.testing import Finish, Parallel, ScriptedProvider, Text, ToolCall

    end = [Text("Done."), Finish()]
    document = PredictStateMapping(state_key="document", tool="write_document", tool_argument="document")
    two = [Parallel([ToolCall("approve", {"plan": "a"}), ToolCall("approve", {"plan": "b"})]), Finish()]
    scenes: dict[str, tuple[list[Any], list[Any], bool, dict[str, Any]]] = {
        "client_tool": ([AGUIToolset()], [[ToolCall("paint", {"color": "red"}), Finish()]], False, {}),
        "client_tool_after_a_turn": (
            [AGUIToolset()],
            [end, [ToolCall("paint", {"color": "red"}), Finish()]],
            False,
            {},
        ),
        "one_of_two_answered": ([LongRunningFunctionTool(approve)], [two], True, {}),
        "confirm_changes": (
            [write_document],
            [[ToolCall("write_document", {"document": "A wave."}), Finish()], end],
            False,
            {"predict_state": [document]},
        ),
        "confirmation": (
            [FunctionTool(delete, require_confirmation=True)],
            [[ToolCall("delete", {"path": "a.txt"}), Finish()]],
            True,
            {},
        ),
        "confirmation_from_within": (
            [remove_tool()],
            [[ToolCall("remove", {"path": "a.txt"}), Finish()], end],
            False,
            {},
        ),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, (tools, script, resumable, options) in scenes.items():
        sessions = InMemorySessionService()
        async with ScriptedProvider("gemini", script) as provider:
            http = types.HttpOptions(base_url=provider.base_url)
            model = Gemini(model="gemini-2.5-flash", client_kwargs={"api_key": "none", "http_options": http})
            root = LlmAgent(name="writer", model=model, tools=tools)
            app = App(
                name="app",
                root_agent=root,
                resumability_config=ResumabilityConfig(is_resumable=True) if resumable else None,
            )
            agent = ADKAgent.from_app(app, user_id="user", session_service=sessions, **options)
            client = _Recording(agent, [PAINT] if name.startswith("client") else [])
            if name == "client_tool_after_a_turn":
                await client.send("Hello")
            await client.send("Go")
            if name == "one_of_two_answered":
                await client.answer(client.calls[0], '{"ok": 1}')
            listed = await sessions.list_sessions(app_name="app", user_id="user")
            session = await sessions.get_session(app_name="app", user_id="user", session_id=listed.sessions[0].id)
            assert session is not None
            kept = json.loads(session.model_dump_json(by_alias=True, exclude_none=True))
            made = OldThread(kept, client.messages, client.calls, [PAINT] if name.startswith("client") else [])
            (FOLDER / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
            await agent.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    asyncio.run(_record())
