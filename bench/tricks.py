"""Table "tricks": what each trick of a delta's way is worth, by the cost of a delta where it is switched off.

The load is that of "pace": google-adk runs whose models write 20 deltas a second, served by one process on a core of its
own, with SQLite. A trick that is worth nothing any more can go. Rounds are in turns, each with the server as it is before
them, so that what else the machine does hits all alike; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from statistics import median
from typing import Final, get_args

from bench.load import Clients, Maker, Model
from bench.server import server
from bench.table import Table
from bench.usage import Usage, least_seconds, use

PACE = 20.0
SPARE = 60.0
AS_IT_IS: Final = "nothing"
GATHERING: Final = "gathering in the journal"


def _without_own_http() -> None:
    from callstream.tap import library

    library._is_plain = lambda request: False


def _without_callback() -> None:
    from callstream.tap import body

    class Never:
        """What no stream is."""

    body.Announcing = Never


def _without_outlet() -> None:
    from callstream.server import streams

    streams.connection_of = lambda scope: None


def _without_plain_events() -> None:
    from callstream.wire import framing

    framing._plain_events = lambda data: None


def _without_bare_pieces() -> None:
    from callstream.wire.decoder import Decoder

    Decoder._bare_piece = lambda self, payload: None


def _without_mere_deltas() -> None:
    from callstream.wire import collapsing, gemini

    for collapser in (collapsing.Collapser, collapsing.BlockCollapser, gemini.GeminiCollapser):
        collapser._is_mere_delta = lambda self, call, frame, chunk: False


def _without_checkpoint_thread() -> None:
    from callstream.journal import sqlite

    sqlite.MOST_PAGES = 1000
    sqlite.Checkpoints.count = lambda self, *given: None


TRICKS: dict[str, Callable[[], None]] = {
    "the tap's own HTTP/1.1 (httpx instead)": _without_own_http,
    GATHERING: lambda: None,  # an option of the server's
    "frames written to uvicorn's connection": _without_outlet,
    "bytes by a callback, no task woken": _without_callback,
    "plain events found by one expression": _without_plain_events,
    "bare pieces decoded as such": _without_bare_pieces,
    "withheld deltas known at a glance": _without_mere_deltas,
    "checkpoints on a thread": _without_checkpoint_thread,
}
"""How each is switched off, in the server's process."""


async def measured(without: str, streams: int, seconds: float, maker: Maker) -> Usage:
    model = Model(PACE, least_seconds(streams, seconds) + SPARE, "arguments", maker)
    gather = 0.0 if without == GATHERING else None
    async with model.listen() as base_url:
        off = None if without == AS_IT_IS else without
        with server("callstream", base_url, maker=maker, gather=gather, without=off) as (address, pid):
            found = await use(Clients(address), pid, streams, seconds)
    if found.early or not found.latencies.count:
        raise RuntimeError(f"without {without}: {found.early} streams ended early, {found.latencies.count} deltas came")
    print(f"  without {without}: {found.micros:.0f} µs {found.remark(streams, PACE)}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=20, help="default: 20")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (default: 8)")
    parser.add_argument("--rounds", type=int, default=2, help="default: 2")
    parser.add_argument("--maker", choices=get_args(Maker), default="gemini", help="google-adk's class for the model")
    parser.add_argument("--only", choices=TRICKS, action="append", help="fewer tricks; may be repeated")
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    names = [AS_IT_IS, *(options.only or TRICKS)]
    rounds = [
        {name: asyncio.run(measured(name, options.streams, options.seconds, options.maker)) for name in names}
        for _ in range(options.rounds)
    ]
    base = median(found[AS_IT_IS].micros for found in rounds)
    table = Table(
        f"tricks: {options.streams} streams of {options.maker} at {PACE:g} deltas/s, CPU µs of the server per delta",
        ["switched off", "µs", "worth", "p50 ms", "p99 ms"],
    )
    for name in names:
        micros = median(found[name].micros for found in rounds)
        quantiles = (median(found[name].latencies.quantile(part) for found in rounds) for part in (0.5, 0.99))
        table.row(name, micros, "" if name == AS_IT_IS else f"{micros / base - 1:.0%}", *quantiles)
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
