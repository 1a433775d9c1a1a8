"""Group commit: appends of any event loop wait in a bounded queue, and one task on the journal's thread commits them.

Everything that waits is written in one transaction while the next batch gathers. Appends wait in the order in which they
came. When more than ``max_bytes`` wait, a further append waits until there is room, and fails with JournalError when it
has not got any within its time; so does one that the store has not taken within its time. All answers of a batch go back
to a loop in one call, because waking a loop costs more than writing a record.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from callstream.errors import CallstreamError, JournalError
from callstream.journal.follow import Followers, call_in
from callstream.journal.owned import Append
from callstream.journal.rows import Row
from callstream.journal.settings import JournalSettings
from callstream.journal.store import Outage, Store, StoreAway, Unstorable
from callstream.journal.writer import Committed

ROW_OVERHEAD = 200
"""What a waiting record is counted for beside its text."""
MAX_BATCH = 4096
"""Records in one transaction; one append is never split."""
_MAX_BACK_OFF = 0.25
_LEAST_SECONDS = 1.0
"""For a commit of appends that have waited so long already that hardly any of their time is left."""
_TOGETHER = 8
_LONGEST_PAUSE = 0.002


class Waiting(Append, eq=False):
    """An append in the queue, with the loop that waits for it. The fields before have defaults, so these do."""

    size: int = 0
    deadline: float = 0.0
    loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
    done: asyncio.Future[int] = None  # type: ignore[assignment]
    is_settled: bool = False


class AppendQueue:
    """``wake`` is called, from any thread, when something came into the empty queue. One thread takes and settles."""

    def __init__(self, max_bytes: int, patience: float, wake: Callable[[], object]) -> None:
        self._max_bytes = max_bytes
        self._patience = patience
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._records = 0
        self._bytes = 0
        self._taken: list[Waiting] = []
        self._in_line: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._refusal: CallstreamError | None = None

    def __len__(self) -> int:
        """How many appends wait to be taken."""
        return len(self._waiting)

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    def put(self, run_id: str, rows: Sequence[Row], after: int | None) -> Awaitable[int]:
        """Queues an append; what it returns waits until it is written.

        If the waiting task is cancelled the append may be written still.
        """
        loop = asyncio.get_running_loop()
        size = ROW_OVERHEAD * len(rows)
        for row in rows:
            size += len(row.body)
        deadline = time.monotonic() + self._patience
        waiting = Waiting(run_id, rows, after, None, size, deadline, loop, loop.create_future())
        turn = self._put(waiting)
        return waiting.done if turn is None else self._put_in_turn(waiting, turn)

    def take(self) -> list[Waiting]:
        """What waits now, up to MAX_BATCH records. What was taken before is settled by then."""
        with self._lock:
            if self._records <= MAX_BATCH:
                batch = list(self._waiting)
                self._waiting.clear()
                self._records = 0
            else:
                batch = self._some()
            self._taken = batch
        return batch

    def settle(self, batch: Sequence[Waiting], outcomes: Sequence[int | CallstreamError]) -> None:
        """Tells every waiting task what became of its append, and lets the next ones in line in."""
        answers: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], int | CallstreamError]]] = {}
        size = 0
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.is_settled = True
            size += waiting.size
            loop = waiting.loop
            if loop not in answers:
                answers[loop] = []
            answers[loop].append((waiting.done, outcome))
        with self._lock:
            self._bytes -= size
            in_line, self._in_line = self._in_line, deque()
        for loop, settled in answers.items():
            call_in(loop, _answer, settled)
        for loop, turn in in_line:
            call_in(loop, _let_in, turn)

    def close(self, refusal: CallstreamError) -> None:
        """Nothing more comes in. What waits is still there to be taken; appends in line are refused."""
        with self._lock:
            self._refusal = self._refusal or refusal
            in_line, self._in_line = self._in_line, deque()
        for loop, turn in in_line:
            call_in(loop, _let_in, turn)

    def abandon(self, error: CallstreamError) -> None:
        """Refuses all that waits or was taken, because there is no thread any more to write it."""
        with self._lock:
            left = [waiting for waiting in self._taken if not waiting.is_settled] + list(self._waiting)
            self._waiting.clear()
        self.settle(left, [error] * len(left))

    def _some(self) -> list[Waiting]:
        batch = [self._waiting.popleft()]
        records = len(batch[0].rows)
        while self._waiting and records + len(self._waiting[0].rows) <= MAX_BATCH:
            batch.append(self._waiting.popleft())
            records += len(batch[-1].rows)
        self._records -= records
        return batch

    def _put(self, waiting: Waiting) -> asyncio.Future[None] | None:
        """None if the append is in; else the future of its turn, when it may try again."""
        with self._lock:
            if self._refusal is not None:
                raise type(self._refusal)(*self._refusal.args)
            # An append that is larger than the bound gets in when it is alone: it can never fit better.
            if self._bytes and self._bytes + waiting.size > self._max_bytes:
                turn: asyncio.Future[None] = waiting.loop.create_future()
                self._in_line.append((waiting.loop, turn))
                return turn
            self._bytes += waiting.size
            self._records += len(waiting.rows)
            self._waiting.append(waiting)
            first = len(self._waiting) == 1
        if first:
            self._wake()
        return None

    async def _put_in_turn(self, waiting: Waiting, turn: asyncio.Future[None] | None) -> int:
        while turn is not None:
            try:
                async with asyncio.timeout(max(0.0, waiting.deadline - time.monotonic())):
                    await turn
            except TimeoutError:
                raise JournalError(
                    f"the store did not keep up: {self._bytes} bytes wait to be written (at most {self._max_bytes}), "
                    f"and no room came free within {self._patience:g} s; nothing of this append was kept"
                ) from None
            turn = self._put(waiting)
        return await waiting.done


class GroupCommit:
    """``queue`` takes appends from any loop; ``run`` runs on the journal's."""

    def __init__(self, store: Store, followers: Followers, settings: JournalSettings, outage: Outage) -> None:
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
                    if not isinstance(error, Unstorable):
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
            why = str(error).removeprefix(f"{self._store.where} is away: ")
            gave_up: CallstreamError = JournalError(
                f"{self._store.where} was away for {self._patience:g} s ({why}); whether this append is written is not "
                "known"
            )
            gave_up.__cause__ = error
            self.queue.settle(late, [gave_up] * len(late))
        return [waiting for waiting in batch if waiting.deadline > now]


def _answer(settled: Sequence[tuple[asyncio.Future[int], int | CallstreamError]]) -> None:
    for done, outcome in settled:
        if done.done():
            continue
        if isinstance(outcome, int):
            done.set_result(outcome)
        else:
            done.set_exception(outcome)


def _let_in(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
