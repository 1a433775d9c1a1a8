"""An agent behind AG-UI: what a client sees of a run."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import RunAgentInput, ToolMessage, UserMessage
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import Gemini

from callstream import Callstream, Progress, Streamed, current_run, no_progress, tool
from callstream.adk import ADKAgent
from callstream.events import ArgsAppended, CallDiscarded, CallStarted, MessageStarted, RunResumed, TextAppended
from callstream.testing import Finish, HttpError, Text, ToolCall
from tests.adk.hosting import PATHS, FakeLlm, Models, agent_of, scripted
from tests.adk.test_signatures import Forgetful, signatures_in

from .agents import END, adk_agent, gemini, texts_in
from .clients import Client, kinds


async def test_run_that_could_not_begin_leaves_its_id_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the journal is unavailable: the client tries again with the same id."""
    async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
        reserve_run_id = cs.engine.reserve_run_id

        def then_cancel(wanted: str) -> bool:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return reserve_run_id(wanted)

        monkeypatch.setattr(cs.engine, "reserve_run_id", then_cancel)
        agent = adk_agent(cs, LlmAgent(name="writer", model=FakeLlm()))
        said: list[Any] = [
            ToolMessage(id="1", role="tool", tool_call_id="asked", content="yes"),
            UserMessage(id="2", role="user", content="Go"),
        ]
        given = RunAgentInput(
            thread_id="thread", run_id="r", messages=said, state={}, tools=[], context=[], forwarded_props={}
        )
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(agent.begin(given))  # type: ignore[arg-type]
        has_run = bool(await cs.journal.runs(run_id="r"))
        assert await cs.free_run_id("r") == ("r~2" if has_run else "r")


async def test_run_streams_text_call_and_result(cs: Callstream, models: Models) -> None:
    ran: list[dict[str, Any]] = []

    def write(title: str, body: str) -> str:
        """Writes."""
        ran.append({"title": title, "body": body})
        return "written"

    args = {"title": "A wave", "body": "It rises 🌊, and it falls.\n" * 5}
    script = [[Text("I write."), ToolCall("write", args), Finish()], END]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), write)))
        events = await client.send("Write")
    (call,) = client.calls()
    assert ran == [args] == [call["args"]]
    assert kinds(events).count("TOOL_CALL_ARGS") > 5
    assert json.loads(call["result"]) == {"result": "written"}
    assert client.text() == "I write.Done."
    assert kinds(events)[0] == "RUN_STARTED"
    assert (events[0]["threadId"], events[0]["runId"]) == ("thread", "run-2")
    assert events[-1]["outcome"] == {"type": "success"}
    kept = await cs.journal.call(call["id"])
    assert kept is not None
    assert kept.args == args


@pytest.mark.parametrize("path", PATHS)
async def test_a_tool_that_runs_early_is_shown_between_its_arguments(cs: Callstream, models: Models, path: str) -> None:
    @tool
    async def write(title: str, body: Streamed[str]) -> int:
        """Writes."""
        return sum([len(piece) async for piece in body])

    args = {"title": "A wave", "body": "It rises, and it falls.\n" * 5}
    async with scripted("gemini", [[ToolCall("write", args), Finish()], END]) as provider:
        async with gemini_on(path, models, provider) as model:
            client = Client(adk_agent(cs, agent_of(model, write)))
            events = await client.send("Write")
    (call,) = client.calls()
    assert (call["args"], json.loads(call["result"])) == (args, {"result": len(args["body"])})
    [early] = [event for event in events if event["type"] == "CUSTOM"]
    assert (early["name"], early["value"]) == (
        "running_early",
        {"toolCallId": call["id"], "toolCallName": "write"},
    )
    kept = await cs.journal.call(call["id"])
    assert kept is not None
    assert kept.ran_early


class OwnClient(Gemini):
    """A model that builds its own client, so it is read from its partial events."""

    @cached_property
    def api_client(self) -> Any:
        return super().api_client


@asynccontextmanager
async def gemini_on(path: str, models: Models, provider: Any) -> AsyncIterator[Any]:
    """A model that nobody has tapped yet, and that an agent can tap, or not."""
    model = gemini(models, provider)
    if path == "tap":
        yield model
        return
    model = OwnClient(model=model.model, client_kwargs=model.client_kwargs)
    yield model
    await model.api_client.aio.aclose()


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses"])
async def test_other_wires_through_run(wire: str, cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    def write(body: str) -> str:
        """Writes."""
        ran.append(body)
        return "written"

    script = [[Text("I write."), ToolCall("write", {"body": "a long body of text"}), Finish()], END]
    async with scripted(wire, script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), write)))
        events = await client.send()
    assert [call["args"] for call in client.calls()] == [{"body": "a long body of text"}]
    assert ran == ["a long body of text"]
    assert kinds(events).count("TOOL_CALL_ARGS") > 1
    assert client.text() == "I write.Done."


async def test_unseen_messages_only(cs: Callstream, models: Models) -> None:
    script = [[Text("First."), Finish()], [Text("Second."), Finish()]]
    async with scripted("gemini", script) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        client = Client(agent)
        await client.send("one")
        assert client.text() == "First."
        await client.send("two")
        assert client.text() == "Second."
        body = json.loads(provider.requests[1].body)
        assert texts_in(body) == ["one", "First.", "two"]
        again = await client.run()
        assert kinds(again) == ["RUN_STARTED", "RUN_FINISHED"]
        assert len(provider.requests) == 2


async def test_a_message_that_is_sent_once_more_is_answered_once_more(cs: Callstream, models: Models) -> None:
    """After a failure, for another answer, or with other words: clients send the message under its id."""
    script = [[HttpError(400, "no")], [Text("First."), Finish()], [Text("Second."), Finish()], END]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), emit_messages_snapshot=True))
        assert kinds(await client.send("one"))[-1] == "RUN_ERROR"
        await client.run()
        assert client.text() == "First."
        del client.messages[1:]
        client.messages[0]["content"] = "one, in short"
        await client.run()
        assert client.text() == "Second."
        events = await client.send("two")
    said = ["one", "one", "First.", "one, in short", "Second.", "two"]
    assert texts_in(json.loads(provider.requests[-1].body)) == said
    shown = events[-2]["messages"]
    assert [message["content"] for message in shown] == [*said, "Done."]
    assert len({message["id"] for message in shown}) == len(shown)


async def test_an_answered_message_that_is_sent_once_more_may_be_left_alone(cs: Callstream, models: Models) -> None:
    script = [[HttpError(400, "no")], [Text("First."), Finish()]]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), answer_again=False))
        assert kinds(await client.send("one"))[-1] == "RUN_ERROR"
        await client.run()
        assert client.text() == "First."
        del client.messages[1:]
        assert kinds(await client.run()) == ["RUN_STARTED", "RUN_FINISHED"]
        assert len(provider.requests) == 2


async def test_first_run_history_is_seeded(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Text("Three."), Finish()]]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        client.messages = [
            {"id": "u1", "role": "user", "content": "one"},
            {"id": "a1", "role": "assistant", "content": "One."},
        ]
        await client.send("two")
        body = json.loads(provider.requests[0].body)
    assert texts_in(body) == ["one", "One.", "two"]


async def test_session_that_exists_goes_on(cs: Callstream, models: Models) -> None:
    """Under another id, with ag_ui_adk's mark of the thread, as it leaves it."""
    from google.adk.sessions import InMemorySessionService

    sessions = InMemorySessionService()
    made = await sessions.create_session(app_name="app", user_id="user", state={"_ag_ui_thread_id": "thread", "k": 1})
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions))
        await client.send("one")
    kept = await sessions.get_session(app_name="app", user_id="user", session_id=made.id)
    assert kept is not None
    assert [event.author for event in kept.events] == ["user", "writer"]
    assert client.state == {"k": 1}
    assert len((await sessions.list_sessions(app_name="app", user_id="user")).sessions) == 1


async def test_system_message_is_instruction(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), instruction="Be brief.")))
        client.messages = [{"id": "s", "role": "system", "content": "Speak like a pirate."}]
        await client.send("Go")
        body = provider.requests[0].body.decode()
    assert "Be brief." in body
    assert "Speak like a pirate." in body.split('"systemInstruction"')[1]


async def test_image_reaches_model(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        source = {"type": "data", "value": "aGVsbG8=", "mimeType": "image/png"}
        await client.send([{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}])
        (content,) = json.loads(provider.requests[0].body)["contents"]
    assert content["parts"][0] == {"text": "What is it?"}
    blob = content["parts"][1]["inlineData"]
    assert (blob["data"], blob.get("mimeType") or blob.get("mime_type")) == ("aGVsbG8=", "image/png")


async def test_error_is_run_error(cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture) -> None:
    async with scripted("gemini", [[HttpError(400, "no such thing")], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), show_errors=True)
        client = Client(agent)
        events = await client.send()
        assert kinds(events)[-1] == "RUN_ERROR"
        assert "no such thing" in events[-1]["message"]
        await client.send("again")
        assert client.text() == "Done."
    assert [run.outcome for run in await cs.journal.runs()] == ["finished", "failed"]


async def test_progress_is_activity(cs: Callstream, models: Models) -> None:
    @tool
    async def work(n: int, progress: Progress = no_progress) -> str:
        """Works."""
        await progress(n, 2, "half")
        return "worked"

    async with scripted("gemini", [[ToolCall("work", {"n": 1}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), work)))
        events = await client.send()
    (activity,) = [event for event in events if event["type"] == "ACTIVITY_SNAPSHOT"]
    assert activity["activityType"] == "tool_progress"


@pytest.mark.parametrize("path", PATHS)
async def test_flag_off_whole(path: str, cs: Callstream, models: Models) -> None:
    def write(body: str) -> str:
        """Writes."""
        return "written"

    async with scripted("gemini", [[ToolCall("write", {"body": "a long body of text"}), Finish()], END]) as provider:
        async with gemini_on(path, models, provider) as model:
            client = Client(adk_agent(cs, agent_of(model, write), streaming_function_call_arguments=False))
            events = await client.send()
    of_call = [kind for kind in kinds(events) if kind in ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END")]
    assert of_call == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
    assert client.calls()[0]["args"] == {"body": "a long body of text"}


@pytest.mark.parametrize("path", PATHS)
async def test_two_settings_one_process(path: str, cs: Callstream, models: Models) -> None:
    """Two agents over one model and one journal, at once: one shows arguments as they come, one whole."""

    def write(body: str) -> str:
        """Writes."""
        return "written"

    calling = [ToolCall("write", {"body": "a long body of text"}), Finish()]
    # Each agent asks twice, and one of them may have asked twice before the other has asked at all.
    async with scripted("gemini", lambda request: END if b"functionResponse" in request.body else calling) as provider:
        async with gemini_on(path, models, provider) as model:
            root = agent_of(model, write)
            clients = [
                Client(adk_agent(cs, root, streaming_function_call_arguments=flag), f"thread-{flag}")
                for flag in (True, False)
            ]
            clients[1]._number = 10  # ids of runs are no two clients' own
            live, whole = await asyncio.gather(*(client.send() for client in clients))
    assert kinds(live).count("TOOL_CALL_ARGS") > 1
    assert kinds(whole).count("TOOL_CALL_ARGS") == 1
    for client in clients:
        assert [(call["args"], json.loads(call["result"])) for call in client.calls()] == [
            ({"body": "a long body of text"}, {"result": "written"})
        ]


async def test_messages_snapshot(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Text("First."), Finish()], [Text("Second."), Finish()]]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), emit_messages_snapshot=True))
        await client.send("one")
        events = await client.send("two")
    assert kinds(events)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert [message["content"] for message in events[-2]["messages"]] == ["one", "First.", "two", "Second."]


async def test_a_thread_without_messages_has_no_snapshot_of_them(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), emit_messages_snapshot=True))
        assert kinds(await client.run()) == ["RUN_STARTED", "RUN_FINISHED"]


@pytest.mark.parametrize("options", [{}, {"streaming_function_call_arguments": False, "emit_messages_snapshot": True}])
async def test_a_response_that_another_process_asks_for_again_is_taken_back(
    cs: Callstream, models: Models, options: dict[str, Any]
) -> None:
    async def go_on() -> str:
        """Leaves what a process leaves that dies in the middle of a response, and goes on."""
        run = current_run()
        assert run is not None
        await run.record([MessageStarted("half"), TextAppended("half", "Half")])
        await run.record(
            [CallStarted("half-call", "write", "half-call", message_id="half"), ArgsAppended("half-call", "{")]
        )
        await run.record([RunResumed(2, ("half",)), CallDiscarded("half-call", "interrupted")])
        return "done"

    async with scripted("gemini", [[Text("First."), Finish()], [ToolCall("go_on", {}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), go_on), **options))
        await client.send("one")
        events = await client.send("two")
    place = next(number for number, event in enumerate(events) if event["type"] == "MESSAGES_SNAPSHOT")
    snapshot, ended = events[place : place + 2]
    assert [message.get("content") for message in snapshot["messages"]][:3] == ["one", "First.", "two"]
    assert "half" not in [message["id"] for message in snapshot["messages"]]
    assert (ended["type"], ended["toolCallId"]) == ("TOOL_CALL_END", "half-call")
    assert not any(event.get("toolCallId") == "half-call" for event in events[place + 2 :])
    assert [each["content"] for each in client.messages if each["role"] == "assistant" and each["content"]] == [
        "First.",
        "Done.",
    ]


@pytest.mark.parametrize("path", PATHS)
async def test_signatures_repaired_where_the_session_has_another_name(
    path: str, cs: Callstream, models: Models
) -> None:
    """The journal knows calls by the thread; the session service gives sessions names of its own."""

    def note(text: str) -> str:
        return text

    calling = [ToolCall("note", {"text": "x"}), Finish()]
    async with scripted("gemini", [calling, END], strict_signatures=True) as provider:
        async with gemini_on(path, models, provider) as model:
            app = App(name="app", root_agent=agent_of(model, note), plugins=[Forgetful("forgetful")])
            agent = ADKAgent.from_app(app, user_id="user", callstream=cs, use_thread_id_as_session_id=False)
            client = Client(agent)
            await client.send()
        (kept,) = await cs.journal.calls()
        assert signatures_in(provider.requests[1]) == [base64.b64decode(kept.signature or "")]
    assert client.text() == "Done."
