"""google-adk's agents ask providers to stream arguments: the plugin, ADKAgent and ``callstream serve`` can say no."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from google.adk.apps import App
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool

from callstream import Callstream, tool
from callstream.adk import ADKAgent, AGUIToolset, CallstreamPlugin
from callstream.testing import ScriptedProvider, Text, ToolCall

from .hosting import Host, Models, agent_of

GO = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "go"}]}


def write(title: str) -> str:
    """Writes."""
    return "written"


@tool(stream_arguments=False)
def erase(title: str) -> str:
    """Erases."""
    return "erased"


class Tools(BaseToolset):
    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        return [FunctionTool(write), FunctionTool(erase)]

    async def close(self) -> None:
        pass


def asked_in(provider: ScriptedProvider) -> dict[str, Any]:
    return {each["name"]: each.get("eager_input_streaming") for each in provider.requests[-1].json["tools"]}


async def test_all_tools_are_asked_for_but_those_that_say_no(cs: Callstream, models: Models) -> None:
    async with ScriptedProvider("anthropic", [Text("Ok.")]) as provider:
        await Host(cs, agent_of(models(provider), write, erase)).run()
        assert asked_in(provider) == {"write": True, "erase": None}


async def test_a_toolsets_prefix_does_not_hide_who_says_no(cs: Callstream, models: Models) -> None:
    async with ScriptedProvider("anthropic", [Text("Ok.")]) as provider:
        await Host(cs, agent_of(models(provider), Tools(tool_name_prefix="my"))).run()
        assert asked_in(provider) == {"my_write": True, "my_erase": None}


async def test_the_plugin_says_no(cs: Callstream, models: Models) -> None:
    async with ScriptedProvider("anthropic", [Text("Ok.")]) as provider:
        await Host(cs, agent_of(models(provider), write), stream_arguments=False).run()
        assert asked_in(provider) == {"write": None}


@pytest.mark.parametrize("of_app", [True, False])
@pytest.mark.parametrize("by_plugin", [True, False])
@pytest.mark.parametrize("asks", [True, False])
async def test_adk_agent_says_no(cs: Callstream, models: Models, of_app: bool, by_plugin: bool, asks: bool) -> None:
    async with ScriptedProvider("anthropic", [Text("Ok.")]) as provider:
        root = agent_of(models(provider, "none"), write)
        if of_app:
            plugins: Any = [CallstreamPlugin(cs, stream_arguments=by_plugin)]
            agent = ADKAgent.from_app(App(name="app", root_agent=root, plugins=plugins), stream_arguments=asks)
        else:
            agent = ADKAgent(root, callstream=cs, stream_arguments=asks)
        assert [event async for event in agent.run(RunAgentInput.model_validate(GO))]
        expected = asks and (by_plugin or not of_app)
        assert asked_in(provider) == {"write": True if expected else None}
        await agent.close()


async def test_a_clients_tool_is_not_asked_with_arguments_that_do_not_fit(cs: Callstream, models: Models) -> None:
    parameters = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    client_tool = {"name": "pick", "description": "Picks a color.", "parameters": parameters}
    async with ScriptedProvider(
        "anthropic", [[ToolCall("pick", {"color": 7}, call_id="c1")], [Text("Ok.")]]
    ) as provider:
        agent = ADKAgent(agent_of(models(provider, "none"), AGUIToolset()), callstream=cs)
        given = RunAgentInput.model_validate({**GO, "tools": [client_tool]})
        shown = [event.model_dump(by_alias=True, mode="json") async for event in agent.run(given)]
        [result] = [event["content"] for event in shown if event["type"] == "TOOL_CALL_RESULT"]
        assert json.loads(result)["reason"] == "invalid"
        assert shown[-1]["type"] == "RUN_FINISHED"
        assert "pick did not run: the argument 'color' should be a string" in provider.requests[1].body.decode()
        await agent.close()
