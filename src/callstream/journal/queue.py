"""The queue of appends: they come from any event loop, and the journal's thread takes and commits them in batches.

Waking a thread costs more than writing a record, so it is done rarely: while other runs append too, a batch gathers for a
few milliseconds, and each loop gets everything that a batch has for it, outcomes and news for followers, in one call. A run
that appends alone never waits for others. The first append starts the thread, and waits for it here.

When more than ``max_bytes`` wait, a further append stands in line until there is room, and fails with JournalError if there
is none within its time. Once admitted, an append waits for the store: a commit that a server has not answered within that
time is given up, a local store is waited for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from callstream.errors import CallstreamError, JournalError
from callstream.journal.follow import Followers, News, Pushed, call_in
from callstream.journal.housekeeping import JournalSettings
from callstream.journal.plan import Append
from callstream.journal.rows import Kind, Row
from callstream.journal.store import Store, StoreUnavailable, Unstorable
from callstream.journal.writer import Committed
from callstream.waits import TimeLimit

_log = logging.getLogger("callstream.journal")
ROW_OVERHEAD = 200
"""What each waiting record counts for beside its text."""
MAX_BATCH = 4096
"""Records in one transaction; one append is never split."""
LONGEST_GATHER = 0.04
"""Seconds that a busy loop may let appends gather."""
RUNS_AT_ONCE = 100
"""Runs whose work is done in one step of an event loop, and appends for which it is worth waking the thread at once."""
AT_ONCE = 1000
"""Followers whose readers may be given records in one step of an event loop. Others are woken, so that the loop is not
held."""
_TIMER_SECONDS = 0.001
"""A timer may fire this much too early."""
_MAX_BACK_OFF = 0.25
_LEAST_SECONDS = 1.0
"""The least that a commit gets, even if its appends have spent nearly all of their time waiting."""
_PASSING_SECONDS = 1.0
_LEAST_ROOM = 64 * 1024
_MOST_ROOM = 1024 * 1024
"""Bounds of how many bytes a store has to take, after it has refused some, before it counts as writable again."""

OnOutcome: TypeAlias = Callable[[int | Exception], None]
"""Called in an append's loop, never from inside ``submit``, with the number of its last record or the error. It must not
raise."""

Outcome: TypeAlias = tuple[OnOutcome, int | Exception]


class Waiting(Append, eq=False, kw_only=True):
    """An append in the queue, with the loop that waits for it."""

    size: int
    deadline: float
    loop: asyncio.AbstractEventLoop
    then: OnOutcome
    goes_on: bool
    """Whether it ends in a piece of text: then the run's next append is expected soon."""
    is_acknowledged: bool = False


class _LoopDuties:
    """What one event loop still has to do for the queue."""

    __slots__ = ("due", "is_paused", "is_timed", "jobs")

    def __init__(self) -> None:
        self.jobs: list[Callable[[], object]] = []
        self.due = 0  # how many of them are due now
        self.is_timed = False  # a timer is set for what waits
        self.is_paused = False  # it goes on when a batch is acknowledged


class AppendQueue:
    """Holds appends until one thread takes them as a batch and acknowledges them. ``wake`` is called, from any thread, when
    there is a batch to take.

    A batch is ready when ``gather`` seconds have passed since the last one was taken, or earlier, when all runs of that
    batch have appended again: then there is no other run worth waiting for. (Only runs whose last record was a piece of
    text are waited for: after any other event, the next one may take any time.) When the loops are busy, the time is
    longer, twice what they have worked on appends since the last batch, up to LONGEST_GATHER: the more of a run comes
    together, the cheaper it is, and a loop that never catches up would show everything much later. If enough jobs for a
    full step piled up while a loop was busy, they are done at once: otherwise that loop would never catch up.

    Nothing is ever left waiting, in whatever order things happen:

    - If appends wait, then ``_is_ready`` is set, and the thread is about to look or is being woken; or their loop has a
      timer; or some loop is working. A timer and a working loop both end with ``_wake_for_waiting``.
    - If jobs wait, their loop has a timer, is doing some of them, or is about to. It continues by itself. A paused loop
      continues when the next batch is acknowledged; there is always one, because a loop pauses only while bytes are
      unacknowledged.
    - Appends in line are admitted by the thread, before it looks for the last time.

    These flags say so. They change under the lock, with one exception::

        flag           set                                        cleared
        _is_ready      a batch is due: _admit, _wake_for_waiting  pop takes all that waits; abandon
                       appends in line got room: acknowledge
        _is_looking    pop: the thread will look once more        may_sleep: there is nothing; abandon
        _working       + 1: _do_jobs begins a step                - 1: _end_step
        due            jobs are called soon: schedule, _look      _end_step: they are done
        is_timed       _set_timer                                 _look: the timer has fired
        is_paused      _end_step: more jobs are due, and bytes    _deliver, by its own loop and without the lock: a
                       are unacknowledged                         batch acknowledged meanwhile calls it once for nothing
    """

    def __init__(self, max_bytes: int, patience: float, wake: Callable[[], object], *, gather: float = 0.0) -> None:
        self._max_bytes = max_bytes
        self._patience = patience
        self._wake = wake
        self._gather = gather
        self._lock = threading.Lock()
        self._ready_at = 0.0
        # Seconds that loops have worked for appends since the last batch was taken. Written by several loops without the
        # lock: it only sets how long a batch gathers, so an approximation is enough.
        self._spent = 0.0
        self._expected: set[str] = set()  # runs of the last batch, in the middle of a text, silent since
        self._is_ready = False  # there is a batch to take
        self._is_looking = False  # the thread will look for one before it sleeps
        self._duties: dict[asyncio.AbstractEventLoop, _LoopDuties] = {}
        self._working = 0  # loops that are doing jobs right now, and wake the thread afterwards
        self._waiting: deque[Waiting] = deque()
        self._records = 0
        self._bytes = 0  # of all that is not acknowledged
        self._taken: list[Waiting] = []
        self._in_line: deque[Waiting] = deque()  # for which there is no room yet
        self._refusal: CallstreamError | None = None

    def __len__(self) -> int:
        """How many appends wait to be taken."""
        return len(self._waiting)

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    def submit(self, run_id: str, rows: Sequence[Row], after: int | None, then: OnOutcome) -> None:
        """Queues an append. ``then`` is called when it has been written or has failed."""
        loop = asyncio.get_running_loop()
        size = ROW_OVERHEAD * len(rows)
        for row in rows:
            size += len(row.body)
        goes_on = bool(rows) and rows[-1].kind != Kind.EVENT
        deadline = time.monotonic() + self._patience
        waiting = Waiting(run_id, rows, after, size=size, deadline=deadline, loop=loop, then=then, goes_on=goes_on)
        with self._lock:
            if self._refusal is not None:
                loop.call_soon(then, type(self._refusal)(*self._refusal.args))
                return
            if self._in_line or (self._bytes + waiting.size > self._max_bytes and not self._fits(waiting)):
                self._in_line.append(waiting)
                loop.call_later(self._patience, self._give_up, waiting)
                return
            wakes = self._admit(waiting)
        if wakes:
            self._wake()

    def schedule(self, run_id: str, work: Callable[[], object]) -> None:
        """Calls ``work``, which will append to the run, in this loop: in its next step, or when the next batch is due.

        So what many runs receive in one step, or within a few milliseconds, is not only written together but also worked on
        together, which costs much less than starting anew for each of them. ``work`` must not raise.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            self._expected.discard(run_id)
            duties = self._duties.get(loop) or self._duties_of(loop)
            duties.jobs.append(work)
            if duties.due:
                return
            if self._expected:
                if not duties.is_timed:
                    self._set_timer(loop, duties)
                return
            duties.due = len(duties.jobs)
        loop.call_soon(self._do_jobs, loop)

    def _duties_of(self, loop: asyncio.AbstractEventLoop) -> _LoopDuties:
        duties = self._duties.get(loop)
        if duties is None:
            self._duties = {other: kept for other, kept in self._duties.items() if not other.is_closed()}
            duties = self._duties[loop] = _LoopDuties()
        return duties

    def _do_jobs(self, loop: asyncio.AbstractEventLoop) -> None:
        """Does the jobs that are due, some at a time: the next ones follow when the appends of these have been acknowledged.

        So no run waits for the jobs of all others, and the journal's thread gets the interpreter when it writes.
        """
        with self._lock:
            duties = self._duties_of(loop)
            now, duties.jobs = duties.jobs[:RUNS_AT_ONCE], duties.jobs[RUNS_AT_ONCE:]
            self._working += 1
        spent, began = self._spent, time.monotonic()
        try:
            for work in now:
                work()
        finally:
            self._spent = spent + time.monotonic() - began
            self._end_step(loop, duties, len(now))
        self._wake_for_waiting()

    def _end_step(self, loop: asyncio.AbstractEventLoop, duties: _LoopDuties, done: int) -> None:
        with self._lock:
            self._working -= 1
            duties.due = max(0, duties.due - done)  # jobs that came later may have been done with them
            if len(duties.jobs) >= RUNS_AT_ONCE:
                duties.due = len(duties.jobs)  # a whole step has gathered meanwhile
            if not duties.due:
                if duties.jobs:
                    self._set_timer(loop, duties)
            elif self._bytes:
                duties.is_paused = True
            else:
                loop.call_soon(self._do_jobs, loop)

    def _deliver(self, loop: asyncio.AbstractEventLoop, outcomes: Iterable[Outcome], pushed: Iterable[Pushed]) -> None:
        spent, began = self._spent, time.monotonic()
        deliver(outcomes, pushed)
        self._spent = spent + time.monotonic() - began  # drops what was counted inside: it is in this time
        duties = self._duties.get(loop)
        if duties is not None and duties.is_paused:  # only this loop clears it
            duties.is_paused = False
            loop.call_soon(self._do_jobs, loop)  # what has come meanwhile is read first

    def _seconds_left(self) -> float:
        return self._ready_at - time.monotonic() if self._expected else 0.0

    def _set_timer(self, loop: asyncio.AbstractEventLoop, duties: _LoopDuties) -> None:
        """Each loop has a timer for its own appends: any other loop may be blocked, or end."""
        if not duties.is_timed:
            duties.is_timed = True
            loop.call_later(max(0.0, self._seconds_left()), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """The timer has fired. If another batch was taken meanwhile, the next may not be due yet: the timer is set again."""
        with self._lock:
            duties = self._duties_of(loop)
            duties.is_timed = False
            if self._seconds_left() > _TIMER_SECONDS:
                self._set_timer(loop, duties)
                return
            begins = bool(duties.jobs) and not duties.due
            if begins:
                duties.due = len(duties.jobs)
        if begins:
            self._do_jobs(loop)
        else:
            self._wake_for_waiting()

    def _wake_for_waiting(self) -> None:
        with self._lock:
            if self._is_ready or self._working or not self._waiting:
                return
            self._is_ready = True
            is_looking = self._is_looking
        if not is_looking:
            self._wake()

    def may_sleep(self) -> bool:
        """Whether the thread need not look again before it is woken."""
        with self._lock:
            self._is_looking = self._is_ready
            return not self._is_ready

    def pop(self) -> list[Waiting]:
        """The appends that wait now, up to MAX_BATCH records. The batch before must have been acknowledged."""
        with self._lock:
            if self._records <= MAX_BATCH:
                batch = list(self._waiting)
                self._waiting.clear()
                self._records = 0
            else:
                batch = self._some()
            self._taken = batch
            self._is_ready = bool(self._waiting)
            self._is_looking = True
            if self._gather and batch:
                seconds = max(self._gather, min(2 * self._spent, LONGEST_GATHER))
                self._ready_at = time.monotonic() + seconds
                self._spent = 0.0
                self._expected = {waiting.run_id for waiting in batch if waiting.goes_on}
        return batch

    def acknowledge(
        self, batch: Sequence[Waiting], outcomes: Sequence[int | CallstreamError], news: News | None = None
    ) -> None:
        """Notifies each append's loop of the outcome, has the news pushed to followers, and admits the next in line."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
        last, in_loop = None, list[Outcome]()
        size = 0
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.is_acknowledged = True
            size += waiting.size
            if waiting.loop is not last:  # nearly all are of one loop
                last = waiting.loop
                in_loop = by_loop.setdefault(last, [])
            in_loop.append((waiting.then, outcome))
        news = news or {}
        with self._lock:
            self._bytes -= size
            while self._in_line and self._fits(self._in_line[0]):
                admitted = self._in_line.popleft()
                self._bytes += admitted.size
                self._records += len(admitted.rows)
                self._waiting.append(admitted)
                self._expected.discard(admitted.run_id)
                self._is_ready = True  # the thread, which acknowledges, looks before it sleeps
            loops = {*by_loop, *news}
            for loop, duties in self._duties.items():
                if duties.is_paused:
                    loops.add(loop)
        for loop in loops:
            call_in(loop, self._deliver, loop, by_loop.get(loop, ()), news.get(loop, ()))

    def close(self, refusal: CallstreamError) -> None:
        """Refuses further appends, and those in line. Appends that wait can still be taken."""
        with self._lock:
            self._refusal = self._refusal or refusal
            in_line, self._in_line = self._in_line, deque()
        for waiting in in_line:
            call_in(waiting.loop, waiting.then, type(self._refusal)(*self._refusal.args))

    def abandon(self, error: CallstreamError) -> None:
        """Refuses all appends that wait or were taken, because there is no thread to write them."""
        with self._lock:
            left = [waiting for waiting in self._taken if not waiting.is_acknowledged] + list(self._waiting)
            in_line, self._in_line = self._in_line, deque()
            self._waiting.clear()
            self._records = 0
            self._is_ready = self._is_looking = False  # what comes next wakes the next thread
        self.acknowledge(left, [error] * len(left))
        for waiting in in_line:
            call_in(waiting.loop, waiting.then, error)

    def after_fork(self, refusal: CallstreamError) -> None:
        """Called in a forked process. The lock may be held by the parent, which writes what waits."""
        self._lock = threading.Lock()
        self._refusal = refusal
        self._waiting.clear()
        self._in_line.clear()

    def _some(self) -> list[Waiting]:
        batch = [self._waiting.popleft()]
        records = len(batch[0].rows)
        while self._waiting and records + len(self._waiting[0].rows) <= MAX_BATCH:
            batch.append(self._waiting.popleft())
            records += len(batch[-1].rows)
        self._records -= records
        return batch

    def _fits(self, waiting: Waiting) -> bool:
        """An append that is larger than the bound is admitted when it is alone: it will never fit better."""
        return not self._bytes or self._bytes + waiting.size <= self._max_bytes

    def _admit(self, waiting: Waiting) -> bool:
        """Adds the append, under the lock. Returns whether the thread has to be woken for it."""
        self._bytes += waiting.size
        self._records += len(waiting.rows)
        self._waiting.append(waiting)
        if self._is_ready or self._working:
            return False
        self._expected.discard(waiting.run_id)
        if self._expected and len(self._waiting) < RUNS_AT_ONCE:
            duties = self._duties.get(waiting.loop) or self._duties_of(waiting.loop)
            if duties.is_timed:
                return False
            if self._seconds_left() > 0:
                self._set_timer(waiting.loop, duties)
                return False
        self._is_ready = True
        return not self._is_looking

    def _give_up(self, waiting: Waiting) -> None:
        """Fails an append whose time is over while it is still in line: nothing of it is written."""
        with self._lock:
            if waiting not in self._in_line:
                return
            self._in_line.remove(waiting)
        waiting.then(
            JournalError(
                f"the store did not keep up: {self._bytes} bytes wait to be written (at most {self._max_bytes}), "
                f"and no room came free within {self._patience:g} s; nothing of this append was kept"
            )
        )


def deliver(outcomes: Iterable[Outcome], pushed: Iterable[Pushed]) -> None:
    for then, outcome in outcomes:
        then(outcome)
    for number, (follower, records) in enumerate(pushed):
        follower.push(records, at_once=number < AT_ONCE)


class Outage:
    """Whether the store takes appends. It is logged once that the store cannot be written, and once that it can again.

    A lock or a restart that passes within a second is not logged, unless an append has failed by then. A store that was
    unavailable is back as soon as anything has been written to it. One that refused something (a full disk) might still
    take a smaller row, so it is back only when it has taken an append, or ``room`` bytes, as many as it refused.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._since: float | None = None
        self._is_logged = False
        self.refusal: JournalError | None = None
        """Why the store has refused something. It has taken nothing as large since."""
        self.check_size = 0
        """Bytes that the store has to take to show that the outage is over."""

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def begin(self, error: JournalError, *, size: int = 0, gave_up: bool = False) -> None:
        """``size``: of the append that was not written, if it was one."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not isinstance(error, StoreUnavailable):
            self.refusal = error
            self.check_size = min(max(_LEAST_ROOM, self.check_size, size), _MOST_ROOM)
        if not self._is_logged and (gave_up or self.refusal or now - self._since >= _PASSING_SECONDS):
            self._is_logged = True
            _log.error("the journal cannot be written, trying again: %s", error)

    def end(self) -> None:
        if self._since is not None and self._is_logged:
            seconds = time.monotonic() - self._since
            _log.warning("the journal can be written again, after %.1f s: %s", seconds, self._where)
        self._since, self._is_logged, self.refusal, self.check_size = None, False, None, 0


class GroupCommit:
    """One task on the journal's thread that writes all waiting appends in one transaction, in the order in which they came.

    ``queue`` takes appends from any loop; ``run`` runs on the loop of the journal's thread, which ``begin`` starts.
    """

    def __init__(
        self,
        store: Store,
        followers: Followers,
        settings: JournalSettings,
        outage: Outage,
        begin: Callable[[], object],
    ) -> None:
        self._store = store
        self._followers = followers
        self._outage = outage
        self._begin = begin
        self._patience = settings.retry_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._limit = TimeLimit()
        self.queue = AppendQueue(
            settings.max_pending_bytes, settings.retry_seconds, self._wake, gather=settings.gather_seconds
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Commits batch after batch, until ``stop`` is set and no append waits."""
        self._loop = asyncio.get_running_loop()
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._news.set())
        while True:
            if self.queue.may_sleep() and not stop.is_set():
                await self._news.wait()
            else:
                await asyncio.sleep(0)  # the lease is renewed on this loop, under full load too
            self._news.clear()
            if batch := self.queue.pop():
                await self._commit(batch)
            if stop.is_set() and not len(self.queue):
                return

    def _wake(self) -> None:
        if self._loop is None:
            self._begin()
        else:
            call_in(self._loop, self._news.set)

    async def _commit(self, batch: Sequence[Waiting]) -> None:
        back_off = 0.01
        while batch:
            try:
                committed = await self._in_time(batch)
            except StoreUnavailable as error:
                self._outage.begin(error)
                batch = self._still_in_time(batch, error)
                if batch:
                    await asyncio.sleep(min(back_off, max(0.0, batch[0].deadline - time.monotonic())))
                back_off = min(back_off * 2, _MAX_BACK_OFF)
            except JournalError as error:
                if len(batch) == 1:
                    if not isinstance(error, Unstorable):
                        self._outage.begin(error, size=batch[0].size)
                    self.queue.acknowledge(batch, [error])
                    return
                for waiting in batch:  # one of them may be what the store cannot take
                    await self._commit([waiting])
                return
            else:
                if committed.changed:
                    self._outage.end()
                self.queue.acknowledge(batch, committed.outcomes, self._followers.news(committed.changed))
                return

    async def _in_time(self, batch: Sequence[Waiting]) -> Committed:
        """Commits the batch. A server that has not answered by the deadline of the first append is given up."""
        if self._store.is_local:
            return await self._store.commit(batch)
        seconds = max(_LEAST_SECONDS, batch[0].deadline - time.monotonic())
        try:
            return await self._limit.hold(seconds, self._store.commit(batch))
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._store.where} is unavailable: no answer came within {seconds:.1f} s"
            ) from error

    def _still_in_time(self, batch: Sequence[Waiting], error: StoreUnavailable) -> Sequence[Waiting]:
        now = time.monotonic()
        late = [waiting for waiting in batch if waiting.deadline <= now]
        if late:
            self._outage.begin(error, gave_up=True)
            gave_up: CallstreamError = JournalError(
                f"{_was_unavailable(error, self._patience)}; whether this append is written is not known"
            )
            gave_up.__cause__ = error
            self.queue.acknowledge(late, [gave_up] * len(late))
        return [waiting for waiting in batch if waiting.deadline > now]


def _was_unavailable(error: StoreUnavailable, seconds: float) -> str:
    """The error in the past tense. It names what was unavailable: the store, or one of the two that it consists of."""
    which, is_unavailable, why = str(error).partition(" is unavailable: ")
    return f"{which} was unavailable for {seconds:g} s ({why})" if is_unavailable else f"{error} (for {seconds:g} s)"
