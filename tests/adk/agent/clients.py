"""A client of an agent: it keeps messages and state as the rules say, and refuses every breach of protocol."""

from __future__ import annotations

import json
from typing import Any

from ag_ui.core import BaseEvent, RunAgentInput, Tool

from callstream.adk import ADKAgent
from tests.agui.model import StrictClient


class Client(StrictClient):
    """``send`` writes a message and runs the agent; ``answer`` answers calls and runs it."""

    def __init__(self, agent: ADKAgent, thread_id: str = "thread", tools: list[Tool] | None = None) -> None:
        super().__init__()
        self.agent = agent
        self.thread_id = thread_id
        self.tools = tools or []
        self.custom: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._number = 0

    async def send(self, text: Any = "Go", **given: Any) -> list[dict[str, Any]]:
        self.messages.append({"id": self._new_id("user"), "role": "user", "content": text})
        return await self.run(**given)

    async def answer(self, answers: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
        for call_id, content in answers.items():
            text = content if isinstance(content, str) else json.dumps(content)
            self.put_result({"id": self._new_id("tool"), "role": "tool", "toolCallId": call_id, "content": text})
        return await self.run(**given)

    async def run(self, **given: Any) -> list[dict[str, Any]]:
        self.events = [dumped(event) async for event in self.agent.run(self.input(**given))]
        for event in self.events:
            self.take(event)
        assert not self.is_running
        return self.events

    def input(self, **given: Any) -> RunAgentInput:
        made: dict[str, Any] = {
            "threadId": self.thread_id,
            "runId": self._new_id("run"),
            "protocolVersion": "1.0",
            "messages": [message for message in self.messages if message["role"] != "activity"],
            "tools": [tool.model_dump(by_alias=True) for tool in self.tools],
            "state": self.state,
            "context": [],
            "forwardedProps": {},
            **given,
        }
        return RunAgentInput.model_validate(json.loads(json.dumps(made)))

    def _new_id(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"

    def _custom(self, event: dict[str, Any]) -> None:
        self.custom.append(event)

    def _unanswered(self) -> list[str]:
        """A client that is asked to confirm what it predicted from a tool's arguments needs no result of the tool."""
        calls = {event["toolCallId"]: event["toolCallName"] for event in self.events if "toolCallName" in event}
        predicted = {
            mapping["tool"] for event in self.custom if event["name"] == "PredictState" for mapping in event["value"]
        }
        confirms = "confirm_changes" in calls.values()
        return [each for each in super()._unanswered() if not (confirms and calls[each] in predicted)]

    # -- what it saw --

    def calls(self) -> list[dict[str, Any]]:
        """The calls of the last run: id, name, joined arguments, result."""
        made: dict[str, dict[str, Any]] = {}
        for event in self.events:
            match event["type"]:
                case "TOOL_CALL_START":
                    made[event["toolCallId"]] = {"id": event["toolCallId"], "name": event["toolCallName"], "text": ""}
                case "TOOL_CALL_ARGS":
                    made[event["toolCallId"]]["text"] += event["delta"]
                case "TOOL_CALL_RESULT" if event["toolCallId"] in made:
                    made[event["toolCallId"]]["result"] = event["content"]
        return [{**call, "args": json.loads(call["text"])} for call in made.values()]

    def text(self) -> str:
        """What the model said in the last run."""
        return "".join(event["delta"] for event in self.events if event["type"] == "TEXT_MESSAGE_CONTENT")

    def pending(self) -> list[str]:
        assert self.ended is not None
        assert self.ended["outcome"]["type"] == "success"
        return list(self.ended["outcome"].get("pendingToolCallIds", ()))


def dumped(event: BaseEvent) -> dict[str, Any]:
    made: dict[str, Any] = event.model_dump(mode="json", by_alias=True)
    assert not event.model_extra
    return made


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]
