"""Kills a writing process again and again, and reads what its journal kept.

``python -m bench.crash [--backend sqlite|postgres|nats|both] [--kills 200] [--seed 1]``

A child process streams calls through ``append``, three runs at once, and reports every acknowledgement through a pipe.
It is killed with SIGKILL: half of the times right after its n-th acknowledgement, n = 1, 2, 3, …, the other half at a
random moment. After each kill the journal is opened anew and must hold, of every run, records 1 to n without a gap and
with the right content, n being at least what was acknowledged; a sweep must bring every run to its end and every call
to a final state, or leave it awaiting an answer; and a new run must work. All kills of a backend hit the same store.
``nats`` is PostgreSQL with a log on three servers of NATS beside it; ``bench.nodes`` kills those.
The last line is ``kills N, records acknowledged N, records lost N``; the exit code is 1 if anything was lost or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import msgspec

from bench.nats import nats_cluster, with_log
from bench.postgres import postgres_url, with_schema
from callstream.calls import FINAL, CallState
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallReturned,
    CallStarted,
    RunEnded,
    RunEvent,
    RunStarted,
    TextAppended,
)
from callstream.journal import Journal, open_journal

RUNS_AT_ONCE = 3
LEASE_SECONDS = 0.4
RANDOM_SECONDS = 0.4
"""A kill at a random moment comes at most that long after the first acknowledgement."""
PATIENCE = 60.0
"""Seconds after which something hangs."""


def script(run_id: str) -> Iterator[list[RunEvent]]:
    """The appends of a run, the same whenever it is asked for: calls that run, wait, fail and are given up."""
    yield [RunStarted("thread", input=run_id)]
    for number in range(6):
        call_id = f"{run_id} call {number}"
        yield [TextAppended(f"{run_id} message", f"text {number} "), CallStarted(call_id, "tool")]
        for piece in range(8):
            yield [ArgsAppended(call_id, f"{piece},")]
        if number == 2:
            yield [CallDiscarded(call_id, "truncated")]
            continue
        yield [ArgsAppended(call_id, "."), CallCompleted(call_id)]
        if number == 1:
            yield [CallAwaiting(call_id)]
            continue
        yield [CallExecuting(call_id)]
        yield [CallFailed(call_id, "no") if number == 3 else CallReturned(call_id, {"number": number})]
    yield [RunEnded("finished")]


# -- the child ---------------------------------------------------------------------------------------------------------


async def stream(url: str, name: str) -> None:
    """Writes runs until it is killed. A line ``run_id number`` says that so many records are acknowledged."""
    journal = open_journal(url, housekeeping=None, lease_ttl=LEASE_SECONDS)

    async def write(lane: int) -> None:
        for number in count():
            run_id = f"{name}.{lane}.{number}"
            for events in script(run_id):
                last = await journal.append(run_id, events)
                os.write(1, f"{run_id} {last}\n".encode())

    await asyncio.gather(*(write(lane) for lane in range(RUNS_AT_ONCE)))


# -- the parent --------------------------------------------------------------------------------------------------------


class Tally(msgspec.Struct):
    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    wrong: list[str] = []

    def complain(self, what: str) -> None:
        self.wrong.append(what)
        print(f"WRONG: {what}", flush=True)

    def line(self) -> str:
        return f"kills {self.kills}, records acknowledged {self.acknowledged}, records lost {self.lost}"


async def killed(url: str, name: str, after: int | None, chance: random.Random) -> dict[str, int]:
    """Starts a child, kills it, and returns how many records of each run it had acknowledged.

    ``after``: kill right after that many acknowledgements; None: at a random moment.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.crash", "--child", url, "--name", name), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    acknowledged: dict[str, int] = {}

    def take(line: bytes) -> None:
        run_id, _, number = line.decode().rstrip("\n").rpartition(" ")
        acknowledged[run_id] = int(number)

    try:
        async with asyncio.timeout(PATIENCE):
            take(await process.stdout.readline())
            if after is None:
                asyncio.get_running_loop().call_later(chance.uniform(0, RANDOM_SECONDS), process.kill)
            else:
                for _ in range(after - 1):
                    take(await process.stdout.readline())
                process.kill()
            # What is still in the pipe was acknowledged too.
            while line := await process.stdout.readline():
                if line.endswith(b"\n"):
                    take(line)
    except TimeoutError:
        process.kill()
        raise
    ended = await process.wait()
    assert ended == -signal.SIGKILL, f"the child ended by itself with {ended}"
    return acknowledged


async def check_prefix(journal: Journal, run_id: str, acknowledged: int, tally: Tally) -> None:
    """Records 1 to n, as they were written, at least as many as were acknowledged."""
    expected = [event for events in script(run_id) for event in events]
    try:
        records = [record async for record in journal.read(run_id)]
    except UsageError:
        records = []  # there is no such run
    if [record.seq for record in records] != list(range(1, len(records) + 1)):
        tally.complain(f"{run_id} has gaps: {[record.seq for record in records]}")
    if [record.event for record in records] != expected[: len(records)]:
        tally.complain(f"{run_id} has other records than were written")
    if len(records) < acknowledged:
        tally.lost += acknowledged - len(records)
        tally.complain(f"{run_id} has {len(records)} records, {acknowledged} were acknowledged")


async def check_swept(journal: Journal, name: str, tally: Tally) -> None:
    """Every run of that child ends, every call of it is final or awaits an answer."""
    async with asyncio.timeout(PATIENCE):
        while [run for run in await journal.runs(active=True) if run.run_id.startswith(f"{name}.")]:
            await journal.sweep()
            await asyncio.sleep(0.05)
    for run in await journal.runs(thread_id="thread", limit=100):
        if not run.run_id.startswith(f"{name}."):
            continue
        if run.outcome not in ("finished", "failed"):
            tally.complain(f"{run.run_id} ended as {run.outcome}")
        last = [record async for record in journal.read(run.run_id, run.last_seq - 1)]
        if len(last) != 1 or last[0].event != RunEnded(run.outcome or "cancelled", run.reason):
            tally.complain(f"{run.run_id} has no end in its log: {last}")
        for call in await journal.calls(run_id=run.run_id):
            if call.state not in FINAL and call.state is not CallState.AWAITING:
                tally.complain(f"{call.call_id} was left {call.state}")


async def check_new_run(journal: Journal, run_id: str, tally: Tally) -> None:
    for events in script(run_id):
        await journal.append(run_id, events)
    await check_prefix(journal, run_id, sum(len(events) for events in script(run_id)), tally)
    call = await journal.call(f"{run_id} call 0")
    if call is None or call.args_json != "0,1,2,3,4,5,6,7,.":
        tally.complain(f"{run_id}: a call of a new run has the arguments {call and call.args_json!r}")


async def crash(url: str, kills: int, seed: int) -> Tally:
    """Kills a child that many times and checks the store after each."""
    tally = Tally()
    chance = random.Random(seed)
    for number in range(kills):
        name = f"kill {number}"
        acknowledged = await killed(url, name, number // 2 + 1 if number % 2 == 0 else None, chance)
        tally.kills += 1
        tally.acknowledged += sum(acknowledged.values())
        journal = open_journal(url, housekeeping=None)
        try:
            for run_id, last in acknowledged.items():
                await check_prefix(journal, run_id, last, tally)
            await check_swept(journal, name, tally)
            await check_new_run(journal, f"after {number}", tally)
        finally:
            await journal.aclose()
        if (number + 1) % 20 == 0:
            print(f"  {tally.line()}", flush=True)
    return tally


def check_file(path: Path, tally: Tally) -> None:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    if found != "ok":
        tally.complain(f"integrity_check says {found}")


def crash_sqlite(kills: int, seed: int) -> Tally:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        tally = asyncio.run(crash(f"sqlite:///{path}", kills, seed))
        check_file(path, tally)
    return tally


def crash_postgres(kills: int, seed: int, url: str) -> Tally:
    return asyncio.run(crash(with_schema(url, f"crash_{os.getpid()}"), kills, seed))


def crash_nats(kills: int, seed: int, url: str) -> Tally:
    name = f"crash_{os.getpid()}"
    with nats_cluster(3) as cluster:
        return asyncio.run(crash(with_log(with_schema(url, name), cluster.log, name), kills, seed))


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills a writing process again and again.")
    parser.add_argument("--backend", choices=["sqlite", "postgres", "nats", "both"], default="both")
    parser.add_argument("--kills", type=int, default=200, help="for each backend")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(stream(options.child, options.name))
        return 0
    total = Tally()
    for backend in ["sqlite", "postgres"] if options.backend == "both" else [options.backend]:
        print(f"{backend}:", flush=True)
        with postgres_url() if backend != "sqlite" else nullcontext("") as url:
            if backend == "sqlite":
                tally = crash_sqlite(options.kills, options.seed)
            elif backend == "postgres":
                tally = crash_postgres(options.kills, options.seed, url)
            else:
                tally = crash_nats(options.kills, options.seed, url)
        print(f"  {tally.line()}", flush=True)
        total.kills += tally.kills
        total.acknowledged += tally.acknowledged
        total.lost += tally.lost
        total.wrong += tally.wrong
    print(total.line())
    return 1 if total.lost or total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
