"""Names that work for one more version, now that the engine stands below and ``Callstream`` above."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import callstream.runtime
from callstream import Callstream
from callstream.events import Record
from callstream.runtime.driver import AppRuns


async def test_a_run_knows_its_callstream_and_says_that_the_engine_is_meant(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        with pytest.warns(DeprecationWarning, match=r"run\.engine"):
            assert run.callstream is cs
        assert run.engine is cs.engine


def test_callstream_is_found_where_it_was() -> None:
    with pytest.warns(DeprecationWarning, match="from callstream"):
        assert callstream.runtime.Callstream is Callstream
    with pytest.raises(AttributeError, match="Nothing"):
        callstream.runtime.Nothing  # noqa: B018


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_run_id_that_the_journal_has_gets_a_number(tmp_path: Path, ended: bool, elsewhere: bool) -> None:
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    async with Callstream(url) as cs, Callstream(url) as other:
        first = await (other if elsewhere else cs).start("one", "run", numbered=True, as_current=False)
        assert first.run_id == "run"
        if ended:
            await first.finish()
        runs = [await cs.start("two", "run", numbered=True, as_current=False) for _ in range(2)]
        assert [run.run_id for run in runs] == ["run~2", "run~3"]
        for run in (first, *runs):
            await run.finish()
            assert [type(record.event).__name__ async for record in cs.journal.read(run.run_id)] == [
                "RunStarted",
                "RunEnded",
            ]


async def test_runs_that_begin_at_once_with_one_id_get_an_id_each(cs: Callstream) -> None:
    start = partial(cs.start, numbered=True, as_current=False)
    runs = await asyncio.gather(*(start(f"thread-{number}", "run") for number in range(4)))
    assert len({run.run_id for run in runs}) == 4
    for run in runs:
        await run.finish()


async def test_the_app_of_a_run_that_began_here_is_not_read_and_of_a_later_one_of_its_id_it_is(cs: Callstream) -> None:
    apps, asked = AppRuns(), []
    read_whole = cs.journal.read_whole

    async def counted(run_ids: Sequence[str], *, merged: bool = False) -> list[Record]:
        asked.append(run_ids)
        return await read_whole(run_ids, merged=merged)

    cs.journal.read_whole = counted  # type: ignore[method-assign]
    began = time.time()
    async with cs.run("thread", "run", run_input={"app": "mine"}):
        apps.add("mine", "run", began, time.time())
    rows = await cs.journal.runs(thread_id="thread")
    assert (await apps.of("mine", rows, cs.journal), await apps.of("other", rows, cs.journal)) == (rows, [])
    assert asked == []
    await cs.journal.forget(thread="thread")
    apps.add("mine", "run", began - 20, began - 10)
    async with cs.run("thread", "run", run_input={"app": "other"}):
        pass
    rows = await cs.journal.runs(thread_id="thread")
    assert (await apps.of("mine", rows, cs.journal), await apps.of("other", rows, cs.journal)) == ([], rows)
    assert asked == [["run"]]
