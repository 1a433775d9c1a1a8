"""A coroutine into which an exception can be thrown at whatever it awaits.

A task can be cancelled from outside, and that raises CancelledError at its await. Here that exception is exchanged for
another one on its way in, so that ``async with`` and ``except`` of the coroutine see the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Interruptible:
    """Awaits the coroutine in the task that awaits this object. ``interrupt`` may be called once it has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._error: BaseException | None = None

    def interrupt(self, error: BaseException) -> None:
        """Raises the error at the coroutine's await, once. Nothing happens if it does not run."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        self._task = asyncio.current_task()
        inner = self._coroutine.__await__()
        thrown: BaseException | None = None
        is_delivered = False
        try:
            while True:
                try:
                    awaited = inner.send(None) if thrown is None else inner.throw(thrown)
                except StopIteration as end:
                    return end.value
                try:
                    yield awaited
                    thrown = None
                except asyncio.CancelledError as cancelled:
                    thrown = cancelled
                    if self._error is not None and not is_delivered:
                        is_delivered = True
                        thrown = self._error
                        self._uncancel()
                except BaseException as error:  # noqa: BLE001  # as it came
                    thrown = error
        finally:
            if self._error is not None and not is_delivered:
                self._uncancel()  # the coroutine ended by itself before the cancellation came to it
            self._task = None

    def _uncancel(self) -> None:
        if self._task is not None:
            self._task.uncancel()
