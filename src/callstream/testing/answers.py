"""What a request asks for, and the forms that answers take beside the plain stream that the encoders give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from callstream.testing.encoders import ENCODERS, encode_whole, frames
from callstream.testing.encoders.encoder import Form
from callstream.testing.httpserver import Frame, HttpAnswer, ReceivedRequest
from callstream.testing.script import Cut, Delay, HttpError, Parallel, Script, Step, ToolCall, script_to_json


class Route(msgspec.Struct, frozen=True):
    """What a request asks for. ``model`` is the one that it names."""

    wire: str
    form: Form
    model: str | None


def base_path(wire: str) -> str:
    """What an SDK's ``base_url`` has after the host."""
    return ENCODERS[wire].base_path


def place_of(wire: str) -> str:
    """Where the wire's requests go, for people."""
    return ENCODERS[wire].place


def wire_of(path: str) -> str | None:
    """The wire that is spoken at a path."""
    return next((wire for wire, encoder in ENCODERS.items() if encoder.path.search(path)), None)


def route_of(request: ReceivedRequest) -> Route | None:
    """What the request asks for; None if it belongs to no wire."""
    if request.method == "GET":
        return _resumed(request)
    if request.method != "POST":
        return None
    for wire, encoder in ENCODERS.items():
        match = encoder.path.search(request.path)
        if match is not None:
            body = request.json
            fields = body if isinstance(body, dict) else {}
            named = match.groupdict()
            form = encoder.form_of(named.get("verb"), request.query, fields)
            return Route(wire, form, named.get("model") or fields.get("model"))
    return None


def _resumed(request: ReceivedRequest) -> Route | None:
    for wire, encoder in ENCODERS.items():
        if encoder.resumed_path is not None and encoder.resumed_path.search(request.path):
            return Route(wire, "events" if request.query.get("stream") == "true" else "whole", None)
    return None


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


# -- one script encoded once for many responses that differ in their numbers alone -------------------------------------


_PREFIX = "918273645"
_FIRST = int(f"{_PREFIX}000000")
_NUMBER = re.compile(rf"{_PREFIX}(\d{{6}})".encode())


def numbers_used(script: Script) -> int:
    """How many numbers the ids of one response take: the next response begins after them."""
    calls = [call for step in script for call in (step.calls if isinstance(step, Parallel) else [step])]
    return max(1, sum(isinstance(call, ToolCall) and call.call_id is None for call in calls))


class NumberedFrames:
    """The frames of a script for any first number: the same as ``frames`` gives, at a fraction of the cost.

    They are encoded once with numbers that nothing else in the script looks like, which are then replaced.
    """

    def __init__(self, wire: str, script: Script, model: str | None) -> None:
        self._wire = wire
        self._script = script
        self._model = model
        self._encoded: list[bytes | Delay | Cut] = []
        if ENCODERS[wire].is_text and _PREFIX not in f"{script_to_json(script)!r}{model}":
            self._encoded = list(frames(wire, script, model=model, first_id=_FIRST))

    def frames(self, first_id: int) -> Iterator[bytes | Delay | Cut]:
        if not self._encoded:
            return frames(self._wire, self._script, model=self._model, first_id=first_id)
        return self._renumbered(first_id)

    def _renumbered(self, first_id: int) -> Iterator[bytes | Delay | Cut]:
        def number(match: re.Match[bytes]) -> bytes:
            return b"%d" % (first_id + int(match[1]))

        for frame in self._encoded:
            yield _NUMBER.sub(number, frame) if isinstance(frame, bytes) else frame
