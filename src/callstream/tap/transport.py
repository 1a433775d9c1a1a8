"""The tap: an HTTP transport for a provider SDK's own client.

It decodes streamed answers once, at the wire, and hands the SDK the same stream with each streamed call replaced by one
whole call. What it does not recognise passes untouched, and so do errors, retries and time-outs.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias
from weakref import WeakSet

import msgspec

from callstream.calls import CallState
from callstream.errors import CallRejected, UsageError, WireError
from callstream.events import CallCompleted, DiscardReason, RequestEvent
from callstream.runtime import Callstream, ModelCall, Run
from callstream.runtime.limits import check_silence
from callstream.runtime.ownloop import run_in
from callstream.tap.asking import REFUSALS, Asking, names_field
from callstream.tap.body import Limits, OnEnd, TappedBody
from callstream.tap.encoding import Checked, Decoding, codings_in, decoding_of
from callstream.tap.errors import raised_once
from callstream.tap.implicit import ImplicitRuns
from callstream.tap.place import Place
from callstream.tap.pools import Pools, library_of
from callstream.tap.silence import Patience
from callstream.tap.streams import UntouchedBody, WholeBody, stream_of
from callstream.tap.threaded import ThreadedTransport
from callstream.tools.check import misfit_of
from callstream.wire import WIRES, provider_at, provider_of
from callstream.wire.collapsing import discard_invalid
from callstream.wire.provider import Provider
from callstream.wire.requests import Asks, Request

logger = logging.getLogger("callstream")

Collapse: TypeAlias = Literal["known", "all", "none"]
_Send: TypeAlias = Callable[[Any], Awaitable[Any]]
"""What sends a request of the HTTP library and returns the answer."""


class TapSettings(msgspec.Struct, frozen=True):
    """``stream_arguments`` asks providers for streamed arguments that they send only on request.

    ``first_byte`` and ``idle`` are seconds after which a streamed answer that has not begun, or does not continue, ends
    with the HTTP library's ReadTimeout; None leaves it to the settings of the Callstream.
    ``repair_gemini_signatures`` puts thought signatures back into a history that lost them; hosts do that themselves.
    """

    wire: str | None = None
    collapse: Collapse = "known"
    stream_arguments: bool = True
    first_byte: float | None = None
    idle: float | None = None
    repair_gemini_signatures: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_silence(self.first_byte, self.idle)


class TapTransport:
    """Wraps a transport of httpx or httpx2, or makes pools of its own. For async and sync clients."""

    def __init__(
        self,
        callstream: Callstream,
        implicit: ImplicitRuns,
        inner: Any = None,
        *,
        settings: TapSettings,
        pools: Pools | None = None,
        asking: Asking | None = None,
    ) -> None:
        if settings.wire is not None and settings.wire not in WIRES:
            raise UsageError(f"expected one of the wires {', '.join(WIRES)}, got {settings.wire!r}")
        if settings.collapse not in ("known", "all", "none"):
            raise UsageError(f"expected collapse to be 'known', 'all' or 'none', got {settings.collapse!r}")
        self._callstream = callstream
        self._implicit = implicit
        self._inner = inner
        self._settings = settings
        self._asking = asking or Asking()
        self._pools = pools or Pools({})
        self._lock = threading.Lock()
        self._bodies: WeakSet[TappedBody] = WeakSet()

    async def handle_async_request(self, request: Any) -> Any:
        inner = self._inner if self._inner is not None else self._pools.transport_for(request)
        provider = self._provider_of(request)
        if provider is None:
            return await inner.handle_async_request(request)
        await request.aread()
        return await self._ask(provider, request, inner.handle_async_request, Place.current())

    def handle_request(self, request: Any) -> Any:
        """A request of a sync client, in whatever thread. What is done for it is done on an event loop elsewhere."""
        provider = self._provider_of(request)
        has_sync = self._inner is None or hasattr(self._inner, "handle_request")
        if provider is None and has_sync:
            inner = self._inner if self._inner is not None else self._pools.sync_transport_for(request)
            return inner.handle_request(request)
        request.read()
        place = Place.current().for_blocking_caller()
        loop = place.run.loop if place.run is not None else self._callstream.own_loop.begin()
        return run_in(loop, partial(self._answer_blocking, provider, request, place))

    async def _answer_blocking(self, provider: Provider | None, request: Any, place: Place) -> Any:
        if hasattr(self._inner, "handle_request"):
            send = ThreadedTransport(self._inner).handle_async_request
        else:
            inner = self._inner if self._inner is not None else self._pools.transport_for(request)
            send = partial(_send_traced, inner)
        answer = await (send(request) if provider is None else self._ask(provider, request, send, place))
        library = library_of(request)
        if isinstance(answer.stream, library.SyncByteStream):
            return answer
        stream = stream_of(library, UntouchedBody(answer.stream))
        return library.Response(answer.status_code, headers=answer.headers, stream=stream, extensions=answer.extensions)

    async def _ask(self, provider: Provider, request: Any, send: _Send, place: Place) -> Any:
        """Sends a request that the tap reads. Its body is there."""
        asked = Request(request.url.path, request.content)
        said = _said(provider, asked)
        run, model_call = place.run, place.model_call
        if run is not None and (model_call is None or not model_call.reports):
            with raised_once(provider):
                await run.receive(said, author=model_call.author if model_call is not None else None)
        exchange = _Exchange(provider, asked, request, said, self._patience(request))
        sending = self._send(send, exchange, place)
        answer = await (exchange.patience.wait_for_head(sending) if provider.is_streamed(asked) else sending)
        try:
            return await self._tap(exchange, answer, place)
        except BaseException:
            await answer.stream.aclose()  # nobody else has it: the connection would be lost to its pool
            raise

    async def _tap(self, exchange: _Exchange, answer: Any, place: Place) -> Any:
        """The answer as the SDK gets it."""
        run, model_call = place.run, place.model_call
        content_type = answer.headers.get("content-type", "")
        kind = exchange.provider.answer_kind(exchange.asked, answer.status_code, content_type)
        if kind is None:
            return answer
        codings = codings_in(answer.headers.get("content-encoding", ""))
        decoding = decoding_of(codings[0]) if len(codings) == 1 else None
        if codings and decoding is None:
            logger.warning(
                "a response has Content-Encoding %s, which cannot be decoded here; it passes through unread", codings
            )
            return answer
        if decoding is not None:
            library = library_of(exchange.request)
            decoding = Checked(decoding, partial(library.DecodingError, request=exchange.request))
        source = await exchange.patience.wait_for_body(answer.stream) if kind == "stream" else answer.stream
        on_end = None
        if run is None:
            with raised_once(exchange.provider):
                run = await self._implicit.begin(exchange.said, place.beside)
            on_end = partial(self._implicit.response_ended, run)
        if model_call is not None:
            model_call.read_by_tap = True
        reading = _Reading(self, exchange, run, model_call=model_call, decoding=decoding, on_end=on_end)
        if kind == "whole":
            return _answered(exchange.request, answer, await reading.whole(answer), decoded=decoding is not None)
        tapped = reading.streamed(source, answer.stream.aclose)
        with self._lock:
            self._bodies.add(tapped)
        return _answered(exchange.request, answer, tapped, decoded=decoding is not None)

    async def aclose(self) -> None:
        """Closes the connections of this event loop, and with them the streams that are still read."""
        await self._close_bodies()
        await (self._inner if self._inner is not None else self._pools).aclose()

    async def __aenter__(self) -> TapTransport:
        if self._inner is not None:
            await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._close_bodies()
        if self._inner is not None:
            await self._inner.__aexit__(*error)
        else:
            await self._pools.aclose()

    def close(self) -> None:
        """``aclose`` for a sync client."""
        self._close_on_own_loop()
        if hasattr(self._inner, "close"):
            self._inner.close()

    def __enter__(self) -> TapTransport:
        if hasattr(self._inner, "__enter__"):
            self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._close_on_own_loop()
        if hasattr(self._inner, "__exit__"):
            self._inner.__exit__(*error)

    def _close_on_own_loop(self) -> None:
        own = self._callstream.own_loop
        if own.loop is not None and not own.has_ended:
            run_in(own.loop, self._close_bodies)
            run_in(own.loop, self._pools.aclose)
        self._pools.close()

    async def _close_bodies(self) -> None:
        here = asyncio.get_running_loop()
        with self._lock:
            bodies = [body for body in self._bodies if body.loop is here]
        for body in bodies:
            await body.aclose()

    def _patience(self, request: Any) -> Patience:
        own, common = self._settings, self._callstream.settings
        return Patience(
            common.first_byte if own.first_byte is None else own.first_byte,
            common.idle if own.idle is None else own.idle,
            partial(library_of(request).ReadTimeout, request=request),
        )

    def _provider_of(self, request: Any) -> Provider | None:
        """Whose wire a request speaks; None if it is none of ours. A stated wire counts for every POST."""
        if request.method != "POST":
            return None
        return provider_at(request.url.path) if self._settings.wire is None else provider_of(self._settings.wire)

    async def _send(self, send: _Send, exchange: _Exchange, place: Place) -> Any:
        """Sends the request, asking for streamed arguments, and once more without asking if that is refused."""
        provider, request = exchange.provider, exchange.request
        if _is_signed(request):
            return await send(request)
        asked = sent = _with_notes(provider, await self._signed(provider, exchange.asked, place.run), place)
        if self._settings.stream_arguments:
            sent = self._asking.add_to(asked, provider, self._asks(place.model_call), request.url)
        answer = await send(_with_body(request, sent.body))
        if sent is asked or answer.status_code not in REFUSALS:
            return answer
        body = await self._read_error(answer)
        if not names_field(provider, body, answer.headers.get("content-encoding", "")):
            return _answered(request, answer, WholeBody(body), decoded=False)
        answer = await send(_with_body(request, asked.body))
        self._asking.remember(request.url, answer.status_code)
        return answer

    async def _read_error(self, answer: Any) -> bytes:
        try:
            return b"".join([data async for data in answer.stream])
        finally:
            await answer.stream.aclose()

    async def _signed(self, provider: Provider, asked: Request, run: Run | None) -> Request:
        if not provider.signs_calls or not self._settings.repair_gemini_signatures:
            return asked
        journal = self._callstream.journal
        calls = [] if run is None else await journal.calls(thread_id=run.thread_id, principal=run.principal)
        signatures: dict[str, str] = {}
        for call in calls:
            if call.signature is not None:
                signatures |= {name: call.signature for name in (call.call_id, call.provider_id) if name is not None}
        return provider.sign(asked, lambda call_id, name: signatures.get(call_id or ""))

    def collapses(self, model_call: ModelCall | None) -> Callable[[str], bool]:
        match self._settings.collapse:
            case "all":
                return lambda name: True
            case "none":
                return lambda name: False
            case _ if model_call is not None and model_call.collapses is not None:
                return model_call.collapses
            case _:
                return self._callstream.knows

    def _asks(self, model_call: ModelCall | None) -> Asks:
        """Of which tools the provider is asked to stream the arguments: only where their calls reach the SDK whole."""
        collapses = self.collapses(model_call)
        may_stream: Asks = self._callstream.streams
        if model_call is not None and model_call.streams is not None:
            may_stream = model_call.streams
        return lambda name: collapses(name) and may_stream(name)

    @property
    def may_collapse(self) -> bool:
        return self._settings.collapse != "none"

    @property
    def limits(self) -> Limits:
        return self._settings.limits


class _Exchange(NamedTuple):
    """A request of the SDK and what it asked of which provider; ``request`` is the HTTP library's."""

    provider: Provider
    asked: Request
    request: Any
    said: list[RequestEvent]
    patience: Patience


class _Reading:
    """How one answer is read: into which run, for whom, and under which names."""

    def __init__(
        self,
        tap: TapTransport,
        exchange: _Exchange,
        run: Run,
        *,
        model_call: ModelCall | None,
        decoding: Decoding | None,
        on_end: OnEnd | None,
    ) -> None:
        self._tap = tap
        self._provider = exchange.provider
        self._stored = exchange.provider.is_stored(exchange.asked)
        self._decoding = decoding
        self._on_end = on_end
        self._collapses = tap.collapses(model_call)
        self._tools = exchange.provider.declared_tools(exchange.asked)
        self._refuses = model_call is not None and model_call.refuses
        self._forwards_rejected = self._refuses or run.rejected == "forward"
        self._response = run.response(
            exchange.provider.wire,
            tools=self._tools,
            author=model_call.author if model_call is not None else None,
            new_call_id=model_call.new_call_id if model_call is not None else None,
        )
        if model_call is not None:
            model_call.responses.append(self._response)

    def _check(self, name: str, args_json: str) -> tuple[DiscardReason, str] | None:
        """Why a call of a declared tool must not reach the SDK, though it is whole."""
        schema = self._tools.get(name)
        if not schema:
            return None
        args = json.loads(args_json)
        if not isinstance(args, dict | None):
            return "malformed", "the arguments are not an object"
        wrong = misfit_of(schema, {} if args is None else args)  # some models write null for no arguments
        return None if wrong is None else ("invalid", wrong)

    def streamed(self, source: Any, close_source: Callable[[], Awaitable[None]]) -> TappedBody:
        """A streamed answer, read by a task of its own from now on."""
        # Where no tool of the request is collapsed, nothing needs to be held either.
        touched = not self._tools or any(map(self._collapses, self._tools))
        collapser = self._provider.collapser(
            self._response.decoder,
            collapse=self._collapses if touched and self._tap.may_collapse else None,
            stored=self._stored,
            check=self._check,
            forwards_invalid=self._forwards_rejected,
        )
        return TappedBody(
            source,
            close_source,
            self._response,
            collapser,
            decoding=self._decoding,
            forwards_rejected=self._forwards_rejected,
            limits=self._tap.limits,
            on_end=self._on_end,
        )

    async def whole(self, answer: Any) -> WholeBody:
        """An answer that was not streamed. It is forwarded when its calls are recorded and their hooks have settled."""
        error: BaseException | None = None
        try:
            return await self._whole(answer)
        except CallRejected:
            raise  # the answer is whole
        except BaseException as broken:
            error = broken
            raise
        finally:
            if self._on_end is not None:
                await self._on_end(error or self._response.decoder.error)

    async def _whole(self, answer: Any) -> WholeBody:
        body = await self._read_whole(answer.stream)
        await answer.stream.aclose()
        with raised_once(self._provider):
            return WholeBody(await self._recorded(body))

    async def _recorded(self, body: bytes) -> bytes:
        try:
            events = self._response.decoder.whole(body)
        except WireError as error:
            logger.warning("could not read a response: %s", error)
            events = []
        if self._tap.may_collapse:
            events = discard_invalid(events, self._collapses, self._check)
        await self._response.record(events)
        if self._tap.may_collapse and not self._refuses:
            body = self._provider.without_unfinished(
                body, self._response.decoder, events, collapse=self._collapses, stored=self._stored
            )
        for event in events:
            if isinstance(event, CallCompleted):
                call = await self._response.run.settled(self._response.call_ids[event.call_id])
                if call.state is CallState.DISCARDED and not self._forwards_rejected:
                    raise self._response.run.rejection(call.call_id)
        return body

    async def _read_whole(self, stream: Any) -> bytes:
        limit = self._tap.limits.max_whole
        body = bytearray()
        async for data in stream:
            for piece in (data,) if self._decoding is None else self._decoding.feed(data):
                body += piece
                if len(body) > limit:
                    raise WireError(f"expected an answer of at most {limit} bytes from the provider, got more")
        return bytes(body)


def _said(provider: Provider, asked: Request) -> list[RequestEvent]:
    try:
        return provider.results_in(asked.body)
    except WireError as error:
        # A request that cannot be read is the provider's to refuse.
        logger.warning("could not read a request: %s", error)
        return []


def _with_notes(provider: Provider, request: Request, place: Place) -> Request:
    """The request with what nobody else tells the model: why calls that never reached the program did not run.

    Hosts tell the model themselves, and so do programs that have rejected calls forwarded.
    """
    run = place.run
    if run is None or place.model_call is not None or run.rejected == "forward":
        return request
    refusals = run.untold(provider.declared_tools(request))
    noted = provider.add_notes(request, {each.wire_id: each.text for each in refusals}) if refusals else None
    if noted is None:
        return request
    run.mark_told(refusals)
    return noted


def _is_signed(request: Any) -> bool:
    """Whether the SDK has signed the request for AWS: its body and most of its headers must stay as they are."""
    return request.headers.get("authorization", "").startswith("AWS4-") or "X-Amz-Signature" in request.url.params


def _with_body(request: Any, body: bytes) -> Any:
    """The SDK's request with another body, asking for an answer that is not compressed."""
    headers = request.headers.copy()
    headers["accept-encoding"] = "identity"
    headers.pop("content-length", None)
    headers.pop("transfer-encoding", None)
    outgoing = library_of(request).Request(request.method, request.url, headers=headers, content=body)
    outgoing.extensions = request.extensions
    return outgoing


async def _send_traced(inner: Any, request: Any) -> Any:
    """Sends a sync client's request by an async transport, which expects the ``trace`` extension to be async too."""
    trace = request.extensions.get("trace")
    if trace is not None and not inspect.iscoroutinefunction(trace):

        async def tell(name: str, info: Any) -> None:
            trace(name, info)

        request.extensions = {**request.extensions, "trace": tell}
    return await inner.handle_async_request(request)


def _answered(request: Any, answer: Any, body: TappedBody | WholeBody, *, decoded: bool) -> Any:
    """The answer with another body."""
    library = library_of(request)
    headers = answer.headers.copy()
    headers.pop("content-length", None)
    if decoded:
        headers.pop("content-encoding", None)
    stream = stream_of(library, body)
    return library.Response(answer.status_code, headers=headers, stream=stream, extensions=answer.extensions)
