"""The whole of it: servers, runs and kills, and what is left at the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from copy import copy
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from callstream.calls import CallState
from callstream.events import OutputKept, Record, RequestKept, ResponseKept, RunEnded, RunResumed
from callstream.journal import Journal, open_journal
from callstream.testing import ScriptedProvider
from callstream.view import Passage, RunView
from tests.ports import kept_port

from .mcptools import mcp_server
from .nursery import Nursery
from .script import ASKS, Models, texts

AT_ONCE = 6
MOST_KILLS = 5
"""Of the process of one run."""
LONGEST = 120.0
FAULTS = ("unfinished", "not taken", "paid again", "repeated", "shown wrongly")


class Server:
    """``callstream serve`` of the application, on a port that it keeps. Each start is a child of the next nursery."""

    def __init__(self, nurseries: Iterator[Nursery], journal: str, environment: dict[str, str]) -> None:
        self.port = kept_port()
        self._nurseries = nurseries
        self._arguments = ["serve", "tests/server/continuing/app.py:root_agent", "--port", str(self.port)]
        times = {"CALLSTREAM_LEASE_TTL": "4", "CALLSTREAM_SHUTDOWN_SECONDS": "0.1"}
        self._environment = {"CALLSTREAM_JOURNAL": journal, **times, **environment}
        self.pid: int | None = None

    def like(self, nursery: Nursery) -> Server:
        """One more, elsewhere, whose processes are born there."""
        made = copy(self)
        made._nurseries = cycle([nursery])
        made.port = kept_port()
        made._arguments = [*self._arguments[:-1], str(made.port)]
        made.pid = None
        return made

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.pid = await next(self._nurseries).bear(self._arguments, self._environment)
        async with httpx.AsyncClient() as client, asyncio.timeout(60):
            while True:
                try:
                    if (await client.get(f"{self.address}/readyz")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                assert self.lives, "the server does not start; CONTINUING_LOUD=1 shows why"
                await asyncio.sleep(0.02)

    @property
    def lives(self) -> bool:
        return self.pid is not None and os.path.exists(f"/proc/{self.pid}")

    def send(self, how: int) -> None:
        assert self.pid is not None
        os.kill(self.pid, how)

    async def end(self, how: int = signal.SIGKILL) -> None:
        if self.lives:
            self.send(how)
            while self.lives:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def begin(self, thread: str, run_id: str, **more: Any) -> None:
        """Begins a run, and leaves its stream."""
        given = {
            "threadId": thread,
            "runId": run_id,
            "state": {},
            "tools": [],
            "context": [],
            "messages": [{"id": f"{thread}-m", "role": "user", "content": f"Do it for {thread}."}],
            "forwardedProps": {},
            **more,
        }
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", f"{self.address}/agui", json=given) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            async for _ in answer.aiter_bytes():
                return

    async def joined(self, thread: str) -> Counter[str]:
        """The texts that a client sees that joins the thread now."""
        found: Counter[str] = Counter()
        async with httpx.AsyncClient(timeout=30) as client:
            address = f"{self.address}/threads/{thread}/connect"
            answer = await client.post(address, json={"threadId": thread})
            assert answer.status_code == 200, answer.text
        for line in answer.text.splitlines():
            if line.startswith("data:"):
                event = json.loads(line[5:])
                if event["type"] == "MESSAGES_SNAPSHOT":
                    said = [each for each in event["messages"] if each["role"] == "assistant" and each.get("content")]
                    found = Counter(each["content"] for each in said)
        return found


class Stage:
    """``how``: the signal that ends servers. ``replicas``: of one, it is started again; else another one goes on."""

    def __init__(
        self, journal: str, kind: str, wire: str, kills: int, seed: int, *, how: int = signal.SIGKILL, replicas: int = 1
    ) -> None:
        self._attempts = 1 + MOST_KILLS
        self._settings: dict[str, str] = {}
        self._models: Any = Models(wire, kind)
        self._backend = journal
        self._how = how
        self._replicas = replicas
        self._kind = kind
        self._wire = wire
        self._wanted = kills
        self._chance = random.Random(f"{seed} {kind} {wire}")
        self._places: list[int] = []
        self._longest = 60
        self.kills = self.runs = self.interrupted = 0
        self.faults: Counter[str] = Counter()
        self.said: list[str] = []
        self.seconds: list[float] = []

    async def play(self) -> None:
        async with self.opened() as (servers, journal, log):
            while self.kills < self._wanted:
                await self._round(servers, journal)
            self._judge_tools(log.read_text())
            if (kept := os.environ.get("CONTINUING_KEEP")) and self.faults:
                shutil.copytree(log.parent, kept, dirs_exist_ok=True)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[list[Server], Journal, Path]]:
        """The servers, started."""
        nurseries = [Nursery(seed) for seed in (1, 2)]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
            place = Path(folder)
            log = place / "tools.log"
            url = f"sqlite:///{place / 'calls.db'}" if self._backend == "sqlite" else self._backend
            provider = ScriptedProvider(self._wire, self._models.script, stream_args_unasked=True, deltas_per_second=80)
            environment = {
                "CONTINUING_PROVIDER": stack.enter_context(provider).base_url,
                "CONTINUING_WIRE": self._wire,
                "CONTINUING_KIND": self._kind,
                "CALLSTREAM_MAX_ATTEMPTS": str(self._attempts),
                "CONTINUING_LOG": str(log),
                **self._settings,
                "CONTINUING_MCP": stack.enter_context(mcp_server(log)) if self._kind == "mcp" else "",
            }
            born = cycle(nurseries)
            servers = [Server(born, url, environment) for _ in range(self._replicas)]
            journal = open_journal(url, housekeeping=None)
            await journal.open()
            try:
                await asyncio.gather(*(server.start() for server in servers))
                yield servers, journal, log
            finally:
                for server in servers:
                    await server.end()
                await journal.aclose()
                for nursery in nurseries:
                    await nursery.close()

    async def _round(self, servers: list[Server], journal: Journal) -> None:
        """Some runs at once, and kills at some record of some of them; where they await a person, the same for the rest."""
        threads = [f"run-{self.runs + number}" for number in range(AT_ONCE)]
        self.runs += AT_ONCE
        for thread in threads:
            await servers[0].begin(thread, f"{thread}-r")
            await asyncio.sleep(self._chance.uniform(0, 0.15))
        await self._kill(servers, journal, [f"{thread}-r" for thread in threads])
        ended = [await self._ended(journal, f"{thread}-r") for thread in threads]
        if self._kind in ASKS:
            answered = []
            for number, thread in enumerate(threads):
                if await self._answer(servers[0], journal, thread):
                    answered.append(number)
                await asyncio.sleep(self._chance.uniform(0, 0.15))
            await self._kill(servers, journal, [f"{threads[number]}-s" for number in answered])
            for number in answered:
                ended[number] += await self._ended(journal, f"{threads[number]}-s")
        for thread, records in zip(threads, ended, strict=True):
            await self._judge(servers[0], thread, records)

    async def _kill(self, servers: list[Server], journal: Journal, runs: list[str]) -> None:
        for _ in range(self._chance.randint(2, MOST_KILLS)):
            if self.kills == self._wanted:
                return
            if not await self._reach(journal, self._chance.choice(runs), self._next_place()):
                continue
            victim = servers[0]
            await victim.end(self._how)
            self.kills += 1
            cut = {row.run_id: row.last_seq for row in await journal.runs(active=True)}
            self.interrupted += len(cut)
            killed_at = time.monotonic()
            if len(servers) == 1:
                await victim.start()
                killed_at = time.monotonic()
            else:
                servers[:] = [*servers[1:], victim]
                restart = asyncio.create_task(victim.start())
            for run_id, last in cut.items():
                if not await self._resumed(journal, run_id, last):
                    self._fault("not taken", run_id)
            if cut:
                self.seconds.append(time.monotonic() - killed_at)
            if len(servers) > 1:
                await restart

    def _next_place(self) -> int:
        """The number of the record at which to kill: all of them come, in any order, before one comes again."""
        if not self._places:
            self._places = list(range(2, self._longest))
            self._chance.shuffle(self._places)
        return self._places.pop()

    async def _answer(self, server: Server, journal: Journal, thread: str) -> bool:
        """What a person says to the call that awaits it. False if none does: its tool was interrupted."""
        awaiting = await journal.calls(thread_id=thread, states=[CallState.AWAITING])
        asked = [call for call in awaiting if call.name in ("first_order", "adk_request_confirmation")]
        if not asked:
            return False
        if len(asked) > 1:
            self._fault("shown wrongly", f"{thread}: asks {[call.name for call in awaiting]}")
        payload = {"confirmed": True} if self._kind == "confirmation" else {"status": "came"}
        entry = {"interruptId": asked[-1].call_id, "status": "resolved", "payload": payload}
        await server.begin(thread, f"{thread}-s", resume=[entry])
        return True

    async def _reach(self, journal: Journal, run_id: str, seq: int) -> bool:
        """Whether the run has written that record and goes on."""
        async with asyncio.timeout(LONGEST):
            async for record in journal.follow(run_id):
                if isinstance(record.event, RunEnded):
                    return False
                if record.seq >= seq:
                    return True
        return False

    async def _resumed(self, journal: Journal, run_id: str, last: int) -> bool:
        """Waits until another server goes on with a run after that record. One that has ended before it is not looked at."""
        try:
            async with asyncio.timeout(LONGEST):
                async for record in journal.follow(run_id, after=last):
                    if isinstance(record.event, RunResumed | RunEnded):
                        return True
        except TimeoutError:
            return False
        return True

    async def _ended(self, journal: Journal, run_id: str) -> list[Record]:
        """All records of the run."""
        try:
            async with asyncio.timeout(LONGEST):
                records = [record async for record in journal.follow(run_id)]
        except TimeoutError:
            self._fault("unfinished", f"{run_id} goes on and on")
            return []
        self._longest = max(self._longest, len(records))
        if records[-1].event != RunEnded("finished"):
            self._fault("unfinished", f"{run_id}: {records[-1].event}")
        return records

    async def _judge(self, server: Server, thread: str, records: list[Record]) -> None:
        answered: set[tuple[str | None, str]] = set()
        given: set[tuple[str, int]] = set()
        for record in records:
            event = record.event
            if isinstance(event, RequestKept) and (record.author, event.request) in answered:
                self._fault("paid again", f"{thread}: record {record.seq}")
            elif isinstance(event, ResponseKept):
                answered.add((record.author, event.request))
            elif isinstance(event, OutputKept) and "/" in event.name:  # a node of a workflow
                if (event.name, event.nth) in given:
                    self._fault("repeated", f"{thread}: {event.name}")
                elif event.data is not None:
                    given.add((event.name, event.nth))
        wanted = texts(self._kind, thread, len({record.run_id for record in records}))
        views = [RunView.of([each for each in records if each.run_id == f"{thread}-{run}"]) for run in "rs"]
        shown = Counter(item.text for view in views for item in view.items if isinstance(item, Passage))
        joined = await server.joined(thread)
        for name, seen in (("view", shown), ("joiner", joined)):
            if seen != wanted:
                difference = f"{dict(seen - wanted)} too much, {dict(wanted - seen)} too little"
                self._fault("shown wrongly", f"{thread}, {name}: {difference}")

    def _judge_tools(self, log: str) -> None:
        lines = [json.loads(line) for line in log.splitlines()]
        begun = Counter((line["label"]) for line in lines if line["at"] == "start" and line["did"] == "write")
        per_run = 2 if self._kind in ("sequential", "parallel", "workflow") else 1
        for label, count in begun.items():
            if count > per_run:
                self._fault("repeated", f"write {label} ran {count} times")

    def _fault(self, kind: str, what: str) -> None:
        self.faults[kind] += 1
        self.said.append(f"{kind}: {what}")

    def line(self) -> str:
        wrong = ", ".join(f"{name} {self.faults[name]}" for name in FAULTS)
        waited: list[Any] = sorted(self.seconds) or [0.0]
        return (
            f"{self._kind}, {self._wire}: kills {self.kills}, runs {self.runs}, interrupted {self.interrupted}, {wrong}; "
            f"goes on after {waited[len(waited) // 2]:.1f} s, at most {waited[-1]:.1f} s"
        )
