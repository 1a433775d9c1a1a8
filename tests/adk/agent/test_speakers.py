"""Who speaks and who calls: clients learn it of every agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from ag_ui.core import Message
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from pydantic import TypeAdapter

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset
from callstream.ag_ui_adk import ADKAgent as CompatibleADKAgent
from callstream.ag_ui_adk import resolve_agent_from_message_history
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall
from callstream.view import CallView, Passage, RunView
from tests.adk.hosting import Models, by_agent, scripted

from .agents import adk_agent, gemini
from .clients import Client
from .clienttools import PAINT


@pytest.mark.parametrize("kind", [SequentialAgent, ParallelAgent])
async def test_clients_learn_which_agent_speaks(kind: Any, cs: Callstream, models: Models) -> None:
    names = ["one", "two"]
    scripts = {name.upper(): [[Text(f"I am {name}."), Finish()]] for name in names}
    async with scripted("gemini", by_agent(scripts)) as provider:
        model = gemini(models, provider)
        agents = [LlmAgent(name=name, model=model, instruction=name.upper()) for name in names]
        agent = adk_agent(cs, kind(name="both", sub_agents=agents), emit_messages_snapshot=True)
        client = Client(agent)
        events = await client.send()
    said = {message["name"]: message["content"] for message in client.messages if message["role"] == "assistant"}
    assert said == {name: f"I am {name}." for name in names}
    (snapshot,) = (event for event in events if event["type"] == "MESSAGES_SNAPSHOT")
    shown = [each for each in snapshot["messages"] if each["role"] == "assistant"]
    assert {each["name"]: each["content"] for each in shown} == said


async def test_a_message_that_begins_with_a_call_names_its_agent(cs: Callstream, models: Models) -> None:
    scripts = {
        "HELPER": [[ToolCall("paint", {"color": "red"}), Finish()]],
        "BOSS": [[ToolCall("transfer_to_agent", {"agent_name": "helper"}), Finish()]],
    }
    async with scripted("gemini", by_agent(scripts)) as provider:
        model = gemini(models, provider)
        helper = LlmAgent(name="helper", description="helps", model=model, instruction="HELPER", tools=[AGUIToolset()])
        boss = LlmAgent(name="boss", model=model, instruction="BOSS", sub_agents=[helper])
        agent = adk_agent(cs, boss, emit_messages_snapshot=True)
        client = Client(agent, tools=[PAINT])
        events = await client.send()
    whose = {call["function"]["name"]: m["name"] for m in client.messages for call in m.get("toolCalls", ())}
    assert whose == {"transfer_to_agent": "boss", "paint": "helper"}
    (snapshot,) = (event for event in events if event["type"] == "MESSAGES_SNAPSHOT")
    asked = next(m["toolCalls"][0]["id"] for m in snapshot["messages"] if m.get("name") == "helper")
    answer = {"id": "answer", "role": "tool", "toolCallId": asked, "content": "red"}
    messages = TypeAdapter(list[Message]).validate_python([*snapshot["messages"], answer])
    assert resolve_agent_from_message_history(messages, {"helper": agent}) is agent


def note(text: str) -> str:
    """Notes."""
    return text.upper()


def nested_scripts() -> dict[str, Any]:
    return {
        "HELPER": [[Text("Inner words."), ToolCall("note", {"text": "tide"}), Finish()], [Text("Found."), Finish()]],
        "BOSS": [[Text("I ask."), ToolCall("helper", {"request": "help"}), Finish()], [Text("Done."), Finish()]],
    }


def with_agent_tool(model: Any) -> LlmAgent:
    helper = LlmAgent(name="helper", description="helps", model=model, instruction="HELPER", tools=[note])
    return LlmAgent(name="boss", model=model, instruction="BOSS", tools=[AgentTool(helper)])


def said(messages: list[dict[str, Any]], agent: str | None) -> list[tuple[str, str]]:
    """What assistants said who work for an agent of a tool, or for none."""
    spoken = [m for m in messages if m["role"] == "assistant" and m.get("subagentRunId") == agent]
    return [(message["name"], message["content"]) for message in spoken]


async def test_an_agent_that_is_a_tool_is_shown_under_its_call(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", by_agent(nested_scripts())) as provider:
        agent = adk_agent(cs, with_agent_tool(gemini(models, provider)), emit_messages_snapshot=True)
        client = Client(agent)
        events = await client.send()
    (started,) = (event for event in events if event["type"] == "SUBAGENT_STARTED")
    (asked,) = (
        call for m in client.messages for call in m.get("toolCalls", ()) if call["function"]["name"] == "helper"
    )
    assert (started["name"], started["parentToolCallId"]) == ("helper", asked["id"])
    (snapshot,) = (event for event in events if event["type"] == "MESSAGES_SNAPSHOT")
    for messages in (client.messages, snapshot["messages"]):
        assert said(messages, None) == [("boss", "I ask."), ("boss", "Done.")]
        assert said(messages, started["subagentRunId"]) == [("helper", "Inner words."), ("helper", "Found.")]
        results = [(m["content"], m.get("subagentRunId")) for m in messages if m["role"] == "tool"]
        assert sorted(results) == [('{"result":"Found."}', None), ('{"result":"TIDE"}', started["subagentRunId"])]
    kinds = [event["type"] for event in events]
    assert kinds.count("SUBAGENT_FINISHED") == 1
    (row,) = await cs.journal.runs()
    view = RunView.of([record async for record in cs.journal.read(row.run_id)])
    nested = {(item.author, view.depth_of(item)) for item in view.items if isinstance(item, Passage | CallView)}
    assert nested == {("boss", 0), ("helper", 1)}


@pytest.mark.parametrize("how", ["ag_ui_adk", "older client", "off"])
async def test_an_agent_that_is_a_tool_can_be_left_out(how: str, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", by_agent(nested_scripts())) as provider:
        boss = with_agent_tool(gemini(models, provider))
        options: dict[str, Any] = {"callstream": cs, "emit_messages_snapshot": True}
        if how == "ag_ui_adk":
            agent: Any = CompatibleADKAgent(boss, "app", user_id="user", **options)
        else:
            agent = ADKAgent(boss, "app", user_id="user", show_nested_agents=how != "off", **options)
        client = Client(agent)
        events = await client.send(**({"protocolVersion": None} if how == "older client" else {}))
        await agent.close()
    assert not any(event["type"].startswith("SUBAGENT_") for event in events)
    assert said(client.messages, None) == [("boss", "I ask."), ("boss", "Done.")]
    assert [call["name"] for call in client.calls()] == ["helper"]


class Worker(BaseAgent):
    """An agent without a model, which tells what it does in calls and results of its own."""

    call_id: str | None = None
    answers: bool = True

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        call = types.FunctionCall(id=self.call_id, name="look_up", args={"word": "tide"})
        yield self._event(ctx, types.Part(function_call=call))
        if self.answers:
            response = types.FunctionResponse(id=self.call_id, name="look_up", response={"meaning": "water"})
            yield self._event(ctx, types.Part(function_response=response))
        yield self._event(ctx, types.Part(text="Found."))

    def _event(self, ctx: InvocationContext, part: types.Part) -> Event:
        content = types.Content(role="model", parts=[part])
        return Event(author=self.name, invocation_id=ctx.invocation_id, branch=ctx.branch, content=content)


@pytest.mark.parametrize("call_id", ["call-1", None])
async def test_calls_of_an_agent_without_a_model_are_shown(call_id: str | None, cs: Callstream) -> None:
    client = Client(adk_agent(cs, Worker(name="worker", call_id=call_id)))
    await client.send()
    (call,) = client.calls()
    assert (call["name"], call["args"], call["result"]) == ("look_up", {"word": "tide"}, '{"meaning":"water"}')
    assert client.text() == "Found."
    (kept,) = await cs.journal.calls()
    assert kept.state is CallState.COMPLETED


async def test_a_call_whose_result_an_agent_never_tells_is_released(cs: Callstream) -> None:
    client = Client(adk_agent(cs, Worker(name="worker", call_id="call-1", answers=False)))
    await client.send()
    (kept,) = await cs.journal.calls()
    assert kept.state is CallState.RELEASED


async def test_a_delegated_task_has_its_outcome(cs: Callstream, models: Models) -> None:
    scripts = {
        "HELPER": [[ToolCall("finish_task", {"result": "found"}), Finish()]],
        "BOSS": [[ToolCall("helper", {"request": "help"}), Finish()], [Text("Done."), Finish()]],
    }
    async with scripted("gemini", by_agent(scripts)) as provider:
        model = gemini(models, provider)
        helper = LlmAgent(name="helper", description="helps", model=model, instruction="HELPER", mode="task")
        client = Client(adk_agent(cs, LlmAgent(name="boss", model=model, instruction="BOSS", sub_agents=[helper])))
        await client.send()
    results = {call["name"]: call["result"] for call in client.calls()}
    assert results["helper"] == '{"result":"found"}'
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}
