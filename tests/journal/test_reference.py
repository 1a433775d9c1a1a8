"""Random programs on the reference in memory and on SQLite: the same answers, the same records, the same rows."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callstream.errors import CallstreamError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallSigned,
    CallStarted,
    ReasoningAppended,
    RunEnded,
    RunEvent,
    RunStarted,
    TextAppended,
)
from callstream.journal import Entry, Journal, open_journal

from .conftest import drop_schema, schema_url

RUNS = ("r1", "r2", "r3")
call_ids = st.sampled_from(["a", "b", "c"])
texts = st.text(max_size=4)
# Weighted towards the way that a call usually goes, so that programs get far.
call_events = st.one_of(
    st.builds(CallStarted, call_ids, st.just("tool"), st.none() | call_ids, encoding=st.sampled_from(["json", "text"])),
    *[st.builds(ArgsAppended, call_ids, texts)] * 3,
    *[st.builds(CallCompleted, call_ids, st.none() | st.just("[1]"))] * 2,
    st.builds(CallExecuting, call_ids),
    st.builds(CallReturned, call_ids, st.none() | st.lists(texts, max_size=2)),
    st.builds(CallFailed, call_ids, texts),
    st.builds(CallAwaiting, call_ids),
    st.builds(CallSigned, call_ids, texts),
    st.builds(CallProgressed, call_ids, texts),
    st.builds(CallDiscarded, call_ids, st.just("aborted")),
    st.builds(CallReleased, call_ids),
)
events: st.SearchStrategy[RunEvent] = st.one_of(
    call_events,
    call_events,
    st.builds(TextAppended, st.sampled_from(["m", "n"]), texts),
    st.builds(ReasoningAppended, st.just("m"), texts),
    st.builds(RunStarted, st.sampled_from(["t1", "t2"]), st.none() | st.just("alice")),
    st.builds(RunEnded, st.just("finished")),
)
entries = st.one_of(events, st.builds(Entry, events, st.none() | st.just("resp"), st.none() | st.just("author")))
appends = st.tuples(
    st.just("append"),
    st.sampled_from(RUNS),
    st.lists(entries, min_size=0, max_size=5),
    st.none() | st.integers(0, 6),
)
steps = st.one_of(
    appends, appends, appends, st.tuples(st.just("compact"), st.sampled_from(RUNS)), st.just(("forget", "t1"))
)


async def outcome(journal: Journal, step: Any) -> Any:
    try:
        match step:
            case ("append", run_id, batch, after):
                return await journal.append(run_id, batch, after=after)
            case ("compact", run_id):
                return await journal.compact(run_id)
            case (_, thread):
                return await journal.forget(thread=thread)
    except CallstreamError as error:
        return type(error).__name__


async def everything(journal: Journal) -> Any:
    """All that can be read, without the times, which differ."""
    listed = await journal.runs()
    calls = [await journal.call(call.call_id) for call in await journal.calls()]
    return (
        [msgspec.structs.replace(run, started_at=0.0, ended_at=None) for run in listed],
        sorted(repr(msgspec.structs.replace(call, started_at=None, updated_at=None)) for call in calls if call),
        {
            run.run_id: [msgspec.structs.replace(record, at=0.0) async for record in journal.read(run.run_id)]
            for run in listed
        },
    )


async def compare(url: str, program: list[Any]) -> None:
    reference, other = open_journal("memory:", housekeeping=None), open_journal(url, housekeeping=None)
    try:
        for step in program:
            assert await outcome(other, step) == await outcome(reference, step), step
        assert await everything(other) == await everything(reference)
    finally:
        await other.aclose()
        await reference.aclose()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_one_suite_three_backends_agree_on_random_programs(program: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(f"sqlite:///{folder}/j.db", program))


@pytest.mark.postgres
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.lists(steps, max_size=25))
def test_one_suite_three_backends_agree_on_random_programs_in_postgres(postgres_url: str, program: list[Any]) -> None:
    schema = f"test_{uuid.uuid4().hex[:12]}"
    try:
        asyncio.run(compare(schema_url(postgres_url, schema), program))
    finally:
        asyncio.run(drop_schema(postgres_url, schema))
