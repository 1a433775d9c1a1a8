"""Anthropic's Messages API: named events, one content block after another, ``message_start`` to ``message_stop``.

Arguments are held back value by value unless the tool asks for them eagerly; then they are not validated.
``ScriptedProvider("anthropic", …, eager="known")`` behaves like the API, ``eager="refused"`` like a server that does not
know the field. ``garble`` returns texts of the kinds that models have written where these are not validated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from callstream.errors import UsageError, WireError
from callstream.jsontext import JsonStream
from callstream.testing.encoders.encoder import Credentials, Encoder, argument_text, named_event
from callstream.testing.httpserver import Frame, ReceivedRequest
from callstream.testing.script import Delay, Failure, HttpError, Text, Thought, ToolCall

_SPACED = (", ", ": ")  # the model's own habit


class AnthropicEncoder(Encoder):
    model = "claude-sonnet-5-5-20250929"
    path = re.compile(
        r"/messages$|/publishers/anthropic/models/(?P<model>[^/:]+):(?P<verb>streamRawPredict|rawPredict)$"
    )
    place = "/v1/messages"
    upstream = "https://api.anthropic.com"
    variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_BASE_URL",)
    credentials: ClassVar[Credentials] = (("ANTHROPIC_API_KEY", "none"),)
    request_id = "request-id"
    failure_status = 529
    kinds: ClassVar[Mapping[int, str]] = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
    other_kind = "api_error"
    ends = ("end_turn", "tool_use", "max_tokens")
    pings = True

    def begin(self) -> Iterator[bytes]:
        yield self._event("message_start", message=self._message(1))

    def text(self, step: Text) -> Iterator[bytes]:
        yield from self._start({"type": "text", "text": ""})
        for piece in self.pieces(step.text, step.size):
            yield self._delta(type="text_delta", text=piece)
        self.content[-1]["text"] = step.text
        yield self._stop()

    def thought(self, step: Thought) -> Iterator[bytes]:
        signature = step.signature or f"sig_{self.response_number}_{len(self.content)}"
        yield from self._start({"type": "thinking", "thinking": "", "signature": ""})
        for piece in self.pieces(step.text, step.size):
            yield self._delta(type="thinking_delta", thinking=piece)
        yield self._delta(type="signature_delta", signature=signature)
        self.content[-1] |= {"thinking": step.text, "signature": signature}
        yield self._stop()

    def call(self, call: ToolCall) -> Iterator[bytes]:
        text = argument_text(call, _SPACED)
        block: dict[str, Any] = {"type": "tool_use", **self.named(call, "toolu_"), "name": call.name, "input": {}}
        block["caller"] = {"type": "direct"}
        pieces = self.argument_pieces(call, text)
        args = self.parsed(text) if call.stop_after is None else None
        if not call.streamed and args is not None:
            # A call that came whole has its input in the start of its block, and no delta.
            yield from self._start(block | {"input": args})
            yield self._stop()
            return
        yield from self._start(block)
        for piece in {None: ["", *pieces], "first": pieces, "last": [text]}[call.carrying]:
            yield self._delta(type="input_json_delta", partial_json=piece)
        if call.stop_after is None:
            self.content[-1]["input"] = args
            if args is None:
                self.malformed = text
            yield self._stop()

    def failure(self, step: Failure) -> Iterator[bytes]:
        yield named_event("error", self.error(step))

    def finish(self) -> Iterator[bytes]:
        if self.is_open:  # the API ends a block that ran out of tokens as it ends any other
            yield self._stop()
        delta = {"stop_reason": self.finish_reason, "stop_sequence": None, "stop_details": None}
        usage = _usage(self.output_tokens)
        del usage["cache_creation"], usage["service_tier"]
        yield self._event("message_delta", delta=delta, usage=usage)
        yield self._event("message_stop")

    def whole(self) -> Any:
        return self._message(self.output_tokens) | {"content": self.content}

    def error_body(self, status: int, kind: str, message: str) -> Any:
        request_id = f"req_{self.response_number}"
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}

    def _message(self, output_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model_name,
            "id": f"msg_{self.response_number}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": self.finish_reason,
            "stop_sequence": None,
            "stop_details": None,
            "usage": _usage(output_tokens),
        }

    def _start(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield self._event("content_block_start", index=len(self.content), content_block=block)
        if not self.content and self.pings:
            yield b'event: ping\ndata: {"type": "ping"}\n\n'
        self.content.append(dict(block))
        self.is_open = True

    def _delta(self, **delta: Any) -> bytes:
        return self._event("content_block_delta", index=len(self.content) - 1, delta=delta)

    def _stop(self) -> bytes:
        self.is_open = False
        return self._event("content_block_stop", index=len(self.content) - 1)

    def _event(self, name: str, **fields: Any) -> bytes:
        return named_event(name, {"type": name, **fields})


def _usage(output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": 25,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


# -- arguments that are held back --------------------------------------------------------------------------------------

FIELD = "eager_input_streaming"
BETA = "fine-grained-tool-streaming-2025-05-14"

Eager: TypeAlias = Literal["ignored", "known", "refused"]
Garbling: TypeAlias = Literal["unquoted", "unopened", "unquoted_items", "swallowed", "trailing"]


# -- the field --


def eager_tools(request: ReceivedRequest) -> frozenset[str]:
    """The tools of a request whose arguments should be streamed as they are written."""
    by_default = BETA in request.headers.get("anthropic-beta", "")
    return frozenset(
        tool["name"]
        for tool in _tools(request)
        if (by_default if tool.get(FIELD) is None else tool[FIELD]) and "name" in tool
    )


def eager_refusal(request: ReceivedRequest, *, wrapped: int = 0) -> HttpError | None:
    """How a server that does not know the field refuses a request that has it; None if the request does not.

    ``wrapped``: how many times the error is nested as text inside another, as gateways do it.
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
    """The frames of a stream in which arguments of tools that are not eager come only once each is whole.

    ``per_second`` is how many frames are sent per second: frames that are held back take their time all the same.
    """
    held: _Held | None = None
    for frame in frames:
        if not isinstance(frame, bytes):
            yield frame
        elif b'"type":"tool_use"' in frame:
            held = None if _payload(frame)["content_block"]["name"] in eager else _Held()
            yield frame
        elif held is not None and b'"input_json_delta"' in frame:
            text = _payload(frame)["delta"]["partial_json"]
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


def _payload(frame: bytes) -> dict[str, Any]:
    return dict(json.loads(frame.partition(b"data: ")[2]))


def _delta(frame: bytes, text: str) -> bytes:
    payload = _payload(frame)
    payload["delta"]["partial_json"] = text
    return named_event(payload["type"], payload)


class _Held:
    """Argument text up to the end of the last argument that is whole."""

    def __init__(self) -> None:
        self._stream = JsonStream()
        self._text = ""
        self._is_broken = False
        self.frame: bytes | None = None

    def feed(self, text: str) -> str:
        """The text that may leave: everything up to the end of an argument."""
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


# -- unvalidated arguments --


def garble(args: dict[str, Any], how: Garbling) -> str:
    """Argument text with a mistake that models make where their text is not validated: ``ToolCall(name, text=…)``.

    ``unquoted``: the first string without its quotes. ``unopened``: without the opening one. ``unquoted_items``: the first
    array of strings without their quotes. ``swallowed``: the first string swallows all arguments after it, so that the text
    is JSON but the arguments are wrong. ``trailing``: something follows the end of the object.
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
