"""Threads that nobody has used for a while: what an ``ADKAgent`` keeps of them in memory is forgotten.

That is the journal and the sessions that the agent made for itself; those that it was given are their owner's to clean up. A
client that comes back sends the conversation along, so its thread is begun anew with that history. A thread that awaits an
answer is kept for a day, because only its session can take the answer.

There is no task in the background: memory grows with runs, so each run that begins looks whether there is something to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from callstream.adk.threads import Threads
from callstream.calls import CallState
from callstream.journal import Journal

ThreadKey: TypeAlias = tuple[str, str, str]
"""The names of an app, a user and a thread."""

_LOOK_INTERVAL: Final = 60.0
_AWAITING_SECONDS: Final = 24 * 3600.0


class IdleThreads:
    """``owns_journal``: whether the journal is the agent's to clean up. ``threads`` is None if the sessions are not."""

    def __init__(
        self,
        timeout: float,
        journal: Journal,
        threads: Threads | None,
        *,
        owns_journal: bool,
        clock: Callable[[], float],
    ) -> None:
        self._timeout = timeout
        self._journal = journal
        self._owns_journal = owns_journal
        self._threads = threads
        self._clock = clock
        self._used: dict[ThreadKey, float] = {}  # the longest unused first
        self._next_look = clock() + min(timeout, _LOOK_INTERVAL)

    def use(self, thread: ThreadKey) -> None:
        self._used.pop(thread, None)
        self._used[thread] = self._clock()

    async def forget(self, busy: set[str]) -> None:
        """Forgets what was not used for the timeout, but for threads with a run that goes on."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + min(self._timeout, _LOOK_INTERVAL)
        idle = [key for key, used in self._used.items() if used < now - self._timeout and key[2] not in busy]
        for key in idle:
            if self._used[key] < now - _AWAITING_SECONDS or not await self._awaits_answer(key):
                await self._forget(key)

    async def _awaits_answer(self, key: ThreadKey) -> bool:
        _, user_id, thread_id = key
        awaiting = await self._journal.calls(
            thread_id=thread_id, principal=user_id, states=[CallState.AWAITING], limit=1
        )
        return bool(awaiting)

    async def _forget(self, key: ThreadKey) -> None:
        del self._used[key]
        _, user_id, thread_id = key
        if self._threads is not None:
            await self._threads.delete(*key)
        if self._owns_journal:
            await self._journal.forget(thread=thread_id, principal=user_id)
