"""The tap's own HTTP/1.1: a connection to a provider on an asyncio protocol, and the transport with a pool of them.

h11 writes the requests and reads the heads of the answers, and ``BodyReader`` reads the bodies. So a delta costs one
callback and one wake-up, where httpx's own connections go through three libraries. Whatever fails is raised as the HTTP
library's own error.

HTTP/1.1 does not say which request an answer belongs to, except that the answer comes after it. So bytes that come before a
request was written are never read as its answer: the connection is closed instead.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, zip_longest
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias, cast

import h11

from callstream.waits import Alarm, Flag

# -- the body of a response: which bytes are its content, and where it ends (RFC 9112, sections 6 and 7) ---------------
# h11 decides, with one shortcut. A model's delta is usually one chunk and one read, for which h11 takes about 40 µs and the
# code below 1 µs. Plain chunks do not change h11's state: between two chunks it remembers nothing of those before. So they
# are cut here, and from the first bytes that are anything else (an extension, the last chunk and its trailers, an error)
# h11 reads the whole rest of the body.


_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_BEGINNING_OF_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{0,15}\r?")
_LINE_END: Final = b"\r\n"


class BodyReader:
    """Is fed the bytes after the head, which ``http`` has read."""

    def __init__(self, http: h11.Connection, *, is_chunked: bool) -> None:
        self.is_complete = False
        self.has_ended = False
        """No more of the body comes: it is complete, or there is an ``error``."""
        self.error: h11.RemoteProtocolError | None = None
        """Why the body is not what its head says. Whatever came before the error still is content."""
        self._http = http
        self._is_plain = is_chunked and not http.trailing_data[0]
        self._size = b""  # the beginning of a chunk's size
        self._left = 0  # bytes still to come of the chunk and the line end after it

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can have another exchange: both sides are done, and no bytes are left over."""
        return self._http.our_state is self._http.their_state is h11.DONE and not self._http.trailing_data[0]

    def begin(self, begun: bytes) -> bytes:
        """The content that came together with the head. ``begun`` is the part of it that h11 does not have."""
        if self._is_plain:
            return self.feed(begun) if begun else b""
        if begun:
            self._http.receive_data(begun)
        return self._read_events()

    def feed(self, data: bytes) -> bytes:
        """The content of ``data``, which is not empty."""
        if not self._is_plain:
            self._http.receive_data(data)
            return self._read_events()
        if self._size:
            data, self._size = self._size + data, b""
        elif not self._left:
            line = data.find(_LINE_END)
            size = len(data) - line - 2 * len(_LINE_END)
            if size > 0 and data[:line].lower() == b"%x" % size and data.endswith(_LINE_END):
                return data[line + len(_LINE_END) : -len(_LINE_END)]
        return self._read_chunks(data)

    def end(self) -> bytes:
        """The connection has ended, either at the end of the body or too early."""
        if self._size:
            self._http.receive_data(self._size)
        self._http.receive_data(b"")
        return self._read_events()

    def _read_chunks(self, data: bytes) -> bytes:
        content: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left > len(_LINE_END):
                piece = data[at : at + self._left - len(_LINE_END)]
                content.append(piece)
                self._left -= len(piece)
                at += len(piece)
            elif self._left:
                end = data[at : at + self._left]
                if not _LINE_END[-self._left :].startswith(end):
                    self.error = h11.RemoteProtocolError(f"malformed chunk footer: {end!r}")
                    self.has_ended = True
                    break
                self._left -= len(end)
                at += len(end)
            elif (found := _SIZE.match(data, at)) is not None and (size := int(found[1], 16)):
                self._left = size + len(_LINE_END)
                at = found.end()
            elif _BEGINNING_OF_SIZE.fullmatch(data, at) is not None:
                self._size = data[at:]
                break
            else:
                self._is_plain = False
                self._http.receive_data(data[at:])
                content.append(self._read_events())
                break
        return content[0] if len(content) == 1 else b"".join(content)

    def _read_events(self) -> bytes:
        content: list[bytes] = []
        try:
            while isinstance(event := self._http.next_event(), h11.Data):
                content.append(bytes(event.data))
        except h11.RemoteProtocolError as error:
            self.error = error
        else:
            self.is_complete = isinstance(event, h11.EndOfMessage)
        self.has_ended = self.is_complete or self.error is not None
        return content[0] if len(content) == 1 else b"".join(content)


Timeouts: TypeAlias = Mapping[str, float | None]
"""In seconds, as httpx puts them into a request: connect, read, write and pool."""
_Address: TypeAlias = tuple[Any, ...]
"""As returned by getaddrinfo."""
_MAX_HEAD: Final = 100 * 1024
_MAX_BUFFERED: Final = 256 * 1024
_WRITE_AT_ONCE: Final = 64 * 1024
_NEXT_ADDRESS: Final = 0.25
"""Seconds after which the next address is tried too (RFC 8305)."""
_NO_HANDSHAKE_LIMIT: Final = 24 * 3600.0
"""In seconds. The request's own limit counts, not asyncio's of one minute."""
_HEAD_END: Final = b"\r\n\r\n"
_WITHOUT_BODY: Final = (204, 304)


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int


class _Head(NamedTuple):
    """The head of an answer, and what reads its body."""

    status: int
    headers: list[tuple[bytes, bytes]]
    extensions: dict[str, Any]
    body: BodyReader
    begun: bytes
    """The part of the body that has come already."""


class Connection(asyncio.Protocol):
    """Made by ``connect``. One exchange at a time: ``ask``, then ``wait`` and ``pop`` until the body is complete."""

    transport: asyncio.Transport

    def __init__(self, library: ModuleType, origin: _Origin) -> None:
        self.origin = origin
        self.is_idle = False
        self.idle_since = 0.0
        self.has_ended = False
        """The provider sends nothing more."""
        self.announce: Callable[[], object] | None = None
        """Called when there are bytes to take, instead of ending the ``wait``."""
        self._library = library
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._error: Exception | None = None
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._is_paused = False
        self._is_resuming = False  # a transport may still have bytes that it was not allowed to deliver
        self._waiter: asyncio.Future[None] | None = None
        self._seconds: float | None = None  # that a wait may last
        self._alarm = Alarm(self._time_out)
        self._taken_at = 0.0
        self._may_write = Flag()
        self._may_write.set()

    # -- asyncio's callbacks --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.is_idle:  # no request was sent
            self.abort()
            return
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _MAX_BUFFERED and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        if self.announce is None:
            self.wake()
        elif len(self._unread) == 1:
            self.announce()

    def eof_received(self) -> None:
        self.has_ended = True
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True
        self._error = self._error or exc
        self.wake()
        self._may_write.set()
        self._alarm.stop()
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # -- an exchange --

    @property
    def is_drained(self) -> bool:
        """Whether everything that came has been read, and more may come."""
        return not self._unread and not self.has_ended

    @property
    def is_quiet(self) -> bool:
        """Whether nothing else is on its way either, so that anything that comes from now on answers the next request.

        The socket is asked: an event loop that was kept busy has not seen the latest bytes.
        """
        return self.is_drained and not self._is_resuming and not _is_readable(self.transport)

    async def ask(self, request: Any, timeouts: Timeouts) -> _Head:
        """Sends the request, and waits for the head of its answer."""
        self._seconds = timeouts.get("read")
        self._alarm.stop()  # the last exchange's timer may be set for much later
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        async for data in self._request(http, request):
            await self._write(data, timeouts.get("write"))
        head, begun = await self._read_head(http)
        has_body = request.method != "HEAD" and head.status_code not in _WITHOUT_BODY
        is_chunked = any(name == b"transfer-encoding" for name, _ in head.headers)
        return _Head(
            head.status_code,
            head.headers.raw_items(),
            {"http_version": b"HTTP/" + head.http_version, "reason_phrase": head.reason, "network_stream": self},
            BodyReader(http, is_chunked=has_body and is_chunked),
            begun,
        )

    async def wait(self) -> None:
        """Waits for bytes (unless these are announced), for the end of the connection, or for a call of ``wake``."""
        if self._unread or self.has_ended:
            return
        self._waiter = self._loop.create_future()
        if self._seconds is not None:
            self._taken_at = self._loop.time()
            self._alarm.set(self._loop, self._seconds)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._alarm.unset()

    def wake(self) -> None:
        """Ends the wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pop(self) -> bytes:
        """The bytes that have come, if any."""
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if self._is_paused:
            self._resume()
        if self._seconds is not None:
            self._taken_at = self._loop.time()
        return data

    def raise_error(self) -> None:
        """Raises the error that broke the connection, if any."""
        if self._error is not None:
            raise self._library.ReadError(str(self._error)) from self._error

    def get_extra_info(self, name: str) -> Any:
        """What users of httpx ask the extension ``network_stream`` for."""
        if name == "is_readable":
            return _is_readable(self.transport)
        known = {"client_addr": "sockname", "server_addr": "peername"}
        return self.transport.get_extra_info(known.get(name, name))

    def abort(self) -> None:
        self.has_ended = True
        self._error = self._error or ConnectionAbortedError("the connection was closed here")
        self.transport.abort()

    def on_lost(self, callback: Callable[[Connection], object]) -> None:
        self._lost.add_done_callback(lambda _: callback(self))

    async def wait_closed(self) -> None:
        await self._lost

    async def _request(self, http: h11.Connection, request: Any) -> AsyncIterator[bytes]:
        """The bytes of a request, with its head and a short body in one piece.

        A body that has to be awaited comes after its head: until the head is written, there is nothing to answer.
        """
        with self._mapping(h11.LocalProtocolError):
            head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
            ready = http.send(head) or b""
            if not isinstance(request.stream, self._library.ByteStream):
                yield ready
                ready = b""
            async for piece in request.stream:
                ready += http.send(h11.Data(data=piece)) or b""
                if len(ready) >= _WRITE_AT_ONCE:
                    yield ready
                    ready = b""
            yield ready + (http.send(h11.EndOfMessage()) or b"")

    async def _write(self, data: bytes, seconds: float | None) -> None:
        """A provider may answer and close before it has read everything: the answer counts, so this is not an error."""
        if self.has_ended:
            return
        self.transport.write(data)
        if not self._may_write.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._may_write.wait()
            except TimeoutError:
                raise self._library.WriteTimeout(f"could not send for {seconds} seconds") from None

    async def _read_head(self, http: h11.Connection) -> tuple[h11.Response, bytes]:
        """The head, and the bytes that have come after it. Provisional answers (1xx) are dropped."""
        begun = b""
        while True:
            with self._mapping(h11.RemoteProtocolError):
                event = http.next_event()
            if event is h11.NEED_DATA:
                if not begun:
                    await self.wait()
                data = begun or self.pop()
                if not data:
                    self.raise_error()
                    raise self._library.RemoteProtocolError("Server disconnected without sending a response.")
                head, end, begun = data.partition(_HEAD_END)
                http.receive_data(head + end)
            elif isinstance(event, h11.Response):
                return event, begun
            else:
                await asyncio.sleep(0)  # thousands may have come at once, and other tasks need the event loop too

    def _resume(self) -> None:
        """Resumes reading. A TLS transport delivers what it has decrypted one turn of the event loop later."""
        self._is_paused = False
        self._is_resuming = True
        self.transport.resume_reading()
        self._loop.call_soon(self._resumed)

    def _resumed(self) -> None:
        self._is_resuming = False

    def _time_out(self) -> None:
        """Time counts from the last ``pop``, which does not reset the alarm. Untaken bytes mean it is not silent."""
        if self._waiter is None or self._waiter.done() or self._seconds is None:
            return
        left = self._seconds if self._unread else self._taken_at + self._seconds - self._loop.time()
        if left > 0:
            self._alarm.set(self._loop, left)
        else:
            self._waiter.set_exception(self._library.ReadTimeout(f"received nothing for {self._seconds} seconds"))

    @contextmanager
    def _mapping(self, kind: type[Exception]) -> Iterator[None]:
        """Raises an error of h11 as the library's own error of the same name."""
        try:
            yield
        except kind as error:
            raise getattr(self._library, kind.__name__)(str(error)) from error


def _is_readable(transport: asyncio.Transport) -> bool:
    """Whether the socket has something to read, if only its end."""
    opened = transport.get_extra_info("socket")
    descriptor = -1 if opened is None else opened.fileno()
    if descriptor < 0:
        return True
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


async def connect(
    library: ModuleType, origin: _Origin, context: ssl.SSLContext | None, seconds: float | None
) -> Connection:
    """A new connection, to whichever address of the host answers first."""
    loop = asyncio.get_running_loop()
    connection = Connection(library, origin)
    try:
        async with asyncio.timeout(seconds):
            opened = await _open_socket(origin.host, origin.port)
        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(
                    lambda: connection,
                    sock=opened,
                    ssl=context,
                    server_hostname=origin.host if context else None,
                    ssl_handshake_timeout=_NO_HANDSHAKE_LIMIT if context else None,
                )
        except BaseException:
            if type(loop).__module__ == "uvloop":  # it has closed the descriptor, whose number may be in use again
                opened.detach()
            else:
                opened.close()
            raise
    except TimeoutError as error:
        raise library.ConnectTimeout(str(error)) from error
    except OSError as error:
        raise library.ConnectError(str(error)) from error
    return connection


async def _open_socket(host: str, port: int) -> socket.socket:
    """Tries the addresses of a host one after the other, without waiting long for each."""
    found = await asyncio.get_running_loop().getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    untried = iter(_interleave(found))
    trying: set[asyncio.Task[socket.socket]] = set()
    failed: BaseException = OSError(f"{host} has no address")
    try:
        while True:
            address = next(untried, None)
            if address is not None:
                trying.add(asyncio.create_task(_connect_to(address)))
            if not trying:
                raise failed
            timeout = None if address is None else _NEXT_ADDRESS
            done, _ = await asyncio.wait(trying, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                trying.discard(task)
                error = task.exception()
                if error is None:
                    return task.result()
                failed = error
    finally:
        for task in trying:
            task.add_done_callback(_close_unwanted)
            task.cancel()


def _interleave(addresses: Sequence[_Address]) -> list[_Address]:
    """Alternates between address families, since a whole family may be unreachable."""
    families: dict[Any, list[_Address]] = {}
    for address in addresses:
        families.setdefault(address[0], []).append(address)
    turns: Iterable[_Address | None] = chain.from_iterable(zip_longest(*families.values()))
    return [address for address in turns if address is not None]


async def _connect_to(address: _Address) -> socket.socket:
    family, kind, protocol, _, where = address
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(opened, where)
    except BaseException:
        opened.close()
        raise
    return opened


def _close_unwanted(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


# The tap's own transport for plain HTTP/1.1, and the pool of its connections.
#
# A model's delta is mostly a read of its own, and the path of a read through httpx, httpcore, anyio and h11 costs more than
# everything that the tap does with it. This transport does the same for less. Where it does not apply (proxies, HTTP/2,
# extensions such as ``trace``), ``library`` uses the library's own transport.

_PORTS: Final = {"http": 80, "https": 443}
# httpx's own defaults.
_MAX_CONNECTIONS: Final = 100
_MAX_KEEPALIVE: Final = 20
_KEEPALIVE_EXPIRY: Final = 5.0
_UNLIMITED: Final = 2**31


class DirectTransport:
    """Belongs to one event loop. ``options`` are those of the library's AsyncHTTPTransport."""

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
        self._idle: deque[Connection] = deque()  # the one that has been idle longest first
        self._used: set[Connection] = set()
        self._closing: set[Connection] = set()
        self._turns = asyncio.Semaphore(self._max_connections)
        self._turns_taken = 0  # by connections in use, and by those that are being opened

    async def handle_async_request(self, request: Any) -> Any:
        timeouts: Timeouts = request.extensions.get("timeout", {})
        url = request.url
        origin = _Origin(url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme])
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

    async def _acquire(self, origin: _Origin, timeouts: Timeouts) -> Connection:
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

    def _take_idle(self, origin: _Origin) -> Connection | None:
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
        """The socket is only closed one turn of the event loop later; ``aclose`` waits for that."""
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
    """The body of an answer. Once it has been read its connection can be reused; if it is left before, that is closed."""

    def __init__(self, transport: DirectTransport, connection: Connection, head: _Head) -> None:
        self._transport = transport
        self._connection = connection
        self._body = head.body
        self._begun = head.begun
        self._is_over = False
        self._announce: Callable[[], object] | None = None

    def announce_to(self, announce: Callable[[], object]) -> None:
        """See ``Announcing``. To be called before iterating."""
        self._announce = announce

    def pop(self) -> bytes:
        """See ``Announcing``."""
        # Bytes after the end of the body are not part of it.
        data = b"" if self._body.has_ended else self._connection.pop()
        content = self._body.feed(data) if data else b""
        if self._body.has_ended:
            self._connection.wake()
        return content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # No local variable may keep bytes: this frame lives as long as the stream, and new bytes may never come through it.
        body, connection = self._body, self._connection
        try:
            if content := body.begin(self._begun):
                yield content
            self._begun = content = b""
            connection.announce = self._announce
            while True:
                if content := self.pop() or self._last():
                    yield content
                    content = b""
                elif body.has_ended:
                    break
                else:
                    await connection.wait()
            if body.error is not None:
                raise self._transport.library.RemoteProtocolError(str(body.error)) from body.error
        finally:
            self._end()

    def _last(self) -> bytes:
        """The last content, once the connection brings nothing more."""
        if self._body.has_ended or not self._connection.has_ended:
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
    class _LibraryStream(DirectStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """What the library accepts as a stream of its own."""

    return _LibraryStream
