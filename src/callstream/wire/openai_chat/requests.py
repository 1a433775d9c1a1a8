"""OpenAI chat completions: what a request says, and what is added to it for servers that stream on request.

Other wires write their conversations in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callstream.events import RequestEvent, ResultReceived
from callstream.wire.requests import (
    MODEL,
    Asks,
    RefusedCall,
    Request,
    Turn,
    insert_after_last,
    objects_in,
    read_body,
    schemas,
    user_message,
)

_GLM = re.compile(r"(?:^|/)glm-(?:4\.[6-9]|[5-9])", re.IGNORECASE)
"""The models whose documentation has ``tool_stream``."""
_OPENROUTER = "/api/v1/chat/completions"
_EAGER = "eager_input_streaming"


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


class ChatBody(msgspec.Struct):
    messages: list[ChatMessage] = []


def read_turns(body: bytes, wire: str = "openai_chat") -> Iterator[Turn]:
    for message in read_body(wire, body, ChatBody).messages:
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
    return schemas((function, function.get("parameters")) for _, function in _functions(request))


def offered_names(request: Request) -> tuple[str, ...]:
    """Functions, free-text tools, and functions declared the way that came before tools."""
    custom = [entry.get("custom") for entry in objects_in(request.fields.get("tools"))]
    others = [*objects_in(custom), *objects_in(request.fields.get("functions"))]
    return tuple({**declared_functions(request), **schemas((each, None) for each in others)})


def _functions(request: Request) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The entries of the request's tools that declare a function, and the functions."""
    entries = objects_in(request.fields.get("tools"))
    return [(entry, function) for entry in entries if isinstance(function := entry.get("function"), dict)]


# -- what is added to it --


def ask_for_pieces(request: Request, asks: Asks) -> Request:
    """OpenAI's own servers stream without being asked. GLM's switch is the request's, and means something in streams only.

    OpenRouter hands Anthropic's field of a tool to Anthropic's models.
    """
    model = request.fields.get("model")
    model = model if isinstance(model, str) else ""
    functions = _functions(request)
    names = [str(function.get("name")) for _, function in functions]
    if _GLM.search(model) and names and request.fields.get("stream") is True:
        if "tool_stream" in request.fields or not all(map(asks, names)):
            return request
        request.fields["tool_stream"] = True
        return request.rewritten()
    if model.startswith("anthropic/") and request.path.endswith(_OPENROUTER):
        silent = [
            entry
            for (entry, function), name in zip(functions, names, strict=True)
            if _EAGER not in entry and _EAGER not in function and asks(name)
        ]
        for entry in silent:
            entry[_EAGER] = True
        return request.rewritten() if silent else request
    return request


def add_note(request: Request, text: str) -> Request | None:
    """A note at the end of the last message: not every server takes a user's message after the result of a tool."""
    last = objects_in(request.fields.get("messages"))[-1:]
    if not last or last[0].get("role") not in ("user", "tool") or not (content := last[0].get("content")):
        return None
    if isinstance(content, str):
        last[0]["content"] = f"{content}\n\n{text}"
    else:
        last[0]["content"] = [*content, {"type": "text", "text": text}]
    return request.rewritten()


def ask_again(request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
    """The conversation, and after it the calls that the model made and their refusals."""
    messages = request.fields.get("messages")
    if not isinstance(messages, list):
        return None
    answer = {"role": "assistant", "content": said or None, "tool_calls": [_entry(call) for call in refused]}
    request.fields["messages"] = [*messages, answer, *map(_result, refused)]
    return request.rewritten()


def restore(request: Request, refused: RefusedCall) -> bool:
    """Puts a call and its refusal back beside the calls of its response and their results. False if they are not there."""
    messages = request.fields.get("messages")
    if not isinstance(messages, list):
        return False
    for place, message in enumerate(messages):
        calls = objects_in(message.get("tool_calls")) if isinstance(message, dict) else []
        if any(call.get("id") in refused.beside for call in calls):
            if not insert_after_last(messages, place + 1, _result(refused), _is_result):
                return False
            message["tool_calls"] = [*calls, _entry(refused)]
            return True
    return False


def _entry(call: RefusedCall) -> dict[str, Any]:
    return {"id": call.wire_id, "type": "function", "function": {"name": call.name, "arguments": call.args_json}}


def _result(call: RefusedCall) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.wire_id, "content": call.text}


def _is_result(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "tool"


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
