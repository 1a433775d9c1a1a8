"""The tap for boto3, botocore and aiobotocore, which take no HTTP client: it uses their public event hooks.

``before-call`` comes once for each call of an operation, before its request is signed, so the request may still be
changed. ``before-parse`` comes with each answer, whose body is replaced. No hook sees both; but all hooks of one call run
in the thread, or the task, that makes it, so the first passes what it has read to the second in a context variable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import unquote

from callstream.errors import UsageError
from callstream.runtime.ownloop import OwnLoop, run_in
from callstream.tap.exchange import Exchange, Place, Tapping
from callstream.tap.library import BodyStream, ThreadedStream
from callstream.wire import provider_at
from callstream.wire.requests import Request

_SERVICE = "bedrock-runtime"


class _Call(NamedTuple):
    """A call of an operation under way, and the event loop on which its events are recorded."""

    exchange: Exchange
    loop: asyncio.AbstractEventLoop


class BotoTap:
    """Hooks for clients of Bedrock's runtime, which may be registered with any number of clients and sessions."""

    def __init__(self, tapping: Tapping, own_loop: OwnLoop) -> None:
        self._tapping = tapping
        self._own_loop = own_loop
        self._current: ContextVar[_Call | None] = ContextVar("callstream_boto_call", default=None)

    def register(self, target: Any) -> None:
        events = _events_of(target)
        kinds = [kind.__module__.partition(".")[0] for kind in type(target).__mro__]
        is_async = "aiobotocore" in kinds or "aioboto3" in kinds
        before_call, before_parse = (
            (self._before_call_async, self._before_parse_async) if is_async else (self._before_call, self._before_parse)
        )
        # A Callstream taps a client only once, even if it has also tapped the client's session.
        name = f"callstream-{id(self._tapping.engine)}"
        events.register(f"before-call.{_SERVICE}", before_call, unique_id=f"{name}-call")
        events.register(f"before-parse.{_SERVICE}", before_parse, unique_id=f"{name}-parse")

    # -- requests --

    def _before_call(self, params: dict[str, Any], **_: Any) -> None:
        asked = self._begin(params)
        if asked is not None:
            own = self._own_loop.begin()
            place = Place.current().for_blocking_caller(own)
            loop = own if place.run is None else place.run.loop
            self._current.set(run_in(loop, partial(self._receive, asked, place, params)))

    async def _before_call_async(self, params: dict[str, Any], **_: Any) -> None:
        asked = self._begin(params)
        if asked is not None:
            self._current.set(await self._receive(asked, Place.current(), params))

    def _begin(self, params: dict[str, Any]) -> Request | None:
        """The request, if the tap is to read it. Forgets anything left from an earlier call."""
        self._current.set(None)
        body = params.get("body")
        if isinstance(body, str):
            body = body.encode()
        path = unquote(params["url_path"])
        if provider_at(path) is None or not isinstance(body, bytes | bytearray):  # a file, for example
            return None
        return Request(path, bytes(body))

    async def _receive(self, asked: Request, place: Place, params: dict[str, Any]) -> _Call:
        provider = provider_at(asked.path)
        assert provider is not None
        if place.run is not None and place.run.keeping is not None:
            await place.run.keeping.give_up("answers to clients of boto are not kept")
        exchange = await self._tapping.receive(provider, asked, place)
        told = self._tapping.tell(exchange)
        told.mark()  # when botocore retries, the body is the same
        sent = told.request
        if self._tapping.settings.bedrock_beta:
            sent = provider.ask_by_beta(sent, self._tapping.asks(place.model_call))
        if sent is not asked:
            params["body"] = sent.body
        return _Call(exchange, asyncio.get_running_loop())

    # -- answers --

    def _before_parse(self, operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
        call = self._answered(operation_model, response_dict)
        if call is None:
            return
        body = response_dict["body"]
        if operation_model.has_event_stream_output:
            response_dict["body"] = run_in(call.loop, partial(self._stream, call, _threaded(body)))
        elif isinstance(body, bytes):
            response_dict["body"] = run_in(call.loop, partial(self._whole, call, body))
        else:
            whole = run_in(call.loop, partial(self._whole, call, body.read()))
            response_dict["body"] = type(body)(BytesIO(whole), len(whole))

    async def _before_parse_async(self, operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
        call = self._answered(operation_model, response_dict)
        if call is None:
            return
        body = response_dict["body"]
        if operation_model.has_event_stream_output:
            response_dict["body"] = await self._stream(call, _AsyncSource(body))
        elif isinstance(body, bytes):
            response_dict["body"] = await self._whole(call, body)
        else:
            whole = await self._whole(call, await body.read())
            response_dict["body"] = type(body)(_AsyncWhole(whole), len(whole))

    def _answered(self, operation_model: Any, response_dict: dict[str, Any]) -> _Call | None:
        """The call that this answers, if the answer is to be read."""
        call = self._current.get()
        if call is None:
            return None
        content_type = response_dict["headers"].get("content-type", "")
        exchange = call.exchange
        kind = exchange.provider.answer_kind(exchange.asked, response_dict["status_code"], content_type)
        if kind != ("stream" if operation_model.has_event_stream_output else "whole"):
            return None  # an error, which may be followed by another attempt
        self._current.set(None)
        return call

    async def _stream(self, call: _Call, source: Any) -> _BotoStream:
        try:
            reading = await self._tapping.begin(call.exchange)
        except BaseException:
            await source.aclose()
            raise
        return _BotoStream(reading.streamed(source, source.aclose))

    async def _whole(self, call: _Call, body: bytes) -> bytes:
        reading = await self._tapping.begin(call.exchange)
        return await reading.whole(_chunks(body), _nothing)


class _BotoStream(BodyStream):
    """The parts of an HTTP response that botocore and aiobotocore use to read a body."""

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        return iter(self)

    @property
    def content(self) -> _BotoStream:
        return self

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        async for data in self:
            yield data, True


class _AsyncSource:
    """The body of an answer in aiobotocore, which comes from aiohttp."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data, _ in self._raw.content.iter_chunks():
            yield data

    async def aclose(self) -> None:
        self._raw.close()


class _AsyncWhole(BytesIO):
    """A body that is already in memory, in the form in which aiobotocore reads one."""

    @property
    def content(self) -> Any:
        return self

    async def read(self, size: int | None = -1, /) -> bytes:  # type: ignore[override]
        return super().read(size)


def _threaded(raw: Any) -> ThreadedStream:
    """The body of an answer in botocore, which comes from urllib3."""

    def wake() -> bool:
        try:
            raw.shutdown()
        except (AttributeError, ValueError, RuntimeError, OSError):  # urllib3 before 2.3, or a connection that is gone
            return False
        return True

    return ThreadedStream(raw.stream(), raw.close, wake)


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _nothing() -> None:
    pass


def _events_of(target: Any) -> Any:
    """Where the hooks of a client or a session are registered."""
    meta = getattr(target, "meta", None)
    if meta is not None and hasattr(meta, "service_model"):
        if meta.service_model.service_name != _SERVICE:
            raise UsageError(f"expected a client of {_SERVICE}, got one of {meta.service_model.service_name}")
        return meta.events
    if hasattr(target, "events"):  # boto3's session
        return target.events
    if hasattr(target, "get_component"):  # botocore's
        return target.get_component("event_emitter")
    raise UsageError(f"expected a client or a session of boto3, botocore or aiobotocore, got {target!r:.100}")
