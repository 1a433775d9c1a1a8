"""How sync programs use a Callstream: the work is done on an event loop, in another thread, and the caller waits for it.

Nothing hangs, because a caller waits only for a loop that another thread runs, never for one that it may be blocking itself
(``run_in`` refuses that), and it stops waiting when that loop is closed. While it waits it runs the plain functions that
the work hands back to it, so a sync tool runs in the thread of the program that invoked it.

The thread of ``OwnLoop`` is not a daemon, because daemons die in the middle of their work. ``end`` ends it. Without that
call it ends after the main thread and all other threads that are not daemons, when nothing can use it any longer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from callstream.errors import UsageError
from callstream.runtime.log import MOMENT
from callstream.waits import running_loop

logger = logging.getLogger("callstream")

_T = TypeVar("_T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, _T]]

_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 1.0
"""How often a caller checks whether the loop that it waits for was closed."""


class _Caller:
    """A thread that waits until work on a loop is done, and meanwhile runs the functions that the work hands to it."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[Any] | None = None
        self.is_waiting = True

    # -- on the loop --

    def begin(self, loop: asyncio.AbstractEventLoop, work: Work[Any], context: contextvars.Context) -> None:
        if self.is_waiting:
            self._task = loop.create_task(_do(work), context=context)
            self._task.add_done_callback(self._end)

    def run(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """Has the function run in the thread that waits."""
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()
        context = contextvars.copy_context()

        def job() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(context.run(function))
                except Exception as error:  # noqa: BLE001  # it is raised where the future is awaited
                    done.set_exception(error)

        self._jobs.put(job)
        return asyncio.wrap_future(done)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self.is_waiting = False
        self._jobs.put(None)

    def _cancel(self) -> None:
        self.is_waiting = False
        if self._task is not None:
            self._task.cancel()

    # -- in the thread --

    def wait(self, loop: asyncio.AbstractEventLoop) -> Any:
        try:
            while (job := self._next_job(loop)) is not None:
                job()
                del job
        except BaseException:  # Ctrl-C, or what a tool ends its program with
            self._leave(loop)
            raise
        task = self._task
        assert task is not None, "only the task ends the waiting"
        if task.cancelled() and task.cancelling():  # otherwise, something that the work waited for was cancelled
            raise UsageError("the Callstream was closed, or its event loop ended, while this call was under way")
        try:
            return task.result()
        finally:
            del self, task  # a traceback holds this frame, and the task's exception the traceback

    def _next_job(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None] | None:
        while True:
            try:
                return self._jobs.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if loop.is_closed():
                    raise UsageError("the event loop of this run was closed while this call was under way") from None

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancels the work, and gives it a moment to clean up."""
        try:
            loop.call_soon_threadsafe(self._cancel)
            while self._task is not None and self._jobs.get(timeout=2 * MOMENT) is not None:
                pass  # a function that will no longer be run
        except (RuntimeError, queue.Empty):
            pass  # the loop is closed, or its store hangs


_caller: ContextVar[_Caller | None] = ContextVar("callstream_caller", default=None)


def run_in(loop: asyncio.AbstractEventLoop, work: Work[_T]) -> _T:
    """Does the work on a loop that another thread runs, in a copy of the caller's context, and waits for it."""
    check_caller(loop)
    caller = _Caller()
    context = contextvars.copy_context()
    context.run(_caller.set, caller)
    try:
        loop.call_soon_threadsafe(caller.begin, loop, work, context)
    except RuntimeError:
        raise UsageError("the event loop of this run is closed") from None
    result: _T = caller.wait(loop)
    return result


def check_caller(loop: asyncio.AbstractEventLoop) -> None:
    """Raises UsageError in the thread that runs the loop: waiting there for something on the loop would never end."""
    if running_loop() is loop:
        raise UsageError(
            "expected a thread that may block, got one that runs the event loop on which this call would have to wait: "
            "use async with and await there, or make the hook or tool a plain function, which runs in a thread"
        )


def finish_in(loop: asyncio.AbstractEventLoop, work: Work[None]) -> None:
    """Does the last work for something on its loop. Waits for it where that is safe, and raises nothing.

    Garbage is collected in any thread, and an SDK may close what it forgot when that happens. In the thread of the
    loop, or in one that the loop may be waiting for, such as the journal's, waiting might never end.
    """
    if loop.is_closed():
        return
    if running_loop() is loop or threading.current_thread().name.startswith("callstream"):
        try:
            loop.call_soon_threadsafe(_finish, loop, work)
        except RuntimeError:
            pass  # closed meanwhile
        return
    try:
        run_in(loop, work)
    except UsageError:
        pass  # the loop was closed meanwhile, and its tasks have ended


async def run_function(function: Callable[[], _T]) -> _T:
    """Runs a plain function: in the thread that waits for this task if there is one, else in a thread of the loop's."""
    work = partial(without_stop_iteration, function)
    caller = _caller.get()
    if caller is None or not caller.is_waiting:
        return await asyncio.to_thread(work)
    return await caller.run(work)


def without_stop_iteration(function: Callable[[], _T]) -> _T:
    """Calls a tool whose outcome goes into a future. A future cannot carry StopIteration: awaiting it would never end."""
    try:
        return function()
    except StopIteration as error:
        raise RuntimeError("the tool raised StopIteration") from error


def may_wait_for(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop runs in another thread and is not blocked there."""
    if running_loop() is loop:
        return False
    answered = threading.Event()
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:
        return False
    return answered.wait(_ANSWER_SECONDS)


class OwnLoop:
    """An event loop in a thread of its own, which starts with the first use. A forked process gets a new one.

    ``at_exit`` is done on the loop if the program ends without ``end``.
    """

    def __init__(self, at_exit: Work[None]) -> None:
        self._at_exit = at_exit
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.has_ended = False
        self.reset()
        _own_loops.add(self)

    def run(self, work: Work[_T]) -> _T:
        """Does the work on this loop and waits for it. UsageError on the loop's own thread, which must not block."""
        return run_in(self.begin(), work)

    def begin(self) -> asyncio.AbstractEventLoop:
        """Starts the loop unless it runs already, and returns it."""
        with self._lock:
            if self.has_ended:
                raise UsageError("the Callstream is closed")
            if self.loop is None:
                loop = self.loop = asyncio.new_event_loop()
                self.thread = threading.Thread(target=self._serve, args=(loop, self._stop), name="callstream-loop")
                self.thread.start()
                _watch_exit()
            return self.loop

    @property
    def is_current(self) -> bool:
        return self.loop is not None and running_loop() is self.loop

    def end(self) -> None:
        """Ends the loop, and waits for its thread unless this is that thread. Anything still running there is cancelled."""
        with self._lock:
            self.has_ended = True
            loop, thread = self.loop, self.thread
        if loop is None or thread is None:
            return
        try:
            loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            pass  # it has ended
        if thread is not threading.current_thread():
            thread.join()

    def end_at_exit(self) -> None:
        try:
            if not self.has_ended and self.loop is not None:
                self.run(self._at_exit)
        except Exception:
            logger.exception("could not close a Callstream at the end of the program")
        self.end()

    def reset(self) -> None:
        """Back to the beginning, with no loop; also in a forked process, where the thread does not run."""
        self._lock = threading.Lock()
        self._stop = asyncio.Event()
        self.loop = self.thread = None

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_until(stop))


async def _do(work: Work[_T]) -> _T:
    return await work()


_finishing: set[asyncio.Task[None]] = set()


def _finish(loop: asyncio.AbstractEventLoop, work: Work[None]) -> None:
    task = loop.create_task(_do(work))
    _finishing.add(task)
    task.add_done_callback(_finishing.discard)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


# -- the end of the program --------------------------------------------------------------------------------------------

_own_loops: WeakSet[OwnLoop] = WeakSet()
_watchers: list[threading.Thread] = []  # one, once there is a loop


def _watch_exit() -> None:
    if not _watchers:
        _watchers.append(threading.Thread(target=_end_all, name="callstream-exit", daemon=True))
        _watchers[0].start()


def _end_all() -> None:
    """Python waits for all threads that are not daemons before it ends. This makes those of the loops end last."""
    threading.main_thread().join()
    while others := _other_threads():
        others[0].join()
    for own in list(_own_loops):
        own.end_at_exit()


def _other_threads() -> list[threading.Thread]:
    ours = {own.thread for own in list(_own_loops)} | {threading.main_thread()}
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in ours]


def _forget_threads() -> None:
    _watchers.clear()
    for own in list(_own_loops):
        if not own.has_ended:
            own.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
