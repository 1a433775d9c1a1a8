"""A time limit for work that is done over and over, and nearly always in time.

``asyncio.timeout`` sets a timer each time and takes it away again, which costs a twentieth of a commit to PostgreSQL
(``bench.journal``, rate with one run). Here a timer that was set stays. When it fires, it checks what is under way and
is set again for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class TimeLimit:
    """For one task, which does one thing at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._due: float | None = None  # when what is under way has to be done
        self._timer: asyncio.TimerHandle | None = None
        self._has_passed = False

    async def hold(self, seconds: float, work: Awaitable[T]) -> T:
        """Awaits the work. Raises TimeoutError if it is not done within the time; it is cancelled then."""
        loop = asyncio.get_running_loop()
        self._task, self._due, self._has_passed = asyncio.current_task(), loop.time() + seconds, False
        if self._timer is None or self._timer.when() > self._due:
            self._set_timer(loop, self._due)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._has_passed or self._task is None or self._task.uncancel() > 0:
                raise  # somebody else has cancelled it
            raise TimeoutError from None
        finally:
            self._task = self._due = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._task is None or self._due is None:
            return  # nothing is under way
        if loop.time() < self._due:
            self._set_timer(loop, self._due)
        else:
            self._has_passed = True
            self._task.cancel()
