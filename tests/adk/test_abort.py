"""However a run is broken off: hooks end, open calls are discarded, upstream is closed, and the session can go on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import SequentialAgent
from google.adk.apps import App
from google.adk.runners import Runner

from callstream import Call, Callstream, FieldDelta, tool
from callstream.calls import CallState
from callstream.runtime import Run
from callstream.testing import Delay, Finish, Text, ToolCall

from .hosting import PATHS, Host, Models, agent_of, scripted, text_of

STALLED = [
    Text("I write."),
    ToolCall("write", {"content": "The moon pulls the sea."}, stop_after=3),
    Delay(30),
    Finish(),
]
END = [Text("Done."), Finish()]


class Watched:
    """A tool whose hooks say when arguments have come and what became of them."""

    def __init__(self, moment: str = "begun") -> None:
        self.begun = asyncio.Event()
        self.running = asyncio.Event()
        self.go_on = asyncio.Event()
        self.moment = self.begun if moment == "begun" else self.running
        self.aborted: list[tuple[str, str]] = []
        self.ended: list[str] = []

        @tool
        async def write(content: str) -> str:
            """Writes."""
            self.running.set()
            try:
                await asyncio.wait_for(self.go_on.wait(), 30)
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            return "written"

        @write.on_field("content")
        async def grow(field: FieldDelta, signal: Any) -> None:
            self.begun.set()

        @write.on_args_abort
        async def undo(call: Call, reason: str) -> None:
            self.aborted.append((call.args_json or "", reason))

        self.tool = write


Break = Callable[[Host, Watched], Awaitable[None]]


async def has_come(moment: asyncio.Event) -> bool:
    """Whether it has, or does in a while: where agent and program share a task, it may need the next event."""
    await asyncio.wait({asyncio.ensure_future(moment.wait())}, timeout=2)
    return moment.is_set()


async def closing(host: Host, watched: Watched) -> None:
    """The program leaves the loop, and its generator is closed."""
    async with aclosing(host.stream("one")) as stream:  # type: ignore[type-var]
        async for _ in stream:
            if await has_come(watched.moment):
                break


async def abort_signal(host: Host, watched: Watched) -> None:
    signal = asyncio.Event()

    async def drive() -> None:
        async for _ in host.stream("one", abort_signal=signal):
            pass

    task = asyncio.create_task(drive())
    await asyncio.wait_for(watched.moment.wait(), 10)
    signal.set()
    await asyncio.wait_for(task, 10)


async def cancelling(host: Host, watched: Watched) -> None:
    task = asyncio.create_task(host.run("one"))
    await asyncio.wait_for(watched.moment.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_limit(host: Host, watched: Watched) -> None:
    """The task goes on after the cancellation."""
    try:
        async with asyncio.timeout(None) as limit:
            async for _ in host.stream("one"):
                if limit.when() is None and await has_come(watched.moment):
                    limit.reschedule(asyncio.get_running_loop().time())
    except TimeoutError:
        pass


async def stopping(host: Host, watched: Watched) -> None:
    task = asyncio.create_task(host.run("one"))
    await asyncio.wait_for(watched.moment.wait(), 10)
    (row,) = await host.cs.journal.runs(active=True)
    run = host.cs.active_run(row.run_id)
    assert run is not None
    await run.stop("the user pressed stop")
    is_old = isinstance(host.runner.agent, SequentialAgent)
    done, _ = await asyncio.wait({task}, timeout=0.5 if is_old else 10)
    if not done:
        # Agents of the older kind look between two events whether they are to stop, and this model sends no more. The run
        # has ended all the same.
        assert is_old
        task.cancel()
        await asyncio.wait({task})


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def runs_kept(cs: Callstream) -> int:
    """How many runs are still in memory."""
    return sum(type(each) is Run and each.engine is cs.engine for each in gc.get_objects())


def alone(agent: Any) -> Any:
    return agent


def in_sequence(agent: Any) -> Any:
    return SequentialAgent(name="seq", sub_agents=[agent])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("build", [alone, in_sequence])
@pytest.mark.parametrize("break_off", [closing, abort_signal, cancelling, time_limit, stopping])
async def test_abort_in_the_middle_of_arguments(
    break_off: Break, build: Any, path: str, cs: Callstream, models: Models
) -> None:
    watched = Watched()
    async with scripted("gemini", [STALLED, END]) as provider:
        host = Host(cs, build(agent_of(models(provider, path), watched.tool)))
        await asyncio.create_task(break_off(host, watched))  # type: ignore[arg-type]
        gc.collect()  # an agent of the older kind that a time limit broke off is forgotten, and nothing else

        async def ended() -> bool:
            return not await cs.journal.runs(active=True)

        await eventually(ended)
        (run,) = await cs.journal.runs()
        assert run.outcome == "cancelled"
        (call,) = await host.calls()
        assert (call.state, call.reason) == (CallState.DISCARDED, "aborted")
        assert [reason for _, reason in watched.aborted] == ["aborted"]
        if path == "tap":
            # Without the tap google-genai leaves the stream running until it is collected.
            async def left() -> bool:
                return provider.requests[0].fate == "left"

            await eventually(left)
        assert "Done." in text_of(await host.run("two"))
    assert not watched.running.is_set()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("break_off", [abort_signal, cancelling, stopping])
async def test_abort_while_the_tool_runs(break_off: Break, path: str, cs: Callstream, models: Models) -> None:
    watched = Watched("running")
    async with scripted("gemini", [[ToolCall("write", {"content": "x"}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), watched.tool))
        await break_off(host, watched)

        async def ended() -> bool:
            return not await cs.journal.runs(active=True)

        await eventually(ended)
        (run,) = await cs.journal.runs()
        assert run.outcome == "cancelled"
        (call,) = await host.calls()
        assert call.state is CallState.FAILED
        assert watched.aborted == []  # the tool was let run
        assert watched.ended == ["cancelled"]
        assert "Done." in text_of(await host.run("two"))


async def test_abort_by_closing_the_plugin_with_its_callstream(tmp_path: Path) -> None:
    watched = Watched()
    url = f"sqlite:///{tmp_path}/calls.db"
    cs = Callstream(url)
    models = Models(cs)
    async with scripted("gemini", [STALLED, END]) as provider:
        host = Host(cs, agent_of(models(provider), watched.tool), closes_callstream=True)
        task = asyncio.create_task(host.run("one"))
        await asyncio.wait_for(watched.moment.wait(), 10)
        await host.runner.close()
        await asyncio.gather(task, return_exceptions=True)
        await models.aclose()
    async with Callstream(url) as later:
        await later.journal.open()
        (run,) = await later.journal.runs()
        assert run.outcome == "cancelled"
    assert [reason for _, reason in watched.aborted] == ["aborted"]


@pytest.mark.parametrize("kind", ["llm", "sequential"])
async def test_closing_a_runner_leaves_the_runs_of_another_with_the_same_plugin(
    kind: str, cs: Callstream, models: Models
) -> None:
    """As in ``adk eval``, which makes a runner for each case."""
    watched = Watched("running")
    async with scripted("gemini", [[ToolCall("write", {"content": "x"}), Finish()], END]) as provider:
        agent: Any = agent_of(models(provider), watched.tool)
        if kind == "sequential":
            agent = SequentialAgent(name="all", sub_agents=[agent])
        host = Host(cs, agent)
        task = asyncio.create_task(host.run("one"))
        await asyncio.wait_for(watched.moment.wait(), 10)
        other = Runner(app=App(name="other", root_agent=agent, plugins=[host.plugin]), session_service=host.sessions)
        await asyncio.wait_for(other.close(), 10)
        assert len(await cs.journal.runs(active=True)) == 1
        watched.go_on.set()
        assert "Done." in text_of(await task)
        (run,) = await cs.journal.runs()
        assert run.outcome == "finished"
        (call,) = await host.calls()
        assert call.state is CallState.COMPLETED


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("build", [alone, in_sequence])
@pytest.mark.parametrize("break_off", [closing, abort_signal, cancelling, stopping])
async def test_nothing_is_kept_of_a_run_that_was_broken_off(
    break_off: Break, build: Any, path: str, cs: Callstream, models: Models
) -> None:
    watched = Watched()
    async with scripted("gemini", [STALLED]) as provider:
        host = Host(cs, build(agent_of(models(provider, path), watched.tool)))
        await asyncio.create_task(break_off(host, watched))  # type: ignore[arg-type]

        async def is_forgotten() -> bool:
            return not host.plugin._invocations

        await eventually(is_forgotten)


async def test_a_task_that_lives_on_keeps_nothing_of_its_runs(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END] * 9) as provider:
        host = Host(cs, agent_of(models(provider, "tap")))
        for _ in range(9):
            await host.run("one")
        gc.collect()
        assert runs_kept(cs) <= 3
