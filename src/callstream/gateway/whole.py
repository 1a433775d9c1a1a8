"""A streamed answer converted to the form of one that was not streamed, for a client that retries without streaming.

None if this is not supported for the wire, or if the stream has no proper end: the client then gets a new answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final


def whole_answer(wire: str, body: bytes) -> bytes | None:
    """The body of the whole answer, made from the body of its stream."""
    fold = _FOLDS.get(wire)
    try:
        found = None if fold is None else fold(_payloads(body))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # not a stream that the provider itself would send
    return None if found is None else json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()


def answer_id(wire: str, body: bytes) -> str | None:
    """The id by which a later request may name the answer, streamed or whole; None if the wire has no such ids."""
    if wire not in _NAMED:
        return None
    try:
        found = next(_payloads(body), None) or json.loads(body)
    except ValueError:
        return None
    match found:
        case {"response": {"id": str(name)}} | {"interaction": {"id": str(name)}} | {"id": str(name)}:
            return name
    return None


def _payloads(body: bytes) -> Iterator[dict[str, Any]]:
    if body.lstrip().startswith(b"["):  # Gemini's stream without alt=sse
        yield from json.loads(body)
        return
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


def _chat(payloads: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for payload in payloads:
        answer |= {name: value for name, value in payload.items() if name != "choices" and value is not None}
        for chunk in payload.get("choices") or ():
            choice = choices.setdefault(chunk["index"], {"index": chunk["index"], "message": {"content": None}})
            _grow_message(choice["message"], chunk.get("delta") or {})
            choice |= {name: chunk[name] for name in ("finish_reason", "logprobs") if chunk.get(name) is not None}
    if not choices or not all("finish_reason" in choice for choice in choices.values()):
        return None
    for choice in choices.values():
        calls = choice["message"].pop("tool_calls", {})
        if calls:
            choice["message"]["tool_calls"] = [calls[place] for place in sorted(calls)]
    return {**answer, "object": "chat.completion", "choices": [choices[place] for place in sorted(choices)]}


def _grow_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault(name, {})
            for piece in value or ():
                call = calls.setdefault(piece.pop("index"), {"function": {"name": "", "arguments": ""}})
                function = piece.pop("function", None) or {}
                call |= {key: each for key, each in piece.items() if each is not None}
                for key, each in function.items():
                    call["function"][key] = call["function"].get(key, "") + (each or "")
        elif name == "role" or value is None:
            message[name] = value or message.get(name)
        else:
            message[name] = value if message.get(name) is None else message[name] + value


def _gemini(payloads: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    answer: dict[str, Any] = {}
    candidates: dict[int, dict[str, Any]] = {}
    for payload in payloads:
        answer |= {name: value for name, value in payload.items() if name != "candidates"}
        for chunk in payload.get("candidates") or ():
            content = chunk.get("content") or {}
            candidate = candidates.setdefault(chunk.get("index", 0), {"content": {"parts": [], "role": "model"}})
            candidate |= {name: value for name, value in chunk.items() if name != "content"}
            for part in content.get("parts") or ():
                if {"partialArgs", "willContinue"} & (part.get("functionCall") or {}).keys():
                    return None  # only a stream has arguments in pieces
                _add_part(candidate["content"]["parts"], part)
    if not candidates or not all("finishReason" in candidate for candidate in candidates.values()):
        return None
    return {**answer, "candidates": [candidates[place] for place in sorted(candidates)]}


def _add_part(parts: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Adds a part; text is appended to the part before it, if that is plain text of the same kind."""
    before = parts[-1] if parts else {}
    if part.keys() <= {"text", "thought"} and "text" in part and before.keys() == part.keys():
        parts[-1] = {**before, "text": before["text"] + part["text"]}
    else:
        parts.append(part)


_FOLDS: Final[dict[str, Callable[[Iterator[dict[str, Any]]], dict[str, Any] | None]]] = {
    "anthropic": _anthropic,
    "openai_responses": _responses,
    "openai_chat": _chat,
    "gemini": _gemini,
}
_NAMED: Final = ("openai_responses", "gemini_interactions")
