"""One timer for many waits: rings in time, and costs one timer."""

from __future__ import annotations

import asyncio

import pytest

from callstream.waits import TimeLimit
from tests.clock import jumping


async def lasting(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


def now() -> float:
    return asyncio.get_running_loop().time()


@jumping
async def test_work_in_time_is_returned_and_sets_one_timer() -> None:
    limit = TimeLimit()
    assert await limit.hold(10, lasting(1)) == "done"
    timer = limit._alarm._timer
    assert timer is not None
    for _ in range(5):
        assert await limit.hold(10, lasting(1)) == "done"
    assert limit._alarm._timer is timer


@jumping
async def test_work_past_its_time_is_cancelled() -> None:
    limit = TimeLimit()
    began = now()
    with pytest.raises(TimeoutError):
        await limit.hold(10, lasting(60))
    assert now() - began == pytest.approx(10)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await limit.hold(10, lasting(1)) == "done"


@jumping
async def test_each_work_has_its_own_time() -> None:
    """Whether the timer of the one before is still set, or is set for later."""
    limit = TimeLimit()
    await limit.hold(10, lasting(4))
    began = now()
    with pytest.raises(TimeoutError):
        await limit.hold(10, lasting(60))
    assert now() - began == pytest.approx(10)
    await limit.hold(100, lasting(1))
    began = now()
    with pytest.raises(TimeoutError):
        await limit.hold(2, lasting(60))
    assert now() - began == pytest.approx(2)


@jumping
async def test_a_timer_that_finds_nothing_under_way_ends() -> None:
    limit = TimeLimit()
    await limit.hold(10, lasting(1))
    await asyncio.sleep(20)
    assert limit._alarm._timer is None
    with pytest.raises(TimeoutError):
        await limit.hold(10, lasting(60))


@jumping
async def test_what_somebody_else_cancels_is_cancelled() -> None:
    limit = TimeLimit()
    task = asyncio.create_task(limit.hold(10, lasting(60)))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@jumping
async def test_cancelled_and_late_is_cancelled() -> None:
    limit = TimeLimit()
    task = asyncio.create_task(limit.hold(10, lasting(60)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(now() + 10, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@jumping
async def test_the_works_own_error_is_its_own() -> None:
    async def failing() -> None:
        raise ValueError("broken")

    limit = TimeLimit()
    with pytest.raises(ValueError, match="broken"):
        await limit.hold(10, failing())


@jumping
async def test_work_that_ends_in_another_way_when_its_time_is_over_leaves_no_cancellation_behind() -> None:
    """As ``asyncio.wait_for`` does, if its result comes in the step in which it is cancelled."""

    async def returning() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "just come"
        return "late"

    async def failing() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("broken") from None

    limit = TimeLimit()
    assert await limit.hold(10, returning()) == "just come"
    with pytest.raises(ValueError, match="broken"):
        await limit.hold(10, failing())
    with pytest.raises(TimeoutError):
        await limit.hold(10, lasting(60))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
