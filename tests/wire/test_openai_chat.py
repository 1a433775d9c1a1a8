from __future__ import annotations

from typing import Any

import pytest

from callstream.events import MessageStarted, ResponseEnded
from tests.decoding import Folded, calls, decode, ended, failure, only_call, reasoning, sse, text, whole
from tests.wire.payloads import called, choice, chunk, said, tool_calls

FINISH = said("tool_calls")


def read(*payloads: Any, done: bool = True) -> Any:
    return decode("openai_chat", sse(*payloads, done=done))


def found(*payloads: Any, done: bool = True) -> list[tuple[str, str | None, str]]:
    """Name, id and completed arguments of each call."""
    return [(call.name, call.provider_id, call.args_json or call.outcome) for call in calls(read(*payloads, done=done))]


def test_text_reasoning_and_a_call() -> None:
    usage = {"completion_tokens": 5}
    events = read(
        said(role="assistant", content=""),
        said(reasoning_content="Hm."),
        said(content="I look."),
        tool_calls(called("", "f", "call_1", type="function")),
        tool_calls(called('{"a"')),
        tool_calls(called(": 1}")),
        FINISH,
        chunk(usage=usage),
    )
    assert (reasoning(events), text(events)) == ("Hm.", "I look.")
    assert only_call(events) == Folded("f", "call_1", '{"a": 1}', '{"a": 1}', "completed", message_id="chatcmpl-1")
    assert ended(events) == [ResponseEnded("tool_calls", usage)]


# -- which call a delta belongs to --


def test_interleaved_by_index() -> None:
    assert found(
        tool_calls(called("", "a", "1", 0), called("", "b", "2", 1)),
        tool_calls(called('{"x":', index=0), called('{"y":', index=1)),
        tool_calls(called("2}", index=1)),
        tool_calls(called("1}", index=0)),
        FINISH,
    ) == [("a", "1", '{"x":1}'), ("b", "2", '{"y":2}')]


@pytest.mark.parametrize("index", [None, -1, 0, 1, "0"])
def test_index_missing_negative_from_one_or_the_same_for_all(index: Any) -> None:
    assert found(
        tool_calls(called('{"x"', "a", "1", index)),
        tool_calls(called(":1}", index=index)),
        tool_calls(called("", "a", "2", index)),
        tool_calls(called("{}", index=index)),
        tool_calls(called("{}", "b", "3", index)),
        FINISH,
    ) == [("a", "1", '{"x":1}'), ("a", "2", "{}"), ("b", "3", "{}")]


@pytest.mark.parametrize("later_id", ["1", "", " ", "null", None])
@pytest.mark.parametrize("later_name", ["a", "", None])
@pytest.mark.parametrize("later_index", [0, None])
def test_id_and_name_repeated_empty_or_left_out(later_id: Any, later_name: Any, later_index: Any) -> None:
    later = {"id": later_id, "index": later_index, "function": {"name": later_name, "arguments": ""}}
    texts = ['{"x"', ':{"y":', "1}", "}"]
    payloads = [tool_calls(later | {"function": {"name": later_name, "arguments": part}}) for part in texts]
    assert found(tool_calls(called("", "a", "1")), *payloads, tool_calls(later), FINISH) == [
        ("a", "1", '{"x":{"y":1}}')
    ]


def test_id_repeated_without_its_index_still_tells() -> None:
    assert found(
        tool_calls(called("", "a", "1", 0), called("", "b", "2", 1)),
        tool_calls(called('{"x":1}', None, "1", None)),
        tool_calls(called('{"y":2}', "b", "2", None)),
        FINISH,
    ) == [("a", "1", '{"x":1}'), ("b", "2", '{"y":2}')]


@pytest.mark.parametrize("name", ["a", None])
def test_id_that_changes_with_every_delta(name: str | None) -> None:
    later = ['"x":{"y":1', "}", "}"]
    assert found(
        tool_calls(called('{"w":0,', "a", "first")),
        *(tool_calls(called(part, name, f"id_{number}")) for number, part in enumerate(later)),
        FINISH,
    ) == [("a", "first", '{"w":0,"x":{"y":1}}')]


def test_index_that_does_not_fit_the_id_or_the_head_of_the_call() -> None:
    # Seen behind gateways: the head of a second call under the first one's index, its tail under one of its own.
    heads = [tool_calls(called('{"x":1}', "a", "1", 0)), tool_calls(called('{"y"', "b", "2", 0))]
    expected = [("a", "1", '{"x":1}'), ("b", "2", '{"y":2}')]
    assert found(*heads, tool_calls(called(":2}", index=1)), FINISH) == expected
    assert found(*heads, tool_calls(called(":2}", None, "2", 1)), FINISH) == expected
    # A call that has all its text does not go on: this is one without a name.
    events = read(heads[0], tool_calls(called("{}", index=1)), FINISH)
    assert only_call(events).args == {"x": 1}
    assert any(getattr(event, "reason", None) == "malformed" for event in events)


def test_id_used_twice_is_two_calls() -> None:
    assert found(
        tool_calls(called('{"x":1}', "a", "0", 0)),
        tool_calls(called('{"y":2}', "b", "0", 1)),
        FINISH,
    ) == [("a", "0", '{"x":1}'), ("b", "0", '{"y":2}')]


def test_whole_calls_without_ids() -> None:
    assert found(
        tool_calls(called('{"x":1}', "a", index=None)),
        tool_calls(called('{"x":2}', "a", index=None)),
        tool_calls(called("{}", "b", index=None), called("{}", "b", index=None)),
        FINISH,
    ) == [("a", None, '{"x":1}'), ("a", None, '{"x":2}'), ("b", None, "{}"), ("b", None, "{}")]


def test_index_written_as_text_tells_interleaved_calls_apart() -> None:
    assert found(
        tool_calls(called("", "a", "1", index="0"), called("", "b", "2", index="1")),
        tool_calls(called('{"x":', index="0"), called('{"y":', index="1")),
        tool_calls(called("1}", index="0"), called("2}", index="1")),
        FINISH,
    ) == [("a", "1", '{"x":1}'), ("b", "2", '{"y":2}')]
    assert found(tool_calls(called("{", "a", "1", index="")), tool_calls(called("}", index="")), FINISH) == [
        ("a", "1", "{}")
    ]


def test_name_that_comes_after_arguments() -> None:
    events = read(tool_calls(called('{"a":', call_id="1")), tool_calls(called("1}", "f")), FINISH)
    assert (only_call(events).name, only_call(events).text) == ("f", '{"a":1}')


def test_nameless_call_is_never_started() -> None:
    events = read(tool_calls(called("{}", call_id="1")), FINISH)
    assert calls(events) == []
    assert [event.detail for event in events if hasattr(event, "detail")] == ["the call never got a name"]


def test_empty_and_null_tool_calls_are_nothing() -> None:
    bare = chunk({"index": 0, "finish_reason": None}, choice(None))
    events = read(said(tool_calls=[], content="Hi"), said(tool_calls=None), bare, said("stop"))
    assert (text(events), calls(events)) == ("Hi", [])


def test_name_that_comes_after_the_end_starts_nothing() -> None:
    late = tool_calls(called("", "f"))
    assert found(tool_calls(called('{"a": 1}')), FINISH, late) == []


def test_delta_without_start_opens_the_call_that_its_name_attributes() -> None:
    assert found(tool_calls({"function": {"name": "f", "arguments": "{}"}}), FINISH) == [("f", None, "{}")]


def test_numeric_ids() -> None:
    events = read(chunk(choice({"tool_calls": [called("{}", "f", None) | {"id": 7}]}), id=12), FINISH)
    assert only_call(events).provider_id == "7"


# -- arguments --


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"a": [1]}, '{"a":[1]}'), ({}, "{}"), (None, "{}"), ("", "{}"), (" \n", " \n{}"), ("null", "null")],
)
def test_arguments_as_object_null_or_blank(arguments: Any, expected: str) -> None:
    function = {"name": "f", "arguments": arguments}
    assert found(tool_calls({"index": 0, "id": "1", "function": function}), FINISH) == [("f", "1", expected)]


def test_function_missing_in_a_delta() -> None:
    assert found(tool_calls(called("{}", "f", "1")), tool_calls({"index": 0}), FINISH) == [("f", "1", "{}")]


def test_legacy_function_call() -> None:
    deltas = [{"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
    payloads = [said(function_call=delta) for delta in deltas]
    assert found(*payloads, said("function_call")) == [("f", None, '{"a":1}')]


def test_custom_tool_text() -> None:
    def custom(text: str, **more: Any) -> Any:
        return tool_calls({"index": 0, "custom": {"input": text, **more}, "type": "custom"})

    start = tool_calls({"index": 0, "id": "1", "type": "custom", "custom": {"name": "sql", "input": ""}})
    deltas = [start, custom('SELECT "a'), custom('\n" FROM b')]
    call = only_call(read(*deltas, FINISH))
    assert (call.encoding, call.text, call.args) == ("text", 'SELECT "a\n" FROM b', 'SELECT "a\n" FROM b')
    assert only_call(read(*deltas, said("length"))).outcome == "truncated"
    assert only_call(read(*deltas)).outcome == "truncated"


# -- ends --


@pytest.mark.parametrize(
    "finish", ["tool_calls", "stop", "function_call", "STOP", "TOOL_CALL", "tool-calls", "end_turn", "eos"]
)
def test_blank_arguments_complete_as_empty_object_at_a_normal_end(finish: str) -> None:
    assert found(tool_calls(called("", "f", "1")), said(finish)) == [("f", "1", "{}")]
    assert found(tool_calls(called("", "f", "1"), finish=finish), done=False) == [("f", "1", "{}")]


@pytest.mark.parametrize("finish", ["length", "content_filter", "max_tokens", "insufficient_system_resource", "abort"])
@pytest.mark.parametrize("cut_text", ["", '{"a": "b', '{"a": 1}'])
def test_abnormal_finish_truncates(finish: str, cut_text: str) -> None:
    call = only_call(read(tool_calls(called(cut_text, "f", "1")), said(finish)))
    assert (call.outcome, call.detail) == ("truncated", f"finish_reason {finish}")


def test_native_finish_reason_is_the_true_one() -> None:
    # OpenRouter says tool_calls though the model behind it was cut.
    for native, outcome in (
        ("max_output_tokens", "truncated"),
        ("MAX_TOKENS", "truncated"),
        ("MALFORMED_FUNCTION_CALL", "malformed"),
        ("STOP", "completed"),
    ):
        last = chunk(choice({}, "tool_calls", native_finish_reason=native))
        assert only_call(read(tool_calls(called("{}", "f", "1")), last)).outcome == outcome


def test_calls_before_the_one_that_the_length_limit_cut() -> None:
    calls_of = [tool_calls(called('{"x":1}', "a", "1", 0)), tool_calls(called('{"y":', "b", "2", 1))]
    assert found(*calls_of, said("length")) == [("a", "1", '{"x":1}'), ("b", "2", "truncated")]
    # A filter that stops the response speaks against all of it.
    assert found(*calls_of, said("content_filter")) == [("a", "1", "truncated"), ("b", "2", "truncated")]
    # What is not whole is not finished by the next call either.
    assert found(tool_calls(called("", "a", "1", 0)), calls_of[1], said("length")) == [
        ("a", "1", "truncated"),
        ("b", "2", "truncated"),
    ]


def test_no_finish_reason_but_the_sentinel() -> None:
    assert found(tool_calls(called("{}", "f", "1"))) == [("f", "1", "{}")]
    assert found(tool_calls(called("", "f", "1"))) == [("f", "1", "truncated")]
    assert found(tool_calls(called('{"a', "f", "1"))) == [("f", "1", "truncated")]


def test_neither_finish_reason_nor_sentinel() -> None:
    call = only_call(read(tool_calls(called("{}", "f", "1")), done=False))
    assert (call.outcome, call.detail) == ("truncated", "the stream ended without a finish reason")


def test_text_generation_inference_ends_with_its_body() -> None:
    first, last = tool_calls(called('{"a"', "f", "0")), tool_calls(called(":1}", "f", "0"))
    tgi = {"id": "", "system_fingerprint": "3.0.1-sha-bb9095a"}
    assert found(first | tgi, last | tgi, done=False) == [("f", "0", '{"a":1}')]
    assert found(first | tgi, done=False) == [("f", "0", "truncated")]
    other = {"id": "", "system_fingerprint": "fp_1"}
    assert found(first | other, last | other, done=False) == [("f", "0", "truncated")]


def test_finish_repeated_usage_after_it_and_sentinel_twice() -> None:
    body = sse(tool_calls(called("{}", "f", "1")), FINISH, FINISH, said(content=""), chunk(usage={"a": 1}), done=True)
    events = decode("openai_chat", body + b"data: [DONE]\n\n")
    assert only_call(events).outcome == "completed"
    assert ended(events) == [ResponseEnded("tool_calls", {"a": 1})]
    late = decode("openai_chat", body + sse(chunk(usage={"a": 2})))
    assert len(ended(late)) == 1


def test_each_call_with_a_finish_reason_of_its_own() -> None:
    assert found(
        tool_calls(called('{"x":1}', "a", "1"), finish="tool_calls"),
        tool_calls(called('{"x":2}', "a", "2"), finish="tool_calls"),
        tool_calls(called("{}", "a", index=0), finish="tool_calls"),
    ) == [("a", "1", '{"x":1}'), ("a", "2", '{"x":2}'), ("a", None, "{}")]


def test_arguments_after_the_finish_are_an_error() -> None:
    body = sse(tool_calls(called("{}", "f", "1")), FINISH, tool_calls(called("{}")))
    _, error = failure("openai_chat", body)
    assert error == "expected no more arguments after the end of call '1', got '{}'"


def test_several_choices() -> None:
    def at(index: int, *deltas: Any, finish: str | None = None) -> Any:
        return chunk(choice({"tool_calls": list(deltas)}, finish, index))

    events = read(
        at(0, called("", "f", "1")),
        at(1, called("", "f", "1")),
        at(1, called('{"b":2}')),
        at(0, called('{"a":')),
        at(1, finish="tool_calls"),
        at(0, called("1}")),
        at(0, finish="length"),
    )
    assert [(call.provider_id, call.text, call.outcome) for call in calls(events)] == [
        ("1", '{"a":1}', "truncated"),
        ("1", '{"b":2}', "completed"),
    ]
    messages = [event.message_id for event in events if isinstance(event, MessageStarted)]
    assert messages == ["chatcmpl-1", "chatcmpl-1~2"]
    assert [call.message_id for call in calls(events)] == messages


def test_responses_that_follow_each_other() -> None:
    first = [tool_calls(called("{}", "f", "1")), FINISH]
    second = [payload | {"id": "chatcmpl-2"} for payload in (said(role="assistant"), *first)]
    for body in (sse(*first, done=True) + sse(*second, done=True), sse(*first, *second, done=True)):
        events = decode("openai_chat", body)
        assert [call.message_id for call in calls(events)] == ["chatcmpl-1", "chatcmpl-2"]
        assert len(ended(events)) == 2


def test_chunk_ids_that_change_all_the_time() -> None:
    payloads = [tool_calls(called("", "f", "1")), tool_calls(called("{}")), FINISH, said(content="")]
    events = read(*(payload | {"id": f"c{number}"} for number, payload in enumerate(payloads)))
    assert only_call(events).outcome == "completed"
    assert len(ended(events)) == 1


# -- what else a delta holds --


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_under_each_of_its_names(field: str) -> None:
    details = [{"type": "reasoning.text", "text": "Hm."}]
    assert reasoning(read(said(**{field: "Hm."}, reasoning_details=details), said("stop"))) == "Hm."
    assert reasoning(read(said(**{field: {"odd": 1}}), said("stop"))) == ""


def test_content_in_parts_and_refusals() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}, {"type": "other"}, "odd"]}
    content = [thinking, {"type": "text", "text": "Hi"}, {"type": "image"}, "odd"]
    events = read(said(content=content), said(content={"odd": 1}), said(refusal="No."), said("stop", refusal={}))
    assert (reasoning(events), text(events)) == ("Hm.", "HiNo.")


def test_azure_filter_chunk_and_comments() -> None:
    first = {"choices": [], "id": "", "model": "", "prompt_filter_results": [{"prompt_index": 0}]}
    filtered = chunk(choice({}, None, content_filter_results={"hate": {"filtered": False}}))
    body = b": OPENROUTER PROCESSING\n\n" + sse(first, filtered, tool_calls(called("{}", "f", "1")), FINISH, done=True)
    assert only_call(decode("openai_chat", body)).outcome == "completed"
    assert len(ended(decode("openai_chat", sse(first, done=True)))) == 1


# -- errors --


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"error": {"message": "no", "type": "server_error", "code": 500}}, "the provider reported server_error: no"),
        ({"error": {"code": 502, "message": "no"}, "choices": [choice({}, "error")]}, "the provider reported 502: no"),
        ({"error": "no"}, "the provider reported an error: no"),
        ({"error": {"odd": 1}}, "the provider reported an error: {'odd': 1}"),
        ({"error": {"message": "no"}, "choices": {}}, "the provider reported an error: no"),
        ({"object": "error", "message": "no", "type": "BadRequest"}, "the provider reported an error: no"),
        ({"message": "no", "statusCode": 429}, "the provider reported an error: no"),
        ({"detail": "no"}, "the provider reported an error: no"),
        (chunk(x_groq={"id": "req_1", "error": "no"}), "the provider reported an error: no"),
        (chunk(choice({}, "error", error={"message": "no", "code": 1})), "the provider reported 1: no"),
    ],
)
def test_error_objects_in_the_stream(payload: Any, message: str) -> None:
    events, error = failure("openai_chat", sse(tool_calls(called('{"a', "f", "1")), payload, done=True))
    assert error == message
    assert (only_call(events).outcome, only_call(events).detail) == ("interrupted", message)


def test_falsy_errors_are_none() -> None:
    payload = tool_calls(called("{}", "f", "1"), finish="stop") | {"error": None, "x_groq": {"id": "req_1"}}
    assert found(payload, payload | {"error": "", "choices": []}, payload | {"error": {}, "choices": []}) == [
        ("f", "1", "{}")
    ]


# -- whole answers --


def answer(finish: str | None = "tool_calls", **message: Any) -> Any:
    return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {"a": 1}}


def test_whole_answer_same_calls() -> None:
    made = [called('{"a": 1}', "f", "1", None), called("", "g", "2", None)]
    custom = {"id": "3", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}}
    events = whole("openai_chat", answer(content="Hi", reasoning="Hm.", tool_calls=[*made, custom]))
    assert (reasoning(events), text(events)) == ("Hm.", "Hi")
    assert [(call.name, call.provider_id, call.args, call.outcome) for call in calls(events)] == [
        ("f", "1", {"a": 1}, "completed"),
        ("g", "2", {}, "completed"),
        ("sql", "3", "SELECT", "completed"),
    ]
    assert ended(events) == [ResponseEnded("tool_calls", {"a": 1})]
    legacy = whole("openai_chat", answer(function_call={"name": "f", "arguments": "{}"}))
    assert only_call(legacy).args == {}


@pytest.mark.parametrize(("finish", "outcome"), [("length", "truncated"), (None, "completed"), ("stop", "completed")])
def test_whole_answer_by_its_finish_reason(finish: str | None, outcome: str) -> None:
    assert only_call(whole("openai_chat", answer(finish, tool_calls=[called("{}", "f", "1")]))).outcome == outcome


def test_whole_answer_without_message_or_usage() -> None:
    events = whole("openai_chat", {"id": 1, "choices": [{"finish_reason": "stop"}]})
    assert events == [ResponseEnded("stop", None)]
