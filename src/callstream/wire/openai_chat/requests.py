"""OpenAI chat completions: what a request says. Other wires write their conversations in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from callstream.events import RequestEvent, ResultReceived
from callstream.wire.requests import MODEL, Request, Turn, objects_in, read_body, schemas, user_message


class ChatFunction(msgspec.Struct):
    name: str | None = None


class ChatToolCall(msgspec.Struct):
    id: str | None = None
    function: ChatFunction | None = None
    custom: ChatFunction | None = None


class ChatMessage(msgspec.Struct):
    role: str = ""
    content: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatRequest(msgspec.Struct):
    messages: list[ChatMessage] = []


def read_turns(body: bytes, wire: str = "openai_chat") -> Iterator[Turn]:
    for message in read_body(wire, body, ChatRequest).messages:
        match message.role:
            case "assistant":
                calls = [(call.id, call.function or call.custom or ChatFunction()) for call in message.tool_calls or ()]
                yield Turn(MODEL, [], [(call_id, function.name or "") for call_id, function in calls])
            case "tool" | "function":
                yield Turn("tool", [ResultReceived(message.tool_call_id, message.name, content_text(message.content))])
            case "user":
                yield Turn("user", content_message(message.content))
            case _:
                pass  # system and developer messages are the program's own


def declared_functions(request: Request) -> dict[str, dict[str, Any]]:
    """The JSON Schemas of the functions that a request declares, by name."""
    functions = objects_in([tool.get("function") for tool in objects_in(request.fields.get("tools"))])
    return schemas((function, function.get("parameters")) for function in functions)


# -- content, which both of OpenAI's wires write alike --


def content_message(content: Any) -> list[RequestEvent]:
    if not isinstance(content, list):
        return user_message(content if isinstance(content, str) else "", [])
    parts = [part for part in content if isinstance(part, dict)]
    media = [str(part.get("type")) for part in parts if part.get("type") not in ("text", "input_text")]
    return user_message("".join(_texts(parts)), media)


def content_text(content: Any) -> Any:
    """Content as one text where all of it is text; anything else as it is."""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = _texts(content)
        return "".join(texts) if len(texts) == len(content) else content
    return content


def _texts(parts: list[dict[str, Any]]) -> list[str]:
    return [text for part in parts if isinstance(text := part.get("text"), str)]
