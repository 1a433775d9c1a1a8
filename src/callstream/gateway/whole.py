"""A streamed answer as the one that was not streamed: for a client that comes back without asking for a stream.

None where a wire has no such form here, or the stream has no proper end: the client then gets an answer of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final


def whole_answer(wire: str, body: bytes) -> bytes | None:
    """The body of the whole answer, of which this is the stream."""
    fold = _FOLDS.get(wire)
    found = None if fold is None else fold(_payloads(body))
    return None if found is None else json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()


def _payloads(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        if line.startswith(b"data:") and line[5:].strip().startswith(b"{"):
            yield json.loads(line[5:])


def _anthropic(payloads: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    message: dict[str, Any] | None = None
    arguments: dict[int, list[str]] = {}
    has_ended = False
    for payload in payloads:
        match payload:
            case {"type": "message_start", "message": dict(started)}:
                message = {**started, "content": []}
            case {"type": "content_block_start", "content_block": dict(block)} if message is not None:
                message["content"].append(block)
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)} if message is not None:
                _grow(message["content"][index], delta, arguments.setdefault(index, []))
            case {"type": "content_block_stop", "index": int(index)} if message is not None and arguments.get(index):
                message["content"][index]["input"] = json.loads("".join(arguments[index]))
            case {"type": "message_delta", "delta": dict(delta)} if message is not None:
                message.update(delta)
                message["usage"] = {**(message.get("usage") or {}), **(payload.get("usage") or {})}
            case {"type": "message_stop"}:
                has_ended = True
    return message if has_ended else None


def _grow(block: dict[str, Any], delta: dict[str, Any], arguments: list[str]) -> None:
    match delta:
        case {"type": "input_json_delta", "partial_json": str(text)}:
            arguments.append(text)
        case {"type": "text_delta", "text": str(text)}:
            block["text"] = block.get("text", "") + text
        case {"type": "thinking_delta", "thinking": str(text)}:
            block["thinking"] = block.get("thinking", "") + text
        case {"type": "signature_delta", "signature": str(text)}:
            block["signature"] = text
        case {"type": "citations_delta", "citation": citation}:
            block["citations"] = [*(block.get("citations") or ()), citation]


def _responses(payloads: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    for payload in payloads:
        match payload:
            case {"type": "response.completed" | "response.incomplete", "response": dict(response)}:
                return response
    return None


_FOLDS: Final[dict[str, Callable[[Iterator[dict[str, Any]]], dict[str, Any] | None]]] = {
    "anthropic": _anthropic,
    "openai_responses": _responses,
}
