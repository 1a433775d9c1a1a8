"""The journal's thread: what happens when it breaks, and that it never starves its own duties."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callstream.errors import JournalError
from callstream.events import RunEnded, RunStarted, TextAppended
from callstream.journal import Housekeeping, open_journal
from callstream.journal.sqlite import SqliteStore

from .conftest import sqlite_url

pytestmark = pytest.mark.asyncio


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_nobody_waits_for_a_thread_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours in the journal's thread reaches everybody who waits."""
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None)
    await journal.append("r", [RunStarted("t")])
    follower = asyncio.create_task(collected(journal.follow("r")))
    await asyncio.sleep(0.05)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(SqliteStore, "_commit", broken)
    outcomes = await asyncio.gather(
        *(journal.append("r", [TextAppended("m", "x")]) for _ in range(5)), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {JournalError}
    assert all("thread has ended" in str(outcome) for outcome in outcomes)
    with pytest.raises(JournalError, match="thread has ended"):
        await follower
    with pytest.raises(JournalError, match="thread has ended"):
        await journal.sweep()
    await journal.aclose()
    journal._thread.join()  # type: ignore[attr-defined]


async def collected(records: Any) -> list[Any]:
    return [record async for record in records]


async def test_the_lease_is_renewed_under_full_load(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "j.db")
    busy, other = open_journal(url, housekeeping=None, lease_ttl=1.5), open_journal(url, housekeeping=None)
    stop = asyncio.Event()

    async def write(number: int) -> int:
        await busy.append(f"r{number}", [RunStarted("t")])
        count = 1
        while not stop.is_set():
            count = await busy.append(f"r{number}", [TextAppended("m", "x")])
        return count

    writers = [asyncio.create_task(write(number)) for number in range(20)]
    for _ in range(10):
        await asyncio.sleep(0.2)
        assert await other.sweep() == []
    stop.set()
    assert all(count > 1 for count in await asyncio.gather(*writers))
    await busy.aclose()
    await other.aclose()


async def test_a_process_that_was_late_itself_does_not_judge_others(
    tmp_path: Path,
) -> None:
    """A machine that was suspended: all leases have run out, and whoever wakes first must not take the others' runs."""
    url = sqlite_url(tmp_path / "j.db")
    other = open_journal(url, housekeeping=None, lease_ttl=0.2, renew=False)
    await other.append("r", [RunStarted("t")])
    judge: Any = open_journal(url, housekeeping=None, lease_ttl=30.0)
    await judge.open()
    await asyncio.sleep(0.3)
    judge._renewed_at -= 60.0
    await judge._on_thread(judge._do_duties, True, None, None)
    assert [run.run_id for run in await judge.runs(active=True)] == ["r"]
    judge._renewed_at += 60.0
    await judge._on_thread(judge._do_duties, True, None, None)
    assert await judge.runs(active=True) == []
    await judge.aclose()
    await other.aclose()


async def test_a_run_that_is_erased_while_it_waits_for_compaction_is_no_trouble(tmp_path: Path) -> None:
    """Housekeeping has a list of runs to compact, and whoever erases one of them does not wait for it."""
    url = sqlite_url(tmp_path / "j.db")
    async with open_journal(url, housekeeping=None) as first:
        for number in range(60):
            pieces = [TextAppended("m", "a"), TextAppended("m", "b")]
            await first.append(f"r{number}", [RunStarted("t"), *pieces, RunEnded("finished")])
        await first.append("kept", [RunStarted("other"), *pieces, RunEnded("finished")])
    journal = open_journal(url, housekeeping=Housekeeping(compact_after=0.0, sweep_every=None))
    await journal.open()
    assert await journal.forget(thread="t") == 60
    async with asyncio.timeout(10):
        while (await journal.stats())["records"] > 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await journal.append("next", [RunStarted("t")]) == 1
    await journal.aclose()


async def test_closing_writes_what_is_waiting(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "j.db")
    journal = open_journal(url, housekeeping=None)
    await journal.append("r", [RunStarted("t")])
    appends = [asyncio.create_task(journal.append("r", [TextAppended("m", str(n))])) for n in range(50)]
    await asyncio.sleep(0)
    await journal.aclose()
    assert sorted(await asyncio.gather(*appends)) == list(range(2, 52))
    again = open_journal(url, housekeeping=None)
    assert len([record async for record in again.read("r")]) == 51
    await again.aclose()


async def test_opening_from_two_loops_at_once_opens_once(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None)

    def first_use(number: int) -> int:
        return asyncio.run(journal.append(f"r{number}", [RunStarted("t")]))

    assert await asyncio.gather(*(asyncio.to_thread(first_use, number) for number in range(8))) == [1] * 8
    assert (await journal.stats())["runs"] == 8
    await journal.aclose()


async def test_cancelling_the_first_use_does_not_break_the_opening(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None)
    impatient = asyncio.create_task(journal.open())
    patient = asyncio.create_task(journal.append("r", [RunStarted("t")]))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == 1
    await journal.aclose()
