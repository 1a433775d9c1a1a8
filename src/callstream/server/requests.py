"""Requests: bodies within their limits, checked before anything is done with them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from ag_ui.core import RunAgentInput
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from callstream.server.problems import Problem
from callstream.server.settings import Settings

MAX_ID: Final = 256
_SHOWN_ERRORS: Final = 5


async def run_input(request: Request, settings: Settings) -> RunAgentInput:
    """The body as AG-UI's RunAgentInput."""
    given = await json_body(request, settings)
    if not isinstance(given, dict):
        raise _wrong(f"expected an object (AG-UI's RunAgentInput), got {_kind(given)}")
    for name, most in (("messages", settings.max_messages), ("tools", settings.max_tools)):
        items = given.get(name)
        if most is not None and isinstance(items, list) and len(items) > most:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_many", f"expected at most {most} {name}, got {len(items)}"
            )
    try:
        parsed = RunAgentInput.model_validate(given)
    except ValidationError as error:
        raise _wrong(_told(error)) from None
    checked_id(parsed.thread_id, "threadId")
    checked_id(parsed.run_id, "runId")
    return parsed


async def json_body(request: Request, settings: Settings, *, optional: bool = False) -> Any:
    """The body's JSON; with ``optional``, an empty body is None."""
    body = await _read(request, settings.max_body_bytes)
    if not body and optional:
        return None
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _wrong(f"expected JSON that nests at most {settings.max_depth} deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, "not_json", f"expected a body of JSON: {error}") from None
    if _is_deeper(value, settings.max_depth):
        raise _wrong(f"expected JSON that nests at most {settings.max_depth} deep")
    return value


def checked_id(text: str, name: str) -> str:
    """An id that a client chose: short, and nothing in it that a log or a database would stumble over."""
    if not 0 < len(text) <= MAX_ID or not text.isprintable():
        raise _wrong(f"expected {name}, 1 to {MAX_ID} printable characters")
    return text


def number(asked: Mapping[str, str], name: str, default: int, *, most: int | None = None) -> int:
    """A whole number of the query or a header."""
    text = asked.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or (most is not None and int(text) > most):
        raise _wrong(f"expected {name} to be a whole number" + (f" up to {most}" if most is not None else ""))
    return int(text)


async def _read(request: Request, most: int | None) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if most is not None and size > most:
                raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"expected at most {most} bytes")
            chunks.append(chunk)
    except ClientDisconnect:
        raise Problem(HTTPStatus.BAD_REQUEST, "incomplete", "The body ended too early.") from None
    return b"".join(chunks)


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _told(error: ValidationError) -> str:
    """Where and what, without what came: that may be long, or somebody's secret."""
    found = [
        f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f"; and {len(found) - _SHOWN_ERRORS} more" if len(found) > _SHOWN_ERRORS else ""
    return "expected AG-UI's RunAgentInput; " + "; ".join(found[:_SHOWN_ERRORS])[:1000] + more


def _wrong(message: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "wrong_input", message)


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
