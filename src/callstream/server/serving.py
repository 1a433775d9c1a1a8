"""Serving an app with uvicorn, and ending well.

At the first SIGINT or SIGTERM no new runs are taken (503, while the port stays open so that it can be seen) and active
ones have their time; then they are stopped and the journal is written and closed, which breaks the streams of runs that
other processes have, and the server ends. The second signal ends the waiting, the third the process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from starlette.applications import Starlette

from callstream.errors import CallstreamError, MissingExtra
from callstream.server import workers
from callstream.server.streams import CONNECTION

try:
    import uvicorn
except ModuleNotFoundError as error:  # pragma: no cover
    raise MissingExtra("serving needs uvicorn", "server", error) from error

logger = logging.getLogger("callstream.server")

LINGER_SECONDS: Final = 5
"""How long connections may take to end when everything has been sent."""
HEAD_SECONDS: Final = 30.0
"""How long a new connection may take to send its first request's head."""
_GC_THRESHOLDS: Final = (50_000, 20, 50)
_SWITCH_SECONDS: Final = 0.0002
"""How long a busy event loop may keep the interpreter from the journal's thread, which gives it up with each statement."""
_LAST_REQUEST_SECONDS: Final = 1.0
"""How long a worker that retires still accepts what comes on connections which it has already."""
_HURRY_SECONDS: Final = 3.0
"""How long the end may take after the second signal."""


class _Server(uvicorn.Server):
    """uvicorn waits for open streams before it tells the app to end; so the app is ended before.

    ``control``: a worker's socket that is shared with its supervisor, who accepts the connections.
    """

    def __init__(self, config: uvicorn.Config, app: Starlette, control: socket.socket | None = None) -> None:
        super().__init__(config)
        self._state = app.state
        self._control = control
        self._signals = 0
        self._was_interrupted = False
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._adopting: set[asyncio.Task[None]] = set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own: it raises every signal once more at the end, and a process that ended well would seem killed.
        self._signals += 1
        self._was_interrupted |= sig == signal.SIGINT
        if self._signals > 2:
            os._exit(128 + sig)
        if self._loop is None or not self.started:
            self.should_exit = True
            return
        self._loop.call_soon_threadsafe(self._end if self._signals == 1 else self._hurry)

    def _end(self) -> None:
        if self._ending is None:  # a worker may get a signal and its supervisor's order
            logger.info("shutting down")
            self._ending = asyncio.ensure_future(self._close())

    async def _close(self) -> None:
        try:
            await self._state.driver.drain()
            await self._state.close()
        except CallstreamError:
            logger.exception("error during shutdown")
        finally:
            self.should_exit = True

    def _hurry(self) -> None:
        self._state.driver.hurry()
        assert self._loop is not None
        self._loop.call_later(_HURRY_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self.should_exit = self.force_exit = True

    # -- a worker --

    def _obey(self, control: socket.socket) -> None:
        """Does what the supervisor orders. One that is gone was killed, and nothing more can reach this worker."""
        try:
            order, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            order, descriptors = b"", []
        assert self._loop is not None
        if order == workers.CONNECTION:
            for descriptor in descriptors:
                adopting = self._adopt(socket.socket(fileno=descriptor))
                self._adopting.add(task := asyncio.ensure_future(adopting))
                task.add_done_callback(self._adopting.discard)
        elif order == workers.DRAIN:
            self._end()
        elif order == workers.HURRY:
            self._hurry()
        elif order == workers.RETIRE:
            # A connection that was passed on a moment ago brings its request now, and no other worker has it.
            self._loop.call_later(_LAST_REQUEST_SECONDS, self._retire)
        else:
            self._retire()
            self._loop.remove_reader(control)

    async def _adopt(self, connection: socket.socket) -> None:
        """Serves a connection as uvicorn would one that it has accepted itself."""
        assert self._loop is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self.config.http_protocol_class(  # type: ignore[call-arg]
                    config=self.config, server_state=self.server_state, app_state=self.lifespan.state
                ),
                connection,
            )
        except OSError:
            connection.close()  # the client has left already

    def _retire(self) -> None:
        """Ends while other workers continue: the next requests of open connections are theirs."""
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._end()

    async def _beat(self, control: socket.socket) -> None:
        while True:
            with suppress(OSError):
                control.send(workers.BEAT)
            await asyncio.sleep(workers.BEAT_SECONDS)

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self._control is not None and self._loop is not None:
            self._control.setblocking(False)
            self._loop.add_reader(self._control, self._obey, self._control)
            self._beating = asyncio.ensure_future(self._beat(self._control))
        # What is loaded now lives as long as the process, and of what streams make little is garbage that refers to itself:
        # with Python's own thresholds a tenth of a busy server's time goes into looking for it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        sys.setswitchinterval(_SWITCH_SECONDS)

    async def serve(self, sockets: list[Any] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)
        if self._was_interrupted:
            signal.raise_signal(signal.SIGINT)  # the caller gets KeyboardInterrupt, as usual


def config_for(app: Starlette, **options: Any) -> uvicorn.Config:
    """uvicorn's configuration, with connections that can be cut off; ``options`` are uvicorn's."""
    options.setdefault("log_level", "warning")
    options.setdefault("timeout_graceful_shutdown", LINGER_SECONDS)
    config = uvicorn.Config(app, lifespan="on", server_header=False, **options)
    config.load()
    config.http_protocol_class = _cuttable(config.http_protocol_class)
    return config


def _cuttable(protocol: type[Any]) -> type[Any]:
    """A protocol of uvicorn's whose requests can drop their connection, and which does not wait for ever for a first."""

    class Cuttable(protocol):  # type: ignore[misc]
        def __init__(self, *args: Any, app_state: dict[str, Any], **kwargs: Any) -> None:
            self._served = _Served(self)
            super().__init__(*args, app_state={**app_state, CONNECTION: self._served}, **kwargs)

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._first_head = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._cut_if_silent)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None:
                self._first_head.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            self._first_head.cancel()
            self._served.lose()
            super().connection_lost(exc)

        def _cut_if_silent(self) -> None:
            if self.cycle is None:
                self.transport.abort()

    return Cuttable


class _Served:
    """See ``eventstream.ClientConnection``: one of uvicorn's, by its protocol."""

    __slots__ = ("_is_lost", "_leaving", "_protocol")

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_lost = False
        self._leaving: asyncio.Future[None] | None = None

    def lose(self) -> None:
        self._is_lost = True
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)

    def leaving(self) -> asyncio.Future[None]:
        self._leaving = asyncio.get_running_loop().create_future()
        if self._is_lost:
            self._leaving.set_result(None)
        else:
            self._protocol.flow.resume_reading()  # uvicorn pauses after a large body, and would not see the end
        return self._leaving

    def cut(self) -> None:
        self._protocol.transport.abort()

    def close(self) -> None:
        self._protocol.transport.close()

    @property
    def is_free(self) -> bool:
        protocol = self._protocol
        cycle = protocol.cycle
        if cycle is None or cycle.disconnected or cycle.response_complete or protocol.flow.write_paused:
            return False
        return bool(
            cycle.response_started and cycle.scope["http_version"] == "1.1" and not protocol.transport.is_closing()
        )

    def write(self, piece: bytes) -> None:
        """A chunk, as uvicorn writes them to HTTP/1.1 where a response does not say how long it is."""
        self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


async def serve(
    app: Starlette,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    sockets: list[socket.socket] | None = None,
    control: socket.socket | None = None,
    **options: Any,
) -> None:
    """Serves until SIGTERM, then returns, or until SIGINT, then KeyboardInterrupt rises; ``options`` are uvicorn's.

    ``sockets`` that listen already are used in place of host and port; none, if ``control`` brings the connections: a
    worker's socket that is shared with its supervisor, see ``callstream.server.workers``.
    """
    await _Server(config_for(app, host=host, port=port, **options), app, control).serve(sockets)
