"""Agents beside each other and after each other: whose call it is, whatever branch google-adk's events name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.tools import FunctionTool, exit_loop

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import Models, by_agent, scripted

from .agents import END, adk_agent, gemini
from .clients import Client


def after_parallel(model: Any, tool: Any, **options: Any) -> LlmAgent:
    """An agent that transfers to a sequence, whose last agent has the tool and comes after two that ran in parallel.

    google-adk names the branch of one of these in the last one's events, and none in its context.
    """

    def made(name: str, **given: Any) -> LlmAgent:
        return LlmAgent(name=name, model=model, instruction=name.upper(), **given)

    both = ParallelAgent(name="both", sub_agents=[made("left"), made("right")])
    steps = SequentialAgent(
        name="steps", description="does it", sub_agents=[both, made("last", tools=[tool], **options)]
    )
    return made("boss", sub_agents=[steps])


def scripts(last: list[Any]) -> Any:
    transfer = [ToolCall("transfer_to_agent", {"agent_name": "steps"}), Finish()]
    return by_agent(
        {"LEFT": [[Text("l"), Finish()]], "RIGHT": [[Text("r"), Finish()]], "LAST": last, "BOSS": [transfer]}
    )


def nothing() -> None:
    """Does something and says nothing."""


def number() -> int:
    """Gives a number."""
    return 1


def keep(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
    """A callback that changes nothing."""


@pytest.mark.parametrize(
    ("tool", "options", "result"),
    [
        (nothing, {}, '{"result":null}'),
        (exit_loop, {}, '{"result":null}'),
        (number, {"after_tool_callback": keep}, '{"result":1}'),
    ],
)
async def test_a_tool_after_parallel_agents_has_its_result(
    tool: Callable[..., Any], options: dict[str, Any], result: str, cs: Callstream, models: Models
) -> None:
    last = [[ToolCall(tool.__name__, {}), Finish()], END]
    async with scripted("gemini", scripts(last)) as provider:
        client = Client(adk_agent(cs, after_parallel(gemini(models, provider), tool, **options)))
        await client.send()
    assert [(call["name"], call["result"]) for call in client.calls()][1:] == [(tool.__name__, result)]
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}


async def test_a_tool_after_parallel_agents_can_be_confirmed(cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    def remove(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "removed"

    last = [[ToolCall("remove", {"path": "a"}), Finish()], END]
    async with scripted("gemini", scripts(last)) as provider:
        tool = FunctionTool(remove, require_confirmation=True)
        client = Client(adk_agent(cs, after_parallel(gemini(models, provider), tool)))
        await client.send()
        (question,) = client.pending()
        assert "result" not in next(call for call in client.calls() if call["name"] == "remove")
        await client.answer({question: {"confirmed": True}})
    assert ran == ["a"]
    assert client.text() == "Done."
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}
