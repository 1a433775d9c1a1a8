"""PostgreSQL commits and nobody hears of it, or another process takes over meanwhile: everything is written once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from callstream.errors import LeaseLost, UsageError
from callstream.events import ArgsAppended, CallStarted, RunEnded, RunStarted, TextAppended
from callstream.journal import open_journal
from callstream.journal.postgres import address

from .conftest import opened
from .proxy import Proxy
from .runs import followed, records
from .zombie import zombie

pytestmark = [pytest.mark.asyncio, pytest.mark.postgres]


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
        follower = asyncio.create_task(followed(journal))
        done, written = asyncio.Event(), asyncio.Event()
        chance = random.Random(7)

        async def kill() -> int:
            killed = 0
            while not done.is_set():
                await written.wait()  # a machine that is slow to connect again gets somewhere too
                written.clear()
                kill_one = (
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'victim'"
                )
                killed += await killer.fetchval(kill_one)
                await asyncio.sleep(chance.uniform(0.05, 0.3))
            return killed

        killing = asyncio.create_task(kill())
        for number in range(100):
            assert await journal.append("r", [ArgsAppended("c", f"{number},")]) == number + 3
            written.set()
            await asyncio.sleep(0.01)
        done.set()
        written.set()
        assert await killing > 3
        assert await journal.append("r", [RunEnded("finished")]) == 103
        assert [record.seq for record in await asyncio.wait_for(follower, 30)] == list(range(1, 104))
        call = await journal.call("c")
        assert call is not None
        assert call.args_json == "".join(f"{number}," for number in range(100))
    await killer.close()


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
