"""How a tool with a ``Streamed`` parameter learns that the rest will not arrive, and what counts of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from callstream import (
    ArgumentsAborted,
    CallRejected,
    CallState,
    Callstream,
    Reject,
    Streamed,
    UsageError,
    WireError,
    tool,
)
from callstream.errors import RunOver
from callstream.testing import Failure, ToolCall, Truncated
from tests.runtime.streaming import ARGS, WIRE, Desk, chunks, feed, until


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"title": "Notes", "content": "one two", "style": "bold"}', "invalid"),
        ('{"content": "one two", "title": "Notes", "style": "bold"}', "invalid"),
        ('{"title": "Notes", "content": "one two", "colour": 1}', "invalid"),
        ('{"title": "Notes", "content": "one two", "title": "Other"}', "malformed"),
        ('{"title": "Notes", "content": "one two", "content": "three"}', "malformed"),
        ('{"title": "Notes", "content": "one two",}', "malformed"),
        ('{"title": "Notes", "content": "one two"', "malformed"),
    ],
)
async def test_arguments_that_turn_out_wrong_abort_the_tool(cs: Callstream, desk: Desk, text: str, reason: str) -> None:
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", text=text, call_id="c1", size=3)))
        [result] = await run.run_tools()
        assert result.is_error
        assert "result of write does not count" in result.text or "so its result does not count" in result.text
        with pytest.raises(CallRejected):
            await run.invoke("c1")
    assert desk.aborted == [reason]
    assert desk.details == [run.call("c1").detail]
    assert len(desk.runs) == 1
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state, kept.reason, kept.ran_early) == (CallState.DISCARDED, reason, True)


@pytest.mark.parametrize(
    "text",
    [
        '{"title": 5, "content": "one two"}',
        '{"colour": 5, "title": "Notes", "content": "one two"}',
        '{"title": "Notes", "content": 5}',
        '{"title": "Notes", "content": ["one"]}',
        '{"content": "one two"}',
    ],
)
async def test_a_tool_does_not_start_on_arguments_that_do_not_fit(cs: Callstream, desk: Desk, text: str) -> None:
    tools = {"write": desk.write().schema("anthropic")["input_schema"]}
    async with cs.run("thread") as run:
        async with run.response(WIRE, tools=tools) as response:
            await feed(response, chunks(ToolCall("write", text=text, call_id="c1", size=3)))
        if "colour" in text or "title" not in text:
            [result] = await run.run_tools()
            assert result.is_error
            assert run.call("c1").reason == "invalid"
        assert not run.call("c1").ran_early
    assert desk.runs == []


async def test_cut_at_every_delta_there_is_never_a_result(cs: Callstream, desk: Desk) -> None:
    sent = chunks(ToolCall("write", ARGS, size=4))
    ended = next(place for place, chunk in enumerate(sent) if b"content_block_stop" in chunk)
    began = 0
    for cut in range(1, ended):
        desk.aborted.clear()
        desk.runs.clear()
        desk.begun.clear()
        async with cs.run("thread") as run:
            async with run.response(WIRE) as response:
                await feed(response, sent[:cut])
                if any(run.early.begun(call.call_id) for call in run.calls):
                    await until(desk.begun)
            for call in run.calls:
                assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")
            assert all(result.is_error for result in await run.run_tools())
        early = [call for call in run.calls if call.ran_early]
        assert len(desk.runs) == len(early)
        assert desk.aborted == ["truncated"] * len(desk.runs)
        began += len(desk.runs)
    assert began > 2


@pytest.mark.parametrize("error", [Failure("overloaded"), Truncated()])
async def test_a_response_that_breaks_aborts_the_tool(cs: Callstream, desk: Desk, error: Any) -> None:
    async with cs.run("thread") as run:
        try:
            async with run.response(WIRE) as response:
                sent = chunks(ToolCall("write", ARGS, call_id="c1", size=4, stop_after=11), error)
                await feed(response, sent[:12])
                await until(desk.first)
                await feed(response, sent[12:])
        except WireError:
            assert isinstance(error, Failure)
        assert run.call("c1").state is CallState.DISCARDED
    assert len(desk.aborted) == 1


async def test_a_stop_aborts_the_tool_and_waits_for_what_it_undoes(cs: Callstream) -> None:
    undone = []
    begun = asyncio.Event()

    @tool
    async def publish(content: Streamed[str]) -> str:
        try:
            begun.set()
            await asyncio.Event().wait()  # not at the stream
        except ArgumentsAborted as error:
            await asyncio.sleep(0)
            undone.append(error.reason)
        return "does not count"

    cs.add_tool(publish)
    run = await cs.start("thread")
    response = run.response(WIRE)
    await feed(response, chunks(ToolCall("publish", {"content": "one two three"}, call_id="c1"))[:-4])
    await until(begun)
    await run.stop()
    assert undone == ["aborted"]
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state, kept.reason, kept.result) == (CallState.DISCARDED, "aborted", None)
    with pytest.raises(RunOver):
        await run.invoke("c1")


async def test_a_stop_while_the_tool_runs_on_whole_arguments_fails_the_call(cs: Callstream) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    @tool
    async def publish(content: Streamed[str]) -> str:
        async for _ in content:
            pass
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return ""

    cs.add_tool(publish)
    run = await cs.start("thread")
    async with run.response(WIRE) as response:
        await feed(response, chunks(ToolCall("publish", {"content": "one two three"}, call_id="c1")))
    await until(begun)
    asking = asyncio.create_task(run.invoke("c1"))
    await asyncio.sleep(0)
    await run.stop()
    with pytest.raises(RunOver):
        await asking
    assert ended == ["cancelled"]
    assert run.call("c1").state is CallState.FAILED


async def test_a_tool_that_fails_or_returns_before_the_end_waits_for_it(cs: Callstream) -> None:
    @tool
    async def fail(content: Streamed[str]) -> None:
        raise LookupError("no such document")

    @tool
    async def skip(content: Streamed[str]) -> str:
        return "enough"

    cs.add_tool(fail)
    cs.add_tool(skip)
    sent = chunks(
        ToolCall("fail", {"content": "one two three"}, call_id="c1"), ToolCall("skip", {"content": "one"}, call_id="c2")
    )
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            for chunk in sent:
                await response.feed(chunk)
                await asyncio.sleep(0)
                states = {call.state for call in run.calls if call.is_being_written}
                assert states <= {CallState.STARTED, CallState.ARGS_STREAMING, CallState.RUNNING_EARLY}
        failed, done = await run.run_tools()
        assert (failed.text, failed.is_error) == ("LookupError: no such document", True)
        assert done.value == "enough"
        with pytest.raises(LookupError):
            await run.invoke("c1")
    assert run.call("c1").state is CallState.FAILED
    assert run.call("c1").ran_early


async def test_a_sync_tool_is_aborted_where_it_reads(cs: Callstream) -> None:
    reasons: list[str] = []
    begun = asyncio.Event()
    ended = threading.Event()
    loop = asyncio.get_running_loop()

    @tool
    def join(content: Streamed[str]) -> str:
        loop.call_soon_threadsafe(begun.set)
        try:
            return "".join(content)
        except ArgumentsAborted as error:
            reasons.append(error.reason)
            raise
        finally:
            ended.set()

    cs.add_tool(join)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("join", {"content": "abcdefghi"}, size=3, stop_after=7), Truncated()))
            await until(begun)
    assert ended.is_set()
    assert reasons == ["truncated"]


async def test_hooks_for_the_end_gate_the_result_and_not_the_start(cs: Callstream, desk: Desk) -> None:
    gate = asyncio.Event()
    order: list[str] = []

    async def preview(delta: Any, signal: Any) -> None:
        order.append("delta")

    async def judge(call: Any, signal: Any) -> None:
        await gate.wait()
        order.append("judged")
        raise Reject("not this one")

    cs.on_args_delta("write", preview)
    cs.on_args_complete("write", judge)
    async with cs.run("thread", rejected="forward") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", ARGS, call_id="c1", size=4)))
        await until(desk.first)
        assert run.call("c1").state is CallState.RUNNING_EARLY
        gate.set()
        [result] = await run.run_tools()
        assert (result.text, result.is_error) == ("not this one", True)
    assert order[-1] == "judged"
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state, kept.reason, kept.result, kept.ran_early) == (CallState.DISCARDED, "rejected", None, True)


async def test_a_hook_that_rejects_a_piece_aborts_the_tool(cs: Callstream, desk: Desk) -> None:
    async def refuse(field: Any, signal: Any) -> None:
        if "three" in field.value:
            raise Reject("no threes")

    cs.on_field("write", "content", refuse)
    async with cs.run("thread", rejected="forward") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", ARGS, call_id="c1", size=4)))
        [result] = await run.run_tools()
        assert result.text == "no threes"
    assert desk.aborted == ["rejected"]


async def test_what_a_cancelled_caller_waited_for_is_cancelled(cs: Callstream) -> None:
    ended = []

    @tool
    async def hang(content: Streamed[str]) -> None:
        async for _ in content:
            pass
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    cs.add_tool(hang)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("hang", {"content": "x"}, call_id="c1")))
        asking = asyncio.create_task(run.invoke("c1"))
        for _ in range(10):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert ended == [True]
    assert run.call("c1").state is CallState.FAILED


async def test_a_result_that_is_no_json_fails_the_call(cs: Callstream) -> None:
    @tool
    async def odd(content: Streamed[str]) -> object:
        return object()

    cs.add_tool(odd)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("odd", {"content": "x"}, call_id="c1")))
        with pytest.raises(UsageError):
            await run.invoke("c1")
        assert run.call("c1").state is CallState.FAILED


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("late", ["null", '"plain"'])
async def test_a_late_argument_that_changes_nothing_is_no_fault(
    cs: Callstream, desk: Desk, late: str, size: int
) -> None:
    text = f'{{"title": "Notes", "content": "one two", "style": {late}}}'
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", text=text, call_id="c1", size=size)))
        [result] = await run.run_tools()
    assert (result.is_error, result.value) == (False, {"characters": 7})
    assert desk.runs == [{"title": "Notes", "style": "plain"}]
    assert desk.aborted == []


@pytest.mark.parametrize("late", ['"bold"', "5", '["plain"]'])
async def test_the_model_is_told_to_write_a_late_argument_first(cs: Callstream, desk: Desk, late: str) -> None:
    text = f'{{"title": "Notes", "content": "one two", "style": {late}}}'
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", text=text, call_id="c1", size=3)))
        [result] = await run.run_tools()
    assert desk.aborted == ["invalid"]
    assert ("write 'style' before 'content'" in result.text) is (late == '"bold"')


async def test_a_tool_that_takes_anything_is_not_given_more_later(cs: Callstream) -> None:
    @tool
    async def note(content: Streamed[str], **more: Any) -> str:
        return "".join([piece async for piece in content])

    cs.add_tool(note)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(
                response, chunks(ToolCall("note", text='{"content": "one two", "by": "me"}', call_id="c1", size=3))
            )
        [result] = await run.run_tools()
    assert "write 'by' before 'content'" in result.text


async def test_a_framework_that_fills_in_the_default_for_null_means_the_running_call(
    cs: Callstream, desk: Desk
) -> None:
    text = '{"title": "Notes", "content": "one two", "style": null}'
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", text=text, call_id="c1", size=3)))
        result = await cs.tools["write"](title="Notes", content="one two", style="plain")
    assert result == {"characters": 7}
    assert len(desk.runs) == 1
