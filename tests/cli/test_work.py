"""``callstream work``: what it refuses, what it goes on with, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from callstream import open_journal
from callstream.events import InputKept, RunStarted
from callstream.runtime.continuing import pack

from .commands import Ran

Run = Callable[..., Ran]
PROGRAM = """
from callstream import Callstream
from callstream.server import create_app

async def agent(given):
    pass

cs = Callstream("sqlite:///calls.db")
app = create_app(agent, callstream=cs, name="quiet", continues=True)
"""
INPUT = '{"threadId": "t", "runId": "r", "messages": [], "tools": [], "context": [], "state": {}, "forwardedProps": {}}'


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "worked.py"
    path.write_text(PROGRAM)
    return path


def test_a_function_that_does_not_continue_is_refused(run: Run, program: Path) -> None:
    done = run("work", f"{program}:agent")
    assert done.code == 1
    assert "cannot go on in another process: it is a function" in done.err
    assert "in memory" not in done.err
    assert "create_app(…, continues=True)" in done.err


@pytest.mark.parametrize("command", ["work", "serve"])
def test_a_function_with_other_parameters_is_named_with_them(command: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "several.py"
    path.write_text("async def main(given, model, depth: int = 1): ...")
    done = run(command, f"{path}:main", "--journal", f"sqlite:///{tmp_path}/calls.db")
    assert done.code == 2
    assert f"callstream {command}: {path}:main cannot be used: expected an agent" in done.err
    assert "called with the input alone; got main(given, model, depth=1)" in done.err


def test_options_that_the_application_decides_are_refused(run: Run, program: Path) -> None:
    done = run("work", f"{program}:app", "--journal", "sqlite:///other.db")
    assert (done.code, "was made by create_app" in done.err) == (2, True)


async def leave_a_run() -> None:
    async with open_journal("sqlite:///calls.db", housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t"), InputKept("quiet", pack(INPUT.encode()))])


def test_it_goes_on_until_it_is_told_to_stop(run: Run, program: Path) -> None:
    asyncio.run(leave_a_run())
    before = signal.getsignal(signal.SIGTERM)

    async def outcome() -> str | None:
        async with open_journal("sqlite:///calls.db", housekeeping=None) as journal:
            return (await journal.runs(run_id="r"))[0].outcome

    def stop_when_done() -> None:
        while asyncio.run(outcome()) is None:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_when_done)
    stopping.start()
    done = run("work", f"{program}:app")
    stopping.join()
    assert (done.code, done.err.splitlines()[-1]) == (
        0,
        "going on with runs whose process has died; press Ctrl-C to stop",
    )
    assert signal.getsignal(signal.SIGTERM) is before
