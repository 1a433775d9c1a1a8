"""A run as plain lines, piece by piece as it happens: for pipes, files and terminals that cannot draw."""

from __future__ import annotations

from typing import Any, assert_never

from callstream.cli.livepane import bar_of, describe_attempt, heading_of
from callstream.cli.output import Printer, clean, one_line
from callstream.errors import WireError
from callstream.events import CallDiscarded, CallFailed, CallReleased, CallReturned, Record
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
