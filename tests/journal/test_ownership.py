"""Who may write to a run: leases, dead processes, exclusive runs, and word from others.

The same tests run on memory, SQLite and PostgreSQL, and on each of them beside a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from callstream.calls import CallState
from callstream.errors import LeaseLost, ThreadBusy, UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReturned,
    CallStarted,
    InputKept,
    OutputKept,
    RequestKept,
    ResponseKept,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    SessionKept,
    TextAppended,
)
from callstream.journal import Housekeeping, Journal, housekeeping
from callstream.journal import writer as writing

from .conftest import Place
from .runs import (
    DONE,
    START,
    TO_STATE,
    fields_of,
    followed,
    records,
)

pytestmark = pytest.mark.asyncio


async def test_zombie_fenced(place: Place, eventually: Callable[..., Any]) -> None:
    zombie = place.zombie()
    await zombie.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{")])
    live = place.journal()
    task = asyncio.create_task(followed(live))

    async def swept() -> bool:
        return await live.sweep() == ["r"]

    await eventually(swept)
    for _ in range(2):
        with pytest.raises(LeaseLost, match="'r'"):
            await zombie.append("r", [ArgsAppended("c", "}")])
    with pytest.raises(LeaseLost):
        await zombie.append("r", [ArgsAppended("c", "}")], after=3)
    with pytest.raises(LeaseLost):  # more than the sweep has written
        await zombie.append("r", [ArgsAppended("c", "}"), CallCompleted("c"), CallExecuting("c")], after=3)
    assert await zombie.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{")], after=0) == 3
    assert [record.event for record in await task][-2:] == [
        CallDiscarded("c", "interrupted"),
        RunEnded("failed", "interrupted"),
    ]
    with pytest.raises(UsageError, match="has ended"):
        await live.append("r", [DONE])
    await live.compact("r")
    for after in (None, 3):
        with pytest.raises(LeaseLost, match="'r'"):
            await zombie.append("r", [ArgsAppended("c", "}")], after=after)
    assert await zombie.append("another", [START]) == 1


async def test_zombie_fenced_but_the_living_are_not(place: Place, eventually: Callable[..., Any]) -> None:
    """A lease is renewed in time, again and again. In memory there is nothing to renew."""
    writer, other = place.journal(lease_ttl=0.9), place.journal()
    store: Any = writer._store  # type: ignore[attr-defined]
    renew, renewed = store.renew, 0

    async def counting() -> None:
        nonlocal renewed
        await renew()
        renewed += 1

    store.renew = counting
    await writer.append("r", [START])

    async def is_older_than_a_lease() -> bool:
        assert await other.sweep() == []
        return renewed > 4 or place.backend == "memory"

    await eventually(is_older_than_a_lease)
    assert await writer.append("r", [DONE]) == 2


async def test_lease_keeps_others_from_writing(place: Place) -> None:
    writer, other = place.journal(), place.journal()
    await writer.append("r", [START])
    with pytest.raises(LeaseLost, match=r"another process|belongs to"):
        await other.append("r", [DONE])
    assert await writer.append("r", [DONE]) == 2


async def test_lease_is_given_back_at_closing(place: Place) -> None:
    writer, other = place.journal(), place.journal()
    await writer.append("r", [START])
    assert await other.sweep() == []
    await writer.aclose()
    assert await other.sweep() == ["r"]
    (run,) = await other.runs()
    assert (run.outcome, run.reason, run.last_seq) == ("failed", "interrupted", 2)


async def test_swept_by_state(place: Place) -> None:
    dead, live = place.journal(), place.journal()
    for state, way in TO_STATE.items():
        named = [type(e)(**{**fields_of(e), "call_id": state.value}) for e in way]
        await dead.append("r", [CallStarted(state.value, "t"), *named])
    await dead.aclose()
    assert await live.sweep() == ["r"]
    calls = {call.call_id: call for call in await live.calls(run_id="r")}
    for before in (CallState.STARTED, CallState.ARGS_STREAMING, CallState.ARGS_COMPLETE):
        assert (calls[before].state, calls[before].reason) == (CallState.DISCARDED, "interrupted")
    assert (calls["executing"].state, calls["executing"].error) == (CallState.FAILED, "interrupted")
    for kept in (CallState.AWAITING, CallState.COMPLETED, CallState.FAILED, CallState.RELEASED, CallState.DISCARDED):
        assert calls[kept].state is kept
    last = (await records(live))[-1]
    assert last.event == RunEnded("failed", "interrupted")
    assert await live.sweep() == []
    assert await live.append("s", [START, CallReturned("awaiting", "late answer")]) == 2


async def test_swept_by_state_too_where_the_call_is_of_an_earlier_run(place: Place) -> None:
    """A run that goes on with calls that awaited an answer leaves them as it leaves its own."""
    dead, live = place.journal(), place.journal()
    names = ("executing", "again_awaiting", "executed_by_another", "answered", "progressing")
    asked: list[RunEvent] = [START]
    for name in names:
        asked += [CallStarted(name, "t"), CallCompleted(name, "{}"), CallAwaiting(name)]
    await live.append("asks", [*asked, DONE])
    taken_up: list[RunEvent] = [CallExecuting(name) for name in names]
    await dead.append("r", [START, *taken_up, CallProgressed("progressing", 1), CallAwaiting("again_awaiting")])
    await dead.append("r", [CallAwaiting("executed_by_another"), CallReturned("answered", 1)])
    await live.append("other", [START, CallExecuting("executed_by_another")])
    await dead.aclose()
    assert await live.sweep() == ["r"]
    calls = {call.call_id: (call.state, call.error) for call in await live.calls(run_id="asks")}
    assert calls == {
        "executing": (CallState.FAILED, "interrupted"),
        "progressing": (CallState.FAILED, "interrupted"),
        "again_awaiting": (CallState.AWAITING, None),
        "executed_by_another": (CallState.EXECUTING, None),
        "answered": (CallState.COMPLETED, None),
    }
    ends = [record.event for record in (await records(live))[-3:]]
    failed = [CallFailed("executing", "interrupted"), CallFailed("progressing", "interrupted")]
    assert ends == [*failed, RunEnded("failed", "interrupted")]


async def test_swept_by_state_with_the_run_that_asked_at_once(place: Place) -> None:
    dead, live = place.journal(), place.journal()
    asked: list[RunEvent] = [START, CallStarted("c", "t"), CallCompleted("c", "{}"), CallAwaiting("c")]
    await dead.append("asks", asked)
    await dead.append("r", [START, CallExecuting("c")])
    await dead.aclose()
    assert sorted(await live.sweep()) == ["asks", "r"]
    assert await live.runs(active=True) == []
    found = await live.call("c")
    assert found is not None
    assert (found.state, found.error) == (CallState.FAILED, "interrupted")


async def test_swept_by_state_once_by_many_sweepers(place: Place) -> None:
    dead = place.journal()
    for number in range(30):
        await dead.append(f"r{number}", [START, CallStarted(f"c{number}", "t")])
    await dead.aclose()
    sweepers = [place.journal() for _ in range(4)]
    swept = [run_id for found in await asyncio.gather(*(s.sweep() for s in sweepers)) for run_id in found]
    assert sorted(swept) == sorted(f"r{number}" for number in range(30))
    for number in range(30):
        assert len(await records(sweepers[0], f"r{number}")) == 4


EXCLUSIVE = RunStarted("thread", exclusive=True)


async def test_exclusive_runs_of_a_thread_come_one_after_the_other(place: Place) -> None:
    here, there = place.journal(), place.journal()
    await here.append("r1", [EXCLUSIVE])
    for journal in (here, there):
        with pytest.raises(ThreadBusy) as refused:
            await journal.append("r2", [EXCLUSIVE])
        assert (refused.value.thread_id, refused.value.run_id) == ("thread", "r1")
    assert await there.runs(run_id="r2") == []
    await there.append("other", [RunStarted("another thread", exclusive=True)])
    await there.append("beside", [START])  # nobody asked this one to be alone
    await here.append("r1", [DONE])
    await there.append("r2", [EXCLUSIVE, DONE])
    await here.append("r3", [EXCLUSIVE])


async def test_exclusive_runs_asked_for_at_once_are_one(place: Place) -> None:
    journals = [place.journal() for _ in range(3)]
    asked = [journals[number % 3].append(f"r{number}", [EXCLUSIVE]) for number in range(12)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(map(str, map(type, outcomes))) == sorted([str(int)] + [str(ThreadBusy)] * 11)
    [active] = await journals[0].runs(thread_id="thread", active=True)
    assert {error.run_id for error in outcomes if isinstance(error, ThreadBusy)} == {active.run_id}


async def test_exclusive_start_that_is_repeated_is_the_same_run(journal: Journal) -> None:
    assert await journal.append("r1", [EXCLUSIVE], after=0) == 1
    assert await journal.append("r1", [EXCLUSIVE], after=0) == 1


async def test_exclusive_run_may_begin_in_the_batch_in_which_the_one_before_ends(journal: Journal) -> None:
    exclusive = RunStarted("thread", exclusive=True)
    await journal.append("r0", [exclusive])
    for number in range(20):
        ending, beginning = await asyncio.wait_for(
            asyncio.gather(
                journal.append(f"r{number}", [DONE]),
                journal.append(f"r{number + 1}", [exclusive]),
                return_exceptions=True,
            ),
            10,
        )
        assert ending == 2
        assert beginning == 1
    assert [run.run_id for run in await journal.runs(active=True)] == ["r20"]
    await journal.append("r20", [DONE])
    ways = [[exclusive, DONE], [exclusive, DONE], [exclusive]]
    assert await asyncio.gather(*(journal.append(f"s{n}", way) for n, way in enumerate(ways))) == [2, 2, 1]
    assert [run.run_id for run in await journal.runs(active=True)] == ["s2"]
    with pytest.raises(ThreadBusy):
        await journal.append("t", [exclusive])


async def test_exclusive_run_of_a_dead_process_gives_its_thread_back_when_swept(
    place: Place, eventually: Callable[..., Any]
) -> None:
    dead = place.zombie()
    await dead.append("r1", [EXCLUSIVE])
    alive = place.journal()

    async def is_swept() -> bool:
        return await alive.sweep() == ["r1"]

    await eventually(is_swept)
    await alive.append("r2", [EXCLUSIVE])


async def test_ask_to_stop_reaches_the_process_that_owns_the_run(place: Place) -> None:
    owner, stranger = place.journal(), place.journal()
    await owner.append("r1", [START])
    await owner.append("r2", [START])
    assert await owner.asked_to_stop() == {}
    assert await stranger.ask_to_stop("r1", "enough")
    assert await stranger.ask_to_stop("r1", "the second word does not count")
    assert await owner.asked_to_stop() == {"r1": "enough"}
    assert await stranger.asked_to_stop() == {}
    await owner.append("r1", [RunEnded("cancelled", "enough")])
    assert await owner.asked_to_stop() == {}
    assert not await stranger.ask_to_stop("r1", "too late")
    assert not await stranger.ask_to_stop("nobody's", "no such run")
    assert (await owner.runs(run_id="r1"))[0].outcome == "cancelled"


KEPT = InputKept("app", "input", attempts=3)


async def test_a_run_that_can_go_on_is_taken_over_by_one(place: Place, eventually: Callable[..., Any]) -> None:
    zombie = place.zombie()
    await zombie.append("r", [START, KEPT, CallStarted("c", "t"), ArgsAppended("c", "{")])
    takers = [place.journal(), place.journal()]
    taken: list[list[str]] = []

    async def adopted() -> bool:
        taken.extend(await asyncio.gather(*(taker.adopt({"app"}) for taker in takers)))
        return any(taken)

    await eventually(adopted)
    assert sorted(taken[-2:]) == [[], ["r"]]
    taker, other = takers if taken[-2] else takers[::-1]
    assert await taker.append("r", [RunResumed(2), CallDiscarded("c", "interrupted")], after=4) == 6
    for former in (zombie, other):
        with pytest.raises(LeaseLost, match="'r' was taken over"):
            await former.append("r", [TextAppended("m", "x")])
    assert await other.adopt({"app"}) == []
    await taker.append("r", [RunEnded("finished")])


async def test_a_run_waits_for_a_process_of_its_app(place: Place, eventually: Callable[..., Any]) -> None:
    first = place.journal()
    await first.append("r", [START, KEPT])
    await first.append("other", [RunStarted("t2")])
    await first.aclose()
    judge = place.journal()
    assert await judge.adopt({"another app"}) == []
    assert await judge.waiting() == ["r"]
    assert await judge.sweep() == ["other"]
    assert await judge.waiting() == ["r"]
    assert await place.journal().adopt({"app"}) == ["r"]
    assert await judge.waiting() == []


async def test_a_run_that_waits_is_ended_where_that_is_asked_for(place: Place) -> None:
    first = place.journal()
    await first.append("r", [START, KEPT])
    await first.aclose()
    judge, living = place.journal(), place.journal()
    await living.append("alive", [RunStarted("t2"), KEPT])
    assert await judge.sweep() == []
    assert await judge.waiting() == ["r"]
    assert await judge.sweep(also_waiting=True) == ["r"]
    assert (await records(judge))[-1].event == RunEnded("failed", "interrupted")
    assert await judge.waiting() == []


async def test_runs_of_other_apps_hide_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_ADOPT_LIMIT", 2)
    monkeypatch.setattr(housekeeping, "_SWEEP_LIMIT", 1)
    monkeypatch.setattr(writing, "_MORE", 2)
    first = place.journal()
    for number in range(5):
        await first.append(f"r{number}", [RunStarted(f"t{number}"), KEPT])
    await first.append("mine", [START, InputKept("mine", "input", attempts=3)])
    await first.append("over", [RunStarted("over")])
    await first.aclose()
    taker = place.journal()
    assert await taker.adopt({"mine"}) == ["mine"]
    assert await taker.sweep() == ["over"]
    assert await taker.adopt({"mine"}) == []


async def test_a_run_that_was_tried_often_enough_is_ended(place: Place) -> None:
    for attempt in (1, 2, 3):
        journal = place.journal()
        if attempt == 1:
            await journal.append("r", [START, KEPT])
        else:
            assert await journal.adopt({"app"}) == ["r"]
            await journal.append("r", [RunResumed(attempt)])
        assert (await journal.runs(run_id="r"))[0].attempt == attempt
        await journal.aclose()
    judge = place.journal()
    assert await judge.adopt({"app"}) == []
    assert await judge.sweep() == ["r"]
    assert (await records(judge))[-1].event == RunEnded("failed", "interrupted")
    assert (await judge.runs(run_id="r"))[0].attempt == 3


async def test_a_run_that_no_process_goes_on_with_is_ended(place: Place, eventually: Callable[..., Any]) -> None:
    journal = place.journal()
    await journal.append("r", [START, KEPT])
    await journal.aclose()
    hasty = place.journal(housekeeping=Housekeeping(go_on_within=0.0, sweep_every=3600.0, compact_after=None))
    assert await hasty.waiting() == []

    async def swept() -> bool:
        await hasty.sweep()
        return (await hasty.runs(run_id="r"))[0].outcome == "failed"

    await eventually(swept)


async def test_what_was_kept_goes_with_compaction(place: Place) -> None:
    journal = place.journal()
    kept = [KEPT, SessionKept("s"), RequestKept("q"), ResponseKept("q", 200, {}, "b"), OutputKept("n", 0, "o")]
    await journal.append("r", [START, *kept, TextAppended("m", "x"), RunEnded("finished")])
    assert [record.event for record in await records(journal)][1:6] == kept
    assert await journal.compact("r") == len(kept)
    assert [type(record.event) for record in await records(journal)] == [RunStarted, TextAppended, RunEnded]
