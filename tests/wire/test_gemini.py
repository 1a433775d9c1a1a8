from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.events import CallCompleted, CallDiscarded, CallSigned, CallStarted, MessageStarted, ResponseEnded
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
    outcome,
    reasoning,
    sse,
    text,
    whole,
)
from tests.wire.payloads import candidate, function, generated, piece, pieces

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


# -- ends --


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("MAX_TOKENS", "truncated"),
        ("SAFETY", "truncated"),
        ("RECITATION", "truncated"),
        ("OTHER", "truncated"),
        ("MALFORMED_FUNCTION_CALL", "malformed"),
        ("UNEXPECTED_TOOL_CALL", "malformed"),
        ("TOO_MANY_TOOL_CALLS", "malformed"),
    ],
)
@pytest.mark.parametrize("parts", [[], [pieces(piece("$.a", "x", more=True))], [pieces(piece("$.a", "x"))]])
def test_call_that_is_open_at_an_abnormal_finish(finish: str, reason: str, parts: list[Any]) -> None:
    events = read(*streamed(*parts)[:-1], generated(finish=finish))
    assert (only_call(events).outcome, only_call(events).detail) == (reason, f"finishReason {finish}")
    assert [event.finish_reason for event in ended(events)] == [finish]


def test_call_that_comes_with_a_malformed_finish_is_malformed_however_whole_it_looks() -> None:
    for parts in ([function(name="f", args={"a": 1})], [pieces(piece("$.a", 1), more=None, name="f")]):
        call = only_call(read(generated(*parts, finish="MALFORMED_FUNCTION_CALL")))
        assert (call.text, call.outcome) == ('{"a":1}', "malformed")
        earlier = read(generated(*parts), generated(finish="MALFORMED_FUNCTION_CALL"))
        assert only_call(earlier).outcome == "completed"


def test_call_that_is_open_at_a_normal_finish_is_complete() -> None:
    assert found(generated(function(name="f", more=True)), STOP) == [("f", {})]
    assert found(generated(function(name="f", more=True), finish="STOP")) == [("f", {})]
    assert found(*streamed(pieces(piece("$.a", "x", more=True)))[:-1], STOP) == [("f", {"a": "x"})]


def test_call_that_is_open_at_the_end_of_the_body_is_truncated() -> None:
    events = read(*streamed(pieces(piece("$.a", "x")))[:-1])
    assert (only_call(events).outcome, only_call(events).detail) == (
        "truncated",
        "the stream ended without a finish reason",
    )
    assert found(*streamed(pieces(piece("$.a", "x")))) == [("f", {"a": "x"})]


def test_finish_on_every_chunk_and_chunks_after_it() -> None:
    unspecified = generated({"text": "a"}, finish="FINISH_REASON_UNSPECIFIED")
    payloads = [generated({"text": "b"}, finish="STOP"), generated(function(name="f", args={}), finish="STOP")]
    events = read(unspecified, *payloads, generated(usageMetadata={"a": 1}), generated(finish="MAX_TOKENS"))
    assert (text(events), only_call(events).outcome) == ("ab", "completed")
    assert ended(events) == [ResponseEnded("MAX_TOKENS", {"a": 1})]


def test_blocked_prompt() -> None:
    events = read({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"a": 1}})
    assert events == [ResponseEnded("SAFETY", {"a": 1})]
    assert read({"promptFeedback": {}, "responseId": "r"}) == [ResponseEnded(None, None)]


def test_several_candidates() -> None:
    def both(*parts: Any, finish: str | None = None) -> Any:
        return {"candidates": [candidate(part, finish=finish, index=index) for index, part in enumerate(parts)]}

    events = read(
        both(function(name="f", more=True), function(name="g", more=True)),
        both(pieces(piece("$.a", 1)), pieces(piece("$.b", 2))),
        {"candidates": [candidate(finish="STOP", index=1)]},
        {"candidates": [candidate(finish="MAX_TOKENS", index=0)]},
    )
    assert [(call.name, call.outcome) for call in calls(events)] == [("f", "truncated"), ("g", "completed")]
    assert len([event for event in events if isinstance(event, MessageStarted)]) == 2


def test_responses_that_follow_each_other() -> None:
    second = {"responseId": "resp-2"}
    payloads = [generated(function(name="f", args={}), finish="STOP"), STOP]
    events = read(*payloads, *(payload | second for payload in payloads))
    assert [call.message_id for call in calls(events)] == ["resp-1", "resp-2"]
    assert len(ended(events)) == 2
    # An id that changes in the middle of a response is no new response.
    events = read(
        *(payload | {"responseId": str(at)} for at, payload in enumerate(streamed(*string("$.a", "x")))), STOP
    )
    assert only_call(events).args == {"a": "x"}


# -- values --


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, "5"), (5.0, "5"), (-0.0, "0"), (0.1, "0.1"), (2**53 + 1, str(2**53 + 1)), (10**25, str(10**25))],
)
def test_numbers(value: float, expected: str) -> None:
    assert only_call(read(*streamed(pieces(piece("$.n", value))), STOP)).args_json == f'{{"n":{expected}}}'


def test_numbers_of_whole_args_stay_exact() -> None:
    body = b'data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"n":%d,"x":1.5}}}]}}]}\n\n'
    assert only_call(decode("gemini", body % 10**30)).args == {"n": 10**30, "x": 1.5}


def test_several_partial_args_in_one_part() -> None:
    entries = [piece("$.l[0].a", "x"), piece("$.l[0].b", True), piece("$.l[1].a", "y"), piece("$.m['x.y'][0]", None)]
    expected = {"l": [{"a": "x", "b": True}, {"a": "y"}], "m": {"x.y": [None]}}
    assert found(*streamed(pieces(*entries)), STOP) == [("f", expected)]


def test_halves_of_a_character_in_two_pieces_make_one() -> None:
    payloads = streamed(*string("$.a", "x\ud83d", "\ude00y"))
    for pieces_of in ([sse(*payloads, STOP)], bytewise(sse(*payloads, STOP))):
        events = outcome("gemini", pieces_of).events
        assert only_call(events).args == {"a": "x😀y"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("$.a[100000]", "array indices below 100000"),
        ("$" + ".a" * 300, "at most 256 steps"),
        ("a.b", "begins with $"),
        ("$.a[*]", "expected .name"),
        ("$.a[" + "9" * 40 + "]", "40 digits"),
    ],
)
def test_depth_and_size_limits_of_paths(path: str, message: str) -> None:
    events, error = failure("gemini", sse(*streamed(pieces(piece(path, "x"))), STOP))
    assert message in error
    assert only_call(events).outcome == "interrupted"


# -- errors, framing and whole answers --


def test_error_objects_in_the_stream() -> None:
    error_object = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    start = streamed(pieces(piece("$.a", "x")))[:-1]
    for body in (sse(*start, error_object), json.dumps([*start, error_object]).encode()):
        events, error = failure("gemini", body)
        assert error == "the provider reported UNAVAILABLE: The model is overloaded."
        assert only_call(events).outcome == "interrupted"
    _, error = failure("gemini", sse(generated({"text": "x"}, finish="STOP", error={"message": "no"})))
    assert error == "the provider reported an error: no"


@pytest.mark.parametrize("space", [b"", b"\r\n \t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n "])
def test_json_array_body(space: bytes) -> None:
    body = space + json.dumps([generated({"text": 'a "[{\\" b'}), *SHAPES["one string"][0], STOP], indent=2).encode()
    events = decode("gemini", body)
    assert (text(events), only_call(events).args) == ('a "[{\\" b', {"a": "Boston"})
    assert text(decode("gemini", body[: len(body) // 2])) == 'a "[{\\" b'


def test_whole_answer_same_calls() -> None:
    answer = generated(
        {"text": "Hm.", "thought": True},
        {"text": "Hi"},
        function("c2ln", name="f", args={"a": "x"}),
        function(name="g"),
        finish="STOP",
    )
    events = whole("gemini", answer)
    assert (reasoning(events), text(events)) == ("Hm.", "Hi")
    assert [(call.name, call.args, call.signature) for call in calls(events)] == [
        ("f", {"a": "x"}, "c2ln"),
        ("g", {}, None),
    ]
    assert ended(events) == [ResponseEnded("STOP", None)]
    assert [call.outcome for call in calls(read(*streamed(*string("$.a", "x")), STOP))] == ["completed"]


def test_end_of_a_streamed_call_is_seen_at_once() -> None:
    decoder = decoder_for("gemini")
    events = decoder.feed(sse(*streamed(*string("$.a", "x"))))
    assert isinstance(events[-1], CallCompleted)
