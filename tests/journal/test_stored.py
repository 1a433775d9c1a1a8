"""The journal's thread: what happens when it breaks, and that it never starves its own duties."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callstream.errors import JournalError, UsageError
from callstream.events import RunStarted, TextAppended
from callstream.journal import open_journal
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
    assert {type(outcome) for outcome in outcomes} <= {JournalError, UsageError}
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
