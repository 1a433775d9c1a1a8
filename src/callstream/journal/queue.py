"""The way of an append from any event loop to the journal's thread and back.

Bounded: appends wait in the order in which they came. When more than ``max_bytes`` wait, a further append waits until there
is room, and fails with JournalError when it has not got any within its time.

Everything that waits is taken at once, and all answers of a batch go back to a loop in one call, because waking a loop costs
more than writing a record.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from callstream.errors import CallstreamError, JournalError, UsageError
from callstream.journal.plan import Append
from callstream.journal.rows import Row

ROW_OVERHEAD = 200
"""What a waiting record is counted for beside its text."""
MAX_BATCH = 4096
"""Records in one transaction; one append is never split."""


class Waiting(msgspec.Struct, eq=False):
    """An append in the queue, with the loop that waits for it."""

    append: Append
    size: int
    deadline: float
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[int]


class AppendQueue:
    """``wake`` is called, from any thread, when something came into the empty queue."""

    def __init__(self, max_bytes: int, patience: float, wake: Callable[[], object]) -> None:
        self._max_bytes = max_bytes
        self._patience = patience
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._taken: set[Waiting] = set()
        self._bytes = 0
        self._in_line: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._closed_because = ""

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    async def put(self, run_id: str, rows: Sequence[Row], after: int | None) -> int:
        """Queues an append and waits until it is written. If the waiting task is cancelled it may be written still."""
        loop = asyncio.get_running_loop()
        size = sum(ROW_OVERHEAD + len(row.body) for row in rows)
        deadline = time.monotonic() + self._patience
        done: asyncio.Future[int] = loop.create_future()
        waiting = Waiting(Append(run_id, rows, after), size, deadline, loop, done)
        while not self._try_put(waiting):
            await self._room(loop, deadline)
        return await done

    def take(self) -> list[Waiting]:
        """What waits now, up to MAX_BATCH records."""
        batch: list[Waiting] = []
        records = 0
        with self._lock:
            while self._waiting and (not batch or records + len(self._waiting[0].append.rows) <= MAX_BATCH):
                batch.append(self._waiting.popleft())
                records += len(batch[-1].append.rows)
            self._taken.update(batch)
        return batch

    def settle(self, batch: Sequence[Waiting], outcomes: Sequence[int | CallstreamError]) -> None:
        """Tells every waiting task what became of its append, and lets the next ones in line in."""
        answers: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], int | CallstreamError]]] = {}
        for waiting, outcome in zip(batch, outcomes, strict=True):
            answers.setdefault(waiting.loop, []).append((waiting.done, outcome))
        with self._lock:
            self._taken.difference_update(batch)
            self._bytes -= sum(waiting.size for waiting in batch)
            in_line, self._in_line = self._in_line, deque()
        for loop, settled in answers.items():
            call_in(loop, _answer, settled)
        for loop, turn in in_line:
            call_in(loop, _let_in, turn)

    def close(self, reason: str) -> None:
        """Nothing more comes in. What waits is still there to be taken; whoever is in line is refused."""
        with self._lock:
            self._closed_because = self._closed_because or reason
            in_line, self._in_line = self._in_line, deque()
        for loop, turn in in_line:
            call_in(loop, _let_in, turn)

    def abandon(self, error: CallstreamError) -> None:
        """Refuses all that waits or was taken, because nobody is there any more to write it."""
        with self._lock:
            left = [*self._taken, *self._waiting]
            self._waiting.clear()
        self.settle(left, [error] * len(left))

    def _try_put(self, waiting: Waiting) -> bool:
        with self._lock:
            if self._closed_because:
                raise UsageError(self._closed_because)
            # An append that is larger than the bound gets in when it is alone: it can never fit better.
            if self._bytes and self._bytes + waiting.size > self._max_bytes:
                return False
            self._bytes += waiting.size
            self._waiting.append(waiting)
            first = len(self._waiting) == 1
        if first:
            self._wake()
        return True

    async def _room(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        turn: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._in_line.append((loop, turn))
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await turn
        except TimeoutError:
            raise JournalError(
                f"the store did not keep up: {self._bytes} bytes wait to be written (at most {self._max_bytes}), and no "
                f"room came free within {self._patience:g} s; nothing of this append was kept"
            ) from None


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Calls something in a loop of any thread. A loop that is closed has nobody left who waits."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


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
