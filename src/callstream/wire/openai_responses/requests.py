"""OpenAI Responses: what a request says, and what is added to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callstream.events import ResultReceived
from callstream.wire.openai_chat.requests import content_message, content_text
from callstream.wire.requests import MODEL, RefusedCall, Request, Turn, insert_after_last, read_body
from callstream.wire.thoughts import LoneReasoning


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


# -- what is added to it --


def ask_again(request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
    """The items of the request, and after them the calls that the model made and their refusals.

    Calls are written without the ids of their items, so that no reasoning has to come with them. A conversation has the
    request and the calls already.
    """
    fields = request.fields
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        return None
    outputs = list(map(_output, refused))
    if fields.get("conversation"):
        fields["input"] = outputs
    else:
        answer = [{"role": "assistant", "content": said}] if said else []
        fields["input"] = [*items, *answer, *map(_item, refused), *outputs]
    return request.rewritten()


def restore(request: Request, refused: RefusedCall) -> bool:
    """Puts a call and its refusal back beside the calls of its response and their outputs. False if they are not there."""
    items = request.fields.get("input")
    if not isinstance(items, list):
        return False
    called = [place for place, item in enumerate(items) if _is_one_of(item, "function_call", refused.beside)]
    answered = [place for place, item in enumerate(items) if _is_one_of(item, "function_call_output", refused.beside)]
    if not called or not answered or answered[0] < called[-1]:
        return False
    insert_after_last(items, answered[0], _output(refused), lambda item: str(item.get("type")).endswith("_output"))
    items.insert(called[-1] + 1, _item(refused))
    return True


def without_lone_reasoning(request: Request, lone: LoneReasoning) -> Request:
    """The request without reasoning that is not followed by what it led to: OpenAI refuses that."""
    items = request.fields.get("input")
    if not isinstance(items, list):
        return request
    kept: list[Any] = []
    for item in reversed(items):
        is_last = not kept or not _is_models(kept[-1])
        if not (_is_reasoning(item) and (is_last or lone.has(item.get("id"), item.get("encrypted_content")))):
            kept.append(item)
    if len(kept) == len(items):
        return request
    request.fields["input"] = kept[::-1]
    return request.rewritten()


def _is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _is_models(item: Any) -> bool:
    """Whether the model has written an item of a request."""
    if not isinstance(item, dict) or item.get("type", "message") == "message":
        return isinstance(item, dict) and item.get("role") == "assistant"
    return not str(item["type"]).endswith("_output")


def _is_one_of(item: Any, kind: str, call_ids: Sequence[str]) -> bool:
    return isinstance(item, dict) and item.get("type") == kind and item.get("call_id") in call_ids


def _item(call: RefusedCall) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call.wire_id, "name": call.name, "arguments": call.args_json}


def _output(call: RefusedCall) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.wire_id, "output": call.text}
