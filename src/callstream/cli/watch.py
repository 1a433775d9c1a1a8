"""``callstream watch``: a run, live."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, assert_never

from callstream import codec
from callstream.calls import AT_REST, DECLINED, CallState
from callstream.cli.options import Commands, add_json, add_source
from callstream.cli.output import CommandError, Printer, as_text, clean, duration, one_line
from callstream.cli.sources import RecordSource, source_of
from callstream.errors import WireError
from callstream.events import KEPT, CallDiscarded, CallFailed, CallReleased, CallReturned, Record, RunResumed
from callstream.jsontext.path import format_path
from callstream.jsontext.stream import Change, JsonStream
from callstream.view import (
    AnswerView,
    Asked,
    Began,
    CallView,
    Ended,
    Grew,
    InputCame,
    InputView,
    Item,
    Opened,
    Outcome,
    Passage,
    Progressed,
    Resumed,
    RunView,
    Settled,
    ViewChange,
)
from callstream.waits import Alarm

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# What is shown of a run in a terminal, and how it is drawn live, with rich.
#
# Active items are at the bottom, finished ones above.

# -- what is shown -----------------------------------------------------------------------------------------------------


class _Preview:
    """The arguments of a call while they arrive: how much, how fast, and their content so far."""

    def __init__(self, *, is_text: bool) -> None:
        self.first_at: float | None = None
        self.chars = 0
        self.deltas = 0
        self._stream = None if is_text else JsonStream(unique_names=True)

    def append(self, text: str, at: float) -> None:
        """A piece of argument text, or all of it."""
        self.first_at = self.first_at or at
        self.chars += len(text)
        self.deltas += 1
        if self._stream is not None:
            try:
                self._stream.feed(text)
            except WireError:
                self._stream = None  # the text is then shown as it came

    def fields(self, call: CallView) -> list[tuple[str, str]]:
        """Names and values as text; a value that is not an object has no names."""
        value = self._stream.value if self._stream is not None else call.args_text
        if isinstance(value, dict):
            return [(name, as_text(each)) for name, each in value.items()]
        return [("", as_text(value))] if self.chars else []


class Scene:
    """A run so far."""

    def __init__(self) -> None:
        self.view = RunView()
        self.previews: dict[str, _Preview] = {}

    def feed(self, record: Record) -> None:
        for change in self.view.feed(record):
            match change:
                case Opened(part=CallView() as call):
                    self.previews[call.call_id] = _Preview(is_text=call.encoding == "text")
                case Grew(part=CallView() as call, text=text) if text:
                    self.previews[call.call_id].append(text, record.at)
                case _:
                    pass

    def is_settled(self, item: Item) -> bool:
        """Whether nothing more will happen to an item."""
        match item:
            case Passage(end_seq=end_seq):
                return end_seq is not None
            case CallView(state=state):
                return state in AT_REST
            case AnswerView(outcome=outcome):
                return outcome is not None or self.view.outcome is not None
            case _:
                return True


def describe_attempt(view: RunView) -> str:
    """Says that another process continues the run, and what part of the previous attempt is void."""
    cut = [message for message in view.void.values() if message.attempt == view.attempt - 1]
    names = ", ".join(call.name for message in cut for call in message.calls)
    void = f"; void: the response that was cut{' with ' if names else ''}{names}" if cut else ""
    return f"attempt {view.attempt}: another process goes on{void}"


def heading_of(passage: Passage) -> str:
    """The author of a passage, and whether it is reasoning."""
    if passage.kind == "text":
        return passage.author or "model"
    return "reasoning" if passage.author is None else f"reasoning of {passage.author}"


def answer_text(answer: AnswerView) -> str:
    match answer.outcome:
        case CallReturned(result=result):
            return as_text(result)
        case CallFailed(error=error):
            return error
        case None:
            return as_text(answer.progress)
        case _:
            return str(answer.as_json()["state"])


def bar_of(progress: Any, width: int = 30) -> str | None:
    """A tool's progress report as a bar, if it has numbers for ``done`` and ``total``; else None."""
    if not isinstance(progress, dict):
        return None
    done, total, message = progress.get("done"), progress.get("total"), progress.get("message")
    if done is None or total is None or not (_is_number(done) and _is_number(total)) or total <= 0:
        return None
    filled = min(width, max(0, round(width * done / total)))
    return f"[{'#' * filled}{'.' * (width - filled)}] {done:g}/{total:g}" + (f" {message}" if message else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- how it is drawn ---------------------------------------------------------------------------------------------------


_FRAMES_PER_SECOND = 12
_TAIL = 10
"""Lines of one value that are shown while it grows."""
_KEPT = 40
"""Lines of one value that are shown once it is complete."""
_LONG = 1000
_WIDTH = 100
_STYLES = {
    CallState.COMPLETED: ("✓", "green"),
    CallState.FAILED: ("✗", "red"),
    CallState.DISCARDED: ("✗", "yellow"),
    CallState.RELEASED: ("○", "yellow"),
    CallState.AWAITING: ("?", "magenta"),
}
_ROLES = {"user": "bold cyan", "reasoning": "italic dim", "answer": "bold cyan"}


class LivePane:
    """Draws records. Settled items at the top are printed permanently and leave the pane."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._scene = Scene()
        self._printed = 0
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=_FRAMES_PER_SECOND,
            vertical_overflow="crop",
            transient=True,
        )
        self._live.start()

    def show(self, record: Record) -> None:
        view = self._scene.view
        is_first = view.run_id is None
        before = view.items
        self._scene.feed(record)
        if is_first:
            self._console.rule(clean(f"run {record.run_id}, thread {view.thread_id}"), align="left", style="dim")
        if isinstance(record.event, RunResumed):
            self._print_void(before)
        self._print_settled()
        if view.outcome is not None:
            self.close()

    def restart(self) -> None:
        self._scene = Scene()
        self._printed = 0

    def close(self) -> None:
        if not self._live.is_started:
            return
        view = self._scene.view
        rest = view.items[self._printed :]
        self._printed = len(view.items)
        self._live.stop()
        for item in rest:
            self._console.print(self._item(item, _KEPT))
        if view.outcome is not None:
            ended = view.outcome + (f": {view.reason}" if view.reason else "")
            self._console.print(clean(f"run {ended}"), style="dim")

    def _print_settled(self) -> None:
        items = self._scene.view.items
        settled: list[Item] = []
        while self._printed < len(items) and self._scene.is_settled(items[self._printed]):
            settled.append(items[self._printed])
            self._printed += 1
        if settled:
            self._live.refresh()  # else the items printed above would also still be in the pane
            for item in settled:
                self._console.print(self._item(item, _KEPT))

    def _print_void(self, before: list[Item]) -> None:
        """Prints void items that were in the pane permanently, struck through."""
        view = self._scene.view
        valid = {id(item) for item in view.items}
        void = [item for item in before[self._printed :] if id(item) not in valid]
        self._printed = sum(id(item) in valid for item in before[: self._printed])
        self._live.refresh()
        for item in void:
            self._console.print(self._item(item, _KEPT), style="strike dim")
        self._console.print(clean(describe_attempt(view)), style="yellow")

    def _draw(self) -> RenderableType:
        from rich.console import Group

        return Group(*(self._item(item, _TAIL) for item in self._scene.view.items[self._printed :]))

    def _item(self, item: Item, lines: int) -> RenderableType:
        from rich.padding import Padding

        depth = self._scene.view.depth_of(item)
        drawn = self._draw_item(item, lines)
        return Padding(drawn, (0, 0, 0, 4 * depth)) if depth else drawn

    def _draw_item(self, item: Item, lines: int) -> RenderableType:
        match item:
            case CallView():
                return _card(item, self._scene.previews[item.call_id], lines)
            case InputView(received=received):
                mark = "> " if received.role == "user" else ""
                return _draw_text(received.role, received.text, _LONG, mark=mark)
            case Passage(kind=kind, text=text):
                who = "" if item.author is None else f"{heading_of(item)}: "
                return _draw_text(kind, text, _LONG if self._scene.is_settled(item) else lines, mark=who)
            case AnswerView():
                return _draw_text("answer", answer_text(item), _LONG, mark="> answer: ")
            case _:
                assert_never(item)


def _draw_text(who: str, text: str, lines: int, *, mark: str) -> RenderableType:
    from rich.text import Text

    return Text(clean(mark) + _tail(text, lines), style=_ROLES.get(who, ""))


def _card(called: CallView, preview: _Preview, lines: int) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    mark, colour = _STYLES.get(called.state, ("●", "blue"))
    heading = Text(f"{mark} ", style=colour)
    heading.append(clean(called.name), style="bold")
    card: list[RenderableType] = [Text.assemble(heading, (f"  {_facts(called, preview)}", "dim"))]

    def add(renderable: Text, indent: int) -> None:
        card.append(Padding(renderable, (0, 0, 0, indent)))

    for name, value in preview.fields(called):
        shown = _tail(value, lines)
        label = f"{clean(name)}: " if name else ""
        if "\n" not in shown:
            add(Text.assemble((label, "dim"), shown), 4)
        else:
            add(Text(label, style="dim"), 4)
            add(Text(shown), 6)
    if called.progress is not None and called.state in (CallState.EXECUTING, CallState.RUNNING_EARLY):
        add(Text(clean(bar_of(called.progress) or one_line(called.progress)), style=colour), 4)
    if called.state in AT_REST:
        add(Text(_describe_outcome(called), style=colour), 4)
    return Group(*card)


def _facts(called: CallView, preview: _Preview) -> str:
    outcome = called.outcome
    state = _failure(outcome.error) if isinstance(outcome, CallFailed) else str(called.state)
    facts = [state] if called.author is None else [f"by {clean(called.author)}", state]
    if called.is_being_written and preview.first_at is not None:
        seconds = max(called.changed_at - preview.first_at, 0.001)
        facts.append(f"{preview.chars} characters")
        if preview.deltas > 1:
            facts.append(f"{preview.deltas / seconds:.0f} deltas/s")
    elif called.state in AT_REST:
        facts += [duration(called.changed_at - called.at), clean(called.call_id)]
    return ", ".join(facts)


def _failure(error: str) -> str:
    """What became of a call that has this error instead of a result."""
    return "declined" if error in DECLINED else "failed"


def _describe_outcome(called: CallView) -> str:
    """A call's state and outcome, on one line."""
    match called.outcome:
        case CallReturned(result=result):
            return f"→ {one_line(result, 200)}"
        case CallFailed(error=error):
            return f"{_failure(error)}: {one_line(error, 200)}"
        case CallDiscarded(reason=reason, detail=detail):
            return f"discarded: {one_line(f'{reason}: {detail}' if detail else reason, 200)}"
        case None:
            return "awaits an answer"
        case _:
            return str(called.state)


def _tail(text: str, lines: int) -> str:
    """The end of a text, at most ``lines`` lines of usual width, after a note on what is left out."""
    most = lines * _WIDTH
    left_out = "" if len(text) <= most else f"… {len(text) - most} characters above\n"
    rows = clean(text[-most:]).splitlines()
    if len(rows) > lines:
        left_out, rows = f"… {text.count(chr(10)) + 1 - lines} lines above\n", rows[-lines:]
    return left_out + "\n".join(rows)


# -- a run as plain lines, for pipes, files and terminals that cannot draw ---------------------------------------------


_INDENT = "  "
_STEPS = 10
"""How many lines are printed for one bar at most."""


class _RecordPrinter:
    """Prints records. Growing text stays on its line until something else is printed. Calls are numbered here."""

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
                self._say(call, f" ({call.call_id}){by}")
                self._writing = call.call_id
            case Grew(part=Passage() as passage, text=text):
                margin = self._margin(passage)
                self._grow((passage.message_id, passage.kind), f"{margin}{heading_of(passage)}: ", text, indent=margin)
            case Grew(part=CallView() as call, text=text) if text:
                self._arguments(call, text)
            case Progressed(call=called, data=data):
                self._progress(called, data)
            case Asked(call=call):
                self._say(call, " awaits an answer")
            case Settled(call=called, outcome=outcome):
                self._say(called, f" {_describe(outcome)}")
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

    def _arguments(self, call: CallView, text: str) -> None:
        stream = self._streams[call.call_id]
        changes: list[Change] = []
        if stream is not None:
            try:
                changes = stream.feed(text)
            except WireError:
                stream = self._streams[call.call_id] = None
                text = call.args_text  # all of it again, as it came
        margin = self._margin(call) + _INDENT
        if stream is None:
            self._turn_to(call)
            self._grow((call.call_id, "raw"), margin, text, indent=margin)
        for change in changes:
            heading = f"{margin}{format_path(change.path).removeprefix('$').removeprefix('.')}: "
            if change.kind == "append":
                self._turn_to(call)
                self._grow((call.call_id, change.path), heading, str(change.value), indent=margin + _INDENT)
            elif change.kind == "set":
                self._turn_to(call)
                self._grow((call.call_id, change.path), heading, one_line(change.value, 200))

    def _turn_to(self, call: CallView) -> None:
        """Names the call again if something else was printed in between."""
        writing = self._writing
        if writing != call.call_id and not (isinstance(writing, tuple) and writing[0] == call.call_id):
            self._say(call, " …")
            self._writing = call.call_id

    def _progress(self, call: CallView | AnswerView, data: Any) -> None:
        bar = bar_of(data)
        if bar is None:
            self._say(call, f": {one_line(data, 200)}")
            return
        step = int(_STEPS * data["done"] / data["total"])
        if self._bars.get(call.call_id) != step:
            self._bars[call.call_id] = step
            self._say(call, f" {bar}")

    def _say(self, call: CallView | AnswerView, text: str) -> None:
        """Prints a line about a call. A call of an earlier run has no number here."""
        name = f"{call.name} #{self._numbers[call.call_id]}" if isinstance(call, CallView) else call.call_id
        self._line(f"{name}{text}", self._margin(call))

    def _margin(self, item: Item) -> str:
        """Text and calls of a tool's model are indented under the tool's call."""
        return _INDENT * self._view.depth_of(item)

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
            return f"{_failure(error)}: {error}"
        case CallDiscarded(reason=reason, detail=detail):
            return f"discarded: {reason}" + (f", {detail}" if detail else "")
        case CallReleased():
            return "released"
        case _:
            assert_never(outcome)


_LOOK_EVERY = 0.25
_QUIET_SECONDS = 20.0
"""How long a run may be silent before a note says why that may be."""
_IF_DEAD = (
    "if its process has died, another one that uses the journal continues or ends it within 45 s; if there is no other, "
    "callstream doctor and callstream sweep help"
)


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
    """Shows a run until its end. If it is silent for long, prints a hint, once."""
    screen = _Lines(out) if as_json else _RecordPrinter(out) if out.console is None else LivePane(out.console)
    show = out.note if out.console is None or as_json else out.console.print
    was_quiet = False

    def hint() -> None:
        nonlocal was_quiet
        was_quiet = True
        show(f"run {run_id} has been silent for {_QUIET_SECONDS:g} s; {_IF_DEAD}")

    quiet, loop = Alarm(hint), asyncio.get_running_loop()
    quiet.set(loop, _QUIET_SECONDS)
    try:
        async with aclosing(source.follow(run_id)) as records:
            async for record in records:
                if not was_quiet:
                    quiet.set(loop, _QUIET_SECONDS)
                if record is None:
                    screen.restart()
                else:
                    screen.show(record)
    finally:
        quiet.stop()
        screen.close()


class _Lines:
    """Records as JSON lines."""

    def __init__(self, out: Printer) -> None:
        self._out = out

    def show(self, record: Record) -> None:
        if type(record.event) not in KEPT:
            self._out.write(codec.encode(record).decode() + "\n")

    def restart(self) -> None:
        """Nothing: the records' numbers show it."""

    def close(self) -> None:
        """Nothing: every line has been written."""


async def next_run(source: RecordSource, thread_id: str | None, seen: set[str], out: Printer) -> str:
    """The newest active run that was not shown yet. Waits until there is one."""
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
