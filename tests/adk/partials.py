"""Partial responses of a model, and a reader of them."""

from __future__ import annotations

from typing import Any

from google.adk.models.llm_response import LlmResponse
from google.genai import types

STOP = types.FinishReason.STOP


def response(*parts: types.Part, partial: bool = True, **rest: Any) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=list(parts)), partial=partial, **rest)


def function(**fields: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(**fields))


def at(path: str | None, value: Any = None, more: bool | None = None) -> types.PartialArg:
    kind = {str: "string_value", bool: "bool_value", int: "number_value", float: "number_value"}.get(type(value))
    return types.PartialArg(json_path=path, will_continue=more, **({kind: value} if kind else {}))


def final(*parts: types.Part, **rest: Any) -> LlmResponse:
    return response(*parts, partial=False, **{"finish_reason": STOP, **rest})
