"""One run of a thread at a time.

Two runs at once would each read a session that lacks what the other is adding, and the later write would be refused or
lost. So a run that finds its thread busy waits for the one before; runs go in the order in which they came. This holds
for one process: clients that send the runs of a thread to several processes have to take turns themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary


class Turns:
    """A lock a thread, kept while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def begin(self, thread: Hashable) -> Callable[[], None]:
        """Waits for the turn of this thread. Returns what ends it."""
        key = (asyncio.get_running_loop(), thread)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        await lock.acquire()
        return lock.release
