"""The command as people run it: in this process, and in one of its own."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.captures import ROOT

PATIENCE = 120.0


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables without any that a command looks at, but with those that are given."""
    looked_at = re.compile(r"CALLSTREAM_|GOOGLE_|GEMINI_|ANTHROPIC_|OPENAI_|FORCE_COLOR|NO_COLOR|COLUMNS|TERM$")
    kept = {name: value for name, value in os.environ.items() if not looked_at.match(name)}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "NO_PROXY": "127.0.0.1", **(extra or {})}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "callstream", *arguments]


def ran(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, given: str = "") -> Ran:
    """The command in a process of its own, without a terminal."""
    done = subprocess.run(
        command(*arguments),
        input=given,
        env=environment(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def in_terminal(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, typed: bytes = b""
) -> Ran:
    """The command in a terminal of its own: 100 columns, 40 lines. What it draws is all in ``out``."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        command(*arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment({**size, **(env or {})}),
        cwd=cwd,
    )
    os.close(theirs)
    if typed:
        os.write(ours, typed)
    drawn = bytearray()

    def read() -> None:
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal is gone when its last program is
                return
            if not piece:
                return
            drawn.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(PATIENCE)
    reader.join(PATIENCE)
    os.close(ours)
    return Ran(code, drawn.decode(errors="replace"), "")


def screen(drawn: str) -> str:
    """What stands in a terminal after all that: lines, cursor up, erased lines. No more is needed for rich."""
    rows: list[list[str]] = [[]]
    row = column = 0
    for found in re.finditer(r"\x1b\[([?\d;]*)([A-Za-z])|([^\x1b])", drawn):
        count, control, character = found.groups()
        if character == "\n":
            row += 1
        elif character == "\r":
            column = 0
        elif character is not None:
            while len(rows) <= row:
                rows.append([])
            rows[row].extend(" " * (column + 1 - len(rows[row])))
            rows[row][column] = character
            column += 1
        elif control == "A":
            row -= int(count or 1)
        elif control == "K" and row < len(rows):
            rows[row] = []
    return "\n".join("".join(each).rstrip() for each in rows)


class Server:
    """A command that serves. ``url`` is the address that it printed."""

    def __init__(self, process: subprocess.Popen[str], url: str, lines: list[str]) -> None:
        self.process = process
        self.url = url
        self.lines = lines

    def end(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(PATIENCE)


@contextmanager
def serving(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Iterator[Server]:
    """A command that prints an address and serves there."""
    process = subprocess.Popen(
        command(*arguments), env=environment(env), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    url = ""
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if found := re.match(r"http://\S+", line):
            url = found[0].rstrip("/")
            break
    assert url, "\n".join(lines)
    stdout = process.stdout
    rest = threading.Thread(target=lambda: lines.extend(line.rstrip("\n") for line in stdout))
    rest.start()
    try:
        yield Server(process, url, lines)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        rest.join(PATIENCE)
        stdout.close()


def eventually(what: Callable[[], Any]) -> Any:
    """What is true at last."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.05)
    return found
