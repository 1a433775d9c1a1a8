"""An alarm that is set anew for every hook of a call, at the price of one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Calls ``ring`` when its time has come. A timer is set where none is; one that fires too early is set again."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """It rings in so many seconds, and not before, whatever it was set to."""
        self._at = loop.time() + seconds
        if self._timer is None:
            self._start(loop)

    def bring_forward(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """It rings in so many seconds at the latest."""
        self._at = min(self._at, loop.time() + seconds)
        self.stop_timer()
        self._start(loop)

    def unset(self) -> None:
        """It does not ring. The timer is left alone, since the next hook will want it."""
        self._at = math.inf

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._at < math.inf:
            self._timer = loop.call_at(self._at, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if loop.time() < self._at:
            self._start(loop)
        else:
            self._ring()
