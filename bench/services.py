"""Service times for the model of ``bench.simulated``, measured on this machine: of a serving process, and of the logs.

A process: what it costs at two loads (``bench.server``), and which part of that is reading and writing (``bench.pace``).
A log: batches of two sizes, one after the other, by the journal's own store; from these a line, so much a batch and so
much a delta. What a start costs: runs whose models say nothing. How long the log stands still when its leader is killed:
the longest wait between two answers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.discrete import Costs
from bench.journalcost import Engine, engine_of, stored
from bench.load import Clients, Model
from bench.nats import Cluster
from bench.pace import measure, measure_step
from bench.server import PACE, measured, server
from bench.usage import LOADING, SETTLING, Usage, cpu_seconds
from callstream.errors import JournalError
from callstream.events import CallStarted, RunStarted, TextAppended
from callstream.journal import open_journal

LOADS = (30, 100)
"""Streams with which a process is measured; everything else is foretold from these."""
FAST = (20, 200.0)
"""Streams, and deltas a second of each."""
SIZES = (10, 100)
BATCHES = 300
STARTS = 60
STEP_SECONDS = 6.0
CALM = 0.1
"""Cores that others may use."""
MORE_ROUNDS = 2


class Line(NamedTuple):
    """So much for a batch, and so much more for every delta in it."""

    batch: float
    delta: float

    def of(self, deltas: float) -> float:
        return self.batch + self.delta * deltas


def line(points: Sequence[tuple[float, float]]) -> Line:
    """The line of least squares, without negative parts: what is measured as less than nothing is nothing."""
    count = len(points)
    middle_x, middle_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    delta = max(0.0, sum((x - middle_x) * (y - middle_y) for x, y in points) / spread) if spread else 0.0
    return Line(max(0.0, middle_y - delta * middle_x), delta)


class LogTimes(NamedTuple):
    """Seconds: of the writing process's CPU, of its servers' CPU, and from a batch to its answer. ``stored``: bytes.

    ``waits``: what each batch of the larger size has taken longer than the writer's own work, one after the other. Most of
    them next to nothing; now and then there is one that waits for a disk, and all that it brings is late.
    """

    client: Line
    servers: Line
    answer: Line
    stored: float
    waits: Sequence[float] = (0.0,)

    def waiting(self, deltas: float) -> float:
        """What a batch waits that is not the writer's own work."""
        return max(0.0, self.answer.of(deltas) - self.client.of(deltas))


async def log_times(url: str, engine: Engine) -> LogTimes:
    client: list[tuple[float, float]] = []
    servers: list[tuple[float, float]] = []
    answer: list[tuple[float, float]] = []
    grown = 0.0
    took: list[float] = []
    for size in SIZES:
        journal = open_journal(url, housekeeping=None)
        for number in range(size):
            name = f"{size}.{number}"
            await journal.append(name, [RunStarted(name), CallStarted(f"call {name}", "tool"), TextAppended("m", "a")])
        batches: list[tuple[int, float, float]] = []
        inner = journal._store.commit

        async def timed(batch: Sequence[Any], inner: Any = inner, batches: Any = batches) -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return await inner(batch)
            finally:
                records = sum(len(waiting.rows) for waiting in batch)
                batches.append((records, time.perf_counter() - began, time.thread_time() - cpu))

        journal._store.commit = timed  # type: ignore[method-assign]
        before, used = await stored(journal, engine), engine.cpu()
        for _ in range(BATCHES):
            pieces = (journal.append(f"{size}.{number}", [TextAppended("m", "12345678")]) for number in range(size))
            await asyncio.gather(*pieces)
        used = engine.cpu() - used
        grown = (await stored(journal, engine) - before) / (size * BATCHES)
        await journal.aclose()
        mean = size * BATCHES / len(batches)
        # A median, because whatever else the machine does comes in between now and then.
        client.append((mean, median(cpu for records, _, cpu in batches if records >= mean / 2)))
        took = [seconds for records, seconds, _ in batches if records >= mean / 2]
        answer.append((mean, median(took)))
        servers.append((mean, used / len(batches)))
    own = client[-1][1]
    return LogTimes(line(client), line(servers), line(answer), grown, [max(0.0, seconds - own) for seconds in took])


async def times_of(url: str, server_url: str | None = None, cluster: Cluster | None = None) -> LogTimes:
    return await log_times(url, await engine_of(server_url, cluster))


class ProcessTimes(NamedTuple):
    """``costs`` with SQLite's commits. ``wire``: bytes to a client for each delta. ``found``: what was measured."""

    costs: Costs
    wire: float
    found: dict[int, Usage]

    def with_log(self, log: LogTimes) -> Costs:
        return self.costs._replace(commit=log.client.delta, commit_batch=log.client.batch)


class Round(NamedTuple):
    """``others``: cores that were used by what is neither the server nor the driver."""

    usage: Usage
    others: float


def busy_seconds() -> float:
    """Of all cores, since the machine has started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def calmest(streams: int, rounds: int) -> list[Round]:
    """So many rounds of ``bench.server``: those, of a few more, in which others used the least of this machine.

    No more are measured than needed where so many were calm.
    """
    found: list[Round] = []
    while len(found) < rounds + MORE_ROUNDS and sum(one.others <= CALM for one in found) < rounds:
        usage = asyncio.run(measured("callstream", streams, busy_seconds))
        found.append(Round(usage, max(0.0, usage.other / usage.seconds - usage.share - usage.driver)))
    return sorted(found, key=lambda one: one.others)[:rounds]


def process_times(sqlite: LogTimes, batches_a_second: float) -> ProcessTimes:
    """``batches_a_second``: of a process that is not busy, which is what the queue says."""
    found = {streams: calmest(streams, 1)[0].usage for streams in LOADS}
    # CPU of a second = rate of deltas * what one costs + batches * what one costs.
    rates = [(streams * PACE / batches_a_second, found[streams].share / batches_a_second) for streams in LOADS]
    whole = line(rates)
    most = max(LOADS)
    read = asyncio.run(measure_step("connections", most, PACE, STEP_SECONDS)) / 1e6
    tapped = asyncio.run(measure_step("sqlite", most, PACE, STEP_SECONDS)) / 1e6
    in_batch = most * PACE / batches_a_second
    # The parts are of other processes than the whole, and must not be more than that.
    left = max(0.0, whole.delta - sqlite.client.delta)
    read = min(read, left)
    batch = max(0.0, whole.batch - sqlite.client.batch)
    work = min(max(0.0, tapped - read - (sqlite.client.of(in_batch) + batch) / in_batch), left - read)
    costs = Costs(read, work, left - read - work, batch, sqlite.client.delta, sqlite.client.batch)
    costs = costs._replace(further=further_share(costs, batches_a_second))
    usage = found[most]
    return ProcessTimes(costs, usage.wire_bytes / usage.latencies.count, found)


def further_share(costs: Costs, batches_a_second: float) -> float:
    """From streams that are so fast that some deltas of each come together, in every batch."""
    streams, pace = FAST
    rung = asyncio.run(measure("callstream, SQLite", streams, pace, STEP_SECONDS))
    steps, deltas = streams * batches_a_second, streams * pace
    alone = costs.work + costs.show + costs.commit
    rest = rung.share - batches_a_second * (costs.batch + costs.commit_batch) - deltas * costs.read - steps * alone
    return min(1.0, max(0.0, rest / ((deltas - steps) * alone)))


async def start_seconds() -> float:
    """CPU of a process for a run that begins, and for the client that reads it."""
    model = Model(1 / 3600, 7200)
    async with model.listen() as base_url:
        with server("callstream", base_url) as (address, pid):
            clients = Clients(address)
            for _ in range(3):
                await clients.add()
            await clients.wait(LOADING, for_deltas=False)
            await asyncio.sleep(SETTLING)
            used = cpu_seconds(pid)
            for _ in range(STARTS):
                await clients.add()
                await asyncio.sleep(0.02)
            await clients.wait(LOADING, for_deltas=False)
            await asyncio.sleep(SETTLING)
            used = cpu_seconds(pid) - used
            clients.leave()
    return used / STARTS


async def election_seconds(url: str, stream: str, cluster: Cluster) -> float:
    """The longest wait between two answers while the leader of the stream is killed."""
    journal = open_journal(url, housekeeping=None, retry_seconds=60.0)
    last = await journal.append("run", [RunStarted("thread"), TextAppended("m", "a")])
    leader = await cluster.led(stream)
    longest, after, is_killed = 0.0, 0, False
    answered = time.monotonic()
    while after < 200:
        if not is_killed and last > 200:
            await asyncio.to_thread(leader.kill)
            is_killed = True
        try:
            last = await journal.append("run", [TextAppended("m", "12345678")])
        except JournalError:
            await asyncio.sleep(0.01)
            continue
        now = time.monotonic()
        longest, answered = max(longest, now - answered), now
        after += is_killed
    await journal.aclose()
    return longest
