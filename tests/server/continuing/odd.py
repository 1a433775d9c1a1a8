"""What seldom happens: two takers at once, an owner that was only stopped, a clock that is wrong, a run that kills its
process, a database that is restarted, a replica that is told to end. Each prints what happened, in numbers.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from callstream.events import Record, RunEnded, RunResumed
from callstream.journal import Journal

from .nursery import Nursery
from .stage import LONGEST, Server, Stage

MANY = 20
FAKETIME = next(map(str, Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), "")


class OddStage(Stage):
    """One scene. ``numbers`` is what it prints."""

    def __init__(self, journal: str, scene: str, *, database: Any = None) -> None:
        _, replicas, kind, _ = SCENES[scene]
        super().__init__(journal, kind, "gemini", 0, 1, replicas=replicas)
        self._scene = scene
        self._attempts = 3
        self._database = database
        self.numbers: dict[str, object] = {}

    async def play(self) -> None:
        scene, *_ = SCENES[self._scene]
        async with self.opened() as (servers, journal, log):
            await scene(self, servers, journal)
            self._judge_tools(log.read_text() if log.exists() else "")

    def line(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.numbers.items())
        wrong = ", ".join(f"{name} {count}" for name, count in self.faults.items()) or "nothing wrong"
        where = "SQLite" if self._backend == "sqlite" else "PostgreSQL"
        return f"{self._scene}, {where}: {told}; {wrong}"

    async def _begin_many(self, server: Server, journal: Journal, count: int = MANY) -> list[str]:
        """Runs that are all at work."""
        threads = [f"run-{number}" for number in range(count)]
        await asyncio.gather(*(server.begin(thread, f"{thread}-r") for thread in threads))
        self.runs += count
        self.numbers["runs"] = count
        await self._reach(journal, f"{threads[-1]}-r", 12)
        return threads

    async def _end_many(self, server: Server, journal: Journal, threads: list[str]) -> None:
        attempts: Counter[int] = Counter()
        finished = again = 0
        for thread in threads:
            records = await self._ended(journal, f"{thread}-r")
            resumed = [record.event.attempt for record in records if isinstance(record.event, RunResumed)]
            attempts[len(resumed)] += 1
            again += len(resumed) - len(set(resumed))
            finished += bool(records) and records[-1].event == RunEnded("finished")
            await self._judge(server, thread, records)
        self.numbers["taken over"] = sum(count for times, count in attempts.items() if times)
        self.numbers["taken twice"] = again
        self.numbers["finished"] = finished

    async def two_takers(self, servers: list[Server], journal: Journal) -> None:
        """Of three replicas one dies, and both others find its runs."""
        threads = await self._begin_many(servers[0], journal)
        await servers[0].end()
        since = time.monotonic()
        await self._all_resumed(journal)
        self.numbers["seconds"] = round(time.monotonic() - since, 1)
        await self._end_many(servers[1], journal, threads)

    async def stopped(self, servers: list[Server], journal: Journal) -> None:
        """The owner is stopped for longer than its lease, and comes back while others work on its runs."""
        threads = await self._begin_many(servers[0], journal)
        servers[0].send(signal.SIGSTOP)
        since = time.monotonic()
        await self._all_resumed(journal)
        self.numbers["seconds"] = round(time.monotonic() - since, 1)
        servers[0].send(signal.SIGCONT)
        await self._end_many(servers[1], journal, threads)
        before = {thread: len(await journal.read_whole([f"{thread}-r"])) for thread in threads}
        await asyncio.sleep(5)
        after = {thread: len(await journal.read_whole([f"{thread}-r"])) for thread in threads}
        late = sum(after[thread] - before[thread] for thread in threads)
        self.numbers["written by the former owner"] = late
        self.numbers["former owner serves"] = await self._serves(servers[0], journal)

    async def clock(self, servers: list[Server], journal: Journal) -> None:
        """A second process on the same file, whose clock is an hour ahead."""
        threads = await self._begin_many(servers[0], journal)
        ahead = Nursery(3, LD_PRELOAD=FAKETIME, FAKETIME="+1h", DONT_FAKE_MONOTONIC="1")
        wrong = servers[0].like(ahead)
        try:
            await wrong.start()
            await asyncio.sleep(3)
            await self._end_many(servers[0], journal, threads)
        finally:
            await wrong.end()
            await ahead.close()
        self.numbers["taken from a living process"] = self.numbers.pop("taken over")

    async def deadly(self, servers: list[Server], journal: Journal) -> None:
        """A run whose tool kills the process each time."""
        await servers[0].begin("run-0", "run-0-r")
        starts, deaths = 1, 0
        async with asyncio.timeout(LONGEST):
            while True:
                while servers[0].lives and not await _has_ended(journal, "run-0-r"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                if await _has_ended(journal, "run-0-r"):
                    break
                deaths += 1
                await servers[0].start()
                starts += 1
        records = await journal.read_whole(["run-0-r"])
        ended = records[-1].event
        assert isinstance(ended, RunEnded)
        attempts = 1 + sum(isinstance(record.event, RunResumed) for record in records)
        self.numbers |= {
            "attempts": attempts,
            "processes that died": deaths,
            "ended": f"{ended.outcome}: {ended.reason}",
        }
        self.numbers["server serves"] = await self._serves(servers[0], journal, "run-1")

    async def restarted(self, servers: list[Server], journal: Journal) -> None:
        """PostgreSQL is stopped and started; while it is away, one of two replicas dies."""
        threads = await self._begin_many(servers[0], journal)
        await asyncio.to_thread(self._database.stop)
        await servers[0].end()
        await asyncio.to_thread(self._database.start)
        since = time.monotonic()
        await self._all_resumed(journal)
        self.numbers["seconds"] = round(time.monotonic() - since, 1)
        await self._end_many(servers[1], journal, threads)

    async def told_to_end(self, servers: list[Server], journal: Journal) -> None:
        """One of two replicas gets SIGTERM in the middle of its runs."""
        threads = await self._begin_many(servers[0], journal)
        since = time.monotonic()
        await servers[0].end(signal.SIGTERM)
        self.numbers["seconds to its end"] = round(time.monotonic() - since, 1)
        await self._all_resumed(journal)
        self.numbers["seconds until all went on"] = round(time.monotonic() - since, 1)
        await self._end_many(servers[1], journal, threads)

    async def _all_resumed(self, journal: Journal) -> None:
        """Waits until every run that is active has another owner, or has ended."""
        for row in await journal.runs(active=True):
            if not await self._resumed(journal, row.run_id, 0):
                self._fault("not taken", row.run_id)

    async def _serves(self, server: Server, journal: Journal, thread: str = "run-99") -> str:
        await server.begin(thread, f"{thread}-r")
        records = await self._ended(journal, f"{thread}-r")
        return "yes" if records and records[-1].event == RunEnded("finished") else "no"


async def _has_ended(journal: Journal, run_id: str) -> bool:
    records: list[Record] = await journal.read_whole([run_id])
    return bool(records) and isinstance(records[-1].event, RunEnded)


Scene = tuple[Callable[[OddStage, list[Server], Journal], Awaitable[None]], int, str, tuple[str, ...]]

SCENES: dict[str, Scene] = {
    "two takers at once": (OddStage.two_takers, 3, "llm", ("sqlite", "postgres")),
    "the owner is stopped and comes back": (OddStage.stopped, 2, "llm", ("sqlite", "postgres")),
    "a clock an hour ahead": (OddStage.clock, 1, "llm", ("sqlite",)),
    "a run that kills its process": (OddStage.deadly, 1, "deadly", ("sqlite", "postgres")),
    "PostgreSQL is restarted": (OddStage.restarted, 2, "llm", ("postgres",)),
    "a replica is told to end": (OddStage.told_to_end, 2, "llm", ("sqlite", "postgres")),
}
"""How each is played, with how many replicas, with which agent, and where."""


def scenes(backend: str) -> list[str]:
    """Those that can be played there, on this machine."""
    found = [name for name, (*_, backends) in SCENES.items() if backend in backends]
    if not FAKETIME and "a clock an hour ahead" in found:
        print("a clock an hour ahead: not played, it needs Debian's libfaketime", flush=True)
        found.remove("a clock an hour ahead")
    return found
