"""What is special about the PostgreSQL journal: servers that go away, acknowledgements that get lost, poolers."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from callstream.errors import JournalError, LeaseLost, UsageError
from callstream.events import ArgsAppended, CallStarted, MessageEnded, Record, RunEnded, RunStarted, TextAppended
from callstream.journal import Journal, open_journal
from callstream.journal.postgres.link import address
from callstream.journal.store import RunFilter, forgettable

from .conftest import drop_schema, schema_url
from .proxy import Proxy
from .server import postgres_server
from .zombie import zombie

pytestmark = [pytest.mark.asyncio, pytest.mark.postgres]


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    schema = f"test_{uuid.uuid4().hex[:12]}"
    yield schema_url(postgres_url, schema)
    asyncio.run(drop_schema(postgres_url, schema))


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Journal]:
    journal = open_journal(url, housekeeping=None, **settings)
    try:
        yield journal
    finally:
        await journal.aclose()


async def records(journal: Journal, run_id: str = "r") -> list[Record]:
    return [record async for record in journal.read(run_id)]


async def test_url_holds_the_options() -> None:
    where = address("postgresql://u:p@h:1/d?host=/tmp/x&schema=s1&listen=off&statement_cache_size=0")
    assert where.dsn == "postgresql://u:p@h:1/d?host=/tmp/x"
    assert (where.schema, where.listen, where.statement_cache_size) == ("s1", False, 0)
    assert "p@" not in where.where
    for wrong in ("schema=a%22b", "listen=maybe", "statement_cache_size=x"):
        with pytest.raises(UsageError):
            open_journal(f"postgresql://h/d?{wrong}")


async def test_a_server_that_is_not_there_is_told() -> None:
    journal = open_journal("postgresql://postgres@127.0.0.1:9/postgres", retry_seconds=0.2)
    with pytest.raises(JournalError, match="away"):
        await journal.append("r", [RunStarted("t")])
    await journal.aclose()


async def test_a_database_that_is_not_there_is_told_at_once(postgres_url: str) -> None:
    journal = open_journal(postgres_url.replace("/postgres?", "/nowhere?"), retry_seconds=1000)
    with pytest.raises(JournalError, match="nowhere"):
        await asyncio.wait_for(journal.append("r", [RunStarted("t")]), 30)
    await journal.aclose()


@pytest.mark.parametrize("lose", [1, 2])
async def test_append_idempotent_when_the_acknowledgement_of_a_new_run_is_lost(url: str, lose: int) -> None:
    """Lost is the answer to the question whether the run exists, or the one to the append itself."""
    async with Proxy(url) as proxy, opened(proxy.url) as journal:
        await journal.append("other", [RunStarted("t"), CallStarted("d", "t")])
        proxy.lose = lose
        assert await journal.append("r", [RunStarted("t"), CallStarted("c", "t"), ArgsAppended("c", "{")]) == 3
        assert proxy.lost == 1
        assert await journal.append("r", [ArgsAppended("c", "}")]) == 4
        assert [record.seq for record in await records(journal)] == [1, 2, 3, 4]


async def test_append_idempotent_when_acknowledgements_are_lost(url: str) -> None:
    async with Proxy(url) as proxy, opened(proxy.url) as journal:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "t")])
        for number in range(20):
            proxy.lose = 1
            assert await journal.append("r", [ArgsAppended("c", f"{number},")]) == number + 3
        assert proxy.lost == 20
        proxy.lose = 1
        assert await journal.append("r", [RunEnded("finished")]) == 23
        call = await journal.call("c")
        assert call is not None
        assert call.args_json == "".join(f"{number}," for number in range(20))
        assert [record.seq for record in await records(journal)] == list(range(1, 24))


async def test_append_idempotent_when_batches_are_lost(url: str) -> None:
    """Many runs in one transaction, of which nobody hears whether it happened; errors of one stay its own."""
    async with Proxy(url) as proxy, opened(proxy.url) as journal:
        for number in range(20):
            await journal.append(f"r{number}", [RunStarted("t")])
        for step in range(5):
            proxy.lose = 1
            appends = [journal.append(f"r{number}", [TextAppended("m", str(step))]) for number in range(20)]
            wrong = journal.append("r0", [ArgsAppended("nobody", "x")])
            *numbers, error = await asyncio.gather(*appends, wrong, return_exceptions=True)
            assert numbers == [step + 2] * 20
            assert isinstance(error, UsageError)
        for number in range(20):
            assert len(await records(journal, f"r{number}")) == 6


async def test_append_idempotent_when_backends_are_killed(url: str) -> None:
    """``pg_terminate_backend`` at any moment: everything is written once, in order."""
    where = address(url)
    killer = await asyncpg.connect(where.dsn)
    async with opened(url + "&application_name=victim") as journal:
        await journal.append("r", [RunStarted("t"), CallStarted("c", "t")])
        follower = asyncio.create_task(collected(journal))
        done = asyncio.Event()
        chance = random.Random(7)

        async def kill() -> int:
            killed = 0
            while not done.is_set():
                kill_one = (
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'victim'"
                )
                killed += await killer.fetchval(kill_one)
                await asyncio.sleep(chance.uniform(0.05, 0.3))
            return killed

        killing = asyncio.create_task(kill())
        for number in range(100):
            assert await journal.append("r", [ArgsAppended("c", f"{number},")]) == number + 3
            await asyncio.sleep(0.01)
        done.set()
        assert await killing > 3
        assert await journal.append("r", [RunEnded("finished")]) == 103
        assert [record.seq for record in await asyncio.wait_for(follower, 30)] == list(range(1, 104))
        call = await journal.call("c")
        assert call is not None
        assert call.args_json == "".join(f"{number}," for number in range(100))
    await killer.close()


async def test_what_grows_with_the_years_is_never_looked_through(url: str) -> None:
    """Runs that are old enough to be erased are few among those that are not, and so are those that go on."""
    where = address(url)
    link = await asyncpg.connect(where.dsn)
    async with opened(url) as journal:
        await journal.append("r", [RunStarted("t")])
        reader = journal._store.reader  # type: ignore[attr-defined]
        await link.execute(
            f'INSERT INTO "{where.schema}".run (run_id, thread_id, epoch, compacted, started_at, ended_at, outcome) '
            "SELECT 'run ' || n, 'thread ' || n, 1, true, n, n + 1, 'finished' FROM generate_series(1, 50000) AS n"
        )
        await link.execute(f'ANALYZE "{where.schema}".run')

        async def plan(name: str, wanted: RunFilter) -> str:
            query, values = reader.filtered(name, wanted.conditions(), 100)
            return "\n".join([row[0] for row in await link.fetch(f"EXPLAIN {query}", *values)])

        assert "Index Scan using run_started" in await plan("forgettable_runs", forgettable(1.0, None, None))
        assert "Seq Scan on run" not in await plan("list_runs", RunFilter(active=True))
        assert await journal.forget(before=3.0) == 1
        assert [run.run_id for run in await journal.runs(active=True)] == ["r"]
    await link.close()


@asynccontextmanager
async def locked_leases(url: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Holds the rows of all leases; what it gives waits until so many statements wait for them."""
    where = address(url)
    holder, observer = await asyncpg.connect(where.dsn), await asyncpg.connect(where.dsn)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'"

    async def wait_for(count: int) -> None:
        async with asyncio.timeout(30):
            while await observer.fetchval(waiting, where.schema) < count:  # noqa: ASYNC110  # the server tells nobody
                await asyncio.sleep(0.01)

    try:
        async with holder.transaction():
            await holder.execute(f'SELECT FROM "{where.schema}".lease FOR UPDATE')
            yield wait_for
    finally:
        await holder.close()
        await observer.close()


async def test_append_idempotent_when_a_broken_connection_still_writes(url: str) -> None:
    """The server goes on with a statement whose connection is cut. Whichever comes first, it is written once."""
    async with Proxy(url) as proxy, opened(f"{proxy.url}&application_name={address(url).schema}") as journal:
        await journal.append("r", [RunStarted("t")])
        for number in range(5):
            async with locked_leases(url) as wait_for:
                append = asyncio.create_task(journal.append("r", [TextAppended("m", str(number))]))
                await wait_for(1)
                proxy.cut()
                await wait_for(2)  # the cut one, and the journal's next attempt
            assert await append == number + 2
        assert [record.seq for record in await records(journal)] == [1, 2, 3, 4, 5, 6]
        assert await journal.append("r", [RunEnded("finished")]) == 7


@pytest.mark.parametrize("first", ["zombie", "sweeper"])
async def test_zombie_fenced_while_it_writes(url: str, first: str) -> None:
    """An append that is under way when the run is taken over is either before the end or refused."""
    named = f"{url}&application_name={address(url).schema}"
    async with zombie(named) as hanging, opened(named) as sweeper:
        await hanging.append("r", [RunStarted("t")])
        await sweeper.open()
        await asyncio.sleep(0.2)
        async with locked_leases(url) as wait_for:
            steps = {
                "zombie": lambda: hanging.append("r", [TextAppended("m", "late")]),
                "sweeper": sweeper.sweep,
            }
            tasks = {}
            for count, name in enumerate(sorted(steps, key=lambda name: name != first), 1):
                tasks[name] = asyncio.create_task(steps[name]())
                await wait_for(count)
        assert await tasks["sweeper"] == ["r"]
        (late,) = await asyncio.gather(tasks["zombie"], return_exceptions=True)
        found = await records(sweeper)
        assert [record.seq for record in found] == list(range(1, len(found) + 1))
        assert found[-1].event == RunEnded("failed", "interrupted")
        assert isinstance(late, LeaseLost) if len(found) == 2 else late == 2
        with pytest.raises(LeaseLost):
            await hanging.append("r", [TextAppended("m", "later")])
        assert await hanging.append("new", [RunStarted("t")]) == 1


async def test_sweep_by_many_at_once_ends_a_run_once(url: str) -> None:
    async with opened(url) as dead:
        for number in range(30):
            await dead.append(f"r{number}", [RunStarted("t")])
    sweepers = [open_journal(url, housekeeping=None) for _ in range(4)]
    swept = await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))
    assert sorted(run_id for found in swept for run_id in found) == sorted(f"r{number}" for number in range(30))
    for number in range(30):
        assert [record.seq for record in await records(sweepers[0], f"r{number}")] == [1, 2]
    for sweeper in sweepers:
        await sweeper.aclose()


async def collected(journal: Journal, run_id: str = "r") -> list[Record]:
    return [record async for record in journal.follow(run_id)]


async def test_server_away_for_good_fails_clearly_and_comes_back(url: str) -> None:
    async with Proxy(url) as proxy, opened(proxy.url, retry_seconds=0.5, max_pending_bytes=2000) as journal:
        await journal.append("r", [RunStarted("t")])
        await proxy.stop()
        with pytest.raises(JournalError, match=r"was away for 0.5 s .*repeat it with after="):
            await journal.append("r", [TextAppended("m", "a")], after=1)
        many = [journal.append("r", [TextAppended("m", "b" * 500)]) for _ in range(10)]
        failed = await asyncio.gather(*many, return_exceptions=True)
        assert {type(error) for error in failed} == {JournalError}
        assert any("did not keep up" in str(error) for error in failed)
        with pytest.raises(JournalError, match="away"):
            await records(journal)
        await proxy.start()
        assert await journal.append("r", [TextAppended("m", "a")], after=1) == 2
        assert [record.seq for record in await records(journal)] == [1, 2]


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
        followers = [asyncio.create_task(collected(other, f"r{number}")) for number in range(5)]

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
        follower = asyncio.create_task(collected(other))
        for number in range(20):
            await journal.append("r", [ArgsAppended("c", str(number))])
            await asyncio.sleep(0.01)
        await journal.append("r", [RunEnded("finished")])
        assert [record.seq for record in await asyncio.wait_for(follower, 30)] == list(range(1, 24))


async def test_a_server_that_refuses_listen_is_looked_at_instead(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: Any) -> None:
        raise asyncpg.FeatureNotSupportedError("LISTEN is not allowed here")

    monkeypatch.setattr(asyncpg.Connection, "add_listener", refused)
    async with opened(url) as journal, opened(url) as other:
        await journal.append("r", [RunStarted("t")])
        follower = asyncio.create_task(collected(other))
        for number in range(5):
            await journal.append("r", [TextAppended("m", str(number))])
            await asyncio.sleep(0.05)
        await journal.append("r", [RunEnded("finished")])
        assert [record.seq for record in await asyncio.wait_for(follower, 30)] == list(range(1, 8))
    assert "LISTEN was refused" in caplog.text


async def test_looking_that_fails_for_a_while_does_not_end_the_journal(
    url: str, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    """A right that was taken away, a disk that was full: that is no reason never to write again."""
    async with opened(url + "&listen=off") as journal, opened(url + "&listen=off") as other:
        await journal.append("r", [RunStarted("t")])
        sql = other._store._sql  # type: ignore[attr-defined]
        looking = sql["followed_runs"]
        sql["followed_runs"] = "SELECT 1 / 0 WHERE $1::text[] IS NOT NULL"
        follower = asyncio.create_task(collected(other))

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


async def test_a_follower_who_waits_long_is_woken_however_much_is_read_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callstream.journal.postgres.reader._MAX_HEADS", 4)
    async with opened(url) as journal, opened(url) as other:
        await journal.append("r", [RunStarted("t")])
        waiting = other.follow("r")
        assert (await anext(waiting)).seq == 1
        next_record = asyncio.create_task(anext(waiting))
        for number in range(10):
            await journal.append(f"s{number}", [RunStarted("t"), RunEnded("finished")])
            assert len(await records(other, f"s{number}")) == 2
        assert len(other._store.reader._heads) <= 4  # type: ignore[attr-defined]
        await journal.append("r", [TextAppended("m", "x")])
        assert (await asyncio.wait_for(next_record, 10)).seq == 2
        await waiting.aclose()  # type: ignore[attr-defined]


async def test_a_run_that_is_erased_in_the_middle_of_a_page_does_not_seem_to_end(url: str) -> None:
    async with opened(url) as journal, opened(url) as other:
        await journal.append("r", [RunStarted("t"), *[MessageEnded(f"m{n}") for n in range(600)], RunEnded("finished")])
        await journal.compact("r")
        reading = other.read("r")
        assert (await anext(reading)).seq == 1
        sql = other._store._sql  # type: ignore[attr-defined]
        # The run is erased after its row was read, and before its records are.
        sql["read_archive"] = sql["read_archive"].replace("archive.run_key = $1", "archive.run_key = $1 AND false")
        with pytest.raises(JournalError, match="erased"):
            _ = [record async for record in reading]


async def test_schema_is_made_once_by_many_processes(url: str) -> None:
    journals = [open_journal(url, housekeeping=None) for _ in range(6)]
    last = await asyncio.gather(*(journal.append(f"r{n}", [RunStarted("t")]) for n, journal in enumerate(journals)))
    assert last == [1] * 6
    for journal in journals:
        await journal.aclose()
