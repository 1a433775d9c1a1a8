"""The tap's own transport for plain HTTP/1.1, and the pool of its connections.

A delta of a model is mostly a read of its own, and httpx's way for a read, through httpcore, anyio and h11, costs more
than all that the tap does with it. This transport does the same in less. Where it does not apply (proxies, HTTP/2,
extensions such as ``trace``), ``pools`` uses the library's own transport.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import socket
import ssl
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from callstream.hooks.thread import HookThread
from callstream.tap.connection import Connection, Origin, ResponseHead, Timeouts, connect

_PORTS: Final = {"http": 80, "https": 443}
# httpx's own limits where none are given.
_MAX_CONNECTIONS: Final = 100
_MAX_KEEPALIVE: Final = 20
_KEEPALIVE_EXPIRY: Final = 5.0
_UNLIMITED: Final = 2**31


class DirectTransport:
    """For one event loop. ``options`` are those of the library's AsyncHTTPTransport."""

    def __init__(self, library: ModuleType, options: Mapping[str, Any]) -> None:
        limits = options.get("limits") or library.Limits(
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_KEEPALIVE,
            keepalive_expiry=_KEEPALIVE_EXPIRY,
        )
        self.library = library
        self._tls = {name: options[name] for name in ("verify", "cert", "trust_env") if name in options}
        self._context: ssl.SSLContext | None = None
        self._max_connections = _UNLIMITED if limits.max_connections is None else limits.max_connections
        most_idle = limits.max_keepalive_connections
        self._max_idle = _UNLIMITED if most_idle is None else most_idle
        self._expiry: float | None = limits.keepalive_expiry
        self._idle: deque[Connection] = deque()  # the one that has been idle for longest first
        self._used: set[Connection] = set()
        self._closing: set[Connection] = set()
        self._turns = asyncio.Semaphore(self._max_connections)
        self._turns_taken = 0  # by connections in use, and by those that are being opened

    async def handle_async_request(self, request: Any) -> Any:
        timeouts: Timeouts = request.extensions.get("timeout", {})
        url = request.url
        origin = Origin(url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme])
        connection = await self._acquire(origin, timeouts)
        try:
            head = await connection.ask(request, timeouts)
        except BaseException:
            self.give_back(connection, is_reusable=False)
            raise
        stream = _stream_class(self.library)(self, connection, head)
        return self.library.Response(head.status, headers=head.headers, stream=stream, extensions=head.extensions)

    def give_back(self, connection: Connection, *, is_reusable: bool) -> None:
        """The exchange is over."""
        self._used.discard(connection)
        if is_reusable and connection.is_drained:
            connection.is_idle = True
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
            self._close_expired()
        else:
            self._close(connection)
        self._end_turn()

    async def aclose(self) -> None:
        for connection in (*self._idle, *self._used):
            self._close(connection)
        self._idle.clear()
        for connection in list(self._closing):
            await connection.wait_closed()

    async def _acquire(self, origin: Origin, timeouts: Timeouts) -> Connection:
        try:
            async with asyncio.timeout(timeouts.get("pool")):
                await self._turns.acquire()
        except TimeoutError:
            raise self.library.PoolTimeout("all connections of the pool are in use") from None
        self._turns_taken += 1
        try:
            connection = self._take_idle(origin)
            if connection is None:
                while self._idle and len(self._idle) + self._turns_taken > self._max_connections:
                    self._close(self._idle.popleft())
                context = self._tls_context() if origin.scheme == "https" else None
                connection = await connect(self.library, origin, context, timeouts.get("connect"))
        except BaseException:
            self._end_turn()
            raise
        self._used.add(connection)
        return connection

    def _end_turn(self) -> None:
        self._turns_taken -= 1
        self._turns.release()

    def _take_idle(self, origin: Origin) -> Connection | None:
        self._close_expired()
        for connection in [each for each in reversed(self._idle) if each.origin == origin]:
            self._idle.remove(connection)
            if connection.is_quiet:
                connection.is_idle = False
                return connection
            self._close(connection)
        return None

    def _close_expired(self) -> None:
        now = asyncio.get_running_loop().time()
        kept: deque[Connection] = deque()
        for connection in self._idle:
            has_expired = self._expiry is not None and now - connection.idle_since > self._expiry
            if has_expired or connection.has_ended:
                self._close(connection)
            else:
                kept.append(connection)
        while len(kept) > self._max_idle:
            self._close(kept.popleft())
        self._idle = kept

    def _close(self, connection: Connection) -> None:
        """It takes another turn of the event loop until the socket is closed; ``aclose`` waits for it."""
        self._closing.add(connection)
        connection.on_lost(self._closing.discard)
        connection.abort()

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            context: ssl.SSLContext = self.library.create_ssl_context(**self._tls)
            context.set_alpn_protocols(["http/1.1"])
            self._context = context
        return self._context


class DirectStream:
    """The body of an answer. When it has been read its connection can be used again; before, it is closed."""

    def __init__(self, transport: DirectTransport, connection: Connection, head: ResponseHead) -> None:
        self._transport = transport
        self._connection = connection
        self._body = head.body
        self._begun = head.begun
        self._is_over = False
        self._push: Callable[[bytes], bool] | None = None
        self._content = b""  # to be yielded

    def deliver_to(self, push: Callable[[bytes], bool]) -> None:
        """See ``Delivering``. To be called before iterating."""
        self._push = push

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # No local variable has what came: this frame stands for as long as the stream, and bytes may never come by it.
        body, connection = self._body, self._connection
        if self._push is not None:
            connection.sink = self._deliver
        try:
            self._content += body.begin(self._begun)
            self._begun = b""
            while True:
                if self._content:
                    yield self._take_content()
                if body.error is not None:
                    raise self._transport.library.RemoteProtocolError(str(body.error)) from body.error
                if body.is_complete:
                    return
                self._feed(await connection.read())
        finally:
            self._end()

    def _deliver(self, data: bytes) -> bool:
        content = self._body.feed(data)
        if content and self._push is not None and not self._push(content):
            self._content = content
            return False
        return not self._body.is_complete and self._body.error is None

    def _feed(self, data: bytes | None) -> None:
        if data is not None:
            self._content += self._body.feed(data) if data else self._body.end()

    def _take_content(self) -> bytes:
        content, self._content = self._content, b""
        return content

    async def aclose(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._connection.sink = None
            is_whole = self._body.is_complete and not self._begun
            self._transport.give_back(self._connection, is_reusable=is_whole and self._body.is_reusable)


@cache
def _stream_class(library: ModuleType) -> Any:
    class LibraryStream(DirectStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """What the library takes for a stream of its own."""

    return LibraryStream


# -- pools: one for each running event loop, library and proxy ---------------------------------------------------------
# A pool belongs to the loop that opened its connections, so each loop gets its own. Requests of sync clients that the tap
# reads are sent from an event loop too; what it does not read goes through the library's own sync pools. The environment's
# proxies count, as they would without a transport of one's own. Async requests of plain HTTP/1.1 have transports of the
# tap's own, which cost less.


_Transports: TypeAlias = dict[tuple[str, str | None, bool], Any]
"""By the library, the proxy, and whether they are the tap's own."""
_CORES = {"httpx": "httpcore", "httpx2": "httpcore2"}


def library_of(request: Any) -> ModuleType:
    """The library that a request belongs to: httpx or httpx2."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def load_core(library: ModuleType) -> None:
    """Imports what the library's own transports import.

    SDKs name errors of those packages when a stream is closed, and one that was left open is closed when the program ends:
    then nothing can be imported any more.
    """
    importlib.import_module(_CORES[library.__name__])


class Pools:
    """Makes transports as they are needed. ``options`` are those of the library's own transports.

    While some are open, ``in_use`` has these pools, for clients that are never closed.
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
    """Whether an entry of NO_PROXY is for this URL, by the rules that httpx has for clients without a transport.

    A name is for its subdomains too, one with a dot before it for these alone. Addresses and ranges of them (which are
    httpx2's), ``localhost`` and names with a scheme are only for themselves.
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
    """Whether a request needs nothing that only the library's own transport does."""
    return (
        request.url.scheme in ("http", "https")
        and request.method != "CONNECT"
        and "upgrade" not in request.headers
        and request.extensions.keys() <= {"timeout"}
    )


def _direct(library: ModuleType, options: dict[str, Any]) -> Any:
    from callstream.tap.direct import DirectTransport  # it needs h11, which comes with httpx and httpx2

    return DirectTransport(library, options)


# -- a sync transport, used from an event loop: in a thread for each request -------------------------------------------
# All that is done for one request is done by its thread, one thing after another. A thread that waits for bytes cannot be
# cancelled. So to close a response that is being read, its socket is shut down; where the transport shows no socket, or
# shares it (HTTP/2), the response is closed as soon as the wait is over, and that is not waited for.


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
    """Blocking chunks, read in a thread. ``wake`` ends a wait for one, and returns whether that was possible."""

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
