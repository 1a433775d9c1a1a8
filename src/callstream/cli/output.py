"""What a command prints, and how it ends if it cannot do what was asked: with one sentence and an exit code.

Results go to standard output, notes and progress to standard error. If rich is installed and the output is a terminal,
tables and colours are rich's; everything else is plain lines. Text from a model or a tool goes through ``clean``, since a
terminal obeys control characters.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from callstream import codec

if TYPE_CHECKING:
    from rich.console import Console

_OBEYED = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),  # they reorder the text around them
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}


def clean(text: str) -> str:
    """The text without anything that a terminal would obey: control characters are shown, not sent."""
    return text.translate(_OBEYED)


def as_text(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def one_line(value: Any, width: int = 60) -> str:
    """A value on one line of at most that many characters."""
    text = clean(" ".join(as_text(value).split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def moment(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


class Printer:
    """The output of a command. ``console`` is None if plain lines are wanted; ``as_json`` is ``--json``."""

    def __init__(self, *, plain: bool = False, as_json: bool = False) -> None:
        self.as_json = as_json
        self.is_terminal = sys.stdout.isatty()
        self.console: Console | None = None
        if self.is_terminal and not plain and os.environ.get("TERM") != "dumb":
            try:
                from rich.console import Console
            except ImportError:
                return
            self.console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)

    def write(self, text: str) -> None:
        """Text as it is, shown at once."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def line(self, text: str = "") -> None:
        sys.stdout.write(f"{text}\n")

    def note(self, text: str) -> None:
        """A line for the person at the terminal; not part of the result."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def json(self, value: Any) -> None:
        """One document on one line."""
        self.line(codec.encode(value).decode())

    def result(self, document: Any, *lines: str) -> None:
        """The result of a command: one document, or lines for people."""
        if self.as_json:
            self.json(document)
        else:
            for line in lines:
                self.line(line)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if self.console is not None:
            from rich.table import Table
            from rich.text import Text

            table = Table(box=None, pad_edge=False, header_style="bold")
            for heading in headings:
                table.add_column(heading, overflow="fold")
            for row in rows:
                table.add_row(*(Text(cell) for cell in row))
            self.console.print(table)
            return
        widths = [max(len(row[place]) for row in (headings, *rows)) for place in range(len(headings))]
        for row in (headings, *rows):
            self.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class Ticker:
    """Shows progress on standard error, only on a terminal and only after the first second.

    ::

        with Ticker("compacting", len(runs)) as ticker:
            for run in runs:
                ticker.step()
    """

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._shown = ""
        self._next = time.monotonic() + 1.0
        self._is_seen = sys.stderr.isatty()

    def __enter__(self) -> Ticker:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * len(self._shown) + "\r")
            sys.stderr.flush()

    def step(self) -> None:
        self.reach(self._done + 1, self._total)

    def reach(self, done: int, total: int | None) -> None:
        self._done, self._total = done, total
        now = time.monotonic()
        if not self._is_seen or now < self._next:
            return
        self._next = now + 0.1
        text = f"{self._what}: {self._done}" + ("" if self._total is None else f" of {self._total}")
        text = text[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write("\r" + text.ljust(len(self._shown)))
        sys.stderr.flush()
        self._shown = text


# -- errors ------------------------------------------------------------------------------------------------------------


FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
"""The exit code that shells report for a program ended by Ctrl-C."""
PIPE_CLOSED: Final = 141
"""The exit code that shells report for a program whose output is no longer read."""


class CommandError(Exception):
    """The command cannot continue. The sentence is for the person at the terminal."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


def misused(sentence: str) -> CommandError:
    """The error for invalid options or arguments."""
    return CommandError(sentence, MISUSED)
