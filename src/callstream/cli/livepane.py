"""What there is to see of a run in a terminal, and how it is drawn live, with rich.

What is active is at the bottom, what is over above it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, assert_never

from callstream.calls import AT_REST, CallState
from callstream.cli.output import clean, duration, one_line
from callstream.errors import WireError
from callstream.events import CallDiscarded, CallFailed, CallReturned, Record, RunResumed
from callstream.jsontext.stream import JsonStream
from callstream.view import AnswerView, CallView, Grew, InputView, Item, Opened, Passage, RunView

# -- what there is to see ----------------------------------------------------------------------------------------------


class Preview:
    """The arguments of a call while they arrive: how many, how fast, and what they say so far."""

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
                self._stream = None  # it is shown as it came

    def fields(self, call: CallView) -> list[tuple[str, str]]:
        """Names and values as text; what is no object has no names."""
        value = self._stream.value if self._stream is not None else call.args_text
        if isinstance(value, dict):
            return [(name, as_text(each)) for name, each in value.items()]
        return [("", as_text(value))] if self.chars else []


class Scene:
    """A run as it is until now."""

    def __init__(self) -> None:
        self.view = RunView()
        self.previews: dict[str, Preview] = {}

    def feed(self, record: Record) -> None:
        for change in self.view.feed(record):
            match change:
                case Opened(part=CallView() as call):
                    self.previews[call.call_id] = Preview(is_text=call.encoding == "text")
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
    """That another process goes on with the run, and what of the attempt before is void."""
    cut = [message for message in view.void.values() if message.attempt == view.attempt - 1]
    names = ", ".join(call.name for message in cut for call in message.calls)
    void = f"; void: the response that was cut{' with ' if names else ''}{names}" if cut else ""
    return f"attempt {view.attempt}: another process goes on{void}"


def heading_of(passage: Passage) -> str:
    """Who says it, and whether that is reasoning."""
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
    """A report of a tool as a bar, where it tells how far of what; None where it does not."""
    if not isinstance(progress, dict):
        return None
    done, total, message = progress.get("done"), progress.get("total"), progress.get("message")
    if done is None or total is None or not (_is_number(done) and _is_number(total)) or total <= 0:
        return None
    filled = min(width, max(0, round(width * done / total)))
    return f"[{'#' * filled}{'.' * (width - filled)}] {done:g}/{total:g}" + (f" {message}" if message else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- how it is drawn ---------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_FRAMES_PER_SECOND = 12
_TAIL = 10
"""Lines of one value that are shown while it grows."""
_KEPT = 40
"""Lines of one value that are shown in the end."""
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
    """Draws records. Items that are settled, and all before them, are printed for good and leave the pane."""

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
            self._finish()

    def restart(self) -> None:
        self._scene = Scene()
        self._printed = 0

    def close(self) -> None:
        self._finish()

    def _finish(self) -> None:
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
            self._live.refresh()  # else what is printed above would stand in the pane once more
            for item in settled:
                self._console.print(self._item(item, _KEPT))

    def _print_void(self, before: list[Item]) -> None:
        """What counts no more is printed for good, struck through, as far as it was in the pane."""
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


def _card(called: CallView, preview: Preview, lines: int) -> RenderableType:
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


def _facts(called: CallView, preview: Preview) -> str:
    facts = [str(called.state)] if called.author is None else [f"by {clean(called.author)}", str(called.state)]
    if called.is_being_written and preview.first_at is not None:
        seconds = max(called.changed_at - preview.first_at, 0.001)
        facts.append(f"{preview.chars} characters")
        if preview.deltas > 1:
            facts.append(f"{preview.deltas / seconds:.0f} deltas/s")
    elif called.state in AT_REST:
        facts += [duration(called.changed_at - called.at), clean(called.call_id)]
    return ", ".join(facts)


def _describe_outcome(called: CallView) -> str:
    """A call's state and what it ended in, on one line."""
    match called.outcome:
        case CallReturned(result=result):
            return f"→ {one_line(result, 200)}"
        case CallFailed(error=error):
            return f"failed: {one_line(error, 200)}"
        case CallDiscarded(reason=reason, detail=detail):
            return f"discarded: {one_line(f'{reason}: {detail}' if detail else reason, 200)}"
        case None:
            return "awaits an answer"
        case _:
            return str(called.state)


def _tail(text: str, lines: int) -> str:
    """The end of a text, at most so many lines of usual width, and a word of what is left out."""
    most = lines * _WIDTH
    left_out = "" if len(text) <= most else f"… {len(text) - most} characters above\n"
    rows = clean(text[-most:]).splitlines()
    if len(rows) > lines:
        left_out, rows = f"… {text.count(chr(10)) + 1 - lines} lines above\n", rows[-lines:]
    return left_out + "\n".join(rows)
