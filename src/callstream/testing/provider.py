"""Scripted providers: the bytes that a real provider would send, over real HTTP on loopback.

::

    async with ScriptedProvider("anthropic", [ToolCall("get_weather", {"city": "Paris"})]) as provider:
        client = AsyncAnthropic(base_url=provider.base_url, api_key="none")

The provider's own SDK runs against it unchanged. The request decides whether the answer is streamed, and in which form, as
with the real API. As a separate server::

    python -m callstream.testing.provider --wire gemini --script script.json --port 0
"""

from __future__ import annotations

import argparse
import inspect
import re
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle, takewhile
from pathlib import Path
from traceback import format_exception
from typing import Literal, TypeAlias, cast, get_args

import msgspec

from callstream.errors import CallstreamError, UsageError
from callstream.testing.encoders import ENCODERS, WIRES, encode_whole, frames
from callstream.testing.encoders.anthropic import Eager, eager_refusal, eager_tools, hold_values
from callstream.testing.encoders.encoder import Form
from callstream.testing.encoders.gemini import Signatures
from callstream.testing.httpserver import Coding, Frame, HttpAnswer, HttpServer, ReceivedRequest
from callstream.testing.script import (
    Cut,
    Delay,
    Failure,
    Finish,
    HttpError,
    Script,
    Step,
    ToolCall,
    Truncated,
    calls_of,
    checked,
    script_from_json,
    script_to_json,
    scripts_in,
    with_calls,
)

# What a request asks for, and the forms of answers other than the plain stream that encoders produce.


class Route(msgspec.Struct, frozen=True):
    """What a request asks for. ``model`` is the one that it names."""

    form: Form
    model: str | None


def base_path(wire: str) -> str:
    """The part of an SDK's ``base_url`` after the host."""
    return ENCODERS[wire].base_path


def wire_of(path: str) -> str | None:
    """The wire that is spoken at a path."""
    return next((wire for wire, encoder in ENCODERS.items() if encoder.path.search(path)), None)


def route_of(wire: str, request: ReceivedRequest) -> Route | None:
    """What the request asks for; None if it does not belong to the wire."""
    encoder = ENCODERS[wire]
    if request.method == "GET" and encoder.resumed_path is not None and encoder.resumed_path.search(request.path):
        return Route("events" if request.query.get("stream") == "true" else "whole", None)
    if request.method != "POST" or (match := encoder.path.search(request.path)) is None:
        return None
    body = request.json
    fields = body if isinstance(body, dict) else {}
    named = match.groupdict()
    form = encoder.form_of(named.get("verb") or "", request.query, fields)
    return Route(form, named.get("model") or fields.get("model"))


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


def unstreamed(call: ToolCall) -> ToolCall | None:
    """The call as it is where calls come whole; None for one that never ends, since it would never be sent."""
    return None if call.stop_after is not None else msgspec.structs.replace(call, streamed=False)


def asks_for_streamed_args(request: ReceivedRequest) -> bool:
    config = request.json.get("toolConfig") or request.json.get("tool_config") or {}
    calling = config.get("functionCallingConfig") or config.get("function_calling_config") or {}
    return bool(calling.get("streamFunctionCallArguments") or calling.get("stream_function_call_arguments"))


def asks_for_usage(request: ReceivedRequest) -> bool:
    options = request.json.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def without_usage(sent: Iterable[Frame]) -> Iterator[Frame]:
    """Chat completions report usage only on request: then in every chunk, and in a separate one at the end."""
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


# -- one script, encoded once for many responses that differ only in their numbers -------------------------------------


_PREFIX = "918273645"
_FIRST = int(f"{_PREFIX}000000")
_NUMBER = re.compile(rf"{_PREFIX}(\d{{6}})".encode())


def numbers_used(script: Script) -> int:
    """How many numbers the ids of one response take: the next response begins after them."""
    return max(1, sum(call.call_id is None for step in script for call in calls_of(step)))


class NumberedFrames:
    """The frames of a script for any first number: the same as from ``frames``, at a fraction of the cost.

    They are encoded once, with numbers that occur nowhere else in the script, and these are then replaced.
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

        def number(match: re.Match[bytes]) -> bytes:
            return b"%d" % (first_id + int(match[1]))

        return (_NUMBER.sub(number, frame) if isinstance(frame, bytes) else frame for frame in self._encoded)


ScriptFunction: TypeAlias = Callable[[ReceivedRequest], Script | Awaitable[Script]]
Scripting: TypeAlias = Script | Sequence[Script] | ScriptFunction
"""One script for every request, a list of scripts for one request each, or a function of the request."""


class Scripts:
    """Gives each request its script. Scripts that no function makes are checked at once."""

    def __init__(self, scripting: Scripting) -> None:
        self.are_one = False
        """Whether every request gets the same script."""
        self._function = scripting if callable(scripting) else None
        if callable(scripting):
            return
        scripts = scripts_in(scripting)
        self.are_one = scripts is None
        known = [cast(Script, scripting)] if scripts is None else scripts
        for script in known:
            checked(script)
        self._count = len(known)
        self._rest = cycle(known) if self.are_one else iter(known)

    async def next_for(self, request: ReceivedRequest) -> Script:
        if self._function is not None:
            made = self._function(request)
            script = await made if inspect.isawaitable(made) else made
            if scripts_in(script) is not None:
                raise UsageError("expected one script from the function of a request, got a list of scripts")
            return script
        for script in self._rest:
            return script
        raise UsageError(f"expected {self._count} requests, one per script, got another: {request!r}")


STAMP = "@monotonic-ns-here!@"
"""With ``stamp=True`` this text becomes the machine's monotonic clock, in nanoseconds, when its frame is sent.

It has as many characters as its replacement. Processes on one machine share that clock (``time.monotonic_ns``), so the
reader of the text knows how long it was on its way.
"""

_STAMP = STAMP.encode()
_GOLDEN_RATIO = 0.618033988749895
"""The fractional parts of its multiples spread evenly between 0 and 1, however many there are."""


class ProviderServer(HttpServer, ABC):
    """A server that stands in for a provider: entering starts it, then it has a ``base_url``; leaving stops it.

    Errors on its side are raised when it is closed, since the client only sees that its request failed.
    """

    def __init__(self, wire: str, *, port: int = 0) -> None:
        if wire not in WIRES:
            raise UsageError(f"expected one of the wires {', '.join(WIRES)}, got {wire!r}")
        self.wire = wire
        self._requests: list[ReceivedRequest] = []
        super().__init__(self._answering, port=port, name=f"{wire} provider")

    @abstractmethod
    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        """The answer to a request of this provider's wire. Called on the provider's own event loop."""

    @property
    def base_url(self) -> str:
        """The ``base_url`` for the SDK."""
        return f"{self.origin}{base_path(self.wire)}"

    @property
    def requests(self) -> list[ReceivedRequest]:
        """The requests received so far, in order."""
        return list(self._requests)

    def close(self) -> None:
        super().close()
        self._raise_errors()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        super().close()
        self._raise_errors(during=error)

    def _raise_errors(self, during: BaseException | None = None) -> None:
        errors, self.errors = self.errors, []
        if not errors:
            return
        if during is None:
            raise errors[0]
        for error in errors:
            trace = "".join(format_exception(error)).rstrip()
            during.add_note(f"the scripted provider failed: {type(error).__name__}: {error}\n{trace}")

    async def _answering(self, request: ReceivedRequest) -> HttpAnswer:
        self._requests.append(request)
        route = route_of(self.wire, request)
        if route is None:
            message = (
                f"this is a scripted provider of the wire {self.wire!r}: expected POST {ENCODERS[self.wire].place}, "
                f"got {request.method} {request.path}"
            )
            return refused(self.wire, HttpError(404, message))
        if request.method == "POST" and not isinstance(request.json, dict):
            return refused(self.wire, HttpError(400, f"expected a JSON object, got {request.body[:80]!r}"), route)
        try:
            return await self.answer(request, route)
        except Exception as error:  # noqa: BLE001  # it belongs to the test, where close() raises it
            self.errors.append(error)
            message = str(error) if isinstance(error, CallstreamError) else f"{type(error).__name__}: {error}"
            return refused(self.wire, HttpError(500, f"the scripted provider failed: {message}"), route, retry=False)


class ScriptedProvider(ProviderServer):
    """Answers by a script.

    ``script`` is one script, which answers every request; or a list of scripts, each of which answers one request, in the
    order in which requests come, and a request after the last one is an error; or a function of the request that returns
    the script, sync or async. (Like the ``return_value`` and ``side_effect`` of a mock.) A retry of the SDK is a request
    like any other. Made-up ids are not used twice.

    ``encoding`` compresses all answers, whatever the client asked for. ``deltas_per_second`` is how many events of one
    answer are sent per second, at most. ``strict_signatures``: calls are signed, and a request that does not send the
    signatures back is refused, as Gemini 3 does (a ``ToolCall(signature="")`` is left unsigned). ``stamp``: see ``STAMP``.

    Gemini streams the arguments of calls only for requests with ``streamFunctionCallArguments``, which only Vertex AI
    supports, and so does this provider. With ``stream_args_unasked`` they are streamed for all requests.

    ``eager`` says how Anthropic's ``eager_input_streaming`` is treated. ``"ignored"``: all arguments are streamed, as by
    compatible servers. ``"known"``: each value is held back until it is whole, unless its tool has the field, as by the
    API. ``"refused"``: a request with the field is refused (``eager_refusal``), as by servers that do not know it.

    ``Delay`` and ``Cut`` at the beginning of a script come before the head of the answer, elsewhere in the middle of
    the body. In an answer that is not streamed all delays come first, ``Cut`` breaks it off and ``Truncated`` ends it
    in the middle.
    """

    def __init__(
        self,
        wire: str,
        script: Scripting,
        *,
        encoding: Coding | None = None,
        deltas_per_second: float | None = None,
        strict_signatures: bool = False,
        stream_args_unasked: bool = False,
        eager: Eager = "ignored",
        stamp: bool = False,
        port: int = 0,
    ) -> None:
        super().__init__(wire, port=port)
        if encoding not in (None, *get_args(Coding)):
            raise UsageError(f"expected encoding to be one of {get_args(Coding)}, got {encoding!r}")
        if deltas_per_second is not None and not deltas_per_second > 0:
            raise UsageError(f"expected deltas_per_second to be more than 0, got {deltas_per_second!r}")
        if strict_signatures and wire != "gemini":
            raise UsageError(f"strict_signatures is Gemini's law; the wire is {wire!r}")
        if eager not in get_args(Eager):
            raise UsageError(f"expected eager to be one of {get_args(Eager)}, got {eager!r}")
        if eager != "ignored" and wire != "anthropic":
            raise UsageError(f"eager is about Anthropic's field; the wire is {wire!r}")
        if stamp and not ENCODERS[wire].is_text:
            raise UsageError(f"a stamp cannot be put into the frames of the wire {wire!r}")
        self._encoding = encoding
        self._eager = eager
        self._deltas_per_second = deltas_per_second
        self._signatures = Signatures() if strict_signatures else None
        self._streams_args_unasked = stream_args_unasked or wire != "gemini"
        self._stamp = stamp
        self._scripts = Scripts(script)
        self._next_number = 1
        self._numbered: dict[tuple[bool, str | None], NumberedFrames] = {}

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        if self._signatures is not None:
            fault = self._signatures.fault_in(request.json)
            if fault is not None:
                return refused(self.wire, fault, route)
        if self._eager == "refused" and (refusal := eager_refusal(request)) is not None:
            return refused(self.wire, refusal, route)
        steps = checked(await self._scripts.next_for(request))
        number = self._next_number
        self._next_number += numbers_used(steps)
        if self._signatures is not None:
            steps = self._signatures.signed(steps, number)
        if not self._streams_args(request):
            steps = with_calls(steps, unstreamed)
        first = list(takewhile(lambda step: isinstance(step, Delay), steps))
        rest = steps[len(first) :]
        if isinstance(rest[-1], HttpError):
            answer = refused(self.wire, rest[-1], route)
        elif isinstance(rest[0], Cut):
            answer = HttpAnswer(200, [], [rest[0]])
        elif route.form == "whole":
            answer = self._whole(rest, route, number)
        else:
            answer = self._streamed(rest, route, number, request)
        return msgspec.structs.replace(
            answer,
            frames=chain(first, answer.frames),
            coding=self._encoding,
            finish=_stamped if self._stamp else None,
        )

    def _streamed(self, steps: list[Step], route: Route, number: int, request: ReceivedRequest) -> HttpAnswer:
        sent: Iterable[Frame]
        if self._scripts.are_one and self._signatures is None:
            key = (self._streams_args(request), route.model)
            if key not in self._numbered:
                self._numbered[key] = NumberedFrames(self.wire, steps, route.model)
            sent = self._numbered[key].frames(number)
        else:
            sent = frames(self.wire, steps, model=route.model, first_id=number)
        if self.wire == "openai_chat" and not asks_for_usage(request):
            sent = without_usage(sent)
        if self._eager == "known":
            sent = hold_values(sent, eager_tools(request), self._deltas_per_second)
        if route.form == "array":
            sent = as_array(sent)
        content_type = "application/json; charset=UTF-8" if route.form == "array" else ENCODERS[self.wire].stream_type
        headers = [("content-type", content_type), ("cache-control", "no-cache"), *request_ids(self.wire, number)]
        phase = number * _GOLDEN_RATIO % 1
        return HttpAnswer(200, headers, sent, frames_per_second=self._deltas_per_second, phase=phase)

    def _streams_args(self, request: ReceivedRequest) -> bool:
        return self._streams_args_unasked or asks_for_streamed_args(request)

    def _whole(self, steps: list[Step], route: Route, number: int) -> HttpAnswer:
        delays: list[Frame] = [step for step in steps if isinstance(step, Delay)]
        last = steps[-1]
        is_broken = isinstance(last, Cut | Truncated)
        body = encode_whole(
            self.wire, [*steps[:-1], Finish()] if is_broken else steps, model=route.model, first_id=number
        )
        headers = [("content-type", "application/json; charset=utf-8"), *request_ids(self.wire, number)]
        if isinstance(last, Cut):
            return HttpAnswer(200, headers, [*delays, body[: len(body) // 2], last], length=len(body))
        if isinstance(last, Truncated):
            body = body[: len(body) // 2]
        status = ENCODERS[self.wire].failure_status if isinstance(last, Failure) else 200
        return HttpAnswer(status, headers, [*delays, body], length=len(body))


def _stamped(frame: bytes) -> bytes:
    return frame.replace(_STAMP, b"%020d" % time.monotonic_ns()) if _STAMP in frame else frame


# -- as a separate server ----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves a script until a signal ends the process. Prints the base URL when it is ready."""
    parser = argparse.ArgumentParser(
        prog="python -m callstream.testing.provider",
        description="Serves a script in a provider's wire on 127.0.0.1, and prints the base URL for the SDK.",
    )
    parser.add_argument("--wire", required=True, choices=WIRES)
    parser.add_argument("--script", required=True, type=Path, help="JSON: a list of steps, or a list of such lists")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes a free one")
    parser.add_argument("--encoding", choices=get_args(Coding), help="compress all answers")
    parser.add_argument("--deltas-per-second", type=float, help="events of one answer per second, at most")
    parser.add_argument("--strict-signatures", action="store_true", help="as Gemini 3")
    parser.add_argument("--stream-args-unasked", action="store_true", help="Gemini's, for all requests")
    parser.add_argument("--eager", choices=get_args(Eager), default="ignored", help="Anthropic's eager_input_streaming")
    parser.add_argument("--stamp", action="store_true", help=f"replace {STAMP!r} by the monotonic time of sending")
    options = vars(parser.parse_args(arguments))
    wire, file = options.pop("wire"), options.pop("script")
    try:
        provider = ScriptedProvider(wire, script_from_json(file.read_bytes()), **options)
        provider.start()
    except (UsageError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return _wait(provider)


def _wait(provider: ProviderServer) -> Literal[0, 1]:
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
        sys.stdout.write(f"{provider.base_url}\n")
        sys.stdout.flush()
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    try:
        provider.close()
    except CallstreamError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
