"""Table "gateway": what a delta costs that passes a gateway, beside LiteLLM's proxy and a forwarder of bytes.

Streams of Anthropic's wire, each at the pace of a real model, through one process on a core of its own; the model and the
clients share the other. The CPU time is that of the gateway's process. The latency is from the model's write to the client's
read, for Callstream with every delta in the journal before it is passed on. While several runs write, the journal lets what
they bring gather for 15 ms, which saves CPU and costs latency: *gathers nothing* is Callstream without that.

LiteLLM has an environment of its own (``.venv-litellm-proxy``); without it, it is left out.
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
from typing import Any, NamedTuple

from bench.load import Clients, Model, What, _Reader
from bench.server import cpu_seconds, resident
from bench.table import Table

STREAMS, PACE, SECONDS = 50, 20.0, 10.0
STARTS_PER_SECOND, SETTLING, SPARE, LOADING = 25.0, 2.0, 60.0, 120.0
MOST_MICROS, MOST_ADDED_MS = 120.0, 1.0
LITELLM = Path(".venv-litellm-proxy/bin/litellm")
KEY = "sk-bench"
SERVERS = ("forwarder", "callstream", "callstream, gathers nothing", "callstream, memory", "litellm")


class Found(NamedTuple):
    """``micros``: of CPU for each delta that reached a client. ``driver``: the share of its core that it used."""

    micros: float
    p50: float
    p99: float
    memory: float
    driver: float
    arrived: float


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
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        process = subprocess.Popen(_command(which, base_url, port, folder), **_environment(base_url))
        try:
            _wait_until_it_listens(port, process)
            yield f"http://127.0.0.1:{port}" + ("/anthropic" if which != "litellm" else ""), process.pid
        finally:
            process.kill()
            process.wait(10)


def _command(which: str, base_url: str, port: int, folder: str) -> list[str]:
    pinned = ["taskset", "-c", "0"]
    if which == "litellm":
        config = Path(folder, "config.yaml")
        model = {"model": "anthropic/scripted", "api_base": base_url, "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": "scripted", "litellm_params": model}]}))
        return [*pinned, str(LITELLM), "--config", str(config), "--port", str(port), "--num_workers", "1"]
    serve = ["-W", "ignore", "-m", "bench.gateway", "--serve", which, "--provider", base_url, "--port", str(port)]
    return [*pinned, sys.executable, *serve, "--folder", folder]


def _environment(base_url: str) -> dict[str, Any]:
    own = {"PYTHONPATH": os.pathsep.join(["src", "."]), "LITELLM_MASTER_KEY": KEY, "NO_DOCS": "True"}
    own |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_ADMIN_UI": "True", "LITELLM_LOG": "ERROR"}
    return {"env": {**os.environ, **own}, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


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


async def serve(which: str, base_url: str, port: int, folder: str) -> None:
    if which == "forwarder":
        from bench.forwarder import forward

        await forward(socket.create_server(("127.0.0.1", port), backlog=2048), base_url)
        return
    from callstream import Callstream
    from callstream.gateway import create_gateway
    from callstream.journal import open_journal
    from callstream.server.serving import serve as serve_app

    url = "memory:" if which == "callstream, memory" else f"sqlite:///{folder}/calls.db"
    gather = {"gather_seconds": 0.0} if which == "callstream, gathers nothing" else {}
    app = create_gateway(Callstream(open_journal(url, **gather)), upstreams={"anthropic": f"{base_url}/v1"})
    await serve_app(app, port=port)


# -- the measurement --


async def measure(which: str, streams: int, pace: float, seconds: float, what: What) -> Found:
    model = Model(pace, streams / STARTS_PER_SECOND + SETTLING + seconds + SPARE, what, "anthropic")
    async with model.listen() as base_url:
        with served(which, base_url) as (address, pid):
            clients = Posts(address)
            await clients.add()
            await clients.wait(LOADING)
            for _ in range(1, streams):
                await clients.add()
                await asyncio.sleep(1 / STARTS_PER_SECOND)
            await clients.wait(LOADING)
            await asyncio.sleep(SETTLING)
            used, driver, began = cpu_seconds(pid), time.process_time(), time.monotonic()
            clients.since = time.monotonic_ns()
            await asyncio.sleep(seconds)
            lasted = time.monotonic() - began
            used, driver = cpu_seconds(pid) - used, (time.process_time() - driver) / lasted
            found, memory = clients.found, resident(pid)
            clients.leave()
    return Found(
        used / found.count * 1e6,
        found.quantile(0.5),
        found.quantile(0.99),
        memory,
        driver,
        found.count / (streams * pace * lasted),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--pace", type=float, default=PACE, help="deltas a second of each stream")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--what", choices=("text", "arguments"), action="append")
    parser.add_argument("--which", choices=SERVERS, action="append")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--provider", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.provider, options.port, options.folder))
        return 0
    os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
    servers = [each for each in options.which or SERVERS if each != "litellm" or LITELLM.exists()]
    found: dict[tuple[str, str], Found] = {}
    columns = ["server", "writes", "µs per delta", "p50 ms", "p99 ms", "MiB", "driver", "arrived"]
    table = Table(f"gateway: {options.streams} streams, {options.pace:g} deltas/s each", columns)
    for what in options.what or ("text", "arguments"):
        for which in servers:
            one = asyncio.run(measure(which, options.streams, options.pace, options.seconds, what))
            found[which, what] = one
            table.row(which, what, one.micros, one.p50, one.p99, one.memory, f"{one.driver:.0%}", f"{one.arrived:.0%}")
    table.print()
    return 0 if judge(found) else 1


def judge(found: dict[tuple[str, str], Found]) -> bool:
    """Prints what is wanted, and whether it was reached."""
    passed = True
    for (which, what), mine in found.items():
        if which == "callstream":
            reached = mine.micros <= MOST_MICROS
            print(f"{what}: {mine.micros:.0f} µs per delta (at most {MOST_MICROS:g}): {'PASS' if reached else 'FAIL'}")
            passed = passed and reached
        least = found.get(("forwarder", what))
        if which == "callstream, gathers nothing" and least is not None:
            added = mine.p99 - least.p99
            reached = added <= MOST_ADDED_MS
            print(f"{what}: p99 {added:.2f} ms over the forwarder's (at most 1): {'PASS' if reached else 'FAIL'}")
            passed = passed and reached
    return passed


if __name__ == "__main__":
    sys.exit(main())
