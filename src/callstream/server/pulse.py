"""The clock of all streams: when one is to be kept alive, and when its reader has stalled."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from callstream.server.settings import ServerSettings

_BEATS: Final = 15
"""So many in the shorter of the two times, which are kept to a beat."""


class Beating(Protocol):
    def beat(self, now: float) -> None:
        """Called with every beat, in the event loop."""


class Pulse:
    """One timer for all of them: with the default settings, a thousand idle streams wake the loop once a second."""

    def __init__(self, settings: ServerSettings) -> None:
        shorter = min(settings.heartbeat_seconds, settings.stall_seconds)
        self._every = shorter / _BEATS
        self.heartbeat_seconds = settings.heartbeat_seconds - self._every
        """After so long without an event, the beat has come to send something: with the next one it would be too late."""
        self.stall_seconds = settings.stall_seconds
        self._streams: set[Beating] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Beating) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._beat)

    def remove(self, stream: Beating) -> None:
        self._streams.discard(stream)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._every, self._beat)
        now = loop.time()
        for stream in self._streams:
            stream.beat(now)
