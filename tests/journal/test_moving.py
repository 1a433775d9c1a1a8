"""A journal copied into another store: the same by digest, however often it was interrupted.

Every store, and every store beside a log, is copied from and copied into.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from callstream.errors import JournalError, UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallReturned,
    CallStarted,
    InputKept,
    RunEnded,
    RunResumed,
    RunStarted,
    TextAppended,
)
from callstream.journal import Journal, housekeeping, open_journal

from .conftest import Place, sqlite_url
from .runs import DONE, START, fold, records, whole_run

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def other(tmp_path: Path) -> AsyncIterator[Journal]:
    """A journal of another kind."""
    async with open_journal(sqlite_url(tmp_path / "other.db"), housekeeping=None) as journal:
        yield journal


async def fill(place: Place) -> Journal:
    """A journal with one of everything, whose processes are gone; and one that has it open."""
    gone = place.journal()
    await gone.append("whole", whole_run())
    await gone.append("folded", [RunStarted("t2", "bob"), CallStarted("f", "t"), ArgsAppended("f", "[")])
    await gone.append("folded", [ArgsAppended("f", "1,")])
    await gone.append("folded", [ArgsAppended("f", "2]"), CallCompleted("f"), CallAwaiting("f"), DONE])
    await gone.compact("folded")
    await gone.append("erased", [RunStarted("t3", "carol"), DONE])
    await gone.forget(thread="t3")
    await gone.append("odd", [RunStarted("t\N{SNOWMAN}"), TextAppended("m", "\0\ud83d"), RunEnded("failed", "a\0b")])
    await gone.append("kept", [RunStarted("t4", exclusive=True), InputKept("app", "input"), TextAppended("m", "a")])
    await gone.append("kept", [TextAppended("m", "b")])
    await gone.append("dead", [START, CallStarted("d", "t"), ArgsAppended("d", "{")])
    await gone.aclose()
    return place.journal()


async def everything(journal: Journal) -> list[Any]:
    runs = await journal.runs()
    folds = [await fold(journal, run.run_id) for run in runs]
    marks = [await journal.has_forgotten(thread, who) for thread, who in (("t3", "carol"), ("t3", None))]
    return [runs, folds, marks, await journal.calls(), await journal.read_whole([run.run_id for run in runs])]


async def test_a_copy_is_the_same_in_every_store_and_back(place: Place, other: Journal, tmp_path: Path) -> None:
    source = await fill(place)
    expected = await everything(source)
    seen: list[tuple[int, int]] = []
    moved = await source.copy_to(other, lambda done, total: seen.append((done, total)))
    assert (moved.runs, moved.copied, moved.active) == (5, 5, 0)
    assert seen[-1] == (5, 5)
    assert await everything(other) == expected
    again = await source.copy_to(other)
    assert again == moved._replace(copied=0)
    async with open_journal(sqlite_url(tmp_path / "third.db"), housekeeping=None) as third:
        assert await other.copy_to(third) == moved
        assert await everything(third) == expected


async def test_a_copy_in_every_store_is_a_journal_like_any_other(place: Place, tmp_path: Path) -> None:
    source = await fill(Place("sqlite", sqlite_url(tmp_path / "source.db")))
    target = place.journal()
    moved = await source.copy_to(target)
    assert await everything(target) == await everything(source)
    assert (await target.copy_to(source)).digest == moved.digest  # there is nothing to copy back
    await source.aclose()
    assert await target.adopt({"app"}) == ["kept"]
    assert await target.append("kept", [RunResumed(2), TextAppended("m", "c")], after=4) == 6
    assert await target.append("kept", [TextAppended("m", "d")]) == 7
    await target.append("kept", [DONE])
    assert await target.sweep() == ["dead"]
    await target.append("new", [RunStarted("t2", "bob"), CallReturned("f", 3), DONE])
    assert [run.run_id for run in await target.runs()] == ["new", "dead", "kept", "odd", "folded", "whole"]
    call = await target.call("f")
    assert call is not None
    assert (call.args_json, call.result) == ("[1,2]", 3)
    assert await target.compact("kept") == 4
    assert len(await records(target, "kept")) == 4


async def test_a_journal_is_not_copied_into_itself(place: Place) -> None:
    source = await fill(place)
    before = await everything(source)
    for same in (source, place.journal()):
        with pytest.raises(UsageError, match="expected two journals, but"):
            await source.copy_to(same)
    assert await everything(source) == before


async def test_a_copy_that_was_interrupted_goes_on(
    place: Place, other: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_RECORDS", 1)
    source = await fill(place)

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await source.copy_to(other, interrupt)
    assert len(await other.runs()) == 3
    assert (await source.copy_to(other)).copied == 2
    assert await everything(other) == await everything(source)


async def test_a_second_copy_brings_what_has_changed_since(place: Place, other: Journal) -> None:
    source = await fill(place)
    await source.copy_to(other)
    await source.append("answer", [RunStarted("t2", "bob"), CallReturned("f", "yes"), DONE])
    await source.compact("whole")
    await source.forget(thread="t\N{SNOWMAN}")
    assert (await source.copy_to(other)).copied == 3
    assert [run.run_id for run in await other.runs()] == ["answer", "dead", "kept", "folded", "whole"]
    assert await everything(other) == await everything(source)
    assert await other.has_forgotten("t\N{SNOWMAN}", None)


async def test_a_journal_that_has_something_else_is_not_copied_into(place: Place, other: Journal) -> None:
    source = await fill(place)
    await other.append("mine", [START, DONE])
    before = await other.stats()
    with pytest.raises(UsageError, match=r"has run 'mine', which .* does not have: expected an empty journal"):
        await source.copy_to(other)
    assert await other.stats() == before


async def test_runs_that_go_on_are_left_out_until_they_have_ended(place: Place, other: Journal) -> None:
    source = await fill(place)
    await source.append("live", [START, TextAppended("m", "a")])
    moved = await source.copy_to(other)
    assert (moved.runs, moved.active) == (3, 3)  # with the two of dead processes, which may be taken over now
    await source.append("live", [TextAppended("m", "b")])
    await source.append("live", [DONE])
    moved = await source.copy_to(other)
    assert (moved.runs, moved.copied, moved.active) == (6, 3, 0)
    assert await everything(other) == await everything(source)


async def test_a_journal_that_is_written_to_all_the_time_is_not_said_to_be_copied(other: Journal) -> None:
    source = open_journal("memory:")
    await source.append("r", [START, DONE])
    begun: list[str] = []

    def write(done: int, total: int) -> None:
        begun.append(f"r{len(begun)}")
        source.submit(begun[-1], [START, DONE], lambda outcome: None)

    with pytest.raises(JournalError, match="was written to while it was copied, 3 times: stop the processes"):
        await source.copy_to(other, write)
    moved = await source.copy_to(other)
    assert moved.runs == 1 + len(begun)


async def test_what_changes_during_a_copy_is_noticed_even_if_there_is_as_much_of_everything(
    place: Place, other: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = place.journal()
    for run_id in ("old", "kept"):
        await source.append(run_id, [RunStarted(run_id), DONE])
    store: Any = other._store  # type: ignore[attr-defined]
    restore = store.restore

    async def meanwhile(runs: Any, gone: Any) -> None:
        await restore(runs, gone)
        if await source.runs(run_id="old"):
            await source.forget(thread="old")
            await source.append("new", [RunStarted("new"), DONE])

    monkeypatch.setattr(store, "restore", meanwhile)
    assert (await source.copy_to(other)).runs == 2
    assert [run.run_id for run in await other.runs()] == ["new", "kept"]
    assert await other.has_forgotten("old", None)


async def test_a_copy_that_is_not_the_same_is_said_to_be_so(
    place: Place, other: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = await fill(place)
    store: Any = other._store  # type: ignore[attr-defined]
    restore = store.restore

    async def careless(runs: Any, gone: Any) -> None:
        await restore(runs[1:], gone)

    monkeypatch.setattr(store, "restore", careless)
    with pytest.raises(JournalError, match=r"run 'whole' is not the same in .* after it was copied"):
        await source.copy_to(other)
