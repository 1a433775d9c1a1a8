"""What a request says: the results of tools, and the new messages of its user.

A request carries the whole conversation. Its last turn is what follows the last word of the model (words that the
request puts into the model's mouth, at its very end, do not count). Results are given from the whole conversation, in
order, those of the last turn marked ``latest``; messages from the last turn alone. A result without a name gets that of
the call before it with its id, because ids are used again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from callstream.errors import UsageError, WireError
from callstream.events import MessageReceived, RequestEvent, ResultReceived

MODEL = "model"
"""The role of whatever the model said, on every wire."""


class Turn(msgspec.Struct):
    """One entry of the conversation, in no wire's words. ``calls`` are the (id, name) that a model's entry made."""

    role: str
    events: list[RequestEvent]
    calls: list[tuple[str | None, str]] = []


def results_in(wire: str, request_body: bytes) -> list[RequestEvent]:
    """The tool results and the new user messages of a request, as events, in the order of the conversation.

    Raises WireError for a body that is not a request of the wire.
    """
    try:
        turns_of = _READERS[wire]
    except KeyError:
        raise UsageError(f"expected one of the wires {', '.join(_READERS)}, got {wire!r}") from None
    turns = list(turns_of(request_body))
    end = len(turns)
    while end and turns[end - 1].role == MODEL:
        end -= 1
    start = max((index + 1 for index in range(end) if turns[index].role == MODEL), default=0)
    found: list[RequestEvent] = []
    names: dict[str | None, str] = {}
    for index, turn in enumerate(turns[:end]):
        names.update(turn.calls)
        for event in turn.events:
            if isinstance(event, ResultReceived):
                name = event.name or (names.get(event.provider_id) if event.provider_id else None)
                found.append(msgspec.structs.replace(event, name=name, latest=index >= start))
            elif index >= start:
                found.append(event)
    return found


# -- Gemini --


class _GeminiBlob(msgspec.Struct):
    """The API takes both spellings of a name, and its own examples use both."""

    camel_type: str | None = msgspec.field(name="mimeType", default=None)
    snake_type: str | None = msgspec.field(name="mime_type", default=None)

    @property
    def mime_type(self) -> str:
        return self.camel_type or self.snake_type or "file"


class _GeminiFunction(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    response: Any = None


class _GeminiPart(msgspec.Struct):
    text: str | None = None
    camel_inline: _GeminiBlob | None = msgspec.field(name="inlineData", default=None)
    snake_inline: _GeminiBlob | None = msgspec.field(name="inline_data", default=None)
    camel_file: _GeminiBlob | None = msgspec.field(name="fileData", default=None)
    snake_file: _GeminiBlob | None = msgspec.field(name="file_data", default=None)
    camel_call: _GeminiFunction | None = msgspec.field(name="functionCall", default=None)
    snake_call: _GeminiFunction | None = msgspec.field(name="function_call", default=None)
    camel_response: _GeminiFunction | None = msgspec.field(name="functionResponse", default=None)
    snake_response: _GeminiFunction | None = msgspec.field(name="function_response", default=None)


class _GeminiContent(msgspec.Struct):
    role: str | None = None
    parts: list[_GeminiPart] | None = None


class _GeminiRequest(msgspec.Struct):
    contents: list[_GeminiContent] | _GeminiContent | None = None


def _gemini(body: bytes) -> Iterator[Turn]:
    contents = _decoded("gemini", body, _GeminiRequest).contents or []
    for content in contents if isinstance(contents, list) else [contents]:
        parts = content.parts or []
        if content.role == "model":
            calls = [call for part in parts if (call := part.camel_call or part.snake_call) is not None]
            yield Turn(MODEL, [], [(call.id, call.name or "") for call in calls])
            continue
        answers = [answer for part in parts if (answer := part.camel_response or part.snake_response) is not None]
        blobs = [part.camel_inline or part.snake_inline or part.camel_file or part.snake_file for part in parts]
        text = "".join(part.text for part in parts if part.text)
        events: list[RequestEvent] = [
            ResultReceived(answer.id or None, answer.name, answer.response, is_error=_is_error(answer.response))
            for answer in answers
        ]
        yield Turn("user", [*events, *_message(text, [blob.mime_type for blob in blobs if blob is not None])])


def _is_error(response: Any) -> bool:
    """The API's own convention: an ``error`` member, and no ``output`` or other result beside it."""
    return isinstance(response, dict) and set(response) == {"error"}


# -- Anthropic --


class _AnthropicBlock(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None
    source: Any = None


class _AnthropicMessage(msgspec.Struct):
    role: str = ""
    content: str | list[_AnthropicBlock] | None = None


class _AnthropicRequest(msgspec.Struct):
    messages: list[_AnthropicMessage] = []


def _anthropic(body: bytes) -> Iterator[Turn]:
    for message in _decoded("anthropic", body, _AnthropicRequest).messages:
        content = message.content or []
        blocks = [_AnthropicBlock("text", text=content)] if isinstance(content, str) else content
        if message.role == "assistant":
            yield Turn(MODEL, [], [(block.id, block.name or "") for block in blocks if block.type == "tool_use"])
            continue
        if message.role != "user":
            continue  # the program's own
        events: list[RequestEvent] = [
            ResultReceived(block.tool_use_id, None, block.content, is_error=bool(block.is_error))
            for block in blocks
            if block.type == "tool_result"
        ]
        text = "".join(block.text for block in blocks if block.type == "text" and block.text)
        media = [_media_type(block) for block in blocks if block.type in ("image", "document")]
        events += _message(text, media)
        yield Turn("user", events)


def _media_type(block: _AnthropicBlock) -> str:
    found = block.source.get("media_type") if isinstance(block.source, dict) else None
    return found if isinstance(found, str) else block.type


# -- OpenAI chat completions --


class _ChatFunction(msgspec.Struct):
    name: str | None = None


class _ChatToolCall(msgspec.Struct):
    id: str | None = None
    function: _ChatFunction | None = None
    custom: _ChatFunction | None = None


class _ChatMessage(msgspec.Struct):
    role: str = ""
    content: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_ChatToolCall] | None = None


class _ChatRequest(msgspec.Struct):
    messages: list[_ChatMessage] = []


def _openai_chat(body: bytes) -> Iterator[Turn]:
    for message in _decoded("openai_chat", body, _ChatRequest).messages:
        match message.role:
            case "assistant":
                calls = [
                    (call.id, call.function or call.custom or _ChatFunction()) for call in message.tool_calls or ()
                ]
                yield Turn(MODEL, [], [(call_id, function.name or "") for call_id, function in calls])
            case "tool" | "function":
                yield Turn("tool", [ResultReceived(message.tool_call_id, message.name, _openai_text(message.content))])
            case "user":
                yield Turn("user", _openai_message(message.content))
            case _:
                pass  # system and developer messages are the program's own


# -- OpenAI Responses --


class _ResponsesItem(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    output: Any = None


class _ResponsesRequest(msgspec.Struct):
    input: str | list[_ResponsesItem] | None = None


def _openai_responses(body: bytes) -> Iterator[Turn]:
    given = _decoded("openai_responses", body, _ResponsesRequest).input or []
    items = [_ResponsesItem(role="user", content=given)] if isinstance(given, str) else given
    for item in items:
        match item.type or "message":
            case "function_call_output" | "custom_tool_call_output":
                yield Turn("tool", [ResultReceived(item.call_id, None, _openai_text(item.output))])
            case "message" if item.role == "user":
                yield Turn("user", _openai_message(item.content))
            case "message" if item.role != "assistant":
                pass  # system and developer messages are the program's own
            case other if other.endswith("_output") or other == "mcp_approval_response":
                yield Turn("tool", [])  # an answer to the server's own tools
            case "function_call" | "custom_tool_call":
                yield Turn(MODEL, [], [(item.call_id, item.name or "")])
            case _:
                yield Turn(MODEL, [])


# -- what they share --

_Request = TypeVar("_Request", bound=msgspec.Struct)


def _decoded(wire: str, body: bytes, request: type[_Request]) -> _Request:
    try:
        try:
            return msgspec.json.decode(body, type=request)
        except msgspec.DecodeError:
            return msgspec.json.decode(_without_surrogates(body), type=request)
    except (ValueError, RecursionError) as error:
        # Not a word of the conversation, since this reaches the log.
        raise WireError(
            f"expected the body of a {wire} request, got {len(body)} bytes that are none: {error}"
        ) from None


def _without_surrogates(body: bytes) -> bytes:
    """The body with a question mark for each lone surrogate, which msgspec refuses."""
    return json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")


def _message(text: str, attachments: list[str]) -> list[RequestEvent]:
    return [MessageReceived("user", text, attachments=tuple(attachments))] if text or attachments else []


def _openai_message(content: Any) -> list[RequestEvent]:
    if not isinstance(content, list):
        return _message(content if isinstance(content, str) else "", [])
    parts = [part for part in content if isinstance(part, dict)]
    media = [str(part.get("type")) for part in parts if part.get("type") not in ("text", "input_text")]
    return _message("".join(_texts(parts)), media)


def _openai_text(content: Any) -> Any:
    """Content as one text where all of it is text; anything else as it is."""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = _texts(content)
        return "".join(texts) if len(texts) == len(content) else content
    return content


def _texts(parts: list[dict[str, Any]]) -> list[str]:
    return [text for part in parts if isinstance(text := part.get("text"), str)]


_READERS: dict[str, Callable[[bytes], Iterator[Turn]]] = {
    "gemini": _gemini,
    "anthropic": _anthropic,
    "openai_chat": _openai_chat,
    "openai_responses": _openai_responses,
}
