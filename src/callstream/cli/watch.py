"""``callstream watch``: a run, live."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from callstream import codec
from callstream.cli.livepane import LivePane
from callstream.cli.options import Commands, add_json, add_source
from callstream.cli.output import CommandError, Printer
from callstream.cli.sources import RecordSource, source_of
from callstream.cli.transcript import RecordPrinter
from callstream.events import KEPT, Record

_LOOK_EVERY = 0.25
_QUIET_SECONDS = 20.0
"""How long a run may say nothing before a note says why that may be."""
_IF_DEAD = "if its process has died, another one that uses the journal ends it within 45 s, or callstream sweep does"


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
            run_id = await next_run(source, options.thread, seen, out)
            seen.add(run_id)
            await follow(source, run_id, out, as_json=options.json)
            if not options.all:
                return 0


async def follow(source: RecordSource, run_id: str, out: Printer, *, as_json: bool = False) -> None:
    """Shows a run until its end."""
    screen = screen_for(out, as_json=as_json)
    show = out.note if out.console is None or as_json else out.console.print
    hint = _QuietHint(f"run {run_id} has said nothing for {_QUIET_SECONDS:g} s; {_IF_DEAD}", show)
    try:
        async with aclosing(source.follow(run_id)) as records:
            async for record in records:
                hint.begin_again()
                if record is None:
                    screen.restart()
                else:
                    screen.show(record)
    finally:
        hint.end()
        screen.close()


def screen_for(out: Printer, *, as_json: bool = False) -> Screen:
    if as_json:
        return _Lines(out)
    return RecordPrinter(out) if out.console is None else LivePane(out.console)


class _QuietHint:
    """A line that is shown once, when nothing has come for a while."""

    def __init__(self, text: str, show: Callable[[str], None]) -> None:
        self._text = text
        self._show = show
        self._is_shown = False
        self._timer: asyncio.TimerHandle | None = None
        self.begin_again()

    def begin_again(self) -> None:
        self.end()
        if not self._is_shown:
            self._timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._say)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _say(self) -> None:
        self._is_shown = True
        self._show(self._text)


class _Lines:
    """Records as JSON lines."""

    def __init__(self, out: Printer) -> None:
        self._out = out

    def show(self, record: Record) -> None:
        if type(record.event) not in KEPT:
            self._out.write(codec.encode(record).decode() + "\n")

    def restart(self) -> None:
        """A reader of lines tells by the numbers."""

    def close(self) -> None:
        """Every line is out."""


async def next_run(source: RecordSource, thread_id: str | None, seen: set[str], out: Printer) -> str:
    """The newest active run that was not seen yet. Waits until there is one."""
    is_shown = False
    while True:
        for row in await source.runs(thread_id=thread_id, active=True, limit=50):
            if row.run_id not in seen:
                return row.run_id
        if not is_shown:
            is_shown = True
            of_thread = f" of thread {thread_id}" if thread_id else ""
            out.note(f"waiting for a run{of_thread} to start in {source.where} (Ctrl-C to exit)")
            ended = await source.runs(thread_id=thread_id, limit=1)
            if ended and not seen:
                out.note(f"the last one has ended; to see it: callstream watch {ended[0].run_id}")
        await asyncio.sleep(_LOOK_EVERY)
