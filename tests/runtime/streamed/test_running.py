"""Tools with a ``Streamed`` parameter, in the loop of a plain SDK: when they start, what they see, and what counts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from callstream import (
    CallState,
    Callstream,
    Run,
    Streamed,
    TransitionError,
    UsageError,
    tool,
)
from callstream.events import ArgsAppended, CallRunningEarly
from callstream.testing import Finish, ToolCall, encode, encode_whole
from callstream.tools import Progress, no_progress
from tests.runtime.streaming import ARGS, WIRE, Desk, Item, chunks, feed, until


async def test_the_tool_reads_what_the_model_is_still_writing(journal_url: str, desk: Desk) -> None:
    async with Callstream(journal_url, tools=[desk.write()]) as cs:
        await read_while_it_is_written(cs, desk)


async def read_while_it_is_written(cs: Callstream, desk: Desk) -> None:
    sent = chunks(ToolCall("write", ARGS, call_id="c1", size=4))
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, sent[:-4])
            await until(desk.first)
            call = run.call("c1")
            assert call.state is CallState.RUNNING_EARLY
            assert call.ran_early
            assert call.is_being_written
            kept = await cs.journal.call("c1")
            assert kept is not None
            assert (kept.state, kept.ran_early, kept.args) == (CallState.RUNNING_EARLY, True, None)
            await feed(response, sent[-4:])
        [result] = await run.run_tools()
        assert (result.value, result.is_error) == ({"characters": 18}, False)
        assert await run.run_tools() == []
    assert "".join(desk.pieces) == ARGS["content"]
    assert len(desk.pieces) > 1
    assert desk.runs == [{"title": "Notes", "style": "plain"}]
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state, kept.ran_early, kept.args, kept.result) == (CallState.COMPLETED, True, ARGS, {"characters": 18})
    [listed] = await cs.journal.calls(run_id=run.run_id)
    assert listed.ran_early


async def test_what_becomes_of_it_if_its_process_dies_is_recorded_when_it_begins(cs: Callstream) -> None:
    @tool(replay="safe")
    async def note(content: Streamed[str]) -> str:
        return content.text

    cs.add_tool(note)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("note", {"content": "one"}, call_id="c1")))
        await run.run_tools()
    events = [record.event async for record in cs.journal.read(run.run_id)]
    assert CallRunningEarly("c1", "safe") in events


async def test_pieces_are_in_the_journal_before_the_tool_sees_them(cs: Callstream) -> None:
    async def stored(run: Run) -> str:
        events = [record.event async for record in cs.journal.read(run.run_id)]
        assert any(isinstance(event, CallRunningEarly) for event in events)
        return "".join(event.text for event in events if isinstance(event, ArgsAppended))

    seen = []

    @tool
    async def note(content: Streamed[str]) -> None:
        async for _ in content:
            assert content.text in await stored(run)
            seen.append(content.text)

    cs.add_tool(note)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("note", {"content": "one two three"}, size=3)))
        assert [result.is_error for result in await run.run_tools()] == [False]
    assert seen[-1] == "one two three"


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ('{"title": "Notes", "content": "one two"}', "plain"),
        ('{"style": "bold", "title": "Notes", "content": "one two"}', "bold"),
        ('{"content": "one two", "title": "Notes"}', "plain"),
        ('{"content": "one two", "style": "bold", "title": "Notes"}', "bold"),
        ('{"title": "Notes", "content": ""}', "plain"),
    ],
)
async def test_arguments_may_come_in_any_order(cs: Callstream, desk: Desk, text: str, style: str) -> None:
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", text=text, call_id="c1", size=3)))
        [result] = await run.run_tools()
        assert result.is_error is False
        assert run.call("c1").ran_early
    assert desk.runs == [{"title": "Notes", "style": style}]


async def test_items_come_when_they_are_whole(cs: Callstream) -> None:
    seen: list[Any] = []

    @tool
    async def add(items: Streamed[list[Item]]) -> int:
        async for item in items:
            seen.append(item)
        return len(items.items)

    cs.add_tool(add)
    items = [{"name": "apples", "count": 3}, {"name": "pears"}]
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            for chunk in chunks(ToolCall("add", {"items": items}, call_id="c1", size=3)):
                await response.feed(chunk)
                await asyncio.sleep(0)
                if run.calls and run.call("c1").is_being_written and seen:
                    assert seen[0] == Item("apples", 3)
        [result] = await run.run_tools()
        assert result.value == 2
        assert seen == [Item("apples", 3), Item("pears", 1)]
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("add", {"items": [*items, {"name": 5}]}, call_id="c2", size=3)))
        [result] = await run.run_tools()
        assert "the argument 'items[2].name' should be a string, got the number 5" in result.text
    assert run.call("c2").reason == "invalid"


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_sync_tool_reads_in_its_thread(cs: Callstream, streamed: bool) -> None:
    threads = []

    @tool
    def join(content: Streamed[str], progress: Progress = no_progress) -> str:
        threads.append(threading.current_thread())
        pieces = []
        for piece in content:
            pieces.append(piece)
            progress(len(pieces))
        return "|".join(pieces)

    cs.add_tool(join)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(
                response, chunks(ToolCall("join", {"content": "abcdef"}, call_id="c1", size=3, streamed=streamed))
            )
        [result] = await run.run_tools()
        assert result.text.replace("|", "") == "abcdef"
    assert threading.main_thread() not in threads


async def test_a_call_that_came_whole_works_the_same(cs: Callstream, desk: Desk) -> None:
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await response.whole(encode_whole(WIRE, [ToolCall("write", ARGS), Finish()]))
        [result] = await run.run_tools()
        assert result.value == {"characters": 18}
    assert desk.pieces == [ARGS["content"]]


async def test_who_runs_tools_himself_cannot_run_it_again(cs: Callstream, desk: Desk) -> None:
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", ARGS, call_id="c1")))
        with pytest.raises(TransitionError, match="has begun early"):
            await run.execute("c1")
        with pytest.raises(UsageError, match="too late to ask"):
            await run.await_answer("c1")
        assert await run.invoke("c1") == {"characters": 18}
    assert len(desk.runs) == 1


async def test_a_tool_that_is_called_in_the_run_gives_the_result_of_the_early_one(cs: Callstream, desk: Desk) -> None:
    write = cs.tools["write"]
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("write", ARGS, call_id="c1")))
        assert await write(**ARGS) == {"characters": 18}
        assert len(desk.runs) == 1
        assert await write("Notes", ARGS["content"], style="plain") == {
            "characters": 18
        }  # asked for once more: a new run
        assert len(desk.runs) == 2
        assert await write("Other", content="x") == {"characters": 1}
    assert run.call("c1").state is CallState.COMPLETED
    assert await write(**ARGS) == {"characters": 18}


async def test_two_calls_with_equal_arguments_are_two_results(cs: Callstream) -> None:
    count = 0

    @tool
    async def ask(content: Streamed[str]) -> int:
        nonlocal count
        count += 1
        mine = count
        async for _ in content:
            pass
        return mine

    cs.add_tool(ask)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            same = {"content": "how many?"}
            await feed(response, chunks(ToolCall("ask", same, call_id="c1"), ToolCall("ask", same, call_id="c2")))
        assert {await ask(**same), await ask(**same)} == {1, 2}
    assert count == 2


async def test_a_free_text_tool_is_streamed(cs: Callstream) -> None:
    @tool
    async def patch(text: Streamed[str]) -> int:
        async for _ in text:
            pass
        return len(text.text)

    cs.add_tool(patch)
    async with cs.run("thread") as run:
        async with run.response("openai_responses") as response:
            script = [ToolCall("patch", text="*** Begin\n*** End", custom=True, call_id="c1", size=4), Finish()]
            for chunk in encode("openai_responses", script):
                await response.feed(chunk)
        [result] = await run.run_tools()
        assert result.value == 17
        assert run.call("c1").ran_early
