"""A flag that one task at a time waits for."""

from __future__ import annotations

import asyncio

import pytest

from callstream.waits import Flag


async def waiting(flag: Flag) -> asyncio.Task[None]:
    """A task that waits for the flag."""
    task = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_flag_that_is_set_is_not_waited_for() -> None:
    flag = Flag()
    assert not flag.is_set()
    flag.set()
    flag.set()
    assert flag.is_set()
    await flag.wait()
    flag.clear()
    assert not flag.is_set()
    (await waiting(flag)).cancel()


async def test_setting_wakes_who_waits_also_if_it_is_cleared_at_once() -> None:
    flag = Flag()
    for _ in range(2):
        task = await waiting(flag)
        flag.set()
        flag.set()
        flag.clear()
        await task
        assert not flag.is_set()


async def test_a_waiter_that_is_cancelled_leaves_room_for_the_next() -> None:
    flag = Flag()
    task = await waiting(flag)
    task.cancel()
    flag.set()  # of no use to one that is being cancelled
    flag.clear()
    with pytest.raises(asyncio.CancelledError):
        await task
    task = await waiting(flag)
    flag.set()
    await task


async def test_one_that_was_woken_does_not_keep_the_next_from_waiting() -> None:
    flag = Flag()
    first = await waiting(flag)
    flag.set()
    flag.clear()
    second = asyncio.ensure_future(flag.wait())
    await first
    await asyncio.sleep(0)
    assert not second.done()
    flag.set()
    await second


async def test_a_second_waiter_is_refused() -> None:
    flag = Flag()
    task = await waiting(flag)
    with pytest.raises(RuntimeError, match="another task waits"):
        await flag.wait()
    flag.set()
    await task
