"""Thought signatures come back to Gemini 3, from wherever they are known."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.session import Session
from google.genai import types

from callstream import Callstream
from callstream.adk import repair_thought_signatures
from callstream.adk.requests import SENTINEL, repair
from callstream.testing import Finish, Text, ToolCall

from .hosting import PATHS, FakeLlm, Host, Models, Untapped, agent_of, scripted

STEP = [ToolCall("note", {"text": "x"}), Finish()]
END = [Text("Done."), Finish()]


def note(text: str) -> str:
    return text


class Forgetful(BasePlugin):
    """Stores events without their signatures."""

    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
        for part in (event.content and event.content.parts) or ():
            part.thought_signature = None


def signatures_in(request: Any) -> list[bytes | None]:
    parts = [part for content in request.json["contents"] for part in content["parts"] if "functionCall" in part]
    return [base64.b64decode(part["thoughtSignature"]) if "thoughtSignature" in part else None for part in parts]


@pytest.mark.parametrize("path", PATHS)
async def test_signatures_repaired_nothing_to_do(path: str, cs: Callstream, models: Models) -> None:
    """The provider refuses a history without the signatures that it sent."""
    async with scripted("gemini", [STEP, STEP, END, STEP, END], strict_signatures=True) as provider:
        host = Host(cs, agent_of(models(provider, path), note))
        await host.run("one")
        await host.run("two")
        assert SENTINEL not in signatures_in(provider.requests[-1])
    assert all(call.signature for call in await host.calls())


@pytest.mark.parametrize("path", PATHS)
async def test_signatures_repaired_by_the_sentinel(path: str, cs: Callstream, models: Models) -> None:
    unsigned = [ToolCall("note", {"text": "x"}, signature=""), Finish()]
    async with scripted("gemini", [unsigned, END], strict_signatures=True) as provider:
        host = Host(cs, agent_of(models(provider, path), note))
        await host.run()
        assert signatures_in(provider.requests[1]) == [SENTINEL]
    stored = [part for event in (await host.session()).events for part in event.content.parts if part.function_call]
    assert [part.thought_signature for part in stored] == [None]


@pytest.mark.parametrize("path", PATHS)
async def test_signatures_repaired_from_the_journal(path: str, cs: Callstream, models: Models) -> None:
    """History lost the signature; the journal has it. The user's own callback still runs."""
    seen: list[int] = []

    def users_own(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        seen.append(len(llm_request.contents))

    async with scripted("gemini", [STEP, END, STEP, END], strict_signatures=True) as provider:
        agent = agent_of(models(provider, path), note, before_model_callback=users_own)
        host = Host(cs, agent, plugins=[Forgetful("forgetful")])
        await host.run("one")
        (kept,) = await host.calls()
        assert signatures_in(provider.requests[1]) == [base64.b64decode(kept.signature or "")]
        await host.run("two")
    stored = [part for event in (await host.session()).events for part in event.content.parts if part.function_call]
    assert [part.thought_signature for part in stored] == [None, None]
    assert len(seen) == 4


async def test_signatures_repaired_for_gemini_3_alone(cs: Callstream, models: Models) -> None:
    for model in ("gemini-2.5-flash", "gemma-4-1b"):
        async with scripted("gemini", [STEP, END]) as provider:
            host = Host(cs, agent_of(models(provider, "partial", model), note))
            await host.run()
            assert signatures_in(provider.requests[1]) == [None]


class Renamed(Untapped):
    """A model that google-adk knows by another name than its provider does."""

    def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:
        request = llm_request.model_copy(update={"model": self.inner.model})
        return self.inner.generate_content_async(request, stream)


TUNED = "projects/p/locations/l/endpoints/123"
LATEST = ("gemini-flash-latest", "gemini-pro-latest", "gemini-flash-lite-latest")


@pytest.mark.parametrize("model", LATEST)
@pytest.mark.parametrize("path", PATHS)
async def test_signatures_repaired_for_an_alias(path: str, model: str, cs: Callstream, models: Models) -> None:
    unsigned = [ToolCall("note", {"text": "x"}, signature=""), Finish()]
    async with scripted("gemini", [unsigned, END], strict_signatures=True) as provider:
        await Host(cs, agent_of(models(provider, path, model), note)).run()
        assert signatures_in(provider.requests[1]) == [SENTINEL]


@pytest.mark.parametrize("model", [TUNED, "our-gateways-name"])
@pytest.mark.parametrize("path", PATHS)
async def test_signatures_repaired_where_the_model_has_signed(
    path: str, model: str, cs: Callstream, models: Models
) -> None:
    """The name says nothing; what the model sent in the thread does."""
    signed = [ToolCall("note", {"text": "x"}, signature="c2lnbmVk"), Finish()]
    unsigned = [ToolCall("note", {"text": "y"}, signature=""), Finish()]
    async with scripted("gemini", [signed, unsigned, END, unsigned, END]) as provider:
        renamed = Renamed(model=model, inner=models(provider, path))
        host = Host(cs, agent_of(renamed, note), plugins=[Forgetful("forgetful")])
        await host.run("one")
        assert signatures_in(provider.requests[1]) == [b"signed"]
        assert signatures_in(provider.requests[2]) == [b"signed", SENTINEL]
        await host.run("two")
        later = signatures_in(provider.requests[4])
        # Where even the session has forgotten, a tuned model's thread is looked up in the journal.
        assert later == ([b"signed", None, SENTINEL] if model == TUNED else [None, None, None])


@pytest.mark.parametrize("model", [TUNED, "our-gateways-name"])
async def test_signatures_repaired_never_without_a_sign_of_them(model: str, cs: Callstream, models: Models) -> None:
    unsigned = [ToolCall("note", {"text": "x"}, signature=""), Finish()]
    async with scripted("gemini", [unsigned, END]) as provider:
        await Host(cs, agent_of(Renamed(model=model, inner=models(provider, "partial")), note)).run()
        assert signatures_in(provider.requests[1]) == [None]


async def test_signatures_repaired_by_agent(cs: Callstream) -> None:
    """One agent's model signs, another agent's model does not: the other's requests are not touched."""

    def response(*parts: types.Part) -> LlmResponse:
        content = types.Content(role="model", parts=list(parts))
        return LlmResponse(content=content, finish_reason=types.FinishReason.STOP)

    def answers(signature: bytes | None) -> list[Any]:
        done = response(types.Part(text="Done."))
        return [
            [response(called("note", signature, text="x"))],
            [response(called("note", None, text="y"))],
            [done],
        ]

    signs, knows_none = FakeLlm(model="one", answers=answers(b"real")), FakeLlm(model="two", answers=answers(None))
    first = LlmAgent(name="first", model=signs, tools=[note])
    second = LlmAgent(name="second", model=knows_none, tools=[note])
    await Host(cs, SequentialAgent(name="both", sub_agents=[first, second])).run()

    def found(request: LlmRequest) -> list[bytes | None]:
        parts = [part for content in request.contents for part in content.parts or ()]
        return [part.thought_signature for part in parts if part.function_call]

    assert found(signs.requests[-1]) == [b"real", SENTINEL]
    assert found(knows_none.requests[-1]) == [None, None]


async def test_real_signatures_come_back_to_gemini_2(cs: Callstream, models: Models) -> None:
    signed = [ToolCall("note", {"text": "x"}, signature="c2lnbmVk"), Finish()]
    unsigned = [ToolCall("note", {"text": "y"}, signature=""), Finish()]
    async with scripted("gemini", [signed, unsigned, END]) as provider:
        agent = agent_of(models(provider, "partial", "gemini-2.5-flash"), note)
        await Host(cs, agent, plugins=[Forgetful("forgetful")]).run()
        assert signatures_in(provider.requests[2]) == [b"signed", None]


async def test_signatures_repaired_without_the_plugin(cs: Callstream, models: Models) -> None:
    """By itself the function is a before_model_callback."""
    unsigned = [ToolCall("note", {"text": "x"}, signature=""), Finish()]
    async with scripted("gemini", [unsigned, END], strict_signatures=True) as provider:
        agent = agent_of(models(provider, "partial"), note, before_model_callback=repair_thought_signatures)
        host = Host(cs, agent, repair_signatures=False)
        await host.run()
        assert signatures_in(provider.requests[1]) == [SENTINEL]


def called(name: str, signature: bytes | None, call_id: str | None = None, **args: Any) -> types.Part:
    call = types.FunctionCall(name=name, args=args, id=call_id)
    return types.Part(function_call=call, thought_signature=signature)


async def test_signatures_repaired_never_from_a_stored_sentinel(cs: Callstream) -> None:
    def stored(*parts: types.Part) -> Event:
        return Event(author="writer", content=types.Content(role="model", parts=list(parts)))

    session = Session(
        id="session", app_name="app", user_id="user",
        events=[stored(called("f", SENTINEL, "adk-1", a=1)), stored(called("f", b"real", "adk-2", a=2))],
    )  # fmt: skip
    user = types.Content(role="user", parts=[types.Part(text="Go")])
    request = LlmRequest(model="gemini-3-pro-preview")
    request.contents = [
        user,
        types.Content(role="model", parts=[called("f", SENTINEL, a=1)]),
        types.Content(role="model", parts=[called("f", None, a=2), called("g", None)]),
    ]
    before = [content.model_copy(deep=True) for content in request.contents]
    originals = list(request.contents)
    await repair(request, session, None)
    found = [part.thought_signature for content in request.contents for part in content.parts or ()]
    assert found == [None, SENTINEL, b"real", None]
    assert originals == before
