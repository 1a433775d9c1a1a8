"""Gemini on Vertex streams function-call arguments; an AG-UI client sees them arrive and runs tools of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import Tool
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import Gemini
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from callstream.ag_ui_adk import ADKAgent, AGUIToolset
from callstream.testing import Finish, Text, ToolCall
from callstream.testing.shapes import called, piece, pieces, text
from tests.adk.agent.clients import Client, kinds
from tests.adk.hosting import STREAMED, RawProvider, Untapped, scripted

DOCUMENT = {"title": "Moon", "document": "The moon pulls the sea."}
PAINT = Tool(
    name="paint",
    description="Paints the page.",
    parameters={"type": "object", "properties": {"color": {"type": "string"}, "strokes": {"type": "integer"}}},
)
STREAMS = types.GenerateContentConfig(
    tool_config=types.ToolConfig(
        function_calling_config=types.FunctionCallingConfig(stream_function_call_arguments=True)
    )
)
KINDS = ["constructor", "from_app"]


def write_document(title: str, document: str) -> str:
    """Writes a document."""
    return f"{title}: {len(document)}"


def on_vertex(provider: Any, path: str = "tap") -> Any:
    options = types.HttpOptions(base_url=provider.base_url)
    kwargs = {"vertexai": True, "api_key": "none", "http_options": options}
    model = Gemini(model="gemini-3-flash-preview", client_kwargs=kwargs)
    return model if path == "tap" else Untapped.of(model)


def agent_on(model: Any, kind: str = "constructor", **options: Any) -> ADKAgent:
    root = LlmAgent(name="writer", model=model, tools=[write_document, AGUIToolset()], generate_content_config=STREAMS)
    options = {"user_id": "user", "streaming_function_call_arguments": True, **options}
    if kind == "from_app":
        return ADKAgent.from_app(App(name="app", root_agent=root), **options)
    return ADKAgent(adk_agent=root, app_name="app", **options)


def chunk(*parts: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **candidate}]}


def streamed(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    frames = [chunk({"functionCall": call}) for call in calls]
    return [*frames, chunk({"text": ""}, finishReason="STOP")]


WRITES = streamed(
    *called("write_document", *text("$.title", "Mo", "on"), *text("$.document", *"The moon pulls the sea."))
)
NAMELESS_PAINT = streamed(
    pieces(piece("$.color", stringValue="re", willContinue=True), willContinue=True),
    pieces(piece("$.color", stringValue="d"), willContinue=True),
    pieces(piece("$.strokes", numberValue=3), willContinue=True),
    {},
)
DONE = [chunk({"text": "Done."}, finishReason="STOP")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["tap", "partial"])
async def test_a_backend_tool_and_a_client_tool(path: str, kind: str) -> None:
    answers = [WRITES, NAMELESS_PAINT, DONE] if path == "tap" else [WRITES, DONE]
    async with RawProvider("gemini", answers) as provider:
        model = on_vertex(provider, path)
        agent = agent_on(model, kind)
        client = Client(agent, tools=[PAINT])
        events = await client.send("Write")
        first = client.calls()[0]
        assert (first["name"], first["args"]) == ("write_document", DOCUMENT)
        assert first["result"] == '{"result":"Moon: 23"}'
        assert kinds(events).count("TOOL_CALL_ARGS") > 20
        calling = provider.requests[0].json["toolConfig"]["functionCallingConfig"]
        assert list(calling.values()) == [True]
        if path == "tap":
            (asked,) = client.pending()
            assert (client.calls()[1]["name"], client.calls()[1]["args"]) == ("paint", {"color": "red", "strokes": 3})
            await client.answer({asked: {"painted": True}})
        assert client.text() == "Done."
        await agent.close()
        if path == "partial":
            await model.inner.api_client.aio.aclose()  # google-adk leaves its clients open


@pytest.mark.parametrize("kind", KINDS)
async def test_the_second_turn_has_the_signatures_that_the_model_demands(kind: str) -> None:
    script = [
        [ToolCall("write_document", DOCUMENT), Finish()],
        [ToolCall("paint", {"color": "red"}), Finish()],
        [Text("Painted."), Finish()],
        [Text("Again."), Finish()],
    ]
    async with scripted("gemini", script, strict_signatures=True) as provider:
        agent = agent_on(on_vertex(provider), kind)
        client = Client(agent, tools=[PAINT])
        await client.send("Write and paint")
        await client.answer({client.pending()[0]: "painted"})
        assert client.text() == "Painted."
        await client.send("Once more")
        assert client.text() == "Again."
        await agent.close()


async def test_two_agents_with_different_settings() -> None:
    seen: dict[bool, int] = {}
    for streams in (True, False):
        async with RawProvider("gemini", [WRITES, DONE]) as provider:
            agent = agent_on(on_vertex(provider), streaming_function_call_arguments=streams)
            client = Client(agent)
            seen[streams] = kinds(await client.send("Write")).count("TOOL_CALL_ARGS")
            assert client.calls()[0]["args"] == DOCUMENT
            await agent.close()
    assert seen[True] > 20
    assert seen[False] == 1


async def test_a_run_that_ends_on_a_client_call_leaves_it_in_the_session() -> None:
    sessions = InMemorySessionService()
    async with RawProvider("gemini", [NAMELESS_PAINT, DONE]) as provider:
        agent = agent_on(on_vertex(provider), session_service=sessions)
        client = Client(agent, tools=[PAINT])
        await client.send("Paint")
        (asked,) = client.pending()
        session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
        assert session is not None
        (kept,) = [call for event in session.events for call in event.get_function_calls()]
        assert (kept.id, kept.name, kept.args) == (asked, "paint", {"color": "red", "strokes": 3})
        # Any runner of google-adk can go on with it.
        model = on_vertex(provider)
        root = LlmAgent(name="writer", model=model)
        plain = Runner(app=App(name="app", root_agent=root), session_service=sessions)
        answer = types.FunctionResponse(id=asked, name="paint", response={"painted": True})
        message = types.Content(role="user", parts=[types.Part(function_response=answer)])
        events = plain.run_async(user_id="user", session_id="thread", new_message=message, run_config=STREAMED)
        said = [event async for event in events]
        assert "Done." in str([event.content for event in said])
        assert json.loads(provider.requests[1].body)["contents"][-1]["parts"][0]["functionResponse"]["response"] == {
            "painted": True
        }
        await plain.close()
        await model.api_client.aio.aclose()
        await agent.close()
