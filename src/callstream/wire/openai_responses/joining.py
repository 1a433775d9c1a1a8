"""OpenAI Responses: two streamed answers as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from callstream.wire.joining import Joint, Saying, add_usage
from callstream.wire.openai_responses.decoding import CALL_ITEMS, ENDS

_BEGINNINGS = ("response.created", "response.in_progress", "response.queued")


class OpenAIResponsesJoint(Joint):
    """The final response is the second one, by whose id the server goes on, with the items of both."""

    def __init__(self) -> None:
        super().__init__()
        self._response_id: Any = None
        self._sequence = -1  # the last number that left
        self._items: list[Any] = []  # of the first response
        self._missing: list[int] = []  # the numbers of items that were dropped

    def _first(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        if value.get("type") in ENDS:
            response = value.get("response") or {}
            self._response_id = response.get("id")
            self._items = self._kept(response.get("output") or [])
            self._usage = response.get("usage") or {}
            return None, value
        return self._numbered(value, -sum(missing < value.get("output_index", 0) for missing in self._missing)), None

    def _without_dropped(self, value: dict[str, Any]) -> dict[str, Any] | None:
        if value.get("type") in ENDS:
            return value
        index = value.get("output_index")
        if isinstance(index, int) and index not in self._missing:
            self._missing.append(index)
        return None

    def _unjoined(self, value: dict[str, Any]) -> dict[str, Any]:
        after = self._numbered(value, 0)
        after["response"] = {**(value.get("response") or {}), "output": self._items}
        return after

    def _kept(self, items: list[Any]) -> list[Any]:
        return [item for item in items if not (item.get("type") in CALL_ITEMS and item.get("call_id") in self._dropped)]

    def _event_name(self, value: dict[str, Any]) -> bytes:
        return str(value["type"]).encode()

    def _speech(self, text: str) -> Iterable[dict[str, Any]]:
        message = _message(self._response_id, text)
        begun = {**message, "status": "in_progress", "content": []}
        (part,) = message["content"]
        where = {"item_id": message["id"], "output_index": len(self._items), "content_index": 0}
        item = {"output_index": len(self._items)}
        events = [
            {"type": "response.output_item.added", **item, "item": begun},
            {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **where, "delta": text, "logprobs": []},
            {"type": "response.output_text.done", **where, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **where, "part": part},
            {"type": "response.output_item.done", **item, "item": message},
        ]
        for event in events:
            self._sequence += 1
            yield {**event, "sequence_number": self._sequence}
        self._items = [*self._items, message]

    def _turn_ended(self, value: dict[str, Any]) -> dict[str, Any]:
        return value

    @staticmethod
    def _add_text(answer: dict[str, Any], saying: Saying) -> None:
        answer["output"].append(_message(answer.get("id"), saying.text))

    def _second(self, value: dict[str, Any]) -> dict[str, Any] | None:
        if value.get("type") in _BEGINNINGS:
            return None
        after = self._numbered(value, len(self._items))
        response = value.get("response")
        if value.get("type") in ENDS and isinstance(response, dict):
            after["response"] = {**response, "output": [*self._items, *(response.get("output") or [])]}
            if response.get("usage"):
                after["response"]["usage"] = add_usage(self._usage, response["usage"])
        return after

    def _numbered(self, value: dict[str, Any], by: int) -> dict[str, Any]:
        after = dict(value)
        if isinstance(value.get("output_index"), int):
            after["output_index"] = value["output_index"] + by
        if isinstance(value.get("sequence_number"), int):
            self._sequence = after["sequence_number"] = max(self._sequence + 1, value["sequence_number"])
        return after


def _message(response_id: Any, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": f"msg_of_{response_id}",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
