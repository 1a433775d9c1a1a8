"""Journals that several processes share: SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import callstream
from callstream.calls import CallState
from callstream.errors import LeaseLost
from callstream.events import RunEnded, RunStarted, TextAppended

from .conftest import POSTGRES, Place

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.subprocess,
    pytest.mark.parametrize("place_url", ["sqlite", POSTGRES], indirect=True),
]
CHILD = str(Path(__file__).with_name("child.py"))


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    path = str(Path(callstream.__file__).parents[1])
    process = await asyncio.create_subprocess_exec(
        sys.executable, CHILD, *arguments, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def stopped(process: asyncio.subprocess.Process) -> None:
    """Waits until the signal has come to it."""
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(") ")[2][0] != "T":  # noqa: ASYNC110, ASYNC240  # the kernel sets no event
        await asyncio.sleep(0.001)


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()


async def test_follow_any_offset_of_a_run_in_another_process(place: Place) -> None:
    journal = place.journal()
    async with child("write", place.url, "r", "60") as writer:
        assert await said(writer) == "started"

        async def follow(after: int) -> list[int]:
            return [record.seq async for record in journal.follow("r", after)]

        async with asyncio.timeout(60):
            seen = await asyncio.gather(*(follow(after) for after in (0, 1, 2, 10, 40)))
        assert await writer.wait() == 0
    assert seen == [list(range(after + 1, 65)) for after in (0, 1, 2, 10, 40)]


async def test_follow_from_another_process_while_this_one_writes(place: Place) -> None:
    journal = place.journal()
    await journal.append("r", [RunStarted("thread")])
    async with child("follow", place.url, "r", "0") as follower:
        for number in range(1, 20):
            # The next record is written only after the other process has said that it saw the last.
            assert await said(follower) == str(number)
            await journal.append("r", [TextAppended("m", str(number))])
        await journal.append("r", [RunEnded("finished")])
        assert [await said(follower) for _ in range(2)] == ["20", "21"]
        assert await asyncio.wait_for(follower.wait(), 30) == 0


async def test_several_processes_write_at_once(place: Place) -> None:
    journal = place.journal()
    await journal.append("mine", [RunStarted("thread")])
    async with child("write", place.url, "a", "100") as a, child("write", place.url, "b", "100") as b:
        for number in range(100):
            await journal.append("mine", [TextAppended("m", str(number))])
        assert (await asyncio.wait_for(a.wait(), 60), await asyncio.wait_for(b.wait(), 60)) == (0, 0)
    assert {run.run_id: run.last_seq for run in await journal.runs()} == {"mine": 101, "a": 104, "b": 104}
    for run_id in ("a", "b"):
        call = await journal.call(f"call {run_id}")
        assert call is not None
        assert call.args_json == "".join(f"{number}," for number in range(100))


async def test_swept_by_state_after_a_kill(place: Place, eventually: Callable[..., Any]) -> None:
    journal = place.journal()
    await journal.open()
    async with child("hold", place.url, "r") as process:
        assert await said(process) == "holding"
        assert await journal.sweep() == []
        with pytest.raises(LeaseLost):
            await journal.append("r", [RunEnded("finished")])
        follower = asyncio.create_task(collect(journal.follow("r")))
        process.send_signal(signal.SIGKILL)
        await process.wait()

        async def swept() -> bool:
            return await journal.sweep() == ["r"]

        await eventually(swept, 30)
    assert [record.event for record in await follower][-1] == RunEnded("failed", "interrupted")
    calls = await journal.calls(run_id="r")
    assert [(call.call_id, call.state, call.reason) for call in calls] == [
        ("r a", CallState.DISCARDED, "interrupted"),
        ("r b", CallState.DISCARDED, "interrupted"),
    ]


async def test_zombie_fenced_after_a_pause(place: Place, eventually: Callable[..., Any]) -> None:
    """A process that is stopped and goes on later (a laptop's lid, a long pause) has lost its run for good."""
    journal = place.journal()
    await journal.open()
    async with child("go_on", place.url, "r") as process:
        assert await said(process) == "writing"
        process.send_signal(signal.SIGSTOP)

        async def swept() -> bool:
            return await journal.sweep() == ["r"]

        await eventually(swept, 30)
        ended = [record.seq async for record in journal.read("r")]
        process.send_signal(signal.SIGCONT)
        assert await said(process) == "LeaseLost"
    assert [record.seq async for record in journal.read("r")] == ended
    (run,) = await journal.runs()
    assert (run.outcome, run.reason) == ("failed", "interrupted")


async def collect(records: AsyncIterator[Any]) -> list[Any]:
    return [record async for record in records]


async def test_a_process_that_is_gone_is_not_waited_for(place: Place) -> None:
    journal = place.journal()
    async with child("keep", place.url, "r") as owner:
        assert await said(owner) == "holding"
        assert await journal.adopt({"app"}) == []
        owner.send_signal(signal.SIGKILL)
        await owner.wait()
        assert await journal.adopt({"app"}) == ["r"]  # its lease has an hour to go


async def test_a_process_that_works_keeps_its_run_though_its_lease_has_run_out(place: Place) -> None:
    if place.backend != "sqlite":
        pytest.skip("PostgreSQL has one clock for all")
    journal = place.journal()
    async with child("keep", place.url, "r") as owner:
        assert await said(owner) == "holding"
        await journal.open()
        import sqlite3

        with sqlite3.connect(place.url.removeprefix("sqlite:///")) as file:
            file.execute("UPDATE lease SET expires_at = 0 WHERE name LIKE 'writer:%'")  # as if the clock had been set
        assert await journal.adopt({"app"}) == []
        owner.send_signal(signal.SIGSTOP)
        await stopped(owner)
        assert await journal.adopt({"app"}) == ["r"]
