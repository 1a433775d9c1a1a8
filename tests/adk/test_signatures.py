"""Thought signatures come back to Gemini 3, from wherever they are known."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.session import Session
from google.genai import types

from callstream import Callstream
from callstream.adk import repair_thought_signatures
from callstream.adk.signatures import SENTINEL, repair
from callstream.testing import Call as Calls
from callstream.testing import Finish, Text

from .hosting import PATHS, Host, Models, agent_of, scripted

STEP = [Calls("note", {"text": "x"}), Finish()]
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
    unsigned = [Calls("note", {"text": "x"}, signature=""), Finish()]
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


async def test_signatures_repaired_without_the_plugin(cs: Callstream, models: Models) -> None:
    """By itself the function is a before_model_callback."""
    unsigned = [Calls("note", {"text": "x"}, signature=""), Finish()]
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
