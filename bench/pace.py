"""Table "pace": what a delta costs at the pace of real models, where each of them is a wake-up of its own.

Every stream is one run of a google-adk agent, served by one process on a core of its own: Callstream with SQLite and
with PostgreSQL, ag_ui_adk's endpoint with the same agent, and a forwarder that only passes bytes on. The CPU time is that
of the server's process; that of a database is apart, and so is that of the three servers of NATS that are a log beside it.
The latency is from the model's write to the client's read, for Callstream with every delta in the journal before it is
shown. Model, clients, databases and logs are on the other core: a rung in which model and clients use more than 80 % of it
says nothing about the server, and is marked void. A server that delivers less than nine tenths of the deltas in time falls
behind.

``--what`` and ``--maker`` say what models write, and which class of google-adk's reads it; both may be repeated. ``mixed``
is a load of runs that start, write seven parts of text and three of arguments, run their tool and end, and then the next
one begins; there, what should have been delivered is what models wrote, which is less than streams times pace.

The second table takes the way apart: reading with httpx alone and with the tap's own connections, then with the tap, then
with a journal. The third is memory, and what clients cost that read a run in which nothing happens.
ag_ui_adk runs in an environment of its own; see ``bench.comparison``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeAlias, get_args
from urllib.parse import parse_qs, urlsplit

from bench.load import Clients, Maker, Model, What
from bench.nats import Cluster, nats_cluster, with_log
from bench.postgres import postgres_url, with_schema
from bench.server import server
from bench.table import Table
from bench.usage import LOADING, SETTLING, cpu_seconds, least_seconds, resident, use

RUNGS = ((5, 20), (20, 20), (60, 20), (100, 20), (300, 20), (20, 100))
"""Streams, and deltas a second of each."""
SECONDS = 8.0
STREAM_KIB, FOLLOWER_KIB = 222, 18
"""Half of what they were in version 0.1, whose server had 222 MiB with 300 streams and 309 with 500."""
SPARE = 90.0
"""How much longer than needed the model could go on writing: a server may be slow to start its streams."""
WARM_UP = 20
"""Followers before those that are counted, so that what all of them share is there."""
SERVERS = ("callstream, SQLite", "callstream, PostgreSQL", "ag_ui_adk", "forwarder")
WITH_SESSIONS = ("continuing, SQLite", "not continuing, SQLite")
"""Callstream with sessions on disk, whose runs another process could go on with, and could not; on request only."""
GATHERING = "callstream, gathering {:g} ms"
"""On request only: SQLite, with another time for which what several runs bring gathers."""
WITH_LOG = "callstream, PostgreSQL + NATS"
"""On request only."""
OURS = "callstream, SQLite"
STEPS = (
    ("httpx alone", "httpx"),
    ("the tap's connections alone", "connections"),
    ("tap, memory", "memory"),
    ("tap, SQLite", "sqlite"),
)
IDLE = 1000
IDLE_STARTS_PER_SECOND = 200.0
IDLE_SECONDS = 30.0
"""Two heartbeats."""


class Load(NamedTuple):
    """What models write, and the class of google-adk's that reads it."""

    what: What
    maker: Maker

    def __str__(self) -> str:
        return f"{self.what}, {self.maker}"


USUAL = Load("arguments", "gemini")


class Rung(NamedTuple):
    """``micros``: of CPU for each delta that reached a client. ``driver``: the share of its core that it used."""

    micros: float
    database: float | None
    log: float | None
    p50: float
    p99: float
    share: float
    memory: float
    driver: float
    remark: str
    """Why the rung says little about what a delta costs."""


Found: TypeAlias = dict[tuple[str, int, float], Rung]
"""By server, streams, and deltas a second of each."""


class Database(NamedTuple):
    """``cluster``: the servers of a log beside it."""

    url: str
    cluster: Cluster | None = None

    def journal(self) -> str:
        name = f"pace_{uuid.uuid4().hex[:12]}"
        url = with_schema(self.url, name)
        return url if self.cluster is None else with_log(url, self.cluster.log, name)

    def log_seconds(self) -> float:
        return 0.0 if self.cluster is None else self.cluster.cpu_seconds()

    def cpu_seconds(self) -> float:
        """Of all its processes. Of one that was not started for the measurement nothing is known, and this is 0."""
        folder = parse_qs(urlsplit(self.url).query).get("host", [""])[0]
        file = Path(folder) / "postmaster.pid"
        if not file.is_file():
            return 0.0
        found = 0.0
        first = int(file.read_text().split()[0])
        for pid in [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]:
            try:
                found += cpu_seconds(pid)
            except OSError:
                continue  # it has ended
        return found


async def measure(
    which: str,
    streams: int,
    pace: float,
    seconds: float = SECONDS,
    database: Database | None = None,
    load: Load = USUAL,
) -> Rung:
    gather = float(which.split()[-2]) if which.endswith(GATHERING.partition("{:g}")[2]) else None
    model = Model(pace, least_seconds(streams, seconds) + SPARE, load.what, load.maker)
    journal = None if database is None else database.journal()
    of_log: list[float] = []

    def count() -> float:
        """Before and after."""
        of_log.append(database.log_seconds() if database else 0.0)
        return database.cpu_seconds() if database else 0.0

    async with model.listen() as base_url:
        with server(which.partition(",")[0], base_url, journal, load.maker, gather=gather) as (address, pid):
            is_mixed = load.what == "mixed"  # some run is always about to begin
            clients = Clients(address, go_on=is_mixed)
            written = (lambda: model.written) if is_mixed else None
            found = await use(clients, pid, streams, seconds, waits=not is_mixed, count=count, written=written)
    if (found.early and not is_mixed) or not found.latencies.count:
        came = found.latencies.count
        raise RuntimeError(f"{which}: {found.early} of {streams} streams ended early, {came} deltas came")
    rung = Rung(
        found.micros,
        found.other / found.latencies.count * 1e6 if database else None,
        (of_log[1] - of_log[0]) / found.latencies.count * 1e6 if database and database.cluster else None,
        found.latencies.quantile(0.5),
        found.latencies.quantile(0.99),
        found.share,
        found.memory,
        found.driver,
        found.remark(streams, pace),
    )
    print(
        f"  {which}, {streams} streams of {load} at {pace:g}/s: {rung.micros:.0f} µs per delta, p50 {rung.p50:.1f} ms, "
        f"p99 {rung.p99:.1f} ms, {rung.share:.0%} of a core, driver {rung.driver:.0%} {rung.remark}",
        file=sys.stderr,
        flush=True,
    )
    return rung


class Idle(NamedTuple):
    """What followers of a run cost in which nothing happens. ``share``: of a core, all of them together."""

    kibibytes: float
    share: float


async def measure_idle(followers: int, seconds: float) -> Idle:
    model = Model(1 / 3600, 7200)
    async with model.listen() as base_url:
        with server("callstream", base_url) as (address, pid):
            clients = Clients(address)
            run_id = uuid.uuid4().hex
            await clients.add(run_id)
            await clients.wait(LOADING, for_deltas=False)
            for number in range(followers + WARM_UP):
                if number == WARM_UP:
                    await asyncio.sleep(SETTLING)
                    before = resident(pid)
                await clients.follow(run_id)
                await asyncio.sleep(1 / IDLE_STARTS_PER_SECOND)
            await clients.wait(LOADING, for_deltas=False)
            await asyncio.sleep(SETTLING)
            memory = resident(pid) - before
            began, used = time.monotonic(), cpu_seconds(pid)
            await asyncio.sleep(seconds)
            share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
            left = 1 + WARM_UP + followers - len(clients.open)
            clients.leave()
    if left:
        raise RuntimeError(f"{left} of {followers} followers ended early")
    return Idle(memory * 1024 / followers, share)


async def measure_step(step: str, streams: int, pace: float, seconds: float) -> float:
    """CPU microseconds per delta of a process that only reads."""
    model = Model(pace, SETTLING + seconds + SPARE)
    async with model.listen() as base_url:
        command = ["-m", "bench.reading", "--provider", base_url, "--step", step, "--core", "0"]
        command += ["--streams", str(streams), "--pace", str(pace), "--seconds", str(seconds)]
        return float(await _printed(command))


async def measure_alone(runs: int, pace: float, seconds: float) -> float:
    """KiB of a run of google-adk without anything around it."""
    model = Model(pace, SPARE)
    async with model.listen() as base_url:
        command = ["-m", "bench.alone", "--provider", base_url, "--runs", str(runs), "--seconds", str(seconds)]
        return float(await _printed(command))


async def _printed(command: Sequence[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", *command, stdout=subprocess.PIPE, env=environment
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{command[1]} ended with status {process.returncode}")
    return printed.decode()


def judge(load: Load, found: Found, idle: Idle | None) -> bool:
    """Prints what is wanted, and whether it was reached. What was not measured, or says little, is not judged."""
    passed = True

    def say(what: str, is_reached: bool) -> None:
        nonlocal passed
        passed = passed and is_reached
        print(f"{load}: {what}: {'PASS' if is_reached else 'FAIL'}")

    def rung(which: str, streams: int) -> Rung | None:
        known = found.get((which, streams, 20))
        return None if known is None or known.remark else known

    if load.what == "mixed":
        return True  # figures, not goals: most of it is what google-adk does when runs begin and end
    if (mine := rung(OURS, 20)) and (theirs := rung("ag_ui_adk", 20)):
        ratio = theirs.micros / mine.micros
        say(f"20 streams: {ratio:.1f} times less CPU than ag_ui_adk (at least 5)", ratio >= 5)
    for streams in (60, 300):
        if (mine := rung(OURS, streams)) and (least := rung("forwarder", streams)):
            ratio = mine.micros / least.micros
            say(f"{streams} streams: {ratio:.1f} times the forwarder's CPU (at most 4)", ratio <= 4)
    if mine := rung(OURS, 300):
        say(f"300 streams: p99 {mine.p99:.0f} ms (below 100)", mine.p99 < 100)
    if (stream := stream_kibibytes(found)) is not None:
        say(f"a stream: {stream:.0f} KiB (at most {STREAM_KIB})", stream <= STREAM_KIB)
    if idle is not None:
        say(f"an idle follower: {idle.kibibytes:.1f} KiB (at most {FOLLOWER_KIB})", idle.kibibytes <= FOLLOWER_KIB)
        say(f"{IDLE:,} idle followers: {idle.share:.1%} of a core (at most 1.0%)", idle.share <= 0.01)
    return passed


def measure_rungs(
    servers: Sequence[str], rungs: Sequence[tuple[int, float]], seconds: float, loads: Sequence[Load]
) -> dict[Load, Found]:
    found: dict[Load, Found] = {load: {} for load in loads}
    table = Table(
        "pace: servers on one core, CPU of the server per delta, and latency from the model's write to the client's read",
        [
            "",
            "of",
            "streams",
            "deltas/s",
            "µs",
            "database's µs",
            "log's µs",
            "p50 ms",
            "p99 ms",
            "of a core",
            "MiB",
            "driver's core",
            "",
        ],
    )
    with ExitStack() as stack:
        database: Database | None = None
        if any("PostgreSQL" in which for which in servers):
            database = Database(stack.enter_context(postgres_url()))
        logged: Database | None = None
        if database is not None and WITH_LOG in servers:
            logged = database._replace(cluster=stack.enter_context(nats_cluster(3)))
        for load, (streams, pace), which in product(loads, rungs, servers):
            if which == "ag_ui_adk" and (streams, pace) != (20, 20):
                continue
            behind = logged if which == WITH_LOG else database if "PostgreSQL" in which else None
            rung = asyncio.run(measure(which, streams, pace, seconds, behind, load))
            found[load][which, streams, pace] = rung
            apart = ("" if part is None else part for part in (rung.database, rung.log))
            cells = (rung.micros, *apart, rung.p50, rung.p99, f"{rung.share:.0%}", rung.memory)
            table.row(which, str(load), streams, f"{pace:g}", *cells, f"{rung.driver:.0%}", rung.remark)
    table.print()
    return found


def measure_steps(served: Rung | None, seconds: float) -> None:
    streams, pace = 20, 20.0
    title = f"pace: where it goes, CPU µs per delta, {streams} streams at {pace:g} deltas/s"
    table = Table(title, ["", "µs", "more"])
    before = 0.0
    for name, step in STEPS:
        micros = asyncio.run(measure_step(step, streams, pace, seconds))
        table.row(name, micros, micros - before)
        before = micros
    served = served or asyncio.run(measure(OURS, streams, pace, seconds))
    table.row("server, SQLite", served.micros, served.micros - before)
    table.print()


def stream_kibibytes(found: Found) -> float | None:
    """What a stream adds to the server; None where the two rungs were not measured."""
    few, many = (found.get((OURS, streams, 20)) for streams in (20, 100))
    return None if few is None or many is None else (many.memory - few.memory) * 1024 / 80


def measure_memory(found: Found) -> Idle:
    table = Table(
        "pace: memory of the server, and CPU of clients that only wait", ["", "KiB each", "of a core, together"]
    )
    if (stream := stream_kibibytes(found)) is not None:
        table.row("stream (from 20 to 100)", stream, f"{found[OURS, 100, 20].share:.0%}")
        table.row("run of google-adk alone, hardly a delta", asyncio.run(measure_alone(80, 0.5, SETTLING)), "")
    idle = asyncio.run(measure_idle(IDLE, IDLE_SECONDS))
    table.row(f"follower of an idle run ({IDLE:,})", idle.kibibytes, f"{idle.share:.1%}")
    table.print()
    return idle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=(*SERVERS, WITH_LOG, *WITH_SESSIONS), action="append", help="fewer servers")
    parser.add_argument(
        "--gather", type=float, action="append", help="only Callstream, whose journal gathers for so many milliseconds"
    )
    parser.add_argument("--streams", type=int, action="append", help="only the rungs with so many streams")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each rung (default: {SECONDS:g})")
    parser.add_argument(
        "--what",
        choices=get_args(What),
        action="append",
        help="what models write; may be repeated (default: arguments)",
    )
    parser.add_argument(
        "--maker",
        choices=get_args(Maker),
        action="append",
        help="google-adk's class for the model: Gemini, AnthropicLlm or LiteLlm; may be repeated (default: gemini)",
    )
    parser.add_argument("--table", choices=("rungs", "steps", "memory"), help="one of the three tables alone")
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    only = [GATHERING.format(milliseconds) for milliseconds in options.gather or ()] or options.only
    loads = [Load(what, maker) for maker in options.maker or ["gemini"] for what in options.what or ["arguments"]]
    found: dict[Load, Found] = {load: {} for load in loads}
    idle: Idle | None = None
    if options.table in (None, "rungs"):
        rungs = [rung for rung in RUNGS if not options.streams or rung[0] in options.streams]
        found = measure_rungs(only or SERVERS, rungs, options.seconds, loads)
    is_whole = options.table is None and only is None and loads == [USUAL]
    usual = found.get(USUAL, {})
    if is_whole or options.table == "steps":
        measure_steps(usual.get((OURS, 20, 20)), options.seconds)
    if is_whole or options.table == "memory":
        idle = measure_memory(usual)
    reached = [judge(load, rungs, idle if load == loads[0] else None) for load, rungs in found.items()]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
