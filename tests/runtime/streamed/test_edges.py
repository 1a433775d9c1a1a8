"""The rarer ways in which a streamed call ends: tools that do not end, errors while undoing, keys that come twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callstream import (
    ArgumentsAborted,
    CallRejected,
    CallState,
    Callstream,
    Streamed,
    tool,
)
from callstream.testing import ToolCall
from tests.runtime.streaming import WIRE, Desk, chunks, feed, until


async def test_a_tool_that_does_not_end_after_an_abort_is_left_alone(
    cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()
    free = asyncio.Event()

    @tool(hook_timeout=0.02)
    async def stubborn(content: Streamed[str]) -> None:
        begun.set()
        while not free.is_set():
            try:
                await free.wait()
            except (ArgumentsAborted, asyncio.CancelledError):
                pass

    cs.add_tool(stubborn)
    run = await cs.start("thread")
    response = run.response(WIRE)
    await feed(response, chunks(ToolCall("stubborn", {"content": "one two three"}, call_id="c1"))[:-4])
    await until(begun)
    await run.stop()
    assert "does not end, and is left alone" in caplog.text
    assert run.call("c1").state is CallState.DISCARDED
    free.set()


async def test_what_a_tool_raises_after_an_abort_is_logged(
    cs: Callstream, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def clumsy(content: Streamed[str]) -> None:
        try:
            async for _ in content:
                desk.first.set()
        except ArgumentsAborted:
            raise LookupError("could not undo it") from None

    cs.add_tool(clumsy)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("clumsy", {"content": "one two three"}, call_id="c1"))[:-4])
            await until(desk.first)
        with pytest.raises(CallRejected):
            await run.invoke("c1")
    assert "could not undo it" in caplog.text
    assert run.call("c1").reason == "truncated"


async def test_a_run_that_finishes_before_its_tool_fails_the_call(cs: Callstream, desk: Desk) -> None:
    @tool
    async def slow(content: Streamed[str]) -> None:
        async for _ in content:
            desk.first.set()
        await asyncio.Event().wait()

    cs.add_tool(slow)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("slow", {"content": "one two three"}, call_id="c1")))
        await until(desk.first)
    call = run.call("c1")
    assert (call.state, call.error) == (CallState.FAILED, "the run ended before the tool did")


async def test_a_nested_key_that_comes_twice_is_malformed(cs: Callstream) -> None:
    seen: list[Any] = []

    @tool
    async def add(items: Streamed[list[dict[str, int]]]) -> int:
        async for item in items:
            seen.append(item)
        return len(seen)

    cs.add_tool(add)
    text = '{"items": [{"a": 1}, {"a": 1, "a": 2}]}'
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("add", text=text, call_id="c1", size=4)))
        [result] = await run.run_tools()
        assert "the name 'a' comes twice" in result.text
    assert run.call("c1").reason == "malformed"


async def test_nothing_starts_on_null_or_where_there_is_no_object(cs: Callstream) -> None:
    seen: list[Any] = []

    @tool
    async def note(content: Streamed[str] | None) -> None:
        seen.append(content)

    cs.add_tool(note)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            sent = [ToolCall("note", {"content": None}, call_id="c1"), ToolCall("note", text='["a"]', call_id="c2")]
            await feed(response, chunks(*sent))
        null, array = await run.run_tools()
        assert (null.is_error, array.is_error) == (False, True)
        assert not run.call("c1").ran_early
    assert seen == [None]


async def test_a_task_group_is_left_whole(cs: Callstream, desk: Desk) -> None:
    """The task that reads the stream is told, and its group ends as one of a failed task does."""
    ended: list[str] = []

    @tool
    async def copy(content: Streamed[str]) -> None:
        async def read() -> None:
            async for _ in content:
                desk.first.set()

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("beside it")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(read())
                group.create_task(wait())
        except* ArgumentsAborted as errors:
            ended.append(str(errors.exceptions[0]))

    cs.add_tool(copy)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("copy", {"content": "one two three"}, call_id="c1"))[:-4])
            await until(desk.first)
            await asyncio.sleep(0)
    assert ended == ["beside it", "truncated: the stream ended in the middle of the message"]
    assert run.call("c1").reason == "truncated"


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"title": "Notes", "content": "one", "style": "bold"}', "invalid"),
        ('{"title": "Notes", "content": "one", "colour": 1}', "invalid"),
        ('{"title": "Notes", "content": "one", "title": "Other"}', "malformed"),
        ('{"title": "Notes", "title": "Other", "content": "one"}', "malformed"),
        ('{"title": "Notes", "style": "bold", "content": "one"}', None),
    ],
)
async def test_chunk_boundaries_mean_nothing(cs: Callstream, text: str, reason: str | None, size: int) -> None:
    """What counts as late, or as twice, is decided by the text and not by how it was cut."""
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", text=text, call_id="c1", size=size)))
        [result] = await run.run_tools()
        assert result.is_error is (reason is not None)
    state = CallState.COMPLETED if reason is None else CallState.DISCARDED
    assert (run.call("c1").state, run.call("c1").reason) == (state, reason)
