"""Runs the hooks of one call, one at a time, each within its time.

The hooks run in the worker's own task, not in tasks of their own, so that a hook costs no more than its call. When its
time is up a hook is cancelled, and counts as cut off whatever it makes of that. One that goes on nevertheless, as every
sync hook does because a thread cannot be cancelled, is abandoned after a grace period together with its worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from callstream.hooks.thread import HookThread
from callstream.tools import Hook

log = logging.getLogger("callstream.hooks")

_abandoned: set[asyncio.Task[None]] = set()
"""Tasks whose hook ignored its cancellation. Kept until they end, because a loop holds its tasks weakly."""


class HookCutOff(TimeoutError):
    """A hook was cancelled because its time was up."""


class _AbandonedError(Exception):
    """Ends a worker whose hook came back after all: another worker has taken its place."""


class HookWorker:
    """A task that lives while there is something to do, and the clock and the thread of its hooks.

    ``work`` is what the task does; it calls ``run`` for each hook. ``on_abandoned`` is told once, instead of anything
    else that this worker could still do. ``on_died`` is told if the task ended by an exception or a cancellation that
    is not the worker's own.
    """

    def __init__(
        self,
        name: str,
        limits: tuple[float, float],
        work: Callable[[], Awaitable[None]],
        on_abandoned: Callable[[Hook, HookCutOff], None],
        on_died: Callable[[BaseException | None], None],
    ) -> None:
        self._name = name
        self._timeout, self._grace = limits
        self._work = work
        self._on_abandoned = on_abandoned
        self._on_died = on_died
        self._context = contextvars.copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: HookThread | None = None
        self._running: Hook | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._is_cut = False
        self._is_abandoned = False

    @property
    def is_active(self) -> bool:
        return self._task is not None

    @property
    def is_running_hook(self) -> bool:
        return self._running is not None and not self._is_abandoned

    def start(self) -> None:
        """Goes to work on the running loop, unless it is at work."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._main(), name=self._name, context=self._context)
            self._task.add_done_callback(self._ended)

    def hurry(self, seconds: float) -> None:
        """The hook that is running, if any, has that long before it is cancelled."""
        if self._running is None or self._is_cut or self._loop is None:
            return
        self._deadline = min(self._deadline, self._loop.time() + seconds)
        self._stop_timer()
        self._start_timer(self._loop)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Gives clock and thread back. It may go to work again."""
        self._stop_timer()
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    async def run(self, hook: Hook, *args: Any) -> Exception | None:
        """Runs one hook, and returns what it raised."""
        task, loop = self._task, self._loop
        assert task is not None, "hooks run in the worker's task"
        assert loop is not None, "a task has a loop"
        self._running = hook
        self._deadline = loop.time() + self._timeout
        if self._timer is None:
            self._start_timer(loop)
        failure: BaseException | None = None
        try:
            if hook.is_async:
                await hook.function(*args)
            else:
                await self._in_thread(hook.function, *args)
        except asyncio.CancelledError as error:
            if not self._is_cut and task.cancelling():
                raise
            failure = error
        except Exception as error:  # noqa: BLE001  # a hook is the application's: its owner judges what it raised
            failure = error
        if self._is_abandoned:
            raise _AbandonedError
        self._running = None
        if self._is_cut:
            self._is_cut = False
            if task.uncancel():
                raise asyncio.CancelledError
            return self._cut_off(hook, failure)
        if isinstance(failure, asyncio.CancelledError):
            return _own_cancellation(hook, failure)
        assert failure is None or isinstance(failure, Exception)
        return failure

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> None:
        if self._thread is None:
            self._thread = HookThread(self._name)
        done = self._thread.submit(function, *args)
        while not done.done():
            try:
                await asyncio.wait({done})
            except asyncio.CancelledError:
                # Cut off, the thread still runs the hook: only when it has ended may another one begin.
                if not self._is_cut or (self._task is not None and self._task.cancelling() > 1):
                    raise
        result = done.result()
        if inspect.isawaitable(result):  # What a decorator around an async hook may give back.
            await result

    def _cut_off(self, hook: Hook, failure: BaseException | None) -> HookCutOff:
        error = HookCutOff(f"hook {hook.name!r} was cut off when its time was up")
        error.__cause__ = failure
        return error

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        try:
            await self._work()
        except _AbandonedError:
            return
        self._task = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._is_abandoned:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None or task.cancelled():
            self._task = None
            self._running = None
            self._on_died(error)

    # -- the clock -----------------------------------------------------------------------------------------------------
    # One timer serves all hooks: it is set when none is, and when it comes too early it is set again.

    def _start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._deadline < math.inf:
            self._timer = loop.call_at(self._deadline, self._tick, loop)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._running is None or self._task is None:
            return
        now = loop.time()
        if now < self._deadline:
            self._start_timer(loop)
        elif self._is_cut:
            self._abandon(self._running, self._task)
        else:
            self._is_cut = True
            self._deadline = now + self._grace
            self._start_timer(loop)
            self._task.cancel()

    def _abandon(self, hook: Hook, task: asyncio.Task[None]) -> None:
        self._is_abandoned = True
        self.close()
        log.error("hook %r ignores its cancellation and is abandoned (%s)", hook.name, self._name)
        _abandoned.add(task)
        task.add_done_callback(_abandoned.discard)
        task.add_done_callback(lambda _: log.warning("abandoned hook %r has ended (%s)", hook.name, self._name))
        self._on_abandoned(hook, self._cut_off(hook, None))


def _own_cancellation(hook: Hook, error: asyncio.CancelledError) -> RuntimeError:
    """A hook that nobody cancelled raised CancelledError: something that it waited for was cancelled."""
    failure = RuntimeError(f"hook {hook.name!r} waited for something that was cancelled")
    failure.__cause__ = error
    return failure
