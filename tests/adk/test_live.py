"""Live mode: ``Runner.run_live`` with the real SDK over a real websocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.models import Gemini
from google.adk.workflow import START, Workflow
from google.genai import types

from callstream import ArgsDelta, Callstream, Progress, Reject, no_progress, tool
from callstream.adk import StreamingTool, tapped
from callstream.calls import CallState
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallExecuting,
    CallProgressed,
    CallReturned,
    CallStarted,
    MessageReceived,
    TextAppended,
)
from callstream.testing import Call as Calls
from callstream.testing import Finish, Text

from .hosting import Host, Models, agent_of, scripted
from .liveprovider import COMPLETE, LiveProvider, Turn, calls, spoken, text

# The newer ones wait for the results before they say that a turn is complete; the older ones say it before.
MODELS = ("gemini-live-2.5-flash", "gemini-3.1-flash-live")
TEXT = RunConfig(response_modalities=["TEXT"])
AUDIO = RunConfig(response_modalities=["AUDIO"])

pytestmark = pytest.mark.filterwarnings(
    "ignore:The `session.send` method is deprecated:DeprecationWarning", "ignore::ResourceWarning"
)


class Line:
    """A host, a provider, and what a user sends to a live model."""

    def __init__(self, cs: Callstream, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cs = cs
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.queue = LiveRequestQueue()

    def provider(self, turns: list[Turn]) -> LiveProvider:
        provider = LiveProvider(self._folder, turns)
        self._monkeypatch.setenv("SSL_CERT_FILE", str(provider.certificate))
        return provider

    def model(self, provider: LiveProvider, name: str = MODELS[1]) -> Gemini:
        options = types.HttpOptions(base_url=provider.base_url)
        made = tapped(Gemini(model=name, client_kwargs={"api_key": "none", "http_options": options}), self.cs)
        assert isinstance(made, Gemini)
        return made

    def say(self, words: str) -> None:
        self.queue.send_content(types.Content(role="user", parts=[types.Part(text=words)]))

    async def stream(self, host: Host, config: RunConfig = TEXT) -> AsyncIterator[Event]:
        events = host.runner.run_live(
            user_id="user", session_id="session", live_request_queue=self.queue, run_config=config
        )
        async with aclosing(events):
            async for event in events:
                yield event

    async def talk(self, host: Host, *words: str, config: RunConfig = TEXT) -> list[Event]:
        """Says each of the words when the turn before is over, then hangs up."""
        waiting = list(words)
        self.say(waiting.pop(0))
        seen: list[Event] = []
        goes_on = False
        async for event in self.stream(host, config):
            seen.append(event)
            if event.get_function_calls():
                goes_on = True
            elif (event.content and not event.get_function_responses() and not event.partial) or (
                event.output_transcription and event.output_transcription.finished
            ):
                goes_on = False
            if event.turn_complete and not goes_on:
                if waiting:
                    self.say(waiting.pop(0))
                else:
                    self.queue.close()
        return seen


@pytest.fixture
def line(cs: Callstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(cs, tmp_path, monkeypatch)


def asked(name: str, call_id: str | None = None, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args} | ({"id": call_id} if call_id else {})


def turn_of(model: str, *messages: Any) -> Turn:
    """A turn that ends with calls."""
    return [*messages] if model == MODELS[1] else [*messages, COMPLETE]


@pytest.mark.parametrize("model", MODELS)
async def test_same_states_unstreamed_in_live_mode(model: str, line: Line) -> None:
    """A call comes whole: START, one ARGS, END; its hooks get one delta; one id from journal to model."""
    deltas: list[ArgsDelta] = []

    @tool
    async def note(text: str) -> str:
        """Notes."""
        return text.upper()

    @note.on_args_delta
    async def seen(delta: ArgsDelta, signal: Any) -> None:
        await asyncio.sleep(0.05)
        deltas.append(delta)

    turns = [
        turn_of(model, *text("I ", "note."), calls(asked("note", "fc-1", text="one"), asked("note", text="two"))),
        [*text("Done", "."), COMPLETE],
    ]
    async with line.provider(turns) as provider:
        host = Host(line.cs, agent_of(line.model(provider, model), note))
        await line.talk(host, "Go")
    first, second = await host.calls()
    assert [(call.name, call.args, call.state) for call in (first, second)] == [
        ("note", {"text": "one"}, CallState.COMPLETED),
        ("note", {"text": "two"}, CallState.COMPLETED),
    ]
    assert first.call_id == first.provider_id == "fc-1"
    assert second.provider_id is None
    assert [result["id"] for result in provider.results] == [first.call_id, second.call_id]
    assert [result["response"] for result in provider.results] == [{"result": "ONE"}, {"result": "TWO"}]
    assert sorted(delta.text for delta in deltas) == ['{"text":"one"}', '{"text":"two"}']
    events = await host.events()
    assert [type(event) for event in events if getattr(event, "call_id", None) == "fc-1"] == [
        CallStarted,
        ArgsAppended,
        CallCompleted,
        CallExecuting,
        CallReturned,
    ]
    assert "".join(event.text for event in events if isinstance(event, TextAppended)) == "I note.Done."
    assert [event.text for event in events if isinstance(event, MessageReceived)] == ["Go"]
    assert [run.outcome for run in await line.cs.journal.runs()] == ["finished"]


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

    script = [[Text("Intro."), Calls("note", {"text": "x"}), Finish()], [Text("The end."), Finish()]]
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


@pytest.mark.parametrize("on_truncated", ["tell_model", "fail"])
async def test_truncated_never_runs_in_live_mode(on_truncated: Any, line: Line) -> None:
    ran: list[str] = []

    def write(content: str = "nothing") -> str:
        ran.append(content)
        return "ok"

    half = {
        "id": "fc-1",
        "name": "write",
        "partialArgs": [{"jsonPath": "$.content", "stringValue": "The mo", "willContinue": True}],
    }
    turns: list[Turn] = [[calls({**half, "willContinue": True})], [*text("I see."), COMPLETE]]
    async with line.provider(turns) as provider:
        host = Host(line.cs, agent_of(line.model(provider), write), on_truncated=on_truncated)
        events = await line.talk(host, "Go")
    assert ran == []
    (call,) = await host.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")
    assert call.args_json == '{"content":"The mo'
    (run,) = await line.cs.journal.runs()
    if on_truncated == "tell_model":
        ((result),) = provider.results
        assert "were cut off" in result["response"]["error"]
        assert run.outcome == "finished"
    else:
        assert provider.results == []
        assert [event.error_code for event in events if event.error_code] == ["TRUNCATED_TOOL_CALL"]
        assert run.outcome == "failed"
        assert "were cut off" in (run.reason or "")


async def test_reject_tells_model_in_live_mode(line: Line) -> None:
    @tool
    async def write(content: str) -> str:
        """Writes."""
        raise AssertionError("it must not run")

    @write.on_args_complete
    async def check(call: Any, signal: Any) -> None:
        raise Reject("not on a Sunday")

    async with line.provider(
        [[calls(asked("write", "fc-1", content="x"))], [*text("Then not."), COMPLETE]]
    ) as provider:
        host = Host(line.cs, agent_of(line.model(provider), write))
        await line.talk(host, "Go")
    (result,) = provider.results
    assert result["response"] == {"error": "not on a Sunday"}
    (call,) = await host.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "rejected")


@pytest.mark.parametrize("way", ["close", "cancel", "stop"])
@pytest.mark.parametrize("where", ["text", "tool"])
async def test_abort_in_live_mode(way: str, where: str, line: Line) -> None:
    """It ends the run, what is open, and the connection; the session can be used again."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def write(content: str) -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "ok"

    first: Turn = [*text("I write."), 30.0] if where == "text" else [calls(asked("write", "fc-1", content="x"))]
    async with line.provider([first]) as provider:
        host = Host(line.cs, agent_of(line.model(provider), write))
        line.say("Go")

        async def consume() -> None:
            async for event in line.stream(host):
                if where == "text" and event.content:
                    begun.set()
                    if way == "close":
                        return

        task = asyncio.create_task(consume())
        await asyncio.wait_for(begun.wait(), 10)
        (row,) = await line.cs.journal.runs()
        if way == "stop":
            run = line.cs.active_run(row.run_id)
            assert run is not None
            await run.stop("enough")
        elif way == "cancel" or where == "tool":
            task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.done()
        await asyncio.wait_for(provider.closed.wait(), 10)
        if where == "tool":
            await asyncio.wait_for(ended.wait(), 10)
        async with asyncio.timeout(10):
            while (await line.cs.journal.runs())[0].outcome is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (row,) = await line.cs.journal.runs()
        assert row.outcome == "cancelled"
        assert all(call.state in (CallState.DISCARDED, CallState.FAILED) for call in await host.calls())
    line.queue = LiveRequestQueue()
    async with line.provider([[*text("Here again."), COMPLETE]]) as provider:
        again = Host(line.cs, agent_of(line.model(provider), write), sessions=host.sessions)
        await line.talk(again, "Again")
        history = [part for message in provider.received for part in parts_in(message)]
    assert sum("functionCall" in part for part in history) == sum("functionResponse" in part for part in history)
    assert (await line.cs.journal.runs())[0].outcome == "finished"


def parts_in(message: dict[str, Any]) -> list[dict[str, Any]]:
    turns = message.get("client_content", {}).get("turns", [])
    return [part for turn in turns for part in turn["parts"]]


async def test_connection_that_breaks_fails_the_run(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "google_adk")
    async with line.provider([[*text("I wri"), None]]) as provider:
        host = Host(line.cs, agent_of(line.model(provider)))
        with pytest.raises(Exception, match=r"1006|closed|close frame"):
            await line.talk(host, "Go")
    assert [run.outcome for run in await line.cs.journal.runs()] == ["failed"]


async def test_agents_one_after_another_in_live_mode(line: Line) -> None:
    """Each agent's text is its own."""
    done = calls(asked("task_completed", "t"))
    turns: list[Turn] = [[*text("Draft."), done], [], [*text("Review."), COMPLETE]]
    async with line.provider(turns) as provider:
        writer = LlmAgent(name="writer", model=line.model(provider), output_key="draft")
        critic = LlmAgent(name="critic", model=line.model(provider), output_key="review")
        host = Host(line.cs, SequentialAgent(name="seq", sub_agents=[writer, critic]))
        line.say("Go")
        async for event in line.stream(host):
            if event.get_function_responses():
                # google-adk hangs up a moment later, and calls for the next agent.
                asyncio.get_running_loop().call_later(1.5, line.say, "And now?")
            elif event.turn_complete and event.author == "critic":
                line.queue.close()
    state = (await host.session()).state
    assert (state["draft"], state["review"]) == ("Draft.", "Review.")
    records = await host.records()
    said = {record.author: record.event.text for record in records if isinstance(record.event, TextAppended)}
    assert said == {"writer": "Draft.", "critic": "Review."}
