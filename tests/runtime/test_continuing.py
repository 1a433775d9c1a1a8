"""A run that another process goes on with: what it knows, what it is given back, and when it cannot go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream, open_journal, tool
from callstream.calls import Call, CallState
from callstream.errors import CannotGoOn, Diverged, RunOver
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallRunningEarly,
    CallStarted,
    InputKept,
    MessageReceived,
    MessageStarted,
    ReplayRule,
    RequestKept,
    RunEnded,
    RunResumed,
    RunStarted,
    StateChanged,
    TextAppended,
)
from callstream.runtime import Run
from callstream.runtime.continuing import INTERRUPTED, Coming, KeptBody, KeptTurn, Replay
from callstream.tools import NOT_DONE
from callstream.wire.requests import Digest

pytestmark = pytest.mark.asyncio
KEPT = InputKept("app", "")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'calls.db'}"


@pytest.fixture
async def taker(url: str) -> AsyncIterator[Callstream]:
    async with Callstream(open_journal(url, housekeeping=None)) as made:
        yield made


async def begun(url: str, *responses: list[object], **how: object) -> None:
    """A run that was handed over after these responses: a digest first, then its events; kept, if they say so."""
    async with Callstream(open_journal(url, housekeeping=None)) as owner:
        run = await Run.start(owner.engine, RunStarted("t"), "r", kept=KEPT, as_current=False)
        for number, (digest, *events) in enumerate(responses):
            response_id = f"response-{number}"
            await run.record(
                [RequestKept(str(digest), {"messages/0": str(digest)})], response_id=response_id, author="a"
            )
            is_kept = events[-1:] == ["kept"]
            if is_kept:
                body = KeptBody(str(digest), 200, {"content-type": "text/event-stream", "set-cookie": "secret"})
                body.add(b"data: ")
                body.add(str(digest).encode())
                events = [*events[:-1], body.event()]
            await run.record(events, response_id=response_id, author="a")  # type: ignore[arg-type]
        assert await run.hand_over()
        with pytest.raises(RunOver):
            await run.record([TextAppended("m", "late")])


async def going_on(taker: Callstream) -> Run:
    assert await taker.journal.adopt({"app"}) == ["r"]
    return await Run.go_on(taker.engine, "r")


def call(call_id: str, *more: object) -> list[object]:
    return [CallStarted(call_id, "look"), ArgsAppended(call_id, "{}"), CallCompleted(call_id, "{}"), *more]


def digest_of(name: str) -> Digest:
    return Digest(name, {"messages/0": name})


async def test_answered_turns_are_given_back_once_and_in_order(url: str, taker: Callstream) -> None:
    await begun(url, ["one", MessageStarted("m1"), "kept"], ["two", MessageStarted("m2"), "kept"], ["one", "kept"])
    run = await going_on(taker)
    assert run.keeping is not None
    turns = [await run.keeping.ask(digest_of(name), "a") for name in ("one", "two", "one")]
    assert [turn.response_id for turn in turns if isinstance(turn, KeptTurn)] == [f"response-{n}" for n in range(3)]
    assert [turn.body for turn in turns if isinstance(turn, KeptTurn)] == [b"data: one", b"data: two", b"data: one"]
    assert isinstance(turns[0], KeptTurn)
    assert turns[0].headers == {"content-type": "text/event-stream"}
    assert isinstance(await run.keeping.ask(digest_of("three"), "a"), Coming)
    await run.finish()


async def test_what_was_cut_is_void_and_asked_for_again(url: str, taker: Callstream) -> None:
    cut = [MessageStarted("m2"), TextAppended("m2", "hal"), *call("c")[:2]]
    await begun(url, ["one", MessageStarted("m1"), "kept"], ["two", *cut])
    run = await going_on(taker)
    assert run.keeping is not None
    assert run.call("c").state is CallState.DISCARDED
    records = await taker.journal.read_whole(["r"])
    assert [record.event for record in records[-2:]] == [RunResumed(2, ("m2",)), CallDiscarded("c", "interrupted")]
    assert isinstance(await run.keeping.ask(digest_of("one"), "a"), KeptTurn)
    assert isinstance(await run.keeping.ask(digest_of("two"), "a"), Coming)
    await run.finish()


async def test_a_request_that_differs_fails_or_is_asked(url: str, taker: Callstream) -> None:
    await begun(url, ["one", MessageStarted("m1"), "kept"])
    run = await going_on(taker)
    assert run.keeping is not None
    assert isinstance(await run.keeping.ask(digest_of("another agent's"), "b"), Coming)
    with pytest.raises(Diverged, match=r"'a' asks .* messages/0") as raised:
        await run.keeping.ask(digest_of("other"), "a")
    assert raised.value.path == "messages/0"
    replay = run.keeping.replay
    assert replay is not None
    assert replay.answer(digest_of("other"), "a", "ask") is None
    assert replay.answer(digest_of("one"), "a", "fail") is None  # what was answered belongs to another course of things
    await run.finish()


async def test_what_the_host_records_again_is_recorded_once(url: str, taker: Callstream) -> None:
    said, state = MessageReceived("user", "hi", "m"), StateChanged({"a": 1})
    async with Callstream(open_journal(url, housekeeping=None)) as owner:
        first = await Run.start(owner.engine, RunStarted("t"), "r", kept=KEPT, as_current=False)
        await first.record([said, state])
        assert await first.hand_over()
    run = await going_on(taker)
    for _ in range(2):
        await run.record([said, state])
    await run.finish()
    events = [record.event for record in await taker.journal.read_whole(["r"])]
    assert events == [RunStarted("t"), KEPT, said, state, RunResumed(2), said, state, RunEnded("finished")]


async def test_a_run_whose_tool_began_in_a_cut_response_ends(url: str, taker: Callstream) -> None:
    await begun(url, ["one", MessageStarted("m1"), *call("c", CallExecuting("c"))])
    with pytest.raises(CannotGoOn, match="look ran before the model's response was whole"):
        await going_on(taker)
    assert (await taker.journal.runs(run_id="r"))[0].outcome == "failed"
    assert (await taker.journal.call("c")).state is CallState.FAILED  # type: ignore[union-attr]


BEGAN = [CallStarted("c", "look"), ArgsAppended("c", '{"city": ')]


@pytest.mark.parametrize(
    "rest", [[], [ArgsAppended("c", "1}"), CallCompleted("c", '{"city": 1}')]], ids=["half", "whole"]
)
async def test_a_safe_tool_that_began_early_in_a_cut_response_is_discarded_and_the_run_goes_on(
    url: str, taker: Callstream, rest: list[object]
) -> None:
    await begun(url, ["one", MessageStarted("m1"), *BEGAN, CallRunningEarly("c", "safe"), *rest])
    run = await going_on(taker)
    assert run.keeping is not None
    assert (run.call("c").state, run.call("c").reason) == (CallState.DISCARDED, "interrupted")
    assert isinstance(await run.keeping.ask(digest_of("one"), "a"), Coming)
    await run.finish()


async def test_a_safe_tool_that_runs_for_a_call_of_a_cut_response_has_failed(url: str, taker: Callstream) -> None:
    await begun(url, ["one", MessageStarted("m1"), *call("c", CallExecuting("c", "safe"))])
    run = await going_on(taker)
    assert (run.call("c").state, run.call("c").error) == (CallState.FAILED, INTERRUPTED)
    await run.finish()


@pytest.mark.parametrize("rule", ["unsafe", "ask", "reconcile"])
async def test_any_other_tool_that_began_early_in_a_cut_response_ends_the_run(
    url: str, taker: Callstream, rule: ReplayRule
) -> None:
    await begun(url, ["one", MessageStarted("m1"), *call("c", CallRunningEarly("c", rule))])
    with pytest.raises(CannotGoOn, match="look ran before the model's response was whole"):
        await going_on(taker)


def again() -> str:
    return "seen"


def found(call: Call) -> str:
    return "found"


def not_done(call: Call) -> object:
    return NOT_DONE


@pytest.mark.parametrize(
    ("rule", "now", "result"),
    [
        ("safe", {"replay": "safe"}, "seen"),
        ("unsafe", {"replay": "safe"}, None),  # what was in force when it began counts
        ("safe", {}, None),
        ("ask", {"replay": "ask"}, None),  # one that has begun early cannot await an answer
        ("reconcile", {"reconcile": found}, "found"),
        ("reconcile", {"reconcile": not_done}, "seen"),
    ],
)
async def test_a_tool_that_began_early_in_a_whole_response_is_settled_by_its_rule(
    url: str, taker: Callstream, rule: ReplayRule, now: dict[str, Any], result: str | None
) -> None:
    taker.add_tool(tool(name="look", start="early", **now)(again))
    await begun(url, ["one", MessageStarted("m1"), *call("c", CallRunningEarly("c", rule)), "kept"])
    run = await going_on(taker)
    assert run.keeping is not None
    assert isinstance(await run.keeping.ask(digest_of("one"), "a"), KeptTurn)
    [told] = await run.run_tools()
    assert (told.is_error, told.text) == ((True, INTERRUPTED) if result is None else (False, result))
    assert run.call("c").state is (CallState.FAILED if result is None else CallState.COMPLETED)
    assert await run.run_tools() == []
    await run.finish()


async def test_a_run_whose_call_awaits_an_answer_leaves_it_to_the_answer(url: str, taker: Callstream) -> None:
    await begun(url, ["one", MessageStarted("m1"), *call("c", CallAwaiting("c")), "kept"])
    with pytest.raises(CannotGoOn, match="call c awaits an answer"):
        await going_on(taker)
    assert (await taker.journal.runs(run_id="r"))[0].outcome == "failed"
    assert (await taker.journal.call("c")).state is CallState.AWAITING  # type: ignore[union-attr]


async def test_a_run_that_says_what_no_model_wrote_ends(url: str, taker: Callstream) -> None:
    async with Callstream(open_journal(url, housekeeping=None)) as owner:
        first = await Run.start(owner.engine, RunStarted("t"), "r", kept=KEPT, as_current=False)
        await first.record([MessageStarted("m"), TextAppended("m", "x")], response_id="own")
        await first.hand_over()
    with pytest.raises(CannotGoOn, match="no model wrote"):
        await going_on(taker)


async def test_a_run_that_is_given_up_is_not_handed_over(url: str, taker: Callstream) -> None:
    async with Callstream(open_journal(url, housekeeping=None)) as owner:
        run = await Run.start(owner.engine, RunStarted("t"), "r", kept=KEPT, as_current=False)
        assert run.keeping is not None
        await run.keeping.give_up("for a reason")
        await run.keeping.give_up("for another")
        assert not await run.hand_over()
        await run.stop("x")
    assert await taker.journal.adopt({"app"}) == []


async def test_a_run_that_was_handed_over_cannot_be_given_up(
    url: str, taker: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    """Its host hears of the end of its work as of a failure, and may read that as an answer nobody keeps."""
    caplog.set_level(logging.INFO, "callstream")
    async with Callstream(open_journal(url, housekeeping=None)) as owner:
        run = await Run.start(owner.engine, RunStarted("t"), "r", kept=KEPT, as_current=False)
        assert run.keeping is not None
        assert await run.hand_over()
        with pytest.raises(RunOver):
            await run.keeping.give_up("for a reason")
    assert "for a reason" not in caplog.text
    assert await taker.journal.adopt({"app"}) == ["r"]


async def test_hooks_of_a_call_that_has_not_begun_run_in_the_taker(url: str) -> None:
    await begun(url, ["one", MessageStarted("m1"), *call("c"), "kept"])
    heard: list[str] = []
    async with Callstream(open_journal(url, housekeeping=None)) as taker:
        taker.on_args_delta("look", lambda delta, signal: heard.append(delta.text))
        taker.on_args_complete("look", lambda done, signal: heard.append(done.call_id))
        run = await going_on(taker)
        assert run.keeping is not None
        turn = await run.keeping.ask(digest_of("one"), "a")
        assert isinstance(turn, KeptTurn)
        run.give_again(turn, {})
        await run.execute("c")
        assert heard == ["{}", "c"]
        await run.complete("c", {"found": 1})
        await run.finish()


@pytest.mark.parametrize("ends", ["stop", "finish"])
async def test_abort_hooks_of_a_call_that_is_not_given_back_run_in_the_taker(url: str, ends: str) -> None:
    begins = call("begins", CallExecuting("begins"))
    await begun(url, ["one", MessageStarted("m1"), *call("waits"), *begins, "kept"])
    heard: list[tuple[str, str]] = []
    async with Callstream(open_journal(url, housekeeping=None)) as taker:
        taker.on_args_abort("look", lambda cut, reason: heard.append((cut.call_id, reason)))
        run = await going_on(taker)
        await getattr(run, ends)()
        states = [each.state for each in await taker.journal.calls(run_id="r")]
    if ends == "stop":
        assert (states, heard) == ([CallState.DISCARDED, CallState.FAILED], [("waits", "aborted")])
    else:
        assert (states, heard) == ([CallState.RELEASED, CallState.FAILED], [])


async def test_two_attempts_know_of_each_other(url: str, taker: Callstream) -> None:
    await begun(url, ["one", MessageStarted("m1")])
    async with Callstream(open_journal(url, housekeeping=None)) as second:
        assert await second.journal.adopt({"app"}) == ["r"]
        run = await Run.go_on(second.engine, "r")
        assert run.keeping is not None
        assert run.keeping.attempt == 2
        await run.record([RequestKept("one")], response_id="again", author="a")
        await run.record([MessageStarted("m2")], response_id="again", author="a")
        await run.hand_over()
    run = await going_on(taker)
    events = [record.event for record in await taker.journal.read_whole(["r"])]
    assert [event for event in events if isinstance(event, RunResumed)] == [
        RunResumed(2, ("m1",)),
        RunResumed(3, ("m2",)),
    ]
    await run.finish()


async def test_a_replay_of_nothing() -> None:
    assert Replay([]).obstacle([]) == "its input was not kept"
    assert Replay([]).run_input == b""
    await asyncio.sleep(0)


async def test_a_message_that_a_request_repeats_is_kept_once(url: str, taker: Callstream) -> None:
    said = MessageReceived("user", "Make tea.")
    await begun(url, ["one", said])
    run = await going_on(taker)
    for _ in range(2):  # an SDK sends a request again that has failed
        await run.receive([said])
    records = await taker.journal.read_whole(["r"])
    assert [record.event for record in records if isinstance(record.event, MessageReceived)] == [said]
    await run.finish()
