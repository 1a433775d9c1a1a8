"""What the tap changes in a request, and what it learns from it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from callstream.tap.exchange import Exchange

SENTINEL = base64.b64encode(b"skip_thought_signature_validator").decode()
"""What Gemini takes for a signature where there is none."""

KnownSignature: TypeAlias = Callable[[str | None, str | None], str | None]
"""The signature that came with the call of that id and name, None if none is known."""


_GEMINI_SCHEMAS = ("parameters", "parametersJsonSchema", "parameters_json_schema")
"""Where a declaration has its schema. google-genai sends the name of the field as it came."""
_CALLING_CONFIG = (("toolConfig", "tool_config"), ("functionCallingConfig", "function_calling_config"))
_STREAM_ARGUMENTS = ("streamFunctionCallArguments", "stream_function_call_arguments")


def with_streamed_arguments(exchange: Exchange, body: bytes) -> bytes:
    """The request with Gemini's argument streaming switched on, where the server knows it and tools are declared.

    A request that says itself whether it wants it, in either spelling, is left alone: true, false and null all stand.
    The API takes the names of fields in camel case and in snake case, and google-genai mixes them in one request; a
    field that came in both would be anybody's guess. So each field is looked for under both names and written under
    the one that is there. A request in which one field has both names already is left alone, too.
    """
    if not exchange.is_vertex:
        return body
    request = _object(body)
    if request is None or not any(_declares_functions(tool) for tool in _list(request.get("tools"))):
        return body
    place: Any = request
    for spellings in _CALLING_CONFIG:
        named = [name for name in spellings if name in place]
        if len(named) > 1:
            return body
        name = named[0] if named else spellings[0]
        place[name] = place = {} if place.get(name) is None else place[name]
        if not isinstance(place, dict):
            return body
    if any(name in place for name in _STREAM_ARGUMENTS) or place.get("mode") == "NONE":
        return body
    place[_STREAM_ARGUMENTS[0]] = True
    return msgspec.json.encode(request)


def with_signatures(exchange: Exchange, body: bytes, known: KnownSignature) -> bytes:
    """The request with a thought signature on the first call of each step of the model's last turn that lacks one.

    Gemini 3 refuses a history without them. The signature that came with the call is used where it is known, the
    sentinel only where it is not. Earlier turns are not looked at by the provider, so they stay as they are.
    """
    if exchange.wire != "gemini":
        return body
    request = _object(body)
    contents = [content for content in _list((request or {}).get("contents")) if isinstance(content, dict)]
    turn = max((index for index, content in enumerate(contents) if _is_users_word(content)), default=-1)
    changed = False
    for content in contents[turn + 1 :]:
        parts = [part for part in _list(content.get("parts")) if isinstance(part, dict)]
        first = next((part for part in parts if isinstance(part.get("functionCall"), dict)), None)
        if content.get("role") == "model" and first is not None and not first.get("thoughtSignature"):
            call = first["functionCall"]
            first["thoughtSignature"] = known(call.get("id"), call.get("name")) or SENTINEL
            changed = True
    return msgspec.json.encode(request) if changed else body


def declared_tools(wire: str, body: bytes) -> dict[str, dict[str, Any]]:
    """The JSON Schemas of the tools that the request declares, by name."""
    request = _object(body) or {}
    found: dict[str, dict[str, Any]] = {}
    for tool in _list(request.get("tools")):
        if not isinstance(tool, dict):
            continue
        entries: list[tuple[dict[str, Any], Any]]
        match wire:
            case "gemini":
                declarations = tool.get("functionDeclarations") or tool.get("function_declarations")
                entries = [
                    (each, next((each[key] for key in _GEMINI_SCHEMAS if each.get(key)), None))
                    for each in _list(declarations)
                    if isinstance(each, dict)
                ]
            case "anthropic":
                entries = [(tool, tool.get("input_schema"))]
            case "openai_chat":
                function = tool.get("function")
                entries = [(function, function.get("parameters"))] if isinstance(function, dict) else []
            case _:
                entries = [(tool, tool.get("parameters"))]
        for entry, schema in entries:
            if isinstance(entry.get("name"), str):
                found[entry["name"]] = schema if isinstance(schema, dict) else {}
    return found


def is_stored(wire: str, body: bytes) -> bool:
    """Whether the server keeps the answer itself and will build on what it keeps, not on what it is sent."""
    if wire != "openai_responses":
        return False
    request = _object(body) or {}
    return request.get("store") is not False or bool(request.get("previous_response_id") or request.get("conversation"))


def _is_users_word(content: dict[str, Any]) -> bool:
    """Whether the user said something: an answer of a tool is not the user's word."""
    parts = [part for part in _list(content.get("parts")) if isinstance(part, dict)]
    return content.get("role") != "model" and any("functionResponse" not in part for part in parts)


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return request if isinstance(request, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _declares_functions(tool: Any) -> bool:
    return isinstance(tool, dict) and bool(tool.get("functionDeclarations") or tool.get("function_declarations"))
