"""The shapes in which arguments come: one list, for every wire.

Each shape says which calls a response has, and how a provider streams them: the order and size of the pieces, what the
first and the last piece of a call carry, and which calls come whole. Gemini sends values by path, the other wires send
JSON text, so a shape that is not a plain one is written twice; the calls are the same. A shape that a wire cannot express
(two alternating fields of one call, in JSON text) is sent there in the nearest form.

::

    for shape in SHAPES:
        async with BodiesProvider(wire, shape.bodies(wire)) as provider:
            ...
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from callstream.testing.encoders import encode
from callstream.testing.encoders.gemini import GeminiEncoder
from callstream.testing.script import Carrying, Finish, Parallel, Step, Text, ToolCall, calls_of

FunctionCall: TypeAlias = dict[str, Any]
Frames: TypeAlias = list[bytes]

_MORE = {"willContinue": True}
_END: FunctionCall = {}


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """``calls``: the names and arguments with which tools have to be run, in order.

    ``chunks``: for Gemini, each with one function call or several. ``steps``: the calls for the other wires.
    """

    name: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    chunks: tuple[FunctionCall | tuple[FunctionCall, ...], ...]
    steps: tuple[Step, ...]

    @property
    def carrying(self) -> Carrying | None:
        """Which piece of the first call, besides the pure argument pieces, carries some of its arguments."""
        return calls_of(self.steps[0])[0].carrying

    def frames(self, wire: str, *, first_id: int = 1) -> Frames:
        """The server-sent events of the response."""
        if wire == "gemini":
            return _gemini(self.chunks)
        return list(encode(wire, [*self.steps, Finish()], first_id=first_id))

    def bodies(self, wire: str, text: str = "Done.") -> list[Frames]:
        """The response, and the next one after the results, in which the model ends its turn with a text."""
        return [self.frames(wire), list(encode(wire, [Text(text), Finish()], first_id=100))]


# -- Gemini: values by path --


def _gemini(chunks: tuple[FunctionCall | tuple[FunctionCall, ...], ...]) -> Frames:
    made: list[dict[str, Any]] = []
    for chunk in chunks:
        calls = chunk if isinstance(chunk, tuple) else (chunk,)
        made.append({"content": {"role": "model", "parts": [{"functionCall": call} for call in calls]}})
    made.append({"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"})
    # As Google does, and google-genai requires: no character that ends a line in Unicode.
    return [f"data: {json.dumps({'candidates': [candidate]})}\r\n\r\n".encode() for candidate in made]


def piece(path: str, **value: Any) -> dict[str, Any]:
    """One value, or a part of one."""
    return {"jsonPath": path, **value}


def pieces(*partial_args: dict[str, Any], **rest: Any) -> FunctionCall:
    """A chunk that carries values."""
    return {"partialArgs": list(partial_args), **rest}


def text(path: str, *parts: str) -> list[FunctionCall]:
    """A string in parts, and the empty part that ends it."""
    return [
        *(pieces(piece(path, stringValue=part, willContinue=True), **_MORE) for part in parts),
        pieces(piece(path, stringValue=""), **_MORE),
    ]


def called(name: str, *between: FunctionCall) -> list[FunctionCall]:
    """A streamed call: its name, the chunks between, and its end."""
    return [{"name": name, **_MORE}, *between, _END]


# -- the list --

ODD = 'quote " newline \n emoji 🌊 separator \u2028 backslash \\'


def _one(name: str, args: dict[str, Any], *chunks: FunctionCall, size: int = 3, **rest: Any) -> Shape:
    """A shape with one call of the tool ``alpha``."""
    return _made(name, ToolCall("alpha", args, size=size, **rest), chunks=chunks)


def _made(name: str, *calls: ToolCall, chunks: tuple[FunctionCall, ...] = ()) -> Shape:
    """A shape with these calls. Without ``chunks`` Gemini sends plain ones."""
    plain = tuple(chunk for call in calls for chunk in _plain(call))
    return Shape(name=name, calls=tuple((call.name, call.args) for call in calls), chunks=chunks or plain, steps=calls)


def _plain(call: ToolCall) -> list[FunctionCall]:
    """A call whose strings come in one piece, or that comes whole."""
    if not call.streamed:
        return [{"name": call.name, "args": call.args}]
    values = GeminiEncoder(None, 1).partial_args(call.args, (), None)
    return called(call.name, *(value | _MORE for value in values))


_AX, _AY, _BY = (
    ToolCall("alpha", {"a": "x"}, size=3),
    ToolCall("alpha", {"a": "y"}, size=3),
    ToolCall("beta", {"b": "y"}, size=3),
)
_WHOLE_AY, _WHOLE_BY = (msgspec.structs.replace(call, streamed=False) for call in (_AY, _BY))

SHAPES: tuple[Shape, ...] = (
    _one("one string", {"a": "one two"}, *called("alpha", *text("$.a", "one ", "two"))),
    _one("two strings", {"a": "x", "b": "y"}),
    _one(
        "interleaved a, b, a",
        {"a": "13", "b": "24"},
        *called(
            "alpha",
            pieces(piece("$.a", stringValue="1", willContinue=True), **_MORE),
            pieces(piece("$.b", stringValue="2", willContinue=True), **_MORE),
            pieces(piece("$.a", stringValue="3"), **_MORE),
            pieces(piece("$.b", stringValue="4"), **_MORE),
        ),
        size=1,
    ),
    _one("nested object", {"o": {"b": "x"}}),
    _one("array item", {"items": ["x"]}),
    _one("two array items", {"items": ["x", "y"]}),
    _one("quoted key", {"o": {"my key": "x"}}),
    _one("number", {"n": 7}),
    _one("bool", {"f": False}),
    _one("null", {"z": None}),
    _one("string and number", {"a": "x", "n": 0.5}),
    _one(
        "last piece carries data",
        {"a": "one two"},
        {"name": "alpha", **_MORE},
        pieces(piece("$.a", stringValue="one two")),
        carrying="last",
    ),
    _one(
        "first piece carries data",
        {"a": "one two"},
        {"name": "alpha", **pieces(piece("$.a", stringValue="one ", willContinue=True)), **_MORE},
        *text("$.a", "two"),
        _END,
        carrying="first",
    ),
    _one("whole call", {"a": "one two"}, streamed=False),
    _one("whole call without arguments", {}, {"name": "alpha"}, streamed=False),
    _one(
        "whole call in one piece",
        {"a": "one two"},
        {"name": "alpha", **pieces(piece("$.a", stringValue="one two"))},
        size=1000,
    ),
    _one("odd characters", {"a": ODD}, *called("alpha", *text("$.a", ODD[:13], ODD[13:])), size=1),
    _one("empty string", {"a": ""}),
    _one("empty object", {"o": {}}),
    _one("empty array", {"items": []}),
    _one("key $ref", {"o": {"$ref": "x"}}),
    _made("two calls of one tool", _AX, _AY),
    _made("two calls of two tools", _AX, _BY),
    _made(
        "A's last piece carries data, then B",
        msgspec.structs.replace(_AX, carrying="last"),
        _BY,
        chunks=({"name": "alpha", **_MORE}, pieces(piece("$.a", stringValue="x")), *_plain(_BY)),
    ),
    _made("streamed A, whole B", _AX, _WHOLE_BY),
    _made("streamed A, whole A", _AX, _WHOLE_AY),
    Shape(
        name="two calls at once",
        calls=(("alpha", {"a": "x"}), ("beta", {"b": "y"})),
        chunks=(({"name": "alpha", "args": {"a": "x"}}, {"name": "beta", "args": {"b": "y"}}),),
        steps=(Parallel([_AX, _BY]),),
    ),
)


class ShapeTools:
    """The tools that the calls of ``SHAPES`` name. Each result is the number of its call, which shows where it belongs.

    ``ran``: the tools that were run, with the arguments that were passed.
    """

    def __init__(self) -> None:
        self.ran: list[tuple[str, dict[str, Any]]] = []

    def functions(self) -> list[Callable[..., int]]:
        def alpha(  # noqa: PLR0917  # a model passes them by name
            a: str = "-",
            b: str = "-",
            o: dict[str, Any] | None = None,
            items: list[str] | None = None,
            n: float = -1,
            f: bool = True,
            z: str | None = "-",
        ) -> int:
            """Takes anything."""
            return self._run("alpha", a=a, b=b, o=o, items=items, n=n, f=f, z=z)

        def beta(b: str) -> int:
            """Takes a string."""
            return self._run("beta", b=b)

        return [alpha, beta]

    def _run(self, name: str, **arguments: Any) -> int:
        defaults = {"a": "-", "b": "-", "o": None, "items": None, "n": -1, "f": True, "z": "-"}
        self.ran.append((name, {key: value for key, value in arguments.items() if value != defaults[key]}))
        return len(self.ran)
