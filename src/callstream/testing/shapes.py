"""The shapes in which arguments come: one list of them, for every wire.

Each shape says which calls a response has, and how a provider streams them: the order and size of the pieces, what the
first and the last piece of a call carry, and which calls come whole. Gemini sends values by path, the other wires send
JSON text, so a shape is written twice; the calls are the same. What a wire has no form for (two fields of one call that
alternate, in JSON text) comes there as its nearest.

::

    for shape in SHAPES:
        async with BodiesProvider(wire, shape.bodies(wire)) as provider:
            ...
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from callstream.testing.encoders import encode
from callstream.testing.encoders.encoder import dumps
from callstream.testing.script import Call, Finish, Parallel, Step, Text

FunctionCall: TypeAlias = dict[str, Any]
Frames: TypeAlias = list[bytes]
Carrying: TypeAlias = Literal["first", "last"]

_MORE = {"willContinue": True}
_END: FunctionCall = {}


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """``calls``: names and arguments that the tools are to be run with, in order.

    ``chunks``: Gemini's, each with one function call or several. ``steps``: the calls of the other wires.
    ``carrying``: the piece of the first call, beside those of its arguments alone, that carries some of them.
    """

    name: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    chunks: tuple[FunctionCall | tuple[FunctionCall, ...], ...]
    steps: tuple[Step, ...]
    carrying: Carrying | None = None

    def frames(self, wire: str, *, first_id: int = 1) -> Frames:
        """The server-sent events of the response."""
        if wire == "gemini":
            return _gemini(self.chunks)
        made = list(encode(wire, [*self.steps, Finish()], first_id=first_id))
        if self.carrying is None:
            return made
        return _MOVED[wire, self.carrying](made)

    def bodies(self, wire: str, text: str = "Done.") -> list[Frames]:
        """The response, and the one in which the model, told the results, ends its turn with a text."""
        return [self.frames(wire), list(encode(wire, [Text(text), Finish()], first_id=100))]


# -- Gemini: values by path --


def _gemini(chunks: tuple[FunctionCall | tuple[FunctionCall, ...], ...]) -> Frames:
    made: list[dict[str, Any]] = []
    for chunk in chunks:
        calls = chunk if isinstance(chunk, tuple) else (chunk,)
        made.append({"content": {"role": "model", "parts": [{"functionCall": call} for call in calls]}})
    made.append({"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"})
    # As Google does it, and google-genai needs it: no character that ends a line of Unicode.
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
    """A streamed call: its name, what comes between, and its end."""
    return [{"name": name, **_MORE}, *between, _END]


# -- the other wires: JSON text, with some of it where the wire's usual stream has none --


def _payload(frame: bytes) -> dict[str, Any]:
    line = next(line for line in frame.decode().split("\n") if line.startswith("data: "))
    return dict(json.loads(line.removeprefix("data: ")))


def _with_payload(frame: bytes, payload: dict[str, Any]) -> bytes:
    head, _, _ = frame.decode().partition("data: ")
    return f"{head}data: {dumps(payload)}\n\n".encode()


def _numbers(frames: Frames, *marks: str) -> list[int]:
    """Where the frames are that have all these texts in them."""
    return [number for number, frame in enumerate(frames) if all(mark.encode() in frame for mark in marks)]


def _merged(frames: Frames, taken: int, into: int, merge: Callable[[dict[str, Any], dict[str, Any]], None]) -> Frames:
    """Without the frame ``taken``, whose content ``merge`` puts into another."""
    target = _payload(frames[into])
    merge(_payload(frames[taken]), target)
    made = list(frames)
    made[into] = _with_payload(frames[into], target)
    del made[taken]
    return made


def _chat_first(frames: Frames) -> Frames:
    """The chunk that names the call has the first of its text."""
    head, first, *_ = _numbers(frames, '"tool_calls":[')

    def merge(taken: dict[str, Any], into: dict[str, Any]) -> None:
        function = into["choices"][0]["delta"]["tool_calls"][0]["function"]
        function["arguments"] += taken["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]

    return _merged(frames, first, head, merge)


def _chat_last(frames: Frames) -> Frames:
    """The last of the first call's text is in the chunk of what follows: another call's beginning, or the end."""
    last = _numbers(frames, '"tool_calls":[{"index":0')[-1]

    def merge(taken: dict[str, Any], into: dict[str, Any]) -> None:
        delta = into["choices"][0]["delta"]
        delta["tool_calls"] = [*taken["choices"][0]["delta"]["tool_calls"], *delta.get("tool_calls", ())]

    return _merged(frames, last, last + 1, merge)


def _responses_first(frames: Frames) -> Frames:
    """The item is announced with all of its arguments, and there is no delta."""
    added = _numbers(frames, '"response.output_item.added"')[0]
    made = list(frames)
    payload = _payload(made[added])
    payload["item"]["arguments"] = _payload(made[_numbers(made, "arguments.done")[0]])["arguments"]
    made[added] = _with_payload(made[added], payload)
    return [frame for number, frame in enumerate(made) if number not in _numbers(made, "arguments.delta")]


def _responses_last(frames: Frames) -> Frames:
    """The end of the arguments, which has all of them, brings what the deltas have not."""
    last = max(
        number for number in _numbers(frames, "arguments.delta") if number < _numbers(frames, "arguments.done")[0]
    )
    return [*frames[:last], *frames[last + 1 :]]


def _anthropic_first(frames: Frames) -> Frames:
    """No empty delta comes before the first of the text."""
    empty = _numbers(frames, '"partial_json":""')[0]
    return [*frames[:empty], *frames[empty + 1 :]]


def _anthropic_last(frames: Frames) -> Frames:
    """All of the first call's text is in the delta before the end of its block."""
    end = _numbers(frames, "content_block_stop")[0]
    deltas = [number for number in _numbers(frames, "input_json_delta") if number < end]
    whole = "".join(_payload(frames[number])["delta"]["partial_json"] for number in deltas)
    payload = _payload(frames[deltas[-1]])
    payload["delta"]["partial_json"] = whole
    return [*frames[: deltas[0]], _with_payload(frames[deltas[-1]], payload), *frames[end:]]


_MOVED: dict[tuple[str, Carrying], Callable[[Frames], Frames]] = {
    ("anthropic", "first"): _anthropic_first,
    ("anthropic", "last"): _anthropic_last,
    ("openai_chat", "first"): _chat_first,
    ("openai_chat", "last"): _chat_last,
    ("openai_responses", "first"): _responses_first,
    ("openai_responses", "last"): _responses_last,
}


# -- the list --

ODD = 'quote " newline \n emoji 🌊 separator \u2028 backslash \\'


def _one(name: str, args: dict[str, Any], *chunks: FunctionCall, size: int = 3, **rest: Any) -> Shape:
    """A shape with one call of the tool ``alpha``."""
    calls = (("alpha", args),)
    streamed = not rest.pop("whole", False)
    steps = (Call("alpha", args, size=size, streamed=streamed),)
    return Shape(name=name, calls=calls, chunks=chunks, steps=steps, **rest)


def _two(name: str, first: Call, second: Call, *chunks: FunctionCall, **rest: Any) -> Shape:
    calls = tuple((call.name, call.args) for call in (first, second))
    return Shape(name=name, calls=calls, chunks=chunks, steps=(first, second), **rest)


_AX, _AY, _BY = Call("alpha", {"a": "x"}, size=3), Call("alpha", {"a": "y"}, size=3), Call("beta", {"b": "y"}, size=3)
_WHOLE_AY, _WHOLE_BY = (msgspec.structs.replace(call, streamed=False) for call in (_AY, _BY))
_STREAMED_AX = called("alpha", *text("$.a", "x"))

SHAPES: tuple[Shape, ...] = (
    _one("one string", {"a": "one two"}, *called("alpha", *text("$.a", "one ", "two"))),
    _one("two strings", {"a": "x", "b": "y"}, *called("alpha", *text("$.a", "x"), *text("$.b", "y"))),
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
    _one("nested object", {"o": {"b": "x"}}, *called("alpha", *text("$.o.b", "x"))),
    _one("array item", {"items": ["x"]}, *called("alpha", *text("$.items[0]", "x"))),
    _one(
        "two array items",
        {"items": ["x", "y"]},
        *called("alpha", *text("$.items[0]", "x"), *text("$.items[1]", "y")),
    ),
    _one("quoted key", {"o": {"my key": "x"}}, *called("alpha", *text("$.o['my key']", "x"))),
    _one("number", {"n": 7}, *called("alpha", pieces(piece("$.n", numberValue=7), **_MORE))),
    _one("bool", {"f": False}, *called("alpha", pieces(piece("$.f", boolValue=False), **_MORE))),
    _one("null", {"z": None}, *called("alpha", pieces(piece("$.z", nullValue="NULL_VALUE"), **_MORE))),
    _one(
        "string and number",
        {"a": "x", "n": 0.5},
        *called("alpha", *text("$.a", "x"), pieces(piece("$.n", numberValue=0.5), **_MORE)),
    ),
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
    _one("whole call", {"a": "one two"}, {"name": "alpha", "args": {"a": "one two"}}, whole=True),
    _one("whole call without arguments", {}, {"name": "alpha"}, whole=True),
    _one(
        "whole call in one piece",
        {"a": "one two"},
        {"name": "alpha", **pieces(piece("$.a", stringValue="one two"))},
        size=1000,
    ),
    _one("odd characters", {"a": ODD}, *called("alpha", *text("$.a", ODD[:13], ODD[13:])), size=1),
    _one("empty string", {"a": ""}, *called("alpha", *text("$.a"))),
    _one("empty object", {"o": {}}, *called("alpha", pieces(piece("$.o"), **_MORE))),
    _one("empty array", {"items": []}, *called("alpha", pieces(piece("$.items"), **_MORE))),
    _one("key $ref", {"o": {"$ref": "x"}}, *called("alpha", *text("$.o['$ref']", "x"))),
    _two("two calls of one tool", _AX, _AY, *_STREAMED_AX, *called("alpha", *text("$.a", "y"))),
    _two("two calls of two tools", _AX, _BY, *_STREAMED_AX, *called("beta", *text("$.b", "y"))),
    _two(
        "A's last piece carries data, then B",
        _AX,
        _BY,
        {"name": "alpha", **_MORE},
        pieces(piece("$.a", stringValue="x")),
        *called("beta", *text("$.b", "y")),
        carrying="last",
    ),
    _two("streamed A, whole B", _AX, _WHOLE_BY, *_STREAMED_AX, {"name": "beta", "args": {"b": "y"}}),
    _two("streamed A, whole A", _AX, _WHOLE_AY, *_STREAMED_AX, {"name": "alpha", "args": {"a": "y"}}),
    Shape(
        name="two calls at once",
        calls=(("alpha", {"a": "x"}), ("beta", {"b": "y"})),
        chunks=(({"name": "alpha", "args": {"a": "x"}}, {"name": "beta", "args": {"b": "y"}}),),
        steps=(Parallel([_AX, _BY]),),
    ),
)


class ShapeTools:
    """The tools that the calls of ``SHAPES`` name. Each result is the number of its call, so that it tells whose it is.

    ``ran``: what was run, with the arguments that were given.
    """

    def __init__(self) -> None:
        self.ran: list[tuple[str, dict[str, Any]]] = []

    def _run(self, name: str, given: dict[str, tuple[Any, Any]]) -> int:
        self.ran.append((name, {key: value for key, (value, default) in given.items() if value != default}))
        return len(self.ran)

    def functions(self) -> list[Callable[..., int]]:
        def alpha(  # noqa: PLR0917  # a model gives them by name
            a: str = "-",
            b: str = "-",
            o: dict[str, Any] | None = None,
            items: list[str] | None = None,
            n: float = -1,
            f: bool = True,
            z: str | None = "-",
        ) -> int:
            """Takes anything."""
            given = {"a": (a, "-"), "b": (b, "-"), "o": (o, None), "items": (items, None), "n": (n, -1), "f": (f, True)}
            return self._run("alpha", {**given, "z": (z, "-")})

        def beta(b: str) -> int:
            """Takes a string."""
            return self._run("beta", {"b": (b, "-")})

        return [alpha, beta]
