"""Real agents of google-adk, with real models, against scripted providers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from anthropic import AsyncAnthropic
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.events.event import Event
from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm
from google.adk.models import BaseLlm, Gemini
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService
from google.genai import types
from openai import AsyncOpenAI
from pydantic import Field

from callstream import Call, Callstream, Record
from callstream.adk import CallstreamPlugin, tapped
from callstream.events import ArgsAppended, RunEvent
from callstream.testing import ReceivedRequest, ScriptedProvider
from callstream.testing.httpserver import HttpAnswer
from callstream.testing.provider import ProviderServer, Route

WIRES = ("gemini", "anthropic", "openai_chat", "openai_responses")
PATHS = ("tap", "partial")
STREAMED = RunConfig(streaming_mode=StreamingMode.SSE)
WHOLE = RunConfig(streaming_mode=StreamingMode.NONE)


class Models:
    """google-adk's own model class for each wire, on either path. Clients that google-adk would never close are closed."""

    def __init__(self, cs: Callstream) -> None:
        self._cs = cs
        self._clients: list[Any] = []

    def __call__(self, provider: ProviderServer, path: str = "tap", model: str | None = None) -> BaseLlm:
        """``path``: "tap", "partial", or "none" for a model that nobody has tapped yet."""
        made = self._untapped(provider, path, model)
        if path == "tap":
            return tapped(made, self._cs)
        if path == "none":
            return made
        self._clients.append(made.api_client.aio if isinstance(made, Gemini) else made.client)  # type: ignore[attr-defined]
        return made

    def _untapped(self, provider: ProviderServer, path: str, model: str | None) -> BaseLlm:
        match provider.wire:
            case "gemini" | "gemini_interactions":
                retry = types.HttpRetryOptions(attempts=1)
                options = types.HttpOptions(base_url=provider.base_url, retry_options=retry)
                kwargs = {"api_key": "none", "http_options": options}
                return Gemini(
                    model=model or "gemini-3-flash-preview",
                    client_kwargs=kwargs,
                    use_interactions_api=provider.wire == "gemini_interactions",
                )
            case "anthropic":
                client = AsyncAnthropic(api_key="none", base_url=provider.base_url, max_retries=0)
                self._clients.append(client)
                return AnthropicLlm(model=model or "claude-scripted", client=client)
        # The tap builds the client from what the model says; without it the client is ours, so that we can close it.
        given: dict[str, Any] = {"api_key": "none", "base_url": provider.base_url}
        if path == "partial":
            given = {"client": AsyncOpenAI(**given, max_retries=0)}
        if provider.wire == "openai_chat":
            return OpenAILlm(model=model or "gpt-4o", **given)
        return OpenAIResponsesLlm(model=model or "gpt-5", store=False, **given)

    async def aclose(self) -> None:
        for client in self._clients:
            await (client.aclose() if hasattr(client, "aclose") else client.close())


class Untapped(BaseLlm):
    """A model of somebody's own, around one of google-adk's: it takes no client."""

    inner: BaseLlm

    @classmethod
    def of(cls, inner: BaseLlm) -> Untapped:
        return cls(model=inner.model, inner=inner)

    def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:
        return self.inner.generate_content_async(llm_request, stream)


class RawProvider(ProviderServer):
    """Answers each request with the next of the given payloads, as server-sent events."""

    def __init__(self, wire: str, answers: Iterable[Sequence[Any]]) -> None:
        super().__init__(wire)
        self._answers = iter(answers)

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        frames = [f"data: {json.dumps(payload)}\r\n\r\n".encode() for payload in next(self._answers)]
        return HttpAnswer(200, [("content-type", "text/event-stream")], frames)


class FakeLlm(BaseLlm):
    """A custom model: each request is answered with the next list of responses."""

    model: str = "custom"
    answers: list[Any] = Field(default_factory=list)
    requests: list[LlmRequest] = Field(default_factory=list)

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncIterator[LlmResponse]:  # type: ignore[override]
        self.requests.append(llm_request)
        for response in self.answers.pop(0):
            if isinstance(response, Exception):
                raise response
            yield response


class Host:
    """An app of google-adk with the plugin, and its sessions."""

    def __init__(
        self,
        cs: Callstream,
        agent: BaseAgent | Any,
        *,
        sessions: BaseSessionService | None = None,
        plugins: Sequence[BasePlugin] = (),
        resumable: bool = False,
        **options: Any,
    ) -> None:
        self.cs = cs
        self.plugin = CallstreamPlugin(cs, **options)
        self.sessions = sessions or InMemorySessionService()
        config = ResumabilityConfig(is_resumable=True) if resumable else None
        app = App(name="app", root_agent=agent, plugins=[self.plugin, *plugins], resumability_config=config)
        self.runner = Runner(app=app, session_service=self.sessions, auto_create_session=True)

    async def stream(
        self, message: str | types.Content | Sequence[types.Part], config: RunConfig = STREAMED, **kwargs: Any
    ) -> AsyncIterator[Event]:
        if isinstance(message, str):
            message = types.Content(role="user", parts=[types.Part(text=message)])
        elif not isinstance(message, types.Content):
            message = types.Content(role="user", parts=list(message))
        events = self.runner.run_async(
            user_id="user", session_id="session", new_message=message, run_config=config, **kwargs
        )
        async with aclosing(events):
            async for event in events:
                yield event

    async def run(self, message: str | types.Content | Sequence[types.Part] = "Go", **kwargs: Any) -> list[Event]:
        return [event async for event in self.stream(message, **kwargs)]

    async def session(self) -> Any:
        return await self.sessions.get_session(app_name="app", user_id="user", session_id="session")

    # -- the journal --

    async def records(self) -> list[Record]:
        """All records of all runs, the oldest run first."""
        runs = reversed(await self.cs.journal.runs())
        return [record for run in runs async for record in self.cs.journal.read(run.run_id)]

    async def events(self) -> list[RunEvent]:
        return [record.event for record in await self.records()]

    async def calls(self) -> list[Call]:
        """All calls with their arguments."""
        listed = await self.cs.journal.calls()
        found = [await self.cs.journal.call(call.call_id) for call in listed]
        return [call for call in found if call is not None]

    async def args_text(self, call_id: str) -> str:
        """The argument text as it was shown."""
        events = await self.events()
        return "".join(e.text for e in events if isinstance(e, ArgsAppended) and e.call_id == call_id)


def agent_of(model: BaseLlm, *tools: Any, **options: Any) -> LlmAgent:
    return LlmAgent(name="writer", model=model, tools=list(tools), **options)


def answer(name: str, call_id: str | None, response: dict[str, Any]) -> types.Part:
    return types.Part(function_response=types.FunctionResponse(id=call_id, name=name, response=response))


def responses_in(events: Iterable[Event]) -> list[tuple[str | None, Any]]:
    return [(r.id, r.response) for event in events for r in event.get_function_responses()]


def text_of(events: Iterable[Event]) -> str:
    """The text of the events that are not partial."""
    whole = (event for event in events if not event.partial and event.content)
    return "".join(part.text or "" for event in whole for part in event.content.parts or ())  # type: ignore[union-attr]


def function_calls_in(events: Iterable[Event]) -> list[types.FunctionCall]:
    return [call for event in events if not event.partial for call in event.get_function_calls()]


def scripted(wire: str, script: Any, **options: Any) -> ScriptedProvider:
    """A provider that streams arguments whether it is asked to or not."""
    return ScriptedProvider(wire, script, stream_args_unasked=True, **options)


def by_agent(scripts: dict[str, list[Any]]) -> Any:
    """A script for each agent, told by the word that its instruction has."""

    def script(request: ReceivedRequest) -> Any:
        body = request.body.decode()
        return next(steps for word, steps in scripts.items() if word in body).pop(0)

    return script
