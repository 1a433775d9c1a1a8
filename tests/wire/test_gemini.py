from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.events import CallDiscarded, CallSigned, CallStarted, ResponseEnded
from callstream.wire import decoder_for
from tests.decoding import (
    Folded,
    bytewise,
    calls,
    decode,
    ended,
    failure,
    fed,
    only_call,
    reasoning,
    sse,
    text,
)
from tests.wire.payloads import function, generated, piece, pieces

END = generated(function())
STOP = generated(finish="STOP")


def read(*payloads: Any, **settings: Any) -> Any:
    return decode("gemini", sse(*payloads), **settings)


def found(*payloads: Any, **settings: Any) -> list[tuple[str, Any]]:
    """Name and completed arguments of each call."""
    events = read(*payloads, **settings)
    return [(call.name, call.args if call.args_json else call.outcome) for call in calls(events)]


def streamed(*parts: dict[str, Any], name: str = "f") -> list[dict[str, Any]]:
    """A streamed call as Vertex sends it: the name, one chunk a part, an empty end."""
    return [generated(function(name=name, more=True)), *(generated(part) for part in parts), END]


def string(path: str, *values: str) -> list[dict[str, Any]]:
    """A string in pieces, and the empty piece that ends it."""
    return [*(pieces(piece(path, value, more=True)) for value in values), pieces(piece(path, ""))]


AWKWARD = 'quote " newline \n emoji 😀 separator \u2028 backslash \\ tab \t end'

SHAPES: dict[str, tuple[list[dict[str, Any]], list[tuple[str, Any]]]] = {
    "one string": (streamed(*string("$.a", "Bos", "ton")), [("f", {"a": "Boston"})]),
    "two strings": (streamed(*string("$.a", "x"), *string("$.b", "y")), [("f", {"a": "x", "b": "y"})]),
    "interleaved a, b, a": (
        streamed(
            pieces(piece("$.a", "x", more=True)),
            pieces(piece("$.b", "1", more=True)),
            pieces(piece("$.a", "y")),
            pieces(piece("$.b", "2")),
        ),
        [("f", {"a": "xy", "b": "12"})],
    ),
    "nested name": (streamed(*string("$.a.b", "x")), [("f", {"a": {"b": "x"}})]),
    "array item": (streamed(*string("$.items[0]", "x")), [("f", {"items": ["x"]})]),
    "two array items": (
        streamed(*string("$.items[0]", "x"), *string("$.items[1]", "y")),
        [("f", {"items": ["x", "y"]})],
    ),
    "quoted key": (streamed(*string("$['my key']", "x")), [("f", {"my key": "x"})]),
    "number only": (streamed(pieces(piece("$.n", 3.0))), [("f", {"n": 3})]),
    "bool only": (streamed(pieces(piece("$.b", True))), [("f", {"b": True})]),
    "null only": (streamed(pieces(piece("$.z", None))), [("f", {"z": None})]),
    "string and number": (streamed(*string("$.s", "x"), pieces(piece("$.n", 0.5))), [("f", {"s": "x", "n": 0.5})]),
    "end chunk that carries data": (
        [generated(function(name="f", more=True)), generated(pieces(piece("$.a", "x"), more=None))],
        [("f", {"a": "x"})],
    ),
    "first chunk that carries data": (
        [generated(pieces(piece("$.a", "x", more=True), name="f")), *map(generated, string("$.a", "y")), END],
        [("f", {"a": "xy"})],
    ),
    "whole call in one chunk with args": ([generated(function(name="f", args={"a": [1]}))], [("f", {"a": [1]})]),
    "whole call in one chunk without args": ([generated(function(name="f"))], [("f", {})]),
    "whole call in one chunk of partialArgs": (
        [generated(pieces(piece("$.a", "x"), piece("$.n", 1), more=None, name="f"))],
        [("f", {"a": "x", "n": 1})],
    ),
    "awkward characters": (streamed(*string("$.a", AWKWARD[:21], AWKWARD[21:])), [("f", {"a": AWKWARD})]),
    "empty string": (streamed(pieces(piece("$.a", ""))), [("f", {"a": ""})]),
    "empty container": (streamed(pieces(piece("$.a"))), [("f", {"a": {}})]),
    "key that begins with a dollar": (streamed(*string("$['$ref']", "x")), [("f", {"$ref": "x"})]),
    "two parallel calls of one tool": (
        streamed(*string("$.a", "x")) + streamed(*string("$.a", "y")),
        [("f", {"a": "x"}), ("f", {"a": "y"})],
    ),
    "two calls of different tools": (
        streamed(*string("$.a", "x")) + streamed(*string("$.b", "y"), name="g"),
        [("f", {"a": "x"}), ("g", {"b": "y"})],
    ),
    "A ends with data, then B": (
        [
            generated(function(name="f", more=True)),
            generated(pieces(piece("$.a", "x"), more=False)),
            *streamed(*string("$.b", "y"), name="g"),
        ],
        [("f", {"a": "x"}), ("g", {"b": "y"})],
    ),
    "streamed A and whole B": (
        [*streamed(*string("$.a", "x")), generated(function(name="g", args={"b": 1}))],
        [("f", {"a": "x"}), ("g", {"b": 1})],
    ),
    "streamed A and whole A": (
        [*streamed(*string("$.a", "x")), generated(function(name="f", args={"a": "y"}))],
        [("f", {"a": "x"}), ("f", {"a": "y"})],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_gemini_shapes(shape: str) -> None:
    payloads, expected = SHAPES[shape]
    assert found(*payloads, STOP) == expected
    # All in one chunk with the finish, as a server may batch them, and as the JSON array that no alt=sse gives.
    parts = [part for payload in payloads for part in payload["candidates"][0]["content"]["parts"]]
    assert found(generated(*parts, finish="STOP")) == expected
    array = json.dumps([*payloads, STOP], indent=1).encode()
    events, error = fed(decoder_for("gemini"), bytewise(array))
    assert error is None
    assert [(call.name, call.args) for call in calls(events)] == expected


def test_text_thoughts_and_a_call_in_one_chunk() -> None:
    events = read(
        generated({"text": "Hm.", "thought": True}, {"text": "I look."}, function("c2ln", name="f", args={"n": 1})),
        generated({"text": "", "thoughtSignature": "other"}, finish="STOP", usageMetadata={"totalTokenCount": 5}),
    )
    assert (reasoning(events), text(events)) == ("Hm.", "I look.")
    assert only_call(events) == Folded(
        "f", None, '{"n":1}', '{"n":1}', "completed", signature="c2ln", message_id="resp-1"
    )
    assert ended(events) == [ResponseEnded("STOP", {"totalTokenCount": 5})]


def test_minted_ids_and_ids_that_the_wire_sent() -> None:
    numbers = iter(range(1, 100))
    payloads = sse(generated(function(name="f"), function(name="f", id="x"), function(name="f", id="x")), STOP)
    events, _ = fed(decoder_for("gemini", new_id=lambda: f"adk-{next(numbers)}"), [payloads])
    starts = [(event.call_id, event.provider_id) for event in events if isinstance(event, CallStarted)]
    assert starts == [("adk-1", None), ("x", "x"), ("x~2", "x")]


def test_server_side_parts_give_no_calls() -> None:
    others = [{"executableCode": {"code": "1"}}, {"toolCall": {"id": "1"}}, {"inlineData": {"data": "x"}}, {}]
    assert found(generated(*others), {"candidates": [{"content": {}}]}, {"candidates": [{}]}, STOP) == []


# -- which call a part belongs to --


def test_ids_tell_interleaved_calls_apart() -> None:
    def part(call_id: str, path: str, value: str) -> Any:
        return generated(pieces(piece(path, value), id=call_id))

    payloads = [
        generated(function(name="f", id="1", more=True)),
        generated(function(name="g", id="2", more=True)),
        part("1", "$.a", "x"),
        part("2", "$.b", "y"),
        generated(function(name="f", id="1")),
        generated(function(id="2")),
        STOP,
    ]
    assert found(*payloads) == [("f", {"a": "x"}), ("g", {"b": "y"})]


def test_part_with_another_id_is_not_the_open_call() -> None:
    payloads = [
        *streamed()[:1],
        generated(function(name="f", id="1", more=True)),
        generated(function(id="2", more=True)),
    ]
    assert found(*payloads, STOP) == [("f", {}), ("f", {})]
    other = generated(pieces(piece("$.a", "x"), id="2"))
    events = read(payloads[1], other, STOP)
    assert [event.reason for event in events if isinstance(event, CallDiscarded)] == ["malformed"]


def test_id_that_comes_later_is_of_the_open_call() -> None:
    assert found(generated(function(name="f", more=True)), generated(pieces(piece("$.a", "x"), id="1")), STOP) == [
        ("f", {"a": "x"})
    ]


def test_end_of_a_call_that_had_ended_is_nothing() -> None:
    assert found(END, generated(function(name="f", args={})), END, generated(function(more=True)), STOP) == [("f", {})]


def test_calls_without_an_end_between_them() -> None:
    # The second name begins a second call; the finish ends both.
    payloads = [generated(function(name="f", more=True)), generated(pieces(piece("$.a", "x")))]
    assert found(*payloads, *payloads, STOP) == [("f", {"a": "x"}), ("f", {"a": "x"})]


# -- names --

TOOLS = {
    "write": {"type": "OBJECT", "properties": {"title": {}, "body": {"type": "OBJECT", "properties": {"text": {}}}}},
    "read": {"type": "object", "properties": {"title": {"type": "string"}, "pages": {"items": {"type": "integer"}}}},
}


def test_nameless_held() -> None:
    """START waits until exactly one declared tool fits, and then all that waited follows."""
    start, title, page = (
        generated(function(more=True)),
        generated(pieces(piece("$.title", "x"))),
        generated(pieces(piece("$.pages[0]", 1))),
    )
    decoder = decoder_for("gemini", tools=TOOLS)
    assert calls(decoder.feed(sse(start, title))) == []
    events = decoder.feed(sse(page))
    assert [(call.name, call.text) for call in calls(events)] == [("read", '{"title":"x","pages":[1')]
    assert found(title, page, END, STOP, tools=TOOLS) == [("read", {"title": "x", "pages": [1]})]
    assert found(generated(function(args={"body": {}})), STOP, tools=TOOLS) == [("write", {"body": {}})]


def test_nameless_held_until_the_wire_names_it() -> None:
    title = generated(pieces(piece("$.title", "x")))
    named = generated(pieces(piece("$.b"), name="write"))
    for tools in (TOOLS, {}):
        assert found(title, named, END, STOP, tools=tools) == [("write", {"title": "x", "b": {}})]


def test_nameless_held_and_never_named_is_discarded() -> None:
    for last in (STOP, generated(finish="MAX_TOKENS")):
        events = read(generated(pieces(piece("$.title", "x"))), END, last, tools=TOOLS)
        assert calls(events) == []
        dropped = [event for event in events if isinstance(event, CallDiscarded)]
        assert [(event.reason, event.detail) for event in dropped] == [("malformed", "the call never got a name")]


def test_nameless_args_that_are_no_object_fit_nothing() -> None:
    events = read(generated(function(args=["x"], more=True)), STOP, tools=TOOLS)
    assert calls(events) == []


def test_empty_container_by_schema() -> None:
    tools = {"f": {"properties": {"a": {"type": "ARRAY"}}}}
    assert found(*streamed(pieces(piece("$.a"), piece("$.b"))), STOP, tools=tools) == [("f", {"a": [], "b": {}})]


# -- args that grow --


@pytest.mark.parametrize("name", ["f", None])
def test_accumulated_args(name: str | None) -> None:
    def args(value: Any, more: bool | None = True) -> Any:
        fields = {"args": value} | ({} if name is None else {"name": name})
        return generated(function(more=more, **fields))

    steps = [
        args({"a": "x"}),
        args({"a": "xy"}),
        args({"a": "xy", "n": 1}),
        args({"a": "xy", "n": 12, "l": [{}]}, None),
    ]
    first = generated(function(name="f", args={"a": ""}, more=True))
    assert found(first, *steps, STOP) == [("f", {"a": "xy", "n": 12, "l": [{}]})]
    events, error = failure("gemini", sse(first, *steps[:2], args({"a": "z"})))
    assert "expected arguments that only grow" in error
    assert only_call(events).outcome == "interrupted"


def test_accumulated_args_end_with_an_empty_part_or_the_finish() -> None:
    start = generated(function(name="f", args={"n": 1}, more=True))
    assert found(start, END, STOP) == [("f", {"n": 1})]
    assert found(start, STOP) == [("f", {"n": 1})]
    assert found(start) == [("f", "truncated")]


def test_args_and_partial_args_do_not_mix() -> None:
    start = generated(function(name="f", args={}, more=True, partialArgs=[piece("$.a", "x")]))
    assert found(start, END, STOP) == [("f", {"a": "x"})]
    for later in (
        [start, generated(function(args={"a": "x"}, more=True))],
        [generated(function(name="f", args={"a": "x"}, more=True, partialArgs=[piece("$.b", 1)]))],
    ):
        assert "expected args or partialArgs of call 'call_1', got both" in failure("gemini", sse(*later))[1]


# -- signatures --


def test_signatures_on_any_part_of_a_call() -> None:
    first = read(generated(function("one", name="f", more=True)), generated(function("one")), STOP)
    assert only_call(first).signature == "one"
    assert not any(isinstance(event, CallSigned) for event in first)
    later = read(generated(function(name="f", more=True)), generated(function("two", more=True)), END, STOP)
    assert only_call(later).signature == "two"
    after = read(generated(function(name="f", args={})), generated(function("three")), STOP)
    assert only_call(after).signature == "three"
    nameless = [
        generated(pieces(piece("$.a", 1))),
        generated(function("four", more=True)),
        generated(function(name="f")),
    ]
    assert [event.signature for event in read(*nameless, STOP) if isinstance(event, CallStarted)] == ["four"]
    assert calls(read(generated(function("six")), STOP)) == []
