"""How calls and responses of Chat Completions end, errors and whole answers."""

from __future__ import annotations

from typing import Any

import pytest

from callstream.events import CallDiscarded, MessageStarted, ResponseEnded
from tests.decoding import calls, decode, ended, failure, only_call, reasoning, sse, text, whole
from tests.wire.payloads import called, choice, chunk, said, tool_calls
from tests.wire.test_openai_chat import FINISH, found, read


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


def test_a_call_that_never_gets_a_name_does_not_run_though_its_text_is_whole() -> None:
    for ends in ([], [said("stop")], [tool_calls(called("", "b", "2", 1)), said("length")]):
        events = read(tool_calls(called('{"a":1}', None, "1")), *ends)
        [discarded] = [event for event in events if isinstance(event, CallDiscarded) and event.call_id == "1"]
        assert (discarded.reason, discarded.detail) == ("malformed", "the call never got a name")


def test_a_name_that_may_go_on_is_the_name_at_the_sentinel() -> None:
    body = sse(tool_calls(called("", "write", "1")), done=True)
    call = only_call(decode("openai_chat", body, tools={"write_document": {}}))
    assert (call.name, call.outcome) == ("write", "truncated")


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
    assert error == "expected no more arguments after the end of call '1', got 2 characters more"


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
