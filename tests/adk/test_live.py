"""Live mode: `Runner.run_live` with the real SDK over a real web socket, and how its runs end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin

from callstream import ArgsDelta, Reject, tool
from callstream.adk import AgentTextFilter
from callstream.calls import CallState
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallExecuting,
    CallReturned,
    CallStarted,
    MessageReceived,
    TextAppended,
)

from .hosting import Host, agent_of
from .liveline import MODELS, Line, asked, turn_of
from .liveprovider import COMPLETE, LiveProvider, Turn, calls, text

pytestmark = pytest.mark.filterwarnings(
    "ignore:The `session.send` method is deprecated:DeprecationWarning", "ignore::ResourceWarning"
)


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


async def test_what_a_text_filter_takes_out_in_live_mode_is_not_shown(line: Line) -> None:
    turns: list[Turn] = [[*text("It is s3", "cr3t, and so on."), COMPLETE]]
    async with line.provider(turns) as provider:
        hide = AgentTextFilter.redacting("s3cr3t", "***")
        host = Host(line.cs, agent_of(line.model(provider), after_model_callback=hide))
        await line.talk(host, "Go")
    events = await host.events()
    assert "".join(event.text for event in events if isinstance(event, TextAppended)) == "It is ***, and so on."
    assert "s3" not in repr(events)


async def test_what_a_plugin_takes_out_in_live_mode_is_never_shown(line: Line) -> None:
    ran: list[str] = []

    @tool
    async def note(word: str) -> str:
        """Notes."""
        ran.append(word)
        return "noted"

    class Masking(BasePlugin):
        async def on_event_callback(self, *, invocation_context: Any, event: Event) -> Event:
            content = event.content.model_copy(deep=True) if event.content is not None else None
            for part in (content and content.parts) or ():
                if part.function_call is not None:
                    part.function_call.args = {"word": "***"}
                if part.text:
                    part.text = part.text.replace("s3cr3t", "***")
            return Event(author=event.author, content=content)

    turns: list[Turn] = [
        [*text("It is s3", "cr3t."), calls(asked("note", "fc-1", word="s3cr3t"))],
        [*text("Done", "."), COMPLETE],
    ]
    async with line.provider(turns) as provider:
        host = Host(line.cs, agent_of(line.model(provider), note), plugins=[Masking("masking")])
        await line.talk(host, "Go")
    assert ran == ["s3cr3t"]
    (call,) = await host.calls()
    assert (call.call_id, call.args, call.state) == ("fc-1", {"word": "***"}, CallState.COMPLETED)
    events = await host.events()
    assert "".join(event.text for event in events if isinstance(event, TextAppended)) == "It is ***.Done."
    assert "s3c" not in repr(events)


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


async def say_when_called_again(line: Line, provider: LiveProvider, words: str) -> None:
    while len(provider.setups) < 2:  # noqa: ASYNC110  # the provider has no event for it
        await asyncio.sleep(0.01)
    line.say(words)


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
                speaking = asyncio.create_task(say_when_called_again(line, provider, "And now?"))
            elif event.turn_complete and event.author == "critic":
                line.queue.close()
        await speaking
    state = (await host.session()).state
    assert (state["draft"], state["review"]) == ("Draft.", "Review.")
    records = await host.records()
    said = {record.author: record.event.text for record in records if isinstance(record.event, TextAppended)}
    assert said == {"writer": "Draft.", "critic": "Review."}
