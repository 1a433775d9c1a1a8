"""A second client, written from the rules alone, and stricter than the official one.

It takes AG-UI events as JSON objects, refuses every breach of protocol, and folds what it took. Of what it tests it
uses the patches of state alone, which the official client judges by themselves.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any

from ag_ui.core import Event
from pydantic import BaseModel, TypeAdapter

from callstream.agui import AguiEvent, encode
from callstream.errors import UsageError
from callstream.jsontext.patch import apply_patch

_EVENT: TypeAdapter[Any] = TypeAdapter(Event)
_QUESTIONS = ("adk_request_confirmation", "adk_request_credential", "adk_request_input")


def as_json(event: AguiEvent) -> dict[str, Any]:
    """The event as the official Python models read it; they must know every field, and write it back the same."""
    read = _EVENT.validate_json(encode(event))
    unknown = list(_unknown(read))
    assert not unknown, f"AG-UI 1.0 has no {unknown} in {encode(event)!r}"
    raw: dict[str, Any] = json.loads(encode(event))
    assert json.loads(_EVENT.dump_json(read, by_alias=True)) == raw
    return raw


def _unknown(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from (f"{type(value).__name__}.{name}" for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from _unknown(item)


class StrictClient:
    """What a client knows after a stream. ``messages`` are those it has before."""

    def __init__(self, messages: list[dict[str, Any]] | None = None) -> None:
        self.messages = copy.deepcopy(messages or [])
        self.state: Any = {}
        self.open: dict[tuple[str, str], int] = {}
        self.ended: dict[str, Any] | None = None
        self.started: list[str] = []
        self.answered: list[str] = []
        self.is_running = False
        self.seq = 0
        self.snapshots = 0
        self.void: set[tuple[str, str]] = set()
        """What was being written when a snapshot took it away: it may end, and nothing else."""
        self.agents: dict[str, dict[str, Any]] = {}
        """The SUBAGENT_STARTED of those that are at work."""
        self._completes_snapshot = False
        """Whether results belong to the snapshot that came just before: they, as its messages, may be of agents that are
        not at work, for no run announces those of earlier runs again."""
        self._naming: str | None = None
        """The message that has a name and no text, until its first call comes."""

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert not kind.endswith("_CHUNK")
        told_again = kind == "TOOL_CALL_RESULT" and self.snapshots > 0
        assert (told_again and "metadata" not in event) or isinstance(event["metadata"]["seq"], int)
        if self.is_running:
            assert kind != "RUN_STARTED", "a run within a run"
        else:
            assert kind in ("RUN_STARTED", "RUN_ERROR"), f"{kind} outside of a run"
        if self._naming is not None and kind != "CUSTOM":
            assert (kind, event.get("parentMessageId")) == ("TOOL_CALL_START", self._naming), "a name for nothing"
            self._naming = None
        self._completes_snapshot &= kind == "TOOL_CALL_RESULT"
        if not kind.startswith("SUBAGENT_"):
            at_work = {None, *self.agents, *(self._owner_agent(event) if self._completes_snapshot else ())}
            assert event.get("subagentRunId") in at_work, f"{kind} of an agent that is not at work"
        getattr(self, f"_{kind.lower()}")(event)

    # -- runs --

    def _run_started(self, event: dict[str, Any]) -> None:
        self.is_running = True
        self.ended = None
        self.started, self.answered = [], []
        self.agents = {}

    # -- agents that tools run --

    def _subagent_started(self, event: dict[str, Any]) -> None:
        assert event["subagentRunId"] not in self.agents, "an agent that is at work already"
        assert event["name"]
        owner = next(m for m in self.messages for c in m.get("toolCalls", ()) if c["id"] == event["parentToolCallId"])
        assert event.get("parentMessageId") in (None, owner["id"])
        assert event.get("parentSubagentRunId") == owner.get("subagentRunId") or "parentMessageId" not in event
        self.agents[event["subagentRunId"]] = event

    def _subagent_finished(self, event: dict[str, Any]) -> None:
        assert self.agents.pop(event["subagentRunId"], None) is not None, "an agent that is not at work"

    def _subagent_error(self, event: dict[str, Any]) -> None:
        assert event["message"]
        self._subagent_finished(event)

    def _owner_agent(self, result: dict[str, Any]) -> set[str | None]:
        """The agent whose message has the call of a result."""
        calls = ((message, call["id"]) for message in self.messages for call in message.get("toolCalls", ()))
        return {message.get("subagentRunId") for message, call_id in calls if call_id == result["toolCallId"]}

    # -- the end of runs --

    def _run_finished(self, event: dict[str, Any]) -> None:
        assert self.agents == {}, "agents at work when the run ends"
        self._end(event)
        outcome = event["outcome"]
        left = self._unanswered()
        match outcome["type"]:
            case "success":
                named = outcome.get("pendingToolCallIds")
                assert named is None or named != []
                assert self.snapshots or (named or []) == left, "the named list must agree with the stream"
            case "interrupt":
                assert outcome["interrupts"]
                asked = [interrupt["toolCallId"] for interrupt in outcome["interrupts"]]
                assert self.snapshots or set(asked) <= set(left)
            case other:
                assert other == "cancelled"

    def _unanswered(self) -> list[str]:
        return [call_id for call_id in self.started if call_id not in {*self.answered, *self._asked_about()}]

    def _asked_about(self) -> set[str]:
        """Calls that nobody is to answer, because google-adk asks about them in calls of its own."""
        calls = [call for message in self.messages for call in message.get("toolCalls") or ()]
        asked = [json.loads(each["function"]["arguments"]) for each in calls if each["function"]["name"] in _QUESTIONS]
        return {args.get("originalFunctionCall", {}).get("id") or args.get("functionCallId") for args in asked}

    def _run_error(self, event: dict[str, Any]) -> None:
        self._end(event)

    def _end(self, event: dict[str, Any]) -> None:
        assert self.open == {}, f"left open at {event['type']}: {self.open}"
        self.is_running = False
        self.ended = event

    # -- text and reasoning --

    def _start(self, kind: str, name: str) -> None:
        assert (kind, name) not in self.open, f"{kind} {name} opened twice"
        self.open[kind, name] = 0

    def _goes_on(self, kind: str, name: str) -> None:
        assert (kind, name) in self.open, f"{kind} {name} is not open"
        assert (kind, name) not in self.void, f"{kind} {name} is void"
        self.open[kind, name] += 1

    def _finish(self, kind: str, name: str) -> bool:
        """Returns whether it is still there."""
        written = self.open.pop((kind, name), None)
        assert written is not None, f"{kind} {name} is not open"
        if (kind, name) in self.void:
            self.void.discard((kind, name))
            return False
        if kind == "text" and not written and "name" in self._message(name, "assistant"):
            self._naming = name
            return True
        assert written or self.snapshots or kind == "span", f"{kind} {name} was opened for nothing"
        return True

    def _message(
        self, message_id: str, role: str, event: dict[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        if event is not None and "subagentRunId" in event:
            fields["subagentRunId"] = event["subagentRunId"]
        for message in self.messages:
            if message["id"] == message_id:
                assert message["role"] == role
                if event is not None:
                    assert message.get("subagentRunId") == event.get("subagentRunId"), "another agent's message"
                return message
        self.messages.append({"id": message_id, "role": role, **fields})
        return self.messages[-1]

    def _text_message_start(self, event: dict[str, Any]) -> None:
        self._start("text", event["messageId"])
        named = {"name": event["name"]} if event.get("name") is not None else {}
        self._mark(self._message(event["messageId"], event["role"], event, content="", **named), event)

    def _text_message_content(self, event: dict[str, Any]) -> None:
        self._goes_on("text", event["messageId"])
        self._append(self._message(event["messageId"], "assistant", event), event)

    def _text_message_end(self, event: dict[str, Any]) -> None:
        if self._finish("text", event["messageId"]):
            self._mark(self._message(event["messageId"], "assistant", event), event)

    def _reasoning_start(self, event: dict[str, Any]) -> None:
        self._start("span", event["messageId"])

    def _reasoning_message_start(self, event: dict[str, Any]) -> None:
        assert ("span", event["messageId"]) in self.open
        self._start("reasoning", event["messageId"])
        self._mark(self._message(event["messageId"], "reasoning", event, content=""), event)

    def _reasoning_message_content(self, event: dict[str, Any]) -> None:
        self._goes_on("reasoning", event["messageId"])
        self._append(self._message(event["messageId"], "reasoning", event), event)

    def _reasoning_message_end(self, event: dict[str, Any]) -> None:
        if self._finish("reasoning", event["messageId"]):
            self._mark(self._message(event["messageId"], "reasoning", event), event)

    def _reasoning_end(self, event: dict[str, Any]) -> None:
        assert ("reasoning", event["messageId"]) not in self.open
        self._finish("span", event["messageId"])

    def _append(self, message: dict[str, Any], event: dict[str, Any]) -> None:
        assert event["delta"]
        message["content"] = message.get("content", "") + event["delta"]
        self._mark(message, event)

    def _mark(self, target: dict[str, Any], event: dict[str, Any]) -> None:
        target["metadata"] = {**target.get("metadata", {}), **event["metadata"]}

    # -- calls --

    def call(self, call_id: str) -> dict[str, Any] | None:
        found = [call for message in self.messages for call in message.get("toolCalls", ()) if call["id"] == call_id]
        assert len(found) <= 1, f"call {call_id} is there twice"
        return found[0] if found else None

    def _tool_call_start(self, event: dict[str, Any]) -> None:
        call_id = event["toolCallId"]
        self._start("call", call_id)
        self.started.append(call_id)
        call = self.call(call_id)
        if call is None:
            function = {"name": event["toolCallName"], "arguments": ""}
            call = {"id": call_id, "type": "function", "function": function}
            self._message(event["parentMessageId"], "assistant", event).setdefault("toolCalls", []).append(call)
        else:
            assert self.snapshots, f"call {call_id} started again"
        assert call["function"]["name"] == event["toolCallName"]
        self._mark(call, event)

    def _tool_call_args(self, event: dict[str, Any]) -> None:
        self._goes_on("call", event["toolCallId"])
        assert event["delta"]
        call = self.call(event["toolCallId"])
        assert call is not None
        call["function"]["arguments"] += event["delta"]
        self._mark(call, event)

    def _tool_call_end(self, event: dict[str, Any]) -> None:
        assert self.open.pop(("call", event["toolCallId"]), None) is not None, "END without START"
        call = self.call(event["toolCallId"])
        if ("call", event["toolCallId"]) in self.void:
            self.void.discard(("call", event["toolCallId"]))
            assert call is None
            return
        assert call is not None
        self._mark(call, event)

    def _tool_call_result(self, event: dict[str, Any]) -> None:
        call_id = event["toolCallId"]
        assert ("call", call_id) not in self.open, "a result before END"
        assert self.call(call_id) is not None, "a result of an unknown call"
        assert all(message.get("toolCallId") != call_id for message in self.messages), "a second result"
        assert all(message["id"] != event["messageId"] for message in self.messages), "an id used twice"
        self.answered.append(call_id)
        names = ("toolCallId", "content", "metadata", "subagentRunId")
        fields = {name: event[name] for name in names if name in event}
        self.put_result({"id": event["messageId"], "role": "tool", **fields})

    def put_result(self, result: dict[str, Any]) -> None:
        owners = [
            index
            for index, message in enumerate(self.messages)
            if any(call["id"] == result["toolCallId"] for call in message.get("toolCalls", ()))
        ]
        place = owners[0] + 1
        while place < len(self.messages) and self.messages[place]["role"] == "tool":
            place += 1
        self.messages.insert(place, result)

    def _reasoning_encrypted_value(self, event: dict[str, Any]) -> None:
        assert event["subtype"] == "tool-call"
        call = self.call(event["entityId"])
        assert call is not None, "an encrypted value before its call would be lost"
        call["encryptedValue"] = event["encryptedValue"]

    def _activity_snapshot(self, event: dict[str, Any]) -> None:
        message = self._message(event["messageId"], "activity", event)
        message |= {"activityType": event["activityType"], "content": copy.deepcopy(event["content"])}
        self._mark(message, event)

    # -- state and snapshots --

    def _state_snapshot(self, event: dict[str, Any]) -> None:
        self.state = copy.deepcopy(event["snapshot"])

    def _state_delta(self, event: dict[str, Any]) -> None:
        try:
            self.state = apply_patch(self.state, event["delta"])
        except UsageError:
            pass

    def _messages_snapshot(self, event: dict[str, Any]) -> None:
        self.snapshots += 1
        self._completes_snapshot = True
        told = {message["id"]: copy.deepcopy(message) for message in event["messages"]}
        assert len(told) == len(event["messages"]), "an id used twice"
        owned = event["metadata"]["@ag-ui/client"]["authoritativeActivityTypes"]
        tells_reasoning = any(message["role"] == "reasoning" for message in event["messages"])
        kept = [
            told.pop(message["id"], message)
            for message in self.messages
            if message["id"] in told
            or (message["role"] == "activity" and message["activityType"] not in owned)
            or (message["role"] == "reasoning" and not tells_reasoning)
        ]
        self.messages = [*kept, *told.values()]
        there = {message["id"] for message in self.messages}
        there |= {call["id"] for message in self.messages for call in message.get("toolCalls", ())}
        # Reasoning that is void is there without its text, if there is no other.
        thoughts = {message["id"] for message in self.messages if message.get("content")}
        self.void = {
            (kind, name)
            for kind, name in self.open
            if name not in there or (kind in ("reasoning", "span") and name not in thoughts)
        }


def brings(client: StrictClient, messages: Iterable[dict[str, Any]]) -> StrictClient:
    """The client after it has written these messages itself."""
    for message in messages:
        if message["role"] == "tool":
            client.put_result(dict(message))
        else:
            client.messages.append(dict(message))
    return client


def fold(events: Iterable[AguiEvent], client: StrictClient | None = None) -> StrictClient:
    """The client after the events, each of which it has checked."""
    client = client or StrictClient()
    for event in events:
        client.take(as_json(event))
    return client
