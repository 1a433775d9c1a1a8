"""Text from the wire: google-adk gets it by the passage where nothing of the application could see less of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callstream import Callstream, tool
from callstream.adk import ADKAgent, observes
from callstream.testing import Failure, Finish, Text, Thought, ToolCall
from callstream.testing.provider import ProviderServer
from tests.adk.hosting import Models, agent_of, scripted

from .agents import adk_agent
from .clients import Client

SAID_LAST = [Text("Done.", size=2), Finish()]
WIRES = ("gemini", "anthropic", "openai_chat", "openai_responses")
SAID = "High tide is at noon, and low tide follows. " * 3


@tool
async def note(word: str) -> str:
    """Notes a word."""
    return word


class Seen(BasePlugin):
    """Counts what an application sees of text while it is written."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.partial = 0

    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
        self.partial += bool(event.partial)


async def ran(
    provider: ProviderServer, *, join_text: bool | None, make_model: Callable[[ProviderServer], Any] | None = None
) -> tuple[Any, ...]:
    """What a client saw, and what google-adk's session has, of one run. ``make_model``: in place of the wire's own class."""
    async with Callstream("memory:") as cs:
        models = Models(cs)
        sessions = InMemorySessionService()
        async with provider:
            root = agent_of((make_model or models)(provider), note, output_key="kept")
            agent = ADKAgent(
                adk_agent=root,
                app_name="app",
                user_id="u",
                callstream=cs,
                session_service=sessions,
                join_text=join_text,
            )
            client = Client(agent)
            await client.send("Go")
            await agent.close()
        await models.aclose()
        session = await sessions.get_session(app_name="app", user_id="u", session_id="thread")
        assert session is not None
        events = [
            event.model_dump(mode="json", exclude={"id", "invocation_id", "timestamp"}, exclude_none=True)
            for event in session.events
        ]
        messages = [{**message, "metadata": None} for message in client.messages]
        kinds = [event["type"] for event in client.events]
        return unnamed((events, dict(session.state), messages)), kinds, client.text()


async def ran_both_ways(provide: Callable[[], ProviderServer], make_model: Any = None) -> tuple[Any, ...]:
    """What ``ran`` says, which has to be the same in both ways."""
    joined = await ran(provide(), join_text=True, make_model=make_model)
    assert joined == await ran(provide(), join_text=False, make_model=make_model)
    return joined


def unnamed(seen: Any) -> str:
    """As text, with ids that are made up anew for each run in the order in which they appear."""
    text = json.dumps(seen, sort_keys=True, default=str)
    known: dict[str, str] = {}
    return re.sub(
        r"(?:adk-|[a-z]+_)?[0-9a-f]{8}-?[0-9a-f-]{16,}", lambda each: known.setdefault(each[0], f"#{len(known)}"), text
    )


@pytest.mark.parametrize("wire", WIRES)
async def test_sessions_and_clients_have_the_same_in_both_ways(wire: str) -> None:
    scripts = [
        [
            Thought(SAID, size=7, signature="c2ln"),
            Text(SAID, size=5),
            ToolCall("note", {"word": SAID}, size=9),
            Finish(),
        ],
        [Text("Done. ", size=2), Thought("Hm.", size=1, signature="c2ln"), Text("Really.", size=3), Finish()],
    ]
    joined = await ran_both_ways(lambda: scripted(wire, scripts))
    assert joined == await ran(scripted(wire, scripts), join_text=None)
    assert joined[-1] == f"{SAID}Done. Really."
    assert joined[-2].count("TEXT_MESSAGE_CONTENT") > 20


said = st.builds(Text, st.text("hi ", min_size=1, max_size=9), size=st.integers(1, 4))
thought = st.builds(Thought, st.text("hm ", min_size=1, max_size=9), size=st.integers(1, 4), signature=st.just("c2ln"))
called = st.builds(ToolCall, st.just("note"), st.fixed_dictionaries({"word": st.text("ab", max_size=4)}))
ended = st.just(Finish()) | st.just(Finish("length")) | st.just(Failure("overloaded"))


@pytest.mark.parametrize("wire", WIRES)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(said | thought, max_size=4), call=st.none() | called, end=ended)
async def test_any_script_gives_the_same_session_in_both_ways(wire: str, steps: list[Any], call: Any, end: Any) -> None:
    script = [*steps, *([call] if call is not None else []), end]
    await ran_both_ways(lambda: scripted(wire, [script, SAID_LAST, SAID_LAST]))


@pytest.mark.parametrize("join_text", [None, False])
@pytest.mark.parametrize("wire", WIRES)
async def test_halves_of_characters_are_in_the_session_as_clients_see_them(
    wire: str, join_text: bool | None, tmp_path: Path, cs: Callstream, models: Models
) -> None:
    """Servers that cut UTF-16 text in two send them, and no store of sessions can hold them."""
    script = [Thought("Hm\ud83d\ude00\ud83d.", size=1), Text("I \ud83d\ude00 agr\ud83dee.", size=1), Finish()]
    sessions = SqliteSessionService(f"{tmp_path}/sessions.db")
    async with scripted(wire, [script, SAID_LAST]) as provider:
        root = agent_of(models(provider), output_key="kept")
        client = Client(adk_agent(cs, root, session_service=sessions, join_text=join_text))
        await client.send()
        assert client.text() == "I \U0001f600 agr\ufffdee."
        await client.send()
        assert client.text() == "Done."
    session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
    assert session is not None
    said = [part.text for event in session.events for part in event.content.parts if part.text and not part.thought]
    assert [text for text in said if text != "Go"] == ["I \U0001f600 agr\ufffdee.", "Done."]
    assert session.state["kept"] == "Done."


class Forwarding(BaseAgent):
    """An agent of the application's own, which sees the events of another."""

    inner: Any

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        async for event in self.inner.run_async(ctx):
            yield event


def looks(callback_context: Any, llm_response: Any) -> None:
    """Changes nothing."""


@pytest.mark.parametrize("way", ["plugin", "callback", "observing callback", "agent"])
async def test_an_application_that_sees_text_gets_every_piece_of_it(
    way: str, cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "callstream")
    seen = Seen()
    async with scripted("gemini", [[Text(SAID, size=5), Finish()]]) as provider:
        callbacks = {"callback": looks, "observing callback": observes(lambda callback_context, llm_response: None)}
        inner: LlmAgent = agent_of(models(provider), after_model_callback=callbacks.get(way))
        root = Forwarding(name="outer", inner=inner, sub_agents=[inner]) if way == "agent" else inner
        app = App(name="app", root_agent=root, plugins=[seen] if way == "plugin" else [])
        client = Client(ADKAgent.from_app(app, user_id="u", callstream=cs))
        await client.send("Go")
    assert client.text() == SAID
    assert any("piece by piece, for" in line for line in caplog.messages)
    if way == "plugin":
        assert seen.partial > 20


async def test_one_line_of_the_log_says_that_text_is_shown_from_the_wire(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "callstream")
    async with scripted("gemini", [[Text(SAID, size=5), Finish()], [Text("Yes."), Finish()]]) as provider:
        agent = ADKAgent(adk_agent=agent_of(models(provider)), app_name="app", user_id="u", callstream=cs)
        client = Client(agent)
        await client.send("Go")
        await client.send("Again")
    said_of = [line for line in caplog.messages if "is shown from the wire" in line]
    assert len(said_of) == 1


async def test_no_line_of_the_log_says_so_of_a_model_that_is_not_tapped(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "callstream")
    async with scripted("gemini", [[Text(SAID, size=5), Finish()]]) as provider:
        made = models(provider, "partial")
        made.client = made.api_client  # type: ignore[attr-defined]  # the application's own
        client = Client(ADKAgent(adk_agent=agent_of(made), app_name="app", user_id="u", callstream=cs))
        await client.send("Go")
    assert client.text() == SAID
    assert any("is read from its partial events" in line for line in caplog.messages)
    assert any("piece by piece: that is where it is read from" in line for line in caplog.messages)
    assert not any("is shown from the wire" in line for line in caplog.messages)
