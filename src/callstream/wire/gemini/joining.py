"""Gemini: two streamed answers as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from callstream.wire.joining import Joint, Saying, add_usage


class GeminiJoint(Joint):
    """Chunks follow one another, and only the last has a finish reason."""

    def _first(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self._usage = value.get("usageMetadata") or self._usage
        candidates = value.get("candidates") or []
        if not any(candidate.get("finishReason") for candidate in candidates):
            return value, None
        if not any(_parts(candidate) for candidate in candidates):
            return None, value
        unfinished = [_without(each, "finishReason") for each in candidates]
        return {**value, "candidates": unfinished}, {
            **value,
            "candidates": [_without(each, "content") for each in candidates],
        }

    def _without_dropped(self, value: dict[str, Any]) -> dict[str, Any] | None:
        candidates = [
            {**each, "content": {**(each.get("content") or {}), "parts": self._kept(_parts(each))}}
            for each in value.get("candidates") or []
        ]
        return {**value, "candidates": candidates}

    def _kept(self, parts: list[Any]) -> list[Any]:
        return [part for part in parts if (part.get("functionCall") or {}).get("id") not in self._dropped]

    def _speech(self, text: str) -> Iterable[dict[str, Any]]:
        yield {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": text}]}}]}

    def _turn_ended(self, value: dict[str, Any]) -> dict[str, Any]:
        return value

    @staticmethod
    def _add_text(answer: dict[str, Any], saying: Saying) -> None:
        content = answer["candidates"][0].setdefault("content", {"role": "model"})
        content["parts"] = [*(content.get("parts") or ()), {"text": saying.text}]

    def _second(self, value: dict[str, Any]) -> dict[str, Any] | None:
        if not value.get("usageMetadata"):
            return value
        return {**value, "usageMetadata": add_usage(self._usage, value["usageMetadata"])}


def _without(candidate: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: candidate[name] for name in candidate if name != field}


def _parts(candidate: dict[str, Any]) -> list[Any]:
    return (candidate.get("content") or {}).get("parts") or []
