"""How appends of several runs gather: who waits for whom, who does not, and when the journal's thread is woken."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from callstream.events import RunEnded, RunStarted, TextAppended
from callstream.journal.queue import RUNS_AT_ONCE, AppendQueue
from callstream.journal.rows import prepare
from tests.journal.putting import put

pytestmark = pytest.mark.asyncio
ROW = prepare(TextAppended("m", "x" * 100))


def write(queue: AppendQueue, outcomes: Sequence[int]) -> None:
    """What the journal's thread does when it is woken, until it sleeps."""
    queue.acknowledge(queue.pop(), outcomes)
    assert queue.may_sleep()


async def settled_in_loop() -> None:
    await asyncio.sleep(0.01)


async def test_a_run_that_appends_alone_never_waits_for_others() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    for number in range(1, 4):
        appending = asyncio.ensure_future(put(queue, "r", [ROW], None))
        await asyncio.sleep(0)
        assert len(wakes) == number
        write(queue, [number])
        assert await appending == number


async def test_appends_of_several_runs_gather_until_all_of_the_last_batch_are_back() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    put(queue, "a", [ROW], None)
    write(queue, [1])
    put(queue, "b", [ROW], None)
    put(queue, "c", [ROW], None)
    assert wakes == [1]
    put(queue, "a", [ROW], None)
    assert wakes == [1, 1]
    batch = queue.pop()
    assert [waiting.run_id for waiting in batch] == ["b", "c", "a"]
    queue.acknowledge(batch, [1, 1, 2])


async def test_nobody_waits_for_a_run_that_has_ended() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    for number in range(1, 4):
        put(queue, f"r{number}", [ROW, prepare(RunEnded("finished"))], None)
        assert len(wakes) == number
        write(queue, [2])


async def test_nobody_waits_for_a_run_that_has_just_started() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    for number in range(1, 4):
        put(queue, f"r{number}", [prepare(RunStarted("t"))], None)
        assert len(wakes) == number
        write(queue, [2])


async def test_a_thread_that_will_look_again_is_not_woken() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    put(queue, "a", [ROW], None)
    batch = queue.pop()
    put(queue, "a", [ROW], None)
    queue.acknowledge(batch, [1])
    assert wakes == [1]
    assert not queue.may_sleep()
    write(queue, [2])
    put(queue, "a", [ROW], None)
    assert wakes == [1, 1]
    write(queue, [3])


async def test_a_loop_that_is_closed_is_forgotten() -> None:
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def gather() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        queue.submit("a", [ROW], None, lambda outcome: None)
        write(queue, [1])
        queue.schedule("b", lambda: None)

    await asyncio.to_thread(asyncio.run, gather())
    put(queue, "c", [ROW], None)
    write(queue, [1])  # what was taken last is held until then
    gc.collect()
    assert loops[0]() is None


async def test_many_appends_do_not_wait_for_more() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)
    put(queue, "a", [ROW], None)
    write(queue, [1])
    for number in range(RUNS_AT_ONCE - 1):
        put(queue, f"r{number}", [ROW], None)
    assert wakes == [1]
    put(queue, "last", [ROW], None)
    assert wakes == [1, 1]
    batch = queue.pop()
    assert len(batch) == RUNS_AT_ONCE
    queue.acknowledge(batch, [1] * len(batch))


async def test_what_gathers_is_ready_after_a_while_though_nobody_comes_back() -> None:
    woken = asyncio.Event()
    queue = AppendQueue(10**6, 1.0, woken.set, gather=0.5)
    put(queue, "a", [ROW], None)
    write(queue, [1])
    woken.clear()
    put(queue, "b", [ROW], None)
    assert not woken.is_set()
    await asyncio.wait_for(woken.wait(), 5)
    assert [waiting.run_id for waiting in queue.pop()] == ["b"]


async def test_work_waits_until_a_batch_is_due_and_is_done_together() -> None:
    done: list[str] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)
    put(queue, "a", [ROW], None)
    write(queue, [1])
    queue.schedule("b", lambda: done.append("b"))
    queue.schedule("c", lambda: done.append("c"))
    assert not done
    queue.schedule("a", lambda: done.append("a"))
    await asyncio.sleep(0)
    assert done == ["b", "c", "a"]


async def gathered(queue: AppendQueue, work: Callable[[int], object], runs: int) -> None:
    """Lets so many runs wait for their turn, and has the turn come."""
    put(queue, "a", [ROW], None)
    write(queue, [1])
    await asyncio.sleep(0)
    for number in range(runs - 1):
        queue.schedule(f"r{number}", partial(work, number))
    queue.schedule("a", partial(work, runs - 1))
    await asyncio.sleep(0)


async def test_runs_work_some_at_a_time_and_the_next_when_these_are_shown() -> None:
    written: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)

    def work(number: int) -> None:
        queue.submit(f"r{number}", [ROW], None, lambda outcome: written.append(number))

    runs = 2 * RUNS_AT_ONCE + 1
    await gathered(queue, work, runs)
    sizes = []
    while batch := queue.pop():
        sizes.append(len(batch))
        await settled_in_loop()
        assert len(queue) == 0  # nobody works before these are shown
        queue.acknowledge(batch, [1] * len(batch))
        await settled_in_loop()
    assert sizes == [RUNS_AT_ONCE, RUNS_AT_ONCE, 1]
    assert written == list(range(runs))


async def test_what_comes_after_the_last_step_waits_for_the_next_batch() -> None:
    done: list[str] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)

    def work(name: str) -> None:
        done.append(name)
        queue.submit(name, [ROW], None, lambda outcome: None)

    await gathered(queue, lambda number: work(f"r{number}"), RUNS_AT_ONCE + 1)
    queue.schedule("between", partial(work, "between"))
    for size in (RUNS_AT_ONCE, 2):
        batch = queue.pop()
        assert len(batch) == size
        queue.acknowledge(batch, [1] * size)
        await settled_in_loop()
    assert done[-1] == "between"
    queue.schedule("after", partial(work, "after"))
    await settled_in_loop()
    assert done[-1] == "between"
    put(queue, "other", [ROW], None)
    queue.acknowledge(queue.pop(), [1])
    await settled_in_loop()
    assert done[-1] == "between"


async def test_a_whole_step_that_gathered_while_others_worked_does_not_wait_for_more() -> None:
    done: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)

    def work(number: int) -> None:
        done.append(number)
        queue.submit(f"r{number}", [ROW], None, lambda outcome: None)
        if number == 0:
            for late in range(2, 2 + RUNS_AT_ONCE):
                queue.schedule(f"r{late}", partial(work, late))

    await gathered(queue, work, 2)
    assert done == [0, 1]
    queue.acknowledge(queue.pop(), [1, 1])
    await settled_in_loop()
    assert done == list(range(2 + RUNS_AT_ONCE))


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
        queue.submit("other", [ROW], None, lambda outcome: None)

    await asyncio.to_thread(asyncio.run, append())
    batch = queue.pop()
    for number in range(RUNS_AT_ONCE):
        queue.schedule(f"r{number}", partial(done.append, number))
    queue.schedule("other", partial(done.append, RUNS_AT_ONCE))  # all of the batch are back
    await asyncio.sleep(0)
    assert len(done) == RUNS_AT_ONCE
    await settled_in_loop()
    assert len(done) == RUNS_AT_ONCE
    queue.acknowledge(batch, [1] * len(batch))
    await settled_in_loop()
    assert done == list(range(RUNS_AT_ONCE + 1))


async def test_what_comes_while_others_work_has_a_turn_of_its_own() -> None:
    done: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=0.001)
    last = asyncio.Event()

    def work(number: int) -> None:
        done.append(number)
        if number == 0:
            queue.schedule("late", last.set)

    await gathered(queue, work, RUNS_AT_ONCE + 1)
    await asyncio.wait_for(last.wait(), 5)
    assert done == list(range(RUNS_AT_ONCE + 1))


async def test_work_that_fails_does_not_keep_others_from_being_written() -> None:
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1), gather=60.0)

    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))

    def fail() -> None:
        raise ValueError("a fault of ours")

    queue.schedule("a", fail)
    await asyncio.sleep(0)
    assert [str(fault) for fault in faults] == ["a fault of ours"]
    put(queue, "b", [ROW], None)
    assert wakes == [1]
    write(queue, [1])


async def test_what_runs_bring_in_one_step_of_the_loop_is_one_batch() -> None:
    """Though nothing gathers."""
    wakes: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: wakes.append(1))
    for number in range(3):
        run_id = f"r{number}"
        queue.schedule(run_id, partial(queue.submit, run_id, [ROW], None, lambda outcome: None))
    await asyncio.sleep(0)
    assert wakes == [1]
    assert [waiting.run_id for waiting in queue.pop()] == ["r0", "r1", "r2"]


async def test_work_of_a_run_that_writes_alone_is_done_at_once() -> None:
    done: list[int] = []
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=60.0)
    for number in range(3):
        queue.schedule("a", partial(done.append, number))
        await asyncio.sleep(0)
        assert done[-1] == number
        put(queue, "a", [ROW], None)
        write(queue, [number])


async def test_work_is_done_after_a_while_and_what_it_brings_is_written_at_once() -> None:
    woken = asyncio.Event()
    queue = AppendQueue(10**6, 1.0, woken.set, gather=0.01)
    put(queue, "a", [ROW], None)
    write(queue, [1])
    woken.clear()
    queue.schedule("b", partial(put, queue, "b", [ROW], None))
    put(queue, "c", [ROW], None)
    assert not woken.is_set()
    await asyncio.wait_for(woken.wait(), 5)
    assert [waiting.run_id for waiting in queue.pop()] == ["c", "b"]


async def test_a_timer_of_an_earlier_batch_does_not_hurry_the_next_one() -> None:
    done: list[str] = []
    last = asyncio.Event()
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=0.02)
    put(queue, "a", [ROW], None)
    write(queue, [1])
    queue.schedule("b", lambda: done.append("b"))  # sets the timer
    queue.schedule("a", lambda: done.append("a"))  # all are back, so it was for nothing
    await asyncio.sleep(0)
    assert done == ["b", "a"]
    await asyncio.sleep(0.01)
    put(queue, "a", [ROW], None)
    began = time.monotonic()
    write(queue, [1])
    queue.schedule("b", last.set)
    await asyncio.wait_for(last.wait(), 5)
    assert time.monotonic() - began >= 0.018


async def test_a_busy_loop_lets_more_gather() -> None:
    queue = AppendQueue(10**6, 1.0, lambda: None, gather=0.001)
    put(queue, "a", [ROW], None)
    write(queue, [1])
    worked, last = asyncio.Event(), asyncio.Event()

    def work() -> None:
        time.sleep(0.015)
        worked.set()

    queue.schedule("b", work)
    await asyncio.wait_for(worked.wait(), 5)
    put(queue, "b", [ROW], None)
    began = time.monotonic()
    write(queue, [1])
    queue.schedule("c", last.set)
    await asyncio.wait_for(last.wait(), 5)
    assert time.monotonic() - began >= 0.028  # twice as long as the work
