"""Programs as users of ag_ui_adk write them: users, context, services, and web apps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Tool
from google.adk.agents import LlmAgent
from google.adk.apps import App

from callstream.adk import ADKAgent
from callstream.ag_ui_adk import ADKAgent as CompatibleAgent
from callstream.ag_ui_adk.endpoint import CompatibleOptions
from callstream.errors import UsageError
from callstream.testing import Finish, Text, ToolCall
from callstream.view import Passage, RunView
from tests.adk.hosting import scripted

from .agents import END
from .clients import Client, kinds
from .programs import Program

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "migrating.md"


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
    async with scripted("gemini", [[ToolCall("describe", {}), Finish()], END, END]) as provider:
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
    async with scripted("gemini", [END, [ToolCall("pick", {}), Finish()], END]) as provider:
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


CLASSIFIER = """
from callstream.ag_ui_adk import ADKAgent
from google.adk.agents import LlmAgent, SequentialAgent
from pydantic import BaseModel

class Kind(BaseModel):
    kind: str

first = LlmAgent(name="classifier", model="gemini-2.5-flash", output_schema=Kind, output_key="kind")
second = LlmAgent(name="speaker", model="gemini-2.5-flash", instruction="It is {kind}.")
root = SequentialAgent(name="root", sub_agents=[first, second])
agent = ADKAgent(adk_agent=root, app_name="app", user_id="user", emit_messages_snapshot=True, **options)
"""


@pytest.mark.parametrize("is_shown", [False, True])
async def test_structured_output_is_for_other_agents(is_shown: bool, program: Program) -> None:
    options = "options = dict(show_structured_output=True)\n" if is_shown else "options = {}\n"
    async with scripted("gemini", [[Text('{"kind": "chat"}'), Finish()], END]) as provider:
        made = program.run(options + CLASSIFIER, provider.base_url)
        client = Client(made["agent"])
        events = await client.send("Hello")
        assert "chat" in provider.requests[1].body.decode()
        shown = await made["agent"].thread_state("thread")
    said = ['{"kind": "chat"}', "Done."] if is_shown else ["Done."]
    assert client.text() == "".join(said)
    (snapshot,) = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    for messages in (snapshot["messages"], shown["messages"]):
        assert [message["content"] for message in messages if message["role"] == "assistant"] == said
    views = [RunView.of([record async for record in made["agent"].callstream.journal.follow("run-2")])]
    assert [item.text for view in views for item in view.items if isinstance(item, Passage)][-2:] == [
        '{"kind": "chat"}',
        "Done.",
    ]


async def test_every_run_ends_with_the_state(program: Program) -> None:
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent

    agent = ADKAgent(adk_agent=LlmAgent(name="a", model="gemini-2.5-flash"), app_name="app", user_id="user")
    """
    async with scripted("gemini", [END, END]) as provider:
        client = Client(program.run(source, provider.base_url)["agent"])
        client.state = {"a": 1}
        for _ in range(2):
            events = await client.send("Hello")
            assert kinds(events)[-2:] == ["STATE_SNAPSHOT", "RUN_FINISHED"]
            assert events[-2]["snapshot"] == {"a": 1}


@pytest.mark.parametrize(("state", "told"), [({}, []), ({"a": 1}, [{"a": 1}])])
async def test_a_run_without_messages_tells_the_state_once(program: Program, state: Any, told: Any) -> None:
    """As clients send it that look what a thread holds: the model is not asked."""
    source = """
    from callstream.ag_ui_adk import ADKAgent
    from google.adk.agents import LlmAgent

    agent = ADKAgent(adk_agent=LlmAgent(name="a", model="gemini-2.5-flash"), app_name="app", user_id="user")
    """
    async with scripted("gemini", [END]) as provider:
        agent = program.run(source, provider.base_url)["agent"]
        before = Client(agent)
        before.state = state
        await before.send("Hello")
        events = await Client(agent).run(runId="look")
        assert [event["snapshot"] for event in events if event["type"] == "STATE_SNAPSHOT"] == told
        assert kinds(events)[-1] == "RUN_FINISHED"
        assert len(provider.requests) == 1


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
    async with scripted("gemini", [[ToolCall("look", {}), Finish()], END]) as provider:
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
    async with scripted("gemini", [[ToolCall("save", {}), Finish()], END, END]) as provider:
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
    section = PAGE.read_text(encoding="utf-8").partition("\n## Parameters\n")[2].partition("\n## ")[0]
    rows = "\n".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", rows))
    assert named == {"adk_agent", "app_name", "session_manager", *CompatibleOptions.__annotations__}
