"""Table "workers": how many AG-UI streams fit one machine with one worker, and with several behind the same address.

``callstream serve --workers N`` on a SQLite journal, with a google-adk agent whose model writes text at 20 deltas a second.
The workers use all cores of the machine, and model and clients use them too: how much they take is in the table. A load fits
if nine tenths of its deltas arrive in time and the p99 from the model's write to the client's read is below 250 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.load import Clients, Model
from bench.table import Table
from bench.usage import LOADING, Usage, cpu_seconds, least_seconds, use

PACE = 20.0
LADDER = (200, 300, 400, 500, 600, 800)
MOST_P99 = 250.0
SPARE = 90.0
APP = """
import os
from bench.served import agent_of

agent = agent_of(os.environ["BENCH_PROVIDER"], "gemini")
"""
UNLIMITED = {"CALLSTREAM_MAX_RUNS": "100000", "CALLSTREAM_MAX_STREAMS": "100000"}


@contextmanager
def serving(base_url: str, workers: int) -> Iterator[tuple[str, int]]:
    """The address of ``callstream serve``, and its process."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        app = Path(folder) / "app.py"
        app.write_text(APP)
        command = [sys.executable, "-W", "ignore", "-m", "callstream", "serve", f"{app}:agent"]
        command += ["--journal", f"sqlite:///{folder}/calls.db", "--port", str(port), "--workers", str(workers)]
        path = os.pathsep.join(["src", "."])
        environment = {**os.environ, **UNLIMITED, "PYTHONPATH": path, "BENCH_PROVIDER": base_url}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.terminate()  # a second signal does not wait for the runs
                process.wait(20)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LOADING
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"callstream serve did not listen (status {process.poll()})")


def _of_children(pid: int) -> float:
    """CPU seconds of the workers that the process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(cpu_seconds(int(child)) for child in children)


async def measure(workers: int, streams: int, seconds: float) -> Usage:
    model = Model(PACE, least_seconds(streams, seconds) + SPARE, "text")
    async with model.listen() as base_url:
        with serving(base_url, workers) as (address, pid):
            return await use(Clients(address), pid, streams, seconds, waits=False, count=lambda: _of_children(pid))


def climb(table: Table, workers: int, ladder: Sequence[int], seconds: float) -> int:
    """Measures more and more streams, and returns the most that fit."""
    fitting = 0
    for streams in ladder:
        used = asyncio.run(measure(workers, streams, seconds))
        cpu, p99 = used.cpu + used.other, used.latencies.quantile(0.99)
        fits = p99 < MOST_P99 and used.arrived(streams, PACE) >= 0.9 and not used.early
        micros = cpu / max(1, used.latencies.count) * 1e6
        cores = f"{cpu / used.seconds:.2f}"
        table.row(
            workers,
            streams,
            micros,
            cores,
            f"{used.driver:.2f}",
            used.latencies.quantile(0.5),
            p99,
            "" if fits else "no",
        )
        if not fits:
            break
        fitting = streams
    return fitting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="the most workers (default: 2)")
    parser.add_argument("--streams", type=int, action="append", help="only these rungs of the ladder")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each rung (default: 8)")
    options = parser.parse_args()
    ladder = options.streams or LADDER
    title = f"workers: streams of text at {PACE:g} deltas/s on {os.cpu_count()} cores"
    columns = ["workers", "streams", "µs per delta", "cores used", "by the driver", "p50 ms", "p99 ms", "fits"]
    table = Table(title, columns)
    most = {workers: climb(table, workers, ladder, options.seconds) for workers in (1, options.workers)}
    table.print()
    if most[1]:
        ratio = most[options.workers] / most[1]
        print(f"{options.workers} workers: {ratio:.1f} times the streams of one, beside the driver on the same cores")


if __name__ == "__main__":
    main()
