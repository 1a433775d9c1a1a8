"""A thread for the sync hooks of one call.

Each call has its own, because a shared pool would make calls wait for each other as soon as it is used up. It is a
daemon: a hook that never returns must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

_Job: TypeAlias = Callable[[], None]


class HookThread:
    """Runs one function after another. It begins with the first, and ends by ``close`` or when nothing holds it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_started = False

    def submit(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Runs the function in a copy of the caller's context. The future is done when the function has ended."""
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def job() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = context.run(function, *args)
            except BaseException as error:  # noqa: BLE001  # it is raised again where the future is awaited
                failure = error
            try:
                loop.call_soon_threadsafe(_resolve, future, result, failure)
            except RuntimeError:  # The loop was closed: nothing waits any more.
                pass

        self._jobs.put(job)
        return future

    def close(self) -> None:
        """Lets the thread end after what it was given."""
        self._jobs.put(None)

    def __del__(self) -> None:
        self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job()
        del job


def _resolve(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    elif isinstance(failure, StopIteration):  # A future cannot carry it.
        future.set_exception(RuntimeError(f"the hook raised {failure!r}"))
    else:
        future.set_exception(failure)
