"""OpenAI Responses: what a request says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from callstream.events import ResultReceived
from callstream.wire.openai_chat.requests import content_message, content_text
from callstream.wire.requests import MODEL, Turn, read_body


class InputItem(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    output: Any = None


class ResponsesRequest(msgspec.Struct):
    input: str | list[InputItem] | None = None


def read_turns(body: bytes) -> Iterator[Turn]:
    given = read_body("openai_responses", body, ResponsesRequest).input or []
    items = [InputItem(role="user", content=given)] if isinstance(given, str) else given
    for item in items:
        match item.type or "message":
            case "function_call_output" | "custom_tool_call_output":
                yield Turn("tool", [ResultReceived(item.call_id, None, content_text(item.output))])
            case "message" if item.role == "user":
                yield Turn("user", content_message(item.content))
            case "message" if item.role != "assistant":
                pass  # system and developer messages are the program's own
            case other if other.endswith("_output") or other == "mcp_approval_response":
                yield Turn("tool", [])  # an answer to the server's own tools
            case "function_call" | "custom_tool_call":
                yield Turn(MODEL, [], [(item.call_id, item.name or "")])
            case _:
                yield Turn(MODEL, [])
