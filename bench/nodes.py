"""Takes servers away from a log in NATS while a process writes, and reads what the journal kept.

``python -m bench.nodes [--only NAME] [--seconds 6]``

Three NATS servers on this machine, with ``sync_interval: always``, and PostgreSQL. A child process streams calls, three runs
at once, and reports every acknowledgement through a pipe; an append that fails it tries again with the number that it has
seen acknowledged. While it writes, something happens:

- ``writer``: the child itself is killed with SIGKILL.
- ``leader``: the server that leads the stream is, and comes back later. ``two``: two of three. ``all``: all three.
- ``hang``: the leader is stopped and says nothing. ``silent``: so does the network, to all servers.
- ``stale``: the child is stopped for longer than its lease, its runs are ended by another process, and it goes on.

Then every run must have records 1 to n without a gap, as they were written, n being at least what was acknowledged. A row
a case: what was acknowledged, lost and doubled (or otherwise wrong), and the longest time between two acknowledgements. The
exit code is 1 if anything was lost or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Self

import msgspec

from bench.crash import LEASE_SECONDS, PATIENCE, RUNS_AT_ONCE, Tally, check_new_run, check_prefix, check_swept, script
from bench.nats import Cluster, nats_cluster, with_log
from bench.postgres import postgres_url, with_schema
from bench.table import Table
from callstream.errors import JournalError, LeaseLost
from callstream.journal import Journal, open_journal

ACKNOWLEDGED = 200
"""So many before something happens, and so many after it."""
MID_RUN = 100
"""After so many, each of the first three runs is somewhere in its middle: one has 71 appends."""


# -- the child ---------------------------------------------------------------------------------------------------------


async def stream(url: str, name: str, lease: float) -> None:
    """Writes runs until it is killed. A line ``run_id number`` says that so many records are acknowledged."""
    journal = open_journal(url, housekeeping=None, lease_ttl=lease)

    async def write(lane: int) -> None:
        for number in count():
            run_id, last = f"{name}.{lane}.{number}", 0
            for events in script(run_id):
                try:
                    last = await append(run_id, events, last)
                except LeaseLost:
                    os.write(1, f"{run_id} refused\n".encode())
                    break
                os.write(1, f"{run_id} {last}\n".encode())
                await asyncio.sleep(0.002)

    async def append(run_id: str, events: list[object], last: int) -> int:
        while True:
            try:
                return await journal.append(run_id, events, after=last)  # type: ignore[arg-type]
            except LeaseLost:
                raise
            except JournalError:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(write(lane) for lane in range(RUNS_AT_ONCE)))


# -- the parent --------------------------------------------------------------------------------------------------------


class Child:
    """The writing process, and what it has reported."""

    def __init__(self, url: str, name: str, lease: float) -> None:
        self._command = (sys.executable, "-m", "bench.nodes", "--child", url, "--name", name, "--lease", str(lease))
        self.name = name
        self.acknowledged: dict[str, int] = {}
        self.refused: set[str] = set()
        self.standstill = 0.0
        self._lines = 0
        self._last: float | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.PIPE)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while (line := await self._process.stdout.readline()).endswith(b"\n"):
            run_id, _, last = line.decode().rstrip("\n").rpartition(" ")
            if last == "refused":
                self.refused.add(run_id)
                continue
            self.acknowledged[run_id] = int(last)
            self._lines += 1
            now = time.monotonic()
            if self._last is not None:
                self.standstill = max(self.standstill, now - self._last)
            self._last = now

    async def write(self, more: int = ACKNOWLEDGED) -> None:
        """Waits until so many more are acknowledged."""
        until = self._lines + more
        async with asyncio.timeout(PATIENCE):
            while self._lines < until:
                assert self._process.returncode is None, "the child ended by itself"
                await asyncio.sleep(0.02)


class Silence:
    """Passes bytes on between clients and a server, until it says nothing more."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._speaks = asyncio.Event()
        self._speaks.set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def fall_silent(self) -> None:
        self._speaks.clear()

    def speak(self) -> None:
        self._speaks.set()

    async def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, back = await asyncio.open_connection("127.0.0.1", self._upstream)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, back))
                tasks.create_task(self._pass_on(upstream, writer))
        except* OSError:
            pass
        finally:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._speaks.wait()
            writer.write(data)
            await writer.drain()
        writer.close()


class Show(msgspec.Struct):
    """What all cases share."""

    cluster: Cluster
    url: str
    stream: str
    seconds: float
    table: Table
    failed: int = 0

    async def case(self, name: str, happen: Callable[[Child], Awaitable[object]], *, lease: float = 15.0) -> None:
        """Lets something happen to a child that writes, and looks at what is left."""
        async with Child(self.url, name, lease) as child:
            await child.write()
            await happen(child)
            if name not in ("writer", "stale"):
                await child.write()
        await self.judge(name, child)

    async def judge(self, name: str, child: Child, more: str = "") -> None:
        tally = Tally()
        journal = open_journal(self.url, housekeeping=None)
        try:
            for run_id, last in child.acknowledged.items():
                await check_prefix(journal, run_id, last, tally) if run_id not in child.refused else None
            if name != "stale":
                await release(journal)
            await check_swept(journal, name, tally)
            await check_new_run(journal, f"after {name}", tally)
        finally:
            await journal.aclose()
        acknowledged = sum(child.acknowledged.values())
        self.table.row(name, acknowledged, tally.lost, len(tally.wrong), round(child.standstill, 1))
        self.failed += tally.lost + len(tally.wrong)
        print(f"{name}: {acknowledged} acknowledged, {tally.lost} lost, {len(tally.wrong)} wrong{more}", flush=True)

    # -- cases ---------------------------------------------------------------------------------------------------------

    async def writer(self, child: Child) -> None:
        await child.kill()

    async def leader(self, child: Child) -> None:
        node = await self.cluster.led(self.stream)
        node.kill()
        await asyncio.sleep(self.seconds)
        node.start()
        await asyncio.to_thread(self.cluster.wait)

    async def two(self, child: Child) -> None:
        node = await self.cluster.led(self.stream)
        other = next(one for one in self.cluster.nodes if one is not node)
        await self._away([node, other])

    async def all(self, child: Child) -> None:
        await self._away(self.cluster.nodes)

    async def _away(self, nodes: list) -> None:  # type: ignore[type-arg]
        for node in nodes:
            node.kill()
        await asyncio.sleep(self.seconds)
        for node in nodes:
            node.start()
        await asyncio.to_thread(self.cluster.wait)

    async def hang(self, child: Child) -> None:
        node = await self.cluster.led(self.stream)
        node.pause()
        try:
            await child.write()  # another one leads
        finally:
            node.go_on()
        await asyncio.to_thread(self.cluster.wait)


async def release(journal: Journal) -> None:
    """Counts processes of this machine that are gone as dead, without waiting for their leases."""
    await journal.adopt(())


async def silent(show: Show, url: str) -> None:
    """The network between the child and all servers says nothing for a while."""
    between = [Silence(node.port) for node in show.cluster.nodes]
    ports = [await one.start() for one in between]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    monitors = ",".join(f"http://127.0.0.1:{node.monitor}" for node in show.cluster.nodes)
    through = with_log(url, f"log=nats://{hosts}&log_monitor={monitors}", show.stream)
    async with Child(through, "silent", 15.0) as child:
        await child.write()
        for one in between:
            one.fall_silent()
        await asyncio.sleep(show.seconds)
        for one in between:
            one.speak()
        await child.write()
    for one in between:
        await one.stop()
    await show.judge("silent", child)


async def stale(show: Show) -> None:
    """A process that was stopped for longer than its lease, and goes on when its runs are others'."""
    async with Child(show.url, "stale", LEASE_SECONDS) as child:
        await child.write(MID_RUN)  # it must have runs that can be taken from it
        child.signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE_SECONDS)
        journal = open_journal(show.url, housekeeping=None)
        try:
            swept: set[str] = set()
            async with asyncio.timeout(PATIENCE):
                while not swept or [run for run in await journal.runs(active=True) if run.run_id.startswith("stale.")]:
                    swept |= set(await journal.sweep())
                    await asyncio.sleep(0.05)
            before = {run_id: [record async for record in journal.read(run_id)] for run_id in swept}
            child.signal(signal.SIGCONT)
            async with asyncio.timeout(PATIENCE):
                while not swept <= child.refused:  # noqa: ASYNC110  # the child sets no event
                    await asyncio.sleep(0.02)
            await child.kill()
            after = {run_id: [record async for record in journal.read(run_id)] for run_id in swept}
        finally:
            await journal.aclose()
    changed = sum(before[run_id] != after[run_id] for run_id in swept)
    show.failed += changed
    await show.judge("stale", child, f", {len(swept)} runs taken from it, {changed} of them changed by it later")


async def run(only: str | None, seconds: float) -> int:
    table = Table(
        "servers of a log taken away from a writer",
        ["case", "acknowledged", "lost", "wrong", "longest standstill, s"],
    )
    with postgres_url() as server, nats_cluster(3) as cluster:
        stream_name = f"nodes_{os.getpid()}"
        index = with_schema(server, stream_name)
        show = Show(cluster, with_log(index, cluster.log, stream_name), stream_name, seconds, table)
        cases: dict[str, Callable[[], Awaitable[None]]] = {
            "writer": lambda: show.case("writer", show.writer),
            "leader": lambda: show.case("leader", show.leader),
            "two": lambda: show.case("two", show.two),
            "all": lambda: show.case("all", show.all),
            "hang": lambda: show.case("hang", show.hang),
            "silent": lambda: silent(show, index),
            "stale": lambda: stale(show),
        }
        for name, case in cases.items():
            if only in (None, name):
                await case()
    table.print()
    return 1 if show.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Takes servers away from a log in NATS while a process writes.")
    parser.add_argument("--only", help="one case")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long servers are away")
    parser.add_argument("--child", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--lease", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(stream(options.child, options.name, options.lease))
        return 0
    return asyncio.run(run(options.only, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
