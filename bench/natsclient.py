"""What the client of NATS costs: ``python -m bench.natsclient [--appends 3000]``.

The same messages, as a journal writes them (one a batch, with the number of the message that is expected to be the last),
are published one after the other to one server, once with the official client, nats-py, and once with the least that can do
it: a socket, one line a message and its answer. Nothing reconnects there, nothing is encrypted, no server is found. The CPU
time of this process counts, not the time that passes; both in turns, and the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

import msgspec
import nats

from bench.nats import nats_cluster
from bench.table import Table
from callstream.journal.nats.log import pack, parts_of
from callstream.journal.rows import Kind

ROUNDS = 5
DELTAS = 90
"""In a batch, each of another run, as with 300 runs at 20 deltas a second."""
Append = Callable[[int], Awaitable[int]]


def message() -> bytes:
    return pack(parts_of([(key, 20, 5000, 1, None, Kind.TEXT, "a delta ") for key in range(1000, 1000 + DELTAS)]))


class Bare:
    """The least that can publish and hear the answer."""

    async def open(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        await self._reader.readline()  # INFO
        self._writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _bare 1\r\n')

    async def append(self, expected: int, subject: bytes, body: bytes) -> int:
        headers = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % expected
        self._writer.write(
            b"HPUB %s _bare %d %d\r\n%s%s\r\n" % (subject, len(headers), len(headers) + len(body), headers, body)
        )
        while True:
            line = await self._reader.readline()
            if line.startswith(b"MSG"):
                answer = await self._reader.readexactly(int(line.rpartition(b" ")[2]) + 2)
                return int(msgspec.json.decode(answer)["seq"])
            if line.startswith(b"PING"):
                self._writer.write(b"PONG\r\n")

    def close(self) -> None:
        self._writer.close()


async def spent(append: Append, appends: int, expected: int) -> tuple[float, int]:
    """Microseconds of this process for one append, and the number of the last message."""
    began = time.process_time()
    for _ in range(appends):
        expected = await append(expected)
    return (time.process_time() - began) / appends * 1e6, expected


async def measure(port: int, appends: int) -> None:
    body = message()
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    await client.jetstream().add_stream(name="bench", subjects=["bench.*"])

    async def official(expected: int) -> int:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        answer = await client.request("bench.official", body, timeout=5, headers=headers)
        return int(msgspec.json.decode(answer.data)["seq"])

    bare = Bare()
    await bare.open(port)
    found: dict[str, list[float]] = {"nats-py": [], "a bare socket": []}
    last = {"nats-py": 0, "a bare socket": 0}
    ways: dict[str, Append] = {
        "nats-py": official,
        "a bare socket": lambda expected: bare.append(expected, b"bench.bare", body),
    }
    for _ in range(ROUNDS):
        for name, append in ways.items():
            micros, last[name] = await spent(append, appends // ROUNDS, last[name])
            found[name].append(micros)
    table = Table(
        f"NATS clients, {len(body)} bytes with {DELTAS} deltas a message: CPU time of this process",
        ["client", "µs an append", "µs a delta"],
    )
    for name, micros in found.items():
        table.row(name, median(micros), median(micros) / DELTAS)
    table.print()
    bare.close()
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What the client of NATS costs.")
    parser.add_argument("--appends", type=int, default=3000)
    options = parser.parse_args()
    with nats_cluster(1, sync=False) as cluster:
        asyncio.run(measure(cluster.nodes[0].port, options.appends))


if __name__ == "__main__":
    main()
