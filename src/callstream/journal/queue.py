"""The way of an append from any event loop to the journal's thread and back.

Bounded: appends wait in the order in which they came. When more than ``max_bytes`` wait, a further append waits until
there is room, and fails with JournalError when it has not got any within its time.

Everything that waits is taken at once, and all answers of a batch go back to a loop in one call, because waking a loop
costs more than writing a record.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from callstream.errors import CallstreamError, JournalError
from callstream.journal.owned import Append
from callstream.journal.rows import Row

ROW_OVERHEAD = 200
"""What a waiting record is counted for beside its text."""
MAX_BATCH = 4096
"""Records in one transaction; one append is never split."""


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
        """Nothing more comes in. What waits is still there to be taken; whoever is in line is refused."""
        with self._lock:
            self._refusal = self._refusal or refusal
            in_line, self._in_line = self._in_line, deque()
        for loop, turn in in_line:
            call_in(loop, _let_in, turn)

    def abandon(self, error: CallstreamError) -> None:
        """Refuses all that waits or was taken, because nobody is there any more to write it."""
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
