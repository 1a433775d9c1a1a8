"""One rung of the table "pace" without a server: a process that reads streams, with the tap or without it.

It runs on the event loop that the servers run on. Prints the CPU microseconds that each delta costs it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from typing import Any

import httpx
import uvicorn

from callstream import Callstream

STEPS = ("httpx", "connections", "memory", "sqlite")
_PATH = "/v1beta/models/gemini-3-flash-preview:streamGenerateContent?alt=sse"
_ASKED = {"contents": [{"role": "user", "parts": [{"text": "Write."}]}], "tools": []}


async def read(client: Any, url: str) -> None:
    async with client.stream("POST", url, json=_ASKED) as response:
        async for _ in response.aiter_bytes():
            pass


async def measure(step: str, base_url: str, folder: str, streams: int, pace: float, seconds: float) -> float:
    if step == "httpx":
        async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=1000)) as client:
            return await _measure(None, client, base_url + _PATH, streams, pace, seconds)
    journal = f"sqlite:///{folder}/calls.db" if step == "sqlite" else "memory:"
    # What is at another path is not the tap's to read.
    url = base_url if step == "connections" else base_url + _PATH
    async with Callstream(journal) as cs, cs.httpx_client(collapse="all") as client:
        return await _measure(cs, client, url, streams, pace, seconds)


async def _measure(cs: Callstream | None, client: Any, url: str, streams: int, pace: float, seconds: float) -> float:
    async def stream(number: int) -> None:
        if cs is None:
            await read(client, url)
        else:
            async with cs.run(f"thread-{number}"):
                await read(client, url)

    tasks = [asyncio.create_task(stream(number)) for number in range(streams)]
    try:
        await asyncio.sleep(2)
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        used, lasted = time.process_time() - cpu, time.monotonic() - began
        if ended := [task for task in tasks if task.done()]:
            raise RuntimeError(f"{len(ended)} streams ended early: {ended[0].exception()!r}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return used / (lasted * streams * pace) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", required=True, help="the base URL of the model")
    parser.add_argument("--step", choices=STEPS, default="httpx")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--pace", type=float, required=True, help="deltas a second of each stream")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--core", type=int, help="the only core that this process may use")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    factory = uvicorn.Config("").get_loop_factory()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=factory) as runner:
        given = options.step, options.provider, folder, options.streams, options.pace, options.seconds
        print(runner.run(measure(*given)))


if __name__ == "__main__":
    main()
