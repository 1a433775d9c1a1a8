"""What a delta costs at the pace of a model, on each kind of journal: a table of ``bench.journal``.

So many runs write 20 deltas of eight characters a second (``--pace``), each on its own; what comes together within some
milliseconds the journal writes together. Counted for a delta: the CPU time of this process, all that makes them included;
that of the database's and of the log's servers, all of them; the bytes by which their files have grown, before compaction
(PostgreSQL's without its write-ahead log, which it uses again); and the time from calling ``append`` to its answer. Once
nobody reads, and once another process follows all runs: then its CPU time, too, and the time from calling ``append`` to the
delta in its hands. All processes share the machine; what is written in more than a tenth longer than its time is marked, for
then there were not enough cores, and its times say nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bench.nats import Cluster
from bench.table import Table
from callstream.events import CallStarted, RunStarted, TextAppended
from callstream.journal import Journal, open_journal

PACE = 20.0
RUNS = (1, 100, 300, 1000)
AT_ONCE = 100
SETTLING_SECONDS = 3
"""Each follower looks once more when it has read all that there is."""
PATIENCE = 300.0
STAMP_SECONDS, STAMPS = 1e-5, 10**8
BEGINNING = 3
"""The records with which a run begins."""
TICK = os.sysconf("SC_CLK_TCK")


class Engine(NamedTuple):
    """The servers of a journal: CPU seconds so far of the database's and of the log's, and the bytes that files take."""

    database: Callable[[], float]
    log: Callable[[], float]
    size: Callable[[], int]

    def cpu(self) -> float:
        return self.database() + self.log()


def process_seconds(pid: int) -> float:
    """Of a process, its children, and those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:  # it has ended meanwhile, and is its parent's from now on
        return 0.0
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

    return Engine(
        lambda: process_seconds(pid) if pid is not None else 0.0,
        lambda: cluster.cpu_seconds() if cluster is not None else 0.0,
        lambda: folder_bytes(cluster) if cluster is not None else 0,
    )


async def stored(journal: Journal, engine: Engine) -> int:
    """Bytes of the database's tables, and of the files of the log's servers."""
    store: Any = journal._store  # type: ignore[attr-defined]
    index = getattr(store, "_index", store)
    stats = await journal._worker.do(index.reader.stats)
    return int(stats["stored_bytes"]) + await asyncio.to_thread(engine.size)


class Read(NamedTuple):
    """In the other process, for a delta: microseconds, and milliseconds from ``append``."""

    micros: float
    p50: float
    p99: float


class Cost(NamedTuple):
    """For a delta: microseconds here, of the database and of the log, bytes, and milliseconds to the answer."""

    client: float
    database: float
    log: float
    stored: float
    p50: float
    p99: float
    read: Read | None
    late: bool


def quantile(found: Sequence[float], share: float) -> float:
    return found[min(len(found) - 1, int(len(found) * share))]


def stamp() -> str:
    """Eight characters that say when it is, on the clock that all processes share."""
    return f"{int(time.monotonic() / STAMP_SECONDS) % STAMPS:08}"


def since(text: str) -> float:
    """Seconds since the stamp."""
    return (int(time.monotonic() / STAMP_SECONDS) - int(text)) % STAMPS * STAMP_SECONDS


class Reader:
    """Another process that follows the runs meanwhile."""

    def __init__(self, url: str, runs: int, each: int) -> None:
        self._command = (sys.executable, "-W", "ignore", "-m", "bench.journalcost", url, str(runs), str(each))

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.PIPE)
        await self._line()
        await asyncio.sleep(SETTLING_SECONDS)

    async def end(self) -> Read:
        """What it has found, when it has read all."""
        found = Read(*map(float, (await self._line()).split()))
        await self._process.wait()
        return found

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        return await asyncio.wait_for(self._process.stdout.readline(), PATIENCE)


async def follow_all(url: str, runs: int, each: int) -> None:
    """The other process. It says so when it has read what each run began with; in the end, what it took."""
    journal = open_journal(url, housekeeping=None)
    delays: list[float] = []
    began = 0
    used = 0.0

    async def follow(number: int) -> None:
        nonlocal began, used
        async for record in journal.follow(f"run {number}"):
            if record.seq > BEGINNING and isinstance(record.event, TextAppended):
                if not delays:
                    used = time.process_time()
                delays.append(since(record.event.text))
            elif record.seq == BEGINNING:
                began += 1
                if began == runs:
                    print("ready", flush=True)
            if record.seq == BEGINNING + each:
                return

    await asyncio.gather(*(follow(number) for number in range(runs)))
    used = time.process_time() - used
    delays.sort()
    print(used / len(delays) * 1e6, quantile(delays, 0.5) * 1000, quantile(delays, 0.99) * 1000)
    await journal.aclose()


async def paced(journal: Journal, runs: int, pace: float, seconds: float, engine: Engine, read_at: str | None) -> Cost:
    for first in range(0, runs, AT_ONCE):
        await asyncio.gather(*(begin(journal, number) for number in range(first, min(runs, first + AT_ONCE))))
    answers: list[float] = []
    each = int(seconds * pace)

    async def write(number: int) -> None:
        due = time.perf_counter() + number / runs / pace
        for _ in range(each):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += 1 / pace
            began = time.perf_counter()
            await journal.append(f"run {number}", [TextAppended("m", stamp())])
            answers.append(time.perf_counter() - began)

    reader = Reader(read_at, runs, each) if read_at is not None else None
    before = await stored(journal, engine)
    if reader is not None:
        await reader.start()
    here, database, log, began = time.process_time(), engine.database(), engine.log(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(runs):
            tasks.create_task(write(number))
    took = time.perf_counter() - began
    here, database, log = time.process_time() - here, engine.database() - database, engine.log() - log
    read = await reader.end() if reader is not None else None
    grown = await stored(journal, engine) - before
    deltas = runs * each
    answers.sort()
    return Cost(
        *(part / deltas * 1e6 for part in (here, database, log)),
        stored=grown / deltas,
        p50=quantile(answers, 0.5) * 1000,
        p99=quantile(answers, 0.99) * 1000,
        read=read,
        late=took > seconds * 1.1,
    )


async def begin(journal: Journal, number: int) -> None:
    await journal.append(
        f"run {number}", [RunStarted("thread"), CallStarted(f"call {number}", "tool"), TextAppended("m", "a")]
    )


async def cost_table(
    backend: str,
    opened: Callable[[], AbstractAsyncContextManager[Any]],
    engine: Engine,
    runs: Sequence[int],
    *,
    pace: float,
    quick: bool,
) -> None:
    """``opened`` gives the URLs of empty journals, as an async context manager."""
    table = Table(
        f"journal, cost, {backend}: for a delta, at {pace:g} a second and run",
        [
            *("runs", "µs here", "µs of the database", "µs of the log", "bytes", "answer p50, ms", "p99, ms"),
            *("µs of a reader elsewhere", "there p50, ms", "there p99, ms", ""),
        ],
    )
    for count, is_read in product(runs, (False, True)):
        async with opened() as store:
            journal = open_journal(store.url, housekeeping=None)
            seconds = (5 if quick else 20) * (1 if count > 1 else 3)
            cost = await paced(journal, count, pace, seconds, engine, store.url if is_read else None)
            await journal.aclose()
        there = ("no", "", "") if cost.read is None else cost.read
        servers = [part if part else "" for part in (cost.database, cost.log)]
        remark = "too slow" if cost.late else ""
        table.row(count, cost.client, *servers, cost.stored, cost.p50, cost.p99, *there, remark)
    table.print()


if __name__ == "__main__":
    asyncio.run(follow_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
