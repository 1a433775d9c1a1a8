"""What is special about the SQLite journal: locks, full disks, durability, files that are not what they should be."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callstream.calls import CallState
from callstream.errors import JournalError, UsageError
from callstream.events import ArgsAppended, CallStarted, MessageEnded, RunEnded, RunStarted, TextAppended
from callstream.journal import Journal, open_journal
from callstream.journal.sql import queries
from callstream.journal.sql.session import build_list
from callstream.journal.sqlite import SqliteFile, SqliteSession, sqlite_path
from callstream.journal.store import forget_filter

from .conftest import sqlite_url
from .zombie import zombie

pytestmark = pytest.mark.asyncio


def connection_of(journal: Journal) -> Any:
    return journal._store._file.connection  # type: ignore[attr-defined]


async def test_url_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///a/b.db") == (str(tmp_path / "a/b.db"), {})
    assert sqlite_path("sqlite:////a/b.db") == ("/a/b.db", {})
    assert sqlite_path("sqlite:////b.db?durability=power") == ("/b.db", {"durability": "power"})
    for wrong in ("sqlite:", "sqlite:///", "sqlite://host/b.db", "sqlite:///b.db?x=1", "sqlite:///b.db?durability=no"):
        with pytest.raises(UsageError):
            open_journal(wrong)
    for wrong in ("", "journal.db", "mysql://x/y"):
        with pytest.raises(UsageError, match="expected memory:"):
            open_journal(wrong)


async def test_a_url_that_is_none_of_ours_does_not_tell_its_password() -> None:
    with pytest.raises(UsageError, match=r"got a URL that begins with 'postgresql\+asyncpg:'") as raised:
        open_journal("postgresql+asyncpg://ada:secret@db/calls")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("query", "setting", "synchronous"), [("", {}, 1), ("?durability=power", {}, 2), ("", {"durability": "power"}, 2)]
)
async def test_durability_is_asked_for(tmp_path: Path, query: str, setting: dict[str, str], synchronous: int) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db") + query, **setting)
    await journal.append("r", [RunStarted("t")])
    assert connection_of(journal).execute("PRAGMA synchronous").fetchone() == (synchronous,)
    assert connection_of(journal).execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await journal.aclose()


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///:memory:?durability=power"])
async def test_a_database_in_memory_is_no_file_of_that_name(url: str) -> None:
    with pytest.raises(UsageError, match="a journal in memory is memory:"):
        open_journal(url)


@pytest.mark.parametrize("url", ["memory:", "postgresql://host/base"])
async def test_durability_is_a_setting_of_sqlite_only(url: str) -> None:
    with pytest.raises(UsageError, match="durability= is a setting of SQLite's journal"):
        open_journal(url, durability="power")


@pytest.mark.parametrize("trouble", ["directory", "no directory", "not a database"])
async def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path, trouble: str) -> None:
    path = tmp_path / "j.db"
    if trouble == "directory":
        path.mkdir()
    elif trouble == "no directory":
        path = tmp_path / "nowhere" / "j.db"
    else:
        path.write_bytes(b"this is a text about databases\n" * 100)
    journal = open_journal(sqlite_url(path))
    for _ in range(2):
        with pytest.raises(JournalError, match=r"j\.db"):
            await journal.append("r", [RunStarted("t")])
    await journal.aclose()


async def test_a_file_that_cannot_be_written_says_what_has_to_be(tmp_path: Path) -> None:
    """Also where it would only be read: SQLite's own words do not say why."""
    with pytest.raises(
        JournalError, match="unable to open database file; its folder has to exist and be writable, like the file"
    ):
        await open_journal(sqlite_url(tmp_path / "nowhere" / "j.db")).open()
    async with open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None) as journal:
        connection_of(journal).execute("PRAGMA query_only = ON")
        with pytest.raises(
            JournalError, match="readonly database; its folder has to exist and be writable, like the file"
        ):
            await journal.append("r", [RunStarted("t")])


async def test_a_file_that_could_not_be_opened_can_be_later(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "later" / "j.db"))
    with pytest.raises(JournalError):
        await journal.open()
    (tmp_path / "later").mkdir()
    assert await journal.append("r", [RunStarted("t")]) == 1
    await journal.aclose()


@pytest.mark.parametrize("fate", ["deleted", "moved", "replaced"])
async def test_a_file_that_is_taken_away_is_told(tmp_path: Path, fate: str) -> None:
    """What is written to a file that has no name any more is lost; nothing of it may be acknowledged."""
    path = tmp_path / "j.db"
    journal = open_journal(sqlite_url(path), housekeeping=None)
    await journal.append("r", [RunStarted("t")])
    for name in os.listdir(tmp_path):
        part = tmp_path / name
        part.rename(tmp_path / f"moved-{name}") if fate == "moved" else part.unlink()
    if fate == "replaced":
        async with open_journal(sqlite_url(path), housekeeping=None) as other:
            await other.append("s", [RunStarted("t")])
    with pytest.raises(JournalError, match="deleted, moved or replaced"):
        await journal.append("r", [TextAppended("m", "x")])
    if fate != "replaced":
        with pytest.raises(JournalError, match=r"j\.db"):
            await journal.runs()
        assert not path.exists(), "a reader made an empty file"
    await journal.aclose()


async def test_a_schema_that_grew_meanwhile_is_not_made_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of newer code makes the new file while this one waits for the lock to do so."""
    path = tmp_path / "j.db"
    transaction = SqliteFile.transaction

    def late(file: SqliteFile) -> Any:
        monkeypatch.setattr(SqliteFile, "transaction", transaction)
        with ThreadPoolExecutor() as another:
            another.submit(asyncio.run, _make(path)).result()
        newer = sqlite3.connect(path, isolation_level=None)
        newer.execute("UPDATE schema_version SET version = 4, oldest_code = 3")
        newer.close()
        return transaction(file)

    monkeypatch.setattr(SqliteFile, "transaction", late)
    async with open_journal(sqlite_url(path), housekeeping=None) as journal:
        assert (await journal.stats())["schema_version"] == 4


async def _make(path: Path) -> None:
    async with open_journal(sqlite_url(path), housekeeping=None):
        pass


async def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE schema_version (version INTEGER, oldest_code INTEGER)")
    journal = open_journal(sqlite_url(path), housekeeping=None)
    for _ in range(2):
        with pytest.raises(JournalError, match="already exists"):
            await journal.open()
    await journal.aclose()
    assert foreign.execute("SELECT name FROM sqlite_master").fetchall() == [("schema_version",)]
    foreign.close()


@pytest.mark.parametrize("name", ["run", "notes"])
async def test_a_file_with_tables_of_another_program_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / "j.db"
    foreign = sqlite3.connect(path)
    foreign.execute(f"CREATE TABLE {name} (pace REAL)")
    journal = open_journal(sqlite_url(path), housekeeping=None)
    with pytest.raises(JournalError, match=f"table '{name}' already exists.* is not Callstream's.*a file.* of its own"):
        await journal.migrate()
    await journal.aclose()
    assert foreign.execute("SELECT name FROM sqlite_master").fetchall() == [(name,)]
    foreign.close()


async def test_a_number_that_a_new_run_got_does_not_bring_the_old_one_back(tmp_path: Path) -> None:
    """An erased run's number is given again: records of the one must never come to the other."""
    url = sqlite_url(tmp_path / "j.db")
    hanging = zombie(url)
    await hanging.append("old", [RunStarted("t")])
    async with open_journal(url, housekeeping=None) as judge:
        assert await judge.sweep() == ["old"]
        assert await judge.forget(thread="t") == 1
        await hanging.append("new", [RunStarted("other")])
        with pytest.raises(UsageError):
            await hanging.append("old", [MessageEnded("m")], after=1)
        assert [run.last_seq for run in await judge.runs(run_id="new")] == [1]
    await hanging.aclose()


async def test_what_grows_with_the_years_is_never_looked_through(tmp_path: Path) -> None:
    """Open calls are few among those that ended, and runs that are old enough to be erased among those that are not."""
    async with open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "t")])
        plans: list[str] = []
        execute = SqliteSession._execute

        def explained(session: SqliteSession, query: str, parameters: Any) -> Any:
            plans.extend(row[3] for row in execute(session, f"EXPLAIN QUERY PLAN {query}", parameters))
            return execute(session, query, parameters)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SqliteSession, "_execute", explained)
            assert [call.call_id for call in await journal.calls(states=[CallState.STARTED, CallState.AWAITING])] == [
                "c"
            ]
            assert await journal.calls(states=[CallState.COMPLETED]) == []
            assert [run.run_id for run in await journal.runs(active=True)] == ["r"]
        assert "SEARCH tool_call USING INDEX tool_call_open (state=?)" in plans
        forgettable = build_list(queries("sqlite"), "forgettable_runs", forget_filter(1.0, None, None))
        explaining = connection_of(journal).execute(
            f"EXPLAIN QUERY PLAN {forgettable[0]}", {**forgettable[1], "limit": 1}
        )
        assert any("USING INDEX run_due" in row[3] for row in explaining)


async def test_full_disk_reaches_the_caller_and_leaves_the_file_readable(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None)
    await journal.append("r", [RunStarted("t"), CallStarted("c", "t")])
    connection = connection_of(journal)
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 3}")
    big = ArgsAppended("c", "x" * 100_000)
    with pytest.raises(JournalError, match="full"):
        await journal.append("r", [big])
    outcomes = await asyncio.gather(
        journal.append("s", [RunStarted("t")]),
        journal.append("r", [big]),
        journal.append("u", [RunStarted("t")]),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [int, JournalError, int]
    assert [record.seq async for record in journal.read("r")] == [1, 2]
    connection.execute("PRAGMA max_page_count = 1000000")
    assert await journal.append("r", [big]) == 3
    await journal.aclose()
    checked = sqlite3.connect(tmp_path / "j.db")
    assert checked.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checked.close()


async def test_a_reader_never_blocks_the_writer(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None, retry_seconds=1.0)
    await journal.append("r", [RunStarted("t")])
    reader = sqlite3.connect(tmp_path / "j.db", isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM record").fetchone() == (1,)
    for number in range(20):
        await journal.append("r", [TextAppended("m", str(number))])
    await journal.append("r", [RunEnded("finished")])
    await journal.compact("r")
    assert reader.execute("SELECT count(*) FROM record").fetchone() == (1,)
    reader.close()
    await journal.aclose()


async def test_a_lock_of_another_process_is_waited_for(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None, retry_seconds=0.3)
    await journal.append("r", [RunStarted("t")])
    other = sqlite3.connect(tmp_path / "j.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="whether this append is written is not known"):
        await journal.append("r", [TextAppended("m", "a")], after=1)
    waiting = asyncio.create_task(journal.append("r", [TextAppended("m", "a")], after=1))
    await asyncio.sleep(0.1)
    other.execute("ROLLBACK")
    assert await waiting == 2
    other.close()
    await journal.aclose()


async def test_forgotten_text_is_overwritten(tmp_path: Path) -> None:
    journal = open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None)
    await journal.append("r", [RunStarted("t"), TextAppended("m", "very-secret-text" * 1000), RunEnded("finished")])
    await journal.append("s", [RunStarted("u"), TextAppended("m", "stays"), RunEnded("finished")])
    assert await journal.forget(thread="t") == 1
    await journal.aclose()
    assert os.listdir(tmp_path) == ["j.db"]
    kept = (tmp_path / "j.db").read_bytes()
    assert b"very-secret-text" not in kept
    assert b"stays" in kept


async def test_many_open_one_new_file_at_once(tmp_path: Path) -> None:
    journals = [open_journal(sqlite_url(tmp_path / "j.db")) for _ in range(8)]
    last = await asyncio.gather(
        *(journal.append(f"r{number}", [RunStarted("t")]) for number, journal in enumerate(journals))
    )
    assert last == [1] * 8
    assert len(await journals[0].runs()) == 8
    for journal in journals:
        await journal.aclose()


async def test_a_program_that_does_not_close_its_journal_ends_all_the_same(tmp_path: Path) -> None:
    program = f"""
import asyncio
from callstream.journal import open_journal
from callstream.events import RunStarted
journal = open_journal({sqlite_url(tmp_path / "j.db")!r})
async def main():
    await journal.append("r", [RunStarted("t")])
    print([record.seq async for record in journal.read("r")])
asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1]\n", "")


async def test_the_page_cache_grows_and_shrinks_with_the_active_runs(tmp_path: Path) -> None:
    async with open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None) as journal:
        connection = journal._store._file.connection  # type: ignore[attr-defined]

        async def cache_after(run_id: str) -> int:
            await journal.append(run_id, [RunStarted("thread")])
            (size,) = connection.execute("PRAGMA cache_size").fetchone()
            return -int(size)

        assert await cache_after("first") == 512
        await asyncio.gather(*(journal.append(f"run {number}", [RunStarted("thread")]) for number in range(500)))
        assert await cache_after("last") == 768
        await asyncio.gather(*(journal.append(f"run {number}", [RunEnded("finished")]) for number in range(500)))
        assert await cache_after("later") == 512
