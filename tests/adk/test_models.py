"""``tapped``: which models it can tap, and that it changes none."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import RunAgentInput, UserMessage
from anthropic import AsyncAnthropic, AsyncAnthropicVertex
from google import genai
from google.adk.integrations.openai import AzureOpenAIResponsesLlm, OpenAILlm, OpenAIResponsesLlm
from google.adk.models import Gemini
from google.adk.models.anthropic_llm import AnthropicLlm, Claude
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from openai import AsyncOpenAI

from callstream import Callstream, UsageError
from callstream.adk import ADKAgent, CallstreamPlugin, tapped
from callstream.cli.demo.agent import Cast, Workshop, demo_agent
from callstream.tap import TapTransport
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall

from .hosting import FakeLlm, Host, agent_of, text_of


def transport_of(client: Any) -> Any:
    return client._transport


def test_gemini_by_name_and_by_instance(cs: Callstream) -> None:
    made = tapped("gemini-3-flash-preview", cs)
    assert type(made) is Gemini
    assert made.model == "gemini-3-flash-preview"
    mine = Gemini(model="gemini-2.5-pro", client_kwargs={"project": "p", "http_options": {"timeout": 7}})
    made = tapped(mine, cs)
    assert isinstance(made, Gemini)
    assert made is not mine
    assert mine.client_kwargs == {"project": "p", "http_options": {"timeout": 7}}
    options = (made.client_kwargs or {})["http_options"]
    assert (options.timeout, made.client_kwargs["project"]) == (7, "p")  # type: ignore[index]
    assert isinstance(transport_of(options.httpx_async_client), TapTransport)


class MyGemini(Gemini):
    """A subclass of a user's."""

    extra: str = "x"


def test_subclasses_stay_what_they_are(cs: Callstream) -> None:
    made = tapped(MyGemini(model="gemini-3-pro-preview", extra="y"), cs)
    assert isinstance(made, MyGemini)
    assert made.extra == "y"
    assert made.client_kwargs is not None


def test_anthropic(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from the environment")
    made: Any = tapped(AnthropicLlm(model="claude-x", max_tokens=7), cs)
    assert (type(made), made.max_tokens, made.client.api_key) == (AnthropicLlm, 7, "from the environment")
    assert isinstance(transport_of(made.client._client), TapTransport)
    client = AsyncAnthropic(api_key="mine", base_url="http://127.0.0.1:1")
    made = tapped(AnthropicLlm(model="claude-x", client=client), cs)
    assert (made.client.api_key, str(made.client.base_url)) == ("mine", "http://127.0.0.1:1")
    assert made.client is not client
    assert isinstance(transport_of(made.client._client), TapTransport)


def test_claude_on_vertex(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    nowhere = Claude(model="claude-x")
    assert tapped(nowhere, cs) is nowhere  # the class says itself what is missing
    made: Any = tapped(Claude(model="projects/p/locations/us-east5/publishers/anthropic/models/claude-x"), cs)
    assert isinstance(made.client, AsyncAnthropicVertex)
    assert (made.client.project_id, made.client.region) == ("p", "us-east5")
    assert isinstance(transport_of(made.client._client), TapTransport)


async def test_openai(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (OpenAILlm, OpenAIResponsesLlm):
        made: Any = tapped(model(model="gpt-x", api_key=lambda: "fetched", base_url="http://127.0.0.1:1/v1"), cs)
        assert type(made) is model
        assert str(made.client.base_url) == "http://127.0.0.1:1/v1/"
        assert isinstance(transport_of(made.client._client), TapTransport)
        made = tapped(model(model="gpt-x", client=AsyncOpenAI(api_key="mine")), cs)
        assert made.client.api_key == "mine"
        assert isinstance(transport_of(made.client._client), TapTransport)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure")
    made = tapped(AzureOpenAIResponsesLlm(model="deployed", azure_endpoint="https://x.openai.azure.com/"), cs)
    assert (made.client.api_key, str(made.client.base_url)) == ("azure", "https://x.openai.azure.com/openai/v1/")


@pytest.mark.parametrize("model", [OpenAILlm, OpenAIResponsesLlm])
async def test_openai_key_that_comes_later(model: Any, cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may be imported where there is no key, with the tap as without it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    wire = "openai_chat" if model is OpenAILlm else "openai_responses"
    async with ScriptedProvider(wire, [Text("Done."), Finish()]) as provider:
        made = tapped(model(model="gpt-x", base_url=provider.base_url), cs)
        assert isinstance(transport_of(made.client._client), TapTransport)
        contents = [types.Content(role="user", parts=[types.Part(text="Go")])]
        request = LlmRequest(model="gpt-x", contents=contents)
        with pytest.raises(UsageError, match="set OPENAI_API_KEY"):
            await anext(made.generate_content_async(request))
        monkeypatch.setenv("OPENAI_API_KEY", "late")
        assert [response async for response in made.generate_content_async(request)]
        assert [asked.headers["authorization"] for asked in provider.requests] == ["Bearer late"]


def test_others_are_returned_as_they_are(cs: Callstream, caplog: pytest.LogCaptureFixture) -> None:
    others = [
        FakeLlm(),
        Gemini(model="gemini-3-pro-preview", client=genai.Client(api_key="none")),
    ]
    with caplog.at_level(logging.INFO, "callstream"):
        for other in others:
            assert tapped(other, cs) is other
        tapped("gemini-3-pro-preview", cs)
    lines = [record.getMessage() for record in caplog.records]
    assert ["from its partial events" in line for line in lines] == [True, True, False]
    assert "gemini-3-pro-preview (Gemini) is read at the wire" in lines[-1]


async def test_vertex_streams_arguments_because_the_tap_asks(cs: Callstream) -> None:
    """Gemini on Vertex streams arguments only when it is asked to."""
    deltas: list[str] = []
    cs.on_args_delta("note", lambda delta, signal: deltas.append(delta.text))

    def note(text: str) -> str:
        return text

    from callstream.testing import ScriptedProvider

    script = [[ToolCall("note", {"text": "a text of some length"}), Finish()], [Text("Done."), Finish()]]
    async with ScriptedProvider("gemini", script) as provider:
        model = tapped(on_vertex(provider), cs)
        host = Host(cs, agent_of(model, note))
        assert "Done." in text_of(await host.run())
        calling = provider.requests[0].json["toolConfig"]["functionCallingConfig"]
    assert calling["streamFunctionCallArguments"] is True
    (call,) = await host.calls()
    events = [event for event in await host.events() if getattr(event, "call_id", None) == call.call_id]
    assert len(events) > 6
    assert "".join(deltas) == call.args_json == '{"text":"a text of some length"}'


def test_model_that_is_tapped_already(cs: Callstream, caplog: pytest.LogCaptureFixture) -> None:
    mine = types.HttpOptions(httpx_async_client=cs.httpx_client())
    for model in (
        tapped("gemini-3-pro-preview", cs),
        Gemini(model="gemini-3-pro-preview", client_kwargs={"http_options": mine}),
    ):
        with caplog.at_level(logging.INFO, "callstream"):
            caplog.clear()
            assert tapped(model, cs) is model
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == "model gemini-3-pro-preview (Gemini) is already tapped and read at the wire"


def test_arguments_for_live_mode_are_not_httpx_arguments(cs: Callstream) -> None:
    context = ssl.create_default_context()
    options = types.HttpOptions(async_client_args={"ssl": context, "verify": context})
    made = tapped(Gemini(model="gemini-3-pro-preview", client_kwargs={"http_options": options}), cs)
    assert (made.client_kwargs or {})["http_options"].async_client_args == {"ssl": context, "verify": context}  # type: ignore[attr-defined]


def test_arguments_in_the_wrong_places_are_the_callers_fault(cs: Callstream) -> None:
    wrong: Any = "sqlite:///calls.db"
    with pytest.raises(UsageError, match="expected a model of google-adk or its name, got <callstream"):
        tapped(cs, "gemini-3-flash-preview")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected a Callstream, got str"):
        tapped("gemini-3-flash-preview", wrong)
    with pytest.raises(UsageError, match="expected a Callstream, got str"):
        CallstreamPlugin(wrong)
    with pytest.raises(UsageError, match="expected a Callstream, got str"):
        ADKAgent(adk_agent=agent_of("gemini-3-flash-preview"), app_name="app", callstream=wrong)


@pytest.mark.parametrize("asks", [None, True, False])
async def test_asks_for_pieces_once_whatever_the_agent_says_itself(cs: Callstream, asks: bool | None) -> None:
    def note(text: str) -> str:
        return text

    script = [[ToolCall("note", {"text": "a text of some length"}), Finish()], [Text("Done."), Finish()]]
    async with ScriptedProvider("gemini", script) as provider:
        model = tapped(on_vertex(provider), cs)
        calling = types.FunctionCallingConfig(stream_function_call_arguments=asks)
        agent = agent_of(model, note)
        agent.generate_content_config = types.GenerateContentConfig(
            tool_config=types.ToolConfig(function_calling_config=calling)
        )
        assert "Done." in text_of(await Host(cs, agent).run())
        sent = [request.json["toolConfig"]["functionCallingConfig"] for request in provider.requests]
    assert [list(config.values()) for config in sent] == [[asks is not False]] * 2


async def test_asks_for_pieces_once_in_the_demo(cs: Callstream, tmp_path: Path) -> None:
    async with ScriptedProvider("gemini", [Text("Nothing to do.")]) as provider:
        agent = demo_agent(Cast(on_vertex(provider), "a model on Vertex AI"), Workshop(tmp_path), cs)
        said = UserMessage(id="m1", content="go")
        given = {"state": {}, "tools": [], "context": [], "forwarded_props": {}}
        async for _ in agent.run(RunAgentInput(thread_id="t", run_id="r", messages=[said], **given)):
            pass
        sent = provider.requests[0].json["toolConfig"]["functionCallingConfig"]
    assert sent == {"streamFunctionCallArguments": True}


def on_vertex(provider: ScriptedProvider) -> Gemini:
    options = types.HttpOptions(base_url=provider.base_url)
    kwargs = {"vertexai": True, "api_key": "none", "http_options": options}
    return Gemini(model="gemini-3-flash-preview", client_kwargs=kwargs)
