"""Anthropic's way with arguments: held back value by value unless the tool asks, and unvalidated if it does.

``ScriptedProvider("anthropic", …, eager="known")`` behaves like the API, ``eager="refused"`` like a server that does not
know the field. ``garble`` gives the texts that models have been seen to write where they are not validated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias, get_args

from callstream.errors import UsageError, WireError
from callstream.jsontext import JsonStream
from callstream.testing.encoders.encoder import payload_of, with_payload
from callstream.testing.httpserver import Frame, ReceivedRequest
from callstream.testing.script import Delay, HttpError

FIELD = "eager_input_streaming"
BETA = "fine-grained-tool-streaming-2025-05-14"

Eager: TypeAlias = Literal["ignored", "known", "refused"]
Garbling: TypeAlias = Literal["unquoted", "unopened", "unquoted_items", "swallowed", "trailing"]


# -- the field --


def eager_tools(request: ReceivedRequest) -> frozenset[str]:
    """The tools of a request whose arguments are to be streamed as they are written."""
    by_default = BETA in request.headers.get("anthropic-beta", "")
    return frozenset(
        tool["name"]
        for tool in _tools(request)
        if (by_default if tool.get(FIELD) is None else tool[FIELD]) and "name" in tool
    )


def eager_refusal(request: ReceivedRequest, *, wrapped: int = 0) -> HttpError | None:
    """How a server that does not know the field refuses a request that has it; None if the request does not.

    ``wrapped``: how often the error stands as text inside another, as gateways do it.
    """
    number = next((number for number, tool in enumerate(_tools(request)) if FIELD in tool), None)
    if number is None:
        return None
    message = f"tools.{number}.custom.{FIELD}: Extra inputs are not permitted"
    for _ in range(wrapped):
        inner = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        message = f"upstream error 400: {json.dumps(inner)}"
    return HttpError(400, message)


def _tools(request: ReceivedRequest) -> list[dict[str, Any]]:
    tools = request.json.get("tools")
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def hold_values(frames: Iterable[Frame], eager: frozenset[str], per_second: float | None) -> Iterator[Frame]:
    """The frames of a stream in which each argument of tools that are not eager comes when it is whole.

    ``per_second`` is how many frames are sent a second: what is held back takes its time all the same.
    """
    held: _Held | None = None
    for frame in frames:
        if not isinstance(frame, bytes):
            yield frame
        elif b'"type":"tool_use"' in frame:
            held = None if payload_of(frame)["content_block"]["name"] in eager else _Held()
            yield frame
        elif held is not None and b'"input_json_delta"' in frame:
            text = payload_of(frame)["delta"]["partial_json"]
            whole = held.feed(text)
            if whole or not text:
                yield _delta(frame, whole)
            elif per_second is not None:
                yield Delay(1 / per_second)
            held.frame = frame
        elif held is not None and b'"content_block_stop"' in frame:
            if held.frame is not None and (rest := held.end()):
                yield _delta(held.frame, rest)
            held = None
            yield frame
        else:
            yield frame


def _delta(frame: bytes, text: str) -> bytes:
    payload = payload_of(frame)
    payload["delta"]["partial_json"] = text
    return with_payload(frame, payload)


class _Held:
    """Argument text up to the end of the last argument that is whole."""

    def __init__(self) -> None:
        self._stream = JsonStream()
        self._text = ""
        self._is_broken = False
        self.frame: bytes | None = None

    def feed(self, text: str) -> str:
        """What may leave: everything up to the end of an argument."""
        leaving = ""
        for character in text:
            self._text += character
            if not self._is_broken and self._ends_argument(character):
                leaving, self._text = leaving + self._text, ""
        return leaving

    def _ends_argument(self, character: str) -> bool:
        try:
            changes = self._stream.feed(character)
        except WireError:
            self._is_broken = True
            return False
        return any(len(change.path) == 1 and change.kind in ("set", "close") for change in changes)

    def end(self) -> str:
        """The rest, unless it is half an argument: the API never sends that."""
        return self._text if self._is_broken or self._stream.complete else ""


# -- what is not validated --


def garble(args: dict[str, Any], how: Garbling) -> str:
    """Argument text with a mistake that models make where their text is not validated: ``ToolCall(name, text=…)``.

    ``unquoted``: the first string without its quotes. ``unopened``: without the opening one. ``unquoted_items``: the first
    array of strings without theirs. ``swallowed``: the first string swallows all arguments after it, so that the text is
    JSON and the arguments are wrong. ``trailing``: something follows the end of the object.
    """
    text = json.dumps(args)
    if how == "trailing":
        return text + '"}'
    kind = list if how == "unquoted_items" else str
    name = next((name for name, value in args.items() if isinstance(value, kind)), None)
    if name is None:
        raise UsageError(
            f"expected arguments with {'an array' if kind is list else 'a string'} in them, got {args!r:.80}"
        )
    written = json.dumps(args[name])
    before, _, after = text.partition(f"{json.dumps(name)}: {written}")
    before += f"{json.dumps(name)}: "
    match how:
        case "unquoted":
            return before + written[1:-1] + after
        case "unopened":
            return before + written[1:] + after
        case "unquoted_items":
            return before + written.replace('"', "") + after
        case "swallowed":
            if after == "}":
                raise UsageError(f"expected arguments after {name!r}, which it could swallow")
            return before + written[:-1] + json.dumps('"' + after[:-1].removesuffix('"'))[1:] + "}"
        case _:
            raise UsageError(f"expected one of {', '.join(get_args(Garbling))}, got {how!r}")
