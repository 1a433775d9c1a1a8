"""What a run keeps of the responses, and which of their calls may run."""

from __future__ import annotations

from typing import Any

import pytest

from callstream import CallState, Callstream
from callstream.errors import CallRejected, TransitionError, UsageError, WireError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallStarted,
    RunEnded,
    RunStarted,
)
from callstream.testing import Failure, Finish, Text, ToolCall, Truncated, encode, encode_whole
from callstream.testing.encoders import ENCODERS
from callstream.wire import WIRES

from .reading import ARGS, WRITE, events, read, records


def states(found: list[Any]) -> list[str]:
    return [type(event).__name__ for event in found if getattr(event, "call_id", None) is not None]


@pytest.mark.parametrize("thread_id", [None, "", 7])
async def test_a_thread_has_an_id(cs: Callstream, thread_id: Any) -> None:
    with pytest.raises(UsageError, match="expected the id of a thread"):
        async with cs.run(thread_id):
            pass


@pytest.mark.parametrize("wire", WIRES)
async def test_a_run_keeps_all_that_a_response_said(cs: Callstream, wire: str) -> None:
    async with cs.run("thread") as run:
        await read(run, wire, [Text("Let me write."), WRITE])
        (call,) = run.calls
        assert call.state is CallState.ARGS_COMPLETE
        assert call.args == ARGS
        executing = await run.execute(call.call_id)
        assert executing.args == ARGS
        await run.complete(call.call_id, {"ok": True})
    found = await events(cs, run)
    assert isinstance(found[0], RunStarted)
    assert found[-1] == RunEnded("finished")
    assert [record.seq for record in await records(cs, run)] == list(range(1, len(found) + 1))
    kept = await cs.journal.call(call.call_id)
    assert kept is not None
    assert (kept.state, kept.args, kept.result) == (CallState.COMPLETED, ARGS, {"ok": True})
    responses = {record.response_id for record in await records(cs, run) if isinstance(record.event, ArgsAppended)}
    assert len(responses) == 1
    assert None not in responses


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("streamed", [True, False])
async def test_same_states_unstreamed(cs: Callstream, wire: str, streamed: bool) -> None:
    async with cs.run("thread") as run:
        if streamed:
            await read(run, wire, [WRITE])
        else:
            await run.response(wire).whole(encode_whole(wire, [WRITE]))
        (call,) = run.calls
        await run.execute(call.call_id)
        await run.complete(call.call_id, 1)
    passed = states(await events(cs, run))
    assert passed[0] == "CallStarted"
    assert passed[-3:] == ["CallCompleted", "CallExecuting", "CallReturned"]


async def test_first_record_started_whatever_the_wire_sends_first(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await run.response("gemini").whole(encode_whole("gemini", [WRITE, ToolCall("other", {})]))
    found = await events(cs, run)
    for call in run.calls:
        first = next(event for event in found if getattr(event, "call_id", None) == call.call_id)
        assert isinstance(first, CallStarted)


async def test_released_when_unseen(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert kept.state is CallState.RELEASED


@pytest.mark.parametrize("provider_id", ["0", "tc-0", "call_1"])
async def test_id_reuse_new_call_in_later_turns_runs_and_threads(cs: Callstream, provider_id: str) -> None:
    async with cs.run("one") as run:
        for turn in (1, 2):
            await read(run, "openai_chat", [ToolCall("write", {"turn": turn}, call_id=provider_id)])
    async with cs.run("one") as later:
        await read(later, "openai_chat", [ToolCall("write", {"turn": 3}, call_id=provider_id)])
    async with cs.run("two") as other:
        await read(other, "openai_chat", [ToolCall("write", {"turn": 4}, call_id=provider_id)])
    calls = [*run.calls, *later.calls, *other.calls]
    assert [call.call_id for call in calls] == [provider_id, f"{provider_id}~2", f"{provider_id}~3", f"{provider_id}~4"]
    assert {call.provider_id for call in calls} == {provider_id}
    assert [call.args["turn"] for call in calls] == [1, 2, 3, 4]


@pytest.mark.parametrize("wire", WIRES)
async def test_one_id_in_hook_journal_and_result(cs: Callstream, wire: str) -> None:
    seen: list[str] = []
    cs.on_args_delta("write", lambda delta, signal: seen.append(delta.call_id))
    async with cs.run("thread") as run:
        await read(run, wire, [ToolCall("write", ARGS, call_id="")])
        (call,) = run.calls
        await run.execute(call.call_id)
        await run.complete(call.call_id, None)
    assert set(seen) == {call.call_id}
    ids = {event.call_id for event in await events(cs, run) if hasattr(event, "call_id")}
    assert ids == {call.call_id}


@pytest.mark.parametrize("wire", [wire for wire in WIRES if ENCODERS[wire].streams_arguments])
async def test_truncated_never_runs(cs: Callstream, wire: str) -> None:
    for ending in (Truncated(), Finish("length")):
        async with cs.run("thread") as run:
            await read(run, wire, [ToolCall("write", ARGS, stop_after=2), ending])
            (call,) = run.calls
            assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")
            with pytest.raises(CallRejected, match="arguments of write were cut off"):
                await run.execute(call.call_id)


async def test_an_error_in_the_stream_discards_and_rises_unchanged(cs: Callstream) -> None:
    aborted: list[str] = []
    cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
    with pytest.raises(WireError, match="overloaded"):
        async with cs.run("thread") as run:
            await read(run, "anthropic", [ToolCall("write", ARGS, stop_after=2), Failure("overloaded")])
    found = await events(cs, run)
    assert [event.reason for event in found if isinstance(event, CallDiscarded)] == ["interrupted"]
    assert isinstance(found[-1], RunEnded)
    assert found[-1].outcome == "failed"
    assert aborted == ["interrupted"]


async def test_unfinished_arguments_are_refused_before_the_wire_ends_them(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        async with run.response("anthropic") as response:
            for chunk in list(encode("anthropic", [WRITE]))[:6]:
                await response.feed(chunk)
            with pytest.raises(TransitionError, match="unfinished"):
                await run.execute("c1")


async def test_malformed_never_runs(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "openai_chat", [ToolCall("write", call_id="c1", text='{"a": 1,}')])
        with pytest.raises(CallRejected, match="arguments of write cannot be read"):
            await run.execute("c1")
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert kept.args_json == '{"a": 1,}'


async def test_arguments_that_are_no_object_never_run(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(
            run,
            "openai_chat",
            [ToolCall("write", call_id="c1", text="[1]"), ToolCall("write", call_id="c2", text="null")],
        )
        with pytest.raises(CallRejected, match="not an object"):
            await run.execute("c1")
        assert (await run.execute("c2")).args is None


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": NaN}', "{'a': 1}"])
async def test_malformed_never_runs_whoever_recorded_it(cs: Callstream, text: str) -> None:
    async with cs.run("thread") as run:
        await run.record([CallStarted("c1", "write"), ArgsAppended("c1", text), CallCompleted("c1", text)])
        with pytest.raises(CallRejected, match="not JSON"):
            await run.execute("c1")
        assert (run.call("c1").reason, run.call("c1").args_json) == ("malformed", text)


async def test_nothing_is_parsed_for_a_tool_without_hooks(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """no_hook_no_parse, with the whole runtime around it."""
    from callstream.jsontext import stream

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a JsonStream was made")

    monkeypatch.setattr(stream.JsonStream, "__init__", refuse)
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        assert (await run.execute("c1")).args == ARGS
        await run.complete("c1")


async def test_equal_pieces_are_kept_as_two(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [ToolCall("write", call_id="c1", text='{"a":"xxxxxxxx"}', size=1)])
    pieces = [event.text for event in await events(cs, run) if isinstance(event, ArgsAppended)]
    assert pieces.count("x") == 8
    assert "".join(pieces) == '{"a":"xxxxxxxx"}'
    completed = next(event for event in await events(cs, run) if isinstance(event, CallCompleted))
    assert completed.args_json is None
