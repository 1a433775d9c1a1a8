"""State that agent and client share, the context that a client gives, and predictions."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.sessions import InMemorySessionService
from google.adk.tools import ToolContext

from callstream import Callstream
from callstream.adk import PredictStateMapping
from callstream.calls import CallState
from callstream.errors import UsageError
from callstream.testing import Finish, HttpError, Text, ToolCall
from tests.adk.hosting import Models, agent_of, scripted

from .agents import END, adk_agent, gemini
from .clients import Client, kinds


def remember(key: str, value: str, tool_context: ToolContext) -> str:
    """Remembers."""
    tool_context.state[key] = value
    return str(tool_context.state.get("color"))


async def test_state_in_and_out(cs: Callstream, models: Models) -> None:
    script = [[ToolCall("remember", {"key": "a/b~c", "value": "x"}), Finish()], END, END, END]
    async with scripted("gemini", script) as provider:
        sessions = InMemorySessionService()
        agent = agent_of(gemini(models, provider), remember, instruction="Color: {color}")
        client = Client(adk_agent(cs, agent, session_service=sessions))
        client.state = {"color": "red", "_ag_ui_thread_id": "somebody's", "app:x": 1, "user:y": 2}
        events = await client.send()
        assert "Color: red" in provider.requests[0].body.decode()
        assert client.calls()[0]["result"] == '{"result":"red"}'
        assert client.state == {"color": "red", "a/b~c": "x"}
        assert [event["delta"] for event in events if event["type"] == "STATE_DELTA"] == [
            [{"op": "add", "path": "/a~1b~0c", "value": "x"}]
        ]
        session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
        assert session is not None
        assert session.state["_ag_ui_thread_id"] == "thread"
        assert "app:x" not in session.state
        # A client that knows the state already is told nothing.
        again = await client.send()
        assert not {"STATE_SNAPSHOT", "STATE_DELTA"} & set(kinds(again))
        # One that knows nothing is told all of it.
        other = Client(client.agent)
        other._number = 50
        told = await other.send()
        assert other.state == {"color": "red", "a/b~c": "x"}
        assert kinds(told)[1] == "STATE_SNAPSHOT"


async def test_scopes_where_allowed(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        sessions = InMemorySessionService()
        agent = agent_of(gemini(models, provider))
        client = Client(adk_agent(cs, agent, session_service=sessions, allow_scoped_state_keys=True))
        client.state = {"user:y": 2}
        await client.send()
    other = await sessions.create_session(app_name="app", user_id="user")
    assert other.state == {"user:y": 2}


async def test_state_of_one_run(cs: Callstream, models: Models) -> None:
    """``temp:`` is google-adk's scope of an invocation: tools see it, no session keeps it, no client is told."""

    def token(tool_context: ToolContext) -> str:
        """Tells."""
        return str(tool_context.state.get("temp:token"))

    script = [[ToolCall("token", {}), Finish()], END] * 2
    async with scripted("gemini", script) as provider:
        sessions = InMemorySessionService()
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), token), session_service=sessions))
        events = await client.send(state={"temp:token": "secret"})
        assert client.calls()[0]["result"] == '{"result":"secret"}'
        assert not {"STATE_SNAPSHOT", "STATE_DELTA"} & set(kinds(events))
        session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
        assert session is not None
        assert "temp:token" not in session.state
        await client.send()
        assert client.calls()[0]["result"] == '{"result":"None"}'


async def test_context_reaches_instructions(cs: Callstream, models: Models) -> None:
    seen: list[Any] = []

    def instruct(context: Any) -> str:
        seen.append(context.state["_ag_ui_context"])
        seen.append(context.run_config.custom_metadata["ag_ui_context"])
        return "Be brief."

    given = [{"description": "place", "value": "Paris"}]
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), instruction=instruct)))
        await client.send(context=given)
    assert seen == [given, given]
    assert client.state == {}


async def test_predicted_state_is_announced_and_confirmed(cs: Callstream, models: Models) -> None:
    def write(body: str) -> str:
        """Writes."""
        return "written"

    mapping = PredictStateMapping(state_key="document", tool="write", tool_argument="body")
    script = [[ToolCall("write", {"body": "a long text"}), Finish()], END, END]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), write), predict_state=[mapping]))
        events = await client.send()
        assert kinds(events).index("CUSTOM") < kinds(events).index("TOOL_CALL_START")
        (announced,) = client.custom
        assert announced["name"] == "PredictState"
        assert announced["value"] == [{"state_key": "document", "tool": "write", "tool_argument": "body"}]
        assert [call["name"] for call in client.calls()] == ["write", "confirm_changes"]
        (asked,) = client.pending()
        assert asked == client.calls()[1]["id"]
        await client.answer({asked: {"accepted": True}})
        assert "The user accepted the changes." in provider.requests[2].body.decode()
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}


async def test_changes_are_confirmed_last_and_once_per_tool(cs: Callstream, models: Models) -> None:
    """Anything that comes after the question disables the buttons of a front end's dialog."""

    def write(body: str) -> str:
        """Writes."""
        return "written"

    def entitle(title: str) -> str:
        """Gives a title."""
        return "entitled"

    def look() -> str:
        """Looks."""
        return "seen"

    mappings = [PredictStateMapping("document", "write", "body"), PredictStateMapping("title", "entitle", "title")]
    script = [
        [Text("Writing."), ToolCall("write", {"body": "a"}), ToolCall("write", {"body": "b"}), Finish()],
        [ToolCall("entitle", {"title": "t"}), ToolCall("look", {}), Finish()],
        [Text("Written."), Finish()],
        END,
    ]
    async with scripted("gemini", script) as provider:
        agent = agent_of(gemini(models, provider), write, entitle, look)
        client = Client(adk_agent(cs, agent, predict_state=mappings))
        events = await client.send()
        assert [event["value"][0]["tool"] for event in client.custom] == ["write", "entitle"]
        asked = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
        assert kinds(events)[-7:] == [*asked, *asked, "RUN_FINISHED"]
        assert [(call["name"], call.get("result")) for call in client.calls()] == [
            ("write", None),
            ("write", None),
            ("entitle", None),
            ("look", '{"result":"seen"}'),
            ("confirm_changes", None),
            ("confirm_changes", None),
        ]
        assert client.pending() == [call["id"] for call in client.calls()[-2:]]
        await client.answer({call_id: {"accepted": False} for call_id in client.pending()})
        assert provider.requests[3].body.decode().count("The user rejected the changes.") == 2


async def test_changes_are_confirmed_as_an_interrupt(cs: Callstream, models: Models) -> None:
    def write(body: str) -> str:
        """Writes."""
        return "written"

    mapping = PredictStateMapping("document", "write", "body")
    script = [[ToolCall("write", {"body": "a"}), Finish()], END]
    async with scripted("gemini", script) as provider:
        agent = agent_of(gemini(models, provider), write)
        client = Client(adk_agent(cs, agent, predict_state=mapping, emit_interrupt_outcome=True))
        await client.send()
    assert client.ended is not None
    (interrupt,) = client.ended["outcome"]["interrupts"]
    assert interrupt["reason"] == "confirm_changes"
    assert interrupt["toolCallId"] == client.calls()[-1]["id"]
    assert interrupt["metadata"] == {"predict_state": [mapping.to_payload()]}


async def test_changes_of_a_run_that_failed_are_not_confirmed(cs: Callstream, models: Models) -> None:
    def write(body: str) -> str:
        """Writes."""
        return "written"

    mapping = PredictStateMapping("document", "write", "body")
    async with scripted("gemini", [[ToolCall("write", {"body": "a"}), Finish()], [HttpError(500)]]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), write), predict_state=mapping))
        events = await client.send()
    assert kinds(events)[-1] == "RUN_ERROR"
    assert [call["name"] for call in client.calls()] == ["write"]


async def test_prediction_without_question(cs: Callstream, models: Models) -> None:
    def write(body: str) -> str:
        """Writes."""
        return "written"

    mapping = PredictStateMapping("document", "write", "body", emit_confirm_tool=False)
    async with scripted("gemini", [[ToolCall("write", {"body": "a"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), write), predict_state=mapping))
        await client.send()
    assert len(client.custom) == 1
    assert client.pending() == []


@pytest.mark.parametrize("given", [{"state_key": "document", "tool": "write", "tool_argument": "body"}, ["write"]])
def test_what_is_no_mapping_is_refused_at_once(given: Any, cs: Callstream) -> None:
    with pytest.raises(UsageError, match="expected predict_state to be PredictStateMappings, got "):
        adk_agent(cs, LlmAgent(name="writer"), predict_state=given)


async def test_messages_are_marked_once(cs: Callstream, models: Models) -> None:
    """Else every event of a long thread would carry the whole account."""
    async with scripted("gemini", [END, END, END]) as provider:
        sessions = InMemorySessionService()
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions))
        client.state = {"color": "red"}
        for text in ("one", "two", "three"):
            await client.send(text)
        session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
    assert session is not None
    changed = [len(event.actions.state_delta) for event in session.events if event.author == "user"]
    assert changed == [2, 1, 1]
