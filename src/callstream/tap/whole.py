"""An answer that was not streamed, on its way to the SDK: calls that were not finished are left out of it.

By the laws of ``order``: reasoning that led to nothing but such calls is left out with them, a signature of Gemini's
moves to the next call, what is left keeps its place, and the stop reason stays. An answer that lacks nothing passes byte
for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, TypeAlias

from callstream.events import CallDiscarded, CallStarted, WireEvent
from callstream.tap.anthropic import THINKING
from callstream.tap.frames import read_json, write_json
from callstream.tap.gemini import SIGNATURE
from callstream.tap.order import kept
from callstream.wire import Decoder
from callstream.wire.openai_responses import CALL_ITEMS

IsLeftOut: TypeAlias = Callable[[], bool]
"""Whether the next call of the answer is left out. Asked once a call, in the order of the bytes."""


def without_unfinished(
    body: bytes,
    decoder: Decoder[Any],
    events: Iterable[WireEvent],
    *,
    collapse: Callable[[str], bool],
    stored: bool = False,
) -> bytes:
    """The answer that the decoder has read as these events. ``collapse`` and ``stored`` as for a rewriter."""
    names: dict[str, str] = {}
    left_out: set[str] = set()
    for event in events:
        if isinstance(event, CallStarted):
            names[event.call_id] = event.name
        elif isinstance(event, CallDiscarded) and (event.call_id not in names or collapse(names[event.call_id])):
            left_out.add(event.call_id)
    answer = read_json(body) if left_out else None
    if not isinstance(answer, dict):
        return body
    calls = iter([call_id in left_out for call_id in dict.fromkeys(decoder.pieces)])
    _EDITS[decoder.wire](answer, lambda: next(calls, False), stored)
    return write_json(answer)


def _gemini(answer: dict[str, Any], is_left_out: IsLeftOut, stored: bool) -> None:
    for candidate in answer.get("candidates") or ():
        content = candidate.get("content") or {}
        moved = None
        parts = []
        for part in content.get("parts") or ():
            if "functionCall" in part:
                if is_left_out():
                    moved = moved or part.get(SIGNATURE)
                    continue
                if moved is not None:
                    part.setdefault(SIGNATURE, moved)
                    moved = None
            parts.append(part)
        if "parts" in content:
            content["parts"] = parts


def _anthropic(answer: dict[str, Any], is_left_out: IsLeftOut, stored: bool) -> None:
    answer["content"] = _kept(answer["content"], ("tool_use",), THINKING, is_left_out)


def _openai_chat(answer: dict[str, Any], is_left_out: IsLeftOut, stored: bool) -> None:
    for choice in answer["choices"]:
        message = choice.get("message") or {}
        if message.get("tool_calls"):
            message["tool_calls"] = [entry for entry in message["tool_calls"] if not is_left_out()]
            if not message["tool_calls"]:
                del message["tool_calls"]
        if message.get("function_call") is not None and is_left_out():
            del message["function_call"]


def _openai_responses(answer: dict[str, Any], is_left_out: IsLeftOut, stored: bool) -> None:
    answer["output"] = _kept(answer["output"], CALL_ITEMS, () if stored else ("reasoning",), is_left_out)


def _kept(
    items: list[dict[str, Any]], calls: Container[str], reasoning: Container[str], is_left_out: IsLeftOut
) -> list[dict[str, Any]]:
    return list(
        kept(
            items,
            is_left_out=lambda item: item.get("type", "") in calls and is_left_out(),
            is_reasoning=lambda item: item.get("type", "") in reasoning,
        )
    )


_EDITS: dict[str, Callable[[dict[str, Any], IsLeftOut, bool], None]] = {
    "gemini": _gemini,
    "anthropic": _anthropic,
    "openai_chat": _openai_chat,
    "openai_responses": _openai_responses,
}
