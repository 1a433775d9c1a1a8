"""Programs as users of ag_ui_adk write them, with only the import changed."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Tool
from google.adk.agents import LlmAgent
from google.adk.apps import App

from callstream.adk import ADKAgent
from callstream.ag_ui_adk import ADKAgent as CompatibleAgent
from callstream.ag_ui_adk.agent import CompatibleOptions
from callstream.errors import UsageError
from callstream.testing import Call as Calls
from callstream.testing import Finish, Parallel, Text
from tests.adk.hosting import scripted

from .clients import Client, kinds
from .test_run import END

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "migrating.md"


class Program:
    """A program's names, and the providers's answers to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._made: dict[str, Any] = {}

    def run(self, source: str, base_url: str) -> dict[str, Any]:
        self._monkeypatch.setenv("GOOGLE_API_KEY", "none")
        self._monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", base_url)
        self._made = {"__name__": "program"}
        exec(compile(inspect.cleandoc(source), "program", "exec"), self._made)
        return self._made

    async def aclose(self) -> None:
        for made in self._made.values():
            if isinstance(made, ADKAgent):
                await made.close()


@pytest.fixture
async def program(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Program]:
    made = Program(monkeypatch)
    yield made
    await made.aclose()


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
        [Calls("poet", {"request": "a poem"}), Finish()],
        [Text("Waves."), Finish()],
        [Calls("transfer_to_agent", {"agent_name": "forecaster"}), Finish()],
        [Calls("get_weather", {"city": "Paris"}), Finish()],
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
    async with scripted("gemini", [[Calls("change_background", {}), Finish()], END]) as provider:
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
    calls = Parallel([Calls("approve", {"plan": "a"}), Calls("approve", {"plan": "b"})])
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
    async with scripted("gemini", [[Calls("set_recipe", {"title": "Soup"}), Finish()], END]) as provider:
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
    async with scripted("gemini", [[Calls("write_document", {"document": "x" * 40}), Finish()], END, END]) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        await client.send("Write")
        assert [event["name"] for event in client.custom] == ["PredictState"]
        await client.answer({client.pending()[0]: {"accepted": False}})
        assert "The user rejected the changes." in provider.requests[2].body.decode()


async def test_users_apps_and_context_from_the_input(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent
    from google.adk.sessions import InMemorySessionService

    def of(description):
        return lambda input: next((c.value for c in input.context if c.description == description), "nobody")

    def instruction(ctx):
        return "Facts: " + ", ".join(item["value"] for item in ctx.state.get("_ag_ui_context", []))

    sessions = InMemorySessionService()
    agent = ADKAgent(
        adk_agent=LlmAgent(name="assistant", model="gemini-2.5-flash", instruction=instruction),
        user_id_extractor=of("user"),
        app_name_extractor=of("app"),
        session_service=sessions,
    )
    """
    async with scripted("gemini", [END]) as provider:
        made = program.run(source, provider.base_url)
        client = Client(made["agent"])
        context = [{"description": "user", "value": "ada"}, {"description": "app", "value": "shop"}]
        await client.send("Hello", context=context)
        assert "Facts: ada, shop" in provider.requests[0].body.decode()
    assert (await made["sessions"].get_session(app_name="shop", user_id="ada", session_id="thread")) is not None


async def test_context_in_tools_and_instructions(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent, CONTEXT_STATE_KEY
    from google.adk.agents import LlmAgent
    from google.adk.agents.readonly_context import ReadonlyContext
    from google.adk.tools import ToolContext

    def instructions(ctx: ReadonlyContext) -> str:
        lines = ["You help."]
        for item in ctx.state.get(CONTEXT_STATE_KEY, []):
            lines.append(item["description"] + ": " + item["value"])
        return "; ".join(lines)

    def describe(tool_context: ToolContext) -> str:
        "Describes who asks."
        return ", ".join(item["value"] for item in tool_context.state.get(CONTEXT_STATE_KEY, []))

    agent = ADKAgent(
        adk_agent=LlmAgent(name="assistant", model="gemini-2.5-flash", instruction=instructions, tools=[describe]),
        app_name="app",
        user_id="user",
    )
    """
    async with scripted("gemini", [[Calls("describe", {}), Finish()], END, END]) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        await client.send("Who am I?", context=[{"description": "name", "value": "Ada"}])
        assert json.loads(client.calls()[0]["result"]) == {"result": "Ada"}
        assert "You help.; name: Ada" in provider.requests[0].body.decode()
        # The next run's context is the next run's.
        await client.send("And now?", context=[{"description": "name", "value": "Bob"}])
        assert "You help.; name: Bob" in provider.requests[2].body.decode()
    assert not client.state


async def test_several_agents_in_one_web_app(program: Program) -> None:
    """Each at a path of its own; headers become state, and an answer goes to the agent that asked."""
    import httpx

    source = """
    from callstream.ag_ui_adk import (
        ADKAgent, AGUIToolset, AgentResolver, add_adk_fastapi_endpoint, resolve_agent_from_message_history
    )
    from fastapi import APIRouter, FastAPI
    from google.adk.agents import LlmAgent

    def agent(name):
        root = LlmAgent(name=name, model="gemini-2.5-flash", instruction="I am " + name + ", {headers}",
                        tools=[AGUIToolset()])
        return ADKAgent(adk_agent=root, app_name=name, user_id="user", capabilities={"name": name})

    registry = {"general": agent("general"), "technical": agent("technical")}

    async def resolve(request, input):
        return resolve_agent_from_message_history(input.messages, registry)

    app, router = FastAPI(), APIRouter(prefix="/agents")
    headers = ["x-tenant-id"]
    add_adk_fastapi_endpoint(app, registry["general"], path="/general", extract_headers=headers, agent_resolver=resolve)
    add_adk_fastapi_endpoint(router, registry["technical"], path="/technical", extract_headers=headers)
    app.include_router(router)
    general, technical = registry.values()
    """
    tools = [Tool(name="pick", description="Picks.", parameters={})]
    async with scripted("gemini", [END, [Calls("pick", {}), Finish()], END]) as provider:
        made = program.run(source, provider.base_url)
        transport = httpx.ASGITransport(made["app"])
        async with httpx.AsyncClient(
            transport=transport, base_url="http://agents", headers={"x-tenant-id": "7"}
        ) as http:
            clients = {name: Client(made[name], thread_id=name, tools=tools) for name in ("general", "technical")}

            async def post(path: str, name: str) -> list[dict[str, Any]]:
                given = clients[name].input().model_dump(mode="json", by_alias=True)
                lines = (await http.post(path, json=given)).text.split("\n")
                events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
                for event in events:
                    clients[name].take(event)
                return events

            for name, client in clients.items():
                client.messages = [{"id": f"u-{name}", "role": "user", "content": "Go"}]
            await post("/general", "general")
            await post("/agents/technical", "technical")
            assert (await http.get("/general/capabilities")).json() == {"name": "general"}
            assert (await http.get("/agents/technical/capabilities")).json() == {"name": "technical"}
            # The answer is sent to the other agent's path, with the name of the one that asked.
            asked = clients["technical"].messages[-1]
            asked["name"] = "technical"
            answer = {"id": "t", "role": "tool", "toolCallId": asked["toolCalls"][0]["id"], "content": "red"}
            clients["technical"].messages.append(answer)
            await post("/general", "technical")
        bodies = [request.body.decode() for request in provider.requests]
    assert ["I am general" in body for body in bodies] == [True, False, False]
    assert ["I am technical" in body for body in bodies] == [False, True, True]
    assert all("tenant_id" in body for body in bodies)
    assert '"red"' in bodies[2]


async def test_run_config(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent, RunConfig
    from google.adk.agents.run_config import StreamingMode

    def look() -> str:
        "Looks."
        return "seen"

    agent = ADKAgent(
        adk_agent=LlmAgent(name="assistant", model="gemini-2.5-flash", tools=[look]),
        app_name="app",
        user_id="user",
        run_config_factory=lambda input: RunConfig(streaming_mode=StreamingMode.NONE, max_llm_calls=1),
    )
    """
    async with scripted("gemini", [[Calls("look", {}), Finish()], END]) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        events = await client.send("Look")
        assert len(provider.requests) == 1
        assert "streamGenerateContent" not in provider.requests[0].path
    assert kinds(events)[-1] == "RUN_ERROR"


async def test_services_and_artifacts(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent
    from google.adk.artifacts import InMemoryArtifactService
    from google.adk.memory import InMemoryMemoryService
    from google.adk.sessions.sqlite_session_service import SqliteSessionService
    from google.adk.tools import ToolContext
    from google.genai import types

    artifacts = InMemoryArtifactService()

    async def save(tool_context: ToolContext) -> str:
        "Saves."
        await tool_context.save_artifact("note.txt", types.Part(text="kept"))
        return "saved"

    agent = ADKAgent(
        adk_agent=LlmAgent(name="keeper", model="gemini-2.5-flash", tools=[save]),
        app_name="app",
        user_id="user",
        session_service=SqliteSessionService("sessions.db"),
        artifact_service=artifacts,
        memory_service=InMemoryMemoryService(),
        use_in_memory_services=False,
    )
    """
    async with scripted("gemini", [[Calls("save", {}), Finish()], END, END]) as provider:
        made = program.run(source, provider.base_url)
        client = Client(made["agent"])
        await client.send("Save")
        await client.send("Again")
    assert client.text() == "Done."
    kept = await made["artifacts"].list_artifact_keys(app_name="app", user_id="user", session_id="thread")
    assert kept == ["note.txt"]


async def test_agent_in_a_web_app(program: Program) -> None:
    """The page's own program, served."""
    import httpx

    (source, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    async with scripted("gemini", [END]) as provider:
        made = program.run(source, provider.base_url)
        client = Client(made["adk_agent"])
        given = client.input(messages=[{"id": "m", "role": "user", "content": "Go"}])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(made["app"]), base_url="http://agent") as http:
            response = await http.post("/", json=given.model_dump(mode="json", by_alias=True))
    assert '"delta":"Done."' in response.text


def test_unknown_parameter_names_the_page() -> None:
    agent = LlmAgent(name="writer", model="gemini-3-flash-preview")
    with pytest.raises(UsageError, match=r"'session_manager'.*Migrating from ag_ui_adk"):
        CompatibleAgent(adk_agent=agent, session_manager=object())  # type: ignore[call-arg]


def test_parameters_without_use_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    agent = LlmAgent(name="writer", model="gemini-3-flash-preview")
    options: Any = {"session_timeout_seconds": 60, "tool_timeout_seconds": 5, "cleanup_interval_seconds": 60}
    CompatibleAgent(adk_agent=agent, **options)
    CompatibleAgent.from_app(App(name="writer", root_agent=agent), **options)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["cleanup_interval_seconds, tool_timeout_seconds" in warning for warning in warnings] == [True, True]
    with pytest.raises(UsageError, match=r"no parameter 'tool_timeout_seconds'$"):
        ADKAgent(adk_agent=agent, tool_timeout_seconds=5)  # type: ignore[call-arg]


def test_the_page_names_every_parameter() -> None:
    rows = "\n".join(re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", rows))
    assert named == {"adk_agent", "app_name", "session_manager", *CompatibleOptions.__annotations__}
