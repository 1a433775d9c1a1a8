"""A small HTTP/1.1 server on loopback, in its own thread, that sends answers frame by frame, at a given pace, or cut off.

h11 reads requests and writes answers. Each frame of an answer is one write and, unless the answer has a length, one
chunk of the transfer coding. A client that leaves is noticed at once, even while nothing is being sent. It is not a
general-purpose server: no TLS, one answer at a time on a connection, no limits against hostile clients.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import aclosing
from email.utils import formatdate
from functools import partial
from http.client import responses
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from callstream.errors import MissingExtra, UsageError
from callstream.testing.script import Cut, Delay

try:
    import h11
except ImportError as error:
    raise MissingExtra("the servers of callstream.testing need h11", "testing", error) from error

Frame: TypeAlias = bytes | Delay | Cut
Coding: TypeAlias = Literal["gzip", "deflate"]
Fate: TypeAlias = Literal["open", "answered", "cut", "left"]

_WINDOW_BITS: Final[dict[Coding, int]] = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_FRAMES_PER_TURN = 16
"""How many frames of one answer are written before other connections get their turn."""
_HIGH_WATER = 256 * 1024
_MAX_HEAD = 1024 * 1024


class ReceivedRequest:
    """A request as it came, and the fate of its answer.

    ``target`` is path and query as they were sent. ``headers`` have names in lower case. ``fate`` is ``open`` while the
    answer is being made or sent, then ``answered`` (all of it was passed to the network), ``cut`` (this side broke the
    connection) or ``left`` (the client did). ``sent`` counts the frames of the answer that were sent.
    """

    __slots__ = ("body", "fate", "headers", "method", "path", "query", "sent", "target")

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        parts = urlsplit(target)
        self.method = method
        self.target = target
        self.path = unquote(parts.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.headers = headers
        self.body = body
        self.fate: Fate = "open"
        self.sent = 0

    @property
    def json(self) -> Any:
        """The body as values; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def __repr__(self) -> str:
        return f"<ReceivedRequest {self.method} {self.path}, {len(self.body)} bytes, {self.fate}>"


class HttpAnswer(msgspec.Struct, frozen=True):
    """What to send. The head goes out with the first frame that has bytes, so a delay or cut before that affects it.

    Without a ``length`` the body is sent in chunks. ``coding`` compresses it, with a flush after each frame. ``phase``
    is the fraction of an interval by which the second frame is delayed, so that answers that begin together do not stay in
    step. ``finish`` is called with each frame when it is due, and returns the bytes to send, of the same length.

    ``relayed`` are frames that have to be waited for: they are passed on in chunks as they come, instead of ``frames``.
    """

    status: int
    headers: list[tuple[str, str]]
    frames: Iterable[Frame]
    length: int | None = None
    coding: Coding | None = None
    frames_per_second: float | None = None
    phase: float = 0.0
    finish: Callable[[bytes], bytes] | None = None
    relayed: AsyncGenerator[Frame, None] | None = None


Answering: TypeAlias = Callable[[ReceivedRequest], Awaitable[HttpAnswer]]


class HttpServer:
    """Serves on 127.0.0.1 between ``start`` and ``close``. ``answering`` is called on the server's own event loop.

    It runs in its own thread, so sync clients, and async clients on any event loop, may use it.
    """

    def __init__(self, answering: Answering, *, port: int = 0, name: str = "http server") -> None:
        self.answering = answering
        self.errors: list[Exception] = []
        """Errors on the server's side, which no answer can express properly."""
        self.connections: set[_Connection] = set()
        self._wanted_port = port
        self._name = name
        self._thread: threading.Thread | None = None
        self._started: Future[int] = Future()
        self._ended: Future[None] = Future()
        self._stop: Callable[[], object] | None = None

    @property
    def port(self) -> int:
        if self._thread is None:
            raise UsageError("the server has no address before it is started")
        return self._started.result()

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Returns when connections are accepted. A server can be started only once."""
        if self._thread is not None:
            raise UsageError("the server was started before; make another one")
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        self._started.result()
        return self

    def close(self) -> None:
        """Breaks off unfinished answers; returns when connections and thread have ended. May be called again."""
        self._request_stop()
        if self._thread is not None:
            self._thread.join()

    async def aclose(self) -> None:
        await self._end()
        self.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._end()
        self.__exit__(kind, error, traceback)

    async def _end(self) -> None:
        self._request_stop()
        if self._thread is not None:
            await asyncio.wrap_future(self._ended)

    def _request_stop(self) -> None:
        if self._stop is not None:
            try:
                self._stop()
            except RuntimeError:
                pass  # its loop has ended

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._started.set_exception(error)
        finally:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = partial(loop.call_soon_threadsafe, stopped.set)
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self._wanted_port, backlog=4096)
        try:
            self._started.set_result(server.sockets[0].getsockname()[1])
            await stopped.wait()
        finally:
            server.close()
            tasks = [task for connection in list(self.connections) if (task := connection.abort()) is not None]
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports close in the loop's next turn


class _Connection(asyncio.Protocol):
    """One connection: requests one after another, each answered by a task. h11 handles the protocol."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._head: h11.Request | None = None
        self._body: list[bytes] = []
        self._transport: Any = None
        self._task: asyncio.Task[None] | None = None
        self._is_aborted = False
        self._writable = asyncio.Event()
        self._writable.set()

    # -- callbacks of the transport --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        if self._task is None:
            self._read()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> asyncio.Task[None] | None:
        """Breaks the connection, because the server ends. Returns the task to wait for."""
        self._is_aborted = True
        self._transport.abort()
        return self._task

    # -- requests --

    def _read(self) -> None:
        """Reads the received bytes until a request is whole; a task then makes its answer."""
        try:
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                match event:
                    case h11.Request():
                        self._head = event
                    case h11.Data():
                        self._body.append(bytes(event.data))
                    case h11.EndOfMessage():
                        self._begin_answer()
            if self._http.they_are_waiting_for_100_continue:
                self._write(h11.InformationalResponse(status_code=100, headers=[]))
        except h11.RemoteProtocolError as error:
            self._write(h11.Response(status_code=400, reason=b"Bad Request", headers=[("connection", "close")]))
            self._write(h11.Data(data=str(error).encode()))
            self._transport.close()

    def _begin_answer(self) -> None:
        assert self._head is not None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._head.headers}
        method, target = self._head.method.decode("latin-1"), self._head.target.decode("latin-1")
        request = ReceivedRequest(method, target, headers, b"".join(self._body))
        self._body.clear()
        self._task = asyncio.get_running_loop().create_task(self._answer(request))
        self._task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._server.errors.append(error)
            self._transport.abort()
        elif self._transport.is_closing():
            return
        elif self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._read()
        else:
            self._transport.close()

    async def _answer(self, request: ReceivedRequest) -> None:
        try:
            await self._send(request, await self._server.answering(request))
        except asyncio.CancelledError:
            if request.fate == "open":
                request.fate = "cut" if self._is_aborted else "left"
            raise

    # -- answers --

    def _write(self, event: h11.Event) -> None:
        self._transport.write(self._http.send(event) or b"")

    async def _send(self, request: ReceivedRequest, answer: HttpAnswer) -> None:
        """Sends an answer. Its fate is set before the last byte is sent: a test may look at it as soon as that arrives."""
        if answer.relayed is not None:
            async with aclosing(answer.relayed) as relayed:
                await self._relay(request, answer, relayed)
            return
        loop = asyncio.get_running_loop()
        coded = None if answer.coding is None else zlib.compressobj(wbits=_WINDOW_BITS[answer.coding])
        left = answer.length if coded is None else None
        head: h11.Response | None = _head(answer, left)
        interval = 0.0 if answer.frames_per_second is None else 1 / answer.frames_per_second
        due = loop.time() + interval * answer.phase
        for frame in answer.frames:
            if not isinstance(frame, bytes):
                if isinstance(frame, Cut):
                    await self._cut(request, frame)
                    return
                await asyncio.sleep(frame.seconds)
                due = loop.time()
                continue
            if head is not None:
                self._write(head)
                head = None
            elif interval:
                # By a fixed schedule, so that one frame's delay does not delay the next.
                due += interval
                await asyncio.sleep(max(due - loop.time(), 0))
            elif request.sent % _FRAMES_PER_TURN == 0 or self._transport.is_closing():
                # A client that has left is noticed in the loop's next turn, which cancels this task.
                await asyncio.sleep(0)
            data = frame if answer.finish is None else answer.finish(frame)
            data = data if coded is None else coded.compress(data) + coded.flush(zlib.Z_SYNC_FLUSH)
            request.sent += 1
            if left is not None:
                left -= len(data)
                if left == 0:
                    request.fate = "answered"
            self._write(h11.Data(data=data))
            if not self._writable.is_set():
                await self._writable.wait()
        request.fate = "answered"
        if head is not None:
            self._write(head)
        if coded is not None and (rest := coded.flush()):
            self._write(h11.Data(data=rest))
        self._write(h11.EndOfMessage())

    async def _relay(self, request: ReceivedRequest, answer: HttpAnswer, frames: AsyncGenerator[Frame, None]) -> None:
        self._write(_head(answer, None))
        async for frame in frames:
            if isinstance(frame, Cut):
                await self._cut(request, frame)
                return
            if isinstance(frame, bytes) and frame:
                request.sent += 1
                self._write(h11.Data(data=frame))
                await self._writable.wait()
        request.fate = "answered"
        self._write(h11.EndOfMessage())

    async def _cut(self, request: ReceivedRequest, step: Cut) -> None:
        transport = self._transport
        if not step.reset:
            request.fate = "cut"
            transport.close()
            return
        transport.set_write_buffer_limits(high=0)
        await self._writable.wait()
        request.fate = "cut"
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def _head(answer: HttpAnswer, length: int | None) -> h11.Response:
    """The head of an answer. h11 adds the transfer coding if there is no length."""
    reason = responses.get(answer.status, "Unknown")
    headers = [*answer.headers, ("date", formatdate(usegmt=True))]
    if answer.coding is not None:
        headers.append(("content-encoding", answer.coding))
    if length is not None:
        headers.append(("content-length", str(length)))
    return h11.Response(status_code=answer.status, reason=reason, headers=headers)
