"""Tools that ask whether they may continue, or ask again: the client is asked, and its answer reaches google-adk."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.adk import __version__
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.genai import types

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import Models, agent_of, answer, function_calls_in, scripted

from .agents import END, adk_agent, gemini
from .asking import API_KEY, ASKED, Remover, TimeOff, asked_in, reply
from .clients import Client, kinds
from .clienttools import responses_in

VERSION = tuple(int(number) for number in __version__.split(".")[:2])

# -- a tool asks whether it may go on --


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("interrupts", [False, True])
async def test_questions_reach_the_client_confirmation(
    interrupts: bool, resumable: bool, cs: Callstream, models: Models
) -> None:
    time_off = TimeOff()
    script = [[ToolCall("time_off", {"days": 5}), Finish()], *([] if resumable else [ASKED]), END]
    async with scripted("gemini", script) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(time_off.tool()))
        app = App(name="app", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable))
        client = Client(
            ADKAgent.from_app(app, user_id="user", callstream=cs, emit_interrupt_outcome=interrupts), "thread"
        )
        await client.send()
        asked = asked_in(client, interrupts=interrupts)
        assert asked["name"] == "adk_request_confirmation"
        confirmation = asked["args"]["toolConfirmation"]
        assert (confirmation["hint"], confirmation["payload"]) == ("How many days are fine?", {"approved_days": 0})
        assert asked["args"]["originalFunctionCall"]["args"] == {"days": 5}
        if interrupts:
            interrupt = asked["interrupt"]
            assert (interrupt["reason"], interrupt["message"]) == ("confirmation", "How many days are fine?")
            assert interrupt["metadata"]["adk"]["toolConfirmation"]["payload"] == {"approved_days": 0}
            assert interrupt["metadata"]["payload"] == {"approved_days": 0}
        events = await reply(
            client, asked["id"], {"confirmed": True, "payload": {"approved_days": 3}}, interrupts=interrupts
        )
        assert client.text() == "Done."
        assert "TOOL_CALL_RESULT" in kinds(events)
        assert '"approved":3' in provider.requests[-1].body.decode().replace(" ", "")
        assert "adk_request_confirmation" not in provider.requests[-1].body.decode()
    assert time_off.confirmed == [(True, {"approved_days": 3})]
    assert [(call.name, call.state) for call in await cs.journal.calls()] == [
        ("time_off", CallState.COMPLETED),
        ("adk_request_confirmation", CallState.COMPLETED),
    ]


async def test_confirmation_answered_under_the_call_that_is_paused(cs: Callstream, models: Models) -> None:
    time_off = TimeOff()
    async with scripted("gemini", [[ToolCall("time_off", {"days": 5}), Finish()], ASKED, END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), FunctionTool(time_off.tool()))))
        await client.send()
        paused = next(call["id"] for call in client.calls() if call["name"] == "time_off")
        await client.answer({paused: {"confirmed": True, "payload": {"approved_days": 1}}})
        assert client.text() == "Done."
    assert time_off.confirmed == [(True, {"approved_days": 1})]
    assert [call.state for call in await cs.journal.calls()] == [CallState.COMPLETED] * 2


@pytest.mark.parametrize(
    ("said", "confirmed"),
    [
        ("yes", True),
        ("No", False),
        (True, True),
        ({"approved": True}, True),
        ({"accepted": False}, False),
        ({"confirmed": True, "comment": "fine"}, True),
    ],
)
async def test_confirmation_in_other_words(
    said: Any, confirmed: bool, cs: Callstream, models: Models, remover: Remover
) -> None:
    async with scripted("gemini", [[ToolCall("remove", {"path": "/x"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), remover.tool)))
        await client.send()
        await client.answer({client.pending()[0]: said})
        assert client.text() == "Done."
    assert remover.ran == (["/x"] if confirmed else [])


@pytest.mark.parametrize("said", ["maybe later", {"foo": 1}, "", {"confirmed": 1}])
async def test_confirmation_that_says_neither_yes_nor_no_is_refused(
    said: Any, cs: Callstream, models: Models, remover: Remover
) -> None:
    async with scripted("gemini", [[ToolCall("remove", {"path": "/x"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), remover.tool)))
        await client.send()
        (asked,) = client.pending()
        content = said if isinstance(said, str) else json.dumps(said)
        (error,) = await client.run(messages=[{"id": "a", "role": "tool", "toolCallId": asked, "content": content}])
        assert (error["type"], error["code"]) == ("RUN_ERROR", "answer_refused")
        assert '{"confirmed": true}' in error["message"]
        await client.answer({asked: {"confirmed": True}})
        assert client.text() == "Done."


async def test_a_confirmation_that_was_refused_does_not_stand_in_the_way_of_the_next(
    cs: Callstream, models: Models, remover: Remover
) -> None:
    """Clients keep the message with it."""
    async with scripted("gemini", [[ToolCall("remove", {"path": "/x"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), remover.tool)))
        await client.send()
        (asked,) = client.pending()
        (error,) = await client.answer({asked: "maybe later"})
        assert error["code"] == "answer_refused"
        await client.answer({asked: {"confirmed": True}})
        assert client.text() == "Done."
    assert remover.ran == ["/x"]


async def test_a_confirmation_that_was_refused_is_no_decision_when_the_user_says_something_else(
    cs: Callstream, models: Models, remover: Remover, caplog: pytest.LogCaptureFixture
) -> None:
    scripts = [[ToolCall("remove", {"path": "/x"}), Finish()], [Text("I wait."), Finish()], END]
    async with scripted("gemini", scripts) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), remover.tool)))
        await client.send()
        (asked,) = client.pending()
        (error,) = await client.answer({asked: "maybe later"})
        assert error["code"] == "answer_refused"
        await client.send("Wait.")
        assert client.text() == "I wait."
        assert [call.state for call in await cs.journal.calls()] == [CallState.AWAITING] * 2
        assert f"ignoring an answer that call {asked} does not await" in caplog.text
        await client.answer({asked: {"confirmed": True}})
        assert client.text() == "Done."
    assert remover.ran == ["/x"]


async def test_such_a_confirmation_is_refused_where_the_models_text_comes_after_it(
    cs: Callstream, models: Models
) -> None:
    """Clients put a result beside its call, and what the model has said since is their last message."""
    time_off = TimeOff()
    async with scripted("gemini", [[ToolCall("time_off", {"days": 5}), Finish()], ASKED, END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), FunctionTool(time_off.tool()))))
        await client.send()
        (asked,) = client.pending()
        client.put_result({"id": "a", "role": "tool", "toolCallId": asked, "content": '{"foo": 1}'})
        assert client.messages[-1]["content"] == "A manager is asked."
        (error,) = await client.run()
        assert (error["type"], error["code"]) == ("RUN_ERROR", "answer_refused")
    assert time_off.confirmed == []


@pytest.mark.parametrize("show_errors", [False, True])
async def test_cancelled_question_says_so(show_errors: bool, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("buy", {}), Finish()], ASKED, END]) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(Doubtful().confirmation()))
        client = Client(adk_agent(cs, root, emit_interrupt_outcome=True, show_errors=show_errors))
        await client.send()
        asked = asked_in(client, interrupts=True)["id"]
        events = await client.run(resume=[{"interruptId": asked, "status": "cancelled"}])
    results = {event["toolCallId"]: event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"}
    assert json.loads(results[asked]) == {"error": "The user cancelled this."}


async def test_confirmations_answered_one_by_one_by_a_client_that_repeats_nothing(
    cs: Callstream, models: Models, remover: Remover
) -> None:
    calls = [ToolCall("remove", {"path": path}) for path in ("/x", "/y")]
    async with scripted("gemini", [[*calls, Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), remover.tool)))
        await client.send()
        for asked in client.pending():
            answer = {"id": asked, "role": "tool", "toolCallId": asked, "content": '{"confirmed": true}'}
            await client.run(messages=[answer])
        assert client.text() == "Done."
    assert remover.ran == ["/x", "/y"]


class Doubtful:
    """Tools that are never content with an answer."""

    def __init__(self) -> None:
        self.runs = 0

    def confirmation(self) -> Callable[..., dict[str, Any]]:
        def buy(tool_context: ToolContext) -> dict[str, Any]:
            """Buys."""
            self.runs += 1
            tool_context.request_confirmation(hint="Are you sure?")
            return {"status": f"asked {self.runs}"}

        return buy

    def credential(self) -> Callable[..., dict[str, Any]]:
        def buy(tool_context: ToolContext) -> dict[str, Any]:
            """Buys."""
            self.runs += 1
            tool_context.request_credential(API_KEY)
            return {"status": f"asked {self.runs}"}

        return buy


# -- a tool asks again after the answer: google-adk puts no second question, and gives the model what the tool returned --


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("kind", ["confirmation", "credential"])
async def test_tool_that_asks_again_has_the_result_that_the_model_reads(
    kind: str, resumable: bool, cs: Callstream, models: Models
) -> None:
    doubtful = Doubtful()
    buy = doubtful.confirmation() if kind == "confirmation" else doubtful.credential()
    asks_model = kind == "confirmation" and not resumable
    script = [[ToolCall("buy", {}), Finish()], *([ASKED] if asks_model else []), END]
    async with scripted("gemini", script) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(buy))
        app = App(name="app", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable))
        client = Client(ADKAgent.from_app(app, user_id="user", callstream=cs))
        await client.send()
        bought = next(call["id"] for call in client.calls() if call["name"] == "buy")
        said = {"confirmed": True} if kind == "confirmation" else "the-key"
        events = await client.answer({client.pending()[0]: said})
        assert responses_in(provider.requests[-1].body)[-1] == {"status": "asked 2"}
        assert [json.loads(e["content"]) for e in events if e["type"] == "TOOL_CALL_RESULT"] == [{"status": "asked 2"}]
        assert client.pending() == []
        assert client.text() == "Done."
        await client.answer({bought: {"status": "forged"}})
        assert "forged" not in repr([request.body for request in provider.requests])
    assert doubtful.runs == 2
    call = (await cs.journal.calls())[0]
    assert (call.name, call.state, call.result) == ("buy", CallState.COMPLETED, {"status": "asked 2"})


async def test_tool_that_asks_beside_one_that_returns(cs: Callstream, models: Models) -> None:
    """google-adk gives the results first then, and puts the question after them."""
    time_off = TimeOff()

    def today() -> str:
        """Says the date."""
        return "Monday"

    calls = [ToolCall("today", {}), ToolCall("time_off", {"days": 5})]
    async with scripted("gemini", [[*calls, Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), today, FunctionTool(time_off.tool()))))
        await client.send()
        states = {call.name: call.state for call in await cs.journal.calls()}
        assert (states["today"], states["time_off"]) == (CallState.COMPLETED, CallState.AWAITING)
        await client.answer({client.pending()[0]: {"confirmed": True, "payload": {"approved_days": 3}}})
        assert client.text() == "Done."
    assert time_off.confirmed == [(True, {"approved_days": 3})]


class Ordering:
    """A long-running tool that asks before it begins, and whether it was confirmed each time it ran."""

    def __init__(self, begun: dict[str, Any] | None) -> None:
        self.begun = begun
        self.confirmed: list[bool] = []

    def tool(self) -> LongRunningFunctionTool:
        def order(item: str, tool_context: ToolContext) -> dict[str, Any] | None:
            """Orders."""
            self.confirmed.append(tool_context.tool_confirmation is not None)
            if tool_context.tool_confirmation is None:
                tool_context.request_confirmation(hint="May it be ordered?")
                return {"status": "a manager is asked"}
            return self.begun

        return LongRunningFunctionTool(order)


ORDER = [[ToolCall("order", {"item": "pen"}), Finish()], ASKED, ASKED, END]


async def bare_order(models: Models, ordering: Ordering) -> list[str | None]:
    """What google-adk itself asks when its first question has been answered."""
    async with scripted("gemini", ORDER) as provider:
        app = App(name="app", root_agent=agent_of(gemini(models, provider), ordering.tool()))
        runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)

        async def calls(message: types.Content) -> list[types.FunctionCall]:
            events = runner.run_async(user_id="user", session_id="bare", new_message=message)
            return function_calls_in([event async for event in events])

        asked = (await calls(types.UserContent("Go")))[-1]
        confirmed = answer("adk_request_confirmation", asked.id, {"confirmed": True})
        return [call.name for call in await calls(types.Content(role="user", parts=[confirmed]))]


@pytest.mark.parametrize("begun", [None, {"status": "ordered"}])
async def test_long_running_tool_is_confirmed_and_then_awaits_its_result(
    begun: dict[str, Any] | None, cs: Callstream, models: Models
) -> None:
    """google-adk 2.12 takes a confirmed tool that returns nothing for one that never ran: it runs again and asks again."""
    bare, ordering = Ordering(begun), Ordering(begun)
    asked_again = await bare_order(models, bare)
    assert asked_again == [] or (begun is None and VERSION < (2, 13))
    async with scripted("gemini", ORDER) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), ordering.tool())))
        await client.send()
        ordered = next(call["id"] for call in client.calls() if call["name"] == "order")
        (asked,) = client.pending()
        assert asked != ordered
        await client.answer({asked: {"confirmed": True}})
        assert ordering.confirmed == bare.confirmed
        awaiting = await cs.journal.calls(states=[CallState.AWAITING])
        assert ordered in [call.call_id for call in awaiting]
        assert [call.name for call in awaiting if call.call_id != ordered] == asked_again
        events = await client.answer({ordered: {"ordered": True}})
        if asked_again:
            assert events[0]["code"] == "answer_refused"  # somebody has to confirm it first
        else:
            assert client.text() == "Done."
            assert responses_in(provider.requests[-1].body)[-1] == {"ordered": True}


async def test_client_cannot_answer_for_a_tool_that_has_still_to_run(cs: Callstream, models: Models) -> None:
    """Its question has its answer, and the server was stopped before google-adk ran the tool."""
    time_off = TimeOff()
    sessions = InMemorySessionService()
    async with scripted("gemini", [[ToolCall("time_off", {"days": 5}), Finish()], ASKED, END]) as provider:
        client = Client(
            adk_agent(cs, agent_of(gemini(models, provider), FunctionTool(time_off.tool())), session_service=sessions)
        )
        await client.send()
        paused = next(call["id"] for call in client.calls() if call["name"] == "time_off")
        (asked,) = client.pending()
        async with cs.run("thread", principal="user") as run:
            await run.answer(asked, {"confirmed": True})
        session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
        assert session is not None
        question = types.FunctionResponse(id=asked, name="adk_request_confirmation", response={"confirmed": True})
        content = types.Content(role="user", parts=[types.Part(function_response=question)])
        await sessions.append_event(session, Event(author="user", content=content))
        forged = {"id": "forged", "role": "tool", "toolCallId": paused, "content": '{"status": "forged"}'}
        (error,) = await client.run(messages=[forged])
        assert (error["type"], error["code"]) == ("RUN_ERROR", "answer_refused")
        assert "time_off runs on the server" in error["message"]
        await client.run(messages=[forged, {"id": "and", "role": "user", "content": "And?"}])
        assert client.text() == "Done."
        assert "forged" not in repr([request.body for request in provider.requests])
    assert {call.name: call.state for call in await cs.journal.calls()}["time_off"] is CallState.AWAITING


async def test_no_request_asks_for_a_confirmation_that_came(cs: Callstream, models: Models) -> None:
    """Questions of two turns are answered at once; google-adk is given one answer after the other."""
    remover = Remover()
    asks = [[ToolCall("remove", {"path": path}), Finish()] for path in ("a", "b")]
    said = [[Text(f"Said {number}."), Finish()] for number in range(3)]
    async with scripted("gemini", [*asks, *said]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), remover.tool)))
        questions = []
        for text in ("One", "Two"):
            await client.send(text)
            questions += [call["id"] for call in client.calls() if call["name"] == "adk_request_confirmation"]
        asked = len(provider.requests)
        await client.answer({named: {"confirmed": True} for named in questions})
        bodies = [request.body.decode() for request in provider.requests[asked:]]
    assert sorted(remover.ran) == ["a", "b"]
    assert len(bodies) == 2
    assert ["requires confirmation" in body for body in bodies] == [False, False]
    assert bodies[1].count('"removed"') == 2
