"""The queue between any event loop and the journal's thread: bounded, fair to batches, clear when it is full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from callstream.errors import JournalError, UsageError
from callstream.events import Record, RunStarted, TextAppended
from callstream.journal.follow import Follower, Page
from callstream.journal.queue import AT_ONCE, MAX_BATCH, ROW_OVERHEAD, AppendQueue, deliver
from callstream.journal.rows import prepare
from tests.journal.putting import put

pytestmark = pytest.mark.asyncio
ROW = prepare(TextAppended("m", "x" * 100))
SIZE = ROW_OVERHEAD + 100


async def settled_in_loop() -> None:
    await asyncio.sleep(0.01)


async def test_queue_takes_everything_that_waits_at_once() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1))
    tasks = [asyncio.ensure_future(put(queue, f"r{n}", [ROW], None)) for n in range(5)]
    await settled_in_loop()
    assert wakes == [1]
    batch = queue.pop()
    assert [waiting.run_id for waiting in batch] == ["r0", "r1", "r2", "r3", "r4"]
    assert queue.pending_bytes == 5 * SIZE
    error = UsageError("wrong")
    queue.acknowledge(batch, [1, 2, error, 4, 5])
    assert await asyncio.gather(*tasks, return_exceptions=True) == [1, 2, error, 4, 5]
    assert queue.pending_bytes == 0


async def test_queue_makes_a_batch_of_bounded_size_but_never_splits_an_append() -> None:
    queue = AppendQueue(10**9, 1.0, lambda: None)
    sizes = [MAX_BATCH // 2, MAX_BATCH // 2, 1, MAX_BATCH * 2, 1]
    tasks = [asyncio.ensure_future(put(queue, "r", [ROW] * size, None)) for size in sizes]
    await settled_in_loop()
    taken = []
    while batch := queue.pop():
        taken.append([len(waiting.rows) for waiting in batch])
        queue.acknowledge(batch, [0] * len(batch))
    assert taken == [[MAX_BATCH // 2, MAX_BATCH // 2], [1], [MAX_BATCH * 2], [1]]
    await asyncio.gather(*tasks)


async def test_full_queue_lets_appends_wait_until_there_is_room() -> None:
    queue = AppendQueue(2 * SIZE, 5.0, lambda: None)
    tasks = [asyncio.ensure_future(put(queue, f"r{n}", [ROW], None)) for n in range(5)]
    served = []
    while len(served) < 5:
        await settled_in_loop()
        batch = queue.pop()
        assert len(batch) <= 2
        served += [waiting.run_id for waiting in batch]
        queue.acknowledge(batch, [1] * len(batch))
    assert served == ["r0", "r1", "r2", "r3", "r4"]
    assert await asyncio.gather(*tasks) == [1] * 5


async def test_full_queue_refuses_clearly_when_no_room_comes() -> None:
    queue = AppendQueue(SIZE, 0.05, lambda: None)
    first = asyncio.ensure_future(put(queue, "r", [ROW], None))
    await settled_in_loop()
    with pytest.raises(JournalError, match="did not keep up: 300 bytes wait"):
        await put(queue, "s", [ROW], None)
    batch = queue.pop()
    assert [waiting.run_id for waiting in batch] == ["r"]
    queue.acknowledge(batch, [7])
    assert await first == 7


async def test_an_append_larger_than_the_queue_gets_in_alone() -> None:
    queue = AppendQueue(SIZE, 1.0, lambda: None)
    task = asyncio.ensure_future(put(queue, "r", [ROW] * 10, None))
    await settled_in_loop()
    batch = queue.pop()
    assert len(batch) == 1
    queue.acknowledge(batch, [10])
    assert await task == 10


async def test_a_cancelled_append_is_written_still_and_harms_nobody() -> None:
    queue = AppendQueue(10**6, 1.0, lambda: None)
    task = asyncio.ensure_future(put(queue, "r", [ROW], None))
    await settled_in_loop()
    task.cancel()
    await settled_in_loop()
    batch = queue.pop()
    assert len(batch) == 1
    queue.acknowledge(batch, [1])
    await settled_in_loop()
    assert task.cancelled()
    assert queue.pending_bytes == 0


async def test_closed_queue_refuses_who_is_in_line_and_who_comes() -> None:
    queue = AppendQueue(SIZE, 5.0, lambda: None)
    first = asyncio.ensure_future(put(queue, "r", [prepare(RunStarted("t"))], None))
    in_line = asyncio.ensure_future(put(queue, "s", [ROW], None))
    await settled_in_loop()
    queue.close(UsageError("closed for the day"))
    with pytest.raises(UsageError, match="closed for the day"):
        await in_line
    with pytest.raises(UsageError, match="closed for the day"):
        await put(queue, "u", [ROW], None)
    batch = queue.pop()
    queue.acknowledge(batch, [1])
    assert await first == 1


async def test_an_outcome_is_told_without_a_task_and_in_order_though_there_is_no_room() -> None:
    told: list[int | Exception] = []
    queue = AppendQueue(2 * SIZE, 1.0, lambda: None)
    queue.submit("r", [ROW] * 2, None, told.append)
    queue.submit("s", [ROW], None, told.append)
    queue.acknowledge(queue.pop(), [2])
    await asyncio.sleep(0)
    assert told == [2]
    queue.acknowledge(queue.pop(), [1])
    await asyncio.sleep(0)
    assert told == [2, 1]


async def test_no_more_followers_take_at_once_than_an_event_loop_can_bear() -> None:
    taken = 0

    def push(records: Sequence[Record]) -> bool:
        nonlocal taken
        taken += 1
        return True

    async def nothing(run_id: str, after: int, limit: int, is_first: bool) -> Page:
        return Page([], False)

    followers = [Follower(nothing, "r", push=push) for _ in range(AT_ONCE + 2)]
    waiting = [asyncio.create_task(follower.wait()) for follower in followers]
    await asyncio.sleep(0)
    deliver((), [(follower, [Record("r", 1, 0.0, TextAppended("m", "x"))]) for follower in followers])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert taken == AT_ONCE
    assert [task.done() for task in waiting] == [False] * AT_ONCE + [True] * 2
    for task in waiting:
        task.cancel()
