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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.comparison import interpreter
from bench.load import Clients, Maker, Model
from bench.table import Table
from bench.usage import LEAST_ARRIVED, MOST_OF_DRIVER, Usage, least_seconds, use
from callstream.testing.provider import STAMP

PACE = 20
WINDOW = 8.0
LIMIT_MS = 250.0
LADDER = (10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 400, 500, 600, 700, 800)
SPARE = 60.0
"""How much longer than needed the model could go on writing: a server may be slow to start its streams."""


@contextmanager
def server(
    which: str,
    base_url: str,
    journal: str | None = None,
    maker: Maker = "gemini",
    *,
    gather: float | None = None,
    without: str | None = None,
) -> Iterator[tuple[str, int]]:
    """Its address and process id. ``journal``: the URL of Callstream's, in place of a new SQLite file. ``gather``: the
    milliseconds for which that gathers what runs bring, in place of its own. ``without``: a trick that is switched off.
    """
    python = interpreter(maker) if which == "ag_ui_adk" or maker == "litellm" else sys.executable
    command = [python, "-W", "ignore", "-m", "bench.served", "--which", which, "--provider", base_url, "--core", "0"]
    command += ["--maker", maker]
    if journal is not None:
        command += ["--journal", journal]
    if gather is not None:
        command += ["--gather", f"{gather:g}"]
    if without is not None:
        command += ["--without", without]
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


async def measured(which: str, streams: int, count: Callable[[], float] = lambda: 0.0) -> Usage:
    """``count``: see ``bench.usage``."""
    model = Model(PACE, least_seconds(streams, WINDOW) + SPARE)
    async with model.listen() as base_url:
        with server(which, base_url) as (address, pid):
            found = await use(Clients(address), pid, streams, WINDOW, waits=False, count=count)
    if found.early:
        print(f"  {found.early} streams ended early", file=sys.stderr)
    return found


def holds(found: Usage, streams: int) -> bool:
    """Whether the deltas came, and in time."""
    return found.arrived(streams, PACE) >= LEAST_ARRIVED and found.latencies.quantile(0.99) <= LIMIT_MS


def one(which: str, streams: int) -> Usage:
    found = asyncio.run(measured(which, streams))
    print(
        f"  {which}, {streams} streams: {found.latencies.count} deltas, p50 {found.latencies.quantile(0.5):.0f} ms, "
        f"p99 {found.latencies.quantile(0.99):.0f} ms, {found.share:.0%} of a core, driver {found.driver:.0%}",
        file=sys.stderr,
        flush=True,
    )
    return found


def most(which: str, ladder: tuple[int, ...]) -> tuple[int, Usage] | None:
    """The last rung that holds, before one does not, or the driver is busier than it may be."""
    best: tuple[int, Usage] | None = None
    for streams in ladder:
        found = one(which, streams)
        if found.driver > MOST_OF_DRIVER:
            print(f"  {streams} streams are more than the driver can feed", file=sys.stderr)
            break
        if not holds(found, streams):
            break
        best = streams, found
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
    held: dict[str, tuple[int, Usage] | None] = {}
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
            streams, found = best
            quantile = found.latencies.quantile
            table.row(which, streams, quantile(0.5), quantile(0.99), f"{found.share:.0%}", found.memory)
    table.print()
    theirs, ours = held.get("ag_ui_adk"), held.get("callstream")
    if theirs is not None and ours is not None:
        ratio = ours[0] / theirs[0]
        print(f"ours / ag_ui_adk: {ratio:.1f} (at least 10): {'PASS' if ratio >= 10 else 'FAIL'}")
        return 0 if ratio >= 10 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
