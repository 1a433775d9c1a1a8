"""Bytes taken in as fast as they come, and given away together.

A provider sends each delta in a chunk of its own. What comes while the pieces before it are being written to the journal
waits here, and is then taken as one: the faster deltas come, the more of them share a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator


class Intake:
    """Reads a source in a task of its own, which stops while more than ``limit`` bytes wait."""

    def __init__(self, source: AsyncIterable[bytes], *, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._waiting: list[bytes] = []
        self._size = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """All that has come since the last time, as soon as there is something. Raises what the source raises."""
        pump = asyncio.create_task(self._pump(), name="callstream intake")
        pump.add_done_callback(lambda ended: self._news.set())
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if self._waiting:
                    data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
                    self._waiting.clear()
                    self._size = 0
                    self._room.set()
                    yield data
                if pump.done() and not self._waiting:
                    pump.result()
                    return
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self) -> None:
        async for data in self._source:
            self._waiting.append(data)
            self._size += len(data)
            self._news.set()
            if self._size > self._limit:
                self._room.clear()
                await self._room.wait()
