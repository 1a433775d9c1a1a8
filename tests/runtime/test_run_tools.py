"""``run.invoke`` and ``run.run_tools`` when a model makes mistakes, and when tools do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from callstream import CallRejected, CallState, Callstream, Reject, Run, TransitionError, UsageError, tool
from callstream.errors import RunOver
from callstream.events import CallCompleted, CallStarted
from callstream.runtime.log import Ending
from callstream.testing import Finish, ToolCall, encode
from callstream.tools.tool import Start


@tool
async def write(title: str, content: str = "") -> dict[str, int]:
    return {"characters": len(content)}


@tool
async def anything(*args: int, **options: Any) -> list[str]:
    return sorted(options)


@tool
def greet(name: str, /) -> str:
    if not name:
        raise LookupError("nobody is there")
    return f"Hello, {name}."


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream(tools=[write, anything, greet]) as callstream:
        yield callstream


async def read(run: Run, *calls: ToolCall, tools: Any = None, finish: Any = None) -> None:
    async with run.response("openai_chat", tools=tools) as response:
        for chunk in encode("openai_chat", [*calls, finish or Finish()]):
            await response.feed(chunk)


async def test_a_class_is_a_tool_if_its_objects_can_be_told() -> None:
    @dataclass
    class Place:
        name: str

    class Shop:
        def __init__(self, name: str) -> None: ...

    async with Callstream(tools=[tool(Place), tool(Shop)]) as cs, cs.run("thread") as run:
        await read(run, ToolCall("Place", {"name": "quay"}), ToolCall("Shop", {"name": "quay"}))
        told, refused = await run.run_tools()
    assert (told.text, told.is_error) == ('{"name":"quay"}', False)
    assert refused.is_error
    assert "objects of type Shop" in refused.text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ToolCall("write", {"content": "x"}), "write did not run: the argument 'title' is missing; its arguments are"),
        (
            ToolCall("write", {"title": "x", "colour": 1}),
            "write did not run: there is no argument 'colour'; its arguments are",
        ),
        (ToolCall("write", {"colour": 1}), "the argument 'title' is missing. There is no argument 'colour'; "),
        (ToolCall("greet", {}), "greet did not run: the argument 'name' is missing; its arguments are name"),
        (ToolCall("wrote", {}), "there is no tool wrote; the tools are: write, anything, greet"),
        (ToolCall("write", text='["a"]'), "the arguments of write cannot be read (the arguments are not an object)"),
    ],
)
async def test_a_call_that_does_not_fit_its_tool_is_refused(cs: Callstream, call: ToolCall, text: str) -> None:
    async with cs.run("thread") as run:
        await read(run, call)
        [made] = run.calls
        with pytest.raises(CallRejected) as raised:
            await run.invoke(made.call_id)
        assert text in str(raised.value)
        [refused] = run.refusals()
        assert (refused.text, refused.wire_id) == (str(raised.value), made.wire_id)
        with pytest.raises(CallRejected):
            await run.invoke(made.call_id)
    kept = await cs.journal.call(made.call_id)
    assert kept is not None
    assert kept.state is CallState.DISCARDED


async def test_arguments_of_any_name(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(
            run,
            ToolCall("anything", {"a": 1, "b": 2}),
            ToolCall("write", {"title": "x"}),
            ToolCall("greet", {"name": "Ann"}),
        )
        assert [await run.invoke(call.call_id) for call in run.calls] == [["a", "b"], {"characters": 0}, "Hello, Ann."]


async def test_a_tool_that_was_declared_and_not_given_is_the_programs_mistake(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, ToolCall("wrote", {}, call_id="c1"), tools={"wrote": {"type": "object"}})
        for running in (run.invoke("c1"), run.run_tools()):
            with pytest.raises(UsageError, match="'wrote' was declared to the model but not given to Callstream"):
                await running


async def test_run_tools_has_a_result_for_every_call_once(cs: Callstream) -> None:
    async def check(call: Any, signal: Any) -> None:
        if call.args.get("title") == "":
            raise Reject("a document needs a title")

    cs.on_args_complete("write", check)
    calls = [
        ToolCall("write", {"title": "a", "content": "abc"}, call_id="c1"),
        ToolCall("write", {"title": ""}, call_id="c2"),
        ToolCall("write", {"content": "abc"}, call_id="c3"),
        ToolCall("greet", {"name": ""}, call_id="c4"),
        ToolCall("greet", {"name": "Ann"}, call_id="c5"),
        ToolCall("wrote", {}, call_id="c6"),
        ToolCall("write", {"title": "a", "content": 7}, call_id="c7"),
    ]
    async with cs.run("thread", rejected="forward") as run:
        await read(run, *calls)
        told = {result.wire_id: (result.text, result.is_error) for result in await run.run_tools()}
        assert json.loads(told.pop("c1")[0]) == {"characters": 3}
        assert told.pop("c2") == ("a document needs a title", True)
        assert told.pop("c3")[0].startswith("write did not run: the argument 'title' is missing")
        assert told.pop("c4") == ("LookupError: nobody is there", True)
        assert told.pop("c5") == ("Hello, Ann.", False)
        assert told.pop("c6")[0].startswith("there is no tool wrote")
        assert told.pop("c7")[0].startswith("write did not run: the argument 'content' should be a string, got")
        assert told == {}
        assert await run.run_tools() == []
        await read(run, ToolCall("greet", {"name": "Bob"}, call_id="d1", stop_after=2), finish=Finish("length"))
        [cut] = await run.run_tools()
        assert (cut.call_id, cut.name, cut.is_error) == ("d1", "greet", True)
        assert cut.text.startswith("the arguments of greet were cut off")
    assert run.outcome == "finished"


@pytest.mark.parametrize("start", ["end", "early"])
async def test_run_tools_goes_on_after_a_tool_that_waits_for_what_is_cancelled(start: Start) -> None:
    @tool(start=start)
    async def ask(name: str) -> None:
        waiting = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    async with Callstream(tools=[ask, greet]) as cs, cs.run("thread") as run:
        await read(run, ToolCall("ask", {"name": "Ann"}), ToolCall("greet", {"name": "Ann"}))
        results = await run.run_tools()
        assert [(result.text, result.is_error) for result in results] == [
            ("CancelledError", True),
            ("Hello, Ann.", False),
        ]
        assert await run.run_tools() == []
    assert run.outcome == "finished"


async def test_run_tools_leaves_alone_what_awaits_an_answer(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(
            run, ToolCall("write", {"title": "a"}, call_id="c1"), ToolCall("greet", {"name": "Ann"}, call_id="c2")
        )
        await run.await_answer("c1")
        assert [(result.call_id, result.value) for result in await run.run_tools()] == [("c2", "Hello, Ann.")]


async def test_run_tools_ends_with_the_run() -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Callstream(tools=[wait]) as cs:
        async with cs.run("thread") as run:
            await read(run, ToolCall("wait", {}))
            running = asyncio.create_task(run.run_tools())
            await begun.wait()
            await run.stop("enough")
            with pytest.raises(RunOver):
                await running


async def test_of_several_who_run_tools_at_once_one_gets_a_call() -> None:
    ran: list[int] = []

    @tool
    async def count(number: int) -> int:
        await asyncio.sleep(0)
        ran.append(number)
        return number

    async with Callstream(tools=[count]) as cs, cs.run("thread") as run:
        await read(run, *(ToolCall("count", {"number": number}, call_id=f"c{number}") for number in range(6)))
        lists = await asyncio.gather(run.invoke("c3"), *(run.run_tools() for _ in range(3)))
        assert lists.pop(0) == 3
        assert sorted(result.value for results in lists for result in results) == [0, 1, 2, 4, 5]
        assert sorted(ran) == [0, 1, 2, 3, 4, 5]
        assert await run.run_tools() == []


async def test_a_call_that_another_run_has_taken_up_is_not_resumed(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, ToolCall("greet", {"name": "Ann"}, call_id="c1"))
        await run.await_answer("c1")
    async with cs.run("thread") as first, cs.run("thread") as second, cs.run("thread") as third:
        assert await first.resume("c1") is not None
        assert await second.resume("c1") is not None
        await first.execute("c1")
        assert await third.resume("c1") is None
        assert await third.answer("c1", "no") is False
        with pytest.raises(TransitionError):
            await second.invoke("c1")
        await first.complete("c1", "done")
        assert await third.resume("c1") is None


async def test_an_own_call_that_is_executing_does_not_await_an_answer(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await run.record([CallStarted("c1", "greet", "c1"), CallCompleted("c1", '{"name": "Ann"}')])
        await run.execute("c1")
        with pytest.raises(UsageError, match="is executing; it does not await an answer"):
            await run.resume("c1")


async def test_the_log_of_a_discarded_call_says_what_is_known(cs: Callstream, caplog: pytest.LogCaptureFixture) -> None:
    async with cs.run("thread") as run:
        await run.record([CallStarted("c1", "greet", "c1")])
    await run.end_in_journal(Ending.finished())
    [message] = [record.getMessage() for record in caplog.records if "discarded" in record.getMessage()]
    assert message.startswith("call 'c1' of tool 'greet' was discarded (")
    assert "None" not in message
