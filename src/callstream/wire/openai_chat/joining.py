"""Chat completions: two streamed answers as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from callstream.wire.joining import Joint, Saying, add_usage

_CALLS = ("tool_calls", "function_call")


class OpenAIChatJoint(Joint):
    """The chunks of the second answer have the id of the first, and do not name the role again: SDKs would join the two."""

    def __init__(self) -> None:
        super().__init__()
        self._same: dict[str, Any] = {}  # what all chunks of an answer repeat
        self._model = ""

    def _first(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self._same = {field: value[field] for field in ("id", "created") if field in value}
        self._model = value.get("model", self._model)
        self._usage = value.get("usage") or self._usage
        choices = value.get("choices") or []
        if not choices:
            return None, value
        going_on = [self._renumbered({**choice, "finish_reason": None}) for choice in choices]
        if not any(choice.get("finish_reason") for choice in choices):
            return {**value, "choices": going_on}, None
        if not any(_speaks(choice) for choice in choices):
            return None, value
        return {**value, "choices": going_on}, {
            **value,
            "choices": [{**choice, "delta": {}} for choice in choices],
        }

    def _without_dropped(self, value: dict[str, Any]) -> dict[str, Any] | None:
        choices = []
        for choice in value.get("choices") or []:
            delta = choice.get("delta") or {}
            kept = [call for call in delta.get("tool_calls") or [] if call.get("id") not in self._dropped]
            rest = {field: of for field, of in delta.items() if field not in ("tool_calls", "function_call")}
            choices.append({**choice, "delta": {**rest, "tool_calls": kept} if kept else rest})
        return {**value, "choices": choices} if any(_speaks(each) or each["delta"] for each in choices) else None

    def _renumbered(self, choice: dict[str, Any]) -> dict[str, Any]:
        calls = (choice.get("delta") or {}).get("tool_calls")
        if not calls or not self._dropped:
            return choice
        moved = [
            {**call, "index": max(0, call["index"] - len(self._dropped))}
            if isinstance(call.get("index"), int)
            else call
            for call in calls
        ]
        return {**choice, "delta": {**choice["delta"], "tool_calls": moved}}

    def _speech(self, text: str) -> Iterable[dict[str, Any]]:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        yield {**self._same, "object": "chat.completion.chunk", "model": self._model, "choices": [choice]}

    def _turn_ended(self, value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "choices": [_ended(choice) for choice in value.get("choices") or []]}

    @staticmethod
    def _add_text(answer: dict[str, Any], saying: Saying) -> None:
        message = answer["choices"][0]["message"]
        message["content"] = "\n".join(filter(None, (message.get("content"), saying.text)))
        if saying.is_last_word:
            answer["choices"] = [_ended(choice) for choice in answer["choices"]]

    def _second(self, value: dict[str, Any]) -> dict[str, Any] | None:
        choices = []
        for choice in value.get("choices") or []:
            delta = choice.get("delta")
            if isinstance(delta, dict) and "role" in delta:
                choice = {**choice, "delta": {field: delta[field] for field in delta if field != "role"}}
            choices.append(choice)
        after = {**value, **self._same}
        if "choices" in value:
            after["choices"] = choices
        if value.get("usage"):
            after["usage"] = add_usage(self._usage, value["usage"])
        return after


def _ended(choice: dict[str, Any]) -> dict[str, Any]:
    return {**choice, "finish_reason": "stop"} if choice.get("finish_reason") in _CALLS else choice


def _speaks(choice: dict[str, Any]) -> bool:
    return any(value for field, value in (choice.get("delta") or {}).items() if field != "role")
