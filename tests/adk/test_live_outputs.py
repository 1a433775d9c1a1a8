"""Live mode: progress of tools, and what output keys get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.workflow import START, Workflow
from google.genai import types

from callstream import Progress, no_progress, tool
from callstream.adk import StreamingTool
from callstream.calls import CallState
from callstream.events import (
    CallProgressed,
    TextAppended,
)
from callstream.testing import Finish, Text, ToolCall

from .hosting import Host, Models, agent_of, scripted
from .liveline import MODELS, Line, asked, turn_of
from .liveprovider import COMPLETE, Turn, calls, spoken, text

AUDIO = RunConfig(response_modalities=["AUDIO"])

pytestmark = pytest.mark.filterwarnings(
    "ignore:The `session.send` method is deprecated:DeprecationWarning", "ignore::ResourceWarning"
)


def async_tool() -> Any:
    @tool
    async def work(n: int, progress: Progress = no_progress) -> str:
        """Works."""
        for done in range(n):
            await progress(done + 1, n, "secret step")
        return "worked"

    return work


def sync_tool() -> Any:
    @tool
    def work(n: int, progress: Progress = no_progress) -> str:
        """Works."""
        for done in range(n):
            progress(done + 1, n, "secret step")
        return "worked"

    return work


def generator_tool() -> Any:
    @tool
    async def work(n: int, progress: Progress = no_progress) -> AsyncIterator[str]:
        """Works."""
        for done in range(n):
            yield f"part {done}"
            await progress(done + 1, n, "secret step")

    return work


def plain_function() -> Any:
    async def work(n: int, progress_callback: Callable[[Any], Awaitable[None]] | None = None) -> str:
        """Works."""
        assert progress_callback is not None
        for done in range(n):
            await progress_callback({"done": done + 1, "total": n, "message": "secret step"})
        return "worked"

    return work


def plain_generator() -> Any:
    async def work(n: int, progress_callback=None) -> AsyncIterator[str]:  # type: ignore[no-untyped-def]
        """Works."""
        for done in range(n):
            yield f"part {done}"
            await progress_callback({"done": done + 1, "total": n, "message": "secret step"})

    return work


@pytest.mark.parametrize("make", [async_tool, sync_tool, generator_tool, plain_function, plain_generator])
@pytest.mark.parametrize("wrap", [lambda made: made, StreamingTool])
async def test_progress_out_of_band_in_live_mode(make: Callable[[], Any], wrap: Any, line: Line) -> None:
    """It reaches the handler while the tool runs, never the model; yields reach the model as google-adk has it."""
    told: list[tuple[str, str, Any]] = []
    line.cs.on_tool_progress = lambda name, call_id, data: told.append((name, call_id, data))
    is_generator = make in (generator_tool, plain_generator)
    made = make()
    answers: list[Turn] = [[*text("Done."), COMPLETE]]
    if is_generator:
        answers = [[], [], [], [*text("Done."), COMPLETE]]  # pending, and three parts
    async with line.provider([[calls(asked("work", "fc-1", n=3))], *answers]) as provider:
        host = Host(line.cs, agent_of(line.model(provider), wrap(made)))
        await line.talk(host, "Go")
        (call,) = await host.calls()
        events = await host.events()
    assert told[-1] == ("work", "fc-1", {"done": 3, "total": 3, "message": "secret step"})
    reported = [event.data for event in events if isinstance(event, CallProgressed)]
    assert reported[-1] == told[-1][2]
    assert "secret step" not in str(provider.received)
    (declared,) = provider.setups[0]["tools"][0]["functionDeclarations"]
    assert "progress" not in str(declared)
    assert call.state is CallState.COMPLETED
    sent = [result["response"] for result in provider.results]
    if is_generator:
        assert [each for each in sent if "result" in each] == [{"result": f"part {n}"} for n in range(3)]
        assert [each for each in sent if "pending" in str(each)] != []
        assert call.result == {"result": ["part 0", "part 1", "part 2"]}
    else:
        assert sent == [call.result] == [{"result": "worked"}]


async def test_progress_out_of_band_of_a_stream_that_is_stopped(line: Line) -> None:
    """A generator that goes on while the conversation does is executing until it ends."""
    going = asyncio.Event()

    @tool
    async def watch(what: str, progress: Progress = no_progress) -> AsyncIterator[str]:
        """Watches."""
        yield "first"
        await progress({"seen": 1})
        going.set()
        await asyncio.sleep(60)

    def stop_streaming(function_name: str) -> None:
        """Stops."""

    turns: list[Turn] = [[calls(asked("watch", "w", what="x"))], [], [*text("Watching."), COMPLETE]]
    turns += [[calls(asked("stop_streaming", "s", function_name="watch"))], [*text("Stopped."), COMPLETE]]
    states: list[CallState] = []
    async with line.provider(turns) as provider:
        host = Host(line.cs, agent_of(line.model(provider), watch, stop_streaming))
        line.say("Watch")
        async for event in line.stream(host):
            if event.turn_complete and not states:
                await going.wait()
                states.append((await host.calls())[0].state)
                line.say("Stop")
            elif event.turn_complete:
                line.queue.close()
    watching, stopping = await host.calls()
    assert states == [CallState.EXECUTING]
    assert (watching.state, stopping.state) == (CallState.FAILED, CallState.COMPLETED)
    assert "CancelledError" in (watching.error or "")


def root(agent: LlmAgent) -> Any:
    return agent


def workflow(agent: LlmAgent) -> Any:
    return Workflow(name="flow", edges=[(START, agent.clone(update={"mode": "chat"}))])


@pytest.mark.parametrize("build", [root, workflow])
@pytest.mark.parametrize("model", MODELS)
async def test_output_key_whole_in_live_mode(model: str, build: Any, line: Line) -> None:
    def note(text: str) -> str:
        return text

    turns = [
        turn_of(model, *text("Intro one. ", "Intro two."), calls(asked("note", "fc-1", text="x"))),
        turn_of(model, *text("A thought.", thought=True), *text("Progress."), calls(asked("note", "fc-2", text="y"))),
        [*text("Conclusion one. ", "Conclusion two."), COMPLETE],
        [*text("Again."), COMPLETE],
    ]
    steps = ["Intro one. Intro two.", "Intro one. Intro two.Progress."]
    whole = "Intro one. Intro two.Progress.Conclusion one. Conclusion two."
    async with line.provider(turns) as provider:
        agent = agent_of(line.model(provider, model), note, output_key="draft")
        host = Host(line.cs, build(agent))
        events = await line.talk(host, "one", "two")
    written = [event.actions.state_delta["draft"] for event in events if "draft" in event.actions.state_delta]
    assert list(dict.fromkeys(written)) == [*steps, whole, "Again."]
    assert (await host.session()).state["draft"] == "Again."
    said = [event.text for event in await host.events() if isinstance(event, TextAppended)]
    assert "".join(said) == whole + "Again."


async def test_output_key_whole_of_a_node_that_is_asked(line: Line, models: Models) -> None:
    """In a live workflow google-adk asks nodes of a single turn in the ordinary way: they are read like all such."""

    def note(text: str) -> str:
        return text

    script = [[Text("Intro."), ToolCall("note", {"text": "x"}), Finish()], [Text("The end."), Finish()]]
    async with scripted("gemini", script) as provider:
        agent = agent_of(models(provider), note, output_key="draft")
        host = Host(line.cs, Workflow(name="flow", edges=[(START, agent)]))
        line.say("Go")
        async for _ in line.stream(host):
            pass
    assert (await host.session()).state["draft"] == "Intro.The end."
    (call,) = await host.calls()
    assert (call.state, call.args) == (CallState.COMPLETED, {"text": "x"})
    said = [event.text for event in await host.events() if isinstance(event, TextAppended)]
    assert "".join(said) == "Intro.The end."


async def test_output_key_whole_of_a_voice(line: Line) -> None:
    def note(text: str) -> str:
        return text

    turns: list[Turn] = [
        [*spoken("Intro ", "one. "), calls(asked("note", "fc-1", text="x"))],
        [*spoken("The end."), COMPLETE],
    ]
    async with line.provider(turns) as provider:
        host = Host(line.cs, agent_of(line.model(provider), note, output_key="draft"))
        await line.talk(host, "Go", config=AUDIO)
    assert (await host.session()).state["draft"] == "Intro one. The end."
    said = [event.text for event in await host.events() if isinstance(event, TextAppended)]
    assert "".join(said) == "Intro one. The end."
    (call,) = await host.calls()
    assert call.state is CallState.COMPLETED


async def test_output_key_whole_of_a_conversation_without_a_written_word(line: Line) -> None:
    """Nobody is told where a user's turn begins if it is not transcribed; the model says where its own ends."""

    def note(text: str) -> str:
        return text

    def speak() -> None:
        line.queue.send_realtime(types.Blob(data=b"\0\0", mime_type="audio/pcm;rate=16000"))

    turns: list[Turn] = [
        [*spoken("Intro. "), calls(asked("note", "fc-1", text="x"))],
        [*spoken("The end."), COMPLETE],
        [*spoken("Again."), COMPLETE],
    ]
    async with line.provider(turns) as provider:
        host = Host(line.cs, agent_of(line.model(provider), note, output_key="draft"))
        speak()
        drafts: list[str] = []
        async for event in line.stream(host, AUDIO):
            if event.turn_complete:
                drafts.append((await host.session()).state["draft"])
                if len(drafts) == 2:
                    line.queue.close()
                else:
                    speak()
    assert drafts == ["Intro. The end.", "Again."]
