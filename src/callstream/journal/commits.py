"""Group commit: one task on the journal's thread writes all that waits in one transaction, in the order in which it came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from callstream.errors import CallstreamError, JournalError
from callstream.journal.follow import Followers, call_in
from callstream.journal.queue import AppendQueue, Waiting
from callstream.journal.settings import JournalSettings
from callstream.journal.store import Outage, Store, StoreAway, Unstorable
from callstream.journal.timelimit import TimeLimit
from callstream.journal.writer import Committed

_MAX_BACK_OFF = 0.25
_LEAST_SECONDS = 1.0
"""For a commit of appends that have waited so long already that hardly any of their time is left."""


class GroupCommit:
    """``queue`` takes appends from any loop; ``run`` runs on the journal's."""

    def __init__(self, store: Store, followers: Followers, settings: JournalSettings, outage: Outage) -> None:
        self._store = store
        self._followers = followers
        self._outage = outage
        self._patience = settings.retry_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._limit = TimeLimit()
        self.queue = AppendQueue(
            settings.max_pending_bytes, settings.retry_seconds, self._wake, gather=settings.gather_seconds
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Commits what comes until it is told to stop and nothing waits any more."""
        self._loop = asyncio.get_running_loop()
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._news.set())
        while True:
            if self.queue.may_sleep() and not stop.is_set():
                await self._news.wait()
            else:
                await asyncio.sleep(0)  # the lease is renewed on this loop, under full load too
            self._news.clear()
            if batch := self.queue.take():
                await self._commit(batch)
            if stop.is_set() and not len(self.queue):
                return

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
                    if not isinstance(error, Unstorable):
                        self._outage.begin(error)
                    self.queue.settle(batch, [error])
                    return
                for waiting in batch:  # one of them may be what the store cannot take
                    await self._commit([waiting])
                return
            else:
                self._outage.end(by_append=True)
                self._followers.push(committed.fresh)
                self.queue.settle(batch, committed.outcomes, self._followers.by_loop(committed.changed))
                return

    async def _in_time(self, batch: Sequence[Waiting]) -> Committed:
        """The commit, given up when the first of the batch has waited for as long as it may: no server may never answer."""
        if self._store.blocks:
            return await self._store.commit(batch)
        seconds = max(_LEAST_SECONDS, batch[0].deadline - time.monotonic())
        try:
            return await self._limit.hold(seconds, self._store.commit(batch))
        except TimeoutError as error:
            raise StoreAway(f"{self._store.where} did not answer within {seconds:.1f} s") from error

    def _still_in_time(self, batch: Sequence[Waiting], error: StoreAway) -> Sequence[Waiting]:
        now = time.monotonic()
        late = [waiting for waiting in batch if waiting.deadline <= now]
        if late:
            self._outage.begin(error, gave_up=True)
            why = str(error).removeprefix(f"{self._store.where} is away: ")
            gave_up: CallstreamError = JournalError(
                f"{self._store.where} was away for {self._patience:g} s ({why}); whether this append is written is not "
                "known"
            )
            gave_up.__cause__ = error
            self.queue.settle(late, [gave_up] * len(late))
        return [waiting for waiting in batch if waiting.deadline > now]
