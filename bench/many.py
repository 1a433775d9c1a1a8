"""Table "many": 200 streams at 50 deltas a second each, through one process, for five minutes.

Each of the streams is one response after another, ten seconds long, with one call whose deltas carry the time at which
the provider wrote them; a hook reads it, after the delta was journalled in SQLite. So the latency is that of the whole
way: socket, tap, decoder, journal on disk, hook. Memory is that of the process after a first tenth, and to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.providers import provider
from bench.table import Table
from callstream import Callstream
from callstream.testing import ToolCall
from callstream.testing.provider import STAMP

PACE = 50
RESPONSE_SECONDS = 10


def resident() -> float:
    """The memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


class Latencies:
    """How many deltas took how long, in steps of a tenth of a millisecond: it does not grow with their number."""

    def __init__(self) -> None:
        self._steps = [0] * 100_000
        self.count = 0

    def add(self, nanoseconds: int) -> None:
        self._steps[min(nanoseconds // 100_000, len(self._steps) - 1)] += 1
        self.count += 1

    def quantile(self, share: float) -> float:
        """Milliseconds that this share of the deltas did not exceed."""
        left = share * self.count
        for step, count in enumerate(self._steps):
            left -= count
            if left <= 0:
                return (step + 1) / 10
        return len(self._steps) / 10


async def measured(streams: int, seconds: int) -> tuple[Latencies, float, list[float]]:
    """Latencies, the share of one core, and the memory every tenth of the time."""
    deltas = PACE * min(seconds, RESPONSE_SECONDS)
    until = time.monotonic() + seconds
    text = '{"content":"' + " " * (len(STAMP) - 12) + STAMP * deltas + '"}'
    script = [ToolCall("write", text=text, size=len(STAMP))]
    found = Latencies()
    memory: list[float] = []

    async def note(delta: Any, signal: Any) -> None:
        now = time.monotonic_ns()
        text = delta.text
        for start in range(0, len(text) - len(STAMP) + 1, len(STAMP)):
            stamp = text[start : start + len(STAMP)]
            if stamp.isdigit():
                found.add(now - int(stamp))

    async def watch() -> None:
        for step in range(10):
            await asyncio.sleep(seconds / 10)
            memory.append(resident())
            print(f"  {(step + 1) * 10} %, {memory[-1]:.0f} MiB", file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryDirectory() as folder,
        provider("openai_chat", script, "--deltas-per-second", str(PACE), "--stamp") as base_url,
    ):
        async with Callstream(f"sqlite:///{folder}/calls.db") as cs:
            cs.on_args_delta("write", note)
            async with cs.httpx_client() as client:

                async def stream(number: int) -> None:
                    body = {"model": "m", "stream": True, "messages": []}
                    while time.monotonic() < until:
                        async with cs.run(f"thread-{number}"):
                            async with client.stream("POST", f"{base_url}/chat/completions", json=body) as response:
                                async for _ in response.aiter_raw():
                                    pass

                began, cpu = time.monotonic(), time.process_time()
                await asyncio.gather(watch(), *(stream(number) for number in range(streams)))
                share = (time.process_time() - cpu) / (time.monotonic() - began)
    return found, share, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=300)
    options = parser.parse_args()
    found, share, memory = asyncio.run(measured(options.streams, options.seconds))
    table = Table(
        f"many: {options.streams} streams at {PACE} deltas/s each, {options.seconds} s, provider's write to hook",
        ["deltas", "p50 ms", "p99 ms", "share of a core", "MiB at 20 %", "at 60 %", "at the end"],
    )
    table.row(
        found.count,
        found.quantile(0.5),
        found.quantile(0.99),
        f"{share:.0%}",
        memory[1],
        memory[5],
        memory[-1],
    )
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
