"""The task that commits what waits in the queue, all of it in one transaction, while the next batch gathers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from callstream.errors import CallstreamError, JournalError
from callstream.journal.follow import Followers
from callstream.journal.queue import AppendQueue, Waiting, call_in
from callstream.journal.settings import Settings
from callstream.journal.store import Committed, Outage, Store, StoreAway

_MAX_BACK_OFF = 1.0
_LEAST_SECONDS = 1.0
"""For a commit of appends that have waited so long already that hardly any of their time is left."""
_TOGETHER = 8
_LONGEST_PAUSE = 0.002


class GroupCommit:
    """``queue`` takes appends from any loop; ``run`` runs on the journal's."""

    def __init__(self, store: Store, followers: Followers, settings: Settings, outage: Outage) -> None:
        self._store = store
        self._followers = followers
        self._outage = outage
        self._patience = settings.retry_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self.queue = AppendQueue(settings.max_pending_bytes, settings.retry_seconds, self._wake)

    async def run(self, stop: asyncio.Event) -> None:
        """Commits what comes until it is told to stop and nothing waits any more."""
        self._loop = asyncio.get_running_loop()
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._news.set())
        while True:
            while batch := self.queue.take():
                began = time.monotonic()
                await self._commit(batch)
                await asyncio.sleep(self._pause(len(batch), time.monotonic() - began))
            if stop.is_set():
                return
            await self._news.wait()
            self._news.clear()

    def _pause(self, appends: int, seconds: float) -> float:
        """How long to wait before the next batch, after one of so many appends that took so long.

        Runs that were answered together append again together. Taken too early, the first few of them would cost a
        commit of their own, and the others would wait for it. Never less than a turn of the loop, because the lease is
        renewed on it under full load too.
        """
        if appends < _TOGETHER or len(self.queue) > appends / 2:
            return 0.0
        return min(seconds / 4, _LONGEST_PAUSE)

    def _wake(self) -> None:
        if self._loop is not None:
            call_in(self._loop, self._news.set)

    async def _commit(self, batch: Sequence[Waiting]) -> None:
        back_off = 0.01
        while batch:
            try:
                committed = await self._in_time(batch)
            except StoreAway as error:
                self._outage.begin(error)
                batch = self._still_in_time(batch, error)
                if batch:
                    await asyncio.sleep(min(back_off, max(0.0, batch[0].deadline - time.monotonic())))
                back_off = min(back_off * 2, _MAX_BACK_OFF)
            except JournalError as error:
                if len(batch) == 1:
                    self._outage.begin(error)
                    self.queue.settle(batch, [error])
                    return
                for waiting in batch:  # one of them may be what the store cannot take
                    await self._commit([waiting])
                return
            else:
                self._outage.end(by_append=True)
                self.queue.settle(batch, committed.outcomes)
                self._followers.push(committed.fresh)
                self._followers.wake(committed.changed)
                return

    async def _in_time(self, batch: Sequence[Waiting]) -> Committed:
        """The commit, given up when the first of the batch has waited for as long as it may: no server may never answer."""
        seconds = max(_LEAST_SECONDS, batch[0].deadline - time.monotonic())
        try:
            async with asyncio.timeout(seconds):
                return await self._store.commit(batch)
        except TimeoutError as error:
            raise StoreAway(f"{self._store.where} did not answer within {seconds:.1f} s") from error

    def _still_in_time(self, batch: Sequence[Waiting], error: StoreAway) -> Sequence[Waiting]:
        now = time.monotonic()
        late = [waiting for waiting in batch if waiting.deadline <= now]
        if late:
            self._outage.begin(error, gave_up=True)
            gave_up: CallstreamError = JournalError(
                f"{self._store.where} was away for {self._patience:g} s ({error}); whether this append is written is not "
                "known: repeat it with after="
            )
            gave_up.__cause__ = error
            self.queue.settle(late, [gave_up] * len(late))
        return [waiting for waiting in batch if waiting.deadline > now]
