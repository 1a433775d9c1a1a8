"""Runs whose journal fails them: every run ends all the same, and whoever waits is told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from callstream import CallState, Callstream, current_run
from callstream.errors import JournalError, LeaseLost
from callstream.events import CallAwaiting, CallCompleted, CallExecuting, CallStarted, RunStarted
from callstream.journal import RunRow, open_journal
from tests.journal.conftest import sqlite_url
from tests.journal.zombie import zombie
from tests.submitting import replace_append


async def ended(cs: Callstream, run_id: str) -> RunRow:
    """The run as the journal has it when it has ended."""
    async with asyncio.timeout(10):
        while (row := (await cs.journal.runs(run_id=run_id))[0]).outcome is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return row


class Losing:
    """Has an append written, and its acknowledgement lost for good."""

    def __init__(self, append: Callable[..., Awaitable[int]]) -> None:
        self._append = append
        self.lose = True

    async def __call__(self, run_id: str, events: Any, **settings: Any) -> int:
        last_seq = await self._append(run_id, events, **settings)
        if self.lose:
            self.lose = False
            raise JournalError("away for long; whether this append is written is not known")
        return last_seq


async def test_every_run_ends_when_the_journal_takes_its_end_again(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    journal = open_journal(sqlite_url(path), retry_seconds=0.1, housekeeping=None)
    async with Callstream(journal) as cs:
        run = await cs.start("thread", exclusive=True)
        await run.record([CallStarted("c", "t"), CallCompleted("c", "{}"), CallExecuting("c")])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(JournalError):
                await run.finish()
            assert current_run() is None
            assert cs.active_run(run.run_id) is None
            other.execute("ROLLBACK")
        row = await ended(cs, run.run_id)
        assert (row.outcome, row.last_seq) == ("finished", 6)
        call = await journal.call("c")
        assert call is not None
        assert call.state is CallState.FAILED
        next_run = await cs.start("thread", exclusive=True)
        await next_run.finish()


async def test_every_run_ends_when_the_journal_is_back_at_the_last_moment(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    cs = Callstream(open_journal(sqlite_url(path), retry_seconds=0.1, housekeeping=None))
    run = await cs.start("thread")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError):
            await run.stop("enough")
        other.execute("ROLLBACK")
    await cs.aclose()
    async with open_journal(sqlite_url(path), housekeeping=None) as journal:
        (row,) = await journal.runs()
    assert (row.outcome, row.reason) == ("cancelled", "enough")


async def test_every_run_ends_of_which_the_journal_has_more_than_it_acknowledged(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cs.journal.append(
        "asks", [RunStarted("thread"), CallStarted("a", "t"), CallCompleted("a", "{}"), CallAwaiting("a")]
    )
    run = await cs.start("thread", "r")
    await run.record([CallStarted("c", "t"), CallCompleted("c", "{}")])
    await run.resume("a")
    await run.record([CallExecuting("a")])
    replace_append(monkeypatch, cs.journal, Losing(cs.journal.append))
    with pytest.raises(JournalError, match="not known") as lost:
        await run.execute("c")
    await run.end(lost.value)
    assert run.outcome == "failed"
    row = await ended(cs, "r")
    assert (row.outcome, row.last_seq) == ("failed", 8)
    for call_id in ("a", "c"):
        call = await cs.journal.call(call_id)
        assert call is not None
        assert (call.state, call.error) == (CallState.FAILED, "interrupted")


async def test_every_run_ends_that_may_have_been_started(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_append(monkeypatch, cs.journal, Losing(cs.journal.append))
    with pytest.raises(JournalError, match="not known"):
        await cs.start("thread", "r", exclusive=True)
    assert (await ended(cs, "r")).outcome == "failed"
    await (await cs.start("thread", exclusive=True)).finish()


async def test_zombie_fenced_and_its_run_is_over_in_its_own_process(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "calls.db")
    async with (
        Callstream(zombie(url)) as cs,
        open_journal(url, housekeeping=None) as judge,
    ):
        run = await cs.start("thread")
        async with asyncio.timeout(10):
            while not await judge.sweep():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        with pytest.raises(LeaseLost):
            await run.finish()
        assert (run.outcome, run.reason) == ("failed", "interrupted")
        assert current_run() is None
        assert cs.active_run(run.run_id) is None
