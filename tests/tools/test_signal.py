"""Progress, and the signal that hooks and tools look at."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any

from callstream.tools import AbortSignal, Progress, no_progress


async def test_progress_reports_when_called_awaited_or_not() -> None:
    reports: list[Any] = []
    progress = Progress(reports.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        progress(1)
        await progress(2, 10)
        await progress(done=3, total=10, message="three")
        progress({"any": ["JSON"]})
        progress("text")
        progress(message="only a word")
        progress(True)
        assert no_progress(4) is not None
        await no_progress(5)
    assert reports == [
        {"done": 1, "total": None, "message": None},
        {"done": 2, "total": 10, "message": None},
        {"done": 3, "total": 10, "message": "three"},
        {"any": ["JSON"]},
        "text",
        {"done": None, "total": None, "message": "only a word"},
        True,
    ]
    assert repr(no_progress) == "no_progress"


async def test_progress_awaited_lets_others_run() -> None:
    order: list[str] = []

    async def other() -> None:
        order.append("other")

    task = asyncio.create_task(other())
    await no_progress(1)
    order.append("tool")
    await task
    assert order == ["other", "tool"]


async def test_signal_is_set_once_and_wakes_who_waits() -> None:
    signal = AbortSignal()
    assert (signal.aborted, signal.reason) == (False, None)
    waiting = [asyncio.create_task(signal.wait()) for _ in range(2)]
    gone = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    assert len(signal._waiting) == 2
    assert signal.abort("stopped")
    assert not signal.abort("again")
    assert await asyncio.gather(*waiting) == ["stopped", "stopped"]
    assert await signal.wait() == "stopped"
    assert (signal.aborted, signal.reason) == (True, "stopped")
    assert repr(signal) == "AbortSignal(reason='stopped')"


def test_signal_crosses_threads_and_loops() -> None:
    signal = AbortSignal()
    ready = threading.Barrier(3)
    heard: list[str] = []

    def listen() -> None:
        async def main() -> None:
            waiting = asyncio.create_task(signal.wait())
            await asyncio.sleep(0)
            await asyncio.to_thread(ready.wait, 10)
            heard.append(await asyncio.wait_for(waiting, 10))

        asyncio.run(main())

    threads = [threading.Thread(target=listen) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(10)
    signal.abort("everywhere")
    for thread in threads:
        thread.join(10)
    assert heard == ["everywhere", "everywhere"]


def test_signal_ignores_a_loop_that_is_closed() -> None:
    signal = AbortSignal()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(signal.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert signal.abort("late")
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # it is left pending on purpose
