"""How an archive of many runs behaves: what it takes to write, to join an old thread, to list, to forget one user.

    python -m bench.archive --runs 1000000

The S3 server is that of moto, in an environment of its own (`pip install 'moto[server,s3]'`; `--server` names its
`moto_server`), or any other with a bucket named agents (`--endpoint`), such as npm's s3rver, which is faster. It does not
fill a journal by appending: rows of ended runs are put into the index as a copy of a journal puts them there, and the packs
are written by the archive itself.

A user has a hundred runs in ten threads; the runs of a thread end within an hour of 20,000, so they lie in ten packs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.table import Table
from callstream.events import (
    CallCompleted,
    CallReturned,
    CallStarted,
    MessageReceived,
    MessageStarted,
    RunEnded,
    RunStarted,
)
from callstream.journal import Journal, history, open_journal
from callstream.journal.archive.archive import PACK_RUNS
from callstream.journal.rows import Kind, prepare
from callstream.journal.whole import WholeCall, WholeRun, encode_run, make_pack

THREAD_RUNS = 10
USER_THREADS = 10
SPREAD = 2000
"""So many threads go on at the same time."""
START = 1_700_000_000.0
BUCKET = "agents"


class Counted:
    """Objects, with how much goes to them and comes from them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.where = inner.where
        self.requests = self.sent = self.got = 0

    async def put(self, name: str, data: bytes) -> None:
        self.requests += 1
        self.sent += len(data)
        await self._inner.put(name, data)

    async def get(self, name: str) -> bytes:
        self.requests += 1
        data: bytes = await self._inner.get(name)
        self.got += len(data)
        return data

    async def get_spans(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        self.requests += 1
        parts: Sequence[bytes] = await self._inner.get_spans(name, spans)
        self.got += sum(map(len, parts))
        return parts

    async def delete(self, name: str) -> None:
        self.requests += 1
        await self._inner.delete(name)


class Made:
    """Runs as they are after compaction: a question, an answer of some 200 words, a call with arguments and a result."""

    def __init__(self) -> None:
        chance = random.Random(1)
        words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(5000)]
        self._texts = [" ".join(chance.choices(words, k=100)) for _ in range(5000)]
        self._chance = chance

    def run(self, number: int) -> WholeRun:
        texts = self._chance.choices(self._texts, k=4)
        key, run_id, call_id = number + 1, f"run_{number:032x}", f"toolu_{number:024x}"
        thread = number // (SPREAD * THREAD_RUNS) * SPREAD + number % SPREAD
        at = START + number * 0.18
        message = f"msg_{number:024x}"
        events = [
            prepare(event).body
            for event in (
                RunStarted(f"thread_{thread:024x}", user_of(thread)),
                MessageReceived("user", texts[0][:200]),
                MessageStarted(message),
                CallStarted(call_id, "search", call_id, message_id=message),
                CallCompleted(call_id),
                CallReturned(call_id, texts[3]),
                RunEnded("finished"),
            )
        ]
        records = [
            (1, 0, 0, None, 0, events[0], None),
            (2, 1, 0, None, 0, events[1], None),
            (3, 600, 1, None, 0, events[2], None),
            (160, 6000, 2, None, int(Kind.TEXT), f"{texts[1]} {texts[2]}", 4),
            (161, 6000, 1, None, 0, events[3], None),
            (190, 7000, 1, 1, int(Kind.ARGS), f'{{"query":"{texts[3][:150]}"}}', 162),
            (191, 7000, 1, None, 0, events[4], None),
            (192, 9000, 0, None, 0, events[5], None),
            (193, 9000, 0, None, 0, events[6], None),
        ]
        result = f'"{texts[3]}"'
        names = (1, call_id, "search", "completed", call_id, message, None, "json", None, None, result, None, False)
        return WholeRun(
            key,
            run_id,
            f"thread_{thread:024x}",
            user_of(thread),
            "finished",
            None,
            at,
            at + 9,
            193,
            True,
            1,
            "",
            False,
            [(1, f"resp_{number:024x}", "writer", None), (2, f"resp_{number:024x}", "writer", message)],
            [WholeCall(*names, at + 6, at + 9, 161, 191)],
            records,
        )


users = 1


def user_of(thread: int) -> str:
    return f"user_{thread % users:020x}"


async def fill(journal: Journal, runs: int, archive: Any) -> float:
    """Puts that many runs into the index and the packs, and returns the seconds of CPU."""
    made = Made()
    store: Any = journal._store
    before = time.process_time()
    told = time.monotonic()
    for start in range(0, runs, 4 * PACK_RUNS):
        batch = [made.run(number) for number in range(start, min(runs, start + 4 * PACK_RUNS))]
        bare = [WholeRun(*(getattr(run, name) for name in run.__struct_fields__[:-1])) for run in batch]
        await journal._worker.do(store.restore, bare, [])
        batch.sort(key=lambda run: (run.principal or "", run.thread_id, run.key))
        for first in range(0, len(batch), PACK_RUNS):
            some = batch[first : first + PACK_RUNS]
            entries = [(run.key, run.run_id, encode_run(run)) for run in some]
            assert await journal._worker.do(archive._keep, make_pack(entries, os.urandom(16)), None)
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"  {start + len(batch):,} runs", flush=True)
    return time.process_time() - before


async def measure(url: str, address: str, runs: int) -> None:
    journal = open_journal(url, housekeeping=None, archive=address)
    archive: Any = journal._housekeeper._archive
    objects = archive._objects = Counted(archive._objects)
    began = time.monotonic()
    cpu = await fill(journal, runs, archive)
    seconds = time.monotonic() - began
    stats = await journal.stats()
    there = stats["archive"]
    table = Table(f"{runs:,} ended runs", ["", ""])
    table.row("written in, s", round(seconds, 1))
    table.row("of CPU here, s", round(cpu, 1))
    table.row("objects", there["packs"])
    table.row("bytes in objects", there["bytes"])
    table.row("bytes in objects, a run", round(there["bytes"] / runs))
    table.row("bytes of the index, a run", round(stats["stored_bytes"] / runs))
    table.row("bytes of the journal without an archive, a run", await _without(min(runs, 5000)))
    table.print()
    rows = Table("What it takes", ["", "found", "ms", "requests", "KiB from the bucket", "KiB to it"])

    async def timed(what: str, work: Callable[[], Coroutine[Any, Any, int]], times: int = 5) -> None:
        spent = []
        for _ in range(times):
            archive._last.clear()
            objects.requests = objects.sent = objects.got = 0
            began = time.perf_counter()
            found = await work()
            spent.append(time.perf_counter() - began)
        amounts = objects.requests, round(objects.got / 1024, 1), round(objects.sent / 1024, 1)
        rows.row(what, found, round(sorted(spent)[len(spent) // 2] * 1000, 2), *amounts)

    thread = f"thread_{runs // (SPREAD * THREAD_RUNS) // 2 * SPREAD + 7:024x}"
    middle, user = f"run_{runs // 2:032x}", user_of(3)

    async def join() -> int:
        found = [records async for records in history(journal, reversed(await journal.runs(thread_id=thread)))]
        return sum(map(len, found))

    async def read() -> int:
        return len([record async for record in journal.read(middle)])

    async def call() -> int:
        found = await journal.call(f"toolu_{runs // 2:024x}")
        return len(found.args_json or "") if found is not None else 0

    async def newest() -> int:
        return len(await journal.runs(limit=100))

    async def of_user() -> int:
        return len(await journal.runs(principal=user))

    async def last_calls() -> int:
        return len(await journal.calls(thread_id=thread))

    async def forget() -> int:
        return await journal.forget(principal=user)

    await timed("join a thread: its records", join)
    await timed("read one run: its records", read)
    await timed("one call: characters of its arguments", call)
    await timed("list the newest 100 runs", newest)
    await timed("list the runs of a user", of_user)
    await timed("list the calls of a thread, with results", last_calls)
    await timed("forget a user: runs", forget, times=1)
    await timed(
        "forget all that ended before a tenth: runs", lambda: journal.forget(before=START + runs * 0.018), times=1
    )
    rows.print()
    left = (await journal.stats())["archive"]
    print(f"left: {left['runs']:,} runs in {left['packs']:,} objects of {left['bytes']:,} bytes")
    print(f"largest size of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    await journal.aclose()


async def _without(runs: int) -> int:
    made = Made()
    with tempfile.TemporaryDirectory() as folder:
        async with open_journal(f"sqlite:///{folder}/whole.db", housekeeping=None) as journal:
            for start in range(0, runs, 500):
                batch = [made.run(number) for number in range(start, min(runs, start + 500))]
                await journal._worker.do(journal._store.restore, batch, [])
            return round((await journal.stats())["stored_bytes"] / runs)


@contextmanager
def s3_server(program: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            try:
                request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        process.kill()
        process.wait()


def main() -> None:
    global users  # noqa: PLW0603  # one number for all that is made
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--endpoint", help="an S3 server with a bucket named agents")
    parser.add_argument("--server", default=shutil.which("moto_server"), help="the program of moto")
    parser.add_argument("--folder", action="store_true", help="a local folder in the place of the bucket")
    options = parser.parse_args()
    users = max(1, options.runs // (THREAD_RUNS * USER_THREADS))
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "key")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "secret")
    with tempfile.TemporaryDirectory(prefix="callstream-") as folder:
        url = f"sqlite:///{folder}/journal.db"
        if options.folder:
            asyncio.run(measure(url, (Path(folder) / "archive").as_uri(), options.runs))
        elif options.endpoint:
            asyncio.run(measure(url, f"s3://{BUCKET}/bench?endpoint={options.endpoint}&region=us-east-1", options.runs))
        elif options.server:
            with s3_server(options.server) as endpoint:
                asyncio.run(measure(url, f"s3://{BUCKET}/bench?endpoint={endpoint}&region=us-east-1", options.runs))
        else:
            parser.error("give --server, the moto_server of `pip install 'moto[server,s3]'`, or --endpoint")


if __name__ == "__main__":
    main()
