"""Requests: bodies within their limits, checked before anything is done with them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from ag_ui.core import AssistantMessage, RunAgentInput, ToolMessage
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from callstream.agui.depth import is_deeper
from callstream.server.problems import Problem
from callstream.server.settings import Settings

MAX_ID: Final = 256
MAX_CALL_ID: Final = 16 * 1024
"""Ids of calls are the provider's or the host's, and some put whole signatures into them."""
_SHOWN_ERRORS: Final = 5
_DISCARDED: Final = 4 * 1024 * 1024
"""A body that is not much too large is read to its end, since a client that still writes may not hear the answer."""
_SURROGATES: Final = re.compile(
    rb"\\\\"  # a backslash that is meant: what follows it is no escape
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


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
    check_ids(parsed)
    return parsed


async def json_body(request: Request, settings: Settings, *, optional: bool = False) -> Any:
    """The body's JSON; with ``optional``, an empty body is None."""
    body = await _read(request, settings)
    if not body and optional:
        return None
    try:
        value = _decoded(body)
    except RecursionError:
        raise _wrong(f"expected JSON that nests at most {settings.max_depth} deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, "not_json", f"expected a body of JSON: {error}") from None
    if is_deeper(value, settings.max_depth):
        raise _wrong(f"expected JSON that nests at most {settings.max_depth} deep")
    return value


def _decoded(body: bytes) -> Any:
    """The body's JSON, with U+FFFD for halves of surrogate pairs: clients send back what a model has sent them."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        whole = _SURROGATES.sub(lambda found: b"\\ufffd" if found["half"] else found[0], body)
        if whole == body:
            raise
        return msgspec.json.decode(whole)


def is_id(text: str, most: int = MAX_ID) -> bool:
    """Whether it is short, and has nothing in it that a log or a database would stumble over."""
    return 0 < len(text) <= most and text.isprintable()


def checked_id(text: str, name: str, most: int = MAX_ID) -> str:
    """An id that a client chose."""
    if not is_id(text, most):
        raise _wrong(f"expected {name}, 1 to {most} printable characters")
    return text


def asked_id(asked: Mapping[str, str], name: str) -> str | None:
    """An id in the query, None if there is none."""
    text = asked.get(name)
    return checked_id(text, name) if text else None


def choice(asked: Mapping[str, str], name: str, choices: Iterable[str]) -> str | None:
    """A word of the query, None if there is none."""
    text = asked.get(name)
    if text and text not in choices:
        raise _wrong(f"expected {name} to be one of {', '.join(choices)}")
    return text or None


def number(asked: Mapping[str, str], name: str, default: int, *, most: int | None = None) -> int:
    """A whole number of the query or a header."""
    text = asked.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or (most is not None and int(text) > most):
        raise _wrong(f"expected {name} to be a whole number" + (f" up to {most}" if most is not None else ""))
    return int(text)


def check_ids(given: RunAgentInput) -> None:
    """Refuses an input with ids that a log, a header or a database would stumble over."""
    checked_id(given.thread_id, "threadId")
    checked_id(given.run_id, "runId")
    for number, message in enumerate(given.messages):
        if message.id:
            checked_id(message.id, f"messages.{number}.id", MAX_CALL_ID)
        if isinstance(message, ToolMessage):
            checked_id(message.tool_call_id, f"messages.{number}.toolCallId", MAX_CALL_ID)
        elif isinstance(message, AssistantMessage):
            for place, call in enumerate(message.tool_calls or ()):
                if call.id:
                    checked_id(call.id, f"messages.{number}.toolCalls.{place}.id", MAX_CALL_ID)
    for number, entry in enumerate(given.resume or ()):
        checked_id(entry.interrupt_id, f"resume.{number}.interruptId", MAX_CALL_ID)
    for number, tool in enumerate(given.tools or ()):
        checked_id(tool.name, f"tools.{number}.name")


async def _read(request: Request, settings: Settings) -> bytes:
    most = settings.max_body_bytes
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if most is None or size <= most:
                    chunks.append(chunk)
                elif size > most + _DISCARDED:
                    raise _too_large(most, closes=True)
                else:
                    chunks.clear()
        if most is not None and size > most:
            raise _too_large(most)
    except ClientDisconnect:
        raise Problem(HTTPStatus.BAD_REQUEST, "incomplete", "The body ended too early.") from None
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT, "too_slow", f"expected the body within {settings.body_seconds} s", closes=True
        ) from None
    return b"".join(chunks)


def _too_large(most: int, *, closes: bool = False) -> Problem:
    message = f"expected a body of at most {most} bytes"
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", message, closes=closes)


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
