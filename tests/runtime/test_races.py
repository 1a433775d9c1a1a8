"""Two processes that mean the same call at once: one of them is heard, and the other goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callstream import CallState, Callstream
from callstream.errors import TransitionError
from callstream.events import CallCompleted, CallStarted, MessageReceived, ResultReceived
from callstream.runtime import Run
from tests.journal.conftest import sqlite_url


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[list[Run]]:
    """Runs of one thread in two processes, after one that asks for an answer to call c."""
    url = sqlite_url(tmp_path / "calls.db")
    async with Callstream(url) as first, Callstream(url) as second:
        async with first.run("thread", "asks") as run:
            await run.record([CallStarted("c", "ask", "wire-c"), CallCompleted("c", "{}")])
            await run.await_answer("c")
        runs = [await cs.start("thread", as_current=False) for cs in (first, second)]
        yield runs
        for run in runs:
            await run.finish()


async def test_answers_of_two_processes_for_one_call(processes: list[Run]) -> None:
    for run in processes:
        await run.resume("c")  # both have seen that it awaits an answer
    heard = await asyncio.gather(*(run.answer("c", number) for number, run in enumerate(processes)))
    assert sorted(heard) == [False, True]
    call = await processes[0].engine.journal.call("c")
    assert call is not None
    assert call.result == heard.index(True)
    assert [await run.answer("c", "late") for run in processes] == [False, False]


async def test_answers_of_two_processes_in_requests(processes: list[Run]) -> None:
    for run in processes:
        await run.resume("c")
    for number, run in enumerate(processes):
        result = ResultReceived("wire-c", "ask", number, latest=True)
        await run.receive([MessageReceived("user", "and then?"), result])
    call = await processes[0].engine.journal.call("c")
    assert call is not None
    assert (call.state, call.result) == (CallState.COMPLETED, 0)
    for run in processes:
        said = [record.event async for record in run.engine.journal.read(run.run_id)]
        assert MessageReceived("user", "and then?") in said


async def test_a_resumed_call_executes_in_one_process(processes: list[Run]) -> None:
    for run in processes:
        await run.resume("c")
    begun = await asyncio.gather(*(run.execute("c") for run in processes), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in begun) == ["Call", "TransitionError"]
    loser = next(number for number, outcome in enumerate(begun) if isinstance(outcome, TransitionError))
    with pytest.raises(TransitionError):  # it is being executed, which is no answer yet
        await processes[loser].record([CallCompleted("c", "{}")])
    await processes[1 - loser].complete("c", "done")
    assert await processes[loser].answer("c", "late") is False


async def test_a_call_that_another_process_answers_does_not_keep_the_run_from_ending(processes: list[Run]) -> None:
    executing, other = processes
    for run in processes:
        await run.resume("c")
    await executing.execute("c")
    assert await other.answer("c", "done by hand")
    await executing.finish()
    row = (await other.engine.journal.runs(run_id=executing.run_id))[0]
    call = await other.engine.journal.call("c")
    assert call is not None
    assert (row.outcome, call.state, call.result) == ("finished", CallState.COMPLETED, "done by hand")
