"""The whole of it: replicas, threads and kills, and what is left at the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from google.adk.sessions import DatabaseSessionService

from bench.nats import with_log
from callstream.adk.threads import THREAD_KEY
from callstream.agui import Conversation
from callstream.calls import FINAL, CallState
from callstream.events import RunResumed
from callstream.journal import Journal, open_journal
from callstream.runtime.continuing import INTERRUPTED
from callstream.testing import ScriptedProvider

from .fleet import Fleet, Replica, Workers
from .plan import Plan
from .thread import Reader, Talker, Tally, Undisturbed, messages_of, plain

PATIENCE = 90.0
"""Seconds without anything new after which a thread hangs."""


class Chaos:
    def __init__(
        self, url: str, threads: int, turns: int, kills: int, seed: int, lease: float, workers: int = 1
    ) -> None:
        self._url = url
        self._workers = workers
        self.goes_on = False
        self.log = ""
        """What the journal's URL says of a log beside PostgreSQL."""
        self._turns = turns
        self._wanted_kills = kills
        self._lease = lease
        self._chance = random.Random(seed)
        self._threads = [f"thread-{number}" for number in range(threads)]
        self._plan = Plan()
        self._tally = Tally()
        self._kills = 0
        self._executed: list[dict[str, Any]] = []
        self._interrupted: set[str] = set()
        self.lost: set[str] = set()
        self.doubled: set[str] = set()
        self.hung: set[str] = set()

    @property
    def is_well(self) -> bool:
        return not (self.lost or self.doubled or self.hung or self._tally.wrong or self._plan.wrong)

    def line(self) -> str:
        return (
            f"threads {len(self._threads)}, kills {self._kills}, joins {self._tally.joins}, "
            f"lost {len(self.lost)}, doubled {len(self.doubled)}, hung {len(self.hung)}"
        )

    async def play(self) -> None:
        schema = f"chaos_{os.getpid()}"
        journal_url = f"{self._url}{'&' if '?' in self._url else '?'}schema={schema}"
        if self.log:
            journal_url = with_log(journal_url, self.log, schema)
        sessions_url = self._url.replace("postgresql://", "postgresql+asyncpg://", 1)
        journal = open_journal(journal_url, housekeeping=None)
        await journal.open()
        await _make_session_tables(sessions_url)
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "tools.log"
            with ScriptedProvider("gemini", self._plan.script, stream_args_unasked=True, deltas_per_second=30) as model:
                arguments = [
                    *("--journal", journal_url, "--provider", model.base_url, "--log", str(log)),
                    *("--sessions", sessions_url, "--lease", str(self._lease)),
                ]
                arguments += ["--go-on"] if self.goes_on else []
                chance = random.Random(self._chance.random())
                several = [Workers(arguments, self._workers, chance)]
                fleet = Fleet(several if self._workers > 1 else [Replica(arguments) for _ in range(2)], chance)
                try:
                    await fleet.start()
                    await self._live(fleet, journal)
                    await self._show_evidence(journal, sessions_url)
                finally:
                    self._kills = fleet.kills
                    await fleet.close()
                    await journal.aclose()
            self._check_log(log)

    async def _live(self, fleet: Fleet, journal: Journal) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        timeout = httpx.Timeout(10.0, read=60.0, pool=None)
        async with httpx.AsyncClient(limits=limits, timeout=timeout) as http:
            between = max(1, len(self._threads) // 8)
            killing = asyncio.create_task(
                fleet.kill_and_restart(self._wanted_kills, lambda: self._tally.finished, between)
            )
            telling = asyncio.create_task(self._tell(fleet))
            watched = [
                _Watched(thread_id, fleet, http, self._tally, journal, self._chance) for thread_id in self._threads
            ]
            try:
                ended = await asyncio.gather(*(each.live(self._turns) for each in watched), return_exceptions=True)
                for each, outcome in zip(watched, ended, strict=True):
                    if isinstance(outcome, TimeoutError):
                        self.hung.add(each.thread_id)
                        print(f"HUNG: {each.thread_id} after {each.talker.client.ended}", flush=True)
                    elif isinstance(outcome, BaseException):
                        self._tally.complain(f"{each.thread_id}: {type(outcome).__name__}: {outcome}")
            finally:
                killing.cancel()
                await asyncio.wait({killing})
            for replica in fleet.replicas:
                if not replica.is_up:
                    await replica.kill()
                    await replica.start()
            for each in watched:
                await self._check(each, journal)
            telling.cancel()

    async def _tell(self, fleet: Fleet) -> None:
        started = time.monotonic()
        while True:
            await asyncio.sleep(5)
            tally = self._tally
            print(
                f"  {time.monotonic() - started:4.0f} s: turns {tally.finished}, "
                f"interrupted {tally.interrupted}, kills {fleet.kills}, joins {tally.joins}, "
                f"requests {self._plan.requests}",
                flush=True,
            )

    # -- what must hold --

    async def _check(self, watched: _Watched, journal: Journal) -> None:
        thread_id = watched.thread_id
        try:
            async with asyncio.timeout(60):
                while active := await journal.runs(thread_id=thread_id, active=True):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
                found = await watched.found(journal)
        except TimeoutError:
            self.hung.add(thread_id)
            print(f"HUNG: {thread_id} still has {active}", flush=True)
            return
        expected = found.pop("undisturbed")
        for who, messages in found.items():
            if messages != expected:
                self.lost.add(thread_id)
                print(f"LOST: {thread_id}: {who} has {_difference(messages, expected)}", flush=True)
        void = await _void(journal, thread_id)
        for glimpse in watched.glimpses():
            seen = [message for message in glimpse if message["id"] not in void]
            if (vanished := _vanished(plain(seen), expected)) is not None:
                self.lost.add(thread_id)
                print(f"LOST: {thread_id}: what was shown is gone: {vanished}", flush=True)
        runs = await journal.runs(thread_id=thread_id)
        self._interrupted |= {run.run_id for run in runs if run.reason == "interrupted"}
        for call in await journal.calls(thread_id=thread_id):
            if call.state not in FINAL and call.state is not CallState.AWAITING:
                self.hung.add(thread_id)
                print(f"HUNG: {call}", flush=True)
            whole = await journal.call(call.call_id)
            assert whole is not None
            self._executed.append(
                {"id": call.provider_id or call.call_id, "state": str(call.state), "name": call.name, "call": whole}
            )

    async def _show_evidence(self, journal: Journal, sessions_url: str) -> None:
        """Prints what was sent to models that were told something wrong, and what sessions and journal have of it."""
        async with DatabaseSessionService(sessions_url) as sessions:
            for thread_id, contents in self._plan.evidence.items():
                print(f"EVIDENCE: {thread_id}: the model was sent {json.dumps(contents)}", flush=True)
                for known in (await sessions.list_sessions(app_name="chaos")).sessions:
                    if known.state.get(THREAD_KEY) != thread_id:
                        continue
                    found = await sessions.get_session(app_name="chaos", user_id=known.user_id, session_id=known.id)
                    for event in found.events if found is not None else ():
                        told = event.model_dump_json(exclude_defaults=True)
                        print(f"EVIDENCE: {thread_id}: session {known.id}: {told}", flush=True)
                for row in reversed(await journal.runs(thread_id=thread_id)):
                    print(f"EVIDENCE: {thread_id}: {row}", flush=True)
                    async for record in journal.read(row.run_id):
                        print(f"EVIDENCE: {thread_id}: {record}", flush=True)

    def _check_log(self, log: Path) -> None:
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
        starts = Counter(line["call_id"] for line in lines if line["did"] == "start")
        self.doubled |= {call_id for call_id, count in starts.items() if count > 1}
        args = {line["call_id"]: line["args"] for line in lines if line["did"] == "start"}
        for call in self._executed:
            if call["name"] != "work":
                continue
            if call["state"] == "completed" and call["id"] not in starts:
                self._tally.complain(f"{call['id']} has a result, but its tool never ran")
            if call["state"] == "discarded" and call["id"] in starts:
                self._tally.complain(f"{call['id']} was discarded, but its tool ran")
            if call["id"] in args and args[call["id"]] != call["call"].args:
                self._tally.complain(f"{call['id']} ran with other arguments than the journal has")
        unknown = set(starts) - {call["id"] for call in self._executed}
        if unknown and not self.hung:
            self._tally.complain(f"tools ran for calls that the journal does not have: {sorted(unknown)[:3]}")
        failed = {
            (call["call"].thread_id, call["name"])
            for call in self._executed
            if call["state"] == "discarded"
            or (call["state"] == "failed" and call["call"].error in ("interrupted", INTERRUPTED))
        }
        for thread_id, name in sorted(self._plan.interrupted - failed):
            self._tally.complain(f"{thread_id}: the model was told that {name} was interrupted, and it never was")
        for question, told_at in self._plan.unanswered:
            if not any(
                call["state"] != "discarded"
                and call["call"].args["label"] == question
                and call["call"].run_id in self._interrupted
                and (call["state"] != "completed" or call["call"].updated_at > told_at)
                for call in self._executed
                if call["name"] == "approve"
            ):
                self._tally.complain(f"the model was told that {question!r} had no answer yet, and no crash did that")
        for what in self._plan.wrong:
            print(f"WRONG: {what}", flush=True)
        told = f"interrupted of {len(self._plan.interrupted)} tools, no answer yet {len(self._plan.unanswered)} times"
        print(f"  tools ran {starts.total()} times, for {len(starts)} calls; the model was told: {told}", flush=True)


async def _void(journal: Journal, thread_id: str) -> set[str]:
    """The messages that were cut with a replica, and written anew by another one."""
    runs = [run.run_id for run in await journal.runs(thread_id=thread_id)]
    events = [record.event for record in await journal.read_whole(runs)]
    messages = [message for event in events if isinstance(event, RunResumed) for message in event.void]
    return {*messages, *(f"reasoning-{message}" for message in messages)}


async def _make_session_tables(url: str) -> None:
    """google-adk makes them at the first use, and two processes that do so at once get in each other's way."""
    async with DatabaseSessionService(url) as sessions:
        await sessions.list_sessions(app_name="chaos")


class _Watched:
    """A thread with all who watch it."""

    def __init__(
        self,
        thread_id: str,
        fleet: Fleet,
        http: httpx.AsyncClient,
        tally: Tally,
        journal: Journal,
        chance: random.Random,
    ) -> None:
        self.thread_id = thread_id
        self.talker = Talker(thread_id, fleet, http, tally, random.Random(chance.random()))
        self.reader = Reader(thread_id, fleet, http, tally, random.Random(chance.random()))
        self._late = Reader(thread_id, fleet, http, tally, random.Random(chance.random()))
        self.undisturbed = Undisturbed(journal, thread_id)

    async def live(self, turns: int) -> None:
        watching = [asyncio.create_task(self.reader.come_and_go()), asyncio.create_task(self.undisturbed.read())]
        talking = asyncio.create_task(self.talker.talk(turns))
        tasks = {talking, *watching}
        try:
            while not talking.done():
                done, _ = await asyncio.wait(tasks, timeout=5, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if asyncio.get_running_loop().time() - self.talker.moved_at > PATIENCE:
                    raise TimeoutError
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def glimpses(self) -> list[list[dict[str, Any]]]:
        return [*self.talker.glimpses, *self.reader.glimpses]

    async def found(self, journal: Journal) -> dict[str, list[dict[str, Any]]]:
        """What each of them has in the end. Those who come and go join once more."""
        await self.undisturbed.read_more()
        for watcher in (self.talker, self.reader, self._late):
            await watcher.join_until_ended(drops=0.0)
        rows = reversed(await journal.runs(thread_id=self.thread_id))
        records = [record for row in rows for record in [each async for each in journal.read(row.run_id)]]
        return {
            "undisturbed": plain(self.undisturbed.messages),
            "the journal": plain(messages_of(Conversation.of(records))),
            "the talker": plain(self.talker.client.messages),
            "the reader": plain(self.reader.client.messages),
            "a late reader": plain(self._late.client.messages),
        }


def _difference(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            return f"at {number} {json.dumps(one)[:300]} instead of {json.dumps(other)[:300]}"
    return f"{len(found)} messages instead of {len(expected)}"


def _vanished(glimpse: list[dict[str, Any]], final: list[dict[str, Any]]) -> str | None:
    """What of a glimpse is not the beginning of what came to be. Messages that only their writer had are no loss."""
    texts = {message["id"]: message.get("content") or "" for message in final}
    args = {call["id"]: call["function"]["arguments"] for message in final for call in message.get("toolCalls", ())}
    for message in glimpse:
        if message["role"] in ("assistant", "reasoning"):
            if not texts.get(message["id"], "").startswith(message.get("content") or ""):
                return f"{message}"
            for call in message.get("toolCalls", ()):
                if not args.get(call["id"], "").startswith(call["function"]["arguments"]):
                    return f"{call}"
    return None
