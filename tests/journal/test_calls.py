"""Calls: their states, their ids, their arguments, and answers that other runs bring.

The same tests run on memory, SQLite and PostgreSQL, and on each of them beside a log.
"""

from __future__ import annotations

import random
import string
from typing import Any

import pytest

from callstream.calls import TRANSITIONS, CallState
from callstream.errors import CallIdTaken, TransitionError
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
    RunEvent,
)
from callstream.journal import Journal

from .conftest import Place
from .runs import (
    DONE,
    START,
    TO_STATE,
    fields_of,
    records,
    whole_run,
)

pytestmark = pytest.mark.asyncio


async def test_call_puts_its_arguments_together(journal: Journal) -> None:
    await journal.append("r", whole_run())
    a, b = await journal.call("a"), await journal.call("b")
    assert a is not None
    assert a.args_json == '{"x":"é\U0001f600"}'
    assert b is not None
    assert b.args_json == '"echo \\"hi\\""'
    assert await journal.call("nobody") is None


async def test_call_that_is_being_written_shows_what_came(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", '{"a"'), ArgsAppended("c", ":1")])
    call = await journal.call("c")
    assert call is not None
    assert (call.state, call.args_json) == (CallState.ARGS_STREAMING, '{"a":1')


async def test_call_that_came_whole_keeps_its_arguments(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("c", "t"), CallCompleted("c", '{"a":1}'), DONE])
    for _ in range(2):
        call = await journal.call("c")
        assert call is not None
        assert (call.state, call.args_json) == (CallState.ARGS_COMPLETE, '{"a":1}')
        await journal.compact("r")


CALL_EVENTS: list[Any] = [
    CallSigned("c", "s"),
    ArgsAppended("c", "}"),
    CallCompleted("c"),
    CallDiscarded("c", "aborted"),
    CallExecuting("c"),
    CallAwaiting("c"),
    CallReturned("c", 1),
    CallFailed("c", "e"),
    CallReleased("c"),
    CallProgressed("c", 1),
]


@pytest.mark.parametrize("same_append", [True, False])
async def test_transitions_only_by_table(journal: Journal, same_append: bool) -> None:
    """Every state times every event, in one append with what led there and in one of its own."""
    for state, way in TO_STATE.items():
        for event in CALL_EVENTS:
            call_id = f"{state}-{type(event).__name__}"
            named = [type(e)(**{**fields_of(e), "call_id": call_id}) for e in [*way, event]]
            before: list[RunEvent] = [CallStarted(call_id, "t"), *named[:-1]]
            allowed = TRANSITIONS.get((state, type(event)))
            if not same_append:
                await journal.append("r", before)
                before = []
            if allowed is None:
                with pytest.raises(TransitionError, match="is not allowed then"):
                    await journal.append("r", [*before, named[-1]])
            else:
                await journal.append("r", [*before, named[-1]])
                call = await journal.call(call_id)
                assert call is not None
                assert call.state is allowed


async def test_one_id_however_long(journal: Journal) -> None:
    """LiteLLM hides a thought signature of some kilobytes in the id of its call."""
    chance = random.Random(1)
    long = "call_1__thought__" + "".join(chance.choices(string.ascii_letters + string.digits, k=20_000))
    await journal.append("run", [START, CallStarted(long, "write", long), CallCompleted(long, "{}")])
    call = await journal.call(long)
    assert call is not None
    assert (call.call_id, call.provider_id, call.args) == (long, long, {})
    assert [found.call_id for found in await journal.calls(provider_id=long)] == [long]
    assert await journal.free_call_id(long) == f"{long}~2"
    with pytest.raises(CallIdTaken):
        await journal.append("other", [START, CallStarted(long, "write", long)])


async def test_first_record_started(journal: Journal) -> None:
    for event in CALL_EVENTS:
        with pytest.raises(TransitionError, match="has not started"):
            await journal.append("r", [event])


async def test_call_id_taken_is_told_and_another_is_named(place: Place) -> None:
    journal, other = place.journal(), place.journal()
    assert await journal.free_call_id("c") == "c"
    await journal.append("r", [START, CallStarted("c", "t"), DONE])
    for again in (journal, other):
        with pytest.raises(CallIdTaken, match="'c'"):
            await again.append("s", [START, CallStarted("c", "t")])
        assert await again.free_call_id("c") == "c~2"
    await journal.append("s", [START, CallStarted("c~3", "t")])
    assert await other.free_call_id("c") == "c~2"
    await journal.append("s", [CallStarted("c~2", "t")])
    assert await other.free_call_id("c") == "c~4"
    await journal.append("s", [CallStarted(f"c~{number}", "t") for number in range(4, 251)])
    assert await other.free_call_id("c") == "c~251"


async def test_answer_of_a_later_run_updates_the_call(place: Place) -> None:
    journal, other = place.journal(), place.journal()
    await journal.append("r", [START, CallStarted("c", "t"), CallCompleted("c"), CallAwaiting("c"), DONE])
    assert await other.append("s", [START, CallExecuting("c"), CallProgressed("c", 1), CallReturned("c", "yes")]) == 4
    call = await journal.call("c")
    assert call is not None
    assert (call.state, call.result, call.run_id) == (CallState.COMPLETED, "yes", "r")
    assert [record.event for record in await records(journal, "s")][-1] == CallReturned("c", "yes")
    with pytest.raises(TransitionError):
        await journal.append("t", [START, CallReturned("c", "again")])


async def test_answer_is_taken_once_though_both_processes_think_it_is_open(place: Place) -> None:
    """The process that owns the call's run remembers it as awaiting; the row is what counts."""
    owner, other = place.journal(), place.journal()
    await owner.append("r", [START, CallStarted("c", "t"), CallCompleted("c"), CallAwaiting("c")])
    await other.append("s", [START, CallReturned("c", "first")])
    with pytest.raises(TransitionError, match="is completed"):
        await owner.append("r", [CallReturned("c", "second")])
    call = await owner.call("c")
    assert call is not None
    assert call.result == "first"
    assert await owner.append("r", [DONE]) == 5


async def test_answer_cannot_touch_arguments_of_another_run(journal: Journal) -> None:
    await journal.append("r", [START, CallStarted("c", "t"), ArgsAppended("c", "{")])
    for event in (ArgsAppended("c", "}"), CallCompleted("c"), CallDiscarded("c", "aborted"), CallSigned("c", "s")):
        with pytest.raises(TransitionError, match="belongs to another run"):
            await journal.append("s", [event])
    assert await journal.append("r", [ArgsAppended("c", "}"), CallCompleted("c")]) == 5
