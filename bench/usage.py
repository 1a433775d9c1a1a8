"""What a server uses while clients read from it, and how long deltas take to them: measured once, for all tables."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.load import Clients
from bench.many import Latencies

STARTS_PER_SECOND = 25.0
SETTLING = 2.0
LOADING = 120.0
"""How long a server may take to load all that it needs, and to serve its first stream."""
MOST_OF_DRIVER = 0.8
LEAST_ARRIVED = 0.9


class Usage(NamedTuple):
    """``cpu``: seconds of the server's process. ``driver``: the share of its core that model and clients used.

    ``other``: what ``count`` has counted meanwhile. ``early``: streams that ended before the measurement did.
    ``written``: how many deltas models wrote, where that is not streams times pace.
    """

    latencies: Latencies
    seconds: float
    cpu: float
    driver: float
    memory: float
    wire_bytes: int
    early: int
    other: float
    written: int | None = None

    @property
    def share(self) -> float:
        """Of a core."""
        return self.cpu / self.seconds

    @property
    def micros(self) -> float:
        """Of CPU for each delta that reached a client."""
        return self.cpu / self.latencies.count * 1e6

    def arrived(self, streams: int, pace: float) -> float:
        """The share of the deltas that should have come."""
        return self.latencies.count / (streams * pace * self.seconds if self.written is None else self.written)

    def remark(self, streams: int, pace: float) -> str:
        """Why it says little about what a delta costs."""
        if self.driver > MOST_OF_DRIVER:
            return "void"
        return "falls behind" if self.arrived(streams, pace) < LEAST_ARRIVED else ""


def least_seconds(streams: int, seconds: float) -> float:
    """How long a model has to write for a measurement of so many seconds."""
    return streams / STARTS_PER_SECOND + SETTLING + seconds


async def use(
    clients: Clients,
    pid: int,
    streams: int,
    seconds: float,
    *,
    waits: bool = True,
    count: Callable[[], float] = lambda: 0.0,
    written: Callable[[], int] | None = None,
) -> Usage:
    """Starts streams one after another, and measures when all go on. ``waits``: until each has brought a delta."""
    await clients.add()
    await clients.wait(LOADING)
    for _ in range(1, streams):
        await clients.add()
        await asyncio.sleep(1 / STARTS_PER_SECOND)
    if waits:
        await clients.wait(LOADING)
    await asyncio.sleep(SETTLING)
    cpu, driver, other, began = cpu_seconds(pid), time.process_time(), count(), time.monotonic()
    clients.since = time.monotonic_ns()
    before = 0 if written is None else written()
    await asyncio.sleep(seconds)
    lasted = time.monotonic() - began
    used = Usage(
        clients.found,
        lasted,
        cpu_seconds(pid) - cpu,
        (time.process_time() - driver) / lasted,
        resident(pid),
        clients.wire_bytes,
        streams - len(clients.open),
        count() - other,
        None if written is None else written() - before,
    )
    clients.leave()
    return used


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20
