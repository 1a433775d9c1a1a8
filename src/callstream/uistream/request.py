"""Requests of the AI SDK's chat, as AG-UI's input of a run.

The client sends all of its messages every time, and with them everything that it has about calls: half-written input of a
response that broke off, outputs that the journal knows, approvals that were given long ago. Only reliable parts are taken
over: half-written input and preliminary output are left out. Whether an answer counts is decided in the same place as for
AG-UI's answers: by the call that awaits it in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from callstream import codec
from callstream.agui.messages import AGAIN, result_value
from callstream.calls import DENIED
from callstream.errors import UsageError, warn_of_name

_OWN: Final = ("id", "messages", "trigger", "messageId", "tools", "state")
_KINDS: Final = ("image", "audio", "video")


class ChatRequest(msgspec.Struct, frozen=True):
    """``run_input`` is AG-UI's RunAgentInput without a run id.

    ``continues``: the id of the assistant message that the answer continues, None if it is a new one.
    """

    chat_id: str
    run_input: dict[str, Any]
    continues: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The former name of ``run_input``."""
        warn_of_name("ChatRequest.given", "run_input")
        return self.run_input


def read_request(body: Any, name: str) -> ChatRequest:
    """Reads a body. ``name`` becomes part of the id of a message that is sent again, so it must be new each time.

    Raises UsageError, which says what was expected.
    """
    match body:
        case {"id": str(chat_id), "messages": list(messages)} if chat_id:
            pass
        case _:
            raise UsageError('expected {"id": …, "messages": […], …} as the AI SDK\'s chat sends it')
    is_again = body.get("trigger") == "regenerate-message"
    converted: list[dict[str, Any]] = []
    resume: list[dict[str, Any]] = []
    role: str | None = None
    for number, message in enumerate(messages):
        match message:
            case {"id": str(message_id), "role": "user" | "system" | "assistant" as spoken, "parts": list(parts)}:
                role = spoken
                known = [part for part in parts if isinstance(part, dict) and isinstance(part.get("type"), str)]
            case _:
                raise UsageError(f"expected messages.{number} to be a UIMessage with id, role and parts")
        if role == "assistant":
            converted += _assistant_messages(message_id, known)
            resume += _approvals(known)
        else:
            converted.append({"id": message_id, "role": role, "content": _content(known, role)})
    # The client has removed everything after this message: it was edited, or another answer is wanted.
    if role == "user" and (is_again or body.get("messageId")):
        converted[-1]["id"] += f"{AGAIN}{name}"
    run_input = {
        "threadId": chat_id,
        "protocolVersion": "1.0",
        "messages": converted,
        "tools": _tools(body.get("tools")),
        "context": [],
        "state": body.get("state") or {},
        "forwardedProps": {key: value for key, value in body.items() if key not in _OWN},
        **({"resume": resume} if resume else {}),
    }
    return ChatRequest(chat_id, run_input, messages[-1]["id"] if role == "assistant" else None)


def _content(parts: list[dict[str, Any]], role: str) -> Any:
    texts = [part["text"] for part in parts if part["type"] == "text" and isinstance(part.get("text"), str)]
    files = [each for part in parts if part["type"] == "file" for each in _file(part)]
    if not files or role == "system":
        return "\n".join(texts)
    return [*({"type": "text", "text": text} for text in texts), *files]


def _file(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match part:
        case {"url": str(url), "mediaType": str(media_type)}:
            kind = next((kind for kind in _KINDS if media_type.startswith(f"{kind}/")), "document")
            head, comma, data = url.partition(",")
            if comma and head.startswith("data:") and head.endswith(";base64"):
                yield {"type": kind, "source": {"type": "data", "value": data, "mimeType": media_type}}
            else:
                yield {"type": kind, "source": {"type": "url", "value": url, "mimeType": media_type}}


def _assistant_messages(message_id: str, parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One message for each step, followed by its results: a step is a response of the model."""
    steps: list[list[dict[str, Any]]] = [[]]
    for part in parts:
        if part["type"] == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    for number, step in enumerate([step for step in steps if step] or [[]]):
        text = "".join([part["text"] for part in step if part["type"] == "text" and isinstance(part.get("text"), str)])
        calls = [call for part in step if (call := _call(part)) is not None]
        made = [
            {
                "id": call["toolCallId"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["args"]},
            }
            for call in calls
        ]
        yield {
            "id": message_id if not number else f"{message_id}-{number}",
            "role": "assistant",
            **({"content": text} if text else {}),
            **({"toolCalls": made} if made else {}),
        }
        yield from (call["result"] for call in calls if call["result"] is not None)


def _call(part: dict[str, Any]) -> dict[str, Any] | None:
    """A call whose input is whole; None for any other part."""
    kind, call_id = part["type"], part.get("toolCallId")
    is_named_by_kind = kind.startswith("tool-")
    name = kind.removeprefix("tool-") if is_named_by_kind else part.get("toolName")
    if not (is_named_by_kind or kind == "dynamic-tool") or not isinstance(name, str) or not isinstance(call_id, str):
        return None
    if part.get("state") == "input-streaming" or "input" not in part:
        return None
    said: dict[str, Any] | None = None
    match part:
        case {"state": "output-available", "output": output} if not part.get("preliminary"):
            said = {"content": _result_text(output)}
        case {"state": "output-error" | "output-denied" as state}:
            error = DENIED if state == "output-denied" else str(part.get("errorText") or "The tool failed.")
            said = {"content": _json({"error": error}), "error": error}
    result = None if said is None else {"id": f"output-{call_id}", "role": "tool", "toolCallId": call_id, **said}
    return {"toolCallId": call_id, "name": name, "args": _json(part["input"]), "result": result}


def _approvals(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for part in parts:
        match part:
            case {
                "state": "approval-responded",
                "approval": {"id": str(approval_id), "approved": bool(approved)} as said,
            }:
                reason = {"reason": said["reason"]} if isinstance(said.get("reason"), str) else {}
                payload = {"approved": approved, **reason}
                yield {"interruptId": approval_id, "status": "resolved", "payload": payload}


def _tools(tools: Any) -> list[dict[str, Any]]:
    """The browser's tools, as a list or by their names."""
    match tools:
        case dict():
            named = [{"name": name, **tool} for name, tool in tools.items() if isinstance(tool, dict)]
        case list():
            named = [tool for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
        case None:
            return []
        case _:
            raise UsageError("expected tools to be a list of tools, or an object of them by name")
    return [
        {
            "name": tool["name"],
            "description": str(tool.get("description") or ""),
            "parameters": tool.get("parameters") or tool.get("inputSchema") or {"type": "object"},
        }
        for tool in named
    ]


def _result_text(output: Any) -> str:
    """An output as a tool message's content: text unchanged, unless it would be read as another value."""
    if isinstance(output, str):
        try:
            if result_value(output) == output:
                return output
        except UsageError:
            pass  # it looks like JSON that nests too deep
    return _json(output)


def _json(value: Any) -> str:
    return codec.encode(value).decode()
