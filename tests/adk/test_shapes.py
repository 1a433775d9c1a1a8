"""The shapes in which Gemini streams arguments, through google-genai, google-adk and the plugin, on both paths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream import Callstream
from callstream.calls import CallState

from .hosting import PATHS, Host, Models, RawProvider, agent_of, responses_in

MORE = {"willContinue": True}
END: dict[str, Any] = {}


def chunk(function_call: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"functionCall": function_call}]}, **candidate}]}


def piece(path: str, **value: Any) -> dict[str, Any]:
    return {"jsonPath": path, **value}


def pieces(*partial_args: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"partialArgs": list(partial_args), **rest}


def text(path: str, *parts: str) -> list[dict[str, Any]]:
    """A string in parts, and the empty part that ends it."""
    return [
        *(pieces(piece(path, stringValue=part, willContinue=True), **MORE) for part in parts),
        pieces(piece(path, stringValue=""), **MORE),
    ]


def call(name: str, *between: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **MORE}, *between, END]


ODD = 'quote " newline \n emoji 🌊 separator \u2028 backslash \\'
ONE = [("alpha", {"a": "one two"})]

SHAPES: dict[str, tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]] = {
    "one string": (call("alpha", *text("$.a", "one ", "two")), ONE),
    "two strings": (call("alpha", *text("$.a", "x"), *text("$.b", "y")), [("alpha", {"a": "x", "b": "y"})]),
    "interleaved": (
        call(
            "alpha",
            pieces(piece("$.a", stringValue="1", willContinue=True), **MORE),
            pieces(piece("$.b", stringValue="2", willContinue=True), **MORE),
            pieces(piece("$.a", stringValue="3"), **MORE),
            pieces(piece("$.b", stringValue="4"), **MORE),
        ),
        [("alpha", {"a": "13", "b": "24"})],
    ),
    "nested": (call("alpha", *text("$.o.b", "x")), [("alpha", {"o": {"b": "x"}})]),
    "item": (call("alpha", *text("$.items[0]", "x")), [("alpha", {"items": ["x"]})]),
    "two items": (
        call("alpha", *text("$.items[0]", "x"), *text("$.items[1]", "y")),
        [("alpha", {"items": ["x", "y"]})],
    ),
    "quoted key": (call("alpha", *text("$.o['my key']", "x")), [("alpha", {"o": {"my key": "x"}})]),
    "number": (call("alpha", pieces(piece("$.n", numberValue=7), **MORE)), [("alpha", {"n": 7})]),
    "bool": (call("alpha", pieces(piece("$.f", boolValue=False), **MORE)), [("alpha", {"f": False})]),
    "null": (call("alpha", pieces(piece("$.z", nullValue="NULL_VALUE"), **MORE)), [("alpha", {"z": None})]),
    "string and number": (
        call("alpha", *text("$.a", "x"), pieces(piece("$.n", numberValue=0.5), **MORE)),
        [("alpha", {"a": "x", "n": 0.5})],
    ),
    "end that carries data": (
        [{"name": "alpha", **MORE}, pieces(piece("$.a", stringValue="one two"))],
        ONE,
    ),
    "first that carries data": (
        [
            {"name": "alpha", **pieces(piece("$.a", stringValue="one ", willContinue=True)), **MORE},
            *text("$.a", "two"),
            END,
        ],
        ONE,
    ),
    "whole": ([{"name": "alpha", "args": {"a": "one two"}}], ONE),
    "whole without args": ([{"name": "alpha"}], [("alpha", {})]),
    "whole in pieces": ([{"name": "alpha", **pieces(piece("$.a", stringValue="one two"))}], ONE),
    "odd characters": (call("alpha", *text("$.a", ODD[:13], ODD[13:])), [("alpha", {"a": ODD})]),
    "empty string": (call("alpha", *text("$.a")), [("alpha", {"a": ""})]),
    "empty object": (call("alpha", pieces(piece("$.o"), **MORE)), [("alpha", {"o": {}})]),
    "empty array": (call("alpha", pieces(piece("$.items"), **MORE)), [("alpha", {"items": []})]),
    "dollar key": (call("alpha", *text("$.o['$ref']", "x")), [("alpha", {"o": {"$ref": "x"}})]),
    "two of one tool": (
        call("alpha", *text("$.a", "x")) + call("alpha", *text("$.a", "y")),
        [("alpha", {"a": "x"}), ("alpha", {"a": "y"})],
    ),
    "two of two tools": (
        call("alpha", *text("$.a", "x")) + call("beta", *text("$.b", "y")),
        [("alpha", {"a": "x"}), ("beta", {"b": "y"})],
    ),
    "A ends with data, then B": (
        [{"name": "alpha", **MORE}, pieces(piece("$.a", stringValue="x")), *call("beta", *text("$.b", "y"))],
        [("alpha", {"a": "x"}), ("beta", {"b": "y"})],
    ),
    "streamed A and whole B": (
        [*call("alpha", *text("$.a", "x")), {"name": "beta", "args": {"b": "y"}}],
        [("alpha", {"a": "x"}), ("beta", {"b": "y"})],
    ),
    "streamed A and whole A": (
        [*call("alpha", *text("$.a", "x")), {"name": "alpha", "args": {"a": "y"}}],
        [("alpha", {"a": "x"}), ("alpha", {"a": "y"})],
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES)
async def test_gemini_shapes(shape: str, path: str, cs: Callstream, models: Models) -> None:
    ran: list[tuple[str, dict[str, Any]]] = []

    def alpha(
        a: str = "-", b: str = "-", o: dict[str, Any] | None = None, items: list[str] | None = None,
        n: float = -1, f: bool = True, z: str | None = "-",
    ) -> int:  # fmt: skip
        given = {"a": (a, "-"), "b": (b, "-"), "o": (o, None), "items": (items, None), "n": (n, -1), "f": (f, True)}
        args = {name: value for name, (value, default) in given.items() if value != default}
        ran.append(("alpha", args if z == "-" else {**args, "z": z}))
        return len(ran)

    def beta(b: str) -> int:
        ran.append(("beta", {"b": b}))
        return len(ran)

    function_calls, expected = SHAPES[shape]
    stop = {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"}]}
    done = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Done."}]}, "finishReason": "STOP"}]}
    async with RawProvider("gemini", [[*map(chunk, function_calls), stop], [done]]) as provider:
        host = Host(cs, agent_of(models(provider, path), alpha, beta))
        events = await host.run()
    calls = await host.calls()
    assert [(made.name, made.args) for made in calls] == expected
    assert [(made.name, json.loads(await host.args_text(made.call_id))) for made in calls] == expected
    assert ran == expected
    assert {made.state for made in calls} == {CallState.COMPLETED}
    assert [given for given, _ in responses_in(events)] == [made.call_id for made in calls]
    assert [made.result for made in calls] == [{"result": number} for number in range(1, len(calls) + 1)]


@pytest.mark.parametrize("path", PATHS)
async def test_nameless_held(path: str, cs: Callstream, models: Models) -> None:
    """A call without a name is that of the one tool whose schema has all its places; else nothing runs."""
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
    (made,) = await host.calls()
    assert (made.name, made.args_json) == ("beta", '{"shared":"s","b":"y"' + "}" * (path == "tap"))
    # google-adk itself loses a call that never had a name, so on its partial events it cannot be completed.
    assert ran == (["beta y s"] if path == "tap" else [])
    assert made.state is (CallState.COMPLETED if path == "tap" else CallState.DISCARDED)
