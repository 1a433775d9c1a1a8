"""Calls whose tools ran before their response had ended, as the journal keeps them."""

from __future__ import annotations

from callstream.calls import CallState
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallProgressed,
    CallReturned,
    CallRunningEarly,
    CallSigned,
    CallStarted,
    RunEvent,
)

from .conftest import Place
from .runs import DONE, START

WRITTEN: list[RunEvent] = [
    START,
    CallStarted("c", "write"),
    ArgsAppended("c", '{"a":'),
    CallRunningEarly("c"),
    CallProgressed("c", 1),
    CallSigned("c", "sig"),
    ArgsAppended("c", " "),
]


async def test_pieces_of_a_call_that_runs_early_are_kept_like_any_other(place: Place) -> None:
    journal = place.journal()
    await journal.append("r", WRITTEN)
    call = await journal.call("c")
    assert call is not None
    assert (call.state, call.ran_early, call.args_json, call.args) == (CallState.RUNNING_EARLY, True, '{"a": ', None)
    await journal.append("r", [ArgsAppended("c", "1}")])
    await journal.append("r", [CallCompleted("c", '{"a": 1}'), CallReturned("c", "done"), DONE])
    call = await journal.call("c")
    assert call is not None
    assert (call.state, call.ran_early, call.args, call.result) == (CallState.COMPLETED, True, {"a": 1}, "done")
    await journal.compact("r")
    kept = await journal.call("c")
    assert kept is not None
    assert (kept.ran_early, kept.args) == (True, {"a": 1})


async def test_a_crash_before_the_last_argument_discards_what_ran_early(place: Place) -> None:
    dead, live = place.journal(), place.journal()
    await dead.append("r", WRITTEN)
    await dead.aclose()
    assert await live.sweep() == ["r"]
    call = await live.call("c")
    assert call is not None
    assert (call.state, call.reason, call.ran_early) == (CallState.DISCARDED, "interrupted", True)
    assert call.args_json == '{"a": '


async def test_a_crash_after_the_last_argument_fails_what_ran_early(place: Place) -> None:
    """Its tool ran on whole arguments, as any other that executes."""
    dead, live = place.journal(), place.journal()
    await dead.append("r", [*WRITTEN, ArgsAppended("c", "1}"), CallCompleted("c", '{"a": 1}')])
    await dead.append("r", [CallStarted("d", "look"), CallCompleted("d", '{"b": 2}'), CallRunningEarly("d")])
    await dead.aclose()
    assert await live.sweep() == ["r"]
    for call_id, args in (("c", {"a": 1}), ("d", {"b": 2})):
        call = await live.call(call_id)
        assert call is not None
        assert (call.state, call.error, call.ran_early, call.args) == (CallState.FAILED, "interrupted", True, args)


async def test_a_call_that_is_refused_at_the_end_of_its_arguments_keeps_them(place: Place) -> None:
    journal = place.journal()
    whole = [*WRITTEN, ArgsAppended("c", "1}"), CallCompleted("c", '{"a": 1}')]
    await journal.append("r", [*whole, CallDiscarded("c", "rejected", "no")])
    call = await journal.call("c")
    assert call is not None
    assert (call.state, call.args, call.ran_early) == (CallState.DISCARDED, {"a": 1}, True)
