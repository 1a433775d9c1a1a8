"""A response of server-sent events: sent as they come, kept alive while none come, cut off when nobody takes them.

A frame goes out in pieces, each when the one before it was taken. So what waits for a reader that takes nothing is one
piece and the frame itself; a frame that is large lies in a file, not in memory.

Most frames are a single delta for a client that waits for it. Such a frame needs no task: through the ``Outlet`` it goes
straight to the connection, if the server lets it (``serve`` does) and nothing waits there.

A stream that cannot be read to the end of its run is not ended: its connection is closed without the final chunk. To
most clients a stream that ends is a success, whatever came last; one that breaks is an error, after which they come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, aclosing
from typing import IO, Final, Protocol, TypeAlias
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from callstream.errors import JournalError
from callstream.journal.store import StoreAway
from callstream.server.health import JournalAway
from callstream.server.logs import quote_line
from callstream.server.settings import ServerSettings

logger = logging.getLogger("callstream.server")

HEARTBEAT: Final = b": keep-alive\n\n"
CONNECTION: Final = "callstream.connection"
"""The name in a request's state of its ``ClientConnection``, which ``serve`` puts there."""
Frame: TypeAlias = bytes | IO[bytes]
"""Whole events, in memory or in a file, which is closed when it was sent."""
_CUT_SECONDS: Final = 1.0
_PIECE: Final = 64 * 1024
_TICKS: Final = 15
"""A heartbeat may come so much of its pause too early: a fifteenth."""
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

    @property
    def is_free(self) -> bool:
        """Whether a piece of the response's body would be taken at once."""
        ...

    def write(self, piece: bytes) -> None:
        """Sends a piece of the body."""


class Outlet:
    """A stream's straight way to its connection. It opens when the response has begun."""

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
    """``watching`` is entered while a client reads, ``held`` is closed afterwards."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[Frame, None],
        settings: ServerSettings,
        *,
        run_id: str,
        watching: AbstractAsyncContextManager[object],
        held: ExitStack,
        headers: Mapping[str, str] | None = None,
        outlet: Outlet | None = None,
    ) -> None:
        self._frames = frames
        self._outlet = outlet
        self._settings = settings
        self._run_id = run_id
        self._watching = watching
        self._held = held
        self._sending = asyncio.Lock()
        self._loop = loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        self._began: float | None = None  # when the piece that is being sent was begun
        self._watchdog: asyncio.TimerHandle | None = None
        self._stalled: asyncio.Future[None] = loop.create_future()
        self._is_whole = False
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, "x-run-id": _header_text(run_id), **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            stack.enter_context(self._held)
            await stack.enter_async_context(self._watching)
            await stack.enter_async_context(aclosing(self._frames))
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._outlet is not None and (connection := _connection(scope)) is not None:
                self._outlet.open(self, connection)
                stack.callback(self._outlet.close)
            sending = asyncio.ensure_future(self._send_frames(send))
            leaving = asyncio.ensure_future(_until_left(receive))
            beating = asyncio.ensure_future(self._beat(send))
            tasks = (sending, leaving, beating)
            try:
                await asyncio.wait({*tasks, self._stalled}, return_when=asyncio.FIRST_COMPLETED)
                if self._stalled.done():
                    self._cut_off(scope)
                    await asyncio.wait({leaving}, timeout=_CUT_SECONDS)
                elif sending.done() and not self._is_whole:
                    await self._break(scope, leaving)
            finally:
                if self._watchdog is not None:
                    self._watchdog.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being sent."""
        return not self._sending.locked() and not self._stalled.done()

    def sent(self) -> None:
        """Something was, which spares a heartbeat."""
        self._sent_at = self._loop.time()

    async def _send_frames(self, send: Send) -> None:
        try:
            async for frame in self._frames:
                await self._send(send, frame)
        except (JournalAway, StoreAway, Unfinished):
            return  # the journal itself has said so in the log
        except JournalError as error:
            logger.error(
                "a stream of run %s broke off because the journal could not be read: %s",
                self._run_id,
                quote_line(str(error)),
                extra={"run_id": self._run_id},
            )
            return
        await self._send(send, b"", more=False)
        self._is_whole = True

    async def _beat(self, send: Send) -> None:
        """Sends something when nothing else was sent for a while, which is all that most streams do most of the time.

        They do it on the ticks of one clock, so that the loop is woken once for all of them: with the default pause, a
        thousand idle streams wake it once a second.
        """
        time, pause = asyncio.get_running_loop().time, self._settings.heartbeat_seconds
        tick = pause / _TICKS
        while not self._stalled.done():
            wait = (self._sent_at + pause) // tick * tick - time()
            if wait > 0 or self._sending.locked():
                await asyncio.sleep(wait if wait > 0 else pause)
            else:
                await self._send(send, HEARTBEAT)

    async def _send(self, send: Send, frame: Frame, *, more: bool = True) -> None:
        """Sends, unless the reader has stalled: then nothing more is sent, and it is up to ``__call__`` to end it."""
        if self._stalled.done():
            return
        loop = asyncio.get_running_loop()
        async with self._sending:
            for piece in _pieces(frame):
                self._began = loop.time()
                if self._watchdog is None:
                    self._watchdog = loop.call_later(self._settings.stall_seconds, self._look_for_stall)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
            self._began = None
        self.sent()

    def _look_for_stall(self) -> None:
        """One timer now and then, not one for every piece, which is nearly always taken at once."""
        self._watchdog = None
        if self._began is None or self._stalled.done():
            return
        loop = asyncio.get_running_loop()
        left = self._began + self._settings.stall_seconds - loop.time()
        if left > 0:
            self._watchdog = loop.call_later(left, self._look_for_stall)
        else:
            self._stalled.set_result(None)

    async def _break(self, scope: Scope, leaving: asyncio.Future[None]) -> None:
        """Where ``serve`` is not the server, returning without the last chunk has to do; uvicorn then logs an error."""
        connection = _connection(scope)
        for end in (connection.close, connection.cut) if connection is not None else ():
            if not leaving.done():
                end()
                await asyncio.wait({leaving}, timeout=_CUT_SECONDS)

    def _cut_off(self, scope: Scope) -> None:
        seconds = self._settings.stall_seconds
        logger.info(
            "disconnecting a reader of run %s that accepted no data for %s s",
            self._run_id,
            seconds,
            extra={"run_id": self._run_id},
        )
        connection = _connection(scope)
        if connection is not None:
            connection.cut()


def _connection(scope: Scope) -> ClientConnection | None:
    found: ClientConnection | None = scope.get("state", {}).get(CONNECTION)
    return found


async def _until_left(receive: Receive) -> None:
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


def _header_text(run_id: str) -> str:
    """The id, percent-encoded where a header cannot carry it as it is; the run's first event has it in any case."""
    fits = run_id.isascii() and run_id.isprintable() and run_id == run_id.strip()
    return run_id if fits else quote(run_id, safe="")
