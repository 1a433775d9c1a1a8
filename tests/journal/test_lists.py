"""Lists, figures, erasing, housekeeping and settings.

The same tests run on memory, SQLite and PostgreSQL, and on each of them beside a log.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallReturned,
    CallStarted,
    RunEvent,
    RunStarted,
)
from callstream.journal import Housekeeping, Journal, open_journal

from .conftest import Place
from .runs import (
    DONE,
    START,
    records,
    whole_run,
)

pytestmark = pytest.mark.asyncio


async def test_lists_of_less_than_nothing_are_refused(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("a", "write")])
    with pytest.raises(UsageError, match="limit"):
        await journal.calls(limit=-1)
    with pytest.raises(UsageError, match="limit"):
        await journal.runs(limit=-1)
    assert (await journal.calls(limit=0), await journal.runs(limit=0)) == ([], [])


async def test_lists_by_every_filter(journal: Journal) -> None:
    await journal.append(
        "r1", [RunStarted("t1", "alice"), CallStarted("a", "t", "pa"), CallCompleted("a"), CallAwaiting("a"), DONE]
    )
    await journal.append(
        "r2", [RunStarted("t1", "bob"), CallStarted("b", "t", "pb"), CallCompleted("b"), CallReturned("b"), DONE]
    )
    await journal.append("r3", [RunStarted("t2", "alice"), CallStarted("c", "t", "pa")])

    async def runs(**filters: Any) -> list[str]:
        return [run.run_id for run in await journal.runs(**filters)]

    async def calls(**filters: Any) -> list[str]:
        return [call.call_id for call in await journal.calls(**filters)]

    assert await runs() == ["r3", "r2", "r1"]
    assert await runs(limit=2) == ["r3", "r2"]
    assert await runs(run_id="r2") == ["r2"]
    assert await runs(thread_id="t1") == ["r2", "r1"]
    assert await runs(principal="alice") == ["r3", "r1"]
    assert await runs(active=True) == ["r3"]
    assert await runs(active=False) == ["r2", "r1"]
    assert await runs(thread_id="t1", principal="alice", active=False) == ["r1"]
    assert await runs(thread_id="nobody") == []
    assert await calls() == ["a", "b", "c"]
    assert await calls(limit=1) == ["a"]
    assert await calls(limit=2, newest=True) == ["b", "c"]
    assert await calls(newest=True) == await calls(limit=2**70, newest=True) == await calls(limit=2**70)
    assert await calls(limit=0, newest=True) == []
    assert await calls(principal="alice", limit=1, newest=True) == ["c"]
    assert await runs(limit=2**70) == await runs()
    assert await calls(run_id="r2") == ["b"]
    assert await calls(thread_id="t1") == ["a", "b"]
    assert await calls(principal="alice") == ["a", "c"]
    assert await calls(states=[CallState.AWAITING, CallState.COMPLETED]) == ["a", "b"]
    assert await calls(states=[]) == []
    assert await calls(provider_id="pa") == ["a", "c"]
    assert await calls(provider_id="pa", thread_id="t2") == ["c"]
    (run,) = await journal.runs(run_id="r1")
    assert (run.thread_id, run.principal, run.outcome, run.reason, run.last_seq) == ("t1", "alice", "finished", None, 5)
    assert run.started_at <= (run.ended_at or 0)


@pytest.mark.parametrize("compacted", [False, True])
async def test_forget_erases_runs_with_calls_and_records(journal: Journal, compacted: bool) -> None:
    for number, (thread, principal) in enumerate([("t1", "alice"), ("t1", "bob"), ("t2", "alice")]):
        run: list[RunEvent] = [
            RunStarted(thread, principal),
            CallStarted(f"c{number}", "t"),
            ArgsAppended(f"c{number}", "x"),
        ]
        await journal.append(f"r{number}", [*run, CallDiscarded(f"c{number}", "aborted"), DONE])
        if compacted:
            await journal.compact(f"r{number}")
    await journal.append("live", [RunStarted("t1", "alice")])
    with pytest.raises(UsageError, match="forget needs"):
        await journal.forget()
    assert await journal.forget(before=1.0) == 0
    assert await journal.forget(thread="t1", principal="alice") == 1
    assert [run.run_id for run in await journal.runs()] == ["live", "r2", "r1"]
    with pytest.raises(UsageError, match="no run 'r0'"):
        await records(journal, "r0")
    assert await journal.call("c0") is None
    assert await journal.free_call_id("c0") == "c0"
    (ended,) = await journal.runs(run_id="r2")
    assert ended.ended_at is not None
    assert await journal.forget(before=ended.ended_at + 1) == 2
    assert [run.run_id for run in await journal.runs()] == ["live"]
    assert await journal.append("live", [DONE]) == 2
    stats = await journal.stats()
    assert (stats["runs"], stats["calls"], stats["records"]) == (1, 0, 2)


async def test_journal_knows_which_threads_it_has_forgotten(place: Place) -> None:
    async with place.journal() as journal, place.journal() as other:
        for number, (thread, principal) in enumerate([("t1", "alice"), ("t1", "bob"), ("t2", "alice"), ("t3", None)]):
            await journal.append(f"r{number}", [RunStarted(thread, principal), DONE])
        await journal.append("live", [RunStarted("t4", "alice")])
        assert not await journal.has_forgotten("t1", "alice")
        assert await journal.forget(thread="t1", principal="alice") == 1
        assert await journal.forget(thread="t2", for_good=False) == 1
        assert await journal.forget(thread="t3") == 1
        assert await journal.forget(thread="t4") == 0
        forgotten = [("t1", "alice"), ("t3", None)]
        for thread, principal in [
            *forgotten,
            ("t1", "bob"),
            ("t1", None),
            ("t2", "alice"),
            ("t4", "alice"),
            ("t\0", "x"),
        ]:
            expected = (thread, principal) in forgotten
            assert await journal.has_forgotten(thread, principal) is expected
            assert await other.has_forgotten(thread, principal) is expected
        await journal.append("again", [RunStarted("t1", "alice"), DONE])
        assert await journal.forget(thread="t1", principal="alice") == 1  # once more is no mistake
        assert await journal.has_forgotten("t1", "alice")


async def test_housekeeping_compacts_sweeps_and_erases_by_itself(place: Place, eventually: Callable[..., Any]) -> None:
    dead = place.journal()
    await dead.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "a"), ArgsAppended("c", "b")])
    await dead.aclose()
    duties = Housekeeping(compact_after=0.1, sweep_every=0.1, retain=None)
    keepers = [place.journal(housekeeping=duties, lease_ttl=0.5) for _ in range(2)]
    for keeper in keepers:
        await keeper.open()

    async def is_compacted() -> bool:
        return (await keepers[0].stats())["records"] == 5 and not await keepers[0].runs(active=True)

    await eventually(is_compacted)
    assert [record.first_seq for record in await records(keepers[1])] == [None, None, 3, None, None]
    for keeper in keepers:
        await keeper.aclose()
    eraser = place.journal(housekeeping=Housekeeping(compact_after=None, sweep_every=None, retain=0.1))

    async def is_gone() -> bool:
        return await eraser.runs() == []

    await eventually(is_gone)
    assert await eraser.has_forgotten(START.thread_id, START.principal)


@pytest.mark.parametrize("url", [None, 5, Path("calls.db")])
async def test_what_is_no_url_is_refused(url: Any) -> None:
    with pytest.raises(UsageError, match="expected a journal's URL"):
        open_journal(url)
    with pytest.raises(UsageError, match="expected a journal or its URL"):
        Callstream(journal=url)


async def test_settings_that_do_not_exist_are_refused(place: Place) -> None:
    with pytest.raises(UsageError, match="unknown setting for open_journal"):
        place.journal(colour="red")
    with pytest.raises(UsageError, match="lease_ttl"):
        place.journal(lease_ttl=0)


async def test_stats_count(journal: Journal) -> None:
    await journal.append("r", whole_run())
    await journal.append("s", [START])
    stats = await journal.stats()
    assert (stats["runs"], stats["active_runs"], stats["calls"], stats["records"]) == (2, 1, 2, 28)
    assert stats["schema_version"] == 3
    assert stats["stored_bytes"] > 500
    assert stats["pending_bytes"] == 0
    assert await journal.migrate() == 3


async def test_stats_tell_who_is_alive_and_what_the_dead_left(place: Place, eventually: Callable[..., Any]) -> None:
    dead = place.zombie()
    await dead.append("r", [START])
    journal = place.journal()
    assert (await journal.stats())["live_writers"] in (1, 2)

    async def is_dead() -> bool:
        return (await journal.stats())["orphaned_runs"] == 1

    await eventually(is_dead)
    assert (await journal.stats())["live_writers"] == 1
    await journal.append("s", [START])
    assert await journal.sweep() == ["r"]
    assert (await journal.stats())["orphaned_runs"] == 0
    for each in (journal, dead):
        await each.aclose()


async def test_closing_twice_is_allowed_and_before_opening_too(place: Place) -> None:
    journal = place.journal()
    await journal.aclose()
    await journal.aclose()
    with pytest.raises(UsageError, match="closed"):
        await journal.open()


async def test_a_journal_may_be_opened_by_awaiting_or_entering_it(place: Place) -> None:
    journal = await place.journal()
    assert await journal.append("run", [RunStarted("thread")]) == 1
    async with place.journal() as other:
        assert [run.run_id for run in await other.runs()] == ["run"]
