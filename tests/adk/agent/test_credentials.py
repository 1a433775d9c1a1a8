"""Tools that need a credential, and questions that are answered after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.openapi.models import OAuth2, OAuthFlowAuthorizationCode, OAuthFlows
from google.adk.apps import App
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_tool import AuthConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, ToolContext

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import Models, agent_of, scripted

from .agents import END, adk_agent, gemini
from .asking import API_KEY, ASKED, COLOR, Painting, TimeOff, asked_in, reply
from .clients import Client, kinds

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


# -- a tool needs a credential --


@pytest.mark.parametrize("interrupts", [False, True])
async def test_questions_reach_the_client_credential(interrupts: bool, cs: Callstream, models: Models) -> None:
    calendar = Calendar(API_KEY)
    async with scripted("gemini", [[ToolCall("read_calendar", {}), Finish()], END]) as provider:
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
    async with scripted("gemini", [[ToolCall("read_calendar", {}), Finish()], END]) as provider:
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


@pytest.mark.parametrize("form", ["config", "address"])
@pytest.mark.parametrize("wrong", ["?code=c0de&state=another", "?code=c0de", "", "?code=c0de&state=one&state=two"])
async def test_an_address_of_another_login_is_refused(form: str, wrong: str, cs: Callstream, models: Models) -> None:
    calendar = Calendar(OAUTH)
    async with scripted("gemini", [[ToolCall("read_calendar", {}), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(calendar.tool()))
        client = Client(adk_agent(cs, root))
        await client.send()
        asked = asked_in(client, interrupts=False)
        config = asked["args"]["authConfig"]["exchangedAuthCredential"]["oauth2"]
        before = list(client.messages)
        config["authResponseUri"] = f"https://app.example/back{wrong}"
        [refused] = await client.answer(
            {asked["id"]: asked["args"]["authConfig"] if form == "config" else config["authResponseUri"]}
        )
        assert (refused["type"], refused["code"]) == ("RUN_ERROR", "answer_refused")
        assert config["state"] not in refused["message"]
        assert calendar.credentials == []
        # The right one still counts.
        client.messages = before
        await client.answer({asked["id"]: f"https://app.example/back?code=c0de&state={config['state']}"})
        assert client.text() == "Done."
    assert len(calendar.credentials) == 1


# -- after a restart --


@pytest.mark.parametrize("what", ["input", "confirmation", "credential"])
async def test_questions_reach_the_client_after_a_restart(what: str, tmp_path: Path) -> None:
    """Another process: nothing is left but the sessions and the journal."""
    painting, time_off, calendar = Painting(response_schema=COLOR), TimeOff(), Calendar(API_KEY)
    call = {"confirmation": ToolCall("time_off", {"days": 5}), "credential": ToolCall("read_calendar", {})}.get(what)
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
