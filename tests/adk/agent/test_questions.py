"""Questions that google-adk itself asks: they reach the client, and its answers reach google-adk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.openapi.models import APIKey, APIKeyIn, OAuth2, OAuthFlowAuthorizationCode, OAuthFlows
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.workflow import START, FunctionNode, Workflow
from google.genai import types

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.calls import CallState
from callstream.testing import Call as Calls
from callstream.testing import Finish, Text
from tests.adk.hosting import Host, Models, agent_of, function_calls_in, scripted
from tests.adk.hosting import answer as response

from .clients import Client, kinds
from .test_client_tools import responses_in
from .test_run import END, adk_agent, gemini

ASKED = [Text("A manager is asked."), Finish()]
"""What the model says to what a tool returns beside its question. A resumable app does not ask the model then."""
COLOR = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}


class Painting:
    """A workflow that asks a person, and what came of it."""

    def __init__(self, **asked: Any) -> None:
        self.painted: list[Any] = []

        def ask(node_input: Any) -> RequestInput:
            return RequestInput(**{"message": "Which color?", "payload": {"choices": ["red"]}, **asked})

        def paint(node_input: Any) -> str:
            self.painted.append(node_input)
            return "painted"

        self.workflow = Workflow(name="painting", edges=[(START, ask, paint)])


class TimeOff:
    """A tool that asks with a hint and a payload, and what it was told."""

    def __init__(self) -> None:
        self.confirmed: list[Any] = []

    def tool(self) -> Callable[..., dict[str, Any]]:
        def time_off(days: int, tool_context: ToolContext) -> dict[str, Any]:
            """Requests time off."""
            confirmation = tool_context.tool_confirmation
            if confirmation is None:
                tool_context.request_confirmation(hint="How many days are fine?", payload={"approved_days": 0})
                return {"status": "a manager is asked"}
            self.confirmed.append((confirmation.confirmed, confirmation.payload))
            return {"approved": confirmation.payload["approved_days"] if confirmation.confirmed else 0}

        return time_off


OAUTH = AuthConfig(
    auth_scheme=OAuth2(
        flows=OAuthFlows(
            authorizationCode=OAuthFlowAuthorizationCode(
                authorizationUrl="https://login.example/authorize", tokenUrl="http://127.0.0.1:9/token", scopes={}
            )
        )
    ),
    raw_auth_credential=AuthCredential(
        auth_type=AuthCredentialTypes.OAUTH2,
        oauth2=OAuth2Auth(client_id="the-client", client_secret="the-secret", redirect_uri="https://app.example/back"),
    ),
    credential_key="login",
)
API_KEY = AuthConfig(
    auth_scheme=APIKey(**{"in": APIKeyIn.header, "name": "X-Key"}),
    raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY),
    credential_key="key",
)


class Calendar:
    """A tool that needs a credential, and the one that it was given."""

    def __init__(self, config: AuthConfig) -> None:
        self.config = config
        self.credentials: list[AuthCredential] = []

    def tool(self) -> Callable[..., dict[str, Any]]:
        def read_calendar(tool_context: ToolContext) -> dict[str, Any]:
            """Reads the calendar."""
            credential = tool_context.get_auth_response(self.config)
            if credential is None:
                tool_context.request_credential(self.config)
                return {"status": "a login is needed"}
            self.credentials.append(credential)
            return {"events": 3}

        return read_calendar


def asked_in(client: Client, *, interrupts: bool) -> dict[str, Any]:
    """The one question of the last run: its call, and the interrupt if there are such."""
    assert client.ended is not None
    outcome = client.ended["outcome"]
    if interrupts:
        (interrupt,) = outcome["interrupts"]
        return {"interrupt": interrupt, **next(call for call in client.calls() if call["id"] == interrupt["id"])}
    (pending,) = outcome["pendingToolCallIds"]
    return next(call for call in client.calls() if call["id"] == pending)


async def reply(client: Client, call_id: str, value: Any, *, interrupts: bool) -> list[dict[str, Any]]:
    if interrupts:
        return await client.run(resume=[{"interruptId": call_id, "status": "resolved", "payload": value}])
    return await client.answer({call_id: value})


# -- a workflow asks --


@pytest.mark.parametrize("interrupts", [False, True])
async def test_questions_reach_the_client_request_input(interrupts: bool, cs: Callstream) -> None:
    painting = Painting(response_schema=COLOR)
    client = Client(adk_agent(cs, painting.workflow, emit_interrupt_outcome=interrupts))
    await client.send()
    asked = asked_in(client, interrupts=interrupts)
    assert asked["name"] == "adk_request_input"
    assert (asked["args"]["message"], asked["args"]["payload"]) == ("Which color?", {"choices": ["red"]})
    assert asked["args"]["response_schema"] == COLOR
    if interrupts:
        interrupt = asked["interrupt"]
        assert (interrupt["reason"], interrupt["message"]) == ("input_required", "Which color?")
        assert interrupt["responseSchema"] == COLOR
        assert interrupt["metadata"]["payload"] == {"choices": ["red"]}
    await reply(client, asked["id"], {"color": "red"}, interrupts=interrupts)
    assert painting.painted == [{"color": "red"}]
    (call,) = await cs.journal.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"color": "red"})
    # Again: nothing happens.
    await client.run()
    assert painting.painted == [{"color": "red"}]


@pytest.mark.parametrize(
    ("schema", "said", "taken"),
    [
        (None, "blue", "blue"),
        (None, "3", 3),
        ({"type": "string"}, "blue", "blue"),
        ({"type": "string"}, "3", "3"),
        ({"type": "string"}, '"quoted"', "quoted"),
        ({"type": "integer"}, "3", 3),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "OBJECT"}, '{"a": 1}', {"a": 1}),
    ],
)
async def test_request_input_takes_text_and_json(schema: Any, said: str, taken: Any, cs: Callstream) -> None:
    painting = Painting(response_schema=schema)
    client = Client(adk_agent(cs, painting.workflow))
    await client.send()
    await client.answer({client.pending()[0]: said})
    assert painting.painted == [taken]


async def test_answer_that_a_workflow_did_not_ask_for_is_refused(cs: Callstream) -> None:
    """google-adk would keep it and fail on it, now and ever after."""
    painting = Painting(response_schema=COLOR)
    client = Client(adk_agent(cs, painting.workflow))
    await client.send()
    (asked,) = client.pending()
    events = await client.answer({asked: {"colour": "red"}})
    assert (kinds(events), events[0]["code"]) == (["RUN_ERROR"], "answer_refused")
    assert "'color' is a required property" in events[0]["message"]
    assert [call.state for call in await cs.journal.calls()] == [CallState.AWAITING]
    client.messages.pop()
    await client.answer({asked: {"color": "red"}})
    assert painting.painted == [{"color": "red"}]


async def test_workflow_asks_again_under_the_same_id(cs: Callstream) -> None:
    said: list[Any] = []

    async def ask(node_input: Any) -> Any:
        yield RequestInput(interrupt_id="again", message=f"Round {len(said) + 1}?")

    def judge(node_input: Any) -> Any:
        from google.adk.events.event import Event

        said.append(node_input)
        return Event(route="ask" if len(said) < 2 else "end")

    def end(node_input: Any) -> str:
        return "done"

    workflow = Workflow(name="rounds", edges=[(START, ask, judge), (judge, {"ask": ask, "end": end})])
    client = Client(adk_agent(cs, workflow))
    await client.send()
    (first,) = client.pending()
    await client.answer({first: "one"})
    (second,) = client.pending()
    assert (first, second) == ("again", "again~2")
    await client.answer({second: "two"})
    assert said == ["one", "two"]
    assert [(call.call_id, call.result) for call in await cs.journal.calls()] == [("again", "one"), ("again~2", "two")]


async def test_workflow_asks_two_at_once(cs: Callstream) -> None:
    """They are answered one by one, and the one that is left is not asked a second time."""
    heard: dict[str, Any] = {}

    def asking(name: str) -> Any:
        def ask(node_input: Any) -> RequestInput:
            return RequestInput(interrupt_id=name, message=f"{name}?")

        ask.__name__ = f"ask_{name}"
        return ask

    def hearing(name: str) -> Any:
        def hear(node_input: Any) -> str:
            heard[name] = node_input
            return name

        hear.__name__ = f"hear_{name}"
        return hear

    edges = [(START, asking(name), hearing(name)) for name in ("left", "right")]
    client = Client(adk_agent(cs, Workflow(name="both", edges=edges)))
    await client.send()
    assert sorted(client.pending()) == ["left", "right"]
    await client.answer({"right": "r"})
    assert heard == {"right": "r"}
    await client.answer({"left": "l"})
    assert heard == {"left": "l", "right": "r"}
    assert sorted(call.call_id for call in await cs.journal.calls()) == ["left", "right"]


# -- a tool asks whether it may go on --


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("interrupts", [False, True])
async def test_questions_reach_the_client_confirmation(
    interrupts: bool, resumable: bool, cs: Callstream, models: Models
) -> None:
    time_off = TimeOff()
    script = [[Calls("time_off", {"days": 5}), Finish()], *([] if resumable else [ASKED]), END]
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
    async with scripted("gemini", [[Calls("time_off", {"days": 5}), Finish()], ASKED, END]) as provider:
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
async def test_confirmation_in_other_words(said: Any, confirmed: bool, cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    def remove(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "removed"

    async with scripted("gemini", [[Calls("remove", {"path": "/x"}), Finish()], END]) as provider:
        tool = FunctionTool(remove, require_confirmation=True)
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), tool)))
        await client.send()
        await client.answer({client.pending()[0]: said})
        assert client.text() == "Done."
    assert ran == (["/x"] if confirmed else [])


@pytest.mark.parametrize("said", ["maybe later", {"foo": 1}, "", {"confirmed": 1}])
async def test_confirmation_that_says_neither_yes_nor_no_is_refused(said: Any, cs: Callstream, models: Models) -> None:
    def remove(path: str) -> str:
        """Removes."""
        return "removed"

    async with scripted("gemini", [[Calls("remove", {"path": "/x"}), Finish()], END]) as provider:
        tool = FunctionTool(remove, require_confirmation=True)
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), tool)))
        await client.send()
        (asked,) = client.pending()
        content = said if isinstance(said, str) else json.dumps(said)
        (error,) = await client.run(messages=[{"id": "a", "role": "tool", "toolCallId": asked, "content": content}])
        assert (error["type"], error["code"]) == ("RUN_ERROR", "answer_refused")
        assert '{"confirmed": true}' in error["message"]
        await client.answer({asked: {"confirmed": True}})
        assert client.text() == "Done."


@pytest.mark.parametrize("show_errors", [False, True])
async def test_cancelled_question_says_so(show_errors: bool, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Calls("buy", {}), Finish()], ASKED, END]) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(Doubtful().confirmation()))
        client = Client(adk_agent(cs, root, emit_interrupt_outcome=True, show_errors=show_errors))
        await client.send()
        asked = asked_in(client, interrupts=True)["id"]
        events = await client.run(resume=[{"interruptId": asked, "status": "cancelled"}])
    results = {event["toolCallId"]: event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"}
    assert json.loads(results[asked]) == {"error": "The user cancelled this."}


async def test_confirmations_answered_one_by_one_by_a_client_that_repeats_nothing(
    cs: Callstream, models: Models
) -> None:
    ran: list[str] = []

    def remove(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "removed"

    calls = [Calls("remove", {"path": path}) for path in ("/x", "/y")]
    async with scripted("gemini", [[*calls, Finish()], END]) as provider:
        tool = FunctionTool(remove, require_confirmation=True)
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), tool)))
        await client.send()
        for asked in client.pending():
            answer = {"id": asked, "role": "tool", "toolCallId": asked, "content": '{"confirmed": true}'}
            await client.run(messages=[answer])
        assert client.text() == "Done."
    assert ran == ["/x", "/y"]


# -- a tool asks again after the answer: google-adk puts no second question, and gives the model what the tool returned --


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


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("kind", ["confirmation", "credential"])
async def test_tool_that_asks_again_has_the_result_that_the_model_reads(
    kind: str, resumable: bool, cs: Callstream, models: Models
) -> None:
    doubtful = Doubtful()
    buy = doubtful.confirmation() if kind == "confirmation" else doubtful.credential()
    asks_model = kind == "confirmation" and not resumable
    script = [[Calls("buy", {}), Finish()], *([ASKED] if asks_model else []), END]
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

    calls = [Calls("today", {}), Calls("time_off", {"days": 5})]
    async with scripted("gemini", [[*calls, Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), today, FunctionTool(time_off.tool()))))
        await client.send()
        states = {call.name: call.state for call in await cs.journal.calls()}
        assert (states["today"], states["time_off"]) == (CallState.COMPLETED, CallState.AWAITING)
        await client.answer({client.pending()[0]: {"confirmed": True, "payload": {"approved_days": 3}}})
        assert client.text() == "Done."
    assert time_off.confirmed == [(True, {"approved_days": 3})]


async def test_long_running_tool_is_confirmed_and_then_awaits_its_result(cs: Callstream, models: Models) -> None:
    def order(item: str, tool_context: ToolContext) -> dict[str, Any] | None:
        """Orders."""
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint="May it be ordered?")
            return {"status": "a manager is asked"}
        return None

    async with scripted("gemini", [[Calls("order", {"item": "pen"}), Finish()], ASKED, ASKED, END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), LongRunningFunctionTool(order))))
        await client.send()
        ordered = next(call["id"] for call in client.calls() if call["name"] == "order")
        (asked,) = client.pending()
        assert asked != ordered
        await client.answer({asked: {"confirmed": True}})
        assert [call.call_id for call in await cs.journal.calls(states=[CallState.AWAITING])] == [ordered]
        await client.answer({ordered: {"ordered": True}})
        assert client.text() == "Done."
        assert responses_in(provider.requests[-1].body)[-1] == {"ordered": True}


async def test_client_cannot_answer_for_a_tool_that_has_still_to_run(cs: Callstream, models: Models) -> None:
    """Its question has its answer, and the server was stopped before google-adk ran the tool."""
    time_off = TimeOff()
    sessions = InMemorySessionService()
    async with scripted("gemini", [[Calls("time_off", {"days": 5}), Finish()], ASKED, END]) as provider:
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


# -- a tool needs a credential --


@pytest.mark.parametrize("interrupts", [False, True])
async def test_questions_reach_the_client_credential(interrupts: bool, cs: Callstream, models: Models) -> None:
    calendar = Calendar(API_KEY)
    async with scripted("gemini", [[Calls("read_calendar", {}), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(calendar.tool()))
        client = Client(adk_agent(cs, root, emit_interrupt_outcome=interrupts))
        await client.send()
        asked = asked_in(client, interrupts=interrupts)
        assert asked["name"] == "adk_request_credential"
        assert asked["args"]["authConfig"]["authScheme"]["name"] == "X-Key"
        if interrupts:
            assert asked["interrupt"]["reason"] == "credential_required"
        await reply(client, asked["id"], "the-key", interrupts=interrupts)
        assert client.text() == "Done."
    assert [credential.api_key for credential in calendar.credentials] == ["the-key"]
    assert [(call.name, call.state) for call in await cs.journal.calls()] == [
        ("read_calendar", CallState.COMPLETED),
        ("adk_request_credential", CallState.COMPLETED),
    ]
    assert (await cs.journal.calls())[1].result == {"status": "credential received"}
    for run in await cs.journal.runs():
        assert "the-key" not in repr([record async for record in cs.journal.read(run.run_id)])


@pytest.mark.parametrize("form", ["config", "address"])
async def test_oauth_link_reaches_the_client(form: str, cs: Callstream, models: Models) -> None:
    calendar = Calendar(OAUTH)
    async with scripted("gemini", [[Calls("read_calendar", {}), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(calendar.tool()))
        client = Client(adk_agent(cs, root))
        await client.send()
        asked = asked_in(client, interrupts=False)
        config = asked["args"]["authConfig"]
        link = config["exchangedAuthCredential"]["oauth2"]["authUri"]
        assert link.startswith("https://login.example/authorize?")
        assert "the-secret" not in json.dumps(client.events)
        back = f"https://app.example/back?code=c0de&state={config['exchangedAuthCredential']['oauth2']['state']}"
        config["exchangedAuthCredential"]["oauth2"]["authResponseUri"] = back
        await client.answer({asked["id"]: config if form == "config" else back})
        assert client.text() == "Done."
    (credential,) = calendar.credentials
    assert credential.oauth2 is not None
    assert credential.oauth2.auth_response_uri == back


# -- after a restart --


@pytest.mark.parametrize("what", ["input", "confirmation", "credential"])
async def test_questions_reach_the_client_after_a_restart(what: str, tmp_path: Path) -> None:
    """Another process: nothing is left but the sessions and the journal."""
    painting, time_off, calendar = Painting(response_schema=COLOR), TimeOff(), Calendar(API_KEY)
    call = {"confirmation": Calls("time_off", {"days": 5}), "credential": Calls("read_calendar", {})}.get(what)
    said = {
        "input": {"color": "red"},
        "confirmation": {"confirmed": True, "payload": {"approved_days": 2}},
        "credential": "the-key",
    }[what]
    script = [[call or Text("-"), Finish()], *([ASKED] if what == "confirmation" else []), END]
    async with scripted("gemini", script) as provider:
        messages: list[Any] = []
        for number in (1, 2):
            async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
                models = Models(cs)
                tools = [FunctionTool(time_off.tool()), FunctionTool(calendar.tool())]
                root: Any = painting.workflow if what == "input" else agent_of(gemini(models, provider), *tools)
                sessions = SqliteSessionService(f"{tmp_path}/sessions.db")
                agent = ADKAgent.from_app(
                    App(name="app", root_agent=root), user_id="user", callstream=cs, session_service=sessions
                )
                client = Client(agent)
                client._number, client.messages = number * 10, messages
                if number == 1:
                    await client.send()
                    asked, messages = client.pending()[0], client.messages
                else:
                    await client.answer({asked: said})
                    assert kinds(client.events)[-1] == "RUN_FINISHED"
                    assert CallState.AWAITING not in [each.state for each in await cs.journal.calls()]
                await agent.close()
                await models.aclose()
    assert (painting.painted, time_off.confirmed, len(calendar.credentials)) == {
        "input": ([{"color": "red"}], [], 0),
        "confirmation": ([], [(True, {"approved_days": 2})], 0),
        "credential": ([], [], 1),
    }[what]


# -- with the plugin in a runner of one's own --


async def test_plugin_journals_a_workflows_question(cs: Callstream) -> None:
    painting = Painting(interrupt_id="color")
    host = Host(cs, painting.workflow)
    (asked,) = function_calls_in(await host.run())
    (call,) = await host.calls()
    assert (call.name, call.state, call.args["message"]) == (
        "adk_request_input",
        CallState.AWAITING,
        "Which color?",
    )
    await host.run([response("adk_request_input", asked.id, {"result": "red"})])
    (call,) = await host.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"result": "red"})
    await host.run([response("adk_request_input", asked.id, {"result": "blue"})])
    assert painting.painted == ["red"]


async def test_workflow_asks_before_a_model_is_asked(cs: Callstream, models: Models) -> None:
    """The model hears the answer, and nothing of google-adk's question."""

    def ask(node_input: Any) -> RequestInput:
        return RequestInput(message="Which color?")

    async with scripted("gemini", [END]) as provider:
        agent = agent_of(gemini(models, provider), instruction="Paint.")
        client = Client(adk_agent(cs, Workflow(name="painting", edges=[(START, ask, agent)])))
        await client.send()
        assert provider.requests == []
        await client.answer({client.pending()[0]: "a deep blue"})
        assert client.text() == "Done."
        body = provider.requests[0].body.decode()
    assert "a deep blue" in body
    assert "adk_request_input" not in body


async def test_node_of_a_workflow_is_confirmed(cs: Callstream) -> None:
    ran: list[Any] = []

    def wipe(node_input: Any) -> str:
        ran.append(node_input)
        return "wiped"

    workflow = Workflow(
        name="wiping", edges=[(START, FunctionNode(func=wipe, require_confirmation=True, rerun_on_resume=True))]
    )
    client = Client(adk_agent(cs, workflow))
    await client.send()
    assert ran == []
    asked = asked_in(client, interrupts=False)
    assert asked["args"]["payload"]["tool_name"] == "wipe"
    await client.answer({asked["id"]: {"confirmed": True}})
    assert len(ran) == 1


async def test_model_asks_with_the_tool_of_google_adk(cs: Callstream, models: Models) -> None:
    """Its name is that of google-adk's own questions, but the call is the model's, and so is the answer."""
    from google.adk.tools import request_input

    args = {"message": "Which color?", "response_schema": {"type": "string"}}
    async with scripted("gemini", [[Calls("adk_request_input", args), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), request_input)
        client = Client(adk_agent(cs, root, emit_interrupt_outcome=True))
        await client.send()
        asked = asked_in(client, interrupts=True)
        assert len(client.calls()) == 1
        assert asked["interrupt"]["message"] == "Which color?"
        assert asked["interrupt"]["responseSchema"] == {"type": "string"}
        await reply(client, asked["id"], "blue", interrupts=True)
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"result": "blue"}]
    (call,) = await cs.journal.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, "blue")
