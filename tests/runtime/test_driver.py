"""The driver of runs: turns, limits, watchers, repeated requests, stops and the end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream
from callstream.errors import JournalError, ShuttingDown, ThreadBusy, TooMany
from callstream.events import InputKept, RunStarted
from callstream.runtime import Driver, DriverSettings, Limit, Run, RunRequest, StartedRun
from tests.gated import PATIENCE
from tests.submitting import replace_append

Work = Callable[[Run], Awaitable[None]]


def starting(cs: Callstream, work: Work, thread: str = "t", **options: Any) -> Callable[[], Awaitable[StartedRun]]:
    async def start() -> StartedRun:
        run = await cs.start(thread, options.pop("run_id", None), as_current=False, **options)

        async def worked() -> None:
            async with run:
                await work(run)

        return StartedRun(run, worked)

    return start


async def ended(driver: Driver) -> None:
    while len(driver):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def nothing(run: Run) -> None:
    pass


async def for_ever(run: Run) -> None:
    await asyncio.Event().wait()


async def outcome(cs: Callstream, run_id: str) -> tuple[str | None, str | None]:
    (row,) = await cs.journal.runs(run_id=run_id)
    return row.outcome, row.reason


async def test_runs_of_one_turn_wait_for_each_other_s_work_in_order(cs: Callstream) -> None:
    driver, log, gate = Driver(cs.engine, DriverSettings()), list[str](), asyncio.Event()

    async def work(name: str, run: Run) -> None:
        log.append(f"{name} began")
        if name == "first":
            await gate.wait()
        elif name == "other":
            gate.set()  # its turn is another one, so it need not wait
        log.append(f"{name} ended")

    begin = partial(driver.begin, turn="thread")
    await begin(starting(cs, partial(work, "first")))
    waiting = [asyncio.create_task(begin(starting(cs, partial(work, name)))) for name in ("second", "third")]
    await driver.begin(starting(cs, partial(work, "other")), turn="another")
    await asyncio.gather(*waiting)
    await ended(driver)
    assert [line for line in log if "other" not in line] == [
        f"{name} {what}" for name in ("first", "second", "third") for what in ("began", "ended")
    ]


async def test_thread_with_an_exclusive_run_is_busy(cs: Callstream) -> None:
    driver = Driver(cs.engine, DriverSettings())
    await driver.begin(starting(cs, for_ever, exclusive=True))
    with pytest.raises(ThreadBusy):
        await driver.begin(starting(cs, nothing, exclusive=True))
    assert len(driver) == 1
    await driver.aclose()


async def test_run_waits_for_another_driver_s(cs: Callstream) -> None:
    gate = asyncio.Event()

    async def work(run: Run) -> None:
        await gate.wait()

    first, second = Driver(cs.engine, DriverSettings()), Driver(cs.engine, DriverSettings(busy_wait=30))
    await first.begin(starting(cs, work, exclusive=True))
    busy = asyncio.Event()

    async def check() -> None:
        busy.set()

    waiting = asyncio.create_task(second.begin(starting(cs, nothing, exclusive=True), check=check))
    await busy.wait()
    gate.set()
    run_id = await waiting
    await ended(second)
    assert await outcome(cs, run_id) == ("finished", None)


async def test_limits_in_all_and_of_one_principal(cs: Callstream) -> None:
    limit = Limit(2, 1)
    driver, other = Driver(cs.engine, DriverSettings(), limit), Driver(cs.engine, DriverSettings(), limit)
    await driver.begin(starting(cs, for_ever, "a"), principal="ann")
    with pytest.raises(TooMany, match="1 already of this principal") as of_one:
        await driver.begin(starting(cs, nothing, "b"), principal="ann")
    assert of_one.value.of_one
    await other.begin(starting(cs, for_ever, "c"), principal="bob")
    with pytest.raises(TooMany, match="2 already") as in_all:
        await driver.begin(starting(cs, nothing, "d"), principal="cid")
    assert not in_all.value.of_one
    await other.aclose()
    await driver.begin(starting(cs, nothing, "d"), principal="cid")
    await driver.aclose()


async def test_a_request_that_is_sent_again_begins_one_run(cs: Callstream) -> None:
    driver, request = Driver(cs.engine, DriverSettings()), RunRequest("t", "r", "digest")
    start = partial(starting, cs, nothing, run_input={"digest": "digest"})
    both = await asyncio.gather(*(driver.begin(start(run_id="r"), request=request) for _ in range(2)))
    assert both == ["r", "r"]
    await ended(driver)
    assert await Driver(cs.engine, DriverSettings()).begin(start(run_id="r"), request=request) == "r"
    assert [row.run_id for row in await cs.journal.runs()] == ["r"]


async def test_who_is_refused_after_the_start_has_no_run(cs: Callstream) -> None:
    async def check() -> None:
        raise PermissionError

    driver = Driver(cs.engine, DriverSettings())
    with pytest.raises(PermissionError):
        await driver.begin(starting(cs, for_ever, run_id="r"), check=check)
    assert await outcome(cs, "r") == ("cancelled", "refused")
    assert not len(driver)


async def test_the_last_watcher_who_leaves_waits_for_the_stop(cs: Callstream) -> None:
    driver = Driver(cs.engine, DriverSettings(leave_seconds=0, leave_reason="closed"))
    run_id = await driver.begin(starting(cs, for_ever))
    async with driver.watch(run_id):
        async with driver.watch(run_id) as task:
            assert task is not None
        assert not task.done()
    assert task.done()
    assert await outcome(cs, run_id) == ("cancelled", "closed")
    async with driver.watch(run_id) as task:
        assert task is None


async def test_a_stop_that_another_process_was_asked_for_is_noticed(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callstream.runtime.driver.STOP_POLL_SECONDS", 0.01)
    driver = Driver(cs.engine, DriverSettings())
    run_id = await driver.begin(starting(cs, for_ever))
    await cs.journal.ask_to_stop(run_id, "enough")
    await ended(driver)
    assert await outcome(cs, run_id) == ("cancelled", "enough")


async def test_a_run_that_takes_too_long_fails_and_its_work_is_cancelled(cs: Callstream) -> None:
    driver = Driver(cs.engine, DriverSettings(run_seconds=0.01))
    run_id = await driver.begin(starting(cs, for_ever))
    async with driver.watch(run_id) as task:
        await ended(driver)
    assert task is not None
    assert task.cancelled()
    assert await outcome(cs, run_id) == ("failed", "TimeoutError: the run took longer than 0.01 s")


async def test_work_is_cancelled_though_the_journal_does_not_take_the_stop(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*args: Any, **options: Any) -> int:
        raise JournalError("the disk is full")

    driver = Driver(cs.engine, DriverSettings())
    run_id = await driver.begin(starting(cs, for_ever))
    await asyncio.sleep(0)
    with monkeypatch.context() as away:
        replace_append(away, cs.journal, refuse)
        with pytest.raises(JournalError, match="the disk is full"):
            await driver.stop(run_id, "enough")
        await ended(driver)


async def test_failures_are_logged(cs: Callstream, caplog: pytest.LogCaptureFixture) -> None:
    async def work(run: Run) -> None:
        raise RuntimeError("all is lost")

    for logs_failures in (True, False):
        caplog.clear()
        driver = Driver(cs.engine, DriverSettings(logs_failures=logs_failures))
        await driver.begin(starting(cs, work))
        await ended(driver)
        assert ("all is lost" in caplog.text) is logs_failures


async def test_what_a_stop_breaks_is_neither_logged_nor_left_unseen(
    cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(run: Run) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("interrupted")

    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    driver = Driver(cs.engine, DriverSettings())
    run_id = await driver.begin(starting(cs, work))
    await asyncio.sleep(0)
    await driver.stop(run_id, "enough")
    await ended(driver)
    gc.collect()
    await asyncio.sleep(0)
    assert unseen == []
    assert "interrupted" not in caplog.text
    assert await outcome(cs, run_id) == ("cancelled", "enough")


async def test_a_driver_that_is_drained_takes_no_run(cs: Callstream) -> None:
    driver = Driver(cs.engine, DriverSettings())
    async with AsyncExitStack() as stack:
        run_id = await driver.begin(starting(cs, for_ever))
        await stack.enter_async_context(driver.watch(run_id))
        draining = asyncio.create_task(driver.aclose())
        await ended(driver)
    await draining
    assert await outcome(cs, run_id) == ("cancelled", "the server shut down")
    with pytest.raises(ShuttingDown):
        await driver.begin(starting(cs, nothing))


async def test_who_watches_a_run_that_was_left_is_not_waited_for(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing follows, so there is no last word."""
    monkeypatch.setattr("callstream.runtime.driver._LAST_WORD_SECONDS", 10 * PATIENCE)

    async def start() -> StartedRun:
        run = await Run.start(cs.engine, RunStarted("t"), "r", kept=InputKept("app", ""), as_current=False)
        return StartedRun(run, asyncio.Event().wait)

    driver = Driver(cs.engine, DriverSettings())
    run_id = await driver.begin(start)
    async with driver.watch(run_id):
        await asyncio.wait_for(driver.aclose(), PATIENCE)
    assert await outcome(cs, run_id) == (None, None)


async def test_who_does_not_read_the_end_of_a_run_is_waited_for_once(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callstream.runtime.driver._LAST_WORD_SECONDS", 0.1)
    driver = Driver(cs.engine, DriverSettings())
    run_id = await driver.begin(starting(cs, for_ever))
    async with driver.watch(run_id):
        await driver.drain()
        monkeypatch.setattr("callstream.runtime.driver._LAST_WORD_SECONDS", 10 * PATIENCE)
        await asyncio.wait_for(driver.aclose(), PATIENCE)
    assert await outcome(cs, run_id) == ("cancelled", "the server shut down")


async def test_error_of_work_that_was_stopped_is_no_stray(cs: Callstream) -> None:
    """An agent that answers its cancellation with an error: the event loop must have nothing to complain about."""
    stray: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(context["message"]))

    async def work(run: Run) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("aborted by the client") from None

    driver = Driver(cs.engine, DriverSettings())
    run_id = await driver.begin(starting(cs, work))
    await asyncio.sleep(0)
    await driver.stop(run_id, "enough")
    await ended(driver)
    gc.collect()
    assert stray == []
    assert await outcome(cs, run_id) == ("cancelled", "enough")


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_run_id_that_another_process_was_faster_to_begin_gets_a_number(tmp_path: Path, has_ended: bool) -> None:
    """Also if the other run is over when this one is about to begin, and where no run waits for a busy thread."""
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    async with Callstream(url) as cs, Callstream(url) as other:
        driver, found = Driver(cs.engine, DriverSettings(busy_wait=0.0)), list[str]()

        async def start() -> StartedRun:
            run_id = await cs.free_run_id("run")
            if not found:
                theirs = await other.start("theirs", "run", as_current=False)
                if has_ended:
                    async with theirs:
                        pass
            found.append(run_id)
            return await starting(cs, nothing, run_id=run_id)()

        assert await driver.begin(start) == "run~2"
        await ended(driver)
        assert found == ["run", "run~2"]
        assert await outcome(cs, "run~2") == ("finished", None)
