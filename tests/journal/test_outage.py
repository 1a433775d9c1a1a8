"""A store that is away, locked or full: what a health check, an append and the log say, and when."""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
import string
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from callstream.errors import JournalError, UsageError
from callstream.events import RunEnded, RunStarted, TextAppended
from callstream.journal import Housekeeping, Journal, open_journal
from callstream.journal.store import StoreUnavailable

from .conftest import WITH_LOG, Place, sqlite_url
from .proxy import Proxy

pytestmark = pytest.mark.asyncio


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process is writing to the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# -- the health check --------------------------------------------------------------------------------------------------


async def test_check_writes_and_leaves_nothing_to_read(place: Place) -> None:
    async with place.journal() as journal:
        before = await journal.stats()
        for _ in range(3):
            await journal.check()
        after = await journal.stats()
        assert {**before, "stored_bytes": 0} == {**after, "stored_bytes": 0}
    with pytest.raises(UsageError, match="closed"):
        await journal.check()


async def test_check_refuses_a_file_that_is_locked(tmp_path: Path) -> None:
    async with open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None, retry_seconds=0.1) as journal:
        with locked(tmp_path / "j.db"), pytest.raises(JournalError, match="locked"):
            await journal.check()
        await journal.check()


async def test_check_refuses_a_file_that_cannot_grow(tmp_path: Path) -> None:
    async with open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None) as journal:
        connection = journal._store._file.connection  # type: ignore[attr-defined]
        connection.execute("PRAGMA query_only = ON")
        with pytest.raises(JournalError, match="could not be used"):
            await journal.check()
        connection.execute("PRAGMA query_only = OFF")
        await journal.check()


async def fill(journal: Journal, text: str) -> None:
    while True:
        await journal.append("r", [TextAppended("m", text)])


async def test_check_knows_at_once_that_a_full_disk_has_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever was refused meanwhile: an append, the lease, or a small check."""
    async with open_journal(sqlite_url(tmp_path / "j.db"), lease_ttl=0.3, housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t")])
        connection = journal._store._file.connection  # type: ignore[attr-defined]
        for size in (10, 100_000, 5_000_000):
            connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
            with pytest.raises(JournalError, match="full"):
                await fill(journal, "a" * size)
            for _ in range(3):
                with pytest.raises(JournalError, match=r"the last append was refused: .* full"):
                    await journal.check()
            connection.execute("PRAGMA max_page_count = 1000000")
            await journal.check()
            await journal.append("r", [TextAppended("m", "a")])
        rows = connection.execute("SELECT holder FROM lease WHERE name LIKE 'check:%'").fetchall()
        assert [len(holder) < 200 for (holder,) in rows] == [True]  # it keeps none of the room
    assert [line.partition(",")[0] for line in lines(caplog)] == [
        "the journal cannot be written",
        "the journal can be written again",
    ] * 3


@pytest.mark.postgres
async def test_check_refuses_a_server_that_is_away_at_once(url: str) -> None:
    """It does not wait for the server to come back, as everything else does."""
    async with Proxy(url) as proxy, open_journal(proxy.url, housekeeping=None, retry_seconds=1000) as journal:
        await journal.check()
        await proxy.stop()
        with pytest.raises(JournalError, match="unavailable"):
            await asyncio.wait_for(journal.check(), 30)
        await proxy.start()
        await journal.check()


@pytest.mark.postgres
async def test_check_can_be_given_a_limit_where_the_server_does_not_answer(url: str) -> None:
    async with Proxy(url) as proxy, open_journal(proxy.url, housekeeping=None) as journal:
        await journal.check()
        proxy.is_silent = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await journal.check()
        proxy.is_silent = False
        proxy.cut()
        await journal.check()


# -- appends -----------------------------------------------------------------------------------------------------------


@pytest.mark.postgres
async def test_an_append_fails_in_time_though_the_server_does_not_answer(url: str) -> None:
    """A half-open connection, and new ones that hang as well."""
    async with Proxy(url) as proxy, open_journal(proxy.url, housekeeping=None, retry_seconds=0.1) as journal:
        await journal.append("r", [RunStarted("t")])
        proxy.is_silent = True
        async with asyncio.timeout(20):
            for _ in range(2):
                with pytest.raises(JournalError, match="whether this append is written is not known"):
                    await journal.append("r", [TextAppended("m", "a")], after=1)
        proxy.is_silent = False
        proxy.cut()
        assert await journal.append("r", [TextAppended("m", "a")], after=1) == 2
        assert [record.seq async for record in journal.read("r")] == [1, 2]


async def test_a_lock_does_not_keep_the_journals_thread_from_its_other_duties(tmp_path: Path) -> None:
    """Appends wait for another process's lock a little at a time: each one fails when its own time is over."""
    async with open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None, retry_seconds=2) as journal:
        await journal.append("r", [RunStarted("t")])
        with locked(tmp_path / "j.db"):
            first = asyncio.create_task(journal.append("r", [TextAppended("m", "a")]))
            with pytest.raises(JournalError, match="locked"):
                await journal.check()
            assert not first.done()
            with pytest.raises(JournalError, match="locked"):
                await first
        assert await journal.append("r", [TextAppended("m", "a")]) == 2


@pytest.mark.parametrize("what", ["append", "check", "compact", "sweep", "read", "open"])
async def test_a_cancelled_waiter_leaves_at_once(tmp_path: Path, what: str) -> None:
    """Whatever it waits for. What was on its way may still be written, once."""
    url = sqlite_url(tmp_path / "j.db")
    async with open_journal(url, housekeeping=None) as writer, open_journal(url, housekeeping=None) as journal:
        await writer.append("r", [RunStarted("t"), RunEnded("finished")])
        if what != "open":
            await journal.open()
        doing: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "append": lambda: journal.append("s", [RunStarted("t")]),
            "check": journal.check,
            "compact": lambda: journal.compact("r"),
            "sweep": journal.sweep,
            "read": lambda: anext(aiter(journal.follow("r", 2))),  # type: ignore[arg-type, return-value]
            "open": journal.open,
        }
        with locked(tmp_path / "j.db"):
            task = asyncio.create_task(doing[what]())
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait({task}, timeout=0.2)
            assert task.done()
        assert await journal.append("s", [RunStarted("t")], after=0) == 1


# -- the log -----------------------------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "callstream.journal"]


async def test_the_log_says_once_that_a_file_is_locked_and_once_that_it_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = sqlite_url(tmp_path / "j.db")
    duties = Housekeeping(sweep_every=0.05, compact_after=0.05)
    async with open_journal(url, retry_seconds=0.1, lease_ttl=0.3, housekeeping=duties) as journal:
        await journal.append("r", [RunStarted("t")])
        with locked(tmp_path / "j.db"):
            for _ in range(5):
                with pytest.raises(JournalError):
                    await journal.append("r", [TextAppended("m", "a")])
            assert [line.partition(":")[0] for line in lines(caplog)] == ["the journal cannot be written, trying again"]
        await journal.append("r", [TextAppended("m", "a")])
        await journal.append("r", [TextAppended("m", "b")])
    assert len(lines(caplog)) == 2
    assert re.fullmatch(r"the journal can be written again, after \d+\.\d s: the SQLite file .*", lines(caplog)[1])
    assert all(record.exc_info is None for record in caplog.records)


async def test_the_log_says_once_that_a_disk_is_full_until_an_append_was_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    """A lease takes no more room when it is renewed: that is no sign that an append would be written."""
    async with open_journal(sqlite_url(tmp_path / "j.db"), lease_ttl=0.3, housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t")])
        store = journal._store  # type: ignore[attr-defined]
        connection = store._file.connection
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        for _ in range(3):
            with pytest.raises(JournalError, match="full"):
                await journal.append("r", [TextAppended("m", "a" * 100_000)])
            assert await journal.append("r", []) == 1  # nothing has to be written for that, so it says nothing
            with pytest.raises(JournalError, match="the last append was refused"):
                await journal.check()  # a small row would find room
        expires = "SELECT expires_at FROM lease WHERE name LIKE 'writer:%'"
        before = connection.execute(expires).fetchone()

        async def renewed() -> bool:
            return bool(connection.execute(expires).fetchone() != before)

        await eventually(renewed)
        assert len(lines(caplog)) == 1
        connection.execute("PRAGMA max_page_count = 1000000")
        await journal.append("r", [TextAppended("m", "a" * 100_000)])
        await journal.check()
    assert [line.partition(",")[0] for line in lines(caplog)] == [
        "the journal cannot be written",
        "the journal can be written again",
    ]


async def test_the_log_says_once_that_a_log_beside_the_store_is_away_though_leases_are_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    place = Place(f"sqlite{WITH_LOG}", sqlite_url(tmp_path / "j.db"))
    async with place.journal(lease_ttl=0.3, retry_seconds=0.1) as journal:
        await journal.append("r", [RunStarted("t"), TextAppended("m", "a")])
        store: Any = journal._store  # type: ignore[attr-defined]
        log, take_turn = store._log, store._log.take_turn
        is_away, checks = True, 0

        async def away(*_: Any) -> None:
            raise StoreUnavailable("the log is unavailable")

        async def check(size: int) -> None:
            nonlocal checks
            checks += 1
            if is_away:
                raise StoreUnavailable("the log is unavailable")

        async def was_checked() -> bool:
            return checks >= 3

        log.append, log.take_turn, log.check = away, away, check
        with pytest.raises(JournalError, match="the log is unavailable"):
            await journal.append("r", [TextAppended("m", "b")])
        await eventually(was_checked)
        assert [line.partition(",")[0] for line in lines(caplog)] == ["the journal cannot be written"]
        is_away, log.take_turn = False, take_turn

        async def told() -> bool:
            return len(lines(caplog)) == 2

        await eventually(told)
        assert "can be written again" in lines(caplog)[1]


@pytest.mark.postgres
async def test_the_log_says_once_that_a_server_is_away_and_once_that_it_is_back(
    url: str, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    """Also where nobody appends anything: the lease and the housekeeping find out."""
    async with Proxy(url) as proxy:
        duties = Housekeeping(sweep_every=0.05)
        async with open_journal(proxy.url, retry_seconds=0.1, lease_ttl=0.3, housekeeping=duties) as journal:
            await journal.append("r", [RunStarted("t")])
            await proxy.stop()

            async def told(count: int) -> bool:
                return len(lines(caplog)) >= count

            await eventually(lambda: told(1))
            with pytest.raises(JournalError):
                await journal.append("r", [TextAppended("m", "a")])
            assert "cannot be written" in lines(caplog)[0]
            await proxy.start()
            await eventually(lambda: told(2))
            assert "can be written again" in lines(caplog)[1]
            await journal.append("r", [TextAppended("m", "b")])
    assert len(lines(caplog)) == 2


TAKEN_OVER = r"ended as interrupted, because the lease of their process has run out: left\nERROR forged"


async def test_a_journal_that_takes_over_runs_says_so(
    place: Place, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    async def told() -> bool:
        return bool(lines(caplog))

    dead = place.journal()
    await dead.append("left\nERROR forged", [RunStarted("t")])
    await dead.aclose()
    other = place.journal(housekeeping=Housekeeping(sweep_every=0.05, compact_after=None))
    await other.open()
    assert [record.event async for record in other.follow("left\nERROR forged")] == [
        RunStarted("t"),
        RunEnded("failed", "interrupted"),
    ]
    await eventually(told)  # a follower may hear of it before the journal that wrote it has heard that it is written
    await other.aclose()
    assert lines(caplog) == [TAKEN_OVER]


async def test_a_journal_that_is_asked_to_sweep_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """As a request does that finds a run of a dead process in its thread."""
    dead = place.journal()
    await dead.append("left\nERROR forged", [RunStarted("t")])
    await dead.aclose()
    async with place.journal(housekeeping=None) as other:
        assert await other.sweep() == ["left\nERROR forged"]
        assert await other.sweep() == []
    assert lines(caplog) == [TAKEN_OVER]


@pytest.mark.postgres
async def test_an_append_that_cannot_be_stored_is_no_outage(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A name that is too long for an index of PostgreSQL is the fault of the one who chose it."""
    async with open_journal(url, housekeeping=None) as journal:
        long = "".join(random.Random(1).choices(string.ascii_letters, k=20_000))
        with pytest.raises(JournalError, match="cannot hold such a value"):
            await journal.append("r", [RunStarted(long)])
        await journal.check()
        assert await journal.append("r", [RunStarted("t")]) == 1
    assert lines(caplog) == []
