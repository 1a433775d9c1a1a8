"""Table "server": AG-UI streams that one process on one core serves, beside ag_ui_adk's endpoint with the same agent.

Every stream is one run of a google-adk agent whose model writes one call at 20 deltas a second. The deltas carry the time
at which the provider wrote them, and the client that reads the server's events compares it with its own clock: so the
latency is that of the whole way, for ours with every delta in a SQLite journal before it is shown. Runs are started one
after the other; what is measured begins when all go on. The server has one core to itself, model and clients share the
other. ag_ui_adk runs in an environment of its own; see ``bench.comparison``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.comparison import interpreter
from bench.load import Clients, Maker, Model
from bench.many import Latencies
from bench.table import Table
from callstream.testing.provider import STAMP

PACE = 20
WINDOW = 8.0
LIMIT_MS = 250.0
LADDER = (10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 400, 500, 600, 700, 800)
STARTS_PER_SECOND = 25.0
SETTLING = 2.0
LOADING = 120.0
"""How long a server may take to load all that it needs, and to serve its first stream."""
SPARE = 60.0
"""How much longer than needed the model could go on writing: a server may be slow to start its streams."""
MOST_OF_DRIVER = 0.8


class Measured(NamedTuple):
    streams: int
    latencies: Latencies
    share: float
    driver: float
    """The share of its core that model and clients used."""
    memory: float
    wire_bytes: int

    @property
    def holds(self) -> bool:
        """Whether the deltas came, and in time."""
        wanted = self.streams * PACE * WINDOW
        return self.latencies.count >= 0.9 * wanted and self.latencies.quantile(0.99) <= LIMIT_MS


@contextmanager
def server(which: str, base_url: str, journal: str | None = None, maker: Maker = "gemini") -> Iterator[tuple[str, int]]:
    """Its address and process id. ``journal``: the URL of Callstream's, in place of a new SQLite file."""
    python = interpreter(maker) if which == "ag_ui_adk" or maker == "litellm" else sys.executable
    command = [python, "-W", "ignore", "-m", "bench.served", "--which", which, "--provider", base_url, "--core", "0"]
    command += ["--maker", maker]
    if journal is not None:
        command += ["--journal", journal]
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


async def measured(which: str, streams: int) -> Measured:
    seconds = streams / STARTS_PER_SECOND + SETTLING + WINDOW
    model = Model(PACE, seconds + SPARE)
    async with model.listen() as base_url:
        with server(which, base_url) as (address, pid):
            clients = Clients(address)
            await clients.add()
            await clients.wait(LOADING)
            for _ in range(1, streams):
                await clients.add()
                await asyncio.sleep(1 / STARTS_PER_SECOND)
            await asyncio.sleep(SETTLING)
            began, cpu, driver = time.monotonic(), cpu_seconds(pid), time.process_time()
            clients.since = time.monotonic_ns()
            await asyncio.sleep(WINDOW)
            lasted = time.monotonic() - began
            share, driver = (cpu_seconds(pid) - cpu) / lasted, (time.process_time() - driver) / lasted
            memory = resident(pid)
            found = Measured(streams, clients.found, share, driver, memory, clients.wire_bytes)
            if left := streams - len(clients.open):
                print(f"  {left} streams ended early", file=sys.stderr)
            clients.leave()
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def one(which: str, streams: int) -> Measured:
    found = asyncio.run(measured(which, streams))
    print(
        f"  {which}, {streams} streams: {found.latencies.count} deltas, p50 {found.latencies.quantile(0.5):.0f} ms, "
        f"p99 {found.latencies.quantile(0.99):.0f} ms, {found.share:.0%} of a core, driver {found.driver:.0%}",
        file=sys.stderr,
        flush=True,
    )
    return found


def most(which: str, ladder: tuple[int, ...]) -> Measured | None:
    """The last rung that holds, before one does not, or the driver is busier than it may be."""
    best: Measured | None = None
    for streams in ladder:
        found = one(which, streams)
        if found.driver > MOST_OF_DRIVER:
            print(f"  {streams} streams are more than the driver can feed", file=sys.stderr)
            break
        if not found.holds:
            break
        best = found
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500, help="of the first table (default: 500)")
    parser.add_argument("--only", choices=("callstream", "ag_ui_adk", "first"), help="measure less")
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    first = Table(
        f"server: {options.streams} AG-UI streams at {PACE} deltas/s on one core, provider's write to client's read",
        ["deltas", "p50 ms", "p99 ms", "share of a core", "MiB", "bytes on the wire per argument byte"],
    )
    if options.only in (None, "first"):
        found = one("callstream", options.streams)
        latencies = found.latencies
        if not latencies.count:
            sys.exit("no deltas came")
        first.row(
            latencies.count,
            latencies.quantile(0.5),
            latencies.quantile(0.99),
            f"{found.share:.0%}",
            found.memory,
            found.wire_bytes / (latencies.count * len(STAMP)),
        )
        first.print()
    if options.only == "first":
        return 0
    held: dict[str, Measured | None] = {}
    for which in ("ag_ui_adk", "callstream"):
        if options.only in (None, which):
            ladder = LADDER if which == "ag_ui_adk" else tuple(rung for rung in LADDER if rung >= 80)
            held[which] = most(which, ladder)
    table = Table(
        f"server: streams at {PACE} deltas/s that one core holds before p99 passes {LIMIT_MS:g} ms",
        ["", "streams", "p50 ms", "p99 ms", "share of a core", "MiB"],
    )
    for which, best in held.items():
        if best is None:
            table.row(which, 0, "", "", "", "")
        else:
            quantile = best.latencies.quantile
            table.row(which, best.streams, quantile(0.5), quantile(0.99), f"{best.share:.0%}", best.memory)
    table.print()
    theirs, ours = held.get("ag_ui_adk"), held.get("callstream")
    if theirs is not None and ours is not None:
        ratio = ours.streams / theirs.streams
        print(f"ours / ag_ui_adk: {ratio:.1f} (at least 10): {'PASS' if ratio >= 10 else 'FAIL'}")
        return 0 if ratio >= 10 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
