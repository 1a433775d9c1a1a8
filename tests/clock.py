"""Event loops whose clock is the test's.

``jumping``: when everything waits, the clock jumps to the next timer at once. So limits of seconds cost nothing, and
the order of events is the same on every machine. A program in which everything waits and no timer is set cannot
continue, and fails with ``Stuck``. Not for tests that wait for threads or sockets.

``skipping``: the clock runs as usual, and ``skip`` moves it forward. For tests with sockets.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stuck(AssertionError):
    """Everything waits for something that cannot happen."""


class _JumpingSelector(selectors.DefaultSelector):
    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise Stuck("every task waits and no timer is set")
        if not ready and timeout is not None:
            self.now += max(timeout, 0)
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class SkippingLoop(asyncio.SelectorEventLoop):
    _skipped = 0.0

    def time(self) -> float:
        return super().time() + self._skipped


def skip(seconds: float) -> None:
    """Timers that are due within these seconds fire at once."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    loop._skipped += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine on such a loop, and fails if it leaves tasks behind."""

    async def whole() -> T:
        result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        assert not left, f"left behind: {left}"
        return result

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(whole())


def jumping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes a test of a coroutine function."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapper


def skipping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes a test of a coroutine function, in which ``skip`` can be called."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(test(*args, **kwargs))

    return wrapper
