"""google-adk's ``Gemini(use_interactions_api=True)``, tapped and read from its partial events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.adk.apps import App
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from callstream import Callstream
from callstream.calls import CallState
from callstream.events import ArgsAppended
from callstream.testing import Finish, ScriptedProvider, Text, Thought, ToolCall
from callstream.testing.bodies import BodiesProvider
from callstream.testing.shapes import SHAPES, Shape, ShapeTools

from .hosting import PATHS, STREAMED, WHOLE, Host, Models, agent_of, function_calls_in, responses_in, text_of

WIRE = "gemini_interactions"
LOST = "first piece carries data"
"""google-adk's own class does not look for arguments in the start of a step."""


def each_shape_on_each_path() -> Iterator[Any]:
    """Every shape on one path quickly, and on both in ``make slow``."""
    for number, shape in enumerate(SHAPES):
        for path in PATHS:
            if (shape.name, path) != (LOST, "partial"):
                marks = [] if path == PATHS[number % 2] or shape.name == LOST else [pytest.mark.slow]
                yield pytest.param(shape, path, id=f"{shape.name}-{path}", marks=marks)


@pytest.mark.parametrize(("shape", "path"), list(each_shape_on_each_path()))
async def test_shapes(shape: Shape, path: str, cs: Callstream, models: Models) -> None:
    tools, expected = ShapeTools(), list(shape.calls)
    async with BodiesProvider(WIRE, shape.bodies(WIRE)) as provider:
        host = Host(cs, agent_of(models(provider, path), *tools.functions()))
        events = await host.run()
    calls = await host.calls()
    assert [(made.name, made.args, made.state) for made in calls] == [(*each, CallState.COMPLETED) for each in expected]
    assert [json.loads(await host.args_text(made.call_id)) for made in calls] == [args for _, args in expected]
    assert tools.ran == expected
    assert [given for given, _ in responses_in(events)] == [made.provider_id for made in calls]
    assert text_of(events) == "Done."


@pytest.mark.parametrize("path", PATHS)
async def test_arguments_come_in_pieces(path: str, cs: Callstream, models: Models) -> None:
    shape = next(each for each in SHAPES if each.name == "one string")
    async with BodiesProvider(WIRE, shape.bodies(WIRE)) as provider:
        host = Host(cs, agent_of(models(provider, path), *ShapeTools().functions()))
        await host.run()
    assert sum(isinstance(event, ArgsAppended) for event in await host.events()) > 1


CONVERSATION = [
    [
        Thought("Hm.", signature="c2ln"),
        Text("I look."),
        ToolCall("look", {"place": "sea"}),
        ToolCall("look", {"place": "sky"}),
    ],
    [Thought("So.", signature="c28="), ToolCall("look", {"place": "moon"})],
    [Text("Done.")],
    [Text("Bye.")],
]


def look(place: str) -> dict[str, Any]:
    """Looks somewhere."""
    return {"seen": place}


async def bare(models: Models, config: Any) -> tuple[list[Any], list[Any]]:
    """What google-adk alone asks and answers."""
    async with ScriptedProvider(WIRE, CONVERSATION) as provider:
        app = App(name="app", root_agent=agent_of(models(provider, "partial"), look))
        runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)
        answers = []
        for text in ("Look.", "Thanks."):
            said = types.Content(role="user", parts=[types.Part(text=text)])
            run = runner.run_async(user_id="user", session_id="session", new_message=said, run_config=config)
            events = [event async for event in run]
            answers.append(([(call.name, call.args) for call in function_calls_in(events)], text_of(events)))
        return [request.json for request in provider.requests], answers


@pytest.mark.parametrize("config", [STREAMED, WHOLE], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", PATHS)
async def test_same_requests_and_answers_as_google_adk_alone(
    path: str, config: Any, cs: Callstream, models: Models
) -> None:
    requests, answers = await bare(models, config)
    async with ScriptedProvider(WIRE, CONVERSATION) as provider:
        host = Host(cs, agent_of(models(provider, path), look))
        found = []
        for text in ("Look.", "Thanks."):
            events = await host.run(text, config=config)
            found.append(([(call.name, call.args) for call in function_calls_in(events)], text_of(events)))
        asked = [request.json for request in provider.requests]
    assert asked == requests
    assert found == answers
    assert [(call.args, call.result) for call in await host.calls()] == [
        ({"place": place}, {"seen": place}) for place in ("sea", "sky", "moon")
    ]


@pytest.mark.parametrize("stop_after", [0, 1])
@pytest.mark.parametrize("path", PATHS)
async def test_truncated_never_runs(path: str, stop_after: int, cs: Callstream, models: Models) -> None:
    """google-adk alone runs such a call with no arguments, or fails."""
    cut = ToolCall("alpha", {"a": "one two three"}, stop_after=stop_after)
    tools = ShapeTools()
    script = [[Text("I look."), cut, Finish("length")], [Text("Ok.")]]
    async with ScriptedProvider(WIRE, script) as provider:
        host = Host(cs, agent_of(models(provider, path), *tools.functions()))
        events = await host.run()
        told = provider.requests[1].body.decode()
    assert tools.ran == []
    (call,) = await host.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")
    assert "were cut off" in told
    assert text_of(events).endswith("Ok.")


async def test_signature_of_the_thought_is_in_the_journal(cs: Callstream, models: Models) -> None:
    async with ScriptedProvider(WIRE, CONVERSATION[1:3]) as provider:
        host = Host(cs, agent_of(models(provider, "tap"), look))
        await host.run()
    (call,) = await host.calls()
    assert call.signature == "c28="
