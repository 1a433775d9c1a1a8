"""Random programs on every journal and on the reference: the same answers, the same records, the same rows."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
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
from tests.examples import examples

from .conftest import drop_schema, schema_url
from .logs import Engine, paired
from .reference import ReferenceJournal

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
    *[appends] * 4,
    st.tuples(st.just("compact"), st.sampled_from(RUNS)),
    st.just(("forget", "t1")),
    st.just(("sweep",)),
)


class Pair:
    """A journal and the reference, side by side. When a process dies, a new one takes its place."""

    def __init__(self, url: str, engine: Engine | None) -> None:
        self._url = url
        self._engine = engine
        self.reference = ReferenceJournal()
        self.journal = self._open()

    def _open(self) -> Journal:
        if self._engine is None:
            return open_journal(self._url, housekeeping=None)
        return paired(self._url, self._engine, {"housekeeping": None})

    async def outcomes(self, step: Any) -> tuple[Any, Any]:
        try:
            expected: Any = self._expected(step)
        except CallstreamError as error:
            expected = type(error).__name__
        try:
            return await self._actual(step), expected
        except CallstreamError as error:
            return type(error).__name__, expected

    def _expected(self, step: Any) -> Any:
        match step:
            case ("append", run_id, batch, after):
                return self.reference.append(run_id, batch, after)
            case ("compact", run_id):
                return self.reference.compact(run_id)
            case ("forget", thread):
                return self.reference.forget(thread)
            case _:
                return sorted(self.reference.sweep())

    async def _actual(self, step: Any) -> Any:
        match step:
            case ("append", run_id, batch, after):
                return await self.journal.append(run_id, batch, after=after)
            case ("compact", run_id):
                return await self.journal.compact(run_id)
            case ("forget", thread):
                return await self.journal.forget(thread=thread)
            case _:
                dead, self.journal = self.journal, self._open()
                await self.journal.open()
                await dead.aclose()
                return sorted(await self.journal.sweep())

    async def everything(self) -> tuple[Any, Any]:
        """All that can be read of both, without the times, which differ."""
        listed = await self.journal.runs()
        calls = [await self.journal.call(call.call_id) for call in await self.journal.calls()]
        actual = (
            [msgspec.structs.replace(run, started_at=0.0, ended_at=None) for run in listed],
            sorted(repr(msgspec.structs.replace(call, started_at=None, updated_at=None)) for call in calls if call),
            {
                run.run_id: [msgspec.structs.replace(record, at=0.0) async for record in self.journal.read(run.run_id)]
                for run in listed
            },
        )
        rows = self.reference.runs()
        expected = (
            rows,
            sorted(
                repr(msgspec.structs.replace(call, started_at=None, updated_at=None)) for call in self.reference.calls()
            ),
            {row.run_id: self.reference.records(row.run_id) for row in rows},
        )
        return actual, expected


async def compare(url: str, program: list[Any], engine: Engine | None = None) -> None:
    pair = Pair(url, engine)
    try:
        for step in program:
            actual, expected = await pair.outcomes(step)
            assert actual == expected, step
        actual, expected = await pair.everything()
        assert actual == expected
    finally:
        await pair.journal.aclose()


@examples(60)
@given(st.lists(steps, max_size=25))
def test_one_suite_three_backends_agree_on_random_programs_in_memory(program: list[Any]) -> None:
    asyncio.run(compare(f"memory:{uuid.uuid4().hex}", program))


@examples(60)
@given(st.lists(steps, max_size=25))
def test_one_suite_three_backends_agree_on_random_programs_beside_a_log(program: list[Any]) -> None:
    asyncio.run(compare(f"memory:{uuid.uuid4().hex}", program, Engine()))


@examples(60)
@given(st.lists(steps, max_size=25))
def test_one_suite_three_backends_agree_on_random_programs(program: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(f"sqlite:///{folder}/j.db", program))


@pytest.mark.postgres
@examples(15)
@given(program=st.lists(steps, max_size=25))
def test_one_suite_three_backends_agree_on_random_programs_in_postgres(postgres_url: str, program: list[Any]) -> None:
    schema = f"test_{uuid.uuid4().hex[:12]}"
    try:
        asyncio.run(compare(schema_url(postgres_url, schema), program))
    finally:
        asyncio.run(drop_schema(postgres_url, schema))
