"""A response of server-sent events: sent as they come, kept alive while none come, cut off when they are not read.

A frame goes out in pieces, each when the one before it was taken. So what waits for a reader that takes nothing is one
piece and the frame itself; a frame that is large lies in a file, not in memory.

Most frames are a single delta for a client that waits for it. Such a frame needs no task: through the ``Outlet`` it goes
straight to the connection, if the server lets it (``serve`` does) and nothing waits there.

A stream that cannot be read to the end of its run is not ended: its connection is closed without the final chunk. To
most clients a stream that ends is a success, whatever came last; one that breaks is an error, after which they come back.

``Pulse`` is the clock of all streams: when one is to be kept alive, and when its reader has stalled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from functools import partial
from typing import IO, Any, Final, Protocol, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from callstream.errors import JournalError
from callstream.server.health import JournalHealth, is_in_log
from callstream.server.settings import ServerSettings

_BEATS: Final = 15
"""So many in the shorter of the two times, which are kept to a beat."""


class Beating(Protocol):
    def beat(self, now: float) -> None:
        """Called with every beat, in the event loop."""


class Pulse:
    """One timer for all of them: with the default settings, a thousand idle streams wake the loop once a second."""

    def __init__(self, settings: ServerSettings) -> None:
        shorter = min(settings.heartbeat_seconds, settings.stall_seconds)
        self._every = shorter / _BEATS
        self.heartbeat_seconds = settings.heartbeat_seconds - self._every
        """After so long without an event, the beat has come to send something: with the next one it would be too late."""
        self.stall_seconds = settings.stall_seconds
        self._streams: set[Beating] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Beating) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._beat)

    def remove(self, stream: Beating) -> None:
        self._streams.discard(stream)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._every, self._beat)
        now = loop.time()
        for stream in self._streams:
            stream.beat(now)


logger = logging.getLogger("callstream.server")

HEARTBEAT: Final = b": keep-alive\n\n"
CONNECTION: Final = "callstream.connection"
"""The name in a request's state of its ``ClientConnection``, which ``serve`` puts there."""
STREAMS: Final = "callstream.streams"
"""The name in a request's scope of a list for the stream that answers it, which is sent when the router has returned."""
Frame: TypeAlias = bytes | IO[bytes]
"""Whole events, in memory or in a file, which is closed when it was sent."""
_CUT_SECONDS: Final = 1.0
_PIECE: Final = 64 * 1024
# Without the second one, nginx keeps what it gets until it has a buffer full.
_HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class ClientConnection(Protocol):
    """What ASGI knows nothing of."""

    def cut(self) -> None:
        """Drops the connection with all that waits to be sent.

        Servers close one by sending all of it first, which to a reader that takes nothing is never.
        """

    def close(self) -> None:
        """The same, when all that waits has been sent: what a client has read up to there, it need not read again."""

    def leaving(self) -> asyncio.Future[None]:
        """What is done when the connection is lost, for one at a time to wait for."""
        ...

    @property
    def is_free(self) -> bool:
        """Whether a piece of the response's body would be taken at once."""
        ...

    def write(self, piece: bytes) -> None:
        """Sends a piece of the body."""


class Outlet:
    """A stream's straight way to its connection. It opens when the response has begun."""

    __slots__ = ("_connection", "_stream")

    def __init__(self) -> None:
        self._stream: EventStream | None = None
        self._connection: ClientConnection | None = None

    def open(self, stream: EventStream, connection: ClientConnection) -> None:
        self._stream, self._connection = stream, connection

    def close(self) -> None:
        self._stream = self._connection = None

    @property
    def is_free(self) -> bool:
        """Whether ``write`` may be called: nothing is on its way, and the client takes what it is sent."""
        stream, connection = self._stream, self._connection
        return stream is not None and connection is not None and stream.is_idle and connection.is_free

    def write(self, frame: bytes) -> None:
        """Sends whole events, few of them."""
        stream, connection = self._stream, self._connection
        if stream is not None and connection is not None:  # is_free was asked before
            connection.write(frame)
            stream.sent()


class Unfinished(Exception):
    """Raised by frames that end before their run does."""


class EventStream(Response):
    """``watching`` is entered while a client reads, ``held`` is left afterwards. ``run_id`` is for the log.

    ``health``: of the journal for which the frames wait, if its absence is to break the stream off.

    The request's own task sends the frames. A client that leaves, a reader that stalls and a heartbeat that fails
    interrupt it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[Frame, None],
        pulse: Pulse,
        *,
        run_id: str,
        watching: AbstractAsyncContextManager[object],
        held: AbstractContextManager[object],
        headers: Mapping[str, str] | None = None,
        outlet: Outlet | None = None,
        health: JournalHealth | None = None,
    ) -> None:
        self._frames = frames
        self._health = health
        self._pulse = pulse
        self._outlet = outlet or Outlet()
        self._run_id = run_id
        self._watching = watching
        self._held = held
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._began: float | None = None  # when the piece that is being sent was begun
        self._sender: asyncio.Task[Any] | None = None  # None when it has ended, or has been interrupted
        self._beating: asyncio.Task[None] | None = None
        self._has_stalled = False
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (left_to_guard := scope.get(STREAMS)) is None:
            await self.respond(scope, receive, send)
        else:
            left_to_guard.append(partial(self.respond, scope, receive, send))

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        with self._held:
            async with self._watching, aclosing(self._frames):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                self.raw_headers = []  # sent, and a stream may last
                self._to_client = send
                if connection is not None:
                    self._outlet.open(self, connection)
                leaving = asyncio.ensure_future(until_left(receive) if connection is None else connection.leaving())
                leaving.add_done_callback(self._interrupt)
                try:
                    is_whole = await self._send_frames()
                    if self._has_stalled:
                        self._cut_off(connection)
                        await asyncio.wait({leaving}, timeout=_CUT_SECONDS)
                    elif not is_whole:
                        await break_off(connection, leaving)
                finally:
                    self._outlet.close()
                    tasks = [leaving] if self._beating is None else [leaving, self._beating]
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                for task in tasks:
                    if not task.cancelled():
                        task.result()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being sent."""
        return self._began is None and not self._has_stalled

    def sent(self) -> None:
        """Something was, which spares a heartbeat."""
        self._sent_at = self._loop.time()

    async def _send_frames(self) -> bool:
        """Sends them until they end or this is interrupted. Returns whether the response is whole."""
        sender = self._sender = asyncio.current_task()
        assert sender is not None
        self._pulse.add(self)
        try:
            while (frame := await self._next_frame()) is not None:
                await self._send(frame)
                del frame
            await self._send(b"", more=False)
            return True
        except asyncio.CancelledError:
            if self._sender is not None or sender.uncancel():
                raise
        except Unfinished:
            pass
        except JournalError as error:
            if not is_in_log(error):
                logger.error(
                    "a stream of run %s broke off because the journal could not be read: %s",
                    self._run_id,
                    error,
                    extra={"run_id": self._run_id},
                )
        finally:
            self._pulse.remove(self)
            self._sender = None
        return False

    def _next_frame(self) -> Awaitable[Frame | None]:
        """The next one when it is there, None at the end. JournalAway as soon as the journal is unavailable."""
        coming = anext(self._frames, None)
        return coming if self._health is None else self._health.guard(coming)

    async def _send(self, frame: Frame, *, more: bool = True) -> None:
        """Sends, unless the reader has stalled: then nothing more is sent."""
        if self._has_stalled:
            return
        async with self._sending:
            for piece in _pieces(frame):
                self._began = self._loop.time()
                await self._to_client({"type": "http.response.body", "body": piece, "more_body": more})
            self._began = None
        self.sent()

    def beat(self, now: float) -> None:
        """Looks whether the reader has stalled. Sends something when nothing else was sent for a while."""
        if self._began is not None:
            if now - self._began >= self._pulse.stall_seconds:
                self._has_stalled = True
                self._interrupt()
        elif now - self._sent_at >= self._pulse.heartbeat_seconds and self._beating is None:
            if self._outlet.is_free:
                self._outlet.write(HEARTBEAT)
            else:
                self._beating = asyncio.ensure_future(self._send(HEARTBEAT))
                self._beating.add_done_callback(self._end_beat)

    def _end_beat(self, beating: asyncio.Task[None]) -> None:
        if beating.cancelled() or beating.exception() is None:
            self._beating = None
        else:
            self._interrupt()  # the error rises in ``respond``

    def _interrupt(self, _: object = None) -> None:
        """Ends the sending of frames, whatever it waits for."""
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None

    def _cut_off(self, connection: ClientConnection | None) -> None:
        logger.info(
            "disconnecting a reader of run %s that accepted no data for %s s",
            self._run_id,
            self._pulse.stall_seconds,
            extra={"run_id": self._run_id},
        )
        if connection is not None:
            connection.cut()


async def break_off(connection: ClientConnection | None, leaving: asyncio.Future[None]) -> None:
    """Where ``serve`` is not the server, returning without the last chunk has to do; uvicorn then logs an error."""
    for end in (connection.close, connection.cut) if connection is not None else ():
        if not leaving.done():
            end()
            await asyncio.wait({leaving}, timeout=_CUT_SECONDS)


def connection_of(scope: Scope) -> ClientConnection | None:
    found: ClientConnection | None = scope.get("state", {}).get(CONNECTION)
    return found


async def until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _pieces(frame: Frame) -> Iterator[bytes]:
    if isinstance(frame, bytes):
        if len(frame) <= _PIECE:
            yield frame
        else:
            for start in range(0, len(frame), _PIECE):
                yield frame[start : start + _PIECE]
    else:
        with frame:
            while piece := frame.read(_PIECE):
                yield piece
