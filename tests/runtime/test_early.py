"""Tools that start when their own arguments are whole (``start="early"``), and a process that dies meanwhile."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from callstream import CallRejected, CallState, Callstream, Reject, UsageError, open_journal, tool
from callstream.testing import ScriptedProvider, Text, ToolCall
from callstream.tools import current_call
from tests.gated import GatedProvider
from tests.runtime import crashing
from tests.runtime.streaming import WIRE, chunks, feed, until


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream("memory:") as callstream:
        yield callstream


async def test_the_tool_starts_while_the_response_writes_other_things(cs: Callstream) -> None:
    begun = asyncio.Event()
    cities = []

    @tool(start="early")
    async def look(city: str, days: int = 1) -> str:
        cities.append(city)
        begun.set()
        return f"{city}: sunny"

    cs.add_tool(look)
    sent = chunks(ToolCall("look", {"city": "Paris"}, call_id="c1"), Text("One moment. " * 5, size=4))
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, sent[:-5])
            await until(begun)
            assert run.call("c1").ran_early
            await feed(response, sent[-5:])
        [result] = await run.run_tools()
        assert result.value == "Paris: sunny"
        assert await run.run_tools() == []
        assert run.call("c1").state is CallState.COMPLETED
    assert cities == ["Paris"]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_it_runs_once_though_it_is_called_between_two_items_of_another_tool(kind: str, cs: Callstream) -> None:
    cities = []

    @tool(start="early")
    async def look(city: str) -> str:
        cities.append(city)
        return f"{city}: sunny"

    @tool
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            assert current_call() is not None
            yield number

    @tool
    def count_plainly(to: int) -> Iterator[int]:
        for number in range(to):
            assert current_call() is not None
            yield number

    counting: Any = count if kind == "async" else count_plainly
    for made in (look, counting):
        cs.add_tool(made)
    sent = chunks(ToolCall(counting.__name__, {"to": 2}), ToolCall("look", {"city": "Paris"}))
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, sent)
        items = counting(2)
        assert (await anext(items) if kind == "async" else next(items)) == 0
        assert current_call() is None
        assert await look("Paris") == "Paris: sunny"
        assert ([item async for item in items] if kind == "async" else list(items)) == [1]
    assert cities == ["Paris"]


def test_a_plain_generator_that_is_a_tool_is_one_like_any_other() -> None:
    seen: list[Any] = []

    @tool
    def talk(first: str) -> Generator[str, str, str]:
        try:
            seen.append((yield first))
            try:
                yield "second"
            except LookupError as error:
                seen.append(error)
            yield "third"
        finally:
            seen.append("closed")
        return "end"

    talking: Any = talk("first")
    assert next(talking) == "first"
    assert talking.send("sent") == "second"
    error = LookupError()
    assert talking.throw(error) == "third"
    with pytest.raises(StopIteration, match="end"):
        next(talking)
    assert seen == ["sent", error, "closed"]
    talking = talk("again")
    next(talking)
    talking.close()
    assert seen[3:] == ["closed"]


async def test_three_tools_run_beside_each_other_and_are_asked_for_by_name(cs: Callstream) -> None:
    waiting: dict[str, asyncio.Event] = {city: asyncio.Event() for city in ("Paris", "Rome", "Oslo")}
    begun = asyncio.Semaphore(0)

    @tool(start="early")
    async def look(city: str) -> str:
        begun.release()
        await waiting[city].wait()
        return f"{city}: sunny"

    cs.add_tool(look)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(*[ToolCall("look", {"city": city}) for city in waiting]))
        async with asyncio.timeout(5):
            for _ in waiting:
                await begun.acquire()
        asking = [asyncio.create_task(look(city=city)) for city in reversed(waiting)]
        for event in waiting.values():
            event.set()
        assert await asyncio.gather(*asking) == ["Oslo: sunny", "Rome: sunny", "Paris: sunny"]
    assert {call.state for call in run.calls} == {CallState.COMPLETED}


async def test_a_sync_tool_is_joined_on_the_loop_and_in_a_thread(cs: Callstream) -> None:
    cities = []

    @tool(start="early")
    def look(city: str) -> str:
        cities.append(city)
        return f"{city}: sunny"

    cs.add_tool(look)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("look", {"city": "Paris"}), ToolCall("look", {"city": "Rome"})))
        assert look(city="Paris") == "Paris: sunny"
        assert await asyncio.to_thread(look, city="Rome") == "Rome: sunny"
    assert sorted(cities) == ["Paris", "Rome"]


async def test_a_sync_tool_that_runs_is_joined_on_the_loop(cs: Callstream) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    go_on = threading.Event()
    cities = []

    @tool(start="early")
    def look(city: str) -> str:
        cities.append(city)
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(5)
        return f"{city}: sunny"

    cs.add_tool(look)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("look", {"city": "Paris"}, call_id="c1")))
        await until(begun)
        go_on.set()
        assert look(city="Paris") == "Paris: sunny"
        assert [result.value for result in await run.run_tools()] in ([], ["Paris: sunny"])
    assert cities == ["Paris"]


async def test_generators_are_joined(cs: Callstream) -> None:
    runs = []

    @tool(start="early")
    async def steps(count: int) -> AsyncIterator[int]:
        runs.append("async")
        for number in range(count):
            yield number

    @tool(start="early")
    def plain_steps(count: int) -> Any:
        runs.append("sync")
        yield from range(count)

    cs.add_tool(steps)
    cs.add_tool(plain_steps)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("steps", {"count": 2}), ToolCall("plain_steps", {"count": 3})))
        assert [item async for item in steps(count=2)] == [0, 1]
        assert await asyncio.to_thread(lambda: list(plain_steps(count=3))) == [0, 1, 2]
    assert sorted(runs) == ["async", "sync"]


async def test_hooks_settle_before_an_ordinary_tool_starts(cs: Callstream) -> None:
    order: list[str] = []

    @tool(start="early")
    async def look(city: str) -> str:
        order.append("tool")
        return city

    @look.on_args_complete
    async def check(call: Any, signal_: Any) -> None:
        await asyncio.sleep(0)
        order.append("hook")
        if call.args["city"] == "Atlantis":
            raise Reject("there is no such place")

    cs.add_tool(look)
    async with cs.run("thread", rejected="forward") as run:
        async with run.response(WIRE) as response:
            await feed(
                response,
                chunks(ToolCall("look", {"city": "Rome"}), ToolCall("look", {"city": "Atlantis"}, call_id="c2")),
            )
        rome, atlantis = await run.run_tools()
        assert (rome.value, atlantis.text) == ("Rome", "there is no such place")
        with pytest.raises(CallRejected):
            await look(city="Atlantis")
    assert order.count("tool") == 1
    assert not run.call("c2").ran_early


async def test_arguments_that_do_not_fit_start_nothing(cs: Callstream) -> None:
    runs = []

    @tool(start="early")
    async def look(days: int) -> int:
        runs.append(days)
        return days

    cs.add_tool(look)
    async with cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("look", {"days": "many"}, call_id="c1")))
        [result] = await run.run_tools()
        assert "should be an integer" in result.text
    assert (runs, run.call("c1").reason) == ([], "invalid")


async def test_an_argument_that_the_model_left_out_is_told() -> None:
    @tool(start="early")
    async def look(city: str) -> str:
        return city

    async with Callstream("memory:", tools=[look]) as cs, cs.run("thread") as run:
        async with run.response(WIRE) as response:
            await feed(response, chunks(ToolCall("look", {}, call_id="c1")))
        [result] = await run.run_tools()
    assert result.text == "look did not run: the argument 'city' is missing; its arguments are city"
    assert (run.call("c1").reason, run.call("c1").ran_early) == ("invalid", False)


def test_start_is_end_or_early() -> None:
    with pytest.raises(UsageError, match="expected start to be one of"):
        tool(start="soon")(lambda: None)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.subprocess
async def test_a_process_that_is_killed_while_its_tool_reads(tmp_path: Path) -> None:
    script = [[ToolCall("write", {"content": "The sea follows the moon, for ever."}, call_id="c1", size=4)]]
    async with GatedProvider(WIRE, script, held=5) as provider:
        file = tmp_path / "calls.db"
        arguments = ["-m", "tests.runtime.crashing", provider.base_url, str(file)]
        process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", *arguments)
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    await asyncio.sleep(crashing.LEASE + 0.2)
    journal = open_journal(f"sqlite:///{file}")
    try:
        await journal.sweep()
        call = await journal.call("c1")
        [run] = await journal.runs()
    finally:
        await journal.aclose()
    assert call is not None
    assert (call.state, call.reason, call.ran_early) == (CallState.DISCARDED, "interrupted", True)
    assert "moon" in (call.args_json or "")  # what the tool saw was in the journal
    assert (run.outcome, run.reason) == ("failed", "interrupted")


@pytest.mark.slow
@pytest.mark.subprocess
async def test_a_safe_tool_that_is_killed_while_it_reads_begins_again_where_the_run_goes_on(tmp_path: Path) -> None:
    text = "The sea follows the moon, for ever."
    file = tmp_path / "calls.db"
    arguments = ["-W", "ignore", "-m", "tests.runtime.crashing"]
    script = [[ToolCall("write", {"content": text}, size=4)]]
    async with GatedProvider(WIRE, script, held=5) as provider:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, provider.base_url, str(file), "continues"
        )
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    async with ScriptedProvider(WIRE, script) as provider:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, provider.base_url, str(file), "again", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (out.decode(), process.returncode) == (f"written: {text}\n", 0)
    async with Callstream(f"sqlite:///{file}") as cs:
        [run] = await cs.journal.runs()
        calls = await cs.journal.calls(run_id="run")
    assert (run.outcome, run.attempt) == ("finished", 2)
    assert sorted((call.state, call.reason, call.ran_early) for call in calls) == [
        (CallState.COMPLETED, None, True),
        (CallState.DISCARDED, "interrupted", True),
    ]
