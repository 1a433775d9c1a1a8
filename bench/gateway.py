"""Table "gateway": what a delta costs that passes a gateway, beside LiteLLM's proxy and a forwarder of bytes.

Streams of Anthropic's wire, each at the pace of a real model, through one process on a core of its own; the model and the
clients share the other. The CPU time is that of the gateway's process. The latency is from the model's write to the client's
read, for Callstream with every delta in the journal before it is passed on. While several runs write, the journal lets what
they bring gather for 40 ms, which saves CPU and costs latency: *gathers nothing* is Callstream without that.

LiteLLM has an environment of its own, which ``make .venv-litellm-proxy/.installed`` makes; without it, it is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load import Clients, Model, What, _Reader
from bench.server import server
from bench.table import Table
from bench.usage import LOADING, Usage, least_seconds, use

STREAMS, PACE, SECONDS = 50, 20.0, 10.0
SPARE = 60.0
MOST_MICROS, MOST_ADDED_MS = 120.0, 1.0
LITELLM = Path(".venv-litellm-proxy/bin/litellm")
KEY = "sk-bench"
UNGATHERED = "callstream, gathers nothing"
PASSING = "litellm, passing through"
SERVERS = ("forwarder", "callstream", UNGATHERED, "callstream, memory", PASSING, "litellm")


class Posts(Clients):
    """Clients that speak Anthropic's wire."""

    async def add(self, run_id: str | None = None) -> None:
        reader = _Reader(self)
        loop = asyncio.get_running_loop()
        where = self._where
        transport, _ = await loop.create_connection(lambda: reader, where.hostname, where.port)
        message = {"role": "user", "content": f"Write {len(self.open)}."}
        body = json.dumps({"model": "scripted", "max_tokens": 9, "stream": True, "messages": [message]})
        headers = f"host: {where.netloc}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        headers += f"\r\nx-api-key: {KEY}\r\nauthorization: Bearer {KEY}\r\nanthropic-version: 2023-06-01"
        transport.write(f"POST {where.path}/v1/messages HTTP/1.1\r\n{headers}\r\n\r\n{body}".encode())


# -- the servers --


@contextmanager
def served(which: str, base_url: str) -> Iterator[tuple[str, int]]:
    """The base URL of a gateway before that provider, and its process id."""
    if "litellm" in which:
        with litellm(base_url) as (address, pid):
            yield address + ("/anthropic" if which == PASSING else ""), pid
        return
    kind = "forwarder" if which == "forwarder" else "gateway"
    journal = "memory:" if which == "callstream, memory" else None
    with server(kind, base_url, journal, gather=0.0 if which == UNGATHERED else None) as (address, pid):
        yield f"{address}/anthropic", pid


@contextmanager
def litellm(base_url: str) -> Iterator[tuple[str, int]]:
    """LiteLLM's proxy as its users start it."""
    with tempfile.TemporaryDirectory() as folder:
        config, port = Path(folder, "config.yaml"), _free_port()
        model = {"model": "anthropic/scripted", "api_base": base_url, "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": "scripted", "litellm_params": model}]}))
        command = ["taskset", "-c", "0", str(LITELLM), "--config", str(config), "--port", str(port)]
        own = {
            "LITELLM_MASTER_KEY": KEY,
            "ANTHROPIC_API_BASE": base_url,
            "ANTHROPIC_API_KEY": "none",
            "NO_DOCS": "True",
        }
        own |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_ADMIN_UI": "True", "LITELLM_LOG": "ERROR"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*command, "--num_workers", "1"], env={**os.environ, **own}, **quiet)
        try:
            _wait_until_it_listens(port, process)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.kill()
            process.wait(10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + LOADING
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server did not start")


# -- the measurement --


async def measure(which: str, streams: int, pace: float, seconds: float, what: What) -> Usage:
    model = Model(pace, least_seconds(streams, seconds) + SPARE, what, "anthropic")
    async with model.listen() as base_url:
        with served(which, base_url) as (address, pid):
            return await use(Posts(address), pid, streams, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--pace", type=float, default=PACE, help="deltas a second of each stream")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--what", choices=("text", "arguments"), action="append")
    parser.add_argument("--which", choices=SERVERS, action="append")
    options = parser.parse_args()
    os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
    servers = [each for each in options.which or SERVERS if "litellm" not in each or LITELLM.exists()]
    found: dict[tuple[str, str], Usage] = {}
    columns = ["server", "writes", "µs per delta", "p50 ms", "p99 ms", "MiB", "driver", ""]
    table = Table(f"gateway: {options.streams} streams, {options.pace:g} deltas/s each", columns)
    for what in options.what or ("text", "arguments"):
        for which in servers:
            one = asyncio.run(measure(which, options.streams, options.pace, options.seconds, what))
            found[which, what] = one
            quantile, remark = one.latencies.quantile, one.remark(options.streams, options.pace)
            cells = (one.micros, quantile(0.5), quantile(0.99), one.memory, f"{one.driver:.0%}", remark)
            table.row(which, what, *cells)
    table.print()
    return 0 if judge(found) else 1


def judge(found: dict[tuple[str, str], Usage]) -> bool:
    """Prints what is wanted, and whether it was reached."""
    passed = True
    for (which, what), mine in found.items():
        if which == "callstream":
            reached = mine.micros <= MOST_MICROS
            print(f"{what}: {mine.micros:.0f} µs per delta (at most {MOST_MICROS:g}): {'PASS' if reached else 'FAIL'}")
            passed = passed and reached
        least = found.get(("forwarder", what))
        if which == UNGATHERED and least is not None:
            added = mine.latencies.quantile(0.99) - least.latencies.quantile(0.99)
            reached = added <= MOST_ADDED_MS
            print(f"{what}: p99 {added:.2f} ms over the forwarder's (at most 1): {'PASS' if reached else 'FAIL'}")
            passed = passed and reached
    return passed


if __name__ == "__main__":
    sys.exit(main())
