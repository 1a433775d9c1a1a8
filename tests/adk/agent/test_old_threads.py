"""Threads that ag_ui_adk began go on here, with what they left pending."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from ag_ui.core import Message, Tool
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.events.event import Event
from google.adk.sessions import InMemorySessionService, Session
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types
from pydantic import TypeAdapter

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset, PredictStateMapping
from callstream.calls import CallState
from callstream.testing import Finish, Parallel, ToolCall
from tests.adk.hosting import Models, agent_of, scripted
from tests.gated import PATIENCE

from .agents import END, adk_agent, gemini
from .clients import Client
from .oldthreads import PAINT, OldThread, approve, delete, old_thread, remove_tool, write_document


class LateSessions(InMemorySessionService):
    """The first who asks for a session reads it when it is ``let``."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked, self.let = asyncio.Event(), asyncio.Event()

    async def get_session(self, **wanted: Any) -> Session | None:
        if not self.was_asked.is_set():
            self.was_asked.set()
            await self.let.wait()
        return await super().get_session(**wanted)


DOCUMENT = PredictStateMapping(state_key="document", tool="write_document", tool_argument="document")


async def sessions_of(thread: OldThread) -> InMemorySessionService:
    """google-adk's sessions as ag_ui_adk left them."""
    service = InMemorySessionService()
    kept = thread.session
    session = await service.create_session(
        app_name=kept["appName"], user_id=kept["userId"], session_id=kept["id"], state=kept["state"]
    )
    for event in kept["events"]:
        await service.append_event(session, Event.model_validate(event))
    return service


def client_of(
    thread: OldThread,
    cs: Callstream,
    root: Any,
    sessions: InMemorySessionService,
    *,
    resumable: bool = False,
    **options: Any,
) -> Client:
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    app = App(name="app", root_agent=root, resumability_config=config)
    agent = ADKAgent.from_app(app, user_id="user", session_service=sessions, callstream=cs, **options)
    client = Client(agent, tools=[Tool.model_validate(tool) for tool in thread.tools])
    client.messages = [dict(message) for message in thread.messages]
    client._number = 100
    return client


def responses_in(body: bytes) -> list[Any]:
    contents = json.loads(body)["contents"]
    parts = [part for content in contents for part in content["parts"]]
    return [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]


@pytest.mark.parametrize("name", ["client_tool", "client_tool_after_a_turn"])
async def test_old_thread_goes_on_with_a_client_tool(name: str, cs: Callstream, models: Models) -> None:
    thread = old_thread(name)
    async with scripted("gemini", [END, END]) as provider:
        root = agent_of(gemini(models, provider), AGUIToolset())
        sessions = await sessions_of(thread)
        client = client_of(thread, cs, root, sessions)
        shown = await client.agent.thread_state("thread")
        assert [message["role"] for message in shown["messages"]] == [m["role"] for m in thread.messages]
        await client.answer({thread.calls[-1]: "painted"})
        assert responses_in(provider.requests[0].body) == [{"result": "painted"}]
        assert client.text() == "Done."
        assert client.state is None or "pending_tool_calls" not in client.state
        # It counts once, and the thread takes other messages.
        await client.send("More")
        assert responses_in(provider.requests[1].body) == [{"result": "painted"}]
    listed = await sessions.list_sessions(app_name="app", user_id="user")
    assert [session.id for session in listed.sessions] == [thread.session["id"]]


async def test_old_thread_goes_on_under_the_id_that_the_client_knows(cs: Callstream, models: Models) -> None:
    """ag_ui_adk notes in the session where the client's id of a call is not google-adk's."""
    thread = old_thread("client_tool")
    thread.session["state"]["lro_tool_call_id_remap"] = {"client-7": thread.calls[0]}
    async with scripted("gemini", [END]) as provider:
        client = client_of(thread, cs, agent_of(gemini(models, provider), AGUIToolset()), await sessions_of(thread))
        client.messages[-1]["toolCalls"][0]["id"] = "client-7"
        await client.answer({"client-7": "painted"})
        assert responses_in(provider.requests[0].body) == [{"result": "painted"}]
    assert client.text() == "Done."
    assert not client.state


async def test_old_thread_goes_on_where_one_of_two_was_answered(cs: Callstream, models: Models) -> None:
    thread = old_thread("one_of_two_answered")
    async with scripted("gemini", [END]) as provider:
        root = agent_of(gemini(models, provider), LongRunningFunctionTool(approve))
        client = client_of(thread, cs, root, await sessions_of(thread), resumable=True)
        await client.answer({thread.calls[1]: {"ok": 2}})
        assert responses_in(provider.requests[0].body) == [{"ok": 1}, {"ok": 2}]
    assert client.text() == "Done."


@pytest.mark.parametrize(("accepted", "said"), [(True, "accepted"), (False, "rejected")])
async def test_old_thread_goes_on_with_changes_to_confirm(
    accepted: bool, said: str, cs: Callstream, models: Models
) -> None:
    thread = old_thread("confirm_changes")
    async with scripted("gemini", [END]) as provider:
        root = agent_of(gemini(models, provider), write_document)
        client = client_of(thread, cs, root, await sessions_of(thread), predict_state=[DOCUMENT])
        await client.answer({thread.calls[-1]: {"accepted": accepted}})
        assert f"The user {said} the changes." in provider.requests[0].body.decode()
    assert client.text() == "Done."


@pytest.mark.parametrize("confirmed", [True, False])
async def test_old_thread_goes_on_with_a_tool_to_confirm(confirmed: bool, cs: Callstream, models: Models) -> None:
    """There the client was shown google-adk's own question, and answers that."""
    thread = old_thread("confirmation")
    async with scripted("gemini", [END]) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(delete, require_confirmation=True))
        client = client_of(thread, cs, root, await sessions_of(thread), resumable=True)
        await client.answer({thread.calls[-1]: {"confirmed": confirmed}})
        (response,) = responses_in(provider.requests[0].body)
    assert (response == {"result": "deleted a.txt"}) is confirmed
    assert ("rejected" in json.dumps(response)) is not confirmed
    assert client.text() == "Done."


@pytest.mark.parametrize("confirmed", [True, False])
async def test_old_thread_goes_on_with_a_tool_that_asks_from_within(
    confirmed: bool, cs: Callstream, models: Models
) -> None:
    """ag_ui_adk leaves a run at the question, before google-adk has put into the session that the tool asked."""
    thread = old_thread("confirmation_from_within")
    async with scripted("gemini", [END]) as provider:
        root = agent_of(gemini(models, provider), remove_tool())
        client = client_of(thread, cs, root, await sessions_of(thread))
        events = await client.answer({thread.calls[-1]: {"confirmed": confirmed}})
        assert "RUN_ERROR" not in [event["type"] for event in events]
        assert responses_in(provider.requests[0].body) == [{"status": "removed" if confirmed else "kept"}]
    assert client.text() == "Done."
    states = {call.name: call.state for call in await cs.journal.calls()}
    assert (states["remove"], states["adk_request_confirmation"]) == (CallState.COMPLETED, CallState.COMPLETED)


async def pending_in(client: Client) -> tuple[Any, Any, Any]:
    """ag_ui_adk's marks of what awaits an answer, which its users may go back to."""
    service = client.agent._threads.service
    session = await service.get_session(app_name="app", user_id="user", session_id="thread")
    assert session is not None
    keys = ("pending_tool_calls", "_ag_ui_pending_confirm_changes", "lro_tool_call_id_remap")
    pending, confirmations, renamed = (session.state.get(key) for key in keys)
    return pending or [], confirmations or [], renamed or {}


def new_client(cs: Callstream, root: Any, *, resumable: bool = False, **options: Any) -> Client:
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    app = App(name="app", root_agent=root, resumability_config=config)
    agent = ADKAgent.from_app(app, user_id="user", callstream=cs, **options)
    return Client(agent, tools=[Tool.model_validate(PAINT)])


async def test_what_awaits_an_answer_is_marked_in_the_session(cs: Callstream, models: Models) -> None:
    both = [Parallel([ToolCall("approve", {"plan": "a"}), ToolCall("approve", {"plan": "b"})]), Finish()]
    script = [[ToolCall("paint", {"color": "red"}), Finish()], both, END]
    async with scripted("gemini", script) as provider:
        root = agent_of(gemini(models, provider), AGUIToolset(), LongRunningFunctionTool(approve))
        client = new_client(cs, root, resumable=True)
        await client.send()
        assert await pending_in(client) == (client.pending(), [], {})
        await client.answer({client.pending()[0]: "painted"})
        first, second = client.pending()
        assert await pending_in(client) == ([first, second], [], {})
        await client.answer({second: {"ok": 2}})
        await client.answer({first: {"ok": 1}})
        assert client.text() == "Done."
        assert await pending_in(client) == ([], [], {})
    assert not client.state


async def test_what_is_to_be_confirmed_is_marked_in_the_session(cs: Callstream, models: Models) -> None:
    script = [[ToolCall("delete", {"path": "a.txt"}), Finish()], END]
    async with scripted("gemini", script) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(delete, require_confirmation=True))
        client = new_client(cs, root, resumable=True)
        await client.send()
        (question,) = client.pending()  # and not the call that it is about
        assert await pending_in(client) == ([question], [], {})
        await client.answer({question: {"confirmed": True}})
        assert await pending_in(client) == ([], [], {})


async def test_changes_to_confirm_are_marked_in_the_session(cs: Callstream, models: Models) -> None:
    script = [[ToolCall("write_document", {"document": "A wave."}), Finish()], END, END]
    async with scripted("gemini", script) as provider:
        root = agent_of(gemini(models, provider), write_document)
        client = new_client(cs, root, predict_state=[DOCUMENT])
        await client.send()
        assert await pending_in(client) == ([], client.pending(), {})
        await client.answer({client.pending()[0]: {"accepted": True}})
        assert await pending_in(client) == ([], [], {})


async def test_calls_that_a_client_knows_by_another_id_are_marked_so(cs: Callstream, models: Models) -> None:
    def repaint(callback_context: Any, llm_response: Any) -> None:
        for part in (llm_response.content and llm_response.content.parts) or ():
            if part.function_call is not None and not llm_response.partial:
                part.function_call.args = {"color": "BLUE"}

    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), AGUIToolset())
        root.after_model_callback = repaint
        client = new_client(cs, root)
        await client.send()
        (shown,) = client.pending()
        pending, _, renamed = await pending_in(client)
        assert pending == [shown]
        assert "~" not in renamed.get(shown, shown)  # google-adk's own id
        await client.answer({shown: "painted"})
        assert client.text() == "Done."


async def test_old_thread_is_shown_whole(cs: Callstream, models: Models) -> None:
    """Whoever joins later sees what was said before the journal, once, and no hook hears of it."""
    heard: list[str] = []
    cs.on_args_complete("paint", lambda call, signal: heard.append(call.call_id))
    thread = old_thread("client_tool_after_a_turn")
    async with scripted("gemini", [END, END]) as provider:
        root = agent_of(gemini(models, provider), AGUIToolset())
        client = client_of(thread, cs, root, await sessions_of(thread), emit_messages_snapshot=True)
        events = await client.answer({thread.calls[-1]: "painted"})
        await client.send("More")
    (snapshot,) = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    said = [(message["role"], message.get("content")) for message in snapshot["messages"]]
    assert said == [
        ("user", "Hello"),
        ("assistant", "Done."),
        ("user", "Go"),
        ("assistant", ""),
        ("tool", "painted"),
        ("assistant", "Done."),
    ]
    assert heard == []
    assert len(await cs.journal.runs(thread_id="thread")) == 3


async def test_old_thread_with_ids_that_come_again(cs: Callstream, models: Models) -> None:
    """Some servers number the calls of every turn anew; what a tool failed with stays its failure."""
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="app", user_id="user", session_id="thread")
    responses: list[dict[str, Any]] = [{"result": 1}, {"error": "no"}, {"result": 3}]
    for number, response in enumerate(responses):
        said = types.Content(role="user", parts=[types.Part(text=f"turn {number}")])
        call = types.FunctionCall(id="0", name="look", args={"number": number})
        thought = types.Part(text="Hm.", thought=True)
        image = types.Part(inline_data=types.Blob(data=b"x", mime_type="image/png"))
        asked = types.Content(role="model", parts=[thought, types.Part(function_call=call, thought_signature=b"s")])
        answered = types.FunctionResponse(id="0", name="look", response=response)
        told = types.Content(role="user", parts=[types.Part(function_response=answered)])
        said.parts.append(image)  # type: ignore[union-attr]
        for author, content in (("user", said), ("writer", asked), ("writer", told)):
            await sessions.append_event(session, Event(author=author, content=content))
    async with scripted("gemini", [END]) as provider:
        agent = ADKAgent(
            adk_agent=agent_of(gemini(models, provider)), app_name="app", user_id="user", session_service=sessions,
            callstream=cs,
        )  # fmt: skip
        await Client(agent).send("More")
    kept = [await cs.journal.call(call.call_id) for call in await cs.journal.calls(thread_id="thread")]
    assert [call and (call.provider_id, call.args, call.state.value, call.result, call.error) for call in kept] == [
        ("0", {"number": 0}, "completed", {"result": 1}, None),
        ("0", {"number": 1}, "failed", None, "no"),
        ("0", {"number": 2}, "completed", {"result": 3}, None),
    ]
    assert {call.signature for call in kept if call is not None} == {"cw=="}


async def test_session_service_that_fails(cs: Callstream, models: Models) -> None:
    class Broken(InMemorySessionService):
        async def get_session(self, **given: Any) -> Any:
            raise ConnectionError("the database is away")

    async with scripted("gemini", [END]) as provider:
        client = Client(ADKAgent(adk_agent=agent_of(gemini(models, provider)), session_service=Broken(), callstream=cs))
        events = await client.send()
    assert [event["type"] for event in events] == ["RUN_STARTED", "RUN_ERROR"]


async def test_a_thread_that_nobody_has_touched_here_is_shown_as_it_was(cs: Callstream, models: Models) -> None:
    """With what was attached, what the model thought, and which agent spoke."""
    picture = types.Part(file_data=types.FileData(file_uri="https://pictures/1", mime_type="image/png"))
    letter = types.Part(inline_data=types.Blob(data=b"%PDF", mime_type="application/pdf"))
    sound = types.Part(inline_data=types.Blob(data=b"ding", mime_type="audio/mpeg"))
    asked = types.Content(role="user", parts=[types.Part(text="What is it?"), picture, letter])
    thought = types.Part(text="A cat, surely.", thought=True)
    events = [
        Event(author="user", content=asked),
        Event(author="expert", content=types.Content(role="model", parts=[thought, types.Part(text="A cat.")])),
        Event(author="user", content=types.Content(role="user", parts=[thought])),
        Event(author="user", content=types.Content(role="user", parts=[sound])),
        Event(author="model", content=types.Content(role="model", parts=[thought])),
        Event(author="model", content=types.Content(role="model", parts=[types.Part(text="A bell.")])),
    ]
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="app", user_id="user", session_id="thread")
    for event in events:
        await sessions.append_event(session, event)
    async with scripted("gemini", [END]) as provider:
        root = agent_of(gemini(models, provider))
        agent = ADKAgent(adk_agent=root, app_name="app", user_id="user", session_service=sessions, callstream=cs)
        shown = await agent.thread_state("thread")
    attached = [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "url", "value": "https://pictures/1", "mimeType": "image/png"}},
        {"type": "document", "source": {"type": "data", "value": "JVBERg==", "mimeType": "application/pdf"}},
    ]
    heard = [{"type": "audio", "source": {"type": "data", "value": "ZGluZw==", "mimeType": "audio/mpeg"}}]
    assert [{key: value for key, value in message.items() if key != "id"} for message in shown["messages"]] == [
        {"role": "user", "content": attached},
        {"role": "reasoning", "content": "A cat, surely."},
        {"role": "assistant", "name": "expert", "content": "A cat."},
        {"role": "user", "content": heard},
        {"role": "reasoning", "content": "A cat, surely."},
        {"role": "assistant", "content": "A bell."},
    ]
    assert len({message["id"] for message in shown["messages"]}) == 6
    TypeAdapter(list[Message]).validate_python(shown["messages"])


async def test_thread_that_begins_while_its_session_is_looked_for_is_not_imported(
    cs: Callstream, models: Models
) -> None:
    """Who joins a new thread finds no run of it in the journal, and then, in the session, what its first run has said."""
    sessions = LateSessions()
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions)
        joining = asyncio.create_task(agent.import_thread("thread", "user"))
        async with asyncio.timeout(PATIENCE):
            await sessions.was_asked.wait()
            client = Client(agent)
            await client.send("Hello")
            sessions.let.set()
            await joining
    assert len(await cs.journal.runs(thread_id="thread")) == 1
    shown = await agent.thread_state("thread")
    assert [message["content"] for message in shown["messages"]] == ["Hello", "Done."]


async def test_what_ag_ui_adk_would_resume_is_unmarked(cs: Callstream, models: Models) -> None:
    """It would resume that invocation with whatever answer comes next, should the program go back to it."""
    sessions = InMemorySessionService()
    state = {"_ag_ui_thread_id": "thread", "_ag_ui_invocation_id": "old"}
    made = await sessions.create_session(app_name="app", user_id="user", state=state)
    async with scripted("gemini", [END]) as provider:
        await Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions)).send("one")
    kept = await sessions.get_session(app_name="app", user_id="user", session_id=made.id)
    assert kept is not None
    assert not kept.state.get("_ag_ui_invocation_id")


async def test_calls_without_ids_are_shown_under_some(cs: Callstream, models: Models) -> None:
    """In a session that another program wrote, and of a thread that the journal does not know."""
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="app", user_id="user", session_id="thread")
    calls = [types.Part(function_call=types.FunctionCall(name="paint", args={})) for _ in range(2)]
    answer = types.Part(function_response=types.FunctionResponse(name="paint", response={}))
    for author, parts in (("writer", calls), ("writer", [answer])):
        await sessions.append_event(session, Event(author=author, content=types.Content(parts=parts)))
    agent = adk_agent(cs, agent_of("gemini-flash"), session_service=sessions)
    [message] = (await agent.thread_state("thread"))["messages"]
    names = [call["id"] for call in message["toolCalls"]]
    assert len(set(names)) == 2
    assert all(isinstance(name, str) for name in names)
    TypeAdapter(list[Message]).validate_python([message])
