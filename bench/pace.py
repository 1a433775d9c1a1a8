"""Table "pace": what a delta costs at the pace of real models, where each of them is a wake-up of its own.

Every stream is one run of a google-adk agent, served by one process on a core of its own: Callstream with SQLite and
with PostgreSQL, ag_ui_adk's endpoint with the same agent, and a forwarder that only passes bytes on. The CPU time is that
of the server's process; a database's own is apart. The latency is from the model's write to the client's read, for
Callstream with every delta in the journal before it is shown. Model and clients are this process, on the other core: a
rung in which they use more than 80 % of it says nothing about the server, and is marked void.

The second table takes the way apart: reading with the HTTP client alone, then with the tap, then with a journal.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from bench.comparison import interpreter
from bench.load import Clients, Model
from bench.postgres import postgres_url, with_schema
from bench.server import cpu_seconds, resident
from bench.table import Table

RUNGS = ((5, 20), (20, 20), (60, 20), (100, 20), (300, 20), (20, 100))
"""Streams, and deltas a second of each."""
SECONDS = 8.0
STARTS_PER_SECOND = 25.0
SPARE = 40.0
"""How much longer than needed the model could go on writing: a server may be slow to start its streams."""
SETTLING = 2.0
LOADING = 120.0
"""How long a server may take to load all that it needs, and to serve its first stream."""
MOST_OF_DRIVER = 0.8
SERVERS = ("callstream, SQLite", "callstream, PostgreSQL", "ag_ui_adk", "forwarder")
STEPS = (("HTTP client alone", "none"), ("tap, memory", "memory"), ("tap, SQLite", "sqlite"))


class Rung(NamedTuple):
    """``micros``: of CPU for each delta that reached a client. ``driver``: the share of its core that it used."""

    micros: float
    database: float | None
    p50: float
    p99: float
    share: float
    memory: float
    driver: float

    @property
    def is_void(self) -> bool:
        return self.driver > MOST_OF_DRIVER


class Database(NamedTuple):
    url: str

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


@contextmanager
def server(which: str, base_url: str, database: Database | None) -> Iterator[tuple[str, int]]:
    """Its address and process id."""
    name = which.partition(",")[0]
    command = [interpreter() if name == "ag_ui_adk" else sys.executable, "-W", "ignore", "-m", "bench.served"]
    command += ["--which", name, "--provider", base_url, "--core", "0"]
    if database is not None:
        command += ["--journal", with_schema(database.url, f"pace_{uuid.uuid4().hex[:12]}")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"{which} did not start")
        yield address, process.pid
    finally:
        process.kill()
        process.wait(10)


async def measure(
    which: str, streams: int, pace: float, seconds: float = SECONDS, database: Database | None = None
) -> Rung:
    model = Model(pace, streams / STARTS_PER_SECOND + SETTLING + seconds + SPARE)
    async with model.listen() as base_url:
        with server(which, base_url, database) as (address, pid):
            clients = Clients(address)
            await clients.add()
            async with asyncio.timeout(LOADING):
                await clients.has_read.wait()
            for _ in range(1, streams):
                await clients.add()
                await asyncio.sleep(1 / STARTS_PER_SECOND)
            await asyncio.sleep(SETTLING)
            before = cpu_seconds(pid), time.process_time(), database.cpu_seconds() if database else 0.0
            began = time.monotonic()
            clients.since = time.monotonic_ns()
            await asyncio.sleep(seconds)
            lasted = time.monotonic() - began
            used = cpu_seconds(pid) - before[0]
            driver = (time.process_time() - before[1]) / lasted
            by_database = database.cpu_seconds() - before[2] if database else 0.0
            memory, found, left = resident(pid), clients.found, streams - len(clients.open)
            clients.leave()
    if left or not found.count:
        raise RuntimeError(f"{which}: {left} of {streams} streams ended early, {found.count} deltas came")
    rung = Rung(
        used / found.count * 1e6,
        by_database / found.count * 1e6 if database else None,
        found.quantile(0.5),
        found.quantile(0.99),
        used / lasted,
        memory,
        driver,
    )
    print(
        f"  {which}, {streams} streams at {pace:g}/s: {rung.micros:.0f} µs per delta, p50 {rung.p50:.1f} ms, "
        f"p99 {rung.p99:.1f} ms, {rung.share:.0%} of a core, driver {driver:.0%}{' (void)' if rung.is_void else ''}",
        file=sys.stderr,
        flush=True,
    )
    return rung


async def measure_step(journal: str, streams: int, pace: float, seconds: float) -> float:
    """CPU microseconds per delta of a process that only reads."""
    model = Model(pace, SETTLING + seconds + SPARE)
    async with model.listen() as base_url:
        command = ["-m", "bench.reading", "--provider", base_url, "--journal", journal, "--core", "0"]
        command += ["--streams", str(streams), "--pace", str(pace), "--seconds", str(seconds)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", *command, stdout=subprocess.PIPE, env=environment
        )
        printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"bench.reading ended with status {process.returncode}")
    return float(printed)


def judge(found: dict[tuple[str, int, float], Rung]) -> bool:
    """Prints what is wanted, and whether it was reached. What is void, or was not measured, is not judged."""
    ours = "callstream, SQLite"
    passed = True

    def say(what: str, is_reached: bool) -> None:
        nonlocal passed
        passed = passed and is_reached
        print(f"{what}: {'PASS' if is_reached else 'FAIL'}")

    def rung(which: str, streams: int) -> Rung | None:
        known = found.get((which, streams, 20))
        return None if known is None or known.is_void else known

    if (mine := rung(ours, 20)) and (theirs := rung("ag_ui_adk", 20)):
        ratio = theirs.micros / mine.micros
        say(f"20 streams: {ratio:.1f} times less CPU than ag_ui_adk (at least 5)", ratio >= 5)
    for streams in (60, 300):
        if (mine := rung(ours, streams)) and (least := rung("forwarder", streams)):
            ratio = mine.micros / least.micros
            say(f"{streams} streams: {ratio:.1f} times the forwarder's CPU (at most 4)", ratio <= 4)
    if mine := rung(ours, 300):
        say(f"300 streams: p99 {mine.p99:.0f} ms (below 100)", mine.p99 < 100)
    return passed


def measure_rungs(
    servers: Sequence[str], rungs: Sequence[tuple[int, float]], seconds: float
) -> dict[tuple[str, int, float], Rung]:
    found: dict[tuple[str, int, float], Rung] = {}
    table = Table(
        "pace: servers on one core, CPU of the server per delta, and latency from the model's write to the client's read",
        ["", "streams", "deltas/s", "µs", "database's µs", "p50 ms", "p99 ms", "of a core", "MiB", "driver's core", ""],
    )
    with ExitStack() as stack:
        database: Database | None = None
        if any("PostgreSQL" in which for which in servers):
            database = Database(stack.enter_context(postgres_url()))
        for streams, pace in rungs:
            for which in servers:
                if which == "ag_ui_adk" and (streams, pace) != (20, 20):
                    continue
                behind = database if "PostgreSQL" in which else None
                rung = asyncio.run(measure(which, streams, pace, seconds, behind))
                found[which, streams, pace] = rung
                by_database = "" if rung.database is None else rung.database
                cells = (rung.micros, by_database, rung.p50, rung.p99, f"{rung.share:.0%}", rung.memory)
                void = "void" if rung.is_void else ""
                table.row(which, streams, f"{pace:g}", *cells, f"{rung.driver:.0%}", void)
    table.print()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SERVERS, action="append", help="fewer servers")
    parser.add_argument("--streams", type=int, action="append", help="only the rungs with so many streams")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each rung (default: {SECONDS:g})")
    parser.add_argument("--steps", action="store_true", help="the second table alone")
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    found: dict[tuple[str, int, float], Rung] = {}
    if not options.steps:
        rungs = [rung for rung in RUNGS if not options.streams or rung[0] in options.streams]
        found = measure_rungs(options.only or SERVERS, rungs, options.seconds)
    if options.steps or options.only is None:
        streams, pace = 20, 20.0
        table = Table(
            f"pace: where it goes, CPU µs per delta, {streams} streams at {pace:g} deltas/s", ["", "µs", "more"]
        )
        before = 0.0
        for name, journal in STEPS:
            micros = asyncio.run(measure_step(journal, streams, pace, options.seconds))
            table.row(name, micros, micros - before)
            before = micros
        served = found.get(("callstream, SQLite", streams, pace))
        served = served or asyncio.run(measure("callstream, SQLite", streams, pace, options.seconds))
        table.row("server, SQLite", served.micros, served.micros - before)
        table.print()
    return 0 if judge(found) else 1


if __name__ == "__main__":
    sys.exit(main())
