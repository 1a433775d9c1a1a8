"""SQLite's log is brought into the file beside the commits, not within one."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from callstream.errors import JournalError
from callstream.events import RunStarted, TextAppended
from callstream.journal import Journal, open_journal, sqlite

from .conftest import sqlite_url

pytestmark = pytest.mark.asyncio

TEXT = "x" * 4000
PAGES_OF_ONE = 5
"""Which an append of that text writes."""
TRULY = sqlite.Checkpoints._connect


def pages_in_log(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        (_, pages, _) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    connection.close()
    return int(pages)


async def write(journal: Journal, appends: int) -> None:
    for number in range(appends):
        await journal.append("r", [TextAppended("m", f"{number}{TEXT}")])


SlowDisk: TypeAlias = tuple[threading.Event, threading.Event]


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    """A disk that takes its time once it has begun, for as long as the gate is closed."""
    begun, gate = threading.Event(), threading.Event()

    def open_slowly(*args: Any, **options: Any) -> sqlite3.Connection:
        begun.set()
        gate.wait(60)
        return TRULY(*args, **options)

    monkeypatch.setattr(sqlite.Checkpoints, "_connect", open_slowly)
    return begun, gate


async def test_commits_go_on_while_the_log_is_brought_in(tmp_path: Path, slow_disk: SlowDisk) -> None:
    begun, gate = slow_disk
    path = tmp_path / "j.db"
    async with open_journal(sqlite_url(path), housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t")])
        await write(journal, sqlite.PAGES // PAGES_OF_ONE + 50)
        assert begun.wait(10)
        await write(journal, 100)
        assert path.with_name("j.db-wal").stat().st_size > sqlite.PAGES * 4096, "it is all in the log still"
        gate.set()
    assert not path.with_name("j.db-wal").exists()


async def test_a_writer_that_is_far_ahead_of_the_disk_waits_for_it(tmp_path: Path, slow_disk: SlowDisk) -> None:
    begun, gate = slow_disk
    path = tmp_path / "j.db"
    async with open_journal(sqlite_url(path), housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t")])
        writing = asyncio.create_task(write(journal, 2 * sqlite.MOST_PAGES // PAGES_OF_ONE))
        assert await asyncio.to_thread(begun.wait, 10)
        log = path.with_name("j.db-wal")
        size = 0
        while size != (size := log.stat().st_size):  # noqa: ASYNC110  # a file that grows sets no event
            await asyncio.sleep(0.3)
        assert sqlite.PAGES * 4096 < size < sqlite.MOST_PAGES * 4096
        assert not writing.done()
        gate.set()
        await writing
        assert log.stat().st_size < sqlite.MOST_PAGES * 4096


async def test_the_log_starts_anew_however_steadily_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    appends = 3 * sqlite.PAGES
    async with open_journal(sqlite_url(path), housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t")])
        await write(journal, appends)
        assert path.with_name("j.db-wal").stat().st_size < sqlite.MOST_PAGES * 4096
        records = await journal.read_whole(["r"])
    assert [record.seq for record in records] == list(range(1, appends + 2))


class Broken:
    """A connection whose disk does not work."""

    def execute(self, statement: str) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("how", ["opening", "reading"])
async def test_a_checkpoint_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The writer makes it, then."""
    tried = 0

    def fail(*args: Any, **options: Any) -> Broken:
        nonlocal tried
        tried += 1
        if how == "opening":
            raise JournalError("too many open files")
        return Broken()

    monkeypatch.setattr(sqlite.Checkpoints, "_connect", fail)
    path = tmp_path / "j.db"
    async with open_journal(sqlite_url(path), housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t")])
        await write(journal, 2 * sqlite.MOST_PAGES // 3)
        assert tried > 1, "it is tried again"
        assert pages_in_log(path) < 2 * sqlite.PAGES
        assert len(await journal.read_whole(["r"])) == 2 * sqlite.MOST_PAGES // 3 + 1
