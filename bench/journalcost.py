"""What a delta costs at the pace of a model, on each kind of journal: a table of ``bench.journal``.

So many runs write 20 deltas of eight characters a second, each on its own; what comes together within some milliseconds
the journal writes together. Counted: the CPU time of this process for a delta, all that makes them included; that of the
database's and the log's servers, all of them; the bytes by which their files have grown, before anything is compacted
(PostgreSQL's without its write-ahead log, which it uses again); and the time from calling ``append`` to its answer. Once
nobody reads, and once another process follows all runs: what that costs the servers counts, what it costs that process not.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from bench.nats import Cluster
from bench.table import Table
from callstream.events import CallStarted, RunStarted, TextAppended
from callstream.journal import Journal, open_journal

DELTAS_A_SECOND = 20
SETTLING_SECONDS = 3
"""Each follower looks once more when it has read all that there is."""
BEGINNING = 3
"""The records with which a run begins."""
TICK = os.sysconf("SC_CLK_TCK")


class Engine(NamedTuple):
    """The servers of a journal: their CPU seconds so far, and the bytes that their files take."""

    cpu: Callable[[], float]
    size: Callable[[], int]


def process_seconds(pid: int) -> float:
    """Of a process, its children, and those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(int(field) for field in fields[11:15]) / TICK + sum(process_seconds(int(child)) for child in children)


async def postmaster(server: str) -> int:
    import asyncpg

    connection = await asyncpg.connect(server)
    folder = await connection.fetchval("SHOW data_directory")
    await connection.close()
    return int((await asyncio.to_thread(Path(folder, "postmaster.pid").read_text)).splitlines()[0])


def folder_bytes(cluster: Cluster) -> int:
    files = [file for node in cluster.nodes for file in (node.folder / "data").rglob("*")]
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file())


async def engine_of(server: str | None, cluster: Cluster | None) -> Engine:
    """The servers of PostgreSQL and of NATS, where there are any."""
    pid = None if server is None else await postmaster(server)

    def cpu() -> float:
        database = process_seconds(pid) if pid is not None else 0.0
        return database + (cluster.cpu_seconds() if cluster is not None else 0.0)

    return Engine(cpu, lambda: folder_bytes(cluster) if cluster is not None else 0)


async def stored(journal: Journal, engine: Engine) -> int:
    """Bytes of the database's tables, and of the files of the log's servers."""
    store: Any = journal._store  # type: ignore[attr-defined]
    index = getattr(store, "_index", store)
    stats = await journal._worker.do(index.reader.stats)
    return int(stats["stored_bytes"]) + await asyncio.to_thread(engine.size)


class Cost(NamedTuple):
    """For a delta: microseconds here, microseconds of the servers, bytes; and milliseconds to the answer, sorted."""

    client: float
    engine: float
    stored: float
    answers: list[float]

    def at(self, share: float) -> float:
        return self.answers[min(len(self.answers) - 1, int(len(self.answers) * share))]


@asynccontextmanager
async def reading(url: str, runs: int) -> AsyncIterator[None]:
    """Another process follows the runs meanwhile."""
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", "bench.journalcost", url, str(runs)), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None
    await other.stdout.readline()
    await asyncio.sleep(SETTLING_SECONDS)
    try:
        yield
    finally:
        other.kill()
        await other.wait()


async def follow_all(url: str, runs: int) -> None:
    """The other process. It says so when it has read what each run began with, and goes on until it is killed."""
    journal = open_journal(url, housekeeping=None)
    began = 0

    async def follow(number: int) -> None:
        nonlocal began
        async for record in journal.follow(f"run {number}"):
            if record.seq == BEGINNING:
                began += 1
                if began == runs:
                    print("ready", flush=True)

    await asyncio.gather(*(follow(number) for number in range(runs)))


async def paced(journal: Journal, runs: int, seconds: float, engine: Engine, read_at: str | None) -> Cost:
    for number in range(runs):
        await journal.append(
            f"run {number}", [RunStarted("thread"), CallStarted(f"call {number}", "tool"), TextAppended("m", "a")]
        )
    answers: list[float] = []
    each = int(seconds * DELTAS_A_SECOND)

    async def write(number: int) -> None:
        due = time.perf_counter() + number / runs / DELTAS_A_SECOND
        for _ in range(each):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += 1 / DELTAS_A_SECOND
            began = time.perf_counter()
            await journal.append(f"run {number}", [TextAppended("m", "12345678")])
            answers.append(time.perf_counter() - began)

    before = await stored(journal, engine)
    async with reading(read_at, runs) if read_at is not None else nullcontext():
        here, there = time.process_time(), engine.cpu()
        async with asyncio.TaskGroup() as tasks:
            for number in range(runs):
                tasks.create_task(write(number))
        here, there = time.process_time() - here, engine.cpu() - there
    grown = await stored(journal, engine) - before
    deltas = runs * each
    return Cost(here / deltas * 1e6, there / deltas * 1e6, grown / deltas, sorted(answers))


async def cost_table(
    backend: str, opened: Callable[[], AbstractAsyncContextManager[Any]], engine: Engine, quick: bool
) -> None:
    """``opened`` gives the URLs of empty journals, as an async context manager."""
    table = Table(
        f"journal, cost, {backend}: for a delta, at {DELTAS_A_SECOND} a second and run",
        ["runs", "read elsewhere", "µs here", "µs of the servers", "bytes", "answer p50, ms", "p99, ms"],
    )
    for runs, is_read in ((100, False), (100, True), (300, False), (300, True)):
        async with opened() as store:
            journal = open_journal(store.url, housekeeping=None)
            cost = await paced(journal, runs, 5 if quick else 20, engine, store.url if is_read else None)
            await journal.aclose()
        table.row(
            runs,
            "yes" if is_read else "no",
            cost.client,
            cost.engine,
            cost.stored,
            cost.at(0.5) * 1000,
            cost.at(0.99) * 1000,
        )
    table.print()


if __name__ == "__main__":
    asyncio.run(follow_all(sys.argv[1], int(sys.argv[2])))
