"""AG-UI's messages as google-adk's contents, and the other way round."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import msgspec
from ag_ui.core import AssistantMessage, DataSource, Message, TextPart, ToolMessage, UserMessage
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.calls import HOST_QUESTIONS
from callstream.agui.messages import result_value
from callstream.calls import Call, CallState
from callstream.errors import UsageError
from callstream.events import MessageReceived


class ClientAnswer(msgspec.Struct, frozen=True):
    """What a client says to a call that awaits it: in a tool message, or as the answer to an interrupt."""

    named: str
    content: str
    error: str | None = None
    message_id: str | None = None
    media: tuple[types.Part, ...] = ()

    @classmethod
    def recorded(cls, call: Call, media: tuple[types.Part, ...] = ()) -> Self:
        """What the journal has of a call that is over. ``media``, which it has not, from the client's message."""
        if call.state is not CallState.COMPLETED:
            return cls(call.call_id, "", error=call.error or "interrupted", media=media)
        return cls(call.call_id, call.result if isinstance(call.result, str) else json.dumps(call.result), media=media)

    @property
    def response(self) -> dict[str, Any]:
        """As the model reads it."""
        if self.error is not None:
            return {"error": self.error}
        value = self._value
        return value if isinstance(value, dict) else {"result": value}

    @property
    def result(self) -> Any:
        """As the journal keeps it, so that a client that joins reads what this one wrote: JSON, or else the text."""
        value = self._value
        return self.content if value is None or isinstance(value, str) else value

    @property
    def _value(self) -> Any:
        return result_value(self.content)


def parts_of(content: Any) -> list[types.Part]:
    """The parts of a message. Raises UsageError for data that is not base64."""
    if isinstance(content, str):
        return [types.Part(text=content)] if content else []
    return [_part(part) for part in content or ()]


def _part(part: Any) -> types.Part:
    if isinstance(part, TextPart):
        return types.Part(text=part.text)
    source = part.source
    if isinstance(source, DataSource):
        try:
            data = base64.b64decode(source.value, validate=True)
        except binascii.Error as error:
            raise UsageError(f"expected base64 in a part of type {part.type!r}, got something else: {error}") from None
        return types.Part(inline_data=types.Blob(data=data, mime_type=source.mime_type))
    kind = source.mime_type or mimetypes.guess_type(source.value)[0] or _ANY_KIND.get(part.type)
    return types.Part(file_data=types.FileData(file_uri=source.value, mime_type=kind))


_ANY_KIND = {"image": "image/png", "audio": "audio/mpeg", "video": "video/mp4", "document": "application/pdf"}


def message_received(parts: Sequence[types.Part], message_id: str | None = None) -> MessageReceived:
    """What a user said, as the journal keeps it: the text, and the kinds of the parts that are none."""
    text = "".join(part.text for part in parts if part.text and not part.thought)
    blobs = [blob for part in parts if (blob := part.inline_data or part.file_data) is not None]
    return MessageReceived("user", text, message_id, tuple(blob.mime_type or "file" for blob in blobs))


def answer_in(message: ToolMessage) -> ClientAnswer:
    parts = parts_of(message.content)
    text = "".join(part.text or "" for part in parts)
    media = tuple(part for part in parts if part.text is None)
    return ClientAnswer(message.tool_call_id, text, message.error, message.id, media)


def response_part(answer: ClientAnswer, function_call: types.FunctionCall) -> types.Part:
    media = [
        types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(data=blob.data, mime_type=blob.mime_type))
        for part in answer.media
        if (blob := part.inline_data) is not None
    ]
    return types.Part(
        function_response=types.FunctionResponse(
            id=function_call.id, name=function_call.name, response=answer.response, parts=media or None
        )
    )


def history_events(messages: Iterable[Message], author: str) -> Iterator[Event]:
    """The messages of a conversation that began elsewhere, as a session keeps them. It does not keep all kinds."""
    names: dict[str, str] = {}  # of tools, by call
    for message in messages:
        event = _history_event(message, author, names)
        if event is not None:
            yield event


def _history_event(message: Message, author: str, names: dict[str, str]) -> Event | None:
    match message:
        case UserMessage(content=content):
            return _event("user", "user", parts_of(content))
        case AssistantMessage():
            parts = parts_of(message.content or "")
            for call in message.tool_calls or ():
                if call.function.name in HOST_QUESTIONS:
                    continue  # a client that could forge a question could approve anything
                names[call.id] = call.function.name
                args = _object(call.function.arguments)
                function_call = types.FunctionCall(id=call.id, name=call.function.name, args=args)
                parts.append(types.Part(function_call=function_call))
            return _event(author, "model", parts)
        case ToolMessage(tool_call_id=named) if named in names:
            function_call = types.FunctionCall(id=named, name=names[named])
            return _event(author, "user", [response_part(answer_in(message), function_call)])
        case _:
            return None


def _event(author: str, role: str, parts: list[types.Part]) -> Event | None:
    return Event(author=author, content=types.Content(role=role, parts=parts)) if parts else None


def _object(text: str) -> dict[str, Any]:
    try:
        value = result_value(text)
    except UsageError:
        return {}
    return value if isinstance(value, dict) else {}


def messages_in(session: Session) -> list[dict[str, Any]]:
    """A session as AG-UI's messages: for threads that the journal does not know."""
    return [message for event in session.events if not event.partial for message in _messages(event)]


def _messages(event: Event) -> Iterator[dict[str, Any]]:
    parts = list(event.content.parts or ()) if event.content is not None else []
    text = "".join(part.text for part in parts if part.text and not part.thought)
    thought = "".join(part.text for part in parts if part.text and part.thought)
    calls = [
        (call, call.id or f"{event.id}-{place}")
        for place, call in enumerate(event.get_function_calls())
        if call.name not in HOST_QUESTIONS
    ]
    if event.author == "user":
        attached = [media for part in parts if (media := _attached(part)) is not None]
        said = [{"type": "text", "text": text}] if text else []
        if text or attached:
            yield {"id": event.id, "role": "user", "content": [*said, *attached] if attached else text}
    else:
        if thought:
            yield {"id": f"reasoning-{event.id}", "role": "reasoning", "content": thought}
        if text or calls:
            yield _assistant(event, text, calls)
    for response in event.get_function_responses():
        if response.name not in HOST_QUESTIONS and response.id:
            result = json.dumps(response.response, ensure_ascii=False)
            yield {"id": f"result-{response.id}", "role": "tool", "toolCallId": response.id, "content": result}


def _attached(part: types.Part) -> dict[str, Any] | None:
    """What a user has sent beside text, as AG-UI writes it; None if the part is nothing of the kind."""
    if part.inline_data is not None and part.inline_data.data:
        kind, value = part.inline_data.mime_type, base64.b64encode(part.inline_data.data).decode()
        source = {"type": "data", "value": value, "mimeType": kind or "application/octet-stream"}
    elif part.file_data is not None and part.file_data.file_uri:
        kind = part.file_data.mime_type
        source = {"type": "url", "value": part.file_data.file_uri, **({"mimeType": kind} if kind else {})}
    else:
        return None
    family = (kind or "").split("/")[0]
    return {"type": family if family in ("image", "audio", "video") else "document", "source": source}


def _assistant(event: Event, text: str, calls: Iterable[tuple[types.FunctionCall, str]]) -> dict[str, Any]:
    made: dict[str, Any] = {"id": event.id, "role": "assistant"}
    if event.author and event.author != "model":
        made["name"] = event.author
    if text:
        made["content"] = text
    shown = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.args or {}, ensure_ascii=False)},
        }
        for call, call_id in calls
    ]
    return {**made, "toolCalls": shown} if shown else made
