"""Table "simulated": what 1,000 to 1,000,000 streams take, foretold from what this machine does in the same run.

Service times are measured first (``bench.services``): a serving process at 30 and at 100 streams, SQLite, PostgreSQL and
three NATS servers with batches of two sizes, a run from its beginning to its compaction, a start, the death of a leader.
From these ``bench.discrete`` foretells the rest. The first table is the check: what it says of one process with 50, 150
and 300 streams beside what ``bench.server`` measures of it here. More than 20 % beside it is a FAIL.

Not every delta of a million streams is simulated. One process, one database and one stream of the log are, with the load
that each of them gets; there are many that are alike, and they are counted. What is assumed and not measured is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import sys
import tempfile
import time
from statistics import median
from typing import NamedTuple

from bench.discrete import (
    GATHER,
    Beats,
    Costs,
    Happening,
    Ran,
    answers_of_database,
    answers_of_group,
    run_happening,
    run_process,
)
from bench.journal import prose, write_run
from bench.journalcost import engine_of
from bench.nats import Cluster, nats_cluster, with_log
from bench.postgres import postgres_url, with_schema
from bench.server import PACE
from bench.services import LogTimes, ProcessTimes, calmest, election_seconds, process_times, start_seconds, times_of
from bench.table import Table
from bench.usage import MOST_OF_DRIVER
from callstream.journal import open_journal
from callstream.journal.housekeeping import Housekeeping, JournalSettings
from callstream.journal.queue import ROW_OVERHEAD

CHECKED = (50, 150, 300)
WITHIN = 0.2
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LIMIT = 0.1
"""Seconds that 99 of 100 deltas may take."""
MOST_OF_CORE = 0.9
"""What a process may use of its core, at most."""

# What is assumed.
FILL = 2 / 3
"""Of what a process could carry: a zone of three may go."""
BUSY = 0.5
"""Of a log's servers, at most."""
NODE_CORES = 8
DATABASE_CORES = 64
"""Of the largest server for PostgreSQL, and of the machine that SQLite's processes share."""
NETWORK = 0.0005
"""Seconds between two zones, one way."""
RUN_SECONDS = 60
RUN_BYTES = RUN_SECONDS * PACE * 8
CORE_HOUR, DISK_MONTH, ZONE_GB, OUT_GB = 0.04, 0.10, 0.01, 0.05
"""Prices: of a core for an hour, a GB on disk for a month, a GB between zones, and a GB to clients."""
TAKE_OVER = JournalSettings().lease_ttl + (Housekeeping().sweep_every or 0.0)
"""Seconds until another process has a dead one's runs, at most: its lease, and the next look for such runs."""

RUNS = 60
AFTERWARDS = 15.0
"""Seconds that are simulated after something went wrong."""


class Log(NamedTuple):
    """A kind of journal. ``run``: seconds of the database's CPU for a run's beginning, end and compaction."""

    name: str
    times: LogTimes
    run: float


class Measured(NamedTuple):
    process: ProcessTimes
    logs: dict[str, Log]
    start: float
    election: float


async def run_seconds(url: str, server: str, cluster: Cluster | None) -> float:
    """CPU of PostgreSQL's processes for a run that is begun, written in few pieces, ended and compacted."""
    engine = await engine_of(server, None)
    journal = open_journal(url, housekeeping=None)
    chance = random.Random(1)
    await journal.open()
    used = engine.cpu()
    names = [f"run {number}" for number in range(RUNS)]
    for some in (names[start : start + 10] for start in range(0, RUNS, 10)):
        await asyncio.gather(*(write_run(journal, name, prose(RUN_BYTES, chance)) for name in some))
        for name in some:
            await journal.compact(name)
    used = engine.cpu() - used
    await journal.aclose()
    return used / RUNS


def measure_all() -> Measured:
    with tempfile.TemporaryDirectory() as folder, postgres_url() as server, nats_cluster() as cluster:
        sqlite = asyncio.run(times_of(f"sqlite:///{folder}/calls.db"))
        postgres = asyncio.run(times_of(with_schema(server, "times"), server))
        logged = with_log(with_schema(server, "logged"), cluster.log, "logged")
        nats = asyncio.run(times_of(logged, server, cluster))
        alone = asyncio.run(run_seconds(with_schema(server, "runs"), server, None))
        beside = asyncio.run(run_seconds(with_log(with_schema(server, "ended"), cluster.log, "ended"), server, cluster))
        killed = with_log(with_schema(server, "killed"), cluster.log, "killed")
        election = asyncio.run(election_seconds(killed, "killed", cluster))
    logs = {
        "SQLite": Log("SQLite", sqlite, 0.0),
        "PostgreSQL": Log("PostgreSQL", postgres, alone),
        "NATS": Log("PostgreSQL + NATS", nats, beside),
    }
    return Measured(process_times(sqlite, 1 / GATHER), logs, asyncio.run(start_seconds()), election)


def print_measured(given: Measured) -> None:
    costs = given.process.costs
    table = Table("simulated: a serving process, microseconds of its core, measured", ["", "µs"])
    for name, seconds in (
        ("a delta: read", costs.read),
        ("worked on", costs.work),
        ("written (SQLite)", costs.commit),
        ("shown", costs.show),
        ("a batch: written (SQLite)", costs.commit_batch),
        ("all else of it", costs.batch),
        ("a run that begins", given.start),
    ):
        table.row(name, seconds * 1e6)
    table.print()
    print(f"a delta that comes together with another of its stream: {costs.further:.0%} of work, write and show\n")
    table = Table(
        "simulated: logs, microseconds a batch + a delta in it, measured",
        ["", "writer's CPU", "servers' CPU", "answer alone", "bytes a delta", "database's CPU a run"],
    )
    for log in given.logs.values():
        lines = (log.times.client, log.times.servers, log.times.answer)
        cells = (f"{one.batch * 1e6:.0f} + {one.delta * 1e6:.1f}" for one in lines)
        table.row(log.name, *cells, log.times.stored, log.run * 1e6 or "")
    table.print()
    print(f"the log stood still for {given.election:.1f} s when its leader was killed", flush=True)


# -- the check ---------------------------------------------------------------------------------------------------------


def check(given: Measured, rounds: int) -> bool:
    """Whether all is within what is wanted. What this machine does in a rung is the median of the rounds."""
    table = Table(
        f"simulated: one process on this machine, foretold and measured (median of {rounds})",
        ["streams", "", "foretold", "measured", "beside it by", "others' cores", f"within {WITHIN:.0%}"],
    )
    found = {streams: calmest(streams, rounds) for streams in CHECKED}
    passed = True
    for streams, taken in found.items():
        usages = [one.usage for one in taken]
        others = median(one.others for one in taken)
        ran = run_process(given.process.costs, streams, PACE, given.logs["SQLite"].times.waits)
        for what, foretold, here in (
            ("% of a core", ran.core * 100, median(usage.share * 100 for usage in usages)),
            ("p50 ms", ran.p50 * 1000, median(usage.latencies.quantile(0.5) for usage in usages)),
            ("p99 ms", ran.p99 * 1000, median(usage.latencies.quantile(0.99) for usage in usages)),
        ):
            beside = foretold / here - 1
            is_void = median(usage.driver for usage in usages) > MOST_OF_DRIVER
            is_within = abs(beside) <= WITHIN
            passed = passed and (is_within or is_void)
            verdict = "void" if is_void else "PASS" if is_within else "FAIL"
            table.row(streams, what, foretold, here, f"{beside:+.0%}", others, verdict)
    table.print()
    return passed


# -- sizes -------------------------------------------------------------------------------------------------------------


def holds(ran: Ran) -> bool:
    return ran.p99 <= LIMIT and ran.core <= MOST_OF_CORE and ran.arrived >= 0.98


def most_streams(costs: Costs, answer: float) -> int:
    """That one process carries: the last of steps of ten before the bound is passed."""
    low, high = 1, math.ceil(1 / costs.delta / PACE / 10) + 1
    while high - low > 1:
        middle = (low + high) // 2
        is_carried = holds(run_process(costs, middle * 10, PACE, [answer], seconds=3))
        low, high = (middle, high) if is_carried else (low, middle)
    return low * 10


def carried(given: Measured, log: Log) -> int:
    """Streams that a process carries with that log, while nothing else asks it."""
    return most_streams(given.process.with_log(log.times), log.times.waiting(100 * PACE * GATHER))


class Sized(NamedTuple):
    """What so many streams take with one log. ``busy``: of its servers, with the load that one of them gets."""

    streams: int
    log: Log
    processes: int
    each: int
    cells: int
    database: int
    nodes: int
    busy: float
    ran: Ran

    @property
    def cores(self) -> int:
        return self.processes + self.database + self.nodes * NODE_CORES


def size(given: Measured, kind: str, streams: int, most: int) -> Sized | None:
    """None where it does not fit. ``most``: streams that one process carries."""
    log = given.logs[kind]
    costs = given.process.with_log(log.times)
    alone = log.times.waiting(100 * PACE * GATHER)
    processes = math.ceil(streams / math.floor(most * FILL))
    each = math.ceil(streams / processes)
    ran = run_process(costs, each, PACE, [alone])
    deltas, every = ran.deltas, 1 / ran.batches
    runs = streams / RUN_SECONDS
    if kind == "SQLite":
        lock = log.times.client.of(deltas)
        if processes > DATABASE_CORES or processes * lock / every > BUSY:
            return None
        others = answers_of_database(Beats(processes, every, deltas), 1, lock, 0.0)
        waits = [max(0.0, seconds - lock) for seconds in others.seconds]
        return Sized(streams, log, processes, each, 1, 0, 0, others.core, run_process(costs, each, PACE, waits))
    if kind == "PostgreSQL":
        cpu = log.times.servers.of(deltas)
        database = max(2, math.ceil((processes / every * cpu + runs * log.run) / BUSY))
        cells = math.ceil(database / DATABASE_CORES)
        cores = math.ceil(database / cells)
        flush = max(0.0, log.times.waiting(deltas) - cpu)
        answers = answers_of_database(Beats(math.ceil(processes / cells), every, deltas), cores, cpu, flush, seconds=2)
        ran = run_process(costs, each, PACE, answers.seconds)
        return Sized(streams, log, processes, each, cells, cores * cells, 0, answers.core, ran)
    serial = log.times.waiting(deltas) / 2
    led = max(1, math.floor(BUSY * every / serial))
    group = answers_of_group(Beats(min(led, processes), every, deltas), serial, NETWORK)
    database = max(2, math.ceil(runs * log.run / BUSY))
    busy_cores = processes / every * log.times.servers.of(deltas)
    nodes = 3 * max(1, math.ceil(busy_cores / BUSY / NODE_CORES / 3))
    cells = math.ceil(database / DATABASE_CORES)
    ran = run_process(costs, each, PACE, group.seconds)
    return Sized(streams, log, processes, each, cells, math.ceil(database / cells) * cells, nodes, group.core, ran)


def size_all(given: Measured) -> list[Sized]:
    table = Table(
        f"simulated: streams at {PACE} deltas/s, runs of {RUN_SECONDS} s, p99 below {LIMIT * 1000:g} ms with a third free",
        [
            "streams",
            "journal",
            "processes",
            "streams each",
            "of their cores",
            "journals",
            "database's cores",
            "NATS nodes",
            "log busy",
            "to the log, MB/s",
            "to clients, MB/s",
            "p50 ms",
            "p99 ms",
        ],
    )
    found = []
    most = {kind: carried(given, log) for kind, log in given.logs.items()}
    for streams in SIZES:
        for kind, log in given.logs.items():
            sized = size(given, kind, streams, most[kind])
            if sized is None:
                table.row(f"{streams:,}", log.name, "does not fit", *[""] * 10)
                continue
            found.append(sized)
            ran, rate = sized.ran, streams * PACE / 1e6
            table.row(
                f"{streams:,}",
                log.name,
                f"{sized.processes:,}",
                sized.each,
                f"{ran.core:.0%}",
                sized.cells,
                sized.database or "",
                sized.nodes or "",
                f"{sized.busy:.0%}",
                rate * log.times.stored,
                rate * given.process.wire,
                ran.p50 * 1000,
                ran.p99 * 1000,
            )
    table.print()
    return found


def price(given: Measured, found: list[Sized]) -> None:
    title = (
        f"simulated: cost of 1,000 stream-hours at ${CORE_HOUR} a core-hour, ${DISK_MONTH:.2f} a GB-month, "
        f"${ZONE_GB} a GB between zones, ${OUT_GB} a GB to clients"
    )
    table = Table(
        title, ["streams", "journal", "processes $", "servers $", "between zones $", "to clients $", "a month kept $"]
    )
    deltas = 1000 * 3600 * PACE
    for sized in found:
        hours = sized.streams / 1000
        log = sized.log
        # Two of three replicas are in other zones; a database is reached from two zones of three.
        share = 0.0 if log.name == "SQLite" else 2 / 3
        table.row(
            f"{sized.streams:,}",
            log.name,
            sized.processes * CORE_HOUR / hours,
            (sized.cores - sized.processes) * CORE_HOUR / hours,
            deltas * log.times.stored * share / 1e9 * ZONE_GB,
            deltas * given.process.wire / 1e9 * OUT_GB,
            deltas * 8 / 1e9 * DISK_MONTH,
        )
    table.print()


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def fail_all(given: Measured, sized: Sized) -> None:
    """What the processes that are concerned go through, in detail."""
    log, costs = sized.log, given.process.with_log(sized.log.times)
    answers = [log.times.waiting(sized.ran.deltas)]
    most = carried(given, log)
    title = f"simulated: {sized.streams:,} streams on {log.name}, and what goes"
    table = Table(
        title, ["what", "streams concerned", "stand still, s", "deltas wait, a process", "MiB", "as before after, s"]
    )
    node = NODE_CORES / sized.processes
    led, gone = Happening(1.0, standstill=given.election), Happening(1.0, later=1.0, start=given.start)
    # Until the runs of dead processes are taken over, nothing happens to the others: that time is not simulated.
    for what, concerned, still, happening in (
        ("a NATS node that leads", 1 / sized.nodes, given.election, led),
        ("an application node", node, TAKE_OVER, gone._replace(joining=math.ceil(sized.each * node / (1 - node)))),
        ("a zone: runs elsewhere whose leaders were there", 2 / 9, given.election, led),
        ("a zone: runs that were there", 1 / 3, TAKE_OVER, gone._replace(joining=math.ceil(sized.each / 2))),
    ):
        after = run_happening(costs, sized.each, PACE, happening, answers, bound=LIMIT, seconds=AFTERWARDS)
        table.row(
            what,
            f"{sized.streams * concerned:,.0f}",
            still,
            f"{after.most_waiting:,}",
            after.most_waiting * (ROW_OVERHEAD + 8) / 2**20,
            f"not in {AFTERWARDS:g}" if after.recovered is None else after.recovered,
        )
    table.print()
    table = Table(
        "simulated: how full processes may be when a NATS node or a zone goes",
        ["of what a process carries", "streams each", "node gone: as before after, s", "zone gone: as before after, s"],
    )
    for fill in (0.5, FILL, 0.75, 0.9):
        each = math.floor(most * fill)
        cells = []
        for happening in (led, gone._replace(joining=math.ceil(each / 2))):
            after = run_happening(costs, each, PACE, happening, answers, bound=LIMIT, seconds=AFTERWARDS)
            cells.append(f"not in {AFTERWARDS:g}" if after.recovered is None else f"{after.recovered:.1f}")
        table.row(f"{fill:.0%}", each, *cells)
    table.print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of the check's measurements (default: 3)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    began = time.monotonic()
    print(f"load of this machine before: {os.getloadavg()[0]:.1f}", flush=True)
    given = measure_all()
    print_measured(given)
    passed = check(given, options.rounds)
    print(
        f"assumed: processes at {FILL:.0%} of what they carry at most ({MOST_OF_CORE:.0%} of a core), log servers "
        f"{BUSY:.0%} busy, nodes of {NODE_CORES} cores, databases of up to {DATABASE_CORES}, {NETWORK * 1000:g} ms between "
        f"zones, dead processes' runs taken over after {TAKE_OVER:g} s at most",
        flush=True,
    )
    found = size_all(given)
    price(given, found)
    fail_all(given, next(one for one in found if one.streams == 100_000 and one.nodes))
    print(f"load of this machine after: {os.getloadavg()[0]:.1f}; {time.monotonic() - began:.0f} s")
    print(f"foretold within {WITHIN:.0%} of what was measured: {'PASS' if passed else 'FAIL'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
