"""A text filter as an ``after_model_callback``: text stays live, and what it takes out is nowhere."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions import InMemorySessionService
from google.genai import types

from callstream import Callstream, tool
from callstream.adk import ADKAgent, AgentTextFilter
from callstream.events import ReasoningAppended, TextAppended
from callstream.testing import Finish, Text, Thought, ToolCall
from tests.adk.hosting import PATHS, STREAMED, WHOLE, WIRES, Host, Models, agent_of, scripted
from tests.captures import ROOT

from .clients import Client

SECRET = "s3cr3t"
SAID = f"The word is {SECRET}, I think."
SHOWN = "The word is ******, I think."
HIDE = AgentTextFilter.redacting(SECRET, "******")


@tool
async def note(word: str) -> str:
    """Notes a word."""
    return word


def cut(text: str, place: int) -> list[Text]:
    return [Text(piece) for piece in (text[:place], text[place:]) if piece]


async def texts_in(sessions: InMemorySessionService) -> tuple[str, str]:
    """What google-adk's session has of the model's text, and of its reasoning."""
    session = await sessions.get_session(app_name="app", user_id="u", session_id="thread")
    assert session is not None
    parts = [
        part
        for event in session.events
        if event.author != "user"
        for part in (event.content or types.Content()).parts or ()
    ]
    assert SECRET not in repr(session)
    said = "".join(part.text for part in parts if part.text and not part.thought)
    return said, "".join(part.text for part in parts if part.text and part.thought)


async def journaled(cs: Callstream) -> tuple[str, str]:
    runs = await cs.journal.runs()
    told = [record.event for run in reversed(runs) for record in [each async for each in cs.journal.read(run.run_id)]]
    assert not any(piece in repr(told) for piece in (SECRET, "s3c", "r3t"))
    said = "".join(event.text for event in told if isinstance(event, TextAppended))
    return said, "".join(event.text for event in told if isinstance(event, ReasoningAppended))


@pytest.mark.parametrize("joins", [None, False], ids=["joined", "piece by piece"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_a_secret_that_is_cut_anywhere_is_nowhere(
    wire: str, path: str, joins: bool | None, cs: Callstream, models: Models
) -> None:
    start = SAID.index(SECRET)
    places = range(start - 1, start + len(SECRET) + 2)
    sessions = InMemorySessionService()
    async with scripted(wire, [[*cut(SAID, place), Finish()] for place in places]) as provider:
        root = agent_of(models(provider, path), after_model_callback=HIDE, output_key="kept")
        agent = ADKAgent(
            adk_agent=root, app_name="app", user_id="u", callstream=cs, session_service=sessions, join_text=joins
        )
        client = Client(agent)
        for _ in places:
            events = await client.send("Go")
            assert "".join(each["delta"] for each in events if each["type"] == "TEXT_MESSAGE_CONTENT") == SHOWN
            assert not any(piece in repr(events) for piece in (SECRET, "s3c", "r3t"))
        await agent.close()
    assert (await texts_in(sessions))[0] == (await journaled(cs))[0] == SHOWN * len(places)
    session = await sessions.get_session(app_name="app", user_id="u", session_id="thread")
    assert session is not None
    assert session.state["kept"] == SHOWN


@pytest.mark.parametrize("config", [STREAMED, WHOLE], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", PATHS)
async def test_reasoning_is_filtered_and_calls_are_live(path: str, config: Any, cs: Callstream, models: Models) -> None:
    scripts = [
        [
            Thought("Is it s3cr"),
            Thought("3t?", signature="c2ln"),
            *cut(SAID, 14),
            ToolCall("note", {"word": "of the tides, " * 10}, size=5),
            Finish(),
        ],
        [Text("Done."), Finish()],
    ]
    sessions = InMemorySessionService()
    async with scripted("gemini", scripts) as provider:
        agent = ADKAgent(
            adk_agent=agent_of(models(provider, path), note, after_model_callback=HIDE),
            app_name="app",
            user_id="u",
            callstream=cs,
            session_service=sessions,
            run_config_factory=lambda _: config,
        )
        client = Client(agent)
        events = await client.send("Go")
        await agent.close()
    assert (await texts_in(sessions)) == (await journaled(cs)) == (f"{SHOWN}Done.", "Is it ******?")
    assert client.text() == f"{SHOWN}Done."
    assert [json.loads(each["result"]) for each in client.calls()] == [{"result": "of the tides, " * 10}]
    if config is STREAMED:
        assert sum(each["type"] == "TOOL_CALL_ARGS" for each in events) > 5


async def test_text_stays_live_and_google_adk_gets_it_by_the_passage(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "callstream")
    long = "High tide is at noon, and low tide follows. " * 10
    async with scripted("gemini", [[Text(long, size=5), Finish()]]) as provider:
        root = agent_of(models(provider), after_model_callback=[HIDE, AgentTextFilter.redacting("noon", "midday")])
        agent = ADKAgent(adk_agent=root, app_name="app", user_id="u", callstream=cs)
        client = Client(agent)
        events = await client.send("Go")
        await agent.close()
    assert client.text() == long.replace("noon", "midday")
    assert sum(each["type"] == "TEXT_MESSAGE_CONTENT" for each in events) > 20
    assert "text of its model is shown from the wire; google-adk gets it in whole passages" in caplog.text
    assert "has judged it" not in caplog.text


async def test_beside_a_callback_that_judges_nothing_is_shown_before(cs: Callstream, models: Models) -> None:
    def loud(callback_context: Any, llm_response: LlmResponse) -> None:
        for part in (llm_response.content and llm_response.content.parts) or ():
            part.text = part.text and part.text.upper()

    async with scripted("gemini", [[*cut(SAID, 14), Finish()]]) as provider:
        root = agent_of(models(provider), after_model_callback=[HIDE, loud])
        agent = ADKAgent(adk_agent=root, app_name="app", user_id="u", callstream=cs)
        client = Client(agent)
        events = await client.send("Go")
        await agent.close()
    assert client.text() == SHOWN.upper()
    assert sum(each["type"] == "TEXT_MESSAGE_CONTENT" for each in events) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_partial_events_of_a_runner_have_no_text(path: str, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[*cut(SAID, 14), Finish()]]) as provider:
        host = Host(cs, agent_of(models(provider, path), after_model_callback=HIDE))
        events = await host.run()
    assert SECRET not in repr(events)
    said = [part.text for event in events for part in (event.content or types.Content()).parts or () if part.text]
    assert said == [SHOWN]
    assert (await journaled(cs))[0] == SHOWN


def test_parts_of_a_whole_answer_are_judged_together() -> None:
    parts = [
        types.Part(text="Hm: s3c", thought=True),
        types.Part(text="r3t", thought=True, thought_signature=b"sig"),
        types.Part(text="s3c"),
        types.Part(function_call=types.FunctionCall(name="note", args={})),
        types.Part(text="s3c"),
        types.Part(text="r3t"),
    ]
    answer = LlmResponse(content=types.Content(role="model", parts=parts))
    HIDE(None, answer)  # type: ignore[arg-type]
    assert answer.content is not None
    assert answer.content.parts == [
        types.Part(text="Hm: ******", thought=True),
        types.Part(text="", thought=True, thought_signature=b"sig"),
        types.Part(text="s3c"),
        types.Part(function_call=types.FunctionCall(name="note", args={})),
        types.Part(text="******"),
    ]
    HIDE(None, LlmResponse())  # type: ignore[arg-type]
    assert re.fullmatch("s3c", parts[2].text or "")  # what it was given is as it was


def test_the_filters_of_the_page_do_what_it_says() -> None:
    page = (ROOT / "docs" / "howto" / "redacting.md").read_text(encoding="utf-8")
    first, second, third = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(first, "redacting.md", "exec"), names)
    [keys] = names["root_agent"].canonical_after_model_callbacks
    text = "Use sk-abcdefghij0123456789 or sk-short."
    for place in range(len(text)):
        passage = keys.passage()
        shown = passage.feed(text[:place], False) + passage.feed(text[place:], False) + passage.feed("", True)
        assert shown == keys.whole(text) == "Use [key] or sk-short."
    exec(compile(second, "redacting.md", "exec"), names)
    text = "Ada met Grace Adams and Grace"
    for place in range(len(text) + 1):
        passage = names["initials"].passage()
        shown = passage.feed(text[:place], False) + passage.feed(text[place:], False) + passage.feed("", True)
        assert shown == names["initials"].whole(text) == "A. met G. Adams and G."
    compile(third, "redacting.md", "exec")
