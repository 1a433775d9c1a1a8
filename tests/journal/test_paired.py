"""An index beside a log: what lies where, and what happens when one of the two fails between the other's steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from callstream.calls import CallState
from callstream.errors import JournalError, LeaseLost, UsageError
from callstream.events import ArgsAppended, CallCompleted, CallStarted, RunEvent, TextAppended
from callstream.journal import Journal
from callstream.journal.plan import Append
from callstream.journal.rows import prepare
from callstream.journal.store import StoreUnavailable

from .conftest import PAIRED, WITH_LOG, Place
from .logs import Engine, EngineLog
from .runs import DONE, START, followed, records

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.parametrize(
        "place_url", [pytest.param(f"{name}{WITH_LOG}", marks=marks) for name, marks in PAIRED], indirect=True
    ),
]

BEGINNING: list[RunEvent] = [START, CallStarted("c", "t"), ArgsAppended("c", "["), TextAppended("m", "a")]


@pytest.fixture
def engine(place: Place) -> Engine:
    assert place.engine is not None
    return place.engine


def index_commits(journal: Journal) -> list[Sequence[Append]]:
    """The batches that the index gets from now on."""
    index: Any = journal._store._index  # type: ignore[attr-defined]
    commit, batches = index.commit, list[Sequence[Append]]()

    async def counted(batch: Sequence[Append]) -> Any:
        batches.append(batch)
        return await commit(batch)

    index.commit = counted
    return batches


async def test_a_batch_of_nothing_but_pieces_never_touches_the_index(journal: Journal, engine: Engine) -> None:
    await journal.append("r", BEGINNING)
    batches = index_commits(journal)
    for number in range(10):
        await journal.append("r", [ArgsAppended("c", f"{number},"), TextAppended("m", str(number))])
    assert batches == []
    assert engine.appends == 10
    assert [seq for (lines,) in [engine.records.values()] for _, seq, *_ in lines] == list(range(5, 25))
    await journal.append("r", [CallCompleted("c"), TextAppended("m", "z"), DONE])
    assert [len(batch) for batch in batches] == [1]
    assert [record.seq for record in await records(journal)] == list(range(1, 28))
    call = await journal.call("c")
    assert call is not None
    assert call.args_json == "[" + "".join(f"{number}," for number in range(10))


async def test_pieces_leave_the_log_when_their_run_is_compacted_or_forgotten(journal: Journal, engine: Engine) -> None:
    for run_id in ("r", "s"):
        await journal.append(run_id, [START, TextAppended("m", "a")])
        await journal.append(run_id, [TextAppended("m", "b")])
        await journal.append(run_id, [DONE])
    assert len(engine.records) == 2
    assert await journal.compact("r") == 1
    assert len(engine.records) == 1
    assert [getattr(record.event, "text", None) for record in await records(journal)] == [None, "ab", None]
    assert await journal.forget(thread="thread") == 2
    assert engine.records == {}


async def test_stats_count_what_only_the_log_has(journal: Journal) -> None:
    await journal.append("r", BEGINNING)
    for number in range(3):
        await journal.append("r", [TextAppended("m", str(number))])
    assert (await journal.stats())["records"] == 7
    await journal.append("r", [DONE])
    assert (await journal.stats())["records"] == 8


async def test_what_has_lain_in_the_log_for_long_is_copied_into_the_index(
    place: Place, engine: Engine, journal: Journal
) -> None:
    """A run reads the same before, when its pieces lie in both parts, and when they have left the log."""
    await journal.append("r", BEGINNING)
    for number in range(3):
        await journal.append("r", [TextAppended("m", str(number)), ArgsAppended("c", f"{number},")])
    before, call = await records(journal), await journal.call("c")
    lines = [record for records in engine.records.values() for record in records]
    store: Any = journal._store  # type: ignore[attr-defined]
    await journal._worker.do(store.copy_pieces, lines)
    assert await records(journal) == before
    assert await journal.call("c") == call
    await journal._worker.do(store.trim)
    assert engine.records == {}
    assert await records(journal) == await journal.read_whole(["r"]) == before
    assert await journal.call("c") == call
    await journal.append("r", [TextAppended("m", "z"), CallCompleted("c"), DONE], after=10)
    await journal.compact("r")
    await journal._worker.do(store.copy_pieces, lines)  # too late: they are in the archive
    assert [getattr(record.event, "text", None) for record in await records(journal)].count("a012z") == 1


async def test_an_append_for_which_the_log_has_no_room_goes_to_the_index(journal: Journal, engine: Engine) -> None:
    await journal.append("r", BEGINNING)
    batches = index_commits(journal)
    await journal.append("r", [TextAppended("m", "x" * EngineLog.room)])
    assert (len(batches), engine.appends) == (1, 0)
    assert len(await records(journal)) == 5


async def test_the_pieces_of_a_run_that_changes_hands_are_copied_into_the_index(
    place: Place, engine: Engine, eventually: Callable[..., Any]
) -> None:
    gone, alive = place.zombie(), place.journal()
    await gone.append("r", BEGINNING)
    await gone.append("r", [TextAppended("m", "b")])

    async def swept() -> bool:
        return await alive.sweep() == ["r"]

    await eventually(swept)
    engine.records.clear()
    assert [record.seq for record in await records(alive)] == [1, 2, 3, 4, 5, 6, 7]


async def test_what_is_left_in_the_log_of_a_compacted_run_is_not_read_again(journal: Journal, engine: Engine) -> None:
    """As if the process had died after the run was compacted, and before its log was erased."""
    await journal.append("r", BEGINNING)
    await journal.append("r", [ArgsAppended("c", "1]")])
    await journal.append("r", [CallCompleted("c"), DONE])
    left = {key: list(lines) for key, lines in engine.records.items()}
    await journal.compact("r")
    engine.records.update(left)
    texts = [getattr(record.event, "text", None) for record in await records(journal)]
    assert texts == [None, None, "a", "[1]", None, None]
    assert await journal.read_whole(["r"]) == sorted(
        await records(journal), key=lambda record: record.first_seq or record.seq
    )
    call = await journal.call("c")
    assert call is not None
    assert call.args_json == "[1]"
    assert await journal.forget(thread="thread") == 1
    assert engine.records == {}


async def test_a_call_that_ends_while_it_is_read_has_all_of_its_arguments(place: Place) -> None:
    """Its last piece comes into the log after that was read, and its end into the index before that is read again."""
    writer, reader = place.journal(), place.journal()
    await writer.append("r", [*BEGINNING, ArgsAppended("c", "1,")])
    await reader.open()
    log: Any = reader._store._log  # type: ignore[attr-defined]
    read = log.read

    async def reading(*args: Any) -> Any:
        log.read = read
        rows = await read(*args)
        await writer.append("r", [ArgsAppended("c", "2]")])
        await writer.append("r", [CallCompleted("c")])
        return rows

    log.read = reading
    call = await reader.call("c")
    assert call is not None
    assert (call.state, call.args_json) == (CallState.ARGS_COMPLETE, "[1,2]")


async def test_a_follower_in_another_process_hears_of_pieces_in_the_log(place: Place) -> None:
    writer, other = place.journal(), place.journal()
    await writer.append("r", BEGINNING)
    following = other.follow("r", 4)
    for number in range(5, 15):
        waiting = asyncio.ensure_future(anext(following))
        await writer.append("r", [TextAppended("m", str(number))])
        assert (await asyncio.wait_for(waiting, 30)).seq == number
    await writer.append("r", [DONE])
    assert [record.seq async for record in following] == [15]
    assert len(await followed(other)) == 15


async def test_pieces_of_a_stale_owner_are_refused_by_the_log(
    place: Place, engine: Engine, eventually: Callable[..., Any]
) -> None:
    stale, alive = place.zombie(), place.journal()
    await stale.append("r", BEGINNING)
    await stale.append("r", [TextAppended("m", "b")])
    batches = index_commits(stale)

    async def swept() -> bool:
        return await alive.sweep() == ["r"]

    await eventually(swept)
    before = await records(alive)
    assert [record.seq for record in before] == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(LeaseLost):
        await stale.append("r", [TextAppended("m", "c")])
    assert len(batches) == 1  # the log refused, and only then the index was asked why
    assert await records(alive) == before
    assert [len(lines) for lines in engine.records.values()] == [1]


async def test_an_index_that_is_away_after_the_log_has_written_loses_and_doubles_nothing(place: Place) -> None:
    journal = place.journal()
    await journal.append("r", BEGINNING)
    await journal.append("s", [START])
    index: Any = journal._store._index  # type: ignore[attr-defined]
    commit, failures = index.commit, 2

    async def failing(batch: Sequence[Append]) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("the index is unavailable")
        return await commit(batch)

    index.commit = failing
    batch = [Append("r", prepared(TextAppended("m", "b"))), Append("s", prepared(DONE))]
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await committed(journal, batch)
    assert await committed(journal, batch) == [5, 2]
    assert [record.seq for record in await records(journal)] == [1, 2, 3, 4, 5]
    assert await journal.append("r", [TextAppended("m", "c"), DONE], after=5) == 7


async def test_what_was_away_is_named_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callstream.journal.queue._LEAST_SECONDS", 0.05)
    if place.backend == "memory":
        return  # it has no thread, and nothing there waits
    journal = place.journal(retry_seconds=1.0)
    await journal.append("r", [START])
    store: Any = journal._store  # type: ignore[attr-defined]
    commit = store.commit

    async def silent(batch: Sequence[Append]) -> Any:
        await asyncio.Event().wait()

    for failing, named in ((silent, store.where), (away_with("the log is unavailable: no leader"), "the log")):
        store.commit = failing
        with pytest.raises(JournalError) as raised:
            await journal.append("r", [TextAppended("m", "a")], after=1)
        assert str(raised.value).startswith(f"{named} was unavailable for 1 s (no ")
        assert str(raised.value).count(store.where) == (named == store.where)
    store.commit = away_with("the log is full")
    with pytest.raises(
        JournalError, match=r"^the log is full \(for 1 s\); whether this append is written is not known"
    ):
        await journal.append("r", [TextAppended("m", "a")], after=1)
    store.commit = commit


def away_with(text: str) -> Callable[[Sequence[Append]], Any]:
    async def failing(batch: Sequence[Append]) -> Any:
        raise StoreUnavailable(text)

    return failing


async def test_a_repeated_append_of_pieces_is_recognised_in_the_log(journal: Journal) -> None:
    await journal.append("r", BEGINNING)
    for _ in range(2):
        assert await journal.append("r", [TextAppended("m", "b"), TextAppended("m", "c")], after=4) == 6
    with pytest.raises(UsageError, match="two tasks write"):
        await journal.append("r", [TextAppended("m", "b"), TextAppended("m", "x")], after=4)


def prepared(event: RunEvent) -> list[Any]:
    return [prepare(event)]


async def committed(journal: Journal, batch: Sequence[Append]) -> list[Any]:
    store: Any = journal._store  # type: ignore[attr-defined]
    done = await journal._worker.do(store.commit, batch)
    return list(done.outcomes)
