"""What the tap needs from the library that a request belongs to, httpx or httpx2: connection pools, and bodies to read."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import os
import socket
import sys
import threading
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import cache, partial
from types import ModuleType
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary, finalize

from callstream.hooks.dispatch import HookThread
from callstream.runtime.ownloop import finish_in, run_in
from callstream.tap.again import AskingBody
from callstream.tap.body import TappedBody

_Transports: TypeAlias = dict[tuple[str, str | None, bool], Any]
"""By library, proxy, and whether they are the tap's own."""
_CORES = {"httpx": "httpcore", "httpx2": "httpcore2"}


def library_of(request: Any) -> ModuleType:
    """The library that a request belongs to: httpx or httpx2."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def load_core(library: ModuleType) -> None:
    """Imports what the library's own transports import.

    SDKs refer to errors of those packages when a stream is closed, and a stream that was left open is closed when the
    program ends: by then nothing can be imported.
    """
    importlib.import_module(_CORES[library.__name__])


# -- connection pools: one for each running event loop, library and proxy ---------------------------------------------
# A pool belongs to the loop that opened its connections, so each loop gets its own. Requests of sync clients that the tap
# reads are sent from an event loop too; those that it does not read go through the library's own sync pools. The
# environment's proxies apply, as they would without a custom transport. Plain async HTTP/1.1 requests use the tap's own
# transport, which costs less; see ``http1``.


class Pools:
    """Makes transports as they are needed. ``options`` are those of the library's own transports.

    While any transport is open, ``in_use`` holds these pools, so that those of clients never closed can be closed too.
    """

    def __init__(self, options: dict[str, Any], *, in_use: set[Pools] | None = None) -> None:
        self._options = options
        self._in_use = in_use if in_use is not None else set()
        self._lock = threading.Lock()
        self._can_be_direct = "proxy" not in options and options.get("http1", True) and not options.get("http2", False)
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Transports] = WeakKeyDictionary()
        self._sync: _Transports = {}

    def transport_for(self, request: Any) -> Any:
        """A transport for requests on this event loop."""
        with self._lock:
            pools = self._by_loop.setdefault(asyncio.get_running_loop(), {})
            return self._pool(pools, request, "AsyncHTTPTransport", may_be_direct=True)

    def sync_transport_for(self, request: Any) -> Any:
        with self._lock:
            return self._pool(self._sync, request, "HTTPTransport")

    async def aclose(self) -> None:
        """Closes the pools of this event loop."""
        with self._lock:
            pools = self._by_loop.pop(asyncio.get_running_loop(), {})
            self._check_use()
        for pool in pools.values():
            await pool.aclose()

    def close(self) -> None:
        """Closes the sync pools."""
        with self._lock:
            pools, self._sync = self._sync, {}
            self._check_use()
        for pool in pools.values():
            pool.close()

    def _pool(self, pools: _Transports, request: Any, transport: str, *, may_be_direct: bool = False) -> Any:
        library = library_of(request)
        proxy = self._proxy_for(request.url)
        is_direct = may_be_direct and proxy is None and self._can_be_direct and _is_plain(request)
        key = (library.__name__, proxy, is_direct)
        if key not in pools:
            options = dict(self._options)
            if proxy is not None:
                options["proxy"] = library.Proxy(proxy)
            limits = options.get("limits")
            if limits is not None:
                options["limits"] = library.Limits(
                    max_connections=limits.max_connections,
                    max_keepalive_connections=limits.max_keepalive_connections,
                    keepalive_expiry=limits.keepalive_expiry,
                )
            pools[key] = _direct(library, options) if is_direct else getattr(library, transport)(**options)
            self._in_use.add(self)
        return pools[key]

    def _check_use(self) -> None:
        if not self._by_loop and not self._sync:
            self._in_use.discard(self)

    def _proxy_for(self, url: Any) -> str | None:
        if "proxy" in self._options or not self._options.get("trust_env", True):
            return None
        proxies = urllib.request.getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all")
        if not proxy or any(_is_exempt(url, entry.strip()) for entry in proxies.get("no", "").split(",")):
            return None
        return proxy if "://" in proxy else f"http://{proxy}"


def _is_exempt(url: Any, entry: str) -> bool:
    """Whether an entry of NO_PROXY covers this URL, by the rules that httpx applies for clients without a transport.

    A name covers its subdomains too, one with a leading dot only these. Addresses and address ranges (which only httpx2
    has), ``localhost`` and names with a scheme cover only themselves.
    """
    if entry in ("", "*"):
        return bool(entry)
    scheme, has_scheme, name = entry.lower().rpartition("://")
    if scheme not in ("", "all", url.scheme):
        return False
    if (network := _network(name)) is not None:
        return (host := _network(url.host)) is not None and host[0] in network
    name, _, port = name.partition(":")
    if port and port != str(url.port):
        return False
    if name.startswith("."):
        return bool(url.host.endswith(name))
    is_alone = has_scheme or entry.lower() == "localhost"
    return url.host == name or (not is_alone and bool(url.host.endswith(f".{name}")))


def _network(name: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """An address, or a range of them; None if it is a name."""
    try:
        return ipaddress.ip_network(name, strict=False)
    except ValueError:
        return None


def _is_plain(request: Any) -> bool:
    """Whether a request needs nothing that only the library's own transport can do."""
    return (
        request.url.scheme in ("http", "https")
        and request.method != "CONNECT"
        and "upgrade" not in request.headers
        and request.extensions.keys() <= {"timeout"}
    )


def _direct(library: ModuleType, options: dict[str, Any]) -> Any:
    from callstream.tap.http1 import DirectTransport  # it needs h11, which comes with httpx and httpx2

    return DirectTransport(library, options)


# -- bodies: one kind of stream, for async and for sync clients ----------------------------------------------------------
# A sync client reads in any thread. Each step runs on the event loop of the body, in another thread.


class Body(Protocol):
    """``reader`` is referenced until everything has been read."""

    def chunks(self, reader: object) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class PassedBody:
    """A body that is passed on as it is: the beginning that has been read already, and the rest."""

    def __init__(
        self, rest: AsyncIterable[bytes], close: Callable[[], Awaitable[None]], beginning: bytes = b""
    ) -> None:
        self._beginning = beginning
        self._rest = rest
        self._close = close

    async def chunks(self, reader: object) -> AsyncIterator[bytes]:
        if self._beginning:
            yield self._beginning
        async for data in self._rest:
            yield data

    async def aclose(self) -> None:
        await self._close()


def stream_of(library: ModuleType, body: Body) -> Any:
    """The body as a stream of the library. To be called on the loop of the body."""
    return _stream_class(library)(body)


class BodyStream:
    """Reads a body, async or in any thread. Made on the loop of the body."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._abandoned: finalize[..., Any] | None = None
        if isinstance(body, TappedBody | AskingBody):
            self._abandoned = finalize(self, body.abandon)
            self._abandoned.atexit = False

    def deliver_to(self, push: Callable[[bytes], bool]) -> None:
        """See ``Delivering``. To be called before iterating."""
        if isinstance(self._body, TappedBody):
            self._body.deliver_to(push)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.chunks(self)

    async def aclose(self) -> None:
        self._is_closed()
        await self._body.aclose()

    def _is_closed(self) -> None:
        """The finalizer for a body that is never closed is no longer needed."""
        if self._abandoned is not None:
            self._abandoned.detach()

    def __iter__(self) -> Iterator[bytes]:
        # Not a generator: one not read to its end would be closed wherever garbage happens to be collected, and block there.
        return iter(partial(run_in, self._loop, partial(_next, self._body.chunks(self))), None)

    def close(self) -> None:
        if os.getpid() == self._process:  # else it was forked, and the loop runs in the parent only
            self._is_closed()
            finish_in(self._loop, self._body.aclose)


@cache
def _stream_class(library: ModuleType) -> Any:
    class _LibraryBodyStream(BodyStream, library.AsyncByteStream, library.SyncByteStream):  # type: ignore[misc, name-defined]
        """What the library accepts as a stream of its own."""

    return _LibraryBodyStream


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


# -- content codings: the tap asks for none, and has any that come anyway decoded by the HTTP library --------------------
# A decoded read may be a thousand times its encoded size. That is acceptable, because a provider is not an attacker; the
# number of bytes held of a stream or a whole answer is limited after decoding (``Limits``).


def codings_in(header: str) -> list[str]:
    """The codings that a Content-Encoding names, in lower case, without ``identity``."""
    named = [coding.strip().lower() for coding in header.split(",")]
    return [coding for coding in named if coding not in ("", "identity")]


def can_decode(library: ModuleType, codings: list[str]) -> bool:
    return _codings_of(library).issuperset(codings)


def decoded(answer: Any, stream: Any) -> AsyncIterator[bytes]:
    """The stream of an answer without its coding."""
    library = library_of(answer)
    body = stream_of(library, PassedBody(_from_two_bytes(stream), stream.aclose))
    pieces: AsyncIterator[bytes] = library.Response(200, headers=_coding_of(answer), stream=body).aiter_bytes()
    return pieces


async def _from_two_bytes(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Makes the first piece at least two bytes long: by these httpx distinguishes zlib's deflate from raw deflate."""
    first: bytes | None = b""
    async for data in stream:
        if first is not None:
            data = first = first + data
            if len(first) < 2:
                continue
            first = None
        yield data
    if first:
        yield first


def decoded_bytes(answer: Any, data: bytes) -> bytes:
    """The beginning of an answer's body without its coding, as far as it can be decoded."""
    library = library_of(answer)
    pieces: list[bytes] = []
    try:
        pieces.extend(library.Response(200, headers=_coding_of(answer), stream=library.ByteStream(data)).iter_bytes())
    except library.DecodingError:
        pass  # for the SDK to raise
    return b"".join(pieces)


def _coding_of(answer: Any) -> dict[str, str]:
    return {"content-encoding": answer.headers.get("content-encoding", "")}


@cache
def _codings_of(library: ModuleType) -> set[str]:
    """What the library can decode depends on installed packages; its clients list it in each request."""
    client = library.Client(transport=library.MockTransport(lambda request: None), trust_env=False)
    return set(codings_in(client.headers["accept-encoding"]))


# -- a sync transport that a program wants wrapped, used from an event loop: in a thread for each request ----------------
# Everything for one request runs in its thread, one step after another. A thread that waits for bytes cannot be cancelled.
# So to close a response that is being read, its socket is shut down; where the transport does not expose the socket, or
# shares it (HTTP/2), the response is closed as soon as the wait is over, and nothing waits for that.


class ThreadedTransport:
    """The sync transport as an async one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def handle_async_request(self, request: Any) -> Any:
        thread = HookThread("callstream-http")
        asking = thread.submit(self._inner.handle_request, request)
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda asked: _close_unwanted(asked, thread))
            raise
        library = library_of(request)
        stream = ThreadedStream(answer.stream, answer.stream.close, partial(_wake, answer), thread)
        return library.Response(
            answer.status_code, headers=answer.headers, stream=stream, extensions=answer.extensions, request=request
        )


class ThreadedStream:
    """Blocking chunks, read in a thread. ``wake`` ends the wait for a chunk, and returns whether it could."""

    def __init__(
        self,
        chunks: Iterable[bytes],
        close: Callable[[], None],
        wake: Callable[[], bool],
        thread: HookThread | None = None,
    ) -> None:
        self._chunks = chunks
        self._close = close
        self._wake = wake
        self._thread = thread or HookThread("callstream-http")
        self._reading: asyncio.Future[bytes | None] | None = None
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = iter(self._chunks)
        while True:
            self._reading = self._thread.submit(next, chunks, None)
            data = await asyncio.shield(self._reading)
            if data is None:
                return
            yield data

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        is_waiting = self._reading is not None and not self._reading.done()
        can_be_woken = is_waiting and self._wake()
        closing = self._thread.submit(self._close)
        self._thread.close()
        if can_be_woken or not is_waiting:
            await closing


def _wake(answer: Any) -> bool:
    """Ends a wait for bytes of this answer in another thread. False if that is not possible."""
    network = answer.extensions.get("network_stream")
    if network is None or answer.extensions.get("http_version") == b"HTTP/2":
        return False
    try:
        socket.socket.shutdown(network.get_extra_info("socket"), socket.SHUT_RDWR)
    except (OSError, TypeError):
        return False
    return True


def _close_unwanted(asked: asyncio.Future[Any], thread: HookThread) -> None:
    if not asked.cancelled() and asked.exception() is None:
        _ = thread.submit(asked.result().stream.close)
    thread.close()
