"""Waiting for work that is done whether or not a task waits for it, such as a write that is on its way.

Cancelling a task that waits cancels the waiting, at once, and never the work: a store that hangs must not keep a task that
its program wants to end, and what the store says later must not take the place of the cancellation, because to the
program an error is a reason to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")

MOMENT = 0.5
"""Seconds that a task which is being cancelled waits for what it has to clean up: enough for a store that is well.

All that it waits for in one cancellation, from the SDK's stream to the end of the run, has this time together.
"""

_deadlines: WeakKeyDictionary[asyncio.Task[Any], float] = WeakKeyDictionary()


def is_being_cancelled() -> bool:
    """Whether the current task was cancelled, which may be cleaning up."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def wait_for_result(work: asyncio.Future[_T], *, while_: Callable[[], bool] | None = None) -> _T:
    """Returns or raises what the work does.

    A task that is being cancelled waits for a moment, and a further one whenever ``while_`` was true at the beginning;
    then it hears nothing of the work but that it has succeeded.
    """
    if not is_being_cancelled():
        return await asyncio.shield(work)
    is_patient = True
    while is_patient:
        is_patient = while_ is not None and while_()
        if is_patient:
            _forget_deadline()
        if await wait_until_done(work):
            break
    if not work.done() or work.cancelled() or work.exception() is not None:
        raise asyncio.CancelledError
    return work.result()


async def wait_until_done(work: asyncio.Future[Any]) -> bool:
    """Waits until the work is done, or for a moment if the current task is being cancelled. Raises nothing of it."""
    if work.done():
        return True
    work.add_done_callback(_retrieve)
    await asyncio.wait({work}, timeout=_time_left())
    return work.done()


async def submitted(submit: Callable[[Callable[[Exception | None], None]], None]) -> None:
    """Waits for what is submitted with the callback that ``submit`` is given, and raises its error."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    submit(partial(_resolve, done))
    await wait_for_result(done)


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _time_left() -> float | None:
    task = asyncio.current_task()
    if task is None or not is_being_cancelled():
        _forget_deadline()
        return None
    now = asyncio.get_running_loop().time()
    return max(0.0, _deadlines.setdefault(task, now + MOMENT) - now)


def _forget_deadline() -> None:
    task = asyncio.current_task()
    if task is not None:
        _deadlines.pop(task, None)


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Marks the outcome as seen, so that asyncio does not report it at shutdown: the task that left does not want it."""
    if not work.cancelled():
        work.exception()
