"""A process that writes or follows a journal, for tests that need a second one. ``python child.py command url …``"""

from __future__ import annotations

import asyncio
import sys

from callstream.errors import CallstreamError
from callstream.events import ArgsAppended, CallCompleted, CallStarted, InputKept, RunEnded, RunStarted
from callstream.journal import open_journal


async def write(url: str, run_id: str, count: str) -> None:
    """Says ``started``, writes a run with that many pieces, and ends it."""
    journal = open_journal(url, housekeeping=None)
    await journal.append(run_id, [RunStarted("thread"), CallStarted(f"call {run_id}", "tool")])
    print("started", flush=True)
    for number in range(int(count)):
        await journal.append(run_id, [ArgsAppended(f"call {run_id}", f"{number},")])
    await journal.append(run_id, [CallCompleted(f"call {run_id}"), RunEnded("finished")])
    await journal.aclose()


async def follow(url: str, run_id: str, after: str) -> None:
    """Prints the number of every record as it comes, to the end of the run."""
    journal = open_journal(url, housekeeping=None)
    async for record in journal.follow(run_id, int(after)):
        print(record.seq, flush=True)
    await journal.aclose()


async def hold(url: str, run_id: str) -> None:
    """Opens a run with calls in several states, says so, and waits to be killed."""
    journal = open_journal(url, housekeeping=None, lease_ttl=3)
    await journal.append(
        run_id,
        [RunStarted("thread"), CallStarted(f"{run_id} a", "tool"), CallStarted(f"{run_id} b", "tool")],
    )
    await journal.append(run_id, [ArgsAppended(f"{run_id} a", "{"), CallCompleted(f"{run_id} b", "{}")])
    print("holding", flush=True)
    await asyncio.sleep(60)


async def go_on(url: str, run_id: str) -> None:
    """Writes to a run again and again, and says the name of the error that stops it."""
    journal = open_journal(url, housekeeping=None, lease_ttl=0.5)
    await journal.append(run_id, [RunStarted("thread"), CallStarted(f"{run_id} a", "tool")])
    print("writing", flush=True)
    await asyncio.sleep(2)  # a process that is stopped inside a transaction of SQLite keeps the lock; not meant here
    try:
        while True:
            await journal.append(run_id, [ArgsAppended(f"{run_id} a", "x")])
            await asyncio.sleep(0.01)
    except CallstreamError as error:
        print(type(error).__name__, flush=True)
    await journal.aclose()


async def keep(url: str, run_id: str) -> None:
    """Opens a run that can go on, says so, and waits to be killed."""
    journal = open_journal(url, housekeeping=None, lease_ttl=3600)
    await journal.append(run_id, [RunStarted("thread"), InputKept("app", "input")])
    print("holding", flush=True)
    await asyncio.sleep(60)


if __name__ == "__main__":
    commands = {"write": write, "follow": follow, "hold": hold, "go_on": go_on, "keep": keep}
    asyncio.run(commands[sys.argv[1]](*sys.argv[2:]))
