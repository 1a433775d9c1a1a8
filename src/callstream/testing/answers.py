"""The forms that answers take, beside the plain stream that the encoders give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from callstream.testing.encoders import ENCODERS, encode_whole
from callstream.testing.httpserver import Frame, HttpAnswer, ReceivedRequest
from callstream.testing.routes import Route
from callstream.testing.script import Delay, HttpError, Parallel, Step, ToolCall


def refused(wire: str, refusal: HttpError, route: Route | None = None, *, retry: bool = True) -> HttpAnswer:
    """A refusal as the wire's error answer. ``retry=False`` tells SDKs that look for it not to try again."""
    body = encode_whole(wire, [refusal])
    if route is not None and route.form == "array":
        body = b"[" + body + b"]"
    headers = [("content-type", "application/json; charset=utf-8")]
    if refusal.retry_after is not None:
        headers.append(("retry-after", f"{refusal.retry_after:g}"))
    if not retry:
        headers.append(("x-should-retry", "false"))
    return HttpAnswer(refusal.status, headers, [body], length=len(body))


def request_ids(wire: str, number: int) -> list[tuple[str, str]]:
    header = ENCODERS[wire].request_id
    return [] if header is None else [(header, f"req_{number}")]


def first_waits(steps: list[Step]) -> list[Delay]:
    """The delays that a script begins with."""
    waits = []
    for step in steps:
        if not isinstance(step, Delay):
            break
        waits.append(step)
    return waits


def unstreamed(steps: list[Step]) -> list[Step]:
    """The steps with all calls whole; a call that never ends is not there at all then."""

    def whole(calls: Sequence[ToolCall]) -> list[ToolCall]:
        return [msgspec.structs.replace(call, streamed=False) for call in calls if call.stop_after is None]

    made: list[Step] = []
    for step in steps:
        if isinstance(step, ToolCall):
            made += whole([step])
        elif isinstance(step, Parallel):
            made.append(Parallel(whole(step.calls)))
        else:
            made.append(step)
    return made


def asks_for_streamed_args(request: ReceivedRequest) -> bool:
    config = request.json.get("toolConfig") or request.json.get("tool_config") or {}
    calling = config.get("functionCallingConfig") or config.get("function_calling_config") or {}
    return bool(calling.get("streamFunctionCallArguments") or calling.get("stream_function_call_arguments"))


def asks_for_usage(request: ReceivedRequest) -> bool:
    options = request.json.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def without_usage(sent: Iterable[Frame]) -> Iterator[Frame]:
    """Chat completions tell usage only when asked: then in every chunk, and in one of their own at the end."""
    for frame in sent:
        if not isinstance(frame, bytes):
            yield frame
        elif b'"choices":[],' not in frame:
            yield frame.replace(b',"usage":null}\n\n', b"}\n\n")


def as_array(sent: Iterable[Frame]) -> Iterator[Frame]:
    """Gemini's stream without ``alt=sse``: its responses as the items of one JSON array."""
    opening = b"["
    is_whole = False
    for frame in sent:
        if isinstance(frame, bytes):
            is_whole = b'"finishReason"' in frame or frame.startswith(b'data: {"error"')
            yield opening + frame.removeprefix(b"data: ").removesuffix(b"\r\n\r\n")
            opening = b",\r\n"
        else:
            yield frame
    if is_whole:
        yield b"]"
