"""Serving an app with uvicorn, in one process or in several, and ending well.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from starlette.applications import Starlette

from callstream.errors import CallstreamError, MissingExtra
from callstream.server.streams import CONNECTION, ClientConnection
from callstream.waits import Alarm

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


_TAKE: Final = b"c"
"""To a worker, with a file descriptor: a connection to serve."""
_DRAIN: Final = b"d"
"""To a worker: refuse new runs, let active ones finish, end. Connections are still passed, so that this can be seen."""
_RETIRE: Final = b"r"
"""To a worker: the same, but other workers continue, and connections are passed to them."""
_HURRY: Final = b"h"
"""To a worker that is ending: active runs have no more time."""
_BEAT: Final = b"."
"""From a worker: it is ready, and its event loop turns."""
_BEAT_SECONDS: Final = 5.0
_SILENT_SECONDS: Final = 120.0
"""How long a worker may be silent before it is killed. A tool that blocks the event loop makes it silent, too."""
_START_SECONDS: Final = 120.0
"""How long a worker may take to start in a reload."""
_STEADY_SECONDS: Final = 10.0
"""A worker that ended sooner than this after it was ready is replaced later, and the next such one later still."""
_MAX_PAUSE: Final = 30.0
_ACCEPT_PAUSE: Final = 0.05


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
        self._loop = asyncio.get_running_loop()
        self._adopting: set[asyncio.Task[None]] = set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own: it raises every signal once more at the end, and a process that ended well would seem killed.
        self._signals += 1
        self._was_interrupted |= sig == signal.SIGINT
        if self._signals > 2:
            os._exit(128 + sig)
        if not self.started:
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
        if order == _TAKE:
            for descriptor in descriptors:
                adopting = self._adopt(socket.socket(fileno=descriptor))
                self._adopting.add(task := asyncio.ensure_future(adopting))
                task.add_done_callback(self._adopting.discard)
        elif order == _DRAIN:
            self._end()
        elif order == _HURRY:
            self._hurry()
        elif order == _RETIRE:
            # A connection that was passed on a moment ago brings its request now, and no other worker has it.
            self._loop.call_later(_LAST_REQUEST_SECONDS, self._retire)
        else:
            self._retire()
            self._loop.remove_reader(control)

    async def _adopt(self, connection: socket.socket) -> None:
        """Serves a connection as uvicorn would one that it has accepted itself."""
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
                control.send(_BEAT)
            await asyncio.sleep(_BEAT_SECONDS)

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self._control is not None:
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
        await super().serve(sockets)
        if self._was_interrupted:
            signal.raise_signal(signal.SIGINT)  # the caller gets KeyboardInterrupt, as usual


def config_for(app: Starlette, **options: Any) -> uvicorn.Config:
    """uvicorn's configuration, with connections that can be cut off; ``options`` are uvicorn's."""
    options = {"log_level": "warning", "timeout_graceful_shutdown": LINGER_SECONDS, **options}
    config = uvicorn.Config(app, lifespan="on", server_header=False, **options)
    config.load()
    config.http_protocol_class = _cuttable(config.http_protocol_class)
    return config


def _cuttable(protocol: type[Any]) -> type[Any]:
    """A protocol of uvicorn's whose requests can drop their connection, and which does not wait for ever for a first."""

    class Cuttable(protocol):  # type: ignore[misc]
        def __init__(self, *args: Any, app_state: dict[str, Any], **kwargs: Any) -> None:
            self._connection = ClientConnection(self)
            super().__init__(*args, app_state={**app_state, CONNECTION: self._connection}, **kwargs)

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            silence = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._end_silence)
            self._silence: asyncio.TimerHandle | None = silence

        def connection_lost(self, exc: Exception | None) -> None:
            if self._silence is not None:
                self._silence.cancel()
            self._connection.lose()
            super().connection_lost(exc)

        def _end_silence(self) -> None:
            self._silence = None  # a connection may last for hours, and there may be thousands
            if self.cycle is None:
                self.transport.abort()

    return Cuttable


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
    worker's socket that is shared with its supervisor, see ``Supervisor``.
    """
    await _Server(config_for(app, host=host, port=port, **options), app, control).serve(sockets)


# -- several workers: processes that serve one address on one journal, and the supervisor that starts and replaces them ----
#
# A worker is a replica: any of them serves any stream and accepts any answer and any stop, and what a killed one leaves
# behind the others bring to an end. The supervisor loads no application. It accepts the connections and hands each to the
# next worker; if all accepted from one socket, most connections would be those of one worker. With each worker it shares a
# Unix socket, on which the worker says that it is ready and that its event loop still turns, and the supervisor passes
# connections and says how to end.
#
# uvicorn's own supervisor, ``Multiprocess``, makes the ``uvicorn.Server`` of its workers itself, which would cut active runs
# off instead of giving them their time; its arguments have changed between versions; a second signal does not hurry it; and
# its workers outlive it when it is killed. The signals mean what they mean there.


class _Worker:
    """One process and the socket that is shared with it."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.ready: asyncio.Future[float | None] = loop.create_future()
        """Since when it is ready; None if it ended before."""
        self.is_leaving = False
        """Whether it has to end."""
        self.is_retired = False
        """Whether connections are for other workers."""
        self._process = process
        self._control = control
        self._silence = Alarm(self._kill_silent)
        self.ended = asyncio.ensure_future(self._wait())
        """Its exit code, when it has ended."""
        control.setblocking(False)
        loop.add_reader(control, self._hear)

    @property
    def is_ready(self) -> bool:
        return self.ready.done() and self.ready.result() is not None

    def pass_on(self, connection: socket.socket) -> bool:
        """Has it serve a connection. False if it does not take one now."""
        if not self.is_ready or self.is_retired or self.ended.done():
            return False
        try:
            socket.send_fds(self._control, [_TAKE], [connection.fileno()])
        except OSError:  # it is dead, or does not read what it is sent
            return False
        return True

    def end(self, how: bytes) -> None:
        """Has it end in that way. One that does not serve yet has nothing to finish."""
        self.is_leaving = True
        self.is_retired |= how == _RETIRE
        if self.is_ready:
            try:
                self._control.send(how)
            except BlockingIOError:
                self.kill()  # it has read nothing for a long time
            except OSError:
                pass  # it is dead
        elif self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            is_open = bool(self._control.recv(1024))
        except OSError:
            is_open = False
        if not is_open:
            loop.remove_reader(self._control)
            return
        if not self.ready.done():
            logger.info("worker [%d] is ready", self.pid)
            self.ready.set_result(loop.time())
        self._silence.set(loop, _SILENT_SECONDS)

    def _kill_silent(self) -> None:
        logger.error("worker [%d] has not responded for %g s; killing it", self.pid, _SILENT_SECONDS)
        self.kill()

    async def _wait(self) -> int:
        code = await self._process.wait()
        self._silence.stop()
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        if not self.ready.done():
            self.ready.set_result(None)
        return code


class Supervisor:
    """Keeps ``count`` workers for the connections of a listening socket.

    ``command`` is the command line of a worker, given the file descriptor of its shared socket and its number, counted
    from 1.
    """

    def __init__(self, command: Callable[[int, int], Sequence[str]], count: int, listening: socket.socket) -> None:
        self._command = command
        self._count = count
        self._listening = listening
        self._started = 0
        self._workers: list[_Worker] = []
        self._keepers: set[asyncio.Task[None]] = set()
        self._reloading: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._signals = 0
        self._was_interrupted = False

    async def run(self, announce: Callable[[], None]) -> int:
        """Serves until a signal says to stop, and returns the exit code; after SIGINT, KeyboardInterrupt rises.

        The first worker starts alone: it brings the schemas up to date, and what is wrong with the application is said
        once. ``announce`` is called when it is ready.
        """
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGINT: lambda: self._end(signal.SIGINT),
            signal.SIGTERM: lambda: self._end(signal.SIGTERM),
            signal.SIGHUP: self._reload,
            signal.SIGTTIN: self._add,
            signal.SIGTTOU: self._remove,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        accepting = asyncio.ensure_future(self._accept())
        try:
            first = await self._start()
            if await first.ready is None:
                code = await first.ended
                return 0 if self._ending.is_set() else max(code, 1)
            announce()
            self._keep(first)
            for _ in range(1, self._count):
                self._keep(await self._start())
            await self._ending.wait()
            while self._keepers:
                await asyncio.wait(self._keepers)
        finally:
            accepting.cancel()
            for number in handlers:
                loop.remove_signal_handler(number)
            for worker in self._workers:
                worker.kill()
        if self._was_interrupted:
            raise KeyboardInterrupt
        return 0

    # -- connections --

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:  # too many open files, for example
                logger.error("a connection could not be accepted: %s", error)
                await asyncio.sleep(1)
                continue
            with connection:
                with suppress(OSError):  # the client has left already
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while not self._pass_on(connection):  # noqa: ASYNC110
                    await asyncio.sleep(_ACCEPT_PAUSE)  # the others wait in the socket's backlog

    def _pass_on(self, connection: socket.socket) -> bool:
        """Gives the connection to the worker whose turn it is."""
        for worker in self._workers:
            if worker.pass_on(connection):
                self._workers.remove(worker)
                self._workers.append(worker)
                return True
        return False

    # -- workers --

    async def _start(self) -> _Worker:
        """A new worker, in a session of its own: Ctrl-C reaches the supervisor alone, which knows what to do."""
        ours, theirs = socket.socketpair()
        self._started += 1
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno(), self._started),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        worker = _Worker(process, ours)
        self._workers.append(worker)
        if self._ending.is_set():
            worker.end(_DRAIN)
        return worker

    def _keep(self, worker: _Worker | None = None) -> None:
        """Keeps a worker, or a new one, in its place."""
        task = asyncio.ensure_future(self._replace_in_turn(worker))
        self._keepers.add(task)
        task.add_done_callback(self._keepers.discard)

    async def _replace_in_turn(self, worker: _Worker | None) -> None:
        """Waits for the worker's end, and starts another one in its place, and so on, until one was meant to end."""
        worker = worker or await self._start()
        pause = 0.0
        while True:
            code = await worker.ended
            self._workers.remove(worker)
            if worker.is_leaving:
                return
            began = worker.ready.result()
            is_steady = began is not None and asyncio.get_running_loop().time() - began >= _STEADY_SECONDS
            pause = 0.0 if is_steady else min(max(0.5, pause * 2), _MAX_PAUSE)
            logger.error("worker [%d] %s; starting another", worker.pid, _described(code))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause)
                return
            worker = await self._start()

    # -- signals --

    def _end(self, number: int) -> None:
        """As without workers: the first signal waits for active runs, the second does not, the third for nothing at all."""
        self._signals += 1
        self._was_interrupted |= number == signal.SIGINT
        self._ending.set()
        for worker in self._workers:
            if self._signals > 2:
                worker.kill()
            else:
                worker.end(_DRAIN if self._signals == 1 else _HURRY)
        if self._signals > 2:
            os._exit(128 + number)

    def _reload(self) -> None:
        if self._reloading is None or self._reloading.done():
            logger.info("reloading the workers")
            self._reloading = asyncio.ensure_future(self._reload_all(list(self._workers)))

    async def _reload_all(self, workers: list[_Worker]) -> None:
        """One after the other, each when the runs of the last one have ended: there is one more process at most."""
        for old in workers:
            if old.is_leaving or self._ending.is_set():
                continue
            new = await self._start()
            done, _ = await asyncio.wait({new.ready}, timeout=_START_SECONDS)
            if not done or new.ready.result() is None:
                new.is_leaving = True
                new.kill()
                self._keep(new)
                if not self._ending.is_set():
                    logger.error("worker [%d] did not start; the other workers stay as they are", new.pid)
                return
            self._keep(new)
            old.end(_RETIRE)
            await asyncio.wait({old.ended})

    def _add(self) -> None:
        logger.info("starting one more worker")
        self._keep()

    def _remove(self) -> None:
        staying = [worker for worker in self._workers if not worker.is_leaving]
        if len(staying) > 1:
            logger.info("worker [%d] ends", staying[-1].pid)
            staying[-1].end(_RETIRE)


def _described(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
