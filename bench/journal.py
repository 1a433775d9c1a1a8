"""What the journal costs: ``python -m bench.journal [--quick] [--backend sqlite|postgres|nats|both|all] [--only cost]``.

``both`` is SQLite and PostgreSQL, ``all`` these and PostgreSQL with a log in NATS (three servers on this machine, and
each message on their disks), which has the last two tables only.

Four tables. **Rate**: durable deltas per second with 1, 100 and 1,000 runs at once, each appending one delta of eight
characters after the other, beside a bare loop of the driver that writes the same rows into the same table in batches of
the same size (SQLite: ``executemany`` in a transaction; PostgreSQL: asyncpg's ``executemany``, which is a transaction).
Both are measured in turns and for equally long, so that what else the machine does hits both; the median of the rounds
counts.
**Bytes**: what is stored per byte of arguments, everything counted (all tables and indexes, the whole file), as growth
of the store while runs of that size are written. PostgreSQL's files grow by pages of 8 KiB for each table and index, so
small runs are measured many at a time; how many is in the table. The text is prose, as a model writes it, and random
characters, which no database can compress; PostgreSQL compresses what is longer than 2 KB. Nothing is vacuumed for the
measurement. The row of 0 KiB is a run with one call that has no arguments, in bytes a run: that much every run costs
beside its text. After compaction at most 1.3 is wanted for prose and 2 for random text.
**Follow**: the time from calling ``append`` to the record in a follower's hands, in the same process and in another.
**Cost**: see ``bench.journalcost``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import string
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import count, islice
from statistics import median
from typing import Any, NamedTuple

from bench.journalcost import PACE, RUNS, cost_table, engine_of
from bench.nats import Cluster, nats_cluster, with_log
from bench.postgres import postgres_url, with_schema
from bench.table import Table
from callstream.events import ArgsAppended, CallCompleted, CallStarted, RunEnded, RunStarted, TextAppended
from callstream.journal import Journal, open_journal
from callstream.journal.postgres import address
from callstream.journal.rows import RecordColumns
from callstream.journal.sql import queries

PIECE = 8
LETTERS = string.ascii_letters + string.digits + "+/"
WORDS = """the of and to in is that for it as with on be by this are from or an at which one have not been were but all
their has would there what will when who can more if out so said up about into than them only other new some could time
these two may then do first any my now such like our over man me even most made after also did many before must through
years where much your way well down should because each just those people how too little state good very make world still
own see men work long get here between both life being under never day same another know while last might us great old
year off come since against go came right used take three document section chapter result value table figure report list
price order customer question answer between measure change under number part place again small large house water""".split()  # noqa: SIM905


class Verdicts:
    """PASS and FAIL lines, and the exit code."""

    def __init__(self) -> None:
        self.failed = 0
        self._lines: list[str] = []

    def add(self, good: bool, what: str) -> None:
        self.failed += not good
        self._lines.append(f"{'PASS' if good else 'FAIL'}: {what}")

    def print(self) -> None:
        print("\n".join(self._lines), flush=True)
        self._lines.clear()


class Store(NamedTuple):
    backend: str
    url: str


@asynccontextmanager
async def fresh(backend: str, server: str | None, folder: str, cluster: Cluster | None = None) -> AsyncIterator[Store]:
    """An empty store; a schema is dropped at the end."""
    name = f"bench_{uuid.uuid4().hex[:12]}"
    if backend == "sqlite":
        yield Store(backend, f"sqlite:///{folder}/{name}.db")
        return
    assert server is not None
    import asyncpg

    url = with_schema(server, name)
    yield Store(backend, url if cluster is None else with_log(url, cluster.log, name))
    connection = await asyncpg.connect(server)
    await connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
    await connection.close()


# -- rate --------------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    rate: float
    seconds: float
    batch: float


async def our_rate(store: Store, runs: int, each: int) -> Measured:
    """Deltas per second, how long it took, and deltas in a transaction on average."""
    journal = open_journal(store.url, housekeeping=None)
    for number in range(runs):
        await journal.append(f"run {number}", [RunStarted("thread"), CallStarted(f"call {number}", "tool")])
    commits = 0
    inner = journal._store.commit  # type: ignore[attr-defined]

    async def counted(batch: Sequence[Any]) -> Any:
        nonlocal commits
        commits += 1
        return await inner(batch)

    journal._store.commit = counted  # type: ignore[attr-defined]

    async def write(number: int) -> None:
        call_id, run_id = f"call {number}", f"run {number}"
        for _ in range(each):
            await journal.append(run_id, [ArgsAppended(call_id, "12345678")])

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(runs):
            tasks.create_task(write(number))
    seconds = time.perf_counter() - begin
    await journal.aclose()
    return Measured(runs * each / seconds, seconds, runs * each / commits)


def batches(runs: int, size: int) -> Iterator[list[RecordColumns]]:
    """The rows of that many runs, one delta of each after the other, for as long as somebody takes them."""
    rows = ((run, seq, seq, 1, 1, 1, "12345678") for seq in count(3) for run in range(1, runs + 1))
    while True:
        yield list(islice(rows, size))


async def bare_rate(store: Store, runs: int, size: int, seconds: float) -> float:
    """The driver alone: the same rows, the same table, batches of that size, for that long."""
    journal = open_journal(store.url, housekeeping=None)
    await journal.open()
    await journal.aclose()
    written = 0
    begin = time.perf_counter()
    if store.backend == "sqlite":
        connection = sqlite3.connect(store.url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("PRAGMA synchronous = NORMAL")
        insert = queries("sqlite")["insert_record"]
        for batch in batches(runs, size):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(insert, batch)
            connection.execute("COMMIT")
            written += size
            if time.perf_counter() - begin > seconds:
                break
        connection.close()
    else:
        import asyncpg

        where = address(store.url)
        link = await asyncpg.connect(where.dsn)
        insert = (
            f'INSERT INTO "{where.schema}".record (run_key, seq, at_ms, source, call, kind, body) '
            "VALUES ($1, $2, $3, $4, $5, $6, $7)"
        )
        for batch in batches(runs, size):
            await link.executemany(insert, batch)
            written += size
            if time.perf_counter() - begin > seconds:
                break
        await link.close()
    return written / (time.perf_counter() - begin)


async def rate_table(backend: str, server: str | None, folder: str, quick: bool, verdicts: Verdicts) -> None:
    table = Table(
        f"journal, rate, {backend}: durable deltas per second",
        ["runs at once", "ours", "bare driver", "ours / bare", "deltas a commit"],
    )
    total, rounds = (5_000, 3) if quick else (20_000, 7)
    for runs in (1, 100, 1000):
        each = max(1, (total // 10 if runs == 1 else total) // runs)
        all_ours, all_bare = [], []
        for _ in range(rounds):
            async with fresh(backend, server, folder) as store:
                measured = await our_rate(store, runs, each)
            async with fresh(backend, server, folder) as store:
                all_bare.append(await bare_rate(store, runs, max(1, round(measured.batch)), measured.seconds))
            all_ours.append(measured)
        ours, bare = median(one.rate for one in all_ours), median(all_bare)
        batch = median(one.batch for one in all_ours)
        table.row(runs, ours, bare, ours / bare, batch)
        if runs == 100:
            verdicts.add(
                ours >= bare / 3, f"{backend}, 100 runs: at least a third of the bare driver ({ours / bare:.2f})"
            )
    table.print()
    verdicts.print()


# -- bytes -------------------------------------------------------------------------------------------------------------


def prose(size: int, chance: random.Random) -> str:
    text = '{"content":"'
    while len(text) < size:
        text += " ".join(chance.choices(WORDS, k=chance.randint(4, 20))).capitalize() + ". "
    return text[: size - 2] + '"}'


def noise(size: int, chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=size))


async def write_run(journal: Journal, name: str, text: str) -> None:
    size = len(text)
    await journal.append(name, [RunStarted("thread"), CallStarted(name, "tool")])
    pieces = [ArgsAppended(name, text[start : start + PIECE]) for start in range(0, size, PIECE)]
    for start in range(0, len(pieces), 256):
        await journal.append(name, pieces[start : start + 256])
    await journal.append(name, [CallCompleted(name), RunEnded("finished")])


async def stored(journal: Journal) -> int:
    return int((await journal.stats())["stored_bytes"])


async def bytes_of(store: Store, runs: int, text: Callable[[], str]) -> tuple[float, float]:
    """Stored bytes for a byte of arguments, or for a run if there are none, before and after compaction."""
    journal = open_journal(store.url, housekeeping=None)
    await journal.open()
    empty = await stored(journal)
    total = 0
    for number in range(runs):
        arguments = text()
        total += len(arguments)
        await write_run(journal, f"run {number}", arguments)
    total = total or runs
    before = (await stored(journal) - empty) / total
    for number in range(runs):
        await journal.compact(f"run {number}")
    after = (await stored(journal) - empty) / total
    await journal.aclose()
    return before, after


async def bytes_table(backend: str, server: str | None, folder: str, quick: bool, verdicts: Verdicts) -> None:
    table = Table(
        f"journal, bytes, {backend}: stored for a byte of arguments, in deltas of {PIECE} characters",
        ["KiB a run", "runs", "text", "before compaction", "after"],
    )
    total = (4 if quick else 8) * 1024 * 1024
    async with fresh(backend, server, folder) as store:
        table.row(0, total // 4096, "none", *await bytes_of(store, total // 4096, str))
    for size in (4 * 1024, 64 * 1024, 256 * 1024):
        for kind, text in (("prose", prose), ("random", noise)):
            chance = random.Random(size)
            async with fresh(backend, server, folder) as store:
                before, after = await bytes_of(store, total // size, lambda: text(size, chance))  # noqa: B023
            table.row(size // 1024, total // size, kind, before, after)
            what = f"{backend}, {size // 1024} KiB, {kind}"
            verdicts.add(before <= 12, f"{what}: at most 12 before compaction ({before:.2f})")
            limit = 1.3 if kind == "prose" else 2
            verdicts.add(after <= limit, f"{what}: at most {limit} after compaction ({after:.2f})")
    table.print()
    verdicts.print()


# -- follow ------------------------------------------------------------------------------------------------------------


async def delays(journal: Journal, run_id: str) -> list[float]:
    """Seconds from append to here, for each record that carries its time. All processes share the machine's clock."""
    found = []
    async for record in journal.follow(run_id):
        if isinstance(record.event, TextAppended):
            found.append(time.monotonic() - float(record.event.text))
    return found


async def follow_elsewhere(url: str, run_id: str) -> None:
    """The other process: follows, and prints the delays."""
    journal = open_journal(url, housekeeping=None)
    await journal.open()
    print("ready", flush=True)
    print(" ".join(str(delay) for delay in await delays(journal, run_id)))
    await journal.aclose()


async def write_times(journal: Journal, count: int) -> None:
    chance = random.Random(1)
    for _ in range(count):
        await journal.append("run", [TextAppended("message", str(time.monotonic()))])
        await asyncio.sleep(chance.uniform(0.002, 0.02))
    await journal.append("run", [RunEnded("finished")])


async def follow_table(
    backend: str, server: str | None, folder: str, quick: bool, verdicts: Verdicts, cluster: Cluster | None
) -> None:
    table = Table(f"journal, follow, {backend}: milliseconds from append to a follower", ["follower", "p50", "p99"])
    count = 100 if quick else 400
    for place in ("same process", "other process"):
        async with fresh(backend, server, folder, cluster) as store:
            journal = open_journal(store.url, housekeeping=None)
            await journal.append("run", [RunStarted("thread")])
            found = await (followed_here if place == "same process" else followed_elsewhere)(journal, store.url, count)
            await journal.aclose()
        assert len(found) == count
        found.sort()
        p50, p99 = found[len(found) // 2] * 1000, found[len(found) * 99 // 100] * 1000
        table.row(place, p50, p99)
        if place == "other process":
            verdicts.add(p50 <= 50, f"{backend}: a record is in another process within 50 ms (p50 {p50:.1f} ms)")
    table.print()
    verdicts.print()


async def followed_here(journal: Journal, url: str, count: int) -> list[float]:
    follower = asyncio.create_task(delays(journal, "run"))
    await asyncio.sleep(0.1)
    await write_times(journal, count)
    return await follower


async def followed_elsewhere(journal: Journal, url: str, count: int) -> list[float]:
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.journal", "--follow", url), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None
    await other.stdout.readline()
    await asyncio.sleep(0.2)
    await write_times(journal, count)
    found = [float(text) for text in (await other.stdout.read()).split()]
    await other.wait()
    return found


async def measure(
    backend: str,
    server: str | None,
    cluster: Cluster | None,
    options: argparse.Namespace,
    verdicts: Verdicts,
) -> None:
    quick, only = options.quick, options.only
    with tempfile.TemporaryDirectory() as folder:
        if cluster is None and only in (None, "rate"):
            await rate_table(backend, server, folder, quick, verdicts)
        if cluster is None and only in (None, "bytes"):
            await bytes_table(backend, server, folder, quick, verdicts)
        if only in (None, "follow"):
            await follow_table(backend, server, folder, quick, verdicts, cluster)
        if only in (None, "cost"):
            engine = await engine_of(server, cluster)
            opened = partial(fresh, backend, server, folder, cluster)
            await cost_table(backend, opened, engine, options.runs or RUNS, pace=options.pace, quick=quick)


def main() -> int:
    parser = argparse.ArgumentParser(description="What the journal costs.")
    parser.add_argument("--backend", choices=["sqlite", "postgres", "nats", "both", "all"], default="both")
    parser.add_argument("--only", choices=["rate", "bytes", "follow", "cost"], help="one table")
    parser.add_argument("--runs", type=int, action="append", help="of the table of costs; may be repeated")
    parser.add_argument("--pace", type=float, default=PACE, help="deltas a second of each of them")
    parser.add_argument("--quick", action="store_true", help="fewer rows, a rougher figure")
    parser.add_argument("--follow", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        asyncio.run(follow_elsewhere(options.follow, "run"))
        return 0
    verdicts = Verdicts()
    several = {"both": ["sqlite", "postgres"], "all": ["sqlite", "postgres", "nats"]}
    for backend in several.get(options.backend, [options.backend]):
        with (
            postgres_url() if backend != "sqlite" else nullcontext(None) as server,
            nats_cluster(3) if backend == "nats" else nullcontext(None) as cluster,
        ):
            asyncio.run(measure(backend, server, cluster, options, verdicts))
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
