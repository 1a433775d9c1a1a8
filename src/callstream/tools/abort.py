"""The signal by which the hooks of a call learn that its tool will not run."""

from __future__ import annotations

import asyncio
import threading
from typing import cast


class AbortSignal:
    """Says to every hook of one call that its tool will not run. Set at most once; may be read and set in any thread.

    ``abort`` is for whoever made the signal; a hook that wants the call gone raises ``Reject``.
    """

    __slots__ = ("_lock", "_reason", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def aborted(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why, or None while nothing was aborted."""
        return self._reason

    async def wait(self) -> str:
        """Waits until the signal is set, and returns the reason."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if self._reason is not None:
                return self._reason
            self._waiting.append(entry)
        try:
            await event.wait()
        finally:
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)
        return cast(str, self._reason)

    def abort(self, reason: str) -> bool:
        """Sets the signal. False, and nothing is changed, if it was set before."""
        with self._lock:
            if self._reason is not None:
                return False
            self._reason = reason
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
        return True

    def __repr__(self) -> str:
        return f"AbortSignal(reason={self._reason!r})"
