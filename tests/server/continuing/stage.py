"""The whole of it: servers, runs and kills, and what is left at the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from callstream.events import RequestKept, ResponseKept, RunEnded, RunResumed
from callstream.journal import Journal, open_journal
from callstream.testing import ScriptedProvider
from callstream.view import Passage, RunView
from tests.captures import ROOT

from .script import Models

AT_ONCE = 6
LONGEST = 120.0


class Server:
    """``callstream serve`` of the application, on a port that it keeps."""

    def __init__(self, journal: str, environment: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._command = [
            *(sys.executable, "-W", "ignore", "-m", "callstream", "serve", "tests/server/continuing/app.py:root_agent"),
            *("--journal", journal, "--port", str(self.port)),
        ]
        path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        self._environment = {**os.environ, "PYTHONPATH": path, "CALLSTREAM_LEASE_TTL": "4", **environment}
        self._environment["CALLSTREAM_SHUTDOWN_SECONDS"] = "0.1"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=ROOT,
            env=self._environment,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=None if os.environ.get("CONTINUING_LOUD") else asyncio.subprocess.DEVNULL,
        )
        async with httpx.AsyncClient() as client:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                try:
                    if (await client.get(f"http://127.0.0.1:{self.port}/readyz")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.1)
        raise AssertionError("the server does not start")

    async def end(self, how: int = signal.SIGKILL) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(how)
            await self._process.wait()

    async def begin(self, thread: str) -> None:
        """Begins a run, and leaves its stream."""
        given = {
            "threadId": thread,
            "runId": f"{thread}-r",
            "state": {},
            "tools": [],
            "context": [],
            "messages": [{"id": f"{thread}-m", "role": "user", "content": f"Do it for {thread}."}],
            "forwardedProps": {},
        }
        async with httpx.AsyncClient(timeout=30) as client:
            address = f"http://127.0.0.1:{self.port}/agui"
            async with client.stream("POST", address, json=given) as answer:
                assert answer.status_code == 200, await answer.aread()
                async for _ in answer.aiter_bytes():
                    return


class Stage:
    """``how``: the signal that ends servers. ``replicas``: of one, it is started again; else another one goes on."""

    def __init__(
        self, journal: str, kind: str, wire: str, kills: int, seed: int, *, how: int = signal.SIGKILL, replicas: int = 1
    ) -> None:
        self._backend = journal
        self._how = how
        self._replicas = replicas
        self._kind = kind
        self._wire = wire
        self._wanted = kills
        self._chance = random.Random(f"{seed} {kind} {wire}")
        self.kills = self.runs = self.interrupted = 0
        self.faults: Counter[str] = Counter()
        self.said: list[str] = []
        self.seconds: list[float] = []

    async def play(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            url = f"sqlite:///{place / 'calls.db'}" if self._backend == "sqlite" else self._backend
            models = Models(self._wire)
            with ScriptedProvider(self._wire, models.script, stream_args_unasked=True, deltas_per_second=40) as model:
                environment = {
                    "CONTINUING_PROVIDER": model.base_url,
                    "CONTINUING_WIRE": self._wire,
                    "CONTINUING_KIND": self._kind,
                    "CONTINUING_LOG": str(place / "tools.log"),
                }
                servers = [Server(url, environment) for _ in range(self._replicas)]
                journal = open_journal(url, housekeeping=None)
                await journal.open()
                try:
                    await asyncio.gather(*(server.start() for server in servers))
                    while self.kills < self._wanted:
                        await self._round(servers, journal)
                finally:
                    for server in servers:
                        await server.end()
                    await journal.aclose()
            self._judge_tools(place / "tools.log")

    async def _round(self, servers: list[Server], journal: Journal) -> None:
        """Some runs at once, and a kill at some record of one of them."""
        threads = [f"run-{self.runs + number}" for number in range(AT_ONCE)]
        self.runs += AT_ONCE
        victim = servers[0]
        for thread in threads:
            await victim.begin(thread)
            await asyncio.sleep(self._chance.uniform(0, 0.25))
        for _ in range(self._chance.choice((1, 1, 2))):
            last = self._chance.choice(threads)
            wanted = self._chance.randrange(2, 90)
            if not await self._reach(journal, f"{last}-r", wanted):
                break
            await victim.end(self._how)
            self.kills += 1
            active = await journal.runs(active=True)
            self.interrupted += len(active)
            killed_at = time.monotonic()
            if len(servers) == 1:
                await victim.start()
                killed_at = time.monotonic()
            else:
                servers[:] = [*servers[1:], victim]
                victim = servers[0]
                restart = asyncio.create_task(servers[-1].start())
            if active:
                await self._resumed(journal, active[0].run_id)
                self.seconds.append(time.monotonic() - killed_at)
            if len(servers) > 1:
                await restart
        for thread in threads:
            await self._judge(journal, f"{thread}-r", thread)

    async def _reach(self, journal: Journal, run_id: str, seq: int) -> bool:
        """Whether the run has written that record and goes on."""
        async with asyncio.timeout(LONGEST):
            async for record in journal.follow(run_id):
                if isinstance(record.event, RunEnded):
                    return False
                if record.seq >= seq:
                    return True
        return False

    async def _resumed(self, journal: Journal, run_id: str) -> None:
        attempts = 0
        try:
            async with asyncio.timeout(LONGEST):
                async for record in journal.follow(run_id):
                    attempts += isinstance(record.event, RunResumed)
                    if attempts or isinstance(record.event, RunEnded):
                        return
        except TimeoutError:
            pass  # told by _judge

    async def _judge(self, journal: Journal, run_id: str, label: str) -> None:
        try:
            async with asyncio.timeout(LONGEST):
                records = [record async for record in journal.follow(run_id)]
        except TimeoutError:
            self._fault("unfinished", f"{run_id} goes on and on")
            return
        ended = records[-1].event
        if ended != RunEnded("finished"):
            self._fault("unfinished", f"{run_id}: {ended}")
            return
        answered: set[tuple[str | None, str]] = set()
        for record in records:
            event = record.event
            if isinstance(event, RequestKept) and (record.author, event.request) in answered:
                self._fault("paid again", f"{run_id}: record {record.seq}")
            elif isinstance(event, ResponseKept):
                answered.add((record.author, event.request))
        texts = Counter(item.text for item in RunView.of(records).items if isinstance(item, Passage))
        wanted = self._wanted_texts(label)
        if texts != wanted:
            self._fault("shown wrongly", f"{run_id}: {texts - wanted} too much, {wanted - texts} too little")

    def _wanted_texts(self, label: str) -> Counter[str]:
        def one(name: str) -> list[str]:
            return [f"{name} looks. ", f"{name} writes twice. ", f"{name} is done with {label}."]

        match self._kind:
            case "llm":
                said = one("first")
            case "sequential" | "parallel":
                said = one("first") + one("second")
            case "loop":
                said = [*one("first"), f"first is done with {label}."]
            case "transfer":
                said = ["Over to first. ", *one("first")]
            case _:
                said = ["I ask first. ", *one("first"), f"outer is done with {label}."]
        return Counter(said)

    def _judge_tools(self, log: Path) -> None:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        begun = Counter((line["did"], line["label"], line["key"]) for line in lines if line["at"] == "start")
        written = Counter((label) for did, label, _ in begun.elements() if did == "write")
        per_run = 2 if self._kind in ("sequential", "parallel") else 1
        for label, count in written.items():
            if count > per_run:
                self._fault("repeated", f"write {label} ran {count} times")

    def _fault(self, kind: str, what: str) -> None:
        self.faults[kind] += 1
        self.said.append(f"{kind}: {what}")

    def line(self) -> str:
        names = ("unfinished", "paid again", "repeated", "shown wrongly")
        wrong = ", ".join(f"{name} {self.faults[name]}" for name in names)
        waited: list[Any] = sorted(self.seconds) or [0.0]
        return (
            f"{self._kind}, {self._wire}: kills {self.kills}, runs {self.runs}, interrupted {self.interrupted}, {wrong}; "
            f"goes on after {waited[len(waited) // 2]:.1f} s, at most {waited[-1]:.1f} s"
        )
