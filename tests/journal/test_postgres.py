"""What is special about the PostgreSQL journal: servers that go away, poolers, roles, many processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from callstream.errors import JournalError, UsageError
from callstream.events import ArgsAppended, CallStarted, MessageEnded, RunEnded, RunStarted, TextAppended
from callstream.journal import open_journal
from callstream.journal.postgres import Link, address, failure, numbered
from callstream.journal.sql.session import build_list
from callstream.journal.store import RunFilter, StoreUnavailable, forget_filter

from .conftest import opened
from .proxy import Proxy
from .runs import followed, records
from .server import postgres_server
from .zombie import zombie

pytestmark = [pytest.mark.asyncio, pytest.mark.postgres]


async def test_url_holds_the_options() -> None:
    where = address("postgresql://u:p@h:1/d?host=/tmp/x&schema=s1&listen=off&statement_cache_size=0")
    assert where.dsn == "postgresql://u:p@h:1/d?host=/tmp/x"
    assert (where.schema, where.listen, where.statement_cache_size) == ("s1", False, 0)
    assert "p@" not in where.where
    assert (
        address("postgresql://u:p@/d?host=/sockets&password=p").where
        == "the PostgreSQL schema 'callstream' at /sockets/d"
    )
    assert address("postgresql:///d").where == "the PostgreSQL schema 'callstream' at the local socket/d"
    for wrong in ("schema=a%22b", "listen=maybe", "statement_cache_size=x"):
        with pytest.raises(UsageError):
            open_journal(f"postgresql://h/d?{wrong}")


@pytest.mark.parametrize("end", "/#?")
async def test_errors_show_nothing_of_a_password_that_is_not_escaped(end: str) -> None:
    assert address(f"postgresql://me:top{end}secret@h:5432/db").where == "the PostgreSQL schema 'callstream'"


async def test_a_server_that_is_not_there_is_told() -> None:
    journal = open_journal("postgresql://postgres@127.0.0.1:9/postgres", retry_seconds=0.2)
    with pytest.raises(JournalError, match="unavailable"):
        await journal.append("r", [RunStarted("t")])
    await journal.aclose()


async def test_a_server_that_says_nothing_is_told() -> None:
    with (
        pytest.raises(StoreUnavailable, match="the server is unavailable: TimeoutError: no answer came in time"),
        failure("the server"),
    ):
        async with asyncio.timeout(0):
            await asyncio.sleep(1)


async def test_a_database_that_is_not_there_is_told_at_once(postgres_url: str) -> None:
    journal = open_journal(postgres_url.replace("/postgres?", "/nowhere?"), retry_seconds=1000)
    with pytest.raises(JournalError, match="nowhere"):
        await asyncio.wait_for(journal.append("r", [RunStarted("t")]), 30)
    await journal.aclose()


async def test_an_option_of_the_url_that_is_wrong_is_told() -> None:
    journal = open_journal("postgresql://postgres@127.0.0.1:9/postgres?sslmode=maybe")
    with pytest.raises(JournalError, match=r"could not be used: .*`sslmode` parameter must be one of"):
        await journal.append("r", [RunStarted("t")])
    await journal.aclose()


async def test_what_grows_with_the_years_is_never_looked_through(url: str) -> None:
    """Runs that are old enough to be erased are few among those that are not, and so are those that go on."""
    where = address(url)
    link = await asyncpg.connect(where.dsn)
    async with opened(url) as journal:
        await journal.append("r", [RunStarted("t")])
        sql = journal._store._link.sql  # type: ignore[attr-defined]
        await link.execute(
            f'INSERT INTO "{where.schema}".run (run_id, thread_id, epoch, compacted, started_at, ended_at, outcome) '
            "SELECT 'run ' || n, 'thread ' || n, 1, true, n, n + 1, 'finished' FROM generate_series(1, 50000) AS n"
        )
        await link.execute(f'ANALYZE "{where.schema}".run')

        async def plan(name: str, wanted: RunFilter) -> str:
            text, values = build_list(sql, name, wanted)
            query, names = numbered(text)
            arguments = [{**values, "limit": 100}[name] for name in names]
            return "\n".join([row[0] for row in await link.fetch(f"EXPLAIN {query}", *arguments)])

        assert "Index Scan using run_started" in await plan("forgettable_runs", forget_filter(1.0, None, None))
        assert "Seq Scan on run" not in await plan("list_runs", RunFilter(active=True))
        assert await journal.forget(before=3.0) == 1
        assert [run.run_id for run in await journal.runs(active=True)] == ["r"]
    await link.close()


async def test_server_away_for_good_fails_clearly_and_comes_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callstream.journal.queue._LEAST_SECONDS", 60.0)
    async with Proxy(url) as proxy, opened(proxy.url, retry_seconds=0.5, max_pending_bytes=2000) as journal:
        await journal.append("r", [RunStarted("t")])
        proxy.is_silent = True
        many = [asyncio.create_task(journal.append("r", [TextAppended("m", "b" * 500)])) for _ in range(10)]
        for in_line in many[2:]:
            with pytest.raises(JournalError, match="did not keep up"):
                await in_line
        await proxy.stop()  # which the two that had room are waiting for
        proxy.is_silent = False
        for taken in many[:2]:
            with pytest.raises(JournalError, match=r"was unavailable for 0.5 s"):
                await taken
        with pytest.raises(
            JournalError, match=r"was unavailable for 0.5 s .*whether this append is written is not known"
        ):
            await journal.append("r", [TextAppended("m", "a")], after=1)
        with pytest.raises(JournalError, match="unavailable"):
            await records(journal)
        await proxy.start()
        assert await journal.append("r", [TextAppended("m", "a")], after=1) == 2
        assert [record.seq for record in await records(journal)] == [1, 2]


async def test_a_server_that_was_read_only_is_used_again(url: str, postgres_url: str) -> None:
    """A connection that was made while it was stays read-only."""
    schema = address(url).schema
    admin = await asyncpg.connect(postgres_url)
    try:
        await admin.execute(f'CREATE ROLE "{schema}" LOGIN; CREATE SCHEMA "{schema}" AUTHORIZATION "{schema}"')
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        async with opened(parts._replace(netloc=f"{schema}@{host}").geturl()) as journal:
            await journal.check()
            await admin.execute(f'ALTER ROLE "{schema}" SET default_transaction_read_only = on')
            await admin.fetch(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = $1", schema
            )
            for _ in range(2):  # the first may meet a connection that was cut
                with pytest.raises(JournalError, match="unavailable"):
                    await journal.check()
            await admin.execute(f'ALTER ROLE "{schema}" RESET default_transaction_read_only')
            await journal.check()
    finally:
        await admin.execute(f'DROP SCHEMA "{schema}" CASCADE; DROP ROLE "{schema}"')
        await admin.close()


@pytest.fixture
def own_server() -> Iterator[Any]:
    """A server of this test's own, because it is stopped and started."""
    with postgres_server() as server:
        yield server


async def test_restart_of_the_server_is_waited_for(own_server: Any) -> None:
    """Appends under way and followers that wait go on where they were."""
    url = own_server.get_uri()
    async with opened(url, retry_seconds=60) as journal, opened(url, retry_seconds=60) as other:
        for number in range(5):
            await journal.append(f"r{number}", [RunStarted("t")])
        followers = [asyncio.create_task(followed(other, f"r{number}")) for number in range(5)]

        async def write(number: int) -> None:
            for step in range(200):
                assert await journal.append(f"r{number}", [TextAppended("m", str(step))]) == step + 2
                await asyncio.sleep(0.005)
            await journal.append(f"r{number}", [RunEnded("finished")])

        writers = [asyncio.create_task(write(number)) for number in range(5)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(own_server.stop)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(own_server.start)
        await asyncio.wait_for(asyncio.gather(*writers), 60)
        for seen in await asyncio.wait_for(asyncio.gather(*followers), 60):
            assert [record.seq for record in seen] == list(range(1, 203))


async def test_restart_of_the_server_gives_every_lease_its_time_again(own_server: Any) -> None:
    """Nobody could renew while the server was down, so nobody counts as dead because of that."""
    url = own_server.get_uri()

    async def change_leases(change: str) -> None:
        link = await asyncpg.connect(url)
        await link.execute(f"UPDATE callstream.lease SET {change}")
        await link.close()

    async with zombie(url, lease_ttl=60.0) as writer, opened(url) as judge:
        await writer.append("r", [RunStarted("t")])
        hour = "interval '1 hour'"
        await change_leases(f"renewed_at = renewed_at - {hour}, expires_at = expires_at - {hour}")
        await asyncio.to_thread(own_server.stop)
        await asyncio.to_thread(own_server.start)
        assert await judge.sweep() == []
        assert await writer.append("r", [TextAppended("m", "still mine")]) == 2
        await change_leases("expires_at = renewed_at")  # its second time is over, too
        assert await judge.sweep() == ["r"]


@pytest.mark.parametrize("options", ["&listen=off", "&statement_cache_size=0", "&listen=off&statement_cache_size=0"])
async def test_poolers_are_served(url: str, options: str) -> None:
    async with opened(url + options) as journal, opened(url + options) as other:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "t")])
        follower = asyncio.create_task(followed(other))
        for number in range(20):
            await journal.append("r", [ArgsAppended("c", str(number))])
            await asyncio.sleep(0.01)
        await journal.append("r", [RunEnded("finished")])
        assert [record.seq for record in await asyncio.wait_for(follower, 30)] == list(range(1, 24))


async def test_records_of_another_process_are_found_without_listen(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """By looking, which must not fail: a follower is woken then, too, but once a second."""
    async with opened(url + "&listen=off") as journal, opened(url + "&listen=off") as other:
        await journal.append("r", [RunStarted("t")])
        following = other.follow("r")
        assert (await anext(following)).seq == 1
        for number in range(3):
            coming = asyncio.ensure_future(anext(following))
            await journal.append("r", [TextAppended("m", str(number))])
            assert (await asyncio.wait_for(coming, 30)).seq == 2 + number
        await following.aclose()  # type: ignore[attr-defined]
    assert "could not be looked for" not in caplog.text


async def test_a_server_that_refuses_listen_is_looked_at_instead(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: Any) -> None:
        raise asyncpg.FeatureNotSupportedError("LISTEN is not allowed here")

    monkeypatch.setattr(asyncpg.Connection, "add_listener", refused)
    async with opened(url) as journal, opened(url) as other:
        await journal.append("r", [RunStarted("t")])
        follower = asyncio.create_task(followed(other))
        for number in range(5):
            await journal.append("r", [TextAppended("m", str(number))])
            await asyncio.sleep(0.05)
        await journal.append("r", [RunEnded("finished")])
        assert [record.seq for record in await asyncio.wait_for(follower, 30)] == list(range(1, 8))
    assert "LISTEN was refused" in caplog.text


async def test_a_server_that_lets_nobody_in_for_a_while_is_listened_to_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    """A password that is changed says nothing about LISTEN."""
    async with opened(url) as journal, opened(url) as other:
        await journal.append("r", [RunStarted("t")])
        await other.open()
        lets_in = Link.connect
        monkeypatch.setattr(Link, "connect", _refuse_all)
        follower = asyncio.create_task(followed(other))

        async def is_told() -> bool:
            return "could not be looked for" in caplog.text

        await eventually(is_told)
        monkeypatch.setattr(Link, "connect", lets_in)
        await journal.append("r", [TextAppended("m", "x"), RunEnded("finished")])
        assert [record.seq for record in await asyncio.wait_for(follower, 30)] == [1, 2, 3]
    assert "LISTEN was refused" not in caplog.text


async def _refuse_all(link: Link) -> None:
    raise asyncpg.InvalidPasswordError("password authentication failed")


async def test_looking_that_fails_for_a_while_does_not_end_the_journal(
    url: str, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    """A right that was taken away, a disk that was full: that is no reason never to write again."""
    async with opened(url + "&listen=off") as journal, opened(url + "&listen=off") as other:
        await journal.append("r", [RunStarted("t")])
        sql = other._store._link.sql  # type: ignore[attr-defined]
        looking = sql["followed_runs"]
        sql["followed_runs"] = "SELECT 1 / 0 WHERE :run_ids::text[] IS NOT NULL AND :writer <> ''"
        follower = asyncio.create_task(followed(other))

        async def is_told() -> bool:
            return "division by zero" in caplog.text

        await eventually(is_told)
        assert await other.append("own", [RunStarted("t")]) == 1
        sql["followed_runs"] = looking
        await journal.append("r", [TextAppended("m", "x")])
        await journal.append("r", [RunEnded("finished")])
        assert [record.seq for record in await asyncio.wait_for(follower, 30)] == [1, 2, 3]


async def test_a_role_needs_no_right_but_to_its_own_schema(url: str, postgres_url: str) -> None:
    """Where an administrator has made the schema, the journal need not be allowed to make others."""
    schema = address(url).schema
    admin = await asyncpg.connect(postgres_url)
    try:
        await admin.execute(f'CREATE ROLE "{schema}" LOGIN; CREATE SCHEMA "{schema}" AUTHORIZATION "{schema}"')
        await admin.execute("REVOKE CREATE ON DATABASE postgres FROM PUBLIC")
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        async with opened(parts._replace(netloc=f"{schema}@{host}").geturl()) as journal:
            assert await journal.append("r", [RunStarted("t"), RunEnded("finished")]) == 2
            assert await journal.compact("r") == 0
    finally:
        await admin.execute(f'DROP SCHEMA "{schema}" CASCADE; DROP ROLE "{schema}"')
        await admin.close()


async def test_a_schema_of_somebody_else_is_left_alone(url: str, postgres_url: str) -> None:
    schema = address(url).schema
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(
        f'CREATE SCHEMA "{schema}"; CREATE TABLE "{schema}".schema_version (version int, oldest_code int)'
    )
    await admin.close()
    async with opened(url) as journal:
        for _ in range(2):
            with pytest.raises(JournalError, match="already exists"):
                await journal.append("r", [RunStarted("t")])


async def test_a_schema_with_a_table_of_another_program_is_refused(url: str, postgres_url: str) -> None:
    """Other tables are not in the way."""
    schema = address(url).schema
    admin = await asyncpg.connect(postgres_url)
    try:
        await admin.execute(
            f'CREATE SCHEMA "{schema}"; CREATE TABLE "{schema}".run (); CREATE TABLE "{schema}".note ()'
        )
        async with opened(url) as journal:
            with pytest.raises(
                JournalError, match=r"table 'run' already exists.* is not Callstream's.*or a schema of its"
            ):
                await journal.open()
            await admin.execute(f'DROP TABLE "{schema}".run')
            assert await journal.append("r", [RunStarted("t")]) == 1
    finally:
        await admin.close()


async def test_a_server_that_is_away_when_the_journal_is_opened_is_told_of(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("callstream.journal.queue._PASSING_SECONDS", 0.0)
    async with Proxy(url) as proxy:
        await proxy.stop()
        async with opened(proxy.url, retry_seconds=20) as journal:
            opening = asyncio.create_task(journal.open())
            while not caplog.records:  # noqa: ASYNC110  # the journal's thread sets no event here
                await asyncio.sleep(0.01)
            await proxy.start()
            await opening
    told = [record.getMessage() for record in caplog.records if record.name == "callstream.journal"]
    assert [text.partition(",")[0] for text in told] == [
        "the journal cannot be written",
        "the journal can be written again",
    ]


async def test_a_follower_who_waits_long_is_woken_however_much_is_read_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callstream.journal.follow.MAX_HEADS", 4)
    async with opened(url) as journal, opened(url) as other:
        await journal.append("r", [RunStarted("t")])
        waiting = other.follow("r")
        assert (await anext(waiting)).seq == 1
        next_record = asyncio.create_task(anext(waiting))
        for number in range(10):
            await journal.append(f"s{number}", [RunStarted("t"), RunEnded("finished")])
            assert len(await records(other, f"s{number}")) == 2
        assert len(other._store.reader.remembered) <= 4  # type: ignore[attr-defined]
        await journal.append("r", [TextAppended("m", "x")])
        assert (await asyncio.wait_for(next_record, 10)).seq == 2
        await waiting.aclose()  # type: ignore[attr-defined]


async def test_a_run_that_is_erased_in_the_middle_of_a_page_does_not_seem_to_end(url: str) -> None:
    async with opened(url) as journal, opened(url) as other:
        await journal.append("r", [RunStarted("t"), *[MessageEnded(f"m{n}") for n in range(600)], RunEnded("finished")])
        await journal.compact("r")
        reading = other.read("r")
        assert (await anext(reading)).seq == 1
        sql = other._store._link.sql  # type: ignore[attr-defined]
        # The run is erased after its row was read, and before its records are.
        sql["read_archive"] = sql["read_archive"].replace(
            "archive.run_key = :run_key", "archive.run_key = :run_key AND false"
        )
        with pytest.raises(JournalError, match="erased"):
            _ = [record async for record in reading]


async def test_schema_is_made_once_by_many_processes(url: str) -> None:
    journals = [open_journal(url, housekeeping=None) for _ in range(6)]
    last = await asyncio.gather(*(journal.append(f"r{n}", [RunStarted("t")]) for n, journal in enumerate(journals)))
    assert last == [1] * 6
    for journal in journals:
        await journal.aclose()


async def test_a_follower_reads_nothing_that_this_process_has_told_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as journal, opened(url) as other:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "write")])
        await other.append("s", [RunStarted("t")])
        reader = journal._store.reader  # type: ignore[attr-defined]
        pages = 0
        page = reader.page

        async def counting(*args: Any) -> Any:
            nonlocal pages
            pages += 1
            return await page(*args)

        monkeypatch.setattr(reader, "page", counting)
        seen: dict[str, asyncio.Queue[int]] = {"r": asyncio.Queue(), "s": asyncio.Queue()}

        async def follow(run_id: str) -> None:
            async for record in journal.follow(run_id):
                seen[run_id].put_nowait(record.seq)

        readers = [asyncio.create_task(follow(run_id)) for run_id in seen]
        assert [await seen["r"].get(), await seen["r"].get(), await seen["s"].get()] == [1, 2, 1]
        await other.append("s", [TextAppended("m", "x")])  # another process is heard, from here on
        assert await seen["s"].get() == 2
        before = pages
        for number in range(20):
            await journal.append("r", [ArgsAppended("c", str(number))])
            assert await seen["r"].get() == 3 + number
        await other.append("s", [TextAppended("m", "y")])
        assert await seen["s"].get() == 3  # all that was said before was heard before
        assert pages - before <= 2
        for reading in readers:
            reading.cancel()
