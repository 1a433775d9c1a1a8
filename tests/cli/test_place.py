"""Where the journal comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from callstream.cli.options import JournalPlace, hide_password

from .commands import Ran
from .conftest import WRITING, filled

Run = Callable[..., Ran]


def test_the_command_line_comes_first_then_the_environment_or_its_file_then_this_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {
        name: filled(f"sqlite:///{tmp_path}/{file}", **{name: WRITING})
        for name, file in [("given", "a.db"), ("named", "b.db"), ("kept", "c.db"), ("here", "callstream.db")]
    }

    def found(*arguments: str) -> str:
        done = run("runs", "--json", *arguments)
        assert done.code == 0, done.err
        return done.out

    assert '"run_id":"here"' in found()
    (tmp_path / "secret").write_text(urls["kept"] + "\n")
    monkeypatch.setenv("CALLSTREAM_JOURNAL_FILE", str(tmp_path / "secret"))
    assert '"run_id":"kept"' in found()
    monkeypatch.setenv("CALLSTREAM_JOURNAL", urls["named"])
    assert "not both" in run("runs").err
    monkeypatch.delenv("CALLSTREAM_JOURNAL_FILE")
    assert '"run_id":"named"' in found()
    assert '"run_id":"given"' in found("--journal", urls["given"])


def test_without_any_it_says_how_to_name_one(run: Run) -> None:
    assert run("calls") == Ran(
        2,
        "",
        "callstream calls: no journal: give --journal URL or set CALLSTREAM_JOURNAL; this folder has no "
        "callstream.db\n",
    )


@pytest.mark.parametrize(
    "url", ["postgresql://ada:hush@db/calls", "postgresql://db/calls?password=hush", "postgresql://:hush@db/calls"]
)
@pytest.mark.parametrize("name", ["calls", "watch", "sweep", "doctor"])
def test_a_password_on_the_command_line_is_refused_in_one_sentence(run: Run, name: str, url: str) -> None:
    done = run(name, "--journal", url)
    assert done.code == 2
    assert done.out == ""
    assert "CALLSTREAM_JOURNAL" in done.err
    assert done.err.count("\n") == 1
    assert "hush" not in done.err


def test_a_password_from_the_environment_is_never_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLSTREAM_JOURNAL", "mysql://ada:hush@db/calls")
    done = run("calls")
    assert done.code == 2
    assert done.err == (
        "callstream calls: expected memory:, sqlite:///file.db or postgresql://…, got 'mysql://ada:…@db/calls'\n"
    )
    assert hide_password("postgresql://ada:hush@db:5432/calls?sslmode=require") == "postgresql://ada:…@db:5432/calls"


def test_a_log_beside_the_journal_is_shown_without_credentials() -> None:
    database = "postgresql://ada:hush@db/calls?sslmode=require"
    log = "log=nats://me:se@cr@n1,n2:4333&log_stream=s&log_streams=4&log_creds=/run/creds&log_durability=relaxed"
    shown = "postgresql://ada:…@db/calls?log=nats://n1,n2:4333&log_stream=s&log_streams=4"
    assert str(JournalPlace(f"{database}&{log}")) == shown
    assert str(JournalPlace("postgresql://db/calls?log=me:secret@n1")) == "postgresql://db/calls?log=n1"
    assert str(JournalPlace(database)) == "postgresql://ada:…@db/calls"
    assert str(JournalPlace("sqlite:///calls.db?durability=power")) == "sqlite:///calls.db"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql:///calls?host=/run/pg&port=5433", "postgresql:///calls?host=/run/pg&port=5433"),
        ("postgresql://ada:hush@db/calls?schema=shop", "postgresql://ada:…@db/calls?schema=shop"),
        (
            "postgresql://?schema=s&password=hush&user=a&dbname=d&host=h",
            "postgresql://?host=h&user=a&dbname=d&schema=s",
        ),
        ("postgresql://db/calls?host=ada:hush@db2&passfile=/hush&sslpassword=hush", "postgresql://db/calls?host=db2"),
        ("postgresql://db/calls?schema=%0Ashop&listen=off", "postgresql://db/calls?schema=%0Ashop"),
        ("postgresql://db?log=nats://me:hush@n1&schema=s", "postgresql://db?schema=s&log=nats://n1"),
    ],
)
def test_what_tells_a_database_from_another_is_shown_and_no_password(url: str, shown: str) -> None:
    assert hide_password(url) == shown
    assert str(JournalPlace(url)) == shown


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("sqlite:///nowhere.db", 1, "no journal found at "),
        ("memory:", 2, "exists only inside its own process"),
        ("telepathy:", 2, "expected memory:, sqlite:///file.db or postgresql://"),
        ("sqlite:calls.db", 2, "expected sqlite:///relative.db"),
        ("postgresql://127.0.0.1:1/none", 1, "PostgreSQL"),
    ],
)
def test_a_journal_that_cannot_be_read_is_one_sentence(
    run: Run, url: str, code: int, words: str, tmp_path: Path
) -> None:
    done = run("calls", "--journal", url)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_journal_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database at all, but long enough to be looked at" * 20)
    done = run("runs", "--journal", "sqlite:///notes.db")
    assert done.code == 1
    assert "could not be used" in done.err
    (tmp_path / "empty.db").touch()
    done = run("runs", "--journal", "sqlite:///empty.db")
    assert done.code == 1
    assert "run `callstream migrate`" in done.err


def test_the_file_that_names_the_journal_has_to_be_readable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLSTREAM_JOURNAL_FILE", "gone")
    assert "'gone' cannot be read" in run("runs").err
    (tmp_path / "empty").touch()
    monkeypatch.setenv("CALLSTREAM_JOURNAL_FILE", "empty")
    assert "got nothing" in run("runs").err


@pytest.mark.parametrize(
    "url", ["postgresql://[::1/x", "postgresql://127.0.0.1:abc/x", "postgresql://127.0.0.1:99999/x"]
)
@pytest.mark.parametrize("way", ["argument", "variable"])
def test_an_address_that_is_none_is_told_in_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str, way: str
) -> None:
    monkeypatch.setenv("CALLSTREAM_JOURNAL", url)
    done = run("calls", *(["--journal", url] if way == "argument" else []))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert "is not a valid address" in done.err


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:abc", "http://127.0.0.1:99999"])
def test_a_servers_address_that_is_none_is_told_in_one_sentence(run: Run, url: str) -> None:
    done = run("calls", "--server", url)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert "is not a valid address" in done.err


def test_a_password_is_not_told_with_an_address_that_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLSTREAM_JOURNAL", "postgresql://ada:hush/hush@db/calls")
    done = run("calls")
    assert "is not a valid address" in done.err
    assert "hush" not in done.err


def test_several_hosts_are_an_address() -> None:
    assert (
        hide_password("postgresql://ada:hush@one:5432,[::1]:5433/calls")
        == "postgresql://ada:…@one:5432,[::1]:5433/calls"
    )
