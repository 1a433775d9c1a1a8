"""No tool runs on arguments that the model did not finish, whatever the model class."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.events.event import Event

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Cut, Failure, Finish, Text, ToolCall, Truncated

from .hosting import PATHS, STREAMED, WHOLE, WIRES, Host, Models, RawProvider, agent_of, responses_in, scripted

ARGS = {"title": "Tides", "content": "The moon pulls the sea, and the sea follows."}
UNFINISHED = ToolCall("write", ARGS, stop_after=4, size=8)


class Writer:
    def __init__(self) -> None:
        self.ran: list[Any] = []

    def tool(self) -> Any:
        def write(title: str = "untitled", content: str = "") -> str:
            """Writes."""
            self.ran.append((title, content))
            return "written"

        return write


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_truncated_never_runs_and_the_model_is_told(wire: str, path: str, cs: Callstream, models: Models) -> None:
    writer = Writer()
    script = [
        [Text("I write."), UNFINISHED, Finish("length")],
        [ToolCall("write", ARGS), Finish()],
        [Text("Ok."), Finish()],
    ]
    async with scripted(wire, script) as provider:
        host = Host(cs, agent_of(models(provider, path), writer.tool()))
        try:
            events = await host.run()
        except ValueError:  # google-adk's class for Anthropic gives up when it reads half an object itself
            assert (wire, path) == ("anthropic", "partial")
            events = []
        requests = [request.body.decode() for request in provider.requests]
    calls = await host.calls()
    assert (calls[0].state, calls[0].reason) in {
        (CallState.DISCARDED, "truncated"),
        (CallState.DISCARDED, "interrupted"),
    }
    if events:
        assert calls[0].reason == "truncated"
        assert "were cut off" in requests[1]
        assert "were cut off" in responses_in(events)[0][1]["error"]
        assert [call.state for call in calls] == [CallState.DISCARDED, CallState.COMPLETED]
        assert events[-1].content.parts[0].text == "Ok."
        assert writer.ran == [tuple(ARGS.values())]
    else:
        assert writer.ran == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_truncated_never_runs_and_the_run_fails(wire: str, path: str, cs: Callstream, models: Models) -> None:
    writer = Writer()
    async with scripted(wire, [[Text("I write."), UNFINISHED, Finish("length")]]) as provider:
        host = Host(cs, agent_of(models(provider, path), writer.tool()), on_truncated="fail")
        try:
            events = await host.run()
        except ValueError:
            assert (wire, path) == ("anthropic", "partial")
            return
        assert len(provider.requests) == 1
    assert writer.ran == []
    assert events[-1].error_code == "TRUNCATED_TOOL_CALL"
    assert "write were cut off" in (events[-1].error_message or "")
    (run,) = await cs.journal.runs()
    assert run.outcome == "failed"
    assert "write were cut off" in (run.reason or "")
    (call,) = await host.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("end", [Truncated(), Cut(), Failure("overloaded")], ids=["body ends", "cut", "error object"])
async def test_truncated_never_runs_when_the_stream_breaks(
    end: Any, wire: str, path: str, cs: Callstream, models: Models
) -> None:
    writer = Writer()
    async with scripted(wire, [[Text("I write."), UNFINISHED, end], [Text("Ok."), Finish()]]) as provider:
        host = Host(cs, agent_of(models(provider, path), writer.tool()))
        events: list[Event] = []
        broke = False
        try:
            async for event in host.stream("Go"):
                events.append(event)
        except Exception:  # noqa: BLE001  # what each SDK makes of it is its own
            broke = True
    assert writer.ran == []
    (call,) = await host.calls()
    assert call.state is CallState.DISCARDED
    assert call.reason in ("truncated", "interrupted", "malformed")
    run = (await cs.journal.runs())[-1]
    assert run.outcome == ("failed" if broke else "finished")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "MAX_TOKENS", "SAFETY", None])
async def test_malformed_never_runs(reason: str | None, path: str, cs: Callstream, models: Models) -> None:
    writer = Writer()

    def part(part: dict[str, Any], **candidate: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"role": "model", "parts": [part]}, **candidate}]}

    piece = {"jsonPath": "$.content", "stringValue": "The mo", "willContinue": True}
    streamed = [
        part({"functionCall": {"name": "write", "willContinue": True}}),
        part({"functionCall": {"partialArgs": [piece], "willContinue": True}}),
        part({"text": ""}, **({"finishReason": reason} if reason else {})),
    ]
    done = [part({"text": "Ok."}, finishReason="STOP")]
    async with RawProvider("gemini", [streamed, done]) as provider:
        host = Host(cs, agent_of(models(provider, path), writer.tool()))
        events = await host.run()
    assert writer.ran == []
    (call,) = await host.calls()
    assert call.state is CallState.DISCARDED
    assert call.reason == ("malformed" if reason == "MALFORMED_FUNCTION_CALL" else "truncated")
    assert call.args_json == '{"content":"The mo'  # kept for inspection
    assert events[-1].content.parts[0].text == "Ok."


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize(
    ("path", "config"),
    [("tap", STREAMED), ("tap", WHOLE), ("partial", STREAMED)],
    ids=["tap-streamed", "tap-whole", "partial-streamed"],
)
async def test_malformed_never_runs_on_openai(
    config: Any, wire: str, path: str, cs: Callstream, models: Models
) -> None:
    """google-adk itself calls the tool with {}, so with its defaults."""
    writer = Writer()
    script = [[ToolCall("write", text='{"title": "Tides", "content": oops}'), Finish()], [Text("Ok."), Finish()]]
    async with scripted(wire, script) as provider:
        host = Host(cs, agent_of(models(provider, path), writer.tool()))
        events = await host.run(config=config)
    assert writer.ran == []
    (call,) = await host.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "malformed")
    assert "cannot be read" in responses_in(events)[0][1]["error"]


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
async def test_malformed_never_runs_a_tool_that_needs_something(wire: str, cs: Callstream, models: Models) -> None:
    """Neither tapped nor streamed, such a call is seen by nobody but google-adk's class for OpenAI, which makes {} of it.

    A tool that needs a parameter does not run then; one that needs none runs as if the model had given none.
    """
    ran: list[str] = []

    def write(title: str, content: str = "") -> str:
        """Writes."""
        ran.append(title)
        return "written"

    script = [[ToolCall("write", text='{"title": "Tides", "content": oops}'), Finish()], [Text("Ok."), Finish()]]
    async with scripted(wire, script) as provider:
        host = Host(cs, agent_of(models(provider, "partial"), write))
        events = await host.run(config=WHOLE)
    assert ran == []
    (call,) = await host.calls()
    assert (call.state, call.args) == (CallState.FAILED, {})
    assert "title" in responses_in(events)[0][1]["error"]


async def test_truncated_never_runs_for_ever(cs: Callstream, models: Models) -> None:
    """A model that never finishes a call is told three times, then the run fails."""
    writer = Writer()
    async with scripted("gemini", [UNFINISHED, Finish("length")]) as provider:
        host = Host(cs, agent_of(models(provider), writer.tool()))
        events = await host.run()
        assert len(provider.requests) == 4
    assert events[-1].error_code == "TRUNCATED_TOOL_CALL"
    assert writer.ran == []


@pytest.mark.parametrize("path", PATHS)
async def test_malformed_never_runs_on_anthropic(path: str, cs: Callstream, models: Models) -> None:
    """google-adk's own class raises, which ends the run; at the wire the model is told, as on all others."""
    writer = Writer()
    script = [[ToolCall("write", text='{"title": "Tides", "content": oops}'), Finish()], [Text("Ok."), Finish()]]
    async with scripted("anthropic", script) as provider:
        host = Host(cs, agent_of(models(provider, path), writer.tool()))
        if path == "tap":
            events = await host.run()
            assert "cannot be read" in responses_in(events)[0][1]["error"]
        else:
            with pytest.raises(ValueError, match="Invalid JSON"):
                await host.run()
    assert writer.ran == []
    (call,) = await host.calls()
    (run,) = await cs.journal.runs()
    assert call.state is CallState.DISCARDED
    if path == "tap":
        assert (call.reason, run.outcome) == ("malformed", "finished")
        assert call.args_json == '{"title": "Tides", "content": oops}'  # kept, to be looked at
    else:
        assert (call.reason, run.outcome) == ("interrupted", "failed")
        assert "Invalid JSON" in (call.detail or "")
