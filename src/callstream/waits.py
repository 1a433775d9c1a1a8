"""Waiting in an event loop, at less cost than with asyncio's own means.

``Alarm`` and ``TimeLimit`` use one timer for many waits, which nearly always end in time. ``asyncio.timeout`` sets a timer
for each wait and removes it again, which costs a twentieth of a commit to PostgreSQL (``bench.journal``, rate with one
run). Here a timer that was set stays. If it fires too early, it is set again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop running in this thread, None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """What a coroutine that never waits returns."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("expected a coroutine that does not wait")


class Alarm:
    """Calls ``ring`` when its time has come."""

    __slots__ = ("_at", "_ring", "_timer")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Rings in that many seconds, and not before, whatever it was set to."""
        self._at = loop.time() + seconds
        if self._timer is None or self._timer.when() > self._at:
            self._start(loop)

    def bring_forward(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Rings in that many seconds at the latest."""
        self._at = min(self._at, loop.time() + seconds)
        self._start(loop)

    def unset(self) -> None:
        """Does not ring. The timer is left alone, since the next wait will need it."""
        self._at = math.inf

    def stop(self) -> None:
        """Does not ring, and no longer has a timer."""
        self._at = math.inf
        self._stop_timer()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stop_timer()
        if self._at < math.inf:
            self._timer = loop.call_at(self._at, self._look, loop)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if loop.time() < self._at:
            self._start(loop)
        else:
            self._at = math.inf
            self._ring()


class TimeLimit:
    """A time limit for one task, which does one thing at a time."""

    def __init__(self) -> None:
        self._alarm = Alarm(self._cancel)
        self._task: asyncio.Task[object] | None = None
        self._has_passed = False

    async def hold(self, seconds: float, work: Awaitable[_T]) -> _T:
        """Awaits the work. If it is not done within the time, cancels it and raises TimeoutError.

        Work that turns its cancellation into something else, such as a result that came at that moment, gets its way.
        """
        task = self._task = asyncio.current_task()
        self._has_passed = False
        self._alarm.set(asyncio.get_running_loop(), seconds)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._has_passed or task is None or task.cancelling() > 1:
                raise  # it was cancelled from outside
            raise TimeoutError from None
        finally:
            self._alarm.unset()
            if self._has_passed and task is not None:
                task.uncancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._has_passed = True
            self._task.cancel()


class Flag:
    """A flag that one task at a time waits for. Not for threads: all of it belongs to one event loop.

    Like ``asyncio.Event``, but far lighter: there is a future only while a task waits, and no queue of waiters. There may
    be thousands of streams and runs, and each has several flags.
    """

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Wakes the task that waits, even if the flag is cleared before that task gets its turn."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        """Waits until the flag is set. RuntimeError if another task is already waiting."""
        if self._is_set:
            return
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError("another task waits for this flag already")
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:
                self._waiter = None
