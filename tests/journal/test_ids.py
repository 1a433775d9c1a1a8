"""Ids that no database can hold, and numbers that are too large for one: the same on every journal."""

from __future__ import annotations

import pytest

from callstream.errors import UsageError
from callstream.events import CallStarted, RunEnded, RunStarted
from callstream.journal import Journal

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("wrong", ["a\0", "\0", "\ud800"])
async def test_an_id_that_cannot_be_stored_is_found_nowhere(journal: Journal, wrong: str) -> None:
    await journal.append("r", [RunStarted("t"), CallStarted("a", "tool"), RunEnded("finished")])
    assert await journal.call(wrong) is None
    for name in ("run_id", "thread_id", "principal"):
        assert await journal.runs(**{name: wrong}) == []  # type: ignore[arg-type]
        assert await journal.calls(**{name: wrong}) == []  # type: ignore[arg-type]
    assert await journal.calls(provider_id=wrong) == []
    assert await journal.forget(thread=wrong) == 0
    assert await journal.forget(principal=wrong) == 0
    assert await journal.ask_to_stop(wrong, "enough") is False
    for reading in (journal.read(wrong), journal.follow(wrong)):
        with pytest.raises(UsageError, match="the journal has no run"):
            await anext(aiter(reading))
    with pytest.raises(UsageError, match="the journal has no run"):
        await journal.compact(wrong)
    assert len(await journal.runs()) == 1


@pytest.mark.parametrize("wrong", ["a\0", "\ud800"])
async def test_an_id_that_cannot_be_stored_is_refused_for_a_new_call_or_run(journal: Journal, wrong: str) -> None:
    await journal.append("r", [RunStarted("t")])
    with pytest.raises(UsageError, match="an id must be text"):
        await journal.free_call_id(wrong)
    with pytest.raises(UsageError, match="an id must be text"):
        await journal.append("r", [CallStarted(wrong, "tool")])
    with pytest.raises(UsageError, match="an id must be text"):
        await journal.append(wrong, [RunStarted("t")])
    assert await journal.calls() == []


@pytest.mark.parametrize("after", [3, 2**31 - 1, 2**31, 2**63, 2**100])
async def test_a_place_behind_the_last_record_has_nothing_after_it(journal: Journal, after: int) -> None:
    await journal.append("r", [RunStarted("t"), CallStarted("a", "tool"), RunEnded("finished")])
    for _ in range(2):
        assert [record async for record in journal.read("r", after)] == []
        assert [record async for record in journal.follow("r", after)] == []
        await journal.compact("r")


async def test_a_time_that_is_no_number_erases_nothing(journal: Journal) -> None:
    await journal.append("r", [RunStarted("t"), RunEnded("finished")])
    with pytest.raises(UsageError, match="got nan"):
        await journal.forget(before=float("nan"))
    assert len(await journal.runs()) == 1
