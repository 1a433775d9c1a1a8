"""The tap: an HTTP transport for a provider SDK's own client.

It decodes streamed answers once, at the wire, and hands the SDK the same stream with each streamed call replaced by one
whole call. Anything it does not recognise passes untouched, and so do errors, retries and time-outs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from callstream.errors import UsageError
from callstream.runtime.continuing import KeptTurn
from callstream.runtime.ownloop import OwnLoop, check_caller, finish_in, run_in
from callstream.tap.again import Again, AskingBody
from callstream.tap.body import TappedBody
from callstream.tap.exchange import Exchange, Place, Tapping, raised_once
from callstream.tap.library import (
    Body,
    PassedBody,
    Pools,
    ThreadedTransport,
    can_decode,
    codings_in,
    decoded,
    decoded_bytes,
    library_of,
    load_core,
    stream_of,
)
from callstream.wire import provider_at, provider_of
from callstream.wire.provider import Provider
from callstream.wire.requests import Asks, Request

_T = TypeVar("_T")

logger = logging.getLogger("callstream")

# Asking providers to stream arguments, and what happens when one rejects that.
#
# Gateways and older servers refuse a request with a field that they do not know, and name the field: with any status, or
# with an error as the first event of a stream. Such a request is sent once more as the SDK made it. If it is not
# refused then, the field was the reason, and that place is not asked again.
#
# A request that was signed, body included, is refused without any mention of the field. So when a place says that a
# request is not authorised, that is also sent once more as the SDK made it, once for each place.

_UNAUTHORISED = (401, 403)
_REFUSALS = (400, 422, 500, *_UNAUTHORISED)
"""The statuses with which servers refuse a field."""


class Asking:
    """Remembers which places have refused. All clients of a Callstream share it."""

    def __init__(self) -> None:
        self._refused: set[str] = set()
        self._unauthorised: set[str] = set()
        self._accepted: set[str] = set()

    def add_to(self, request: Request, provider: Provider, asks: Asks, url: Any, *, by_beta: bool = False) -> Request:
        """The request with the switch added, or the request itself if there is nothing to ask."""
        if _place(url) in self._refused:
            return request
        return (provider.ask_by_beta if by_beta else provider.ask_for_pieces)(request, asks)

    def is_accepted(self, url: Any) -> bool:
        """Whether the place has answered a request that asked."""
        return _place(url) in self._accepted

    def accept(self, url: Any) -> None:
        self._accepted.add(_place(url))

    def may_be_signed(self, url: Any, status: int) -> bool:
        """Whether a request refused with this status is worth sending as the SDK made it. Once for each place."""
        place = _place(url)
        if status not in _UNAUTHORISED or place in self._unauthorised or place in self._accepted:
            return False
        self._unauthorised.add(place)
        return True

    def remember(self, url: Any, status: int) -> None:
        """A request was refused, and got this status when it was sent again without asking."""
        place = _place(url)
        if status not in _REFUSALS and place not in self._refused:
            self._refused.add(place)
            logger.warning("%s refuses to be asked for streamed arguments; it is not asked again", place)


def names_field(provider: Provider, body: bytes) -> bool:
    """Whether an error names the added field, in whatever form: gateways wrap errors in errors."""
    field = provider.pieces_field
    return field is not None and field.search(body) is not None


def _place(url: Any) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}{url.path}"


# Streams that fall silent: how long a streamed answer may take to begin, and to continue.
#
# Any bytes count, whatever they say: a provider that sends pings while its model thinks is not silent. Time in which
# reading is paused, because enough waits for the SDK already, does not count. The error is the HTTP library's own
# ReadTimeout. Before the first byte the SDK has no response yet: it then does what it does on any time-out, which is to
# ask again.


class _StreamTimeouts:
    """For one request, from now on. ``first_byte`` and ``idle`` in seconds; None waits as long as the HTTP client does."""

    def __init__(self, first_byte: float | None, idle: float | None, timed_out: Callable[[str], Exception]) -> None:
        self._first_byte = first_byte
        self._idle = idle
        self._timed_out = timed_out
        self._begins_by = _in_seconds(first_byte)

    async def wait_for_head(self, head: Awaitable[_T]) -> _T:
        """The answer to a request for a stream."""
        return await self._wait(head, self._begins_by, self._first_byte, "the stream to begin")

    async def wait_for_body(self, stream: Any) -> Any:
        """The body of a streamed answer; where there is a limit for its first byte, once that has come."""
        if self._first_byte is None and self._idle is None:
            return stream
        chunks: AsyncIterator[bytes] = aiter(stream)
        first: bytes | None = None
        if self._first_byte is not None:
            beginning = anext(chunks, None)
            first = await self._wait(beginning, self._begins_by, self._first_byte, "the first byte of the stream")
        return self._read(first, chunks)

    async def _read(self, first: bytes | None, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Without ``first``, the stream was not begun yet, or it was empty and ends at once when read again."""
        if first is None:
            first = await anext(chunks, None)
        data = first
        while data is not None:
            yield data
            data = await self._wait(anext(chunks, None), _in_seconds(self._idle), self._idle, "the stream to continue")

    async def _wait(self, work: Awaitable[_T], until: float | None, limit: float | None, what: str) -> _T:
        if until is None:
            return await work
        timeout = asyncio.timeout_at(until)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
        raise self._timed_out(f"expected {what} within {limit} seconds, got nothing from the provider")


def _in_seconds(limit: float | None) -> float | None:
    """The event loop's time after that many seconds."""
    return None if limit is None else asyncio.get_running_loop().time() + limit


_Send: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Sends a request of the HTTP library and returns the answer."""
_OK = 200
_FIRST_ERROR = 400
_ERROR_WITHIN = 64
"""An error as the first event of a stream shows within this many bytes."""


class _Errand(NamedTuple):
    """A request of the SDK on its way, and the function that sends it."""

    send: _Send
    request: Any


class TapTransport:
    """Wraps a transport of httpx or httpx2, or makes pools of its own. For async and sync clients."""

    def __init__(self, tapping: Tapping, own_loop: OwnLoop, inner: Any, *, pools: Pools, asking: Asking) -> None:
        self._tapping = tapping
        self._engine = tapping.engine
        self._settings = tapping.settings
        self._own_loop = own_loop
        self._inner = inner
        self._asking = asking
        self._pools = pools
        self._lock = threading.Lock()
        self._bodies: WeakSet[TappedBody | AskingBody] = WeakSet()

    async def handle_async_request(self, request: Any) -> Any:
        inner = self._inner if self._inner is not None else self._pools.transport_for(request)
        provider = self._provider_of(request)
        here = Place.current()
        place = here.of_host() if self._settings.hosted and self._engine.has_host else here
        if provider is None or place is None:
            return await inner.handle_async_request(request)
        _check_loop()
        await request.aread()
        return await self._ask(provider, request, inner.handle_async_request, place)

    def handle_request(self, request: Any) -> Any:
        """A request of a sync client, in any thread. The work for it is done on an event loop in another thread."""
        provider = self._provider_of(request)
        has_sync = self._inner is None or hasattr(self._inner, "handle_request")
        if provider is None and has_sync:
            inner = self._inner if self._inner is not None else self._pools.sync_transport_for(request)
            return inner.handle_request(request)
        request.read()
        with raised_once(provider) if provider is not None else nullcontext():
            own = self._own_loop.begin()
            place = Place.current().for_blocking_caller(own)
            loop = own if place.run is None else place.run.loop
            check_caller(loop)
        return run_in(loop, partial(self._answer_blocking, provider, request, place))

    async def _answer_blocking(self, provider: Provider | None, request: Any, place: Place) -> Any:
        if hasattr(self._inner, "handle_request"):
            send = ThreadedTransport(self._inner).handle_async_request
        else:
            inner = self._inner if self._inner is not None else self._pools.transport_for(request)
            send = partial(_send_traced, inner)
        answer = await (send(request) if provider is None else self._ask(provider, request, send, place))
        library = library_of(request)
        load_core(library)
        if isinstance(answer.stream, library.SyncByteStream):
            return answer
        stream = stream_of(library, PassedBody(answer.stream, answer.stream.aclose))
        return library.Response(answer.status_code, headers=answer.headers, stream=stream, extensions=answer.extensions)

    async def _ask(self, provider: Provider, request: Any, send: _Send, place: Place) -> Any:
        """Sends a request that the tap reads, and whose body has been read."""
        asked = Request(request.url.path, request.content)
        with raised_once(provider):
            kept = await self._tapping.kept(provider, asked, place)
        if isinstance(kept, KeptTurn):
            library = library_of(request)
            return library.Response(kept.status, headers=kept.headers, stream=library.ByteStream(kept.body))
        exchange = await self._tapping.receive(provider, asked, place)
        own = self._settings.ask_again
        often = self._engine.settings.ask_again if own is None else own
        return await self._answer(exchange._replace(coming=kept, often=often or None), _Errand(send, request))

    async def _answer(self, exchange: Exchange, errand: _Errand) -> Any:
        """Sends the request, and has the answer read."""
        timeouts = self._timeouts(errand.request)
        half = None if exchange.coming is None else exchange.coming.half
        sending = self._send(errand, exchange) if half is None else self._take_up(errand, exchange, half)
        is_streamed = exchange.provider.is_streamed(exchange.asked)
        answer = await (timeouts.wait_for_head(sending) if is_streamed else sending)
        try:
            return await self._tap(exchange, errand, answer, timeouts)
        except BaseException:
            await answer.stream.aclose()  # nothing else holds it: the pool would lose the connection
            raise

    async def _tap(self, exchange: Exchange, errand: _Errand, answer: Any, timeouts: _StreamTimeouts) -> Any:
        """The answer as the SDK gets it."""
        request = errand.request
        content_type = answer.headers.get("content-type", "")
        kind = exchange.provider.answer_kind(exchange.asked, answer.status_code, content_type)
        if kind is None:
            if not exchange.provider.is_looked_at(exchange.asked, content_type):
                exchange.check_unread(answer.status_code, f"status {answer.status_code}, Content-Type {content_type!r}")
            return answer
        codings = codings_in(answer.headers.get("content-encoding", ""))
        if not can_decode(library_of(request), codings):
            exchange.check_unread(answer.status_code, f"Content-Encoding {', '.join(codings)}")
            logger.warning(
                "a response has Content-Encoding %s, which cannot be decoded here; it passes through unread", codings
            )
            return answer
        source = await timeouts.wait_for_body(answer.stream) if kind == "stream" else answer.stream
        source = decoded(answer, source) if codings else source
        reading = await self._tapping.begin(exchange, answer)
        is_decoded = bool(codings)
        joint = reading.joint(content_type) if kind == "stream" else None
        can_ask = (kind == "whole" or joint is not None) and not _has_aws_signature(request)
        again = Again(reading, partial(self._answer, errand=errand) if can_ask else None)
        if kind == "whole":
            data = await reading.whole(source, answer.stream.aclose)
            if reading.wants_another:
                return await self._ask_again(again)
            return _answered(request, answer, data, is_decoded=is_decoded)
        streamed: TappedBody | AskingBody
        if reading.may_ask or (reading.says and joint is not None):
            streamed = AskingBody(again, joint, source, answer.stream.aclose)
        else:
            streamed = reading.streamed(source, answer.stream.aclose)
        with self._lock:
            self._bodies.add(streamed)
        return _answered(request, answer, streamed, is_decoded=is_decoded)

    async def _ask_again(self, again: Again) -> Any:
        """The model's next answer, instead of one that was not streamed."""
        try:
            with raised_once(again.reading.provider):
                answer = await again.answer()
        except BaseException as error:
            await again.reading.tell_end(error)
            raise
        await again.reading.tell_end(None)
        return answer

    async def aclose(self) -> None:
        """Closes the connections of this event loop, and the streams that are still being read."""
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
        own = self._own_loop.loop
        if own is not None:
            finish_in(own, self._close_bodies)
            finish_in(own, self._pools.aclose)
            if hasattr(self._inner, "aclose") and not hasattr(self._inner, "close"):
                finish_in(own, self._inner.aclose)
        self._pools.close()

    async def _close_bodies(self) -> None:
        here = asyncio.get_running_loop()
        with self._lock:
            bodies = [body for body in self._bodies if body.loop is here]
        for body in bodies:
            await body.aclose()

    def _timeouts(self, request: Any) -> _StreamTimeouts:
        own, common = self._settings, self._engine.settings
        return _StreamTimeouts(
            common.first_byte if own.first_byte is None else own.first_byte,
            common.idle if own.idle is None else own.idle,
            partial(library_of(request).ReadTimeout, request=request),
        )

    def _provider_of(self, request: Any) -> Provider | None:
        """The provider whose wire a request speaks; None if there is none. A stated wire counts for every POST."""
        if self._settings.wire is None:
            return provider_at(request.url.path, request.method)
        stated = provider_of(self._settings.wire)
        return stated if request.method == "POST" or stated.is_at(request.url.path, request.method) else None

    async def _take_up(self, errand: _Errand, exchange: Exchange, half: KeptTurn) -> Any:
        """The answer whose beginning an earlier attempt of the run has read.

        The provider may have kept it, or may write the rest; otherwise the model is asked again.
        """
        request, provider, asked = errand.request, exchange.provider, exchange.asked
        path = None if half.answer_id is None else provider.kept_at(asked, half.answer_id)
        if path is not None:
            url = request.url.copy_with(path=path).copy_merge_params({"stream": "true"})
            headers = {name: value for name, value in request.headers.items() if not name.startswith("content-")}
            library = library_of(request)
            answer = await errand.send(library.Request("GET", url, headers=headers, extensions=request.extensions))
            if provider.answer_kind(asked, answer.status_code, answer.headers.get("content-type", "")):
                return answer
            logger.warning("%s no longer has an answer (%s): the model is asked again", path, answer.status_code)
            await answer.stream.aclose()
        if half.checkpoint is not None:
            rest = provider.from_checkpoint(asked, half.checkpoint)
            answer = await self._send(errand, exchange._replace(asked=rest))
            codings = codings_in(answer.headers.get("content-encoding", ""))
            if answer.status_code == _OK and can_decode(library_of(request), codings):
                source = decoded(answer, answer.stream) if codings else answer.stream
                body = PassedBody(source, answer.stream.aclose, half.body)
                return _answered(request, answer, body, is_decoded=bool(codings))
            logger.warning("could not get the rest of an answer (%s): the model is asked again", answer.status_code)
            await answer.stream.aclose()
        return await self._send(errand, exchange)

    async def _send(self, errand: _Errand, exchange: Exchange) -> Any:
        """Sends the request in the form in which it has to reach the provider."""
        if _has_aws_signature(errand.request):
            return await errand.send(errand.request)
        told = self._tapping.tell(exchange._replace(asked=await self._with_signatures(exchange)))
        answer = await self._send_asking(errand, exchange, told.request)
        if answer.status_code == _OK:
            told.mark()  # not before: the SDK may try again
            exchange.noted[:] = told.noted
        return answer

    async def _send_asking(self, errand: _Errand, exchange: Exchange, asked: Request) -> Any:
        """Sends the request, asking for streamed arguments, and once more without that if it is refused."""
        send, request, provider, sent = errand.send, errand.request, exchange.provider, asked
        if self._settings.stream_arguments:
            asks = self._tapping.asks(exchange.place.model_call)
            sent = self._asking.add_to(asked, provider, asks, request.url, by_beta=self._settings.bedrock_beta)
        answer = await send(_with_body(request, sent.body))
        if sent is asked:
            return answer
        answer, is_refused = await self._judge(request, provider, answer)
        if not is_refused:
            return answer
        is_as_made = asked.body == request.content
        answer = await send(request if is_as_made else _with_body(request, asked.body))
        self._asking.remember(request.url, answer.status_code)
        return answer

    async def _judge(self, request: Any, provider: Provider, answer: Any) -> tuple[Any, bool]:
        """The answer to a request that asked for streamed arguments, and whether it is a refusal of that."""
        asking, status, url = self._asking, answer.status_code, request.url
        if status < _FIRST_ERROR:
            content_type = answer.headers.get("content-type", "")
            if asking.is_accepted(url) or status != _OK or not content_type.startswith("text/event-stream"):
                return answer, False
            # The first answer of a place: it may begin with an error for which other servers use a status.
            chunks: AsyncIterator[bytes] = aiter(answer.stream)
            first = await anext(chunks, b"")
            if b"error" in first[:_ERROR_WITHIN] and names_field(provider, decoded_bytes(answer, first)):
                await answer.stream.aclose()
                return answer, True
            asking.accept(url)
            begun = PassedBody(chunks, answer.stream.aclose, first)
            return _answered(request, answer, begun, is_decoded=False), False
        try:
            body = b"".join([data async for data in answer.stream])
        finally:
            await answer.stream.aclose()
        is_refused = names_field(provider, decoded_bytes(answer, body)) or asking.may_be_signed(url, status)
        return _answered(request, answer, body, is_decoded=False), is_refused

    async def _with_signatures(self, exchange: Exchange) -> Request:
        if not exchange.provider.signs_calls or not self._settings.repair_gemini_signatures:
            return exchange.asked
        run, journal = exchange.place.run, self._engine.journal
        calls = [] if run is None else await journal.calls(thread_id=run.thread_id, principal=run.principal)
        signatures: dict[str, str] = {}
        for call in calls:
            if call.signature is not None:
                signatures |= {name: call.signature for name in (call.call_id, call.provider_id) if name is not None}
        return exchange.provider.sign(exchange.asked, lambda call_id, name: signatures.get(call_id or ""))


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "the tap's async clients run on asyncio's event loop; under trio use cs.sync_http_client() in a thread"
        ) from None


def _has_aws_signature(request: Any) -> bool:
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


def _answered(request: Any, answer: Any, body: Body | bytes, *, is_decoded: bool) -> Any:
    """The answer with another body."""
    library = library_of(request)
    headers = answer.headers.copy()
    headers.pop("content-length", None)
    if is_decoded:
        headers.pop("content-encoding", None)
    stream = library.ByteStream(body) if isinstance(body, bytes) else stream_of(library, body)
    return library.Response(answer.status_code, headers=headers, stream=stream, extensions=answer.extensions)
