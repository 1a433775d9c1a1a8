"""What running tools tell their interface: from any thread, merged, never into the model's context.

A tool may report as often as it likes. The newest value waits until the one before is written and the interval is over;
values in between are dropped, the last one never.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from callstream.errors import CallstreamError, RunOver, TransitionError
from callstream.tools import Progress

logger = logging.getLogger("callstream")

_NOTHING = object()


class ProgressFeed:
    """The progress of one executing call. ``write`` is awaited on the loop that made the feed."""

    def __init__(self, write: Callable[[Any], Awaitable[None]], *, interval: float) -> None:
        self._write = write
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._newest: Any = _NOTHING
        self._closed = False
        self._pump: asyncio.Task[None] | None = None

    def report(self, data: Any) -> None:
        """Takes a value, in any thread. After the tool has returned it is too late, and nothing happens."""
        with self._lock:
            if self._closed:
                return
            first, self._newest = self._newest is _NOTHING, data
        if first and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    async def aclose(self) -> None:
        """Writes the last value and ends."""
        with self._lock:
            self._closed = True
        if self._pump is not None:
            pump, self._pump = self._pump, None
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        await self._flush()

    def _wake(self) -> None:
        if self._pump is None and not self._closed:
            self._pump = self._loop.create_task(self._run(), name="callstream progress")

    async def _run(self) -> None:
        while await self._flush():  # noqa: ASYNC110  # a pace, not a poll
            await asyncio.sleep(self._interval)
        self._pump = None

    async def _flush(self) -> bool:
        with self._lock:
            data, self._newest = self._newest, _NOTHING
        if data is _NOTHING:
            return False
        await asyncio.shield(asyncio.ensure_future(self._write(data)))
        return True


class ProgressFeeds:
    """The feeds of a run's executing calls."""

    def __init__(self) -> None:
        self._feeds: dict[str, ProgressFeed] = {}

    def open(self, call_id: str, record: Callable[[str, Any], Awaitable[None]], *, interval: float) -> Progress:
        """The ``Progress`` to hand to the tool of the call. What ``record`` refuses is left out, unheard by the tool."""
        feed = ProgressFeed(partial(_kept_if_possible, record, call_id), interval=interval)
        self._feeds[call_id] = feed
        return Progress(feed.report)

    async def close(self, call_id: str) -> None:
        """The tool has ended: its last value is written, if it told any."""
        feed = self._feeds.pop(call_id, None)
        if feed is not None:
            await feed.aclose()

    async def aclose(self) -> None:
        for call_id in list(self._feeds):
            await self.close(call_id)


async def _kept_if_possible(record: Callable[[str, Any], Awaitable[None]], call_id: str, data: Any) -> None:
    try:
        await record(call_id, data)
    except (RunOver, TransitionError):
        logger.debug("progress of call %s came after its end", call_id)
    except CallstreamError as error:  # the tool has gone on, and what it does must not depend on what it tells
        logger.warning("progress of call %s was not kept: %s", call_id, error)
