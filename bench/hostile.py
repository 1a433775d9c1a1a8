"""Table "hostile": what one client can make a server pay: memory, time, and how long everybody else has to wait.

A server on SQLite in a process of its own, and against it: 4 MB of a list where a message's text belongs; a thread of
10,000 short runs that is joined; 100 clients that join a call of 15 MB and read nothing. Meanwhile ``/healthz`` is asked
without a pause: its longest answer is how long anybody else would have waited.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import httpx

from bench.table import Table
from callstream import Callstream, current_run
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallExecuting,
    CallReturned,
    CallStarted,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    RunEnded,
    RunStarted,
    TextAppended,
)
from callstream.journal import open_journal
from callstream.server import create_app

RECORDS = 20
LARGE = 15_000_000
PIECE = 15_000


async def writing(given: Any) -> AsyncIterator[Any]:
    """An agent that writes one call of 15 MB and ends."""
    run = current_run()
    assert run is not None
    await run.record([CallStarted("large", "write", "large"), ArgsAppended("large", '{"text":"')])
    for _ in range(LARGE // PIECE):
        await run.record([ArgsAppended("large", "x" * PIECE)])
    await run.record([ArgsAppended("large", '"}'), CallCompleted("large", None)])
    yield None


def serve(port: int, journal: str) -> None:
    import uvicorn

    app = create_app(writing, callstream=Callstream(journal))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


async def fill(journal_url: str, runs: int) -> None:
    """A thread of short runs: a question, a call, its result, an answer."""
    journal = open_journal(journal_url)
    await journal.open()

    async def one(number: int) -> None:
        call, message = f"call-{number}", f"message-{number}"
        pieces = [ArgsAppended(call, piece) for piece in ('{"a', '":"', *("word " for _ in range(5)), '"}')]
        events = [
            RunStarted("long"),
            MessageReceived("user", "What next?", message_id=f"question-{number}"),
            CallStarted(call, "write", call),
            *pieces,
            CallCompleted(call, None),
            CallExecuting(call),
            CallReturned(call, {"done": True}),
            MessageStarted(message),
            *(TextAppended(message, "Done so far. ") for _ in range(3)),
            MessageEnded(message),
            RunEnded("finished"),
        ]
        assert len(events) == RECORDS, len(events)
        await journal.append(f"run-{number:06}", events)

    for start in range(0, runs, 500):
        await asyncio.gather(*(one(number) for number in range(start, min(start + 500, runs))))
    await journal.aclose()


class Victim:
    """The server, and what can be asked of its process."""

    def __init__(self, journal: str, port: int) -> None:
        self.port = port
        self.process = subprocess.Popen([sys.executable, "-m", "bench.hostile", "--serve", str(port), journal])

    def mebibytes(self, of: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{of}:\s+(\d+)", status, re.MULTILINE)
        return int(found[1]) // 1024 if found else 0

    async def __aenter__(self) -> Victim:
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=120)
        while True:
            try:
                await self.client.get("/healthz")
                return self
            except httpx.ConnectError:
                await asyncio.sleep(0.1)

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        self.process.kill()
        self.process.wait()

    async def attack(self, work: Awaitable[tuple[str, float]]) -> tuple[str, float, float, int, int]:
        """What came of it, seconds, the longest wait of anybody else in ms, MiB that it added, and the most there was."""
        before = self.mebibytes("VmRSS")
        task = asyncio.ensure_future(work)
        longest = 0.0
        while not task.done():
            asked = time.perf_counter()
            await self.client.get("/healthz")
            longest = max(longest, time.perf_counter() - asked)
            await asyncio.sleep(0.02)
        return *(await task), longest * 1000, self.mebibytes("VmHWM") - before, self.mebibytes("VmHWM")


async def post_list(victim: Victim) -> tuple[str, float]:
    given = _run_input("list")
    given["messages"] = [{"id": "m", "role": "user", "content": "HERE"}]
    body = json.dumps(given).replace('"HERE"', "[" + "0," * 2_000_000 + "0]").encode()
    start = time.perf_counter()
    async with httpx.AsyncClient(timeout=120) as client:
        answer = await client.post(f"http://127.0.0.1:{victim.port}/agui", content=body)
    return f"status {answer.status_code}", time.perf_counter() - start


async def join(victim: Victim) -> tuple[str, float]:
    """Reads as a client does, in a process of its own: decoding its megabytes here would delay the asking."""
    connect = (
        f"import http.client as h, time; c = h.HTTPConnection('127.0.0.1', {victim.port}); t = time.perf_counter(); "
    )
    read = "c.request('POST', '/threads/long/connect'); n = len(c.getresponse().read()); "
    code = connect + read + "print(n, time.perf_counter() - t)"
    made = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    (size, seconds) = map(float, (await made.communicate())[0].split())
    return f"{size / 1e6:.1f} MB read", seconds


async def stall(victim: Victim, joiners: int) -> tuple[str, float]:
    async with httpx.AsyncClient(timeout=120) as client:
        await client.post(f"http://127.0.0.1:{victim.port}/agui", json=_run_input("large"))
    start = time.perf_counter()
    writers = []
    for _ in range(joiners):
        reader, writer = await asyncio.open_connection("127.0.0.1", victim.port, limit=1024)
        writer.write(b"POST /threads/large/connect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        writers.append((reader, writer))
    told = 0
    for reader, _ in writers:
        await reader.readuntil(b"data: ")
        told += 1
    for _, writer in writers:
        writer.close()
    return f"{told} began", time.perf_counter() - start


def _run_input(thread_id: str) -> dict[str, Any]:
    given: dict[str, Any] = {"threadId": thread_id, "runId": f"run-{thread_id}", "messages": [], "tools": []}
    return {**given, "context": [], "state": {}, "forwardedProps": {}}


async def main(runs: int, joiners: int) -> int:
    table = Table(
        f"One client against a server: a list of 4 MB, a thread of {runs:,} runs, {joiners} joiners that read nothing",
        ["", "came of it", "seconds", "longest /healthz, ms", "MiB added", "MiB at most"],
    )
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        journal = f"sqlite:///{folder}/calls.db"
        await fill(journal, runs)
        attacks = {
            "4 MB of a list": (post_list, {"mebibytes": 100}),
            f"joining {runs:,} runs": (join, {"seconds": 2.0}),
            f"{joiners} stalled joiners of 15 MB": (lambda victim: stall(victim, joiners), {"most": 600}),
        }
        for name, (work, wanted) in attacks.items():
            async with Victim(journal, _free_port()) as victim:
                came, seconds, longest, added, most = await victim.attack(work(victim))
            table.row(name, came, seconds, longest, added, most)
            failed |= longest > 200 or added > wanted.get("mebibytes", added)
            failed |= seconds > wanted.get("seconds", seconds) or most > wanted.get("most", most)
    table.print()
    print("wanted: no wait over 200 ms; the list adds at most 100 MiB; joining takes 2 s; joiners stay below 600 MiB")
    return 1 if failed else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), sys.argv[3])
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--joiners", type=int, default=100)
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.runs, options.joiners)))
