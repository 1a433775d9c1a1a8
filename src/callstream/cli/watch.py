"""``callstream watch``: a run, live."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing
from typing import Protocol

from callstream import codec
from callstream.cli.failure import CommandError
from callstream.cli.livepane import LivePane
from callstream.cli.options import Commands, add_json, add_source
from callstream.cli.output import Printer
from callstream.cli.sources import RecordSource, source_of
from callstream.cli.transcript import RecordPrinter
from callstream.events import Record

_LOOK_EVERY = 0.25


class Screen(Protocol):
    """Where records are shown."""

    def show(self, record: Record) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


def add_to(commands: Commands) -> None:
    parser = commands.add(
        "watch",
        watch,
        summary="watch a run live: text, calls with growing arguments, bars",
        description="""Shows a run live, from its start: text, calls with their arguments while the model writes them,
            progress, results. Without a run's id: the newest active run, or the next one that starts. Exits when the run
            ends. Watching never changes a run, and leaving never stops it.""",
        examples="""
            callstream watch                                 # the active run, or the next one
            callstream watch run_8a1f                        # this run, even if it has ended
            callstream watch --all --thread t1               # one after another, until Ctrl-C
            callstream watch --server http://127.0.0.1:8000  # over the network
            callstream watch run_8a1f --json | jq .event     # its records, one per line""",
    )
    parser.add_argument("watched", nargs="?", metavar="RUN", help="the run's id")
    parser.add_argument("--thread", metavar="THREAD", help="only runs of this thread")
    parser.add_argument("--all", action="store_true", help="continue with the next run when one ends")
    add_source(parser)
    add_json(parser, "the run's records as JSON lines")


async def watch(options: argparse.Namespace, out: Printer) -> int:
    async with source_of(options) as source:
        if options.watched is not None:
            if not await source.runs(run_id=options.watched):
                raise CommandError(f"run {options.watched!r} not found in {source.where}")
            await follow(source, options.watched, out, as_json=options.json)
            return 0
        seen: set[str] = set()
        while True:
            run_id = await _next(source, options.thread, seen, out)
            seen.add(run_id)
            await follow(source, run_id, out, as_json=options.json)
            if not options.all:
                return 0


async def follow(source: RecordSource, run_id: str, out: Printer, *, as_json: bool = False) -> None:
    """Shows a run until its end."""
    screen = screen_for(out, as_json=as_json)
    try:
        async with aclosing(source.follow(run_id)) as records:  # type: ignore[type-var]
            async for record in records:
                if record is None:
                    screen.restart()
                else:
                    screen.show(record)
    finally:
        screen.close()


def screen_for(out: Printer, *, as_json: bool = False) -> Screen:
    if as_json:
        return _Lines(out)
    return RecordPrinter(out) if out.console is None else LivePane(out.console)


class _Lines:
    """Records as JSON lines."""

    def __init__(self, out: Printer) -> None:
        self._out = out

    def show(self, record: Record) -> None:
        self._out.write(codec.encode(record).decode() + "\n")

    def restart(self) -> None:
        """A reader of lines tells by the numbers."""

    def close(self) -> None:
        """Every line is out."""


async def _next(source: RecordSource, thread_id: str | None, seen: set[str], out: Printer) -> str:
    is_told = False
    while True:
        for row in await source.runs(thread_id=thread_id, active=True, limit=50):
            if row.run_id not in seen:
                return row.run_id
        if not is_told:
            is_told = True
            of_thread = f" of thread {thread_id}" if thread_id else ""
            out.note(f"waiting for a run{of_thread} to start in {source.where} (Ctrl-C to exit)")
        await asyncio.sleep(_LOOK_EVERY)
