"""Options and variables of `callstream serve`."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from callstream import Callstream

from .asking import asked
from .commands import Ran, eventually, ran, serving

Run = Callable[..., Ran]


ECHO = """
import logging, warnings
async def agent(input):
    warnings.warn("old thing")
    logging.getLogger("shop").warning("two\\nlines")
    if input.messages[-1].content == "fail":
        raise RuntimeError("broken")
"""


PREFLIGHT = {"origin": "https://shop.example.com", "access-control-request-method": "POST"}


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("how", ["options", "variables"])
def test_logs_for_machines_other_origins_and_retention(tmp_path: Path, how: str) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    url = f"sqlite:///{tmp_path}/callstream.db"
    asyncio.run(two_runs(url))
    with sqlite3.connect(tmp_path / "callstream.db") as database:
        database.execute("UPDATE run SET ended_at = ended_at - 86000 WHERE run_id = 'old'")
    database.close()
    values = {"log-format": "json", "forget-after": "20h", "cors-origin": "https://shop.example.com/"}
    options = [text for name, value in values.items() for text in (f"--{name}", value)]
    variables = {
        "CALLSTREAM_LOG_FORMAT": "json",
        "CALLSTREAM_FORGET_AFTER": "20h",
        "CALLSTREAM_CORS_ORIGINS": "https://shop.example.com",
        "CALLSTREAM_LEASE_TTL": "3000",
    }
    given = {"env": {} if how == "options" else variables, "cwd": tmp_path}
    arguments = ("--verbose", "--port", "0", *(options if how == "options" else ()))
    with serving("serve", "plain:agent", *arguments, **given) as server:  # type: ignore[arg-type]
        assert httpx.options(f"{server.url}/agui", headers=PREFLIGHT).headers["access-control-allow-origin"] == (
            "https://shop.example.com"
        )
        assert asked(server, "fail")[-1]["type"] == "RUN_ERROR"
        runs = f"{server.url}/api/runs?thread_id=kept"
        eventually(lambda: [row["run_id"] for row in httpx.get(runs).json()["runs"]] == ["new"])
        with sqlite3.connect(tmp_path / "callstream.db") as database:
            (expires,) = database.execute("SELECT max(expires_at) FROM lease WHERE name LIKE 'writer:%'").fetchone()
        database.close()
        assert (expires > time.time() + 1000) == (how == "variables")
        assert server.end() == 0
    lines = [json.loads(line) for line in server.lines if not line.startswith(server.url)]
    messages = {line["message"]: line for line in lines}
    assert messages["two\nlines"]["logger"] == "shop"
    assert "RuntimeError: broken" in messages["run r1 of thread t1 failed"]["exception"]
    assert messages["run r1 of thread t1 failed"]["run_id"] == "r1"
    assert any(line["logger"] == "uvicorn.access" and "POST /agui" in line["message"] for line in lines)
    assert any(line["logger"] == "py.warnings" and "old thing" in line["message"] for line in lines)
    assert any(line["message"] == f"journal: {'sqlite:///callstream.db'}" for line in lines)


async def two_runs(url: str) -> None:
    async with Callstream(url) as cs:
        for run_id in ("old", "new"):
            async with cs.run("kept", run_id):
                pass


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("forget-after", "1m", "expected an age in hours, days or weeks, such as 12h, 30d or 8w, got '1m'"),
        ("forget-after", "0d", "expected an age in hours, days or weeks, such as 12h, 30d or 8w, got '0d'"),
        ("cors-origin", "shop.example.com", "expected an origin such as https://app.example.com, got"),
        ("cors-origin", "https://shop.example.com/page", "expected an origin such as https://app.example.com, got"),
        ("log-format", "xml", "expected text or json, got 'xml'"),
    ],
)
def test_a_wrong_value_is_one_sentence(tmp_path: Path, run: Run, option: str, value: str, sentence: str) -> None:
    done = run("serve", "plain:agent", f"--{option}", value)
    assert done.code == 2
    assert f"argument --{option}: {sentence}" in done.err


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_journal_that_is_away_at_the_start_is_one_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://me@127.0.0.1:{taken.getsockname()[1]}/calls"
        env = {"CALLSTREAM_RETRY_SECONDS": "0.1", "CALLSTREAM_JOURNAL": url, "CALLSTREAM_JOURNAL_FILE": ""}
        done = ran("serve", "plain:agent", "--port", "0", "--log-format", "json", env=env, cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    last = [json.loads(line) for line in done.err.splitlines()][-1]
    assert last["level"] == "error"
    assert "is unavailable: ConnectionRefusedError" in last["message"]


@pytest.mark.parametrize("name", ["CALLSTREAM_RETRY_SECONDS", "CALLSTREAM_LEASE_TTL"])
def test_seconds_that_are_none(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "soon")
    done = run("serve", "plain.py:agent")
    assert done.code == 2
    assert f"invalid value for {name}: expected more than 0 seconds, got 'soon'" in done.err


def test_a_wrong_variable_is_one_sentence(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALLSTREAM_FORGET_AFTER", "soon")
    done = run("serve", "plain.py:agent")
    assert done.code == 2
    assert "invalid value for CALLSTREAM_FORGET_AFTER: expected an age in hours, days or weeks" in done.err


def test_streamed_arguments_of_what_has_clients_of_its_own(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    done = run("serve", "plain.py:agent", "--no-stream-arguments")
    assert done.code == 2
    assert "plain.py:agent has clients of its own; --stream-arguments cannot be combined with it" in done.err
    monkeypatch.setenv("CALLSTREAM_STREAM_ARGUMENTS", "maybe")
    done = run("serve", "plain.py:agent")
    assert done.code == 2
    assert "invalid value for CALLSTREAM_STREAM_ARGUMENTS: expected true or false, got 'maybe'" in done.err
