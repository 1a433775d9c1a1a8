"""Tools of people: long-running ones, and confirmations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import LongRunningFunctionTool

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset
from callstream.calls import CallState
from callstream.testing import Failure, Finish, Text, ToolCall
from tests.adk.hosting import Models, agent_of, scripted

from .agents import END, adk_agent, gemini
from .asking import Remover
from .clients import Client, kinds
from .clienttools import PAINT, responses_in


def approve(what: str) -> None:
    """Asks a person."""


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("interrupts", [False, True])
async def test_long_running_answer_after_restart(
    interrupts: bool, resumable: bool, tmp_path: Path, models: Models
) -> None:
    script = [[Text("May I?"), ToolCall("approve", {"what": "x"}), Finish()], END]
    messages: list[Any] = []
    async with scripted("gemini", script) as provider:
        for number in (1, 2):
            async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
                config = ResumabilityConfig(is_resumable=True) if resumable else None
                root = agent_of(gemini(models, provider), LongRunningFunctionTool(approve))
                app = App(name="app", root_agent=root, resumability_config=config)
                sessions = SqliteSessionService(f"{tmp_path}/sessions.db")
                agent = ADKAgent.from_app(
                    app, user_id="user", callstream=cs, session_service=sessions, emit_interrupt_outcome=interrupts
                )
                client = Client(agent)
                client.messages = messages
                if number == 1:
                    await client.send()
                    messages = client.messages
                    assert client.ended is not None
                    outcome = client.ended["outcome"]
                    asked = outcome["interrupts"][0]["id"] if interrupts else outcome["pendingToolCallIds"][0]
                else:
                    client._number = 10
                    if interrupts:
                        await client.run(resume=[{"interruptId": asked, "status": "resolved", "payload": {"ok": True}}])
                    else:
                        await client.answer({asked: {"ok": True}})
                    assert client.text() == "Done."
                    (call,) = await cs.journal.calls()
                    assert (call.state, call.result) == (CallState.COMPLETED, {"ok": True})
                await agent.close()
        assert len(provider.requests) == 2
        assert responses_in(provider.requests[1].body) == [{"ok": True}]


async def test_a_jobs_updates_reach_the_model_until_its_result(cs: Callstream, models: Models) -> None:
    """A client's answer counts once: what it says after the result changes nothing."""

    def export() -> dict[str, str]:
        """Begins a job."""
        return {"status": "pending"}

    script = [[ToolCall("export", {}), Finish()], *[[Text(f"{n}."), Finish()] for n in range(3)]]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), LongRunningFunctionTool(export))))
        await client.send()
        (asked,) = client.pending()
        said = [{"status": "pending", "done": 50}, {"status": "written"}, {"status": "checked"}]
        for number, response in enumerate(said):
            message = {"role": "tool", "toolCallId": asked, "content": json.dumps(response)}
            events = await client.run(messages=[{"id": f"said-{number}", **message}])
            assert kinds(events)[-1] == "RUN_FINISHED"
        assert [responses_in(request.body)[-1] for request in provider.requests[2:]] == said[:2]
    (call,) = await cs.journal.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"status": "written"})


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("interrupts", [False, True])
async def test_tool_confirmation(
    interrupts: bool, confirmed: bool, cs: Callstream, models: Models, remover: Remover
) -> None:
    async with scripted("gemini", [[ToolCall("remove", {"path": "/x"}), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), remover.tool), emit_interrupt_outcome=interrupts)
        client = Client(agent)
        await client.send()
        assert remover.ran == []
        assert client.ended is not None
        if interrupts:
            asked = client.ended["outcome"]["interrupts"][0]["id"]
            events = await client.run(
                resume=[{"interruptId": asked, "status": "resolved", "payload": {"confirmed": confirmed}}]
            )
            assert "TOOL_CALL_RESULT" in kinds(events)
        else:
            (asked,) = client.pending()
            events = await client.answer({asked: {"confirmed": confirmed}})
        assert client.text() == "Done."
    assert remover.ran == (["/x"] if confirmed else [])
    results = [event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert ('{"error":"This tool call is rejected."}' in results) is not confirmed
    assert not any("failed" in each for each in results)


async def test_tool_confirmations_answered_one_by_one(cs: Callstream, models: Models, remover: Remover) -> None:
    calls = [ToolCall("remove", {"path": path}) for path in ("/x", "/y")]
    async with scripted("gemini", [[*calls, Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), remover.tool)))
        await client.send()
        first, second = client.pending()
        events = await client.answer({second: {"confirmed": True}})
        assert kinds(events) == ["RUN_STARTED", "RUN_FINISHED"]
        await client.answer({first: {"confirmed": False}})
        assert client.text() == "Done."
    assert remover.ran == ["/y"]
    assert [(call.name, call.state) for call in await cs.journal.calls()] == [
        ("remove", CallState.FAILED),
        ("remove", CallState.COMPLETED),
        ("adk_request_confirmation", CallState.COMPLETED),
        ("adk_request_confirmation", CallState.COMPLETED),
    ]


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [(0, 1)], [(1, 0)]])
@pytest.mark.parametrize("resumable", [False, True])
async def test_tool_confirmation_beside_a_client_tool(
    resumable: bool, order: list[Any], cs: Callstream, models: Models, remover: Remover
) -> None:
    """One after the other, in either order, or both at once: the model is asked when both have their answers."""

    calls = [ToolCall("remove", {"path": "/x"}), ToolCall("paint", {"color": "red"})]
    async with scripted("gemini", [[*calls, Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), remover.tool, AGUIToolset())
        app = App(name="app", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable))
        client = Client(ADKAgent.from_app(app, user_id="user", callstream=cs), tools=[PAINT])
        await client.send()
        painting, question = client.pending()
        answers = [(question, {"confirmed": True}), (painting, {"painted": 1})]
        for step in order:
            assert len(provider.requests) == 1
            await client.answer(dict([answers[step]] if isinstance(step, int) else [answers[each] for each in step]))
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"result": "removed"}, {"painted": 1}]


@pytest.mark.parametrize("resumable", [False, True])
async def test_tool_confirmation_with_a_new_message(
    resumable: bool, cs: Callstream, models: Models, remover: Remover
) -> None:
    """The tool runs and the model is told, and then it is told what else the person said."""
    async with scripted("gemini", [[ToolCall("remove", {"path": "/x"}), Finish()], END, END]) as provider:
        root = agent_of(gemini(models, provider), remover.tool)
        app = App(name="app", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable))
        client = Client(ADKAgent.from_app(app, user_id="user", callstream=cs))
        await client.send()
        answer = {"role": "tool", "toolCallId": client.pending()[0], "content": '{"confirmed": true}'}
        client.put_result({"id": "answer", **answer})
        await client.send("And hurry.")
        assert client.text() == "Done.Done."
        told, asked = (request.body.decode() for request in provider.requests[1:])
        assert responses_in(told.encode()) == [{"result": "removed"}]
        assert ("And hurry." in told, "And hurry." in asked) == (False, True)
    assert [call.state for call in await cs.journal.calls()] == [CallState.COMPLETED] * 2


async def test_new_message_beside_a_tool_confirmation_is_heard_after_that_failed(
    cs: Callstream, models: Models, remover: Remover
) -> None:
    """The turn of the confirmation breaks off; the client sends the same again, and something more."""

    script = [[ToolCall("remove", {"path": "/x"}), Finish()], [Failure("overloaded")], END, END]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), remover.tool)))
        await client.send()
        answer = {"role": "tool", "toolCallId": client.pending()[0], "content": '{"confirmed": true}'}
        client.put_result({"id": "answer", **answer})
        events = await client.send("And hurry.")
        assert kinds(events)[-1] == "RUN_ERROR"
        await client.send("Well?")
        assert client.text() == "Done."
        asked = provider.requests[-1].body.decode()
        assert ("And hurry." in asked, "Well?" in asked) == (True, True)
        await client.send("Thanks.")
        assert provider.requests[-1].body.decode().count("And hurry.") == 1
    assert remover.ran == ["/x"]
    assert [call.state for call in await cs.journal.calls()] == [CallState.COMPLETED] * 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_answers_one_by_one_to_calls_that_a_callback_has_changed(
    order: tuple[int, ...], cs: Callstream, models: Models
) -> None:
    def repaint(callback_context: Any, llm_response: Any) -> None:
        for part in (llm_response.content and llm_response.content.parts) or ():
            if part.function_call is not None and not llm_response.partial:
                part.function_call.args = {"color": part.function_call.args["color"].upper()}

    script = [[ToolCall("paint", {"color": "red"}), ToolCall("paint", {"color": "blue"}), Finish()], END]
    async with scripted("gemini", script) as provider:
        root = agent_of(gemini(models, provider), AGUIToolset())
        root.after_model_callback = repaint
        client = Client(adk_agent(cs, root), tools=[PAINT])
        await client.send()
        assert [call["args"] for call in client.calls()][-2:] == [{"color": "RED"}, {"color": "BLUE"}]
        pending = client.pending()
        for number in order:
            await client.answer({pending[number]: {"painted": number}})
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"painted": 0}, {"painted": 1}]


async def test_clients_see_what_a_long_running_tool_returns_at_once(cs: Callstream, models: Models) -> None:
    def open_ticket(title: str) -> dict[str, Any]:
        """Opens a ticket, which somebody closes."""
        return {"ticket": 7}

    script = [[ToolCall("open_ticket", {"title": "it"}), Finish()], [Text("Wait."), Finish()], [Text("Ok."), Finish()]]
    async with scripted("gemini", script) as provider:
        model = gemini(models, provider)
        client = Client(adk_agent(cs, agent_of(model, LongRunningFunctionTool(open_ticket))))
        await client.send()
        (activity,) = (message for message in client.messages if message["role"] == "activity")
        assert activity["content"]["progress"] == {"ticket": 7}
        (call,) = client.calls()
        assert client.pending() == [call["id"]]
        await client.answer({call["id"]: {"closed": True}})
    assert [json.loads(m["content"]) for m in client.messages if m["role"] == "tool"] == [{"closed": True}]
