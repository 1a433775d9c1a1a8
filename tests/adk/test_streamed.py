"""Streamed parameters under google-adk, read by the tap and from its partial events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext

from callstream import ArgumentsAborted, CallState, Callstream, Streamed, UsageError, tool
from callstream.testing import Finish, Text, ToolCall, Truncated
from tests.gated import GatedProvider

from .hosting import PATHS, WIRES, Host, Models, agent_of, responses_in, scripted, text_of

ARGS = {"title": "Tides", "content": "It rises and it falls, twice a day, for ever."}


class Desk:
    """The tool, and what it saw. Its first piece opens the provider's gate."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.pieces: list[str] = []
        self.aborted: list[str] = []
        self.provider: GatedProvider | None = None

    def write(self, **settings: Any) -> Any:
        @tool(**settings)
        async def write(title: str, content: Streamed[str], style: str = "plain") -> dict[str, int]:
            """Writes."""
            self.runs.append(f"{title} ({style})")
            try:
                async for piece in content:
                    self.pieces.append(piece)
                    if self.provider is not None:
                        self.provider.open()
            except ArgumentsAborted as error:
                self.aborted.append(error.reason)
                raise
            return {"characters": len(content.text)}

        return write


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_the_tool_reads_before_the_provider_has_sent_the_last(
    cs: Callstream, models: Models, wire: str, path: str
) -> None:
    desk = Desk()
    script = [[ToolCall("write", ARGS, call_id="c1", size=4)], [Text("Done.")]]
    with GatedProvider(wire, script, held=4) as provider:
        desk.provider = provider
        host = Host(cs, agent_of(models(provider, path), desk.write()))
        events = await host.run()
    assert provider.was_opened
    assert [response for _, response in responses_in(events)] == [{"characters": len(ARGS["content"])}]
    assert text_of(events).endswith("Done.")
    assert desk.runs == ["Tides (plain)"]
    assert "".join(desk.pieces) == ARGS["content"]
    [call] = await host.calls()
    assert (call.state, call.ran_early, call.args) == (CallState.COMPLETED, True, ARGS)
    assert call.result == {"characters": len(ARGS["content"])}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("end", [Truncated(), Finish("length")])
async def test_a_call_that_is_cut_off_is_aborted_inside_and_never_runs_again(
    cs: Callstream, models: Models, path: str, end: Any
) -> None:
    for stop_after in range(1, 16, 3):
        desk = Desk()
        script = [[ToolCall("write", ARGS, size=4, stop_after=stop_after), end], [Text("Sorry.")]]
        with scripted("anthropic", script) as provider:
            host = Host(cs, agent_of(models(provider, path), desk.write()))
            try:
                events = await host.run()
            except Exception:  # noqa: BLE001  # where the SDK judges the stream by itself
                events = []
        assert not any("characters" in str(response) for _, response in responses_in(events))
        assert len(desk.aborted) == len(desk.runs) <= 1
        calls = await cs.journal.calls(limit=1, newest=True)
        assert all(call.state is CallState.DISCARDED for call in calls)


@pytest.mark.parametrize("path", PATHS)
async def test_a_sync_tool_and_its_failure(cs: Callstream, models: Models, path: str) -> None:
    count = 0

    @tool
    def total(content: Streamed[str]) -> int:
        """Counts."""
        nonlocal count
        count += 1
        if "bad" in "".join(content):
            raise LookupError("no such thing")
        return len(content.text)

    calls = [ToolCall("total", {"content": "good news"}, size=3), ToolCall("total", {"content": "bad news"}, size=3)]
    with scripted("gemini", [calls, [Text("Done.")]]) as provider:
        host = Host(cs, agent_of(models(provider, path), total))
        with pytest.raises(LookupError):
            await host.run()
    assert count == 2
    good, bad = await host.calls()
    assert (good.state, good.result) == (CallState.COMPLETED, {"result": 9})
    assert (bad.state, bad.error) == (CallState.FAILED, "LookupError: no such thing")


async def test_an_ordinary_tool_starts_while_the_response_still_writes(cs: Callstream, models: Models) -> None:
    desk = Desk()

    @tool(start="early")
    async def look(city: str) -> str:
        """Looks."""
        desk.runs.append(city)
        assert desk.provider is not None
        desk.provider.open()
        await asyncio.sleep(0)
        return f"{city}: sunny"

    script = [[ToolCall("look", {"city": "Paris"}, call_id="c1"), Text("One moment. " * 8, size=6)], [Text("Done.")]]
    with GatedProvider("anthropic", script, held=6) as provider:
        desk.provider = provider
        host = Host(cs, agent_of(models(provider), look))
        events = await host.run()
    assert provider.was_opened
    assert desk.runs == ["Paris"]
    assert [response for _, response in responses_in(events)] == [{"result": "Paris: sunny"}]
    [call] = await host.calls()
    assert (call.state, call.ran_early, call.result) == (CallState.COMPLETED, True, {"result": "Paris: sunny"})


async def test_an_ordinary_tool_runs_once_where_partial_events_bring_it(cs: Callstream, models: Models) -> None:
    cities = []

    @tool(start="early")
    def look(city: str) -> str:
        """Looks."""
        cities.append(city)
        return f"{city}: sunny"

    script = [[ToolCall("look", {"city": "Paris"}), ToolCall("look", {"city": "Rome"})], [Text("Done.")]]
    with scripted("gemini", script) as provider:
        events = await Host(cs, agent_of(models(provider, "partial"), look)).run()
    assert sorted(cities) == ["Paris", "Rome"]
    assert [response["result"] for _, response in responses_in(events)] == ["Paris: sunny", "Rome: sunny"]


@pytest.mark.parametrize("kind", ["confirmed", "long_running", "early", "sometimes"])
async def test_confirmation_and_early_start_do_not_go_together(cs: Callstream, models: Models, kind: str) -> None:
    desk = Desk()

    @tool(start="early")
    async def look(city: str) -> str:
        """Looks."""
        return city

    tools = {
        "confirmed": FunctionTool(desk.write(), require_confirmation=True),
        "long_running": LongRunningFunctionTool(desk.write()),
        "early": FunctionTool(look, require_confirmation=lambda city: True),
        "sometimes": FunctionTool(look, require_confirmation=lambda city="": False),
    }
    with scripted("gemini", [[Text("Never.")]]) as provider:
        host = Host(cs, agent_of(models(provider), tools[kind]))
        with pytest.raises(RuntimeError, match="would come too late") as raised:
            await host.run()
        assert isinstance(raised.value.__cause__, UsageError)
        assert provider.requests == []


async def stream_with_context(content: Streamed[str], tool_context: ToolContext) -> str:
    """Streams."""
    return f"{[piece async for piece in content]} {type(tool_context).__name__}"


async def stream_with_optional_context(content: Streamed[str], context: ToolContext | None = None) -> str:
    """Streams."""
    return f"{[piece async for piece in content]} {type(context).__name__}"


async def read_with_context(content: str, tool_context: ToolContext) -> str:
    """Reads."""
    return f"{[content]} {type(tool_context).__name__}"


async def read_with_optional_context(content: str, tool_context: Any = None) -> str:
    """Reads."""
    return f"{[content]} {type(tool_context).__name__}"


@pytest.mark.parametrize(
    "function",
    [stream_with_context, stream_with_optional_context, read_with_context, read_with_optional_context],
)
async def test_a_tool_that_takes_the_context_waits_for_google_adk(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture, function: Any
) -> None:
    made = tool(start="early")(function)
    call = ToolCall(made.__name__, {"content": "one two"}, size=3)
    with scripted("gemini", [[call], [call], [Text("Done.")]]) as provider:
        host = Host(cs, agent_of(models(provider), made))
        events = await host.run()
    expected = {"result": f"{['one two']} {ToolContext.__name__}"}
    assert [response for _, response in responses_in(events)] == [expected, expected]
    assert [(call.state, call.ran_early) for call in await host.calls()] == [(CallState.COMPLETED, False)] * 2
    assert caplog.text.count("takes google-adk's context") == 1
