"""The endpoint, under FastAPI, over ASGI."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from ag_ui.core import AssistantMessage, BaseEvent, RunAgentInput, ToolMessage, UserMessage
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from google.adk.agents import LlmAgent
from google.adk.sessions import InMemorySessionService
from google.adk.tools.base_toolset import BaseToolset

from callstream import Callstream, UsageError
from callstream.ag_ui_adk import (
    ADKAgent,
    add_adk_fastapi_endpoint,
    create_adk_app,
    resolve_agent_from_message_history,
)
from callstream.errors import ThreadBusy
from callstream.server import ServerSettings
from callstream.testing import Failure, Finish, Text, ToolCall
from tests.adk.hosting import Models, agent_of, scripted

from .agents import END, adk_agent, gemini
from .clients import Client


def write(body: str) -> str:
    """Writes."""
    return "written"


async def post(app: FastAPI, path: str, given: Any, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as http:
        return await http.post(path, json=given, headers=headers)


def events_in(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "\r" not in response.text
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    return [json.loads(frame.split("data: ", 1)[1]) for frame in frames]


def body_for(agent: ADKAgent, **given: Any) -> Any:
    messages = [{"id": "m", "role": "user", "content": "Go"}]
    return Client(agent).input(**{"messages": messages, **given}).model_dump(mode="json", by_alias=True)


async def test_ids_may_have_slashes(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent, "/x")
        assert (await post(app, "/x", body_for(agent, threadId="a/b", runId="r/1"))).is_success
        assert "Done." in (await post(app, "/x/threads/a%2Fb/connect", {})).text
        stopped = await post(app, "/x/runs/r%2F1/stop", {})
        assert (stopped.status_code, stopped.json()["run_id"]) == (200, "r/1")


class Closing(BaseToolset):
    """Tools of somebody else's, as an MCP server's."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        return []

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("where", ["app", "router", "chosen"])
async def test_toolsets_are_closed_with_the_app(cs: Callstream, models: Models, where: str) -> None:
    """And opened again if it is started again, with the same agent."""
    began: list[str] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        began.append("own")
        yield {"mine": 1}

    tools = Closing()
    async with scripted("gemini", [END] * 4) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), tools))
        app = FastAPI(lifespan=own)
        if where == "router":
            router = APIRouter()
            add_adk_fastapi_endpoint(router, agent, "/agent")
            app.include_router(router)
        elif where == "chosen":
            other = adk_agent(cs, agent_of(gemini(models, provider)))
            add_adk_fastapi_endpoint(app, other, "/agent", agent_resolver=lambda request, given: agent)
        else:
            add_adk_fastapi_endpoint(app, agent, "/agent")
        for times in (1, 2):
            async with app.router.lifespan_context(app) as state:
                assert state == {"mine": 1}
                for number in range(2):
                    given = body_for(agent, threadId=f"{times} {number}", runId=f"{times} {number}")
                    assert "Done." in (await post(app, "/agent", given)).text
                assert tools.closed == times - 1, "between runs they stay open"
            assert tools.closed == times
    assert began == ["own", "own"]


async def test_first_agent_of_an_app_answers_for_its_threads(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        first = adk_agent(cs, agent_of(gemini(models, provider)))
        second = ADKAgent(adk_agent=agent_of(gemini(models, provider)), app_name="second", user_id="u", callstream=cs)
        app, router = FastAPI(), APIRouter(prefix="/second")
        add_adk_fastapi_endpoint(app, first, "/first")
        add_adk_fastapi_endpoint(router, second, "/agent")
        app.include_router(router)
        assert (await post(app, "/second/agent", body_for(second))).is_success
        asked = {"threadId": "thread"}
        assert (await post(app, "/agents/state", asked)).json()["threadExists"] is False
        assert (await post(app, "/second/agents/state", asked)).json()["threadExists"] is True


@pytest.mark.parametrize("on_router", [False, True])
async def test_endpoint_streams(on_router: bool, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("write", {"body": "a long text"}), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), write), capabilities={"custom": {"x": 1}})
        app = FastAPI()
        if on_router:
            router = APIRouter(prefix="/api")
            add_adk_fastapi_endpoint(router, agent, path="/agent", name="run_agent", tags=["agent"])
            app.include_router(router)
        else:
            add_adk_fastapi_endpoint(app, agent, path="/api/agent")
        response = await post(app, "/api/agent", body_for(agent))
        client = Client(agent)
        client.messages = [{"id": "m", "role": "user", "content": "Go"}]
        client.events = events_in(response)
        for event in client.events:
            client.take(event)
        assert client.calls()[0]["args"] == {"body": "a long text"}
        assert client.text() == "Done."
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as http:
            assert (await http.get("/api/agent/capabilities")).json() == {"custom": {"x": 1}}
        found = await post(app, "/api/agents/state" if on_router else "/agents/state", {"threadId": "thread"})
        assert found.json()["threadExists"] is True
        messages = found.json()["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
        missing = await post(app, "/api/agents/state" if on_router else "/agents/state", {"threadId": "nobody's"})
        assert missing.json() == {"threadId": "nobody's", "threadExists": False, "state": {}, "messages": []}


@pytest.mark.parametrize("on_disconnect", ["stop", "continue"])
async def test_a_stream_is_kept_alive_while_a_tool_works(on_disconnect: Any, cs: Callstream, models: Models) -> None:
    kept_alive = asyncio.Event()

    async def work() -> str:
        """Works until the client has heard of it."""
        await kept_alive.wait()
        return "worked"

    async with scripted("gemini", [[ToolCall("work", {}), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), work))
        app = create_adk_app(agent, heartbeat_seconds=0.05, on_disconnect=on_disconnect)

        async def listening(scope: Any, receive: Any, send: Any) -> None:
            async def hear(message: Any) -> None:
                if message.get("body", b"").startswith(b":"):
                    kept_alive.set()
                await send(message)

            await app(scope, receive, hear)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(listening), base_url="http://agent") as http:
            response = await http.post("/", json=body_for(agent))
    assert "worked" in response.text


class Quiet(ADKAgent):
    """Leaves out what tools return."""

    async def run(self, input: RunAgentInput) -> AsyncGenerator[BaseEvent, None]:  # noqa: A002
        async for event in super().run(input):
            if event.type != "TOOL_CALL_RESULT":
                yield event


class Wrapper:
    """No agent itself: it has one, and does more."""

    def __init__(self, agent: ADKAgent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    async def run(self, given: RunAgentInput) -> AsyncGenerator[BaseEvent, None]:
        async for event in self._agent.run(given):
            if event.type != "TOOL_CALL_RESULT":
                yield event


@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_a_run_of_the_programs_own_is_what_clients_see(is_wrapped: bool, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("write", {"body": "x"}), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), write)
        made: Any = Quiet if not is_wrapped else ADKAgent
        agent = made(adk_agent=root, app_name="app", user_id="user", callstream=cs)
        served: Any = Wrapper(agent) if is_wrapped else agent
        app = create_adk_app(served)
        # The client is older than AG-UI 1.0.
        response = await post(app, "/", {**body_for(agent), "protocolVersion": None})
        kinds = [event["type"] for event in events_in(response)]
        assert (kinds[0], kinds[-1]) == ("RUN_STARTED", "RUN_FINISHED")
        assert "TOOL_CALL_START" in kinds
        assert "TOOL_CALL_RESULT" not in kinds
        # The journal has what it leaves out, so nobody is shown that instead.
        joined = await post(app, "/threads/thread/connect", {})
        assert (joined.status_code, joined.json()["error"]["code"]) == (409, "not_joinable")
        with pytest.raises(UsageError, match=r"has a run\(\) of its own"):
            create_adk_app(served, on_disconnect="continue")
        app = create_adk_app(agent if is_wrapped else adk_agent(cs, root), on_disconnect="continue")
        add_adk_fastapi_endpoint(
            app, adk_agent(cs, root), "/x", agent_resolver=lambda *_: served, on_disconnect="continue"
        )
        with pytest.raises(UsageError, match=r"has a run\(\) of its own"):
            await post(app, "/x", body_for(agent))


async def test_a_run_of_the_programs_own_that_fails(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(ADKAgent):
        def run(self, input: RunAgentInput) -> Any:  # noqa: A002
            return Counting()

    class Counting:
        """An iterator that is no generator."""

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            raise RuntimeError("a secret")

    async with scripted("gemini", [END]) as provider:
        agent = Failing(adk_agent=agent_of(gemini(models, provider)), app_name="app", user_id="user", callstream=cs)
        response = await post(create_adk_app(agent), "/", body_for(agent))
    assert [(event["type"], event["message"]) for event in events_in(response)] == [("RUN_ERROR", "The run failed.")]
    assert "run() of Failing failed in thread thread" in caplog.text


async def test_headers_into_state(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent, extract_headers=["X-Tenant-Id", "X-Missing"])
        await post(app, "/", body_for(agent, state={"a": 1, "app:b": 2}), **{"x-tenant-id": "t1"})
        found = await agent.thread_state("thread")
    assert found["state"] == {"a": 1, "headers": {"tenant_id": "t1"}}


async def test_headers_into_state_by_an_extractor(cs: Callstream, models: Models) -> None:
    from callstream.ag_ui_adk import make_extract_headers
    from callstream.ag_ui_adk.endpoint import make_extract_headers as where_programs_import_it_from

    assert make_extract_headers is where_programs_import_it_from
    async with scripted("gemini", [END, END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent, extract_state_from_request=make_extract_headers(["X-Tenant-Id"]))
        await post(app, "/", body_for(agent, state={"a": 1}, threadId="none"))
        state = {"headers": {"tenant_id": "client", "other": "kept"}}
        await post(app, "/", body_for(agent, state=state), **{"x-tenant-id": "t1"})
        assert (await agent.thread_state("none"))["state"] == {"a": 1}
        assert (await agent.thread_state("thread"))["state"] == state


def test_names_for_callbacks_are_in_the_same_module() -> None:
    import callstream.adk
    import callstream.ag_ui_adk

    assert callstream.ag_ui_adk.repair_thought_signatures is callstream.adk.repair_thought_signatures


async def test_state_from_request(cs: Callstream, models: Models) -> None:
    async def extract(request: Any, given: Any) -> dict[str, Any]:
        return {"path": request.url.path, "a": "server"}

    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent, extract_state_from_request=extract)
        await post(app, "/", body_for(agent, state={"a": "client"}))
        found = await agent.thread_state("thread")
    assert found["state"] == {"a": "server", "path": "/"}
    with pytest.raises(UsageError, match="not both"):
        create_adk_app(agent, extract_state_from_request=extract, extract_headers=["x"])


async def test_a_user_that_the_server_names_is_not_the_one_that_the_client_names(
    cs: Callstream, models: Models
) -> None:
    """Programs name the user in the state, without an extractor of the agent, and read threads that others have written."""

    async def extract(request: Any, given: Any) -> dict[str, Any]:
        user = request.headers.get("x-user")
        return {"user_id": user, "app_name": "theirs"} if user else {}

    async with scripted("gemini", [END]) as provider:
        root = agent_of(gemini(models, provider))
        sessions = InMemorySessionService()
        for user in ("ada", "bob"):
            await sessions.create_session(app_name="theirs", user_id=user, session_id="thread", state={"whose": user})
        agent = ADKAgent(adk_agent=root, session_service=sessions, callstream=cs)
        app = create_adk_app(agent, extract_state_from_request=extract)
        asked = {"threadId": "thread", "userId": "ada", "appName": "theirs"}
        assert (await post(app, "/agents/state", asked, **{"x-user": "bob"})).json()["state"] == {"whose": "bob"}
        assert (await post(app, "/agents/state", asked)).json()["state"] == {"whose": "ada"}


class _Broken(InMemorySessionService):
    async def get_session(self, **given: Any) -> Any:
        raise ConnectionError("a secret")


async def test_a_thread_that_cannot_be_read_is_no_thread_that_is_not_there(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), session_service=_Broken())
        response = await post(create_adk_app(agent), "/agents/state", {"threadId": "thread"})
    assert response.status_code == 500
    assert response.json() == {
        "threadId": "thread",
        "threadExists": False,
        "state": {},
        "messages": [],
        "error": "The thread could not be read.",
    }
    assert "a secret" in caplog.text


async def test_state_from_request_says_who_asks_on_every_route(cs: Callstream, models: Models) -> None:
    """What the server knows of a request comes before what the client says, whatever it asks for."""

    async def extract(request: Any, given: Any) -> dict[str, Any] | None:
        if (user := request.headers.get("x-user")) is None:
            raise HTTPException(401)
        return {"user": user, "agent": request.headers.get("x-agent")}

    async with scripted("gemini", [END, END]) as provider:

        def agent_named(name: str) -> ADKAgent:
            root = agent_of(gemini(models, provider))
            whose: Any = lambda given: given.state["user"]  # noqa: E731
            return ADKAgent(
                adk_agent=root, app_name=name, user_id_extractor=whose, callstream=cs, capabilities={"name": name}
            )

        agents = {"one": agent_named("one"), "two": agent_named("two")}
        app = create_adk_app(
            agents["one"],
            "/x",
            extract_state_from_request=extract,
            agent_resolver=lambda request, given: agents.get(given.state["agent"]),
        )
        ada, bob = {"x-user": "ada"}, {"x-user": "bob"}
        body = body_for(agents["one"])
        assert (await post(app, "/x", body, **ada)).status_code == 200
        assert (
            await post(app, "/x", body_for(agents["one"], threadId="other"), **ada, **{"x-agent": "two"})
        ).is_success
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent", headers=ada) as http:
            assert (await http.get("/x/capabilities", headers={"x-agent": "two"})).json() == {"name": "two"}
        for asked in (body, {}):
            assert "Done." in (await post(app, "/x/threads/thread/connect", asked, **ada)).text
        assert (await post(app, "/agents/state", {"threadId": "thread"}, **ada)).json()["threadExists"] is True
        theirs = {"threadId": "other"}
        assert (await post(app, "/agents/state", theirs, **ada)).json()["threadExists"] is False
        assert (await post(app, "/agents/state", theirs, **ada, **{"x-agent": "two"})).json()["threadExists"] is True
        # Nobody becomes somebody else by saying so.
        lie = body_for(agents["one"], state={"user": "ada"})
        assert (await post(app, "/x/threads/thread/connect", lie, **bob)).status_code == 404
        lie = {"threadId": "thread", "userId": "ada"}
        assert (await post(app, "/agents/state", lie, **bob)).json()["threadExists"] is False
        for path in ("/x", "/x/threads/thread/connect", "/x/runs/run-1/stop", "/agents/state"):
            assert (await post(app, path, body)).status_code == 401


async def test_dependencies_guard_what_a_thread_holds(cs: Callstream, models: Models) -> None:
    def refuse() -> None:
        raise HTTPException(401)

    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent, "/x", dependencies=[Depends(refuse)])
        for path in ("/x", "/x/threads/thread/connect", "/x/runs/run-1/stop", "/agents/state"):
            assert (await post(app, path, body_for(agent))).status_code == 401


@pytest.mark.parametrize("on_disconnect", ["stop", "continue"])
async def test_an_id_cannot_write_headers(on_disconnect: Any, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent, on_disconnect=on_disconnect)
        begun = await post(app, "/", body_for(agent, runId="run\r\nset-cookie: a=b"))
        if on_disconnect == "continue":
            assert begun.status_code == 422
            assert provider.requests == []
        else:
            joined = await post(app, "/threads/thread/connect", {})
            assert joined.headers["x-run-id"] == "run%0D%0Aset-cookie%3A%20a%3Db"


@pytest.mark.parametrize("on_disconnect", ["stop", "continue"])
async def test_failures_are_logged_once(
    on_disconnect: Any, cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose(callback_context: Any) -> None:
        raise RuntimeError("all is lost")

    async with scripted("gemini", [END]) as provider:
        agent = agent_of(gemini(models, provider), before_agent_callback=lose)
        app = create_adk_app(adk_agent(cs, agent), on_disconnect=on_disconnect)
        await post(app, "/", body_for(adk_agent(cs, agent)))
    ours = [record for record in caplog.records if record.name.startswith("callstream") and record.exc_info]
    assert [record.getMessage() for record in ours] == ["run run-1 of thread thread failed"]


async def test_a_providers_error_writes_no_lines_of_its_own(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    said = "overloaded\nINFO run run-1 of thread thread finished\x1b[2J"
    async with scripted("gemini", [[Text("Well"), Failure(said)]]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        assert "RUN_ERROR" in (await post(create_adk_app(agent), "/", body_for(agent))).text
    ours = [record for record in caplog.records if record.name.startswith("callstream")]
    text = "\n".join(caplog.handler.format(record) for record in ours)
    assert "overloaded" in text
    assert "\nINFO run" not in text
    assert "\x1b" not in text


async def test_a_busy_thread_of_somebody_elses_does_not_name_its_run(
    cs: Callstream, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two people may have threads of one name, and whoever knows a run's id can stop it."""
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        monkeypatch.setattr("callstream.ag_ui_adk.endpoint.ServerSettings", partial(ServerSettings, when_busy="refuse"))
        app = create_adk_app(agent, on_disconnect="continue")

        async def begin(*args: Any, **options: Any) -> Any:
            raise ThreadBusy("thread", "ann's run")

        monkeypatch.setattr(agent, "begin", begin)
        refused = await post(app, "/", body_for(agent))
    assert refused.status_code == 409
    assert "ann" not in refused.text


async def test_a_page_that_joins_says_what_it_knows(cs: Callstream, models: Models) -> None:
    """Without it, browsers log an error for a thread that is not there yet, and a page is sent again what it has seen."""
    async with scripted("gemini", [END, END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent, "/x")

        async def join(body: Any) -> httpx.Response:
            return await post(app, "/x/threads/thread/connect", body)

        assert (await join({})).status_code == 404
        assert (await join({"known": None})).status_code == 204
        await post(app, "/x", body_for(agent, runId="one"))
        assert "Done." in (await join({"known": None})).text
        assert (await join({"known": "one"})).status_code == 204
        await post(app, "/x", body_for(agent, runId="two", messages=[{"id": "n", "role": "user", "content": "Again"}]))
        assert [event["runId"] for event in events_in(await join({"known": "one"})) if "runId" in event] == ["two"] * 2
        assert (await join({"known": "two"})).status_code == 204


async def test_agent_resolver(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        other = ADKAgent(adk_agent=agent_of(gemini(models, provider)), app_name="other", user_id="u", callstream=cs)
        app = create_adk_app(agent, agent_resolver=lambda request, given: other)
        await post(app, "/", body_for(agent))
    assert await agent.thread_state("thread") is None
    assert await other.thread_state("thread") is not None


async def test_input_that_is_none_is_refused(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        app = create_adk_app(adk_agent(cs, agent_of(gemini(models, provider))))
        assert (await post(app, "/", {"messages": []})).status_code == 422


async def test_lists_are_bounded(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent)
        too_many = [{"id": "m", "role": "user", "content": [0] * 20_000}]
        refused = await post(app, "/", {**body_for(agent), "messages": too_many})
        assert (refused.status_code, len(refused.content) < 500) == (413, True)
        wrong = [{"id": f"m{number}", "role": "user", "content": [0] * 1000} for number in range(10)]
        refused = await post(app, "/", {**body_for(agent), "messages": wrong})
        assert (refused.status_code, len(refused.content) < 2000) == (422, True)
        assert [set(each) >= {"loc", "msg", "type"} for each in refused.json()["detail"]] == [True]
        assert (
            await post(app, "/threads/thread/connect", {**body_for(agent), "messages": too_many})
        ).status_code == 404
        long = [{"id": "m", "role": "user", "content": "x" * 50_000}]
        assert (await post(app, "/", {**body_for(agent), "messages": long})).status_code == 200
    assert len(provider.requests) == 1


def test_endpoint_without_fastapi(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ADKAgent(adk_agent=LlmAgent(name="writer", model="gemini-3-flash-preview"))
    app = FastAPI()
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(UsageError, match="needs fastapi"):
        add_adk_fastapi_endpoint(app, agent)
    with pytest.raises(UsageError, match="needs fastapi"):
        create_adk_app(agent)


def test_resolver_that_cannot_tell() -> None:
    agent = object()
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    user = UserMessage(id="u", content="Go")
    named = AssistantMessage.model_validate({"id": "a", "role": "assistant", "name": "x", "toolCalls": [call]})
    nameless = AssistantMessage.model_validate({"id": "a", "role": "assistant", "toolCalls": [call]})
    answer = ToolMessage(id="t", content="done", tool_call_id="c")
    registry: Any = {"x": agent}
    assert resolve_agent_from_message_history([user, named, answer], registry) is agent
    for messages in ([], [user], [named, answer, user], [user, answer], [nameless, answer]):
        assert resolve_agent_from_message_history(messages, registry) is None
    assert resolve_agent_from_message_history([named, answer], {}) is None


@pytest.mark.parametrize("name", ["SessionManager", "EventTranslator", "get_a2ui_tool"])
def test_a_name_without_a_counterpart_says_where_to_look(name: str) -> None:
    with pytest.raises(ImportError, match=f"has no {name}; the page 'Migrating from ag_ui_adk'"):
        exec(f"from callstream.ag_ui_adk import {name}")
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec("from callstream.ag_ui_adk import Nonsense")
