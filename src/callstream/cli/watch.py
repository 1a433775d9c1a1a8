"""``callstream watch``: a run, live."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Protocol, assert_never

from callstream import codec
from callstream.cli.livepane import LivePane, bar_of, describe_attempt, heading_of
from callstream.cli.options import Commands, add_json, add_source
from callstream.cli.output import CommandError, Printer, clean, one_line
from callstream.cli.sources import RecordSource, source_of
from callstream.errors import WireError
from callstream.events import KEPT, CallDiscarded, CallFailed, CallReleased, CallReturned, Record
from callstream.jsontext.path import format_path
from callstream.jsontext.stream import Change, JsonStream
from callstream.view import (
    Asked,
    Began,
    CallView,
    Ended,
    Grew,
    InputCame,
    Opened,
    Outcome,
    Passage,
    Progressed,
    Resumed,
    RunView,
    Settled,
    ViewChange,
)

# -- a run as plain lines, for pipes, files and terminals that cannot draw ---------------------------------------------


_INDENT = "  "
_STEPS = 10
"""How many lines one bar becomes at most."""


class RecordPrinter:
    """Prints records. What is being written stays on its line until something else is written. Calls are numbered here."""

    def __init__(self, out: Printer) -> None:
        self._out = out
        self._writing: Any = None
        self._at_margin = True
        self._forget()

    def _forget(self) -> None:
        self._view = RunView()
        self._numbers: dict[str, int] = {}
        self._streams: dict[str, JsonStream | None] = {}
        self._bars: dict[str, int] = {}

    def show(self, record: Record) -> None:
        for change in self._view.feed(record):
            self._show(change)

    def _show(self, change: ViewChange) -> None:
        view = self._view
        match change:
            case Began():
                self._line(f"run {view.run_id} of thread {view.thread_id}")
            case InputCame(item=item):
                self._line(f"{item.received.role}: {item.received.text}")
            case Opened(part=CallView() as call):
                self._numbers[call.call_id] = len(self._numbers) + 1
                self._streams[call.call_id] = None if call.encoding == "text" else JsonStream(unique_names=True)
                by = "" if call.author is None else f" by {call.author}"
                self._line(f"{self._name_of(call.call_id)} ({call.call_id}){by}", self._margin(call.call_id))
                self._writing = call.call_id
            case Grew(part=Passage() as passage, text=text):
                margin = _INDENT * view.depth_of(passage)
                self._grow((passage.message_id, passage.kind), f"{margin}{heading_of(passage)}: ", text, indent=margin)
            case Grew(part=CallView() as call, text=text) if text:
                self._arguments(call.call_id, text)
            case Progressed(call=called, data=data):
                self._progress(called.call_id, data)
            case Asked(call=call):
                self._line(f"{self._name_of(call.call_id)} awaits an answer", self._margin(call.call_id))
            case Settled(call=called, outcome=outcome):
                self._line(f"{self._name_of(called.call_id)} {_describe(outcome)}", self._margin(called.call_id))
            case Resumed():
                self._line(f"--- {describe_attempt(view)}")
            case Ended():
                self._line(f"run {view.run_id} {view.outcome}" + (f": {view.reason}" if view.reason else ""))
            case _:
                pass

    def restart(self) -> None:
        self._forget()
        self._line("--- from the beginning")

    def close(self) -> None:
        if not self._at_margin:
            self._out.write("\n")
            self._at_margin = True

    def _arguments(self, call_id: str, text: str) -> None:
        stream = self._streams.get(call_id)
        changes: list[Change] = []
        if stream is not None:
            try:
                changes = stream.feed(text)
            except WireError:
                stream = self._streams[call_id] = None
                text = self._view.calls[call_id].args_text  # all of it once more, as it came
        if stream is None:
            self._turn_to(call_id)
            margin = self._margin(call_id) + _INDENT
            self._grow((call_id, "raw"), margin, text, indent=margin)
            return
        for change in changes:
            self._write_change(call_id, change)

    def _write_change(self, call_id: str, change: Change) -> None:
        name = format_path(change.path).removeprefix("$").removeprefix(".")
        margin = self._margin(call_id) + _INDENT
        if change.kind == "append":
            self._turn_to(call_id)
            self._grow((call_id, change.path), f"{margin}{name}: ", str(change.value), indent=margin + _INDENT)
        elif change.kind == "set":
            self._turn_to(call_id)
            self._grow((call_id, change.path), f"{margin}{name}: ", one_line(change.value, 200))

    def _turn_to(self, call_id: str) -> None:
        """Names the call again if something else was written in between."""
        writing = self._writing
        if writing != call_id and not (isinstance(writing, tuple) and writing[0] == call_id):
            self._line(f"{self._name_of(call_id)} …", self._margin(call_id))
            self._writing = call_id

    def _progress(self, call_id: str, data: Any) -> None:
        bar = bar_of(data)
        if bar is None:
            self._line(f"{self._name_of(call_id)}: {one_line(data, 200)}", self._margin(call_id))
            return
        step = int(_STEPS * data["done"] / data["total"])
        if self._bars.get(call_id) != step:
            self._bars[call_id] = step
            self._line(f"{self._name_of(call_id)} {bar}", self._margin(call_id))

    def _name_of(self, call_id: str) -> str:
        call = self._view.calls.get(call_id)
        return call_id if call is None else f"{call.name} #{self._numbers[call_id]}"

    def _margin(self, call_id: str) -> str:
        """What the model of a tool calls stands under the tool's call."""
        call = self._view.calls.get(call_id)
        return "" if call is None else _INDENT * self._view.depth_of(call)

    def _grow(self, what: Any, heading: str, text: str, *, indent: str = "") -> None:
        text = clean(text)
        if self._writing != what:
            self.close()
            self._writing = what
            text = heading + text
        self._out.write(text.replace("\n", f"\n{indent}") if indent else text)
        self._at_margin = text.endswith("\n") and not indent

    def _line(self, text: str, margin: str = "") -> None:
        self.close()
        self._writing = None
        self._out.write(f"{margin}{clean(text)}\n")


def _describe(outcome: Outcome) -> str:
    match outcome:
        case CallReturned(result=result):
            return f"returned {one_line(result, 200)}"
        case CallFailed(error=error):
            return f"failed: {error}"
        case CallDiscarded(reason=reason, detail=detail):
            return f"discarded: {reason}" + (f", {detail}" if detail else "")
        case CallReleased():
            return "released"
        case _:
            assert_never(outcome)


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
