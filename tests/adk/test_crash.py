"""A process dies in the middle of arguments; another one goes on."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from callstream import Callstream, open_journal
from callstream.calls import CallState
from callstream.events import ArgsAppended, CallStarted
from callstream.testing import Delay, Finish, Text, ToolCall

from . import crashing
from .hosting import PATHS, scripted, text_of

STALLED = [
    Text("I write."),
    ToolCall("write", {"content": "The moon pulls the sea."}, stop_after=4),
    Delay(30),
    Finish(),
]
AGAIN = [ToolCall("write", {"content": "The sea."}), Finish()]
END = [Text("Done."), Finish()]


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("path", PATHS)
async def test_crash_in_the_middle_of_arguments(path: str, tmp_path: Path) -> None:
    crashing.undone.clear()
    async with scripted("gemini", [STALLED, AGAIN, END, END]) as provider:
        arguments = ["-m", "tests.adk.crashing", provider.base_url, str(tmp_path), path]
        process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", *arguments)
        assert await asyncio.wait_for(process.wait(), 240) == -signal.SIGKILL
        await asyncio.sleep(crashing.LEASE + 0.2)  # the dead process owns its run that long
        async with (
            Callstream(f"sqlite:///{tmp_path}/calls.db") as cs,
            crashing.host_of(cs, provider.base_url, str(tmp_path), path) as host,
        ):
            assert "Done." in text_of(await host.run("two"))
            ((args_json, reason),) = crashing.undone
            assert (args_json or "").startswith('{"content":"The moon')  # what came before the crash was kept
            assert reason == "interrupted"
            await host.run("three")
            given_up, written = await host.calls()
            runs = await cs.journal.runs()
    assert (given_up.state, given_up.reason) == (CallState.DISCARDED, "interrupted")
    assert (written.state, written.args) == (CallState.COMPLETED, {"content": "The sea."})
    assert [run.outcome for run in runs] == ["finished", "finished", "failed"]
    assert len(crashing.undone) == 1  # once


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("path", PATHS)
async def test_crash_while_the_lease_still_runs(path: str, tmp_path: Path) -> None:
    """Nobody waits for the lease: the turn begins at once, and the hook hears of the call when the lease has run out."""
    crashing.undone.clear()
    async with scripted("gemini", [STALLED, AGAIN, END, END, END]) as provider:
        arguments = ["-m", "tests.adk.crashing", provider.base_url, str(tmp_path), path, "600"]
        process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", *arguments)
        assert await asyncio.wait_for(process.wait(), 240) == -signal.SIGKILL
        (dead,) = writers(tmp_path / "calls.db")
        async with (
            Callstream(open_journal(f"sqlite:///{tmp_path}/calls.db", housekeeping=None)) as cs,
            crashing.host_of(cs, provider.base_url, str(tmp_path), path) as host,
        ):
            assert "Done." in text_of(await host.run("two"))
            assert [run.outcome for run in await cs.journal.runs()] == ["finished", None]
            assert crashing.undone == []
            await host.run("three")  # watches nothing twice
            assert crashing.undone == []
            run_out(tmp_path / "calls.db", dead)
            async with asyncio.timeout(30):
                while not crashing.undone:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await host.run("four")
            given_up, written = await host.calls()
            await host.plugin.close()
    ((args_json, reason),) = crashing.undone
    assert (args_json or "").startswith('{"content":"The moon')
    assert reason == "interrupted"
    assert (given_up.state, given_up.reason) == (CallState.DISCARDED, "interrupted")
    assert written.state is CallState.COMPLETED


def writers(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as file:
        return [name for (name,) in file.execute("SELECT name FROM lease WHERE name LIKE 'writer:%'")]


def run_out(path: Path, name: str) -> None:
    """Nobody waits for ten minutes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE lease SET expires_at = 0 WHERE name = ?", [name])


async def test_run_of_a_living_process_is_not_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its lease is renewed, so its call goes on, and nobody's hook is told anything."""
    url, undone = f"sqlite:///{tmp_path}/calls.db", []
    async with Callstream(url) as living, Callstream(url) as cs:
        cs.on_args_abort("write", lambda call, reason: undone.append(reason))
        run = await living.start("session", as_current=False)
        await run.response("gemini").record([CallStarted("c", "write"), ArgsAppended("c", '{"content":')])
        orphaned_calls = cs.orphaned_calls
        with caplog.at_level("INFO", "callstream"):
            assert await orphaned_calls.find("session") == []
            assert await orphaned_calls.find("session") == []
        assert (
            len([record for record in caplog.records if "is still open in another process" in record.getMessage()]) == 1
        )
        assert await cs.journal.sweep() == []
        await run.finish()
        while any(task.get_name() == f"callstream watches {run.run_id}" for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await orphaned_calls.aclose()
    assert undone == []
