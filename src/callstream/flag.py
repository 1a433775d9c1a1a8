"""A flag that one task at a time waits for.

Like ``asyncio.Event``, but far lighter: there is a future only while a task waits, and no queue of waiters. Streams and
runs stand by the thousand, and each has several.
"""

from __future__ import annotations

import asyncio


class Flag:
    """Not for threads: all of it belongs to one event loop."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Wakes who waits, even if the flag is cleared before it gets its turn."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        """Waits until the flag is set. RuntimeError if another task does already."""
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
