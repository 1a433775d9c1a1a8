"""One rung of the table "pace" without a server: a process that reads streams, with the tap or without it.

Prints the CPU microseconds that each delta costs it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from typing import Any

import httpx

from callstream import Callstream

_ASKED = {"contents": [{"role": "user", "parts": [{"text": "Write."}]}], "tools": []}


async def read(client: Any, base_url: str) -> None:
    url = f"{base_url}/v1beta/models/gemini-3-flash-preview:streamGenerateContent?alt=sse"
    async with client.stream("POST", url, json=_ASKED) as response:
        async for _ in response.aiter_bytes():
            pass


async def measure(base_url: str, journal: str | None, streams: int, pace: float, seconds: float) -> float:
    if journal is None:
        return await _measure(None, httpx.AsyncClient(timeout=600), base_url, streams, pace, seconds)
    async with Callstream(journal) as cs, cs.httpx_client(collapse="all") as client:
        return await _measure(cs, client, base_url, streams, pace, seconds)


async def _measure(
    cs: Callstream | None, client: Any, base_url: str, streams: int, pace: float, seconds: float
) -> float:
    async def stream(number: int) -> None:
        if cs is None:
            await read(client, base_url)
        else:
            async with cs.run(f"thread-{number}"):
                await read(client, base_url)

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
    parser.add_argument("--journal", choices=("none", "memory", "sqlite"), default="none")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--pace", type=float, required=True, help="deltas a second of each stream")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--core", type=int, help="the only core that this process may use")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    with tempfile.TemporaryDirectory() as folder:
        journal = {"none": None, "memory": "memory:", "sqlite": f"sqlite:///{folder}/calls.db"}[options.journal]
        print(asyncio.run(measure(options.provider, journal, options.streams, options.pace, options.seconds)))


if __name__ == "__main__":
    main()
