"""How Gemini's calls and responses end, their values, errors and whole answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.events import CallCompleted, MessageStarted, ResponseEnded
from callstream.wire import decoder_for
from tests.decoding import (
    bytewise,
    calls,
    decode,
    ended,
    failure,
    only_call,
    outcome,
    reasoning,
    sse,
    text,
    whole,
)
from tests.wire.payloads import candidate, function, generated, piece, pieces
from tests.wire.test_gemini import SHAPES, STOP, found, read, streamed, string


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
        assert only_call(earlier).outcome == "malformed"
        followed = read(generated(*parts), generated({"text": "So."}), generated(finish="MALFORMED_FUNCTION_CALL"))
        assert only_call(followed).outcome == "completed"


def test_call_that_has_ended_before_a_continuation_is_complete() -> None:
    continued = generated(finish="CONTINUATION")
    assert found(generated(function(name="f", args={"a": 1})), continued) == [("f", {"a": 1})]
    assert only_call(read(generated(function(name="f", more=True)), continued)).outcome == "truncated"


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


def test_end_of_a_streamed_call_is_believed_as_soon_as_something_follows() -> None:
    decoder = decoder_for("gemini")
    assert only_call(decoder.feed(sse(*streamed(*string("$.a", "x"))))).outcome == "open"
    events = decoder.feed(sse(generated({"text": "So."})))
    assert isinstance(events[0], CallCompleted)
