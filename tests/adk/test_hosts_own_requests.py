"""Requests that google-adk makes for itself are nobody's words: no client sees them, no journal has them."""

from __future__ import annotations

from typing import Any

from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from callstream import Callstream
from callstream.adk import ADKAgent, CallstreamPlugin
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall

from .agent.clients import Client
from .hosting import STREAMED, Models, agent_of, scripted

SUMMARY = [Text("SUMMARY of it all."), Finish()]
SCRIPT = [[Text("Hello."), Finish()], SUMMARY, [Text("Again."), Finish()], SUMMARY]


def compacting(model: Any) -> App:
    compaction = EventsCompactionConfig(compaction_interval=1, overlap_size=0)
    return App(name="app", root_agent=agent_of(model), events_compaction_config=compaction)


async def told(cs: Callstream) -> str:
    runs = await cs.journal.runs()
    return repr([record.event for run in runs async for record in cs.journal.read(run.run_id)])


async def test_a_summary_of_the_history_is_no_message_of_the_agent(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", SCRIPT) as provider:
        app = compacting(models(provider))
        client = Client(ADKAgent.from_app(app, user_id="user", callstream=cs))
        events = [*await client.send("One"), *await client.send("Two")]
        assert len(provider.requests) == 4
    texts = [message["content"] for message in client.messages if message["role"] == "assistant"]
    assert texts == ["Hello.", "Again."]
    assert "SUMMARY" not in repr(events)
    assert "SUMMARY" not in await told(cs)
    assert len(await cs.journal.runs()) == 2


async def test_a_summary_is_no_run_of_its_own(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", SCRIPT) as provider:
        app = compacting(models(provider))
        app.plugins = [CallstreamPlugin(cs)]
        runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)
        for text in ("One", "Two"):
            message = types.UserContent(text)
            async for _ in runner.run_async(
                user_id="user", session_id="session", new_message=message, run_config=STREAMED
            ):
                pass
        assert len(provider.requests) == 4
    assert [run.thread_id for run in await cs.journal.runs()] == ["session", "session"]
    assert "SUMMARY" not in await told(cs)


async def test_what_a_tool_asks_a_model_is_its_own_business(cs: Callstream, models: Models) -> None:
    script = [[ToolCall("think", {"about": "x"}), Finish()], [Text("INNER"), Finish()], [Text("Done."), Finish()]]
    async with scripted("gemini", script) as provider:
        model = models(provider)

        async def think(about: str, tool_context: ToolContext) -> str:
            """Thinks."""
            from google.adk.models.llm_request import LlmRequest

            request = LlmRequest(model=model.model, contents=[types.UserContent(about)])
            answers = [answer async for answer in model.generate_content_async(request)]
            return str(answers[-1].content and answers[-1].content.parts and answers[-1].content.parts[0].text)

        agent = ADKAgent(adk_agent=agent_of(model, think), app_name="app", user_id="user", callstream=cs)
        client = Client(agent)
        await client.send("Go")
    assert client.text() == "Done."
    [call] = await cs.journal.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"result": "INNER"})
