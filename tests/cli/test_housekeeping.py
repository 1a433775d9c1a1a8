from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from callstream.events import ArgsAppended, CallStarted, InputKept, RunEnded, RunStarted
from callstream.journal import open_journal

from .commands import Ran, in_terminal
from .conftest import filled

Run = Callable[..., Ran]
LEFT_ALONE = "1 run left alone: for an hour after the last record a server or callstream work can go on with such runs; --all ends them, too"


def runs_in(run: Run, url: str) -> list[str]:
    return [json.loads(line)["run_id"] for line in run("runs", "--journal", url, "--json").out.splitlines()]


def test_migrate_makes_a_journal_and_leaves_one_that_is_up_to_date(run: Run, tmp_path: Path) -> None:
    assert run("migrate", "--journal", "sqlite:///new.db") == Ran(0, "sqlite:///new.db has schema 3\n", "")
    assert (tmp_path / "new.db").is_file()
    done = run("migrate", "--journal", "sqlite:///new.db", "--json")
    assert json.loads(done.out) == {"journal": "sqlite:///new.db", "schema_version": 3}
    assert run("migrate", "--journal", "memory:").code == 2


def test_compact_folds_one_run(run: Run, journal_url: str) -> None:
    before = json.loads(run("show", "c1", "--journal", journal_url, "--json").out)
    done = run("compact", "run_1", "--journal", journal_url)
    assert done.code == 0
    assert done.out.startswith("4 records of 1 run folded; ")
    assert json.loads(run("show", "c1", "--journal", journal_url, "--json").out) == before
    assert run("compact", "run_1", "--journal", journal_url).out.startswith("0 records of 1 run folded; ")
    assert run("watch", "run_1", "--journal", journal_url).out.count("model: I will write.\n") == 1


@pytest.mark.parametrize("arguments", [["compact", "run_1"], ["runs"], ["watch", "run_1"], ["migrate"], ["doctor"]])
def test_a_journal_with_a_log_is_refused_without_it(run: Run, journal_url: str, arguments: list[str]) -> None:
    with closing(sqlite3.connect(journal_url.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE journal SET log = 'log_stream=s&log_streams=4'")
    done = run(*arguments, "--journal", journal_url)
    assert done.code in (1, 2)
    assert "add log= with the log's servers and log_stream=s&log_streams=4 to the journal's URL" in done.out + done.err
    with closing(sqlite3.connect(journal_url.removeprefix("sqlite:///"))) as file:
        assert file.execute("SELECT count(*) FROM run WHERE compacted").fetchone() == (0,)


def test_compact_all_folds_what_has_ended_and_nothing_else(run: Run, journal_url: str) -> None:
    pieces = [ArgsAppended("c9", "1"), ArgsAppended("c9", "2")]
    filled(journal_url, run_3=[RunStarted("t"), CallStarted("c9", "f"), *pieces])
    told = json.loads(run("compact", "--all", "--journal", journal_url, "--json").out)
    assert (told["runs"], told["folded_records"]) == (2, 5)
    assert told["stored_bytes"] > 0
    done = run("compact", "run_3", "--journal", journal_url)
    assert (done.code, done.err) == (
        2,
        "callstream compact: run 'run_3' is still running; only an ended run can be compacted\n",
    )


def test_archive_moves_what_has_ended_and_other_commands_read_it(
    run: Run, journal_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("compact", "--all", "--journal", journal_url).code == 0
    shown = [run("show", name, "--journal", journal_url, "--json").out for name in ("c1", "run_1")]
    assert run("archive", "--journal", journal_url) == Ran(
        2, "", "callstream archive: no archive: give --archive or set CALLSTREAM_ARCHIVE\n"
    )
    address = (tmp_path / "archive").as_uri()
    assert run("archive", "--older-than", "1h", "--journal", journal_url, "--archive", address).out.startswith("0 runs")
    assert run("archive", "--journal", journal_url, "--archive", address).out.startswith("0 runs")
    told = json.loads(run("archive", "--all", "--journal", journal_url, "--archive", address, "--json").out)
    assert told["runs"] == told["archive"]["runs"] > 0
    done = run("runs", "--journal", journal_url)
    assert done.code == 1
    assert "has runs in an archive: name it" in done.err
    monkeypatch.setenv("CALLSTREAM_ARCHIVE", address)
    assert [run("show", name, "--journal", journal_url, "--json").out for name in ("c1", "run_1")] == shown
    assert "in the archive, in 1 object of" in run("doctor", "--journal", journal_url).out
    (tmp_path / "archive").rename(tmp_path / "away")
    done = run("doctor", "--journal", journal_url)
    assert done.code == 1
    assert "! the runs that have left the journal are not in the folder" in done.out
    (tmp_path / "away").rename(tmp_path / "archive")
    assert run("move", journal_url, "sqlite:///copy.db").code == 0
    assert run("forget", "--before", "2100-01-01", "--yes", "--journal", journal_url).code == 0
    assert [file for file in (tmp_path / "archive").rglob("*") if file.is_file()] == []


def test_compact_wants_to_know_what(run: Run, journal_url: str) -> None:
    assert run("compact", "--journal", journal_url).code == 2
    assert run("compact", "run_1", "--all", "--journal", journal_url).code == 2
    done = run("compact", "run_99", "--journal", journal_url)
    assert (done.code, done.err) == (1, f"callstream compact: run 'run_99' not found in {journal_url}\n")


def test_sweep_closes_what_a_dead_process_left_and_spares_the_living(run: Run, journal_url: str) -> None:
    filled(journal_url, left=[RunStarted("t"), CallStarted("c9", "f")])  # its process closed the journal, and is gone

    async def beside_a_living_one() -> Ran:
        async with open_journal(journal_url, housekeeping=None) as journal:
            await journal.append("alive", [RunStarted("t")])
            return await asyncio.to_thread(run, "sweep", "--journal", journal_url, "--json")

    assert json.loads(asyncio.run(beside_a_living_one()).out) == {"runs": ["left"], "waiting": []}
    call = json.loads(run("show", "c9", "--journal", journal_url, "--json").out)
    assert (call["state"], call["reason"]) == ("discarded", "interrupted")
    assert run("sweep", "--journal", journal_url).out == "closed alive\n"
    assert run("sweep", "--journal", journal_url).out == "no runs of dead processes found\n"


def test_sweep_says_what_it_leaves_to_another_process_and_ends_that_if_asked(run: Run, journal_url: str) -> None:
    filled(journal_url, kept=[RunStarted("t"), InputKept("app", "input")], left=[RunStarted("t")])
    assert run("sweep", "--journal", journal_url).out.splitlines() == ["closed left", LEFT_ALONE]
    assert run("sweep", "--journal", journal_url).out.splitlines() == [LEFT_ALONE]
    assert json.loads(run("sweep", "--json", "--journal", journal_url).out) == {"runs": [], "waiting": ["kept"]}
    assert run("sweep", "--all", "--journal", journal_url).out == "closed kept\n"
    assert run("sweep", "--journal", journal_url).out == "no runs of dead processes found\n"


def test_forget_erases_what_matches_everything_given(run: Run, journal_url: str) -> None:
    filled(journal_url, run_3=[RunStarted("t1", "bob"), RunEnded("finished")], run_4=[RunStarted("t1", "ada")])
    done = run("forget", "--thread", "t1", "--principal", "bob", "--yes", "--journal", journal_url)
    assert (done.code, done.out) == (0, "1 run erased\n")
    assert runs_in(run, journal_url) == ["run_1", "run_2", "run_4"]
    assert json.loads(run("forget", "--before", "1h", "--yes", "--json", "--journal", journal_url).out) == {"runs": 0}
    tomorrow = (datetime.now() + timedelta(days=1)).isoformat()
    assert run("forget", "--before", tomorrow, "--yes", "--journal", journal_url).out == "2 runs erased\n"
    assert runs_in(run, journal_url) == ["run_4"]  # what goes on is never erased


def test_forget_asks_first_and_does_nothing_where_nobody_can_be_asked(
    run: Run, journal_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = run("forget", "--thread", "t1", "--journal", journal_url)
    assert (done.code, done.out) == (2, "")
    assert "--yes" in done.err
    assert run("forget", "--journal", journal_url, "--yes").code == 2
    assert runs_in(run, journal_url) == ["run_1", "run_2"]


@pytest.mark.subprocess
def test_forget_takes_no_and_yes_for_an_answer(run: Run, journal_url: str) -> None:
    arguments = ("forget", "--before", "2999-01-01", "--journal", journal_url)
    refused = in_terminal(*arguments, typed=b"\n")
    assert "erase 2 runs that ended before 2999-01-01 00:00:00 from" in refused.out
    assert "nothing was erased" in refused.out
    assert refused.code == 1
    assert len(runs_in(run, journal_url)) == 2
    agreed = in_terminal(*arguments, typed=b"y\n")
    assert (agreed.code, "2 runs erased" in agreed.out) == (0, True)


@pytest.mark.parametrize("text", ["soon", "3x", "1s", "2026-13-01", "-1d", ""])
def test_forget_says_what_a_time_looks_like(run: Run, text: str) -> None:
    done = run("forget", f"--before={text}", "--yes")
    assert done.code == 2
    assert "such as 12h, 30d or 8w, or a date such as 2026-01-31" in done.err


@pytest.mark.parametrize("text", ["1m", "90m"])
def test_forget_refuses_an_age_that_may_be_minutes_or_months(run: Run, journal_url: str, text: str) -> None:
    done = run("forget", "--before", text, "--yes", "--journal", journal_url)
    assert (done.code, done.out) == (2, "")
    assert f"got '{text}' (m could mean minutes or months)" in done.err
    assert runs_in(run, journal_url) == ["run_1", "run_2"]


def test_forget_says_that_sessions_of_google_adk_stay(run: Run, journal_url: str) -> None:
    done = run("forget", "--principal", "ada", "--yes", "--journal", journal_url, "--json")
    assert list(json.loads(done.out)) == ["runs"]
    assert "google-adk keeps conversations in sessions of its own, which this does not touch" in done.err
    assert "google-adk" not in run("forget", "--before", "30d", "--yes", "--journal", journal_url).err
    assert run("forget", "--thread", "nope", "--yes", "--journal", journal_url) == Ran(0, "0 runs erased\n", "")


@pytest.mark.parametrize("option", ["--thread", "--principal"])
def test_forget_refuses_a_name_that_is_empty(run: Run, journal_url: str, option: str) -> None:
    done = run("forget", option, "", "--yes", "--journal", journal_url)
    assert (done.code, done.out) == (2, "")
    assert f"argument {option}: expected a name, got an empty text" in done.err
    assert runs_in(run, journal_url) == ["run_1", "run_2"]


def test_ages_are_counted_back_from_now(run: Run, journal_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget = ("forget", "--before", "1h", "--yes", "--journal", journal_url)
    assert run(*forget).out == "0 runs erased\n"
    later = time.time() + 3700
    monkeypatch.setattr(time, "time", lambda: later)
    assert run(*forget).out == "2 runs erased\n"
