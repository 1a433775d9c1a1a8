"""The queue between any event loop and the journal's thread: bounded, fair to batches, clear when it is full."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import pytest

from callstream.errors import CallstreamError, JournalError, UsageError
from callstream.events import RunEnded, RunStarted, TextAppended
from callstream.journal.follow import Follower
from callstream.journal.queue import AT_ONCE, MAX_BATCH, ROW_OVERHEAD, RUNS_AT_ONCE, AppendQueue, deliver
from callstream.journal.rows import prepare

pytestmark = pytest.mark.asyncio
ROW = prepare(TextAppended("m", "x" * 100))
SIZE = ROW_OVERHEAD + 100


async def settled_in_loop() -> None:
    await asyncio.sleep(0.01)


async def test_queue_takes_everything_that_waits_at_once() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1))
    tasks = [asyncio.ensure_future(queue.put(f"r{n}", [ROW], None)) for n in range(5)]
    await settled_in_loop()
    assert wakes == [1]
    batch = queue.take()
    assert [waiting.run_id for waiting in batch] == ["r0", "r1", "r2", "r3", "r4"]
    assert queue.pending_bytes == 5 * SIZE
    error = UsageError("wrong")
    queue.settle(batch, [1, 2, error, 4, 5])
    assert await asyncio.gather(*tasks, return_exceptions=True) == [1, 2, error, 4, 5]
    assert queue.pending_bytes == 0


async def test_queue_makes_a_batch_of_bounded_size_but_never_splits_an_append() -> None:
    queue = AppendQueue(10**9, 1.0, lambda: None)
    sizes = [MAX_BATCH // 2, MAX_BATCH // 2, 1, MAX_BATCH * 2, 1]
    tasks = [asyncio.ensure_future(queue.put("r", [ROW] * size, None)) for size in sizes]
    await settled_in_loop()
    taken = []
    while batch := queue.take():
        taken.append([len(waiting.rows) for waiting in batch])
        queue.settle(batch, [0] * len(batch))
    assert taken == [[MAX_BATCH // 2, MAX_BATCH // 2], [1], [MAX_BATCH * 2], [1]]
    await asyncio.gather(*tasks)


async def test_full_queue_lets_appends_wait_until_there_is_room() -> None:
    queue = AppendQueue(2 * SIZE, 5.0, lambda: None)
    tasks = [asyncio.ensure_future(queue.put(f"r{n}", [ROW], None)) for n in range(5)]
    served = []
    while len(served) < 5:
        await settled_in_loop()
        batch = queue.take()
        assert len(batch) <= 2
        served += [waiting.run_id for waiting in batch]
        queue.settle(batch, [1] * len(batch))
    assert served == ["r0", "r1", "r2", "r3", "r4"]
    assert await asyncio.gather(*tasks) == [1] * 5


async def test_full_queue_refuses_clearly_when_no_room_comes() -> None:
    queue = AppendQueue(SIZE, 0.05, lambda: None)
    first = asyncio.ensure_future(queue.put("r", [ROW], None))
    await settled_in_loop()
    with pytest.raises(JournalError, match="did not keep up: 300 bytes wait"):
        await queue.put("s", [ROW], None)
    batch = queue.take()
    assert [waiting.run_id for waiting in batch] == ["r"]
    queue.settle(batch, [7])
    assert await first == 7


async def test_an_append_larger_than_the_queue_gets_in_alone() -> None:
    queue = AppendQueue(SIZE, 1.0, lambda: None)
    task = asyncio.ensure_future(queue.put("r", [ROW] * 10, None))
    await settled_in_loop()
    batch = queue.take()
    assert len(batch) == 1
    queue.settle(batch, [10])
    assert await task == 10


async def test_a_cancelled_append_is_written_still_and_harms_nobody() -> None:
    queue = AppendQueue(10**6, 1.0, lambda: None)
    task = asyncio.ensure_future(queue.put("r", [ROW], None))
    await settled_in_loop()
    task.cancel()
    await settled_in_loop()
    batch = queue.take()
    assert len(batch) == 1
    queue.settle(batch, [1])
    await settled_in_loop()
    assert task.cancelled()
    assert queue.pending_bytes == 0


async def test_closed_queue_refuses_who_is_in_line_and_who_comes() -> None:
    queue = AppendQueue(SIZE, 5.0, lambda: None)
    first = asyncio.ensure_future(queue.put("r", [prepare(RunStarted("t"))], None))
    in_line = asyncio.ensure_future(queue.put("s", [ROW], None))
    await settled_in_loop()
    queue.close(UsageError("closed for the day"))
    with pytest.raises(UsageError, match="closed for the day"):
        await in_line
    with pytest.raises(UsageError, match="closed for the day"):
        await queue.put("u", [ROW], None)
    batch = queue.take()
    queue.settle(batch, [1])
    assert await first == 1


async def test_a_run_that_appends_alone_never_waits_for_others() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    for number in range(1, 4):
        appending = asyncio.ensure_future(queue.put("r", [ROW], None))
        await asyncio.sleep(0)
        assert len(wakes) == number
        queue.settle(queue.take(), [number])
        assert await appending == number


async def test_appends_of_several_runs_gather_until_all_of_the_last_batch_are_back() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    queue.put("b", [ROW], None)
    queue.put("c", [ROW], None)
    assert wakes == [1]
    queue.put("a", [ROW], None)
    assert wakes == [1, 1]
    batch = queue.take()
    assert [waiting.run_id for waiting in batch] == ["b", "c", "a"]
    queue.settle(batch, [1, 1, 2])


async def test_nobody_waits_for_a_run_that_has_ended() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    for number in range(1, 4):
        queue.put(f"r{number}", [ROW, prepare(RunEnded("finished"))], None)
        assert len(wakes) == number
        queue.settle(queue.take(), [2])


async def test_many_appends_do_not_wait_for_more() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    for number in range(RUNS_AT_ONCE - 1):
        queue.put(f"r{number}", [ROW], None)
    assert wakes == [1]
    queue.put("last", [ROW], None)
    assert wakes == [1, 1]
    batch = queue.take()
    assert len(batch) == RUNS_AT_ONCE
    queue.settle(batch, [1] * len(batch))


async def test_what_gathers_is_ready_after_a_while_though_nobody_comes_back() -> None:
    woken = asyncio.Event()
    queue = AppendQueue(10**6, 1.0, woken.set, gather=0.01)
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    woken.clear()
    queue.put("b", [ROW], None)
    assert not woken.is_set()
    await asyncio.wait_for(woken.wait(), 5)
    assert [waiting.run_id for waiting in queue.take()] == ["b"]


async def test_an_outcome_is_told_without_a_task_unless_there_is_no_room() -> None:
    told: list[int | CallstreamError] = []
    queue = AppendQueue(3 * SIZE, 1.0, lambda: None)
    assert queue.put_now("r", [ROW] * 2, None, told.append)
    assert not queue.put_now("s", [ROW], None, told.append)
    queue.settle(queue.take(), [2])
    await asyncio.sleep(0)
    assert told == [2]


async def test_work_waits_until_a_batch_is_due_and_is_done_together() -> None:
    done: list[str] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    queue.when_due("b", lambda: done.append("b"))
    queue.when_due("c", lambda: done.append("c"))
    assert not done
    queue.when_due("a", lambda: done.append("a"))
    assert done == ["b", "c", "a"]


async def gathered(queue: AppendQueue, work: Callable[[int], object], runs: int) -> None:
    """Lets so many runs wait for their turn, and has the turn come."""
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    await asyncio.sleep(0)
    for number in range(runs - 1):
        queue.when_due(f"r{number}", partial(work, number))
    queue.when_due("a", partial(work, runs - 1))


async def test_runs_work_some_at_a_time_and_the_next_when_these_are_shown() -> None:
    written: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)

    def work(number: int) -> None:
        assert queue.put_now(f"r{number}", [ROW], None, lambda outcome: written.append(number))

    runs = 2 * RUNS_AT_ONCE + 1
    await gathered(queue, work, runs)
    sizes = []
    while batch := queue.take():
        sizes.append(len(batch))
        await settled_in_loop()
        assert len(queue) == 0  # nobody works before these are shown
        queue.settle(batch, [1] * len(batch))
        await settled_in_loop()
    assert sizes == [RUNS_AT_ONCE, RUNS_AT_ONCE, 1]
    assert written == list(range(runs))


async def test_runs_work_on_though_the_first_have_nothing_to_write() -> None:
    done: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)
    await gathered(queue, done.append, RUNS_AT_ONCE + 1)
    assert done == list(range(RUNS_AT_ONCE))
    await settled_in_loop()
    assert done == list(range(RUNS_AT_ONCE + 1))


async def test_runs_work_on_when_what_another_loop_wrote_is_settled() -> None:
    done: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)

    async def append() -> None:
        assert queue.put_now("other", [ROW], None, lambda outcome: None)

    await asyncio.to_thread(asyncio.run, append())
    batch = queue.take()
    for number in range(RUNS_AT_ONCE):
        queue.when_due(f"r{number}", partial(done.append, number))
    queue.when_due("other", partial(done.append, RUNS_AT_ONCE))  # all of the batch are back
    assert len(done) == RUNS_AT_ONCE
    await settled_in_loop()
    assert len(done) == RUNS_AT_ONCE
    queue.settle(batch, [1] * len(batch))
    await settled_in_loop()
    assert done == list(range(RUNS_AT_ONCE + 1))


async def test_what_comes_while_others_work_has_a_turn_of_its_own() -> None:
    done: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=0.001)
    last = asyncio.Event()

    def work(number: int) -> None:
        done.append(number)
        if number == 0:
            queue.when_due("late", last.set)

    await gathered(queue, work, RUNS_AT_ONCE + 1)
    await asyncio.wait_for(last.wait(), 5)
    assert done == list(range(RUNS_AT_ONCE + 1))


async def test_work_that_fails_does_not_keep_others_from_being_written() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)

    def fail() -> None:
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="a fault of ours"):
        queue.when_due("a", fail)
    queue.put("b", [ROW], None)
    assert wakes == [1]
    queue.settle(queue.take(), [1])


async def test_work_of_a_run_that_writes_alone_is_done_at_once() -> None:
    done: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)
    for number in range(3):
        queue.when_due("a", partial(done.append, number))
        assert done[-1] == number
        queue.put("a", [ROW], None)
        queue.settle(queue.take(), [number])


async def test_work_is_done_after_a_while_and_what_it_brings_is_written_at_once() -> None:
    woken = asyncio.Event()
    queue = AppendQueue(10**6, 1.0, woken.set, gather=0.01)
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    woken.clear()
    queue.when_due("b", partial(queue.put, "b", [ROW], None))
    queue.put("c", [ROW], None)
    assert not woken.is_set()
    await asyncio.wait_for(woken.wait(), 5)
    assert [waiting.run_id for waiting in queue.take()] == ["c", "b"]


async def test_a_timer_of_an_earlier_batch_does_not_hurry_the_next_one() -> None:
    done: list[str] = []
    last = asyncio.Event()
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=0.02)
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    queue.when_due("b", lambda: done.append("b"))  # sets the timer
    queue.when_due("a", lambda: done.append("a"))  # all are back, so it was for nothing
    assert done == ["b", "a"]
    await asyncio.sleep(0.01)
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    began = time.monotonic()
    queue.when_due("b", last.set)
    await asyncio.wait_for(last.wait(), 5)
    assert time.monotonic() - began >= 0.018


async def test_no_more_followers_take_at_once_than_an_event_loop_can_bear() -> None:
    taken = 0

    def offer() -> bool:
        nonlocal taken
        taken += 1
        return True

    followers = [Follower("r") for _ in range(AT_ONCE + 2)]
    waiting = [asyncio.create_task(follower.wait()) for follower in followers]
    for follower in followers:
        follower.offer = offer
    await asyncio.sleep(0)
    deliver((), [(follower, 1) for follower in followers])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert taken == AT_ONCE
    assert [task.done() for task in waiting] == [False] * AT_ONCE + [True] * 2
    for task in waiting:
        task.cancel()


async def test_a_busy_loop_lets_more_gather() -> None:
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=0.001)
    queue.put("a", [ROW], None)
    queue.settle(queue.take(), [1])
    worked, last = asyncio.Event(), asyncio.Event()

    def work() -> None:
        time.sleep(0.015)
        worked.set()

    queue.when_due("b", work)
    await asyncio.wait_for(worked.wait(), 5)
    queue.put("b", [ROW], None)
    queue.settle(queue.take(), [1])
    began = time.monotonic()
    queue.when_due("c", last.set)
    await asyncio.wait_for(last.wait(), 5)
    assert time.monotonic() - began >= 0.028  # twice as long as the work
