"""Wherever an agent runs: beside others, below others, as a tool, in a thread."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.events.event import Event
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.workflow import START, Workflow
from google.genai import types

from callstream import Callstream, FieldDelta, tool
from callstream.calls import CallState
from callstream.events import CallStarted
from callstream.testing import Delay, Finish, ReceivedRequest, Text, ToolCall

from .hosting import PATHS, STREAMED, WIRES, Host, Models, agent_of, by_agent, scripted, text_of

END = [Text("Done."), Finish()]


def note(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize("path", PATHS)
async def test_parallel_agents_keep_their_calls_apart(path: str, cs: Callstream, models: Models) -> None:
    """Both read at once, with the same id in both; author and result say whose is whose."""

    def script(word: str) -> list[Any]:
        return [[Text(word), ToolCall("note", {"text": word}, call_id="0"), Delay(0.05), Finish()], END]

    words = ["red", "green", "blue"]
    async with scripted("gemini", by_agent({word.upper(): script(word) for word in words})) as provider:
        model = models(provider, path)
        agents = [LlmAgent(name=word, model=model, instruction=word.upper(), tools=[note]) for word in words]
        host = Host(cs, ParallelAgent(name="all", sub_agents=agents))
        await host.run()
    calls = await host.calls()
    started = {r.event.call_id: r.author for r in await host.records() if isinstance(r.event, CallStarted)}
    assert {(started[c.call_id], c.args["text"], c.result["result"]) for c in calls} == {
        (word, word, word.upper()) for word in words
    }
    assert [call.provider_id for call in calls] == ["0"] * 3
    assert {call.state for call in calls} == {CallState.COMPLETED}
    assert len(await cs.journal.runs()) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_transfer_to_a_sub_agent(path: str, cs: Callstream, models: Models) -> None:
    scripts = {
        "HELPER": [[ToolCall("note", {"text": "x"}), Finish()], END],
        "BOSS": [[ToolCall("transfer_to_agent", {"agent_name": "helper"}), Finish()]],
    }
    async with scripted("gemini", by_agent(scripts)) as provider:
        model = models(provider, path)
        helper = LlmAgent(name="helper", model=model, instruction="HELPER", description="helps", tools=[note])
        boss = LlmAgent(name="boss", model=model, instruction="BOSS", sub_agents=[helper])
        host = Host(cs, boss)
        events = await host.run()
    assert text_of(events) == "Done."
    assert [(call.name, call.state) for call in await host.calls()] == [
        ("transfer_to_agent", CallState.COMPLETED),
        ("note", CallState.COMPLETED),
    ]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("build", ["sequence", "workflow"])
async def test_agents_one_after_another(build: str, path: str, cs: Callstream, models: Models) -> None:
    step = [ToolCall("note", {"text": "x"}), Finish()]
    async with scripted("gemini", [step, END, step, END]) as provider:
        model = models(provider, path)
        first, second = (LlmAgent(name=name, model=model, tools=[note]) for name in ("first", "second"))
        root: Any
        if build == "workflow":
            root = Workflow(name="flow", edges=[(START, first), (first, second)])
        else:
            root = SequentialAgent(name="seq", sub_agents=[first, second])
        host = Host(cs, root)
        await host.run()
    records = await host.records()
    assert [r.author for r in records if isinstance(r.event, CallStarted)] == ["first", "second"]
    assert [call.state for call in await host.calls()] == [CallState.COMPLETED] * 2
    assert [run.outcome for run in await cs.journal.runs()] == ["finished"]


@pytest.mark.parametrize("path", PATHS)
async def test_agent_as_a_tool_belongs_to_the_run(path: str, cs: Callstream, models: Models) -> None:
    scripts = {
        "HELPER": [[ToolCall("note", {"text": "x"}), Finish()], [Text("I noted it."), Finish()]],
        "BOSS": [[ToolCall("helper", {"request": "note x"}), Finish()], END],
    }
    async with scripted("gemini", by_agent(scripts)) as provider:
        model = models(provider, path)
        helper = LlmAgent(name="helper", model=model, instruction="HELPER", tools=[note])
        boss = LlmAgent(name="boss", model=model, instruction="BOSS", tools=[AgentTool(helper)])
        host = Host(cs, boss)
        await host.run()
    (run,) = await cs.journal.runs()
    assert (run.thread_id, run.outcome) == ("session", "finished")
    assert [(call.name, call.result) for call in await host.calls()] == [
        ("helper", {"result": "I noted it."}),
        ("note", {"result": "X"}),
    ]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ticket", [None, {"ticket": 7}])
async def test_call_that_waits_in_an_agent_that_is_a_tool_fails_with_it(
    path: str, ticket: Any, cs: Callstream, models: Models
) -> None:
    def ask(text: str) -> Any:
        """Asks a person."""
        return ticket

    scripts = {
        "HELPER": [[ToolCall("ask", {"text": "x"}), Finish()], [Text("I asked."), Finish()]],
        "BOSS": [[ToolCall("ask", {"text": "y"}), ToolCall("helper", {"request": "ask x"}), Finish()], END],
    }
    async with scripted("gemini", by_agent(scripts)) as provider:
        model = models(provider, path)
        asks = LongRunningFunctionTool(ask)
        helper = LlmAgent(name="helper", model=model, instruction="HELPER", tools=[asks])
        boss = LlmAgent(name="boss", model=model, instruction="BOSS", tools=[asks, AgentTool(helper)])
        host = Host(cs, boss)
        await host.run()
    (run,) = await cs.journal.runs()
    assert run.outcome == "finished"
    found = {(call.name, call.state) for call in await host.calls()}
    assert found == {("ask", CallState.AWAITING), ("helper", CallState.COMPLETED), ("ask", CallState.FAILED)}
    (failed,) = await cs.journal.calls(states=[CallState.FAILED])
    assert "google-adk cannot resume it" in (failed.error or "")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a loop that ends takes its connections with it
@pytest.mark.parametrize("path", PATHS)
def test_runner_without_a_loop(path: str) -> None:
    """Runner.run makes a thread and a loop of its own for every turn; one Callstream serves them all."""
    cs = Callstream()
    step = [ToolCall("note", {"text": "x"}), Finish()]
    with scripted("gemini", [step, END, step, END]) as provider:
        models = Models(cs)
        made = asyncio.run(_made(models, provider, path))
        host = Host(cs, agent_of(made, note))
        message = types.Content(role="user", parts=[types.Part(text="Go")])
        for _ in range(2):
            events = list(
                host.runner.run(user_id="user", session_id="session", new_message=message, run_config=STREAMED)
            )
            assert "Done." in text_of(events)

    async def rest() -> None:
        assert [call.state for call in await host.calls()] == [CallState.COMPLETED] * 2
        assert [run.outcome for run in await cs.journal.runs()] == ["finished"] * 2
        await models.aclose()
        await cs.aclose()

    asyncio.run(rest())
    gc.collect()


async def _made(models: Models, provider: Any, path: str) -> Any:
    return models(provider, path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("build", ["alone", "sequence"])
async def test_every_step_in_a_task_of_its_own(build: str, path: str, cs: Callstream, models: Models) -> None:
    """A program that waits for each event with a time limit drives the generator from many tasks."""
    async with scripted("gemini", [[Text("Hm."), ToolCall("note", {"text": "x"}), Finish()], END]) as provider:
        agent: Any = agent_of(models(provider, path), note)
        host = Host(cs, agent if build == "alone" else SequentialAgent(name="seq", sub_agents=[agent]))
        stream = host.stream("Go")
        events: list[Event] = []
        while True:
            try:
                events.append(await asyncio.wait_for(anext(stream), 10))
            except StopAsyncIteration:
                break
    assert "Done." in text_of(events)
    (call,) = await host.calls()
    assert call.state is CallState.COMPLETED
    assert [run.outcome for run in await cs.journal.runs()] == ["finished"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # SDKs leave a stream that is broken off to the collector
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_arguments_are_live(wire: str, path: str, cs: Callstream, models: Models) -> None:
    """A hook sees the beginning of the arguments while the model has still to write their end."""
    seen = asyncio.Event()

    @tool
    async def write(content: str) -> str:
        """Writes."""
        return "ok"

    @write.on_field("content")
    async def grow(field: FieldDelta, signal: Any) -> None:
        seen.set()

    def script(request: ReceivedRequest) -> Any:
        return [ToolCall("write", {"content": "The moon pulls the sea."}, stop_after=3), Delay(30), Finish()]

    async with scripted(wire, script) as provider:
        host = Host(cs, agent_of(models(provider, path), write))
        task = asyncio.create_task(host.run())
        await asyncio.wait_for(seen.wait(), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    del task
    gc.collect()


async def test_run_of_the_program_is_joined(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("note", {"text": "x"}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider), note))
        async with cs.run("my thread", "my run") as run:
            await host.run()
            assert run.outcome is None
    (row,) = await cs.journal.runs()
    assert (row.run_id, row.outcome, [call.name for call in await host.calls()]) == ("my run", "finished", ["note"])
