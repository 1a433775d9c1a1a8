"""Several workers: processes that serve one address on one journal, and the supervisor that starts and replaces them.

A worker is a replica: any of them serves any stream and accepts any answer and any stop, and what a killed one leaves
behind the others bring to an end. The supervisor loads no application. It accepts the connections and hands each to the
next worker; if all accepted from one socket, most connections would be those of one worker. With each worker it shares a
Unix socket, on which the worker says that it is ready and that its event loop still turns, and the supervisor passes
connections and says how to end.

uvicorn's own supervisor, ``Multiprocess``, makes the ``uvicorn.Server`` of its workers itself, which would cut active runs
off instead of giving them their time; its arguments have changed between versions; a second signal does not hurry it; and
its workers outlive it when it is killed. The signals mean what they mean there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

logger = logging.getLogger("callstream.server")

CONNECTION: Final = b"c"
"""To a worker, with a file descriptor: a connection to serve."""
DRAIN: Final = b"d"
"""To a worker: refuse new runs, let active ones finish, end. Connections are still passed, so that this can be seen."""
RETIRE: Final = b"r"
"""To a worker: the same, but other workers continue, and connections are passed to them."""
HURRY: Final = b"h"
"""To a worker that is ending: active runs have no more time."""
BEAT: Final = b"."
"""From a worker: it is ready, and its event loop turns."""
BEAT_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 120.0
"""How long a worker may be silent before it is killed. A tool that blocks the event loop makes it silent, too."""
START_SECONDS: Final = 120.0
"""How long a worker may take to start in a reload."""
_STEADY_SECONDS: Final = 10.0
"""A worker that ended sooner than this after it was ready is replaced later, and the next such one later still."""
_MAX_PAUSE: Final = 30.0
_ACCEPT_PAUSE: Final = 0.05


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
        self._silence: asyncio.TimerHandle | None = None
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
            socket.send_fds(self._control, [CONNECTION], [connection.fileno()])
        except OSError:  # it is dead, or does not read what it is sent
            return False
        return True

    def end(self, how: bytes) -> None:
        """Has it end in that way. One that does not serve yet has nothing to finish."""
        self.is_leaving = True
        self.is_retired |= how == RETIRE
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
        if self._silence is not None:
            self._silence.cancel()
        self._silence = loop.call_later(SILENT_SECONDS, self._kill_silent)

    def _kill_silent(self) -> None:
        logger.error("worker [%d] has not responded for %g s; killing it", self.pid, SILENT_SECONDS)
        self.kill()

    async def _wait(self) -> int:
        code = await self._process.wait()
        if self._silence is not None:
            self._silence.cancel()
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
            worker.end(DRAIN)
        return worker

    def _keep(self, worker: _Worker) -> None:
        task = asyncio.ensure_future(self._replace_in_turn(worker))
        self._keepers.add(task)
        task.add_done_callback(self._keepers.discard)

    async def _replace_in_turn(self, worker: _Worker) -> None:
        """Waits for the worker's end, and starts another one in its place, and so on, until one was meant to end."""
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
            if await self._ends_within(pause):
                return
            worker = await self._start()

    async def _ends_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return False
        return True

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
                worker.end(DRAIN if self._signals == 1 else HURRY)
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
            done, _ = await asyncio.wait({new.ready}, timeout=START_SECONDS)
            if not done or new.ready.result() is None:
                new.is_leaving = True
                new.kill()
                self._keep(new)
                if not self._ending.is_set():
                    logger.error("worker [%d] did not start; the other workers stay as they are", new.pid)
                return
            self._keep(new)
            old.end(RETIRE)
            await asyncio.wait({old.ended})

    def _add(self) -> None:
        logger.info("starting one more worker")
        task = asyncio.ensure_future(self._add_worker())
        self._keepers.add(task)
        task.add_done_callback(self._keepers.discard)

    async def _add_worker(self) -> None:
        self._keep(await self._start())

    def _remove(self) -> None:
        staying = [worker for worker in self._workers if not worker.is_leaving]
        if len(staying) > 1:
            logger.info("worker [%d] ends", staying[-1].pid)
            staying[-1].end(RETIRE)


def _described(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
