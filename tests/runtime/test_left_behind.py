"""Calls that a dead process left in the middle of their arguments, when their thread continues in another."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from callstream import CallState, Callstream, JournalError, Run, open_journal, tool
from callstream.events import ArgsAppended, CallCompleted, CallStarted, RequestKept, RunStarted
from callstream.journal import Journal
from callstream.runtime.run import kept_for


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


HALF = '{"content": "The'
WHOLE = '{"content": "The sea."}'


async def cut(run: Run, *started: str) -> None:
    """A model writes these calls, whole ones and a last that is not, and its response has no end."""
    response = f"response-{started[-1]}"
    await run.record([RequestKept("asked", {})], response_id=response)
    for number, call_id in enumerate(started, 1):
        is_whole = number < len(started)
        args = ArgsAppended(call_id, WHOLE if is_whole else HALF)
        end = [CallCompleted(call_id)] if is_whole else []
        await run.record([CallStarted(call_id, "write"), args, *end], response_id=response)


def begun(desk: Desk) -> Any:
    return Run.start(desk.cs.engine, RunStarted("thread"), "run", kept=kept_for("run"), as_current=False)


def desk_at(url: str) -> Desk:
    return Desk(open_journal(url, housekeeping=None))


async def test_its_abort_hook_runs_once_where_its_run_goes_on(url: str) -> None:
    first, second, third, last = (desk_at(url) for _ in range(4))
    run = await begun(first)
    await cut(run, "whole", "half")
    await first.cs.journal.aclose()  # killed
    run = await second.cs.run("thread", "run", continues=True).__aenter__()
    assert second.undone == [("thread", WHOLE, "interrupted"), ("thread", HALF, "interrupted")]
    await cut(run, "again")
    await second.cs.journal.aclose()
    run = await third.cs.run("thread", "run", continues=True).__aenter__()
    assert third.undone == [("thread", HALF, "interrupted")]
    await cut(run, "once more")
    await run.keeping.give_up("for a reason")
    await third.cs.journal.aclose()
    async with last.cs, last.cs.run("thread"):  # the run has failed: the thread goes on
        assert last.undone == [("thread", HALF, "interrupted")]
    assert (len(first.undone), len(second.undone), len(third.undone)) == (0, 2, 1)


async def test_its_abort_hook_runs_where_its_run_is_handed_over(url: str) -> None:
    first, second = desk_at(url), desk_at(url)
    async with first.cs:
        run = await begun(first)
        await cut(run, "whole", "half")
        assert await run.hand_over()
        assert first.undone == [("thread", HALF, "interrupted")]
        assert run.call("whole").state is CallState.ARGS_COMPLETE
    async with second.cs, second.cs.run("thread", "run", continues=True):
        assert second.undone == [("thread", WHOLE, "interrupted")]
    assert len(first.undone) == 1


async def test_a_call_is_told_once_in_a_process(url: str) -> None:
    await die(url, "thread")
    desk = Desk(url)
    async with desk.cs:
        (left,) = await desk.cs.orphaned_calls.find("thread")
        for _ in range(2):
            assert await desk.cs.orphaned_calls.tell([left]) == []
    assert len(desk.undone) == 1


def test_in_a_sync_program(url: str) -> None:
    asyncio.run(die(url, "thread"))
    desk = Desk(url)
    with desk.cs, desk.cs.run("thread"):
        assert desk.undone == [("thread", '{"content": "The', "interrupted")]
