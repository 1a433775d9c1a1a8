from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from callstream.events import RunEnded, RunStarted, TextAppended

from .commands import PATIENCE, Ran, command, environment
from .conftest import filled

Run = Callable[..., Ran]


def test_move_copies_a_journal_and_says_that_both_are_the_same(run: Run, journal_url: str) -> None:
    done = run("move", journal_url, "sqlite:///new.db")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(
        r"2 runs copied\nsqlite:///\S+ and sqlite:///new.db have the same 2 runs and \d+ records: sha256 [0-9a-f]{64}\n",
        done.out,
    )
    shown = [run("runs", "--json", "--journal", url).out for url in (journal_url, "sqlite:///new.db")]
    assert shown[0] == shown[1]
    told = json.loads(run("move", journal_url, "sqlite:///new.db", "--json").out)
    assert (told["runs"], told["copied"], told["active"], told["to"]) == (2, 0, 0, "sqlite:///new.db")


def test_move_takes_urls_from_variables(run: Run, journal_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEW_JOURNAL", "sqlite:///new.db")
    assert run("move", journal_url, "NEW_JOURNAL").code == 0
    done = run("move", journal_url, "NO_JOURNAL")
    assert (done.code, done.err) == (
        2,
        "callstream move: expected a journal's URL or a variable that has one, got 'NO_JOURNAL', which is not set\n",
    )


def test_what_a_variable_holds_that_names_no_journal_is_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTYPED", "sk-secret")
    done = run("move", "sqlite:///a.db", "MISTYPED")
    assert (done.code, done.out) == (2, "")
    assert "got something else in MISTYPED" in done.err
    assert "secret" not in done.err


@pytest.mark.parametrize("other", ["sqlite:///./a.db", "sqlite:///linked.db", "sqlite:///{folder}/a.db"])
def test_a_journal_is_not_copied_into_itself(run: Run, tmp_path: Path, other: str) -> None:
    filled("sqlite:///a.db", r=[RunStarted("t"), RunEnded("finished")])
    (tmp_path / "linked.db").symlink_to("a.db")
    done = run("move", "sqlite:///a.db", other.format(folder=tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "expected two journals, but " in done.err


@pytest.mark.slow
@pytest.mark.subprocess
def test_move_that_is_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path / 'old.db'}"
    text = [TextAppended("m", "x" * 20)] * 30
    filled(source, **{f"run_{n}": [RunStarted("t"), *text, RunEnded("finished")] for n in range(2000)})
    moving = subprocess.Popen(
        command("move", source, f"sqlite:///{tmp_path / 'new.db'}"),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not copied(tmp_path / "new.db"):
        time.sleep(0.005)
    moving.send_signal(signal.SIGINT)
    assert (
        "what was copied stays, and the same command goes on with the rest" in moving.communicate(timeout=PATIENCE)[1]
    )
    assert moving.returncode == 130


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("sqlite:///none.db", "sqlite:///new.db", "none.db"),
        ("memory:", "sqlite:///new.db", "exists only inside its own process"),
        ("sqlite:///a.db", "sqlite:///a.db", "FROM and TO are the same journal"),
        ("sqlite:///a.db", "memory:", "expected a TO that outlives this command"),
        ("sqlite:///a.db", "postgresql://a:secret@host/b", "set a variable to the URL, and give its name"),
        ("sqlite:///a.db", "mysql://host/b", "expected memory:, sqlite:///file.db or postgresql://"),
    ],
)
def test_move_says_what_is_wrong(run: Run, source: str, target: str, said: str) -> None:
    filled("sqlite:///a.db", r=[RunStarted("t"), RunEnded("finished")])
    done = run("move", source, target)
    assert done.code in (1, 2)
    assert said in done.err
    assert "secret" not in done.err
    assert done.out == ""


def test_move_into_another_journal_is_refused(run: Run, journal_url: str) -> None:
    filled("sqlite:///mine.db", r=[RunStarted("t"), RunEnded("finished")])
    done = run("move", journal_url, "sqlite:///mine.db")
    assert done.code == 2
    assert "has run 'r', which" in done.err
    assert "expected an empty journal" in done.err


@pytest.mark.slow
@pytest.mark.subprocess
def test_move_that_is_killed_goes_on(run: Run, tmp_path: Path) -> None:
    """It is killed when a quarter more of the runs is there, however long that takes, and three times."""
    source, target = f"sqlite:///{tmp_path / 'old.db'}", f"sqlite:///{tmp_path / 'new.db'}"
    count = 2000
    text = [TextAppended("m", "x" * 20)] * 30
    filled(source, **{f"run_{n}": [RunStarted("t"), *text, RunEnded("finished")] for n in range(count)})
    for part in (1, 2, 3):
        moving = subprocess.Popen(command("move", source, target), env=environment(), stdout=subprocess.PIPE)
        deadline = time.monotonic() + PATIENCE
        while moving.poll() is None and time.monotonic() < deadline and copied(tmp_path / "new.db") < part * count // 4:
            time.sleep(0.005)
        moving.send_signal(signal.SIGKILL)
        moving.communicate()
        assert copied(tmp_path / "new.db") >= part * count // 4
    before = copied(tmp_path / "new.db")
    told = json.loads(run("move", source, target, "--json").out)
    assert (told["runs"], told["copied"], told["records"]) == (count, count - before, count * 32)


def copied(path: Path) -> int:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
            return int(file.execute("SELECT count(*) FROM run").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
