from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from callstream import __version__
from callstream.cli import output
from callstream.journal import open_journal

from .commands import Ran, command, environment, ran
from .conftest import WRITING, filled

Run = Callable[..., Ran]

COMMANDS = (
    *("demo", "serve", "work", "gateway", "watch", "runs", "calls", "show", "answer", "stop"),
    *("record", "replay", "migrate", "compact", "sweep", "archive", "forget", "move", "doctor"),
)


def test_help_names_every_command_and_where_the_journal_comes_from(run: Run) -> None:
    done = run("--help")
    assert done.code == 0
    assert tuple(re.findall(r"^    (\w+) ", done.out, re.MULTILINE)) == COMMANDS
    for word in (
        "CALLSTREAM_JOURNAL_FILE",
        "examples:",
        "exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted",
    ):
        assert word in done.out
    assert run() == done


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_reads_well(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = run(name, "--help")
    assert done.code == 0
    usage, description, *_ = done.out.split("\n\n")
    assert usage.startswith(f"usage: callstream {name} ")
    assert description.rstrip().endswith(".")
    examples = done.out.split("examples:\n")[1].splitlines()
    assert examples
    assert all(line.startswith("  ") and f"callstream {name}" in line for line in examples)
    assert all(len(line) <= 125 for line in done.out.splitlines())


@pytest.mark.subprocess
def test_no_command_needs_the_packages_of_another() -> None:
    """It starts without the packages of any extra."""
    of_extras = ("google.adk", "ag_ui", "starlette", "uvicorn", "httpx", "rich", "h11", "yaml", "cedarpy", "sqlalchemy")
    program = f"import sys; sys.modules.update(dict.fromkeys({of_extras!r})); from callstream.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_version(run: Run) -> None:
    assert run("--version") == Ran(0, f"callstream {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sing"], "callstream: argument <command>: invalid choice: 'sing'"),
        (["calls", "--limit", "0"], "callstream calls: argument --limit: expected a number of 1 or more, got '0'"),
        (["calls", "--state", "happy"], "callstream calls: argument --state: invalid choice: 'happy'"),
        (["show"], "callstream show: the following arguments are required: CALL"),
        (
            ["serve", "x", "--port", "99999"],
            "callstream serve: argument --port: expected a port, 0 to 65535, got '99999'",
        ),
        (["demo", "--pace", "0"], "callstream demo: argument --pace: expected more than 0 deltas per second, got '0'"),
        (["demo", "hello"], "callstream demo: a message and --yes need --terminal"),
        (
            ["watch", "--journal", "sqlite:///x.db", "--server", "http://h"],
            "callstream watch: give --journal or --server",
        ),
        (["stop", "r"], "callstream stop: expected a server: give --server URL or set CALLSTREAM_SERVER"),
        (["stop", "r", "--server", "ftp://h"], "callstream stop: expected the server's address"),
        (["stop", "r", "--server", "http://a:b@h"], "callstream stop: passwords are not accepted on the command line"),
    ],
)
def test_wrong_usage_is_one_sentence_and_2(run: Run, arguments: list[str], sentence: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(sentence)
    assert done.err.count("\n") == 1


def test_a_server_that_is_not_there_is_one_sentence_and_1(run: Run) -> None:
    done = run("stop", "r", "--server", "http://127.0.0.1:1")
    assert done.code == 1
    assert done.err.startswith("callstream stop: cannot reach http://127.0.0.1:1: ")
    assert done.err.count("\n") == 1


def test_debug_shows_where_an_error_comes_from(run: Run) -> None:
    done = run("calls", "--journal", "sqlite:///none.db", "--debug")
    assert done.code == 1
    assert "Traceback" in done.err
    assert "no journal found at" in done.err


def test_a_bug_is_told_as_such_in_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch, journal_url: str) -> None:
    monkeypatch.setattr("callstream.cli.listing.one_line", lambda *_: 1 / 0)
    done = run("calls", "--journal", journal_url)
    assert (done.code, done.err) == (
        1,
        "callstream calls: internal error, a bug in callstream (--debug shows the traceback): ZeroDivisionError: division by zero\n",
    )
    assert "one_line" in run("calls", "--journal", journal_url, "--debug").err


@pytest.mark.subprocess
def test_the_module_is_the_command() -> None:
    assert ran("--version") == Ran(0, f"callstream {__version__}\n", "")


@pytest.mark.subprocess
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_output_is_no_error(journal_url: str, closed: str) -> None:
    filled(journal_url, r1=WRITING[:1])
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command("runs", "--journal", journal_url)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr, "r1" in done.stdout) == (0, "", closed == "2>&-")


@pytest.mark.subprocess
def test_a_reader_that_leaves_is_no_error(journal_url: str) -> None:
    async def fill() -> None:
        async with open_journal(journal_url, housekeeping=None) as journal:
            await asyncio.gather(*(journal.append(f"r{number}", WRITING[:1]) for number in range(2000)))

    asyncio.run(fill())
    process = subprocess.Popen(
        command("runs", "--journal", journal_url, "--limit", "5000", "--json"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141
    process.stderr.close()


@pytest.mark.subprocess
def test_ctrl_c_ends_with_130_and_without_a_traceback(journal_url: str) -> None:
    watching = command("watch", "--journal", journal_url)
    with subprocess.Popen(watching, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "waiting for a run to start" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_progress_is_shown_to_a_terminal_only_and_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    clock = iter([0.0, 0.5, 1.5, 1.55, 2.5])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    with output.Ticker("folding", 9) as ticker:
        for _ in range(4):
            ticker.step()
        assert shown.getvalue() == "\rfolding: 2 of 9\rfolding: 4 of 9"
    assert shown.getvalue().endswith("\r               \r")


def test_what_a_server_says_is_not_obeyed_by_a_terminal(run: Run) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"error": {"code": "no", "message": "No.\x1b]0;owned\x07\x1b[2J"}}).encode()
            self.send_response(403)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            done = run("runs", "--server", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert done.code == 1
    assert "refused the request: No." in done.err
    assert "\x1b" not in done.err
    assert "\x07" not in done.err
