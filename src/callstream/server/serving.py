"""Serving an app with uvicorn, in one process or in several, and shutting down gracefully.

After the first SIGINT or SIGTERM, new runs are refused (with 503: the port stays open so that clients can see it) and
active ones get time to finish. Then they are stopped, the journal is written and closed, which breaks the streams of runs
that other processes work on, and the server ends. The second signal ends the waiting, the third the process.
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
"""How long connections may take to close after everything has been sent."""
HEAD_SECONDS: Final = 30.0
"""How long a new connection may take to send the head of its first request."""
_GC_THRESHOLDS: Final = (50_000, 20, 50)
_SWITCH_SECONDS: Final = 0.0002
"""How long a busy event loop may keep the GIL from the journal's thread, which releases it with each statement."""
_LAST_REQUEST_SECONDS: Final = 1.0
"""How long a retiring worker still accepts requests on connections that it already has."""
_HURRY_SECONDS: Final = 3.0
"""How long shutting down may take after the second signal."""


_TAKE: Final = b"c"
"""To a worker, with a file descriptor: a connection to serve."""
_DRAIN: Final = b"d"
"""To a worker: refuse new runs, let active ones finish, end. It still gets connections, so that clients see the refusal."""
_RETIRE: Final = b"r"
"""To a worker: the same, but other workers continue, and connections are passed to them."""
_HURRY: Final = b"h"
"""To a worker that is ending: active runs get no more time."""
_BEAT: Final = b"."
"""From a worker: it is ready, and its event loop is running."""
_BEAT_SECONDS: Final = 5.0
_SILENT_SECONDS: Final = 120.0
"""How long a worker may be silent before it is killed. A tool that blocks the event loop also silences it."""
_START_SECONDS: Final = 120.0
"""How long a worker may take to start during a reload."""
_STEADY_SECONDS: Final = 10.0
"""A worker that ends sooner than this after it was ready is replaced after a pause, the next such one after a longer one."""
_MAX_PAUSE: Final = 30.0
_ACCEPT_PAUSE: Final = 0.05


class _Server(uvicorn.Server):
    """uvicorn waits for open streams before it tells the app to shut down; so here the app is shut down first.

    ``control``: a worker's socket that is shared with its supervisor, which accepts the connections.
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
        # Replaces uvicorn's, which raises every signal again at the end: a process that ended well would seem killed.
        self._signals += 1
        self._was_interrupted |= sig == signal.SIGINT
        if self._signals > 2:
            os._exit(128 + sig)
        if not self.started:
            self.should_exit = True
            return
        self._loop.call_soon_threadsafe(self._end if self._signals == 1 else self._hurry)

    def _end(self) -> None:
        if self._ending is None:  # a worker may get both a signal and its supervisor's order
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
        """Does what the supervisor orders. A supervisor that is gone was killed: nothing more can reach this worker."""
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
            # A connection that was passed on a moment ago may send its request only now, and no other worker has it.
            self._loop.call_later(_LAST_REQUEST_SECONDS, self._retire)
        else:
            self._retire()
            self._loop.remove_reader(control)

    async def _adopt(self, connection: socket.socket) -> None:
        """Serves a connection as if uvicorn had accepted it."""
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
        """Ends while other workers continue: open connections are closed, and their clients' next requests go to those."""
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
        # Objects loaded by now live as long as the process, and streams create little cyclic garbage: with Python's default
        # thresholds, a busy server would spend a tenth of its time looking for it.
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
    """A uvicorn protocol whose requests can drop their connection, and which does not wait forever for the first one."""

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
            self._silence = None  # release the timer: a connection may last for hours, and there may be thousands
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
    """Serves until SIGTERM, then returns, or until SIGINT, then raises KeyboardInterrupt; ``options`` are uvicorn's.

    ``sockets`` that already listen are used instead of host and port. It is empty if the connections come over ``control``,
    a worker's socket that is shared with its supervisor; see ``Supervisor``.
    """
    await _Server(config_for(app, host=host, port=port, **options), app, control).serve(sockets)


# -- several workers: processes that serve one address on one journal, and the supervisor that starts and replaces them ----
#
# A worker is a replica: any of them serves any stream and accepts any answer and any stop, and if one is killed, the others
# end the runs that it leaves behind. The supervisor loads no application. It accepts the connections and hands each to the
# next worker; if all workers accepted from one socket, most connections would end up with one of them. It shares a Unix
# socket with each worker, over which the worker reports that it is ready and that its event loop is still running, and the
# supervisor passes connections and orders the worker to end.
#
# uvicorn's own supervisor, ``Multiprocess``, creates the ``uvicorn.Server`` of its workers itself, which would cut active
# runs off instead of giving them time to finish; its arguments have changed between versions; a second signal does not
# hurry it; and its workers outlive it when it is killed. The signals have the same meaning as there.


class _Worker:
    """One process and the socket that is shared with it."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.ready: asyncio.Future[float | None] = loop.create_future()
        """When it became ready; None if it ended before that."""
        self.is_leaving = False
        """Whether it has been ordered to end."""
        self.is_retired = False
        """Whether connections go to other workers instead."""
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
        """Gives it a connection to serve. False if it cannot take one now."""
        if not self.is_ready or self.is_retired or self.ended.done():
            return False
        try:
            socket.send_fds(self._control, [_TAKE], [connection.fileno()])
        except OSError:  # it is dead, or does not read what it is sent
            return False
        return True

    def end(self, how: bytes) -> None:
        """Orders it to end, ``how`` being one of the orders above. A worker that does not serve yet is simply terminated."""
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
        """Serves until a signal says to stop, and returns the exit code; after SIGINT, raises KeyboardInterrupt.

        The first worker starts alone: it brings the schemas up to date, and errors in the application are reported only
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
                    await asyncio.sleep(_ACCEPT_PAUSE)  # other connections wait in the socket's backlog

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
        """A new worker, in its own session, so that Ctrl-C reaches only the supervisor, which knows what to do."""
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
        """Keeps this worker, or a new one, running: whenever it ends unexpectedly, another one replaces it."""
        task = asyncio.ensure_future(self._replace_in_turn(worker))
        self._keepers.add(task)
        task.add_done_callback(self._keepers.discard)

    async def _replace_in_turn(self, worker: _Worker | None) -> None:
        """Waits for the worker to end and replaces it, again and again, until one ends that was ordered to."""
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
        """As without workers: after the first signal active runs get their time, after the second none, the third kills."""
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
        """One after the other, each after the runs of the one before have ended: there is at most one extra process."""
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
