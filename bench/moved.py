"""Copies a journal into another store and back, killed on the way, and compares the three.

    python -m bench.moved [--runs 10000] [--kills 3] [--to nats|postgres] [--seed 1]

A journal in SQLite is filled with runs of every kind: compacted and not, finished, failed and interrupted, with calls that
wait for an answer, with characters that SQL text cannot hold, of dead processes, some of which can go on, and threads that
were forgotten. `callstream move` copies it into PostgreSQL, with a log on three servers of NATS beside it unless ``--to``
says otherwise, and is killed with SIGKILL every time that another share of the runs is there. Then it copies the whole into
another SQLite file, killed in the same way. Last, some more runs are written to the journal in the middle, whose pieces lie
in its log, by a process that is killed in the midst of them, and are copied to both ends of the way.

What `callstream move` says is not all: a digest is made of all that the journal's own functions tell of each of the three.
The exit code is 1 if anything differs, or if a command that was to be killed was quicker.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.nats import nats_cluster, with_log
from bench.postgres import postgres_url, with_schema
from bench.table import Table
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallExecuting,
    CallReturned,
    CallStarted,
    InputKept,
    MessageReceived,
    RunEnded,
    RunEvent,
    RunStarted,
    TextAppended,
)
from callstream.journal import Journal, open_journal

PATIENCE = 300.0
AT_ONCE = 100
LATER_SECONDS = 0.3
"""A kill comes at most that long after the runs for which it waits: in the middle of the next ones."""
FORGOTTEN = 20
WRITTEN = 300
"""Runs that the journal in the middle gets of its own."""


def script(number: int, chance: random.Random) -> Iterator[list[RunEvent]]:
    """The appends of a run."""
    run_id = f"run {number}"
    yield [RunStarted(f"thread {number // 5}", f"user {number // 50}", exclusive=number % 50 == 3)]
    if number % 50 in (3, 4):
        yield [InputKept("app", "input")]
    yield [MessageReceived("user", f"question {number}", f"{run_id} question")]
    for word in range(chance.randint(2, 12)):
        yield [
            TextAppended(f"{run_id} answer", f"wörd {chance.random()} "),
            TextAppended(f"{run_id} answer", str(word)),
        ]
    call_id = f"{run_id} call"
    yield [CallStarted(call_id, "tool"), ArgsAppended(call_id, "[")]
    for piece in range(chance.randint(1, 12)):
        yield [ArgsAppended(call_id, f"{piece},")]
    if number % 50 in (3, 5):
        return  # its process dies here
    yield [ArgsAppended(call_id, "0]"), CallCompleted(call_id)]
    match number % 5:
        case 0:
            yield [CallAwaiting(call_id), RunEnded("finished")]
        case 1:
            yield [TextAppended(f"{run_id} odd", "\0\ud83d"), RunEnded("failed", "a\0b")]
        case _:
            yield [CallExecuting(call_id)]
            yield [
                CallReturned(call_id, {"number": number, "text": "x" * chance.randint(0, 200)}),
                RunEnded("finished"),
            ]


async def fill(journal: Journal, first: int, count: int, seed: int) -> None:
    numbers = iter(range(first, first + count))

    async def write() -> None:
        for number in numbers:
            for events in script(number, random.Random(seed * 1_000_003 + number)):
                await journal.append(f"run {number}", events)
            if number % 3 == 0 and number % 50 not in (3, 5):
                await journal.compact(f"run {number}")

    await asyncio.gather(*(write() for _ in range(AT_ONCE)))


async def write_and_die(url: str, first: int, count: int, seed: int) -> None:
    """As a process that is killed: what it has begun and not ended is nobody's then."""
    await fill(open_journal(url, housekeeping=None, lease_ttl=1.0), first, count, seed)
    os.kill(os.getpid(), signal.SIGKILL)


async def digest_of(journal: Journal) -> str:
    """Of everything that its functions tell of it."""
    total = hashlib.sha256()
    runs = await journal.runs()
    total.update(repr(runs).encode("utf-8", "surrogatepass"))
    for call in await journal.calls():
        total.update(repr(call).encode("utf-8", "surrogatepass"))
    for start in range(0, len(runs), 100):
        for record in await journal.read_whole([run.run_id for run in runs[start : start + 100]]):
            total.update(repr(record).encode("utf-8", "surrogatepass"))
    for number in range(FORGOTTEN + 1):
        total.update(str(await journal.has_forgotten(f"gone {number}", None)).encode())
    return total.hexdigest()


class Show:
    """The table, and what went wrong."""

    def __init__(self, kills: int, seed: int) -> None:
        self._kills = kills
        self._chance = random.Random(seed)
        self.wrong: list[str] = []
        self.table = Table(
            "a journal copied, and killed on the way", ["step", "seconds", "kills", "runs", "records", "sha256"]
        )

    async def copy(self, name: str, source: str, target: str, runs: int) -> dict[str, Any]:
        """Killed when another share of the runs is there; then once to the end."""
        began = time.monotonic()
        for part in range(1, self._kills + 1):
            await self._killed(name, source, target, runs * part // (self._kills + 1))
        told = await self._told(name, source, target)
        self.table.row(name, time.monotonic() - began, self._kills, told["runs"], told["records"], told["digest"][:16])
        return told

    async def copy_rest(self, name: str, source: str, target: str, digest: str | None = None) -> dict[str, Any]:
        began = time.monotonic()
        told = await self._told(name, source, target)
        self.table.row(name, time.monotonic() - began, 0, told["runs"], told["records"], told["digest"][:16])
        if digest is not None:
            self.same(name, told["digest"], digest)
        return told

    def same(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            self.wrong.append(f"{what}: expected {expected}, got {found}")
            print(f"WRONG: {self.wrong[-1]}", flush=True)

    async def _killed(self, name: str, source: str, target: str, until: int) -> None:
        moving = await self._start(source, target)
        async with asyncio.timeout(PATIENCE), open_journal(target, housekeeping=None) as journal:
            while moving.returncode is None and (await journal.stats())["runs"] < until:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._chance.uniform(0, LATER_SECONDS))
        if moving.returncode is not None:
            self.wrong.append(f"{name}: it was to be killed when {until} runs were there, and had ended")
        else:
            moving.kill()
        await moving.communicate()
        async with open_journal(target, housekeeping=None) as journal:
            print(f"{name}: killed when {(await journal.stats())['runs']} runs were there", flush=True)

    async def _told(self, name: str, source: str, target: str) -> dict[str, Any]:
        moving = await self._start(source, target)
        out, _ = await asyncio.wait_for(moving.communicate(), PATIENCE)
        assert moving.returncode == 0, f"{name}: callstream move has ended with {moving.returncode}"
        told: dict[str, Any] = json.loads(out)
        print(f"{name}: {told['copied']} runs copied, {told['runs']} are the same by digest", flush=True)
        return told

    async def _start(self, source: str, target: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "callstream", "move", "SOURCE", "TARGET", "--json"),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "SOURCE": source, "TARGET": target},
        )


async def filled(url: str, runs: int, seed: int) -> None:
    async with open_journal(url, housekeeping=None) as journal:
        await fill(journal, 0, runs, seed)
        for number in range(FORGOTTEN):
            await journal.append(f"gone {number}", [RunStarted(f"gone {number}"), RunEnded("finished")])
            await journal.forget(thread=f"gone {number}")


async def digests(*urls: str) -> list[str]:
    found = []
    for url in urls:
        async with open_journal(url, housekeeping=None) as journal:
            found.append(await digest_of(journal))
    return found


async def run(folder: Path, middle: str, runs: int, kills: int, seed: int) -> int:
    show = Show(kills, seed)
    first, last = f"sqlite:///{folder / 'first.db'}", f"sqlite:///{folder / 'last.db'}"
    began = time.monotonic()
    await filled(first, runs, seed)
    print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
    there = await show.copy("there", first, middle, runs)
    back = await show.copy("and back", middle, last, runs)
    show.same("what was copied back", back["digest"], there["digest"])
    one, two, three = await digests(first, middle, last)
    show.same("the journal there", two, one)
    show.same("the journal back", three, one)

    more = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.moved", "--child", middle, "--runs", str(WRITTEN), "--first", str(runs)),
        *("--seed", str(seed)),
    )
    show.same("the writer", await more.wait(), -signal.SIGKILL)
    async with open_journal(middle, housekeeping=None) as journal:
        async with asyncio.timeout(PATIENCE):
            # Until its lease has run out.
            while (figures := await journal.stats())["active_runs"] > figures["orphaned_runs"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    print(f"written in the middle: {WRITTEN} runs, of {figures['active_runs']} in all the process is gone", flush=True)
    grown = await show.copy_rest("what was written there since, back", middle, last)
    await show.copy_rest("and to the first", last, first, grown["digest"])
    one, two, three = await digests(first, middle, last)
    show.same("the journal in the middle, with more", two, one)
    show.same("the journal at the end, with more", three, one)
    show.table.print()
    print(f"all three journals, by all that they tell: sha256 {one}" if not show.wrong else f"{len(show.wrong)} wrong")
    return 1 if show.wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Copies a journal there and back, killed on the way, and compares.")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=3, help="on each way")
    parser.add_argument("--to", choices=["nats", "postgres"], default="nats")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(write_and_die(options.child, options.first, options.runs, options.seed))
    with ExitStack() as stack:
        name = f"moved_{os.getpid()}"
        middle = with_schema(stack.enter_context(postgres_url()), name)
        if options.to == "nats":
            middle = with_log(middle, stack.enter_context(nats_cluster(3)).log, name)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="callstream-moved-")))
        return asyncio.run(run(folder, middle, options.runs, options.kills, options.seed))


if __name__ == "__main__":
    sys.exit(main())
