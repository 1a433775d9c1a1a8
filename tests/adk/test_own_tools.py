"""A tool belongs to the agent that has it: others may have another one of the same name."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.models import BaseLlm

from callstream import Callstream, Streamed, tool
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall

from .hosting import PATHS, Host, Models, scripted


def agent_with_lookup(name: str, model: BaseLlm, heard: list[Any], kind: type) -> LlmAgent:
    """An agent with a tool of its own, made anew, with a hook of its own and arguments of its own type."""

    async def lookup(key: Any) -> str:
        """Looks a key up."""
        heard.append((name, "run", key))
        return f"{name} found {key}"

    lookup.__annotations__["key"] = kind
    made = tool(lookup)

    @made.on_args_complete
    async def complete(call: Any, signal: Any) -> None:
        heard.append((name, "complete", call.args["key"]))

    return LlmAgent(name=name, model=model, instruction="Help.", tools=[made])


@pytest.mark.parametrize("path", PATHS)
async def test_two_agents_have_tools_of_one_name(path: str, cs: Callstream, models: Models) -> None:
    heard: list[Any] = []
    script = [
        [ToolCall("lookup", {"key": "a"}), Finish()],
        [Text("First."), Finish()],
        [ToolCall("lookup", {"key": 7}), Finish()],
        [Text("Second."), Finish()],
    ]
    async with scripted("gemini", script) as provider:
        first = agent_with_lookup("first", models(provider, path), heard, str)
        second = agent_with_lookup("second", models(provider, path), heard, int)
        host = Host(cs, SequentialAgent(name="both", sub_agents=[first, second]))
        await host.run()
    assert heard == [
        ("first", "complete", "a"),
        ("first", "run", "a"),
        ("second", "complete", 7),
        ("second", "run", 7),
    ]
    assert [(call.state, call.result) for call in await host.calls()] == [
        (CallState.COMPLETED, {"result": "first found a"}),
        (CallState.COMPLETED, {"result": "second found 7"}),
    ]


@pytest.mark.parametrize("path", PATHS)
async def test_an_agent_is_made_anew_for_every_request(path: str, cs: Callstream, models: Models) -> None:
    heard: list[Any] = []
    for number in range(3):
        script = [[ToolCall("lookup", {"key": str(number)}), Finish()], [Text("Done."), Finish()]]
        async with scripted("gemini", script) as provider:
            host = Host(cs, agent_with_lookup(f"agent{number}", models(provider, path), heard, str))
            await host.run()
    assert heard == [(f"agent{number}", what, str(number)) for number in range(3) for what in ("complete", "run")]
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}


async def test_a_tool_that_begins_early_is_that_of_its_agent(cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    def made(name: str) -> Any:
        @tool(name="write")
        async def write(title: str, body: Streamed[str]) -> str:
            """Writes."""
            ran.append(name)
            return f"{name}: {len([piece async for piece in body]) > 0}"

        return write

    args = {"title": "A", "body": "It rises, and it falls. " * 5}
    script = [[ToolCall("write", args), Finish()], [Text("Done."), Finish()]] * 2
    async with scripted("anthropic", script) as provider:
        agents = [
            LlmAgent(name=name, model=models(provider), instruction="Help.", tools=[made(name)]) for name in ("x", "y")
        ]
        host = Host(cs, SequentialAgent(name="both", sub_agents=agents))
        await host.run()
    assert ran == ["x", "y"]
    assert [call.result for call in await host.calls()] == [{"result": "x: True"}, {"result": "y: True"}]
    assert all(call.ran_early for call in await host.calls())
