"""The journal's thread: what happens when it breaks, and that it never starves its own duties."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from callstream.errors import JournalError, UsageError
from callstream.events import RunEnded, RunStarted, TextAppended
from callstream.journal import Housekeeping, open_journal
from callstream.journal.housekeeping import Housekeeper
from callstream.journal.sqlite import SqliteStore

from .conftest import sqlite_url
from .zombie import zombie

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

    monkeypatch.setattr(SqliteStore, "commit", broken)
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
    for thread in threading.enumerate():
        if thread.name == "callstream-journal":
            thread.join()


async def collected(records: Any) -> list[Any]:
    return [record async for record in records]


async def test_the_lease_is_renewed_under_full_load(tmp_path: Path, eventually: Any) -> None:
    url = sqlite_url(tmp_path / "j.db")
    busy, other = open_journal(url, housekeeping=None, lease_ttl=3), open_journal(url, housekeeping=None)
    stop = asyncio.Event()

    async def write(number: int) -> int:
        await busy.append(f"r{number}", [RunStarted("t")])
        count = 1
        while not stop.is_set():
            count = await busy.append(f"r{number}", [TextAppended("m", "x")])
        return count

    writers = [asyncio.create_task(write(number)) for number in range(20)]
    await other.open()
    seen: set[float] = set()
    with closing(sqlite3.connect(tmp_path / "j.db")) as reader:

        async def is_renewed_twice() -> bool:
            query = "SELECT expires_at FROM lease JOIN run ON run.writer = lease.holder"
            seen.update(expires_at for (expires_at,) in reader.execute(query))
            assert await other.sweep() == []
            return len(seen) > 2

        await eventually(is_renewed_twice, 60)
    stop.set()
    assert all(count > 1 for count in await asyncio.gather(*writers))
    await busy.aclose()
    await other.aclose()


async def test_a_process_that_was_late_itself_does_not_judge_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was suspended: all leases have run out, and whoever wakes first must not take the others' runs."""
    url = sqlite_url(tmp_path / "j.db")
    do_duties = Housekeeper.do_duties
    has_looked = threading.Event()

    async def noted(keeper: Housekeeper, *, may_sweep: bool) -> None:
        await do_duties(keeper, may_sweep=may_sweep)
        has_looked.set()

    monkeypatch.setattr(Housekeeper, "do_duties", noted)
    judge: Any = open_journal(url, housekeeping=Housekeeping(sweep_every=3600.0, compact_after=None), lease_ttl=30.0)
    await judge.open()
    assert await asyncio.to_thread(has_looked.wait, 10)  # as it does when it opens
    other = zombie(url)
    await other.append("r", [RunStarted("t")])
    worker = judge._worker

    async def tidy(renewed_ago: float) -> None:
        worker._renewed_at = time.time() - renewed_ago
        await worker._tidy(3600.0)

    await worker.do(tidy, 60.0)
    assert [run.run_id for run in await judge.runs(active=True)] == ["r"]
    await worker.do(tidy, 0.0)
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


FORKING = """
import asyncio, os, sys
from callstream import Callstream, UsageError
from callstream.events import RunEnded, RunStarted
from callstream.journal import open_journal

url = sys.argv[1]
journal = open_journal(url, housekeeping=None)
unused = open_journal(url, housekeeping=None)

async def parent_begins():
    await journal.append("parent", [RunStarted("t")])

async def child_tries():
    for attempt in (journal.append("child", [RunStarted("t")]), journal.sweep(), journal.runs(), journal.stats()):
        try:
            async with asyncio.timeout(20):
                await attempt
        except UsageError as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("the child used the journal of its parent")
    await journal.aclose()
    assert await unused.append("child", [RunStarted("t"), RunEnded("finished")]) == 2
    await unused.aclose()

async def parent_ends():
    assert await journal.append("parent", [RunEnded("finished")]) == 2
    await journal.aclose()

asyncio.run(parent_begins())
child = os.fork()
if not child:
    try:
        asyncio.run(child_tries())
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(parent_ends())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
async def test_a_process_that_was_forked_is_told_that_the_journal_is_its_parents(tmp_path: Path) -> None:
    """Its thread is not there in the child, so nobody would ever write what waits."""
    url = sqlite_url(tmp_path / "j.db")
    forking = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKING, url, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(forking.communicate(), 120)
    assert forking.returncode == 0, said.decode()
    async with open_journal(url, housekeeping=None) as journal:
        assert {(run.run_id, run.outcome) for run in await journal.runs()} == {
            ("parent", "finished"),
            ("child", "finished"),
        }


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


async def test_appends_before_a_store_that_cannot_be_opened_are_all_refused_and_the_next_one_tries_again(
    tmp_path: Path,
) -> None:
    """Those in line for want of room, too: none of them waits for a thread that will never come."""
    folder = tmp_path / "not-there-yet"
    journal = open_journal(sqlite_url(folder / "j.db"), housekeeping=None, max_pending_bytes=1000)
    try:
        appends = [asyncio.create_task(journal.append(f"r{n}", [RunStarted("t" * 300)])) for n in range(20)]
        refused = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), 30)
        assert {type(error) for error in refused} == {JournalError}
        assert all("not-there-yet" in str(error) for error in refused)
        folder.mkdir()
        assert await asyncio.wait_for(journal.append("r", [RunStarted("t")]), 30) == 1
        assert [run.run_id for run in await journal.runs()] == ["r"]
    finally:
        await journal.aclose()
    with pytest.raises(UsageError, match="the journal is closed"):
        await journal.append("r", [TextAppended("m", "x")])


async def test_a_journal_that_was_closed_before_its_first_use_refuses_appends(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None)
    await journal.aclose()
    with pytest.raises(UsageError, match="the journal is closed"):
        await asyncio.wait_for(journal.append("r", [RunStarted("t")]), 30)
