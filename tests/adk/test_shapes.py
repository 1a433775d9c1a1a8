"""The shapes in which arguments come, through the SDK, google-adk's Runner and ``ADKAgent.run``, on both paths."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.calls import CallState
from callstream.events import ArgsAppended
from callstream.testing.bodies import BodiesProvider
from callstream.testing.shapes import SHAPES, Shape, ShapeTools, piece, pieces, text

from .agent.clients import Client
from .hosting import PATHS, WIRES, Host, Models, RawProvider, Untapped, agent_of, function_calls_in, responses_in

MORE = {"willContinue": True}
END: dict[str, Any] = {}


def chunk(function_call: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"functionCall": function_call}]}, **candidate}]}


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    return request.param  # type: ignore[no-any-return]


LOST = ("whole call", "streamed A, whole B", "streamed A, whole A")
"""On Anthropic's wire these have input in the start of a block, where google-adk's own class does not look for it."""
WAYS = [(wire, path) for path in PATHS for wire in WIRES]


def each_shape_on_each_way() -> Iterator[Any]:
    """Every shape on one way quickly, every way with some of them; all of them on all ways in ``make slow``."""
    for wire, path in WAYS:
        for number, shape in enumerate(SHAPES):
            if (wire, path) != ("anthropic", "partial") or shape.name not in LOST:
                marks = [] if WAYS[number % len(WAYS)] == (wire, path) else [pytest.mark.slow]
                yield pytest.param(shape, wire, path, id=f"{shape.name}-{wire}-{path}", marks=marks)


@pytest.mark.parametrize(("shape", "wire", "path"), list(each_shape_on_each_way()))
async def test_shapes_through_run(
    shape: Shape, wire: str, path: str, cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "callstream")
    tools, expected = ShapeTools(), list(shape.calls)
    async with BodiesProvider(wire, shape.bodies(wire)) as provider:
        model = models(provider, "none") if path == "tap" else Untapped.of(models(provider, "partial"))
        agent = ADKAgent(adk_agent=agent_of(model, *tools.functions()), app_name="app", user_id="user", callstream=cs)
        client = Client(agent)
        await client.send()
        assert len(provider.requests) == 2
    ours = [record for record in caplog.records if record.name.startswith("callstream")]
    assert ("at the wire" if path == "tap" else "from its partial events") in ours[0].getMessage()
    shown = client.calls()
    assert tools.ran == expected
    assert [(call["name"], call["args"]) for call in shown] == expected
    assert [json.loads(call["result"]) for call in shown] == [{"result": n} for n in range(1, len(expected) + 1)]
    assert client.text() == "Done."
    kept = [await cs.journal.call(call["id"]) for call in shown]
    assert [call and (call.name, call.args, call.state) for call in kept] == [
        (name, args, CallState.COMPLETED) for name, args in expected
    ]


@pytest.mark.parametrize("name", LOST)
async def test_shapes_that_google_adk_loses(name: str, cs: Callstream, models: Models) -> None:
    """Without the tap nobody sees such input. What is shown is still what google-adk goes on with."""
    shape = next(each for each in SHAPES if each.name == name)
    tools = ShapeTools()
    async with BodiesProvider("anthropic", shape.bodies("anthropic")) as provider:
        host = Host(cs, agent_of(models(provider, "partial"), *tools.functions()))
        events = await host.run()
    asked = [(call.name, call.args) for call in function_calls_in(events)]
    calls = await host.calls()
    assert [(call.name, json.loads(await host.args_text(call.call_id))) for call in calls] == asked
    assert asked == [*shape.calls[:-1], (shape.calls[-1][0], {})]
    assert tools.ran == [(name, args) for name, args in asked if name == "alpha"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_shapes_stream(wire: str, path: str, cs: Callstream, models: Models) -> None:
    """They come piece by piece on every wire, not whole at the end."""
    shape = next(each for each in SHAPES if each.name == "one string")
    async with BodiesProvider(wire, shape.bodies(wire)) as provider:
        host = Host(cs, agent_of(models(provider, path), *ShapeTools().functions()))
        await host.run()
    assert sum(isinstance(event, ArgsAppended) for event in await host.events()) > 1


@pytest.mark.parametrize("path", PATHS)
async def test_gemini_shapes(shape: Shape, path: str, cs: Callstream, models: Models) -> None:
    """With the plugin alone, in a Runner of the program's own."""
    tools, expected = ShapeTools(), list(shape.calls)
    async with BodiesProvider("gemini", shape.bodies("gemini")) as provider:
        host = Host(cs, agent_of(models(provider, path), *tools.functions()))
        events = await host.run()
    calls = await host.calls()
    assert [(made.name, made.args) for made in calls] == expected
    assert [(made.name, json.loads(await host.args_text(made.call_id))) for made in calls] == expected
    assert tools.ran == expected
    assert {made.state for made in calls} == {CallState.COMPLETED}
    assert [given for given, _ in responses_in(events)] == [made.call_id for made in calls]
    assert [made.result for made in calls] == [{"result": number} for number in range(1, len(calls) + 1)]


@pytest.mark.parametrize("path", PATHS)
async def test_nameless_held(path: str, cs: Callstream, models: Models) -> None:
    """A call without a name is that of the one tool whose schema has all its places; else nothing runs, and it is said."""
    ran: list[str] = []

    def alpha(a: str = "", shared: str = "") -> None:
        ran.append(f"alpha {a} {shared}")

    def beta(b: str = "", shared: str = "") -> None:
        ran.append(f"beta {b} {shared}")

    clear = [pieces(piece("$.shared", stringValue="s"), **MORE), *text("$.b", "y"), END]
    unclear = [pieces(piece("$.shared", stringValue="s"), **MORE), END]
    stop = {"candidates": [{"content": {"role": "model", "parts": [{"text": "."}]}, "finishReason": "STOP"}]}
    answers = [[*map(chunk, clear), stop], [stop], [*map(chunk, unclear), stop], [stop]]
    async with RawProvider("gemini", answers) as provider:
        host = Host(cs, agent_of(models(provider, path), alpha, beta))
        await host.run("one")
        await host.run("two")
        told = [request.body.decode() for request in provider.requests]
    made, unnamed = await host.calls()
    assert (unnamed.state, unnamed.reason) == (CallState.DISCARDED, "malformed")
    assert "without a name; the tools are alpha, beta" in told[3]
    assert ("the whole response does not have this call" in told[1]) is (path == "partial")
    assert (made.name, made.args_json) == ("beta", '{"shared":"s","b":"y"' + "}" * (path == "tap"))
    # google-adk itself loses a call that never had a name, so on its partial events it cannot be completed.
    assert ran == (["beta y s"] if path == "tap" else [])
    assert made.state is (CallState.COMPLETED if path == "tap" else CallState.DISCARDED)
