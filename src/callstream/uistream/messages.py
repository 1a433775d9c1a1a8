"""A thread as the AI SDK keeps it: one user message, one assistant message, and so on, however many runs they took.

``ui_messages`` returns the messages that a page shows when it is loaded. Those of the assistant are folded from the very
chunks that a client gets, as the client's reader folds them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import msgspec

from callstream.agui import View
from callstream.agui.conversation import RunInput
from callstream.agui.messages import AGAIN, DeveloperMessage, Message, SystemMessage, UserMessage
from callstream.uistream.translator import Chunk, ChunkTranslator, Sdk
from callstream.view import RunView


class ChatTurn(msgspec.Struct):
    """The runs that followed a user's message."""

    runs: list[RunView]

    @property
    def message_id(self) -> str:
        """The id of its assistant message."""
        return f"turn-{self.runs[0].run_id}"

    @property
    def is_active(self) -> bool:
        return self.runs[-1].outcome is None


def begins_turn(run: RunView) -> bool:
    """Whether a run has a user's message; others continue a turn with answers to its calls."""
    match run.input:
        case {"messages": list(messages)} if any(
            isinstance(each, dict) and each.get("role") == "user" for each in messages
        ):
            return True
    return any(isinstance(message, UserMessage) for message in _input_of(run))


def turns(runs: Iterable[RunView]) -> list[ChatTurn]:
    """The turns of a thread, from the views of its runs, the oldest first."""
    found: list[ChatTurn] = []
    for run in runs:
        if not found or begins_turn(run):
            found.append(ChatTurn([run]))
        else:
            found[-1].runs.append(run)
    return found


def ui_messages(runs: Iterable[RunView], view: View | None = None, *, sdk: Sdk = 6) -> list[dict[str, Any]]:
    """The messages of a thread, except the one being written: a client that resumes gets that from the start."""
    messages: list[dict[str, Any]] = []
    heard: set[str] = set()
    for turn in turns(runs):
        for run in turn.runs:
            for message in _input_of(run) or _coming_in(run, heard):
                heard.add(message.id)
                shown = _ui_input(message)
                ids = [each["id"] for each in messages]
                if shown["id"] in ids:
                    del messages[ids.index(shown["id"]) :]
                messages.append(shown)
        if not turn.is_active:
            answer = fold(ChunkTranslator(turn.message_id, view, sdk=sdk).replay(turn.runs))
            if answer["parts"]:
                messages.append(answer)
    return messages


def _input_of(run: RunView) -> list[Message]:
    return [message for _, message in RunInput(run.run_id, run.input).messages(run)]


def _coming_in(run: RunView, heard: Container[str]) -> list[Message]:
    """The user's messages to a run that has just begun: the new ones in its input, which are recorded a moment later."""
    found: list[Message] = []
    match run.input:
        case {"messages": list(messages)} if run.outcome is None:
            for message in messages:
                match message:
                    case {"role": "user", "id": str(message_id), "content": str() | list() as content}:
                        found += [] if message_id in heard else [UserMessage(id=message_id, content=content)]
    return found


def _ui_input(message: Message) -> dict[str, Any]:
    replaced, _, _ = message.id.rpartition(AGAIN)
    assert isinstance(message, UserMessage | SystemMessage | DeveloperMessage)
    role = "user" if isinstance(message, UserMessage) else "system"
    content = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    parts = [part for each in content if isinstance(each, dict) for part in _ui_part(each)]
    return {"id": replaced or message.id, "role": role, "parts": parts}


def _ui_part(part: dict[str, Any]) -> list[dict[str, Any]]:
    match part:
        case {"type": "text", "text": str(text)}:
            return [{"type": "text", "text": text}]
        case {"source": {"type": "data", "value": str(value), "mimeType": str(kind)}}:
            return [{"type": "file", "mediaType": kind, "url": f"data:{kind};base64,{value}"}]
        case {"type": str(kind), "source": {"type": "url", "value": str(value)} as source}:
            return [{"type": "file", "mediaType": source.get("mimeType") or f"{kind}/*", "url": value}]
        case _:
            return []


# -- the fold --


def fold(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """The message of a client that was sent these chunks."""
    message: dict[str, Any] = {"id": "", "role": "assistant", "parts": []}
    parts: list[dict[str, Any]] = message["parts"]
    by_id: dict[tuple[str, str], dict[str, Any]] = {}
    written: dict[str, str] = {}
    for chunk in chunks:
        match chunk:
            case {"type": "start", "messageId": message_id, "messageMetadata": metadata}:
                message.update(id=message_id, metadata=metadata)
            case {"type": "start-step"}:
                parts.append({"type": "step-start"})
            case {"type": "reset-step"}:
                del parts[1 + max(place for place, part in enumerate(parts) if part["type"] == "step-start") :]
                kept = {id(part) for part in parts}
                by_id = {key: part for key, part in by_id.items() if id(part) in kept}
            case {"type": "text-start" | "reasoning-start" as kind, "id": part_id}:
                named = {"id": part_id} if kind == "reasoning-start" else {}  # the reader only keeps it for reasoning
                parts.append({"type": kind.removesuffix("-start"), **named, "text": "", "state": "streaming"})
                by_id["text", part_id] = parts[-1]
            case {"type": "text-delta" | "reasoning-delta", "id": part_id, "delta": delta}:
                by_id["text", part_id]["text"] += delta
            case {"type": "text-end" | "reasoning-end", "id": part_id}:
                by_id["text", part_id]["state"] = "done"
            case {"type": str(kind), "id": data_id, "data": data}:
                if (kind, data_id) not in by_id:
                    parts.append({"type": kind, "id": data_id})
                    by_id[kind, data_id] = parts[-1]
                by_id[kind, data_id]["data"] = data
            case {"type": "tool-input-start", "toolCallId": call_id, "toolName": name}:
                parts.append({"type": f"tool-{name}", "toolCallId": call_id, "state": "input-streaming"})
                by_id["call", call_id] = parts[-1]
            case {"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": delta}:
                written[call_id] = written.get(call_id, "") + delta
            case {"toolCallId": call_id}:
                _fold_call(by_id["call", call_id], chunk)
    for call_id, text in written.items():
        part = by_id.get(("call", call_id), {})
        if "rawInput" not in part:  # else the input broke off
            part.setdefault("input", msgspec.Raw(text.encode()))
    return message


def _fold_call(part: dict[str, Any], chunk: Chunk) -> None:
    match chunk:
        case {"type": "tool-input-available", "input": value}:
            part.update(state="input-available", input=value)
        case {"type": "tool-input-error", "input": value, "errorText": text}:
            part.update(state="output-error", rawInput=value, errorText=text)
        case {"type": "tool-approval-request", "approvalId": approval_id}:
            part.update(state="approval-requested", approval={"id": approval_id})
        case {"type": "tool-output-available", "output": output}:
            part.update(state="output-available", output=output)
            part.pop("preliminary", None)
            if chunk.get("preliminary"):
                part["preliminary"] = True
        case {"type": "tool-output-error", "errorText": text}:
            part.update(state="output-error", errorText=text)
        case _:  # tool-output-denied
            part.update(state="output-denied")
