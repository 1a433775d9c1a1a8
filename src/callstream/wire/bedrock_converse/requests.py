"""What a Converse request says, and what is added to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from callstream.events import RequestEvent, ResultReceived
from callstream.wire.anthropic import add_beta
from callstream.wire.bedrock_converse.decoding import ToolUseBlock
from callstream.wire.requests import (
    MODEL,
    Asks,
    Notes,
    Request,
    Turn,
    note_text,
    objects_in,
    read_body,
    schemas,
    user_message,
    without_blocks,
)
from callstream.wire.thoughts import LoneReasoning

_MORE = "additionalModelRequestFields"


class ResultBlock(msgspec.Struct):
    toolUseId: str | None = None  # noqa: N815
    content: Any = None
    status: str | None = None


class Media(msgspec.Struct):
    format: str | None = None


class RequestBlock(msgspec.Struct):
    text: str | None = None
    toolUse: ToolUseBlock | None = None  # noqa: N815
    toolResult: ResultBlock | None = None  # noqa: N815
    image: Media | None = None
    document: Media | None = None
    video: Media | None = None


class RequestMessage(msgspec.Struct):
    role: str = ""
    content: list[RequestBlock] = []


class ConverseRequest(msgspec.Struct):
    messages: list[RequestMessage] = []


def read_turns(body: bytes) -> Iterator[Turn]:
    for message in read_body("bedrock_converse", body, ConverseRequest).messages:
        blocks = message.content
        if message.role == "assistant":
            used = [block.toolUse for block in blocks if block.toolUse is not None]
            yield Turn(MODEL, [], [(use.toolUseId, use.name or "") for use in used])
            continue
        results = [block.toolResult for block in blocks if block.toolResult is not None]
        events: list[RequestEvent] = [
            ResultReceived(result.toolUseId, None, result.content, is_error=result.status == "error")
            for result in results
        ]
        text = "".join(block.text for block in blocks if block.text)
        yield Turn("user", [*events, *user_message(text, [kind for block in blocks for kind in _media_types(block)])])


def _media_types(block: RequestBlock) -> Iterator[str]:
    for kind, media in (("image", block.image), ("application", block.document), ("video", block.video)):
        if media is not None:
            yield f"{kind}/{media.format}" if media.format else kind


def declared_tools(request: Request) -> dict[str, dict[str, Any]]:
    config = request.fields.get("toolConfig")
    tools = objects_in(config.get("tools")) if isinstance(config, dict) else []
    specs = [spec for tool in tools if isinstance(spec := tool.get("toolSpec"), dict)]
    return schemas((spec, _json_schema(spec.get("inputSchema"))) for spec in specs)


def _json_schema(schema: Any) -> Any:
    return schema.get("json") if isinstance(schema, dict) else None


# -- what is added to it --


def ask_by_beta(request: Request, asks: Asks) -> Request:
    """For Anthropic's models alone. The path of an application's own profile does not say whose model it is."""
    names = declared_tools(request)
    more = request.fields.get(_MORE)
    more = {} if more is None else more
    if "anthropic." not in request.path or not names or not all(map(asks, names)) or not isinstance(more, dict):
        return request
    request.fields[_MORE] = more
    return request.rewritten() if add_beta(more) else request


def add_notes(request: Request, notes: Notes) -> Request | None:
    """A note at the end of the user's last message, unless the model has spoken since."""
    last = objects_in(request.fields.get("messages"))[-1:]
    if not last or last[0].get("role") != "user" or not isinstance(content := last[0].get("content"), list):
        return None
    content.append({"text": note_text(notes)})
    return request.rewritten()


def without_lone_reasoning(request: Request, lone: LoneReasoning) -> Request:
    return without_blocks(request, lambda block: _is_lone(block.get("reasoningContent"), lone))


def _is_lone(reasoning: Any, lone: LoneReasoning) -> bool:
    if not isinstance(reasoning, dict):
        return False
    text = reasoning.get("reasoningText")
    return lone.has(reasoning.get("redactedContent"), text.get("signature") if isinstance(text, dict) else None)
