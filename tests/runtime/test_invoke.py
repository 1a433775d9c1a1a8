"""Tools that a run invokes: kinds, errors, results, progress."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from typing import Any

import pytest

from callstream import CallState, Callstream, Progress, no_progress, tool
from callstream.errors import RunOver, UsageError
from callstream.events import (
    CallProgressed,
    CallReturned,
)
from callstream.testing import ToolCall

from .reading import ARGS, WRITE, events, read


async def test_invoke_runs_the_tool_from_barrier_to_result(journal_url: str) -> None:
    @tool
    async def write(title: str, content: str, progress: Progress = no_progress) -> dict[str, int]:
        await progress(1, 2, "half")
        return {"length": len(content)}

    told: list[Any] = []
    async with Callstream(journal_url, tools=[write], on_tool_progress=lambda *args: told.append(args)) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            assert await run.invoke("c1") == {"length": len(ARGS["content"])}
        found = await events(cs, run)
        assert [event for event in found if isinstance(event, CallProgressed | CallReturned)] == [
            CallProgressed("c1", {"done": 1, "total": 2, "message": "half"}),
            CallReturned("c1", {"length": len(ARGS["content"])}),
        ]
        assert told == [("write", "c1", {"done": 1, "total": 2, "message": "half"})]


async def test_invoke_of_sync_and_generator_tools(journal_url: str) -> None:
    threads: list[int] = []

    @tool
    def sync(title: str, content: str, progress: Progress = no_progress) -> str:
        threads.append(threading.get_ident())
        progress({"at": "work"})
        return title

    @tool
    def steps(title: str, content: str):  # type: ignore[no-untyped-def]
        yield title
        yield content

    async with Callstream(journal_url, tools=[sync, steps]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [ToolCall("sync", ARGS, call_id="a"), ToolCall("steps", ARGS, call_id="b")])
            assert await run.invoke("a") == "Notes"
            assert await run.invoke("b") == ["Notes", ARGS["content"]]
        assert CallProgressed("a", {"at": "work"}) in await events(cs, run)
    assert threads != [threading.get_ident()]


async def test_a_tool_that_raises_is_recorded_and_rises(journal_url: str) -> None:
    @tool
    async def write(title: str, content: str) -> None:
        raise ValueError("no room")

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            with pytest.raises(ValueError, match="no room"):
                await run.invoke("c1")
        kept = await cs.journal.call("c1")
        assert kept is not None
        assert (kept.state, kept.error) == (CallState.FAILED, "ValueError: no room")


async def test_a_sync_tool_that_raises_stop_iteration_fails(journal_url: str) -> None:
    @tool
    def write(title: str, content: str) -> str:
        return next(line for line in [title, content] if not line)

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            async with asyncio.timeout(10):
                with pytest.raises(RuntimeError, match="StopIteration"):
                    await run.invoke("c1")
            assert run.call("c1").state is CallState.FAILED


async def test_a_result_that_json_cannot_express_fails_its_call(journal_url: str) -> None:
    @tool
    async def write(title: str, content: str) -> object:
        return object()

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            with pytest.raises(UsageError, match="cannot be written as JSON"):
                await run.invoke("c1")
            call = run.call("c1")
            assert (call.state, "cannot be written as JSON" in str(call.error)) == (CallState.FAILED, True)


async def test_text_and_numbers_of_classes_of_their_own_are_results(journal_url: str) -> None:
    """Such as numpy's, and those of parsers of HTML."""

    class Title(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "not the text itself"

    class Count(int): ...

    class Mean(float): ...

    @tool
    async def write(title: str, content: str) -> dict[str, Any]:
        return {Title("title"): Title("Tides\ud83d"), "count": [Count(3)], "mean": Mean(1.5)}

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            [result] = await run.run_tools()
        assert json.loads(result.text) == {"title": "Tides\ud83d", "count": [3], "mean": 1.5}
        kept = await cs.journal.call("c1")
        assert kept is not None
        assert kept.result == {"title": "Tides\ud83d", "count": [3], "mean": 1.5}


async def test_invoke_of_tools_that_hide_what_they_are(journal_url: str) -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    @tool
    @logged
    async def hidden(title: str, content: str) -> str:
        return title

    @tool
    def nameless(title: str, /, content: str) -> str:
        return title

    async with Callstream(journal_url, tools=[hidden, nameless]) as cs, cs.run("thread") as run:
        await read(run, "anthropic", [ToolCall("hidden", ARGS, call_id="a"), ToolCall("nameless", ARGS, call_id="b")])
        assert await run.invoke("a") == "Notes"
        assert await run.invoke("b") == "Notes"


async def test_a_method_is_the_same_tool_each_time_it_is_asked_for() -> None:
    class Shop:
        @tool
        async def buy(self, title: str) -> str:
            return title

    shop = Shop()
    cs = Callstream(tools=[shop.buy, shop.buy])
    with pytest.raises(UsageError, match="a tool 'buy' already"):
        cs.add_tool(Shop().buy)
    async with cs, cs.run("thread") as run:
        await read(run, "anthropic", [ToolCall("buy", {"title": "x"}, call_id="c1")])
        assert await run.invoke("c1") == "x"


async def test_stopping_the_run_cancels_the_tools_that_it_runs(journal_url: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def write(title: str, content: str) -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async with Callstream(journal_url, tools=[write]) as cs:
        run = await cs.start("thread")
        await read(run, "anthropic", [WRITE])
        invoking = asyncio.ensure_future(run.invoke("c1"))
        await began.wait()
        await run.stop("user")
        with pytest.raises(RunOver, match="while tool 'write' ran"):
            await invoking
        assert ended.is_set()
        kept = await cs.journal.call("c1")
        assert kept is not None
        assert (kept.state, kept.error) == (CallState.FAILED, "aborted")


async def test_progress_is_merged_and_the_last_value_kept(journal_url: str) -> None:
    @tool
    async def write(title: str, content: str, progress: Progress = no_progress) -> None:
        for step in range(200):
            progress(step, 199)

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            await run.invoke("c1")
        reported = [event.data["done"] for event in await events(cs, run) if isinstance(event, CallProgressed)]
    assert reported[-1] == 199
    assert reported == sorted(reported)
    assert len(reported) < 20
