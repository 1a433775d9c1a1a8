"""The tap's own transport for plain HTTP/1.1, and the pool of its connections.

A delta of a model is mostly a read of its own, and httpx's way for a read, through httpcore, anyio and h11, costs more
than all that the tap does with it. This transport does the same in less. Where it does not apply (proxies, HTTP/2,
extensions such as ``trace``), ``pools`` uses the library's own transport.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

from callstream.tap.connection import Connection, Head, Origin, Timeouts, connect
from callstream.tap.framing import Malformed

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
        self._turns = asyncio.Semaphore(self._max_connections)  # of those that are in use

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
        stream = _stream_class(self.library)(self, connection, head, timeouts.get("read"))
        return self.library.Response(head.status, headers=head.headers, stream=stream, extensions=head.extensions)

    def give_back(self, connection: Connection, *, is_reusable: bool) -> None:
        """The exchange is over."""
        self._used.discard(connection)
        if is_reusable and not connection.has_ended:
            connection.is_idle = True
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
            self._close_expired()
        else:
            self._close(connection)
        self._turns.release()

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
        try:
            connection = self._take_idle(origin)
            if connection is None:
                context = self._tls_context() if origin.scheme == "https" else None
                connection = await connect(self.library, origin, context, timeouts.get("connect"))
        except BaseException:
            self._turns.release()
            raise
        self._used.add(connection)
        while self._idle and len(self._idle) + len(self._used) > self._max_connections:
            self._close(self._idle.popleft())
        return connection

    def _take_idle(self, origin: Origin) -> Connection | None:
        self._close_expired()
        for connection in reversed(self._idle):
            if connection.origin == origin:
                self._idle.remove(connection)
                connection.is_idle = False
                return connection
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

    def __init__(self, transport: DirectTransport, connection: Connection, head: Head, timeout: float | None) -> None:
        self._transport = transport
        self._connection = connection
        self._body = head.body
        self._unread = head.begun
        self._keeps_alive = head.keeps_alive
        self._timeout = timeout
        self._is_over = False
        self._take: Callable[[bytes], bool] | None = None
        self._content = b""  # to be yielded
        self._malformed: Malformed | None = None

    def deliver_to(self, take: Callable[[bytes], bool]) -> None:
        """See ``Delivering``. To be called before iterating."""
        self._take = take

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # No local variable has what came: this frame stands for as long as the stream, and bytes may never come by it.
        body, connection = self._body, self._connection
        errors = self._transport.library
        if self._take is not None:
            connection.sink = self._deliver
        try:
            self._feed(self._unread)
            self._unread = b""
            while True:
                if self._content:
                    yield self._take_content()
                if body.is_complete:
                    return
                has_come = self._feed(await connection.read(self._timeout))
                if self._malformed is not None:
                    raise self._malformed
                if not has_come and not self._content and connection.has_ended and not body.is_complete:
                    break
            if (missing := body.missing()) is not None:
                raise errors.RemoteProtocolError(
                    f"peer closed connection without sending complete message body ({missing})"
                )
        except Malformed as error:
            raise errors.RemoteProtocolError(str(error)) from error
        finally:
            self._end()

    def _deliver(self, data: bytes) -> bool:
        try:
            content = self._body.feed(data)
        except Malformed as error:
            self._malformed = error
            return False
        if content and self._take is not None and not self._take(content):
            self._content = content
            return False
        return not self._body.is_complete

    def _feed(self, data: bytes) -> bool:
        if data:
            self._content += self._body.feed(data)
        return bool(data)

    def _take_content(self) -> bytes:
        content, self._content = self._content, b""
        return content

    async def aclose(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._connection.sink = None
            is_whole = self._body.is_complete and not self._body.rest and not self._unread
            self._transport.give_back(self._connection, is_reusable=is_whole and self._keeps_alive)


@cache
def _stream_class(library: ModuleType) -> Any:
    class LibraryStream(DirectStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """What the library takes for a stream of its own."""

    return LibraryStream
