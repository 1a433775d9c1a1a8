"""Calls that a dead process left in the middle of their arguments, when their thread continues in another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream, open_journal, tool
from callstream.events import ArgsAppended, CallStarted


class Desk:
    """A process that has the tool, and what its abort hook was told."""

    def __init__(self, url: str) -> None:
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


def test_in_a_sync_program(url: str) -> None:
    asyncio.run(die(url, "thread"))
    desk = Desk(url)
    with desk.cs, desk.cs.run("thread"):
        assert desk.undone == [("thread", '{"content": "The', "interrupted")]
