"""Calls that a dead process left in the middle of their arguments, when their thread continues in another."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream, JournalError, open_journal, tool
from callstream.events import ArgsAppended, CallStarted
from callstream.journal import Journal


class Desk:
    """A process that has the tool, and what its abort hook was told."""

    def __init__(self, url: str | Journal) -> None:
        self.undone: list[Any] = []

        @tool
        async def write(content: str) -> None: ...

        @write.on_args_abort
        async def undo(call: Any, reason: str) -> None:
            self.undone.append((call.thread_id, call.args_json, reason))

        self.cs = Callstream(url, tools=[write])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/calls.db"


async def die(url: str, *threads: str) -> None:
    """A process begins runs with calls, and ends neither."""
    journal = open_journal(url, housekeeping=None)
    cs = Callstream(journal)
    for thread in threads:
        run = await cs.start(thread, as_current=False)
        await run.response("anthropic").record([CallStarted("c", "write"), ArgsAppended("c", '{"content": "The')])
    await journal.aclose()


async def test_its_abort_hook_runs_once_and_before_the_turn(url: str) -> None:
    await die(url, "thread", "other")
    desk = Desk(url)
    async with desk.cs:
        async with desk.cs.run("thread"):
            assert desk.undone == [("thread", '{"content": "The', "interrupted")]
        async with desk.cs.run("thread"), desk.cs.run("thread"):
            pass
        assert len(desk.undone) == 1
        async with desk.cs.run("other"):
            assert [thread for thread, *_ in desk.undone] == ["thread", "other"]


async def test_its_abort_hook_runs_though_the_journal_was_away_meanwhile(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("callstream.runtime.answers._SWEEP_EVERY", 0.01)
    desk = Desk(open_journal(url, housekeeping=None))
    file, elsewhere = tmp_path / "calls.db", tmp_path / "elsewhere.db"
    owner = open_journal(url, housekeeping=None)
    living = Callstream(owner)
    run = await living.start("thread", as_current=False)
    await run.response("anthropic").record([CallStarted("c", "write"), ArgsAppended("c", '{"content": "The')])
    async with desk.cs, desk.cs.run("thread"):
        file.rename(elsewhere)
        for _ in range(20):
            with pytest.raises(JournalError):
                await desk.cs.journal.sweep()
            await asyncio.sleep(0.01)
        elsewhere.rename(file)
        await owner.aclose()
        async with asyncio.timeout(20):
            while not desk.undone:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert desk.undone == [("thread", '{"content": "The', "interrupted")]
    gc.collect()
    assert "callstream watches" not in caplog.text


def test_in_a_sync_program(url: str) -> None:
    asyncio.run(die(url, "thread"))
    desk = Desk(url)
    with desk.cs, desk.cs.run("thread"):
        assert desk.undone == [("thread", '{"content": "The', "interrupted")]
