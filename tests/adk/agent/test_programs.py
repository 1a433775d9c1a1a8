"""Programs as users of ag_ui_adk write them, with only the import changed: chat, tools, state."""

from __future__ import annotations

import json

from ag_ui.core import Tool

from callstream.testing import Finish, Parallel, Text, ToolCall
from tests.adk.hosting import scripted

from .agents import END
from .clients import Client, kinds
from .programs import Program


async def test_chat(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent

    chat_agent = ADKAgent(
        adk_agent=LlmAgent(name="assistant", model="gemini-2.5-flash", instruction="Be helpful."),
        app_name="demo_app",
        user_id="demo_user",
        session_timeout_seconds=3600,
        use_in_memory_services=True,
    )
    """
    async with scripted("gemini", [END]) as provider:
        client = Client(program.run(source, provider.base_url)["chat_agent"])
        await client.send("Hello")
    assert client.text() == "Done."


async def test_backend_tools_and_sub_agents(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent
    from google.adk.tools import FunctionTool
    from google.adk.tools.agent_tool import AgentTool

    def get_weather(city: str) -> dict:
        "Tells the weather."
        return {"city": city, "degrees": 20}

    poet = LlmAgent(name="poet", model="gemini-2.5-flash", description="Writes poems.")
    forecaster = LlmAgent(name="forecaster", model="gemini-2.5-flash", description="Knows the weather.",
                          tools=[FunctionTool(get_weather)])
    root = LlmAgent(name="root", model="gemini-2.5-flash", tools=[AgentTool(poet)], sub_agents=[forecaster])
    agent = ADKAgent(adk_agent=root, app_name="app", user_id="user")
    """
    script = [
        [ToolCall("poet", {"request": "a poem"}), Finish()],
        [Text("Waves."), Finish()],
        [ToolCall("transfer_to_agent", {"agent_name": "forecaster"}), Finish()],
        [ToolCall("get_weather", {"city": "Paris"}), Finish()],
        END,
    ]
    async with scripted("gemini", script) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        await client.send("Hello")
    assert [call["name"] for call in client.calls()] == ["poet", "transfer_to_agent", "get_weather"]
    assert json.loads(client.calls()[0]["result"]) == {"result": "Waves."}
    assert json.loads(client.calls()[2]["result"]) == {"city": "Paris", "degrees": 20}
    assert "Done." in client.text()


async def test_workflow_agents(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent, SequentialAgent

    first = LlmAgent(name="first", model="gemini-2.5-flash", output_key="draft")
    second = LlmAgent(name="second", model="gemini-2.5-flash", instruction="Improve {draft}")
    agent = ADKAgent(adk_agent=SequentialAgent(name="both", sub_agents=[first, second]), app_name="app", user_id="u")
    """
    async with scripted("gemini", [[Text("Draft."), Finish()], [Text("Better."), Finish()]]) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        await client.send("Write")
        assert "Improve Draft." in provider.requests[1].body.decode()
    assert client.text() == "Draft.Better."
    assert client.state == {"draft": "Draft."}


async def test_frontend_tools(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent, AGUIToolset
    from google.adk.agents import LlmAgent

    root = LlmAgent(name="painter", model="gemini-2.5-flash",
                    tools=[AGUIToolset(tool_filter=["change_background"])])
    agent = ADKAgent(adk_agent=root, app_name="app", user_id="user", execution_timeout_seconds=60,
                     tool_timeout_seconds=30)
    """
    tools = [Tool(name=name, description="…", parameters={}) for name in ("change_background", "other")]
    async with scripted("gemini", [[ToolCall("change_background", {}), Finish()], END]) as provider:
        client = Client(program.run(source, provider.base_url)["agent"], tools=tools)
        await client.send("Blue, please")
        await client.answer({client.pending()[0]: "done"})
        declared = json.loads(provider.requests[0].body)["tools"][0]["functionDeclarations"]
    assert [each["name"] for each in declared] == ["change_background"]
    assert client.text() == "Done."


async def test_human_in_the_loop(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.apps.app import ResumabilityConfig
    from google.adk.tools import LongRunningFunctionTool

    def approve(plan: str) -> None:
        "Asks a person."

    root = LlmAgent(name="planner", model="gemini-2.5-flash", tools=[LongRunningFunctionTool(approve)])
    app = App(name="planner", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=True))
    agent = ADKAgent.from_app(app, user_id="user")
    """
    calls = Parallel([ToolCall("approve", {"plan": "a"}), ToolCall("approve", {"plan": "b"})])
    async with scripted("gemini", [[calls, Finish()], END]) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        await client.send("Plan")
        first, second = client.pending()
        await client.answer({second: {"ok": 2}, first: {"ok": 1}})
        body = provider.requests[1].body.decode()
    assert client.text() == "Done."
    assert body.index('"ok": 1' if '"ok": 1' in body else '"ok":1') < body.index(
        '"ok": 2' if '"ok": 2' in body else '"ok":2'
    )


async def test_shared_state(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.tools import ToolContext

    def set_recipe(tool_context: ToolContext, title: str) -> dict:
        "Sets the recipe."
        tool_context.state["recipe"] = {"title": title}
        return {"status": "ok"}

    def before(callback_context: CallbackContext) -> None:
        callback_context.state.setdefault("recipe", {"title": "none"})

    root = LlmAgent(name="cook", model="gemini-2.5-flash", tools=[set_recipe], before_agent_callback=before,
                    instruction="The recipe: {recipe}")
    agent = ADKAgent(adk_agent=root, app_name="app", user_id="user")
    """
    async with scripted("gemini", [[ToolCall("set_recipe", {"title": "Soup"}), Finish()], END]) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        client.state = {"servings": 2}
        events = await client.send("Cook")
    assert client.state == {"servings": 2, "recipe": {"title": "Soup"}}
    assert kinds(events).count("STATE_DELTA") == 2


async def test_predictive_state(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent, PredictStateMapping
    from google.adk.agents import LlmAgent

    def write_document(document: str) -> str:
        "Writes."
        return "written"

    agent = ADKAgent(
        adk_agent=LlmAgent(name="writer", model="gemini-2.5-flash", tools=[write_document]),
        app_name="app",
        user_id="user",
        predict_state=[PredictStateMapping(state_key="document", tool="write_document", tool_argument="document",
                                           emit_confirm_tool=True)],
    )
    """
    async with scripted(
        "gemini", [[ToolCall("write_document", {"document": "x" * 40}), Finish()], END, END]
    ) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        await client.send("Write")
        assert [event["name"] for event in client.custom] == ["PredictState"]
        await client.answer({client.pending()[0]: {"accepted": False}})
        assert "The user rejected the changes." in provider.requests[2].body.decode()
