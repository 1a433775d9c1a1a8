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
        self._announce: Callable[[], object] | None = None

    def announce_to(self, announce: Callable[[], object]) -> None:
        """See ``Announcing``. To be called before iterating."""
        self._announce = announce

    def take(self) -> bytes:
        """See ``Announcing``."""
        if self._body.has_ended():
            return b""  # what has come after it is nothing of it
        data = self._connection.take()
        content = self._body.feed(data) if data else b""
        if self._body.has_ended():
            self._connection.wake()
        return content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # No local variable has what came: this frame stands for as long as the stream, and bytes may never come by it.
        body, connection = self._body, self._connection
        try:
            if content := body.begin(self._begun):
                yield content
            self._begun = content = b""
            connection.announce = self._announce
            while True:
                if content := self.take() or self._last():
                    yield content
                    content = b""
                elif body.has_ended():
                    break
                else:
                    await connection.wait()
            if body.error is not None:
                raise self._transport.library.RemoteProtocolError(str(body.error)) from body.error
        finally:
            self._end()

    def _last(self) -> bytes:
        """What there is left where nothing more comes."""
        if self._body.has_ended() or not self._connection.has_ended:
            return b""
        self._connection.raise_error()
        return self._body.end()

    async def aclose(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._connection.announce = None
            is_whole = self._body.is_complete and not self._begun
            self._transport.give_back(self._connection, is_reusable=is_whole and self._body.is_reusable)


@cache
def _stream_class(library: ModuleType) -> Any:
    class LibraryStream(DirectStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """What the library takes for a stream of its own."""

    return LibraryStream
