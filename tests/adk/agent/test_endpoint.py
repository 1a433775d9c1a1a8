"""The endpoint, under FastAPI, over ASGI."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import pytest
from ag_ui.core import AssistantMessage, ToolMessage, UserMessage
from fastapi import APIRouter, FastAPI
from google.adk.agents import LlmAgent

from callstream import Callstream, UsageError
from callstream.ag_ui_adk import (
    ADKAgent,
    add_adk_fastapi_endpoint,
    create_adk_app,
    resolve_agent_from_message_history,
)
from callstream.testing import Call as Calls
from callstream.testing import Finish
from tests.adk.hosting import Models, agent_of, scripted

from .clients import Client
from .test_run import END, adk_agent, gemini


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


@pytest.mark.parametrize("on_router", [False, True])
async def test_endpoint_streams(on_router: bool, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Calls("write", {"body": "a long text"}), Finish()], END]) as provider:
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
        messages = json.loads(found.json()["messages"])
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
        missing = await post(app, "/api/agents/state" if on_router else "/agents/state", {"threadId": "nobody's"})
        assert missing.json() == {"threadId": "nobody's", "threadExists": False, "state": "{}", "messages": "[]"}


async def test_headers_into_state(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)))
        app = create_adk_app(agent, extract_headers=["X-Tenant-Id", "X-Missing"])
        await post(app, "/", body_for(agent, state={"a": 1, "app:b": 2}), **{"x-tenant-id": "t1"})
        found = await agent.thread_state("thread")
    assert found["state"] == {"a": 1, "headers": {"tenant_id": "t1"}}


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
