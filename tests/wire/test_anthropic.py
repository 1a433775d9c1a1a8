from __future__ import annotations

from typing import Any

import pytest

from callstream.events import MessageStarted, ResponseEnded
from tests.decoding import calls, decode, ended, failure, only_call, reasoning, sse, text, whole
from tests.wire.payloads import (
    MESSAGE_STOP,
    block_start,
    block_stop,
    message,
    message_delta,
    message_start,
    partial_json,
    text_delta,
    tool_use,
)


def read(*payloads: Any) -> Any:
    return decode("anthropic", sse(*payloads, event=True))


def test_text_thinking_and_a_call() -> None:
    events = read(
        *message(
            block_start(0, type="thinking", thinking="Hm"),
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": ", yes."}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
            block_stop(0),
            block_start(1, type="redacted_thinking", data="secret"),
            block_stop(1),
            block_start(2, type="text", text="I "),
            {"type": "ping"},
            text_delta("look.", 2),
            block_stop(2),
            tool_use(3),
            partial_json("", 3),
            partial_json('{"a"', 3),
            partial_json(": 1}", 3),
            block_stop(3),
        )
    )
    assert reasoning(events) == "Hm, yes."
    assert text(events) == "I look."
    call = only_call(events)
    assert (call.name, call.provider_id, call.args_json, call.message_id) == ("f", "toolu_1", '{"a": 1}', "msg_1")
    assert ended(events) == [ResponseEnded("tool_use", {"input_tokens": 9, "output_tokens": 5})]


def test_server_side_blocks_give_no_calls() -> None:
    blocks = ["server_tool_use", "mcp_tool_use", "web_search_tool_result", "container_upload", "a_newer_one"]
    payloads = [
        event
        for index, kind in enumerate(blocks)
        for event in (
            block_start(index, type=kind, id=f"srv_{index}", name="web_search", input={}),
            partial_json('{"query": "x"}', index),
            block_stop(index),
        )
    ]
    events = read(*message(*payloads, tool_use(9), partial_json("{}", 9), block_stop(9)))
    assert [call.provider_id for call in calls(events)] == ["toolu_1"]


def test_programmatic_call_brings_its_input_with_the_start() -> None:
    given = {"city": "Zürich", "n": 12345678901234567890123}
    assert only_call(read(*message(tool_use(given=given), block_stop()))).args == given
    # Compatible servers leave out the stop of the block.
    assert only_call(read(*message(tool_use(given=given)))).args == given
    # Where deltas come as well, they count.
    events = read(*message(tool_use(given={"a": 0}), partial_json('{"a":1}'), block_stop()))
    assert only_call(events).args == {"a": 1}


def test_parallel_calls_interleaved_by_index() -> None:
    events = read(
        *message(
            tool_use(0, "a", "toolu_a"),
            tool_use(1, "b", "toolu_b"),
            partial_json('{"x":', 0),
            partial_json('{"y":', 1),
            partial_json("1}", 0),
            partial_json("2}", 1),
            block_stop(1),
            block_stop(0),
        )
    )
    assert [(call.name, call.args) for call in calls(events)] == [("a", {"x": 1}), ("b", {"y": 2})]


@pytest.mark.parametrize("stop_reason", ["tool_use", "end_turn", "stop_sequence", "pause_turn", None])
def test_blank_arguments_complete_as_empty_object_at_a_normal_end(stop_reason: str | None) -> None:
    call = only_call(read(*message(tool_use(), partial_json(""), block_stop(), stop_reason=stop_reason)))
    assert (call.outcome, call.text, call.args_json) == ("completed", "{}", "{}")


@pytest.mark.parametrize("stop_reason", ["max_tokens", "refusal", "model_context_window_exceeded"])
@pytest.mark.parametrize("cut_text", ["", " ", '{"a": "b', '{"a": 1'])
def test_arguments_that_are_cut_are_truncated_though_the_block_is_stopped(stop_reason: str, cut_text: str) -> None:
    call = only_call(read(*message(tool_use(), partial_json(cut_text), block_stop(), stop_reason=stop_reason)))
    assert (call.outcome, call.detail) == ("truncated", f"stop_reason {stop_reason}")


def test_call_before_the_cut_one_is_complete() -> None:
    first = [tool_use(0, "a", "toolu_a"), partial_json("", 0), block_stop(0)]
    events = read(*message(*first, tool_use(1), partial_json('{"x', 1), block_stop(1), stop_reason="max_tokens"))
    assert [(call.name, call.outcome) for call in calls(events)] == [("a", "completed"), ("f", "truncated")]


def test_invalid_json_that_the_wire_finished_is_malformed() -> None:
    # Fine-grained tool streaming does not check what the model writes.
    broken = [tool_use(0, "a", "toolu_a"), partial_json('{"x": unquoted}', 0), block_stop(0)]
    for payloads in (message(*broken), message(*broken, block_start(1, type="text", text="Done."), block_stop(1))):
        call = only_call(read(*payloads))
        assert (call.outcome, call.text) == ("malformed", '{"x": unquoted}')


def test_body_that_ends_before_the_message() -> None:
    start = [message_start(), tool_use(), partial_json('{"a": 1}')]
    assert only_call(read(*start)).outcome == "truncated"
    assert only_call(read(*start, block_stop())).outcome == "completed"
    blank = [message_start(), tool_use(), block_stop()]
    assert only_call(read(*blank)).outcome == "truncated"
    assert only_call(read(*blank, message_delta())).outcome == "completed"
    assert only_call(read(*start, MESSAGE_STOP)).outcome == "truncated"


def test_events_out_of_their_frame_still_make_a_response() -> None:
    events = read(text_delta("Hi"), message_delta("end_turn"), MESSAGE_STOP, MESSAGE_STOP)
    assert text(events) == "Hi"
    assert len(ended(events)) == 1
    assert len(ended(read(message_delta("end_turn"), MESSAGE_STOP))) == 1
    assert len(ended(read(text_delta("Hi")))) == 1


def test_two_messages_in_one_body() -> None:
    first = message(tool_use(), partial_json("{}"), block_stop())
    for body in ([*first, *first], [*first[:-1], *first], [*first[:-2], *first]):
        events = read(*body)
        assert [call.outcome for call in calls(events)] == ["completed", "completed"]
        assert [call.provider_id for call in calls(events)] == ["toolu_1", "toolu_1"]
        ids = [event.message_id for event in events if isinstance(event, MessageStarted)]
        assert ids == ["msg_1", "msg_1~2"]
        assert len(ended(events)) == 2


def test_nameless_call_is_discarded_as_malformed() -> None:
    events = read(*message(block_start(0, type="tool_use", id="toolu_1", input={}), partial_json("{}"), block_stop()))
    assert calls(events) == []
    assert any(getattr(event, "reason", None) == "malformed" for event in events)


def test_delta_without_start_is_an_error() -> None:
    events, error = failure("anthropic", sse(message_start(), tool_use(0), partial_json("{}", 3)))
    assert only_call(events).outcome == "interrupted"
    assert "expected content_block_start before the arguments of block 3" in error


def test_overloaded_in_the_middle() -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    for named in (True, False):
        body = sse(message_start(), tool_use(), partial_json('{"a":'), overloaded, event=named)
        events, error = failure("anthropic", body)
        assert error == "the provider reported overloaded_error: Overloaded"
        assert (only_call(events).outcome, only_call(events).text) == ("interrupted", '{"a":')
    _, error = failure("anthropic", sse({"type": "error", "message": "no"}))
    assert error == "the provider reported an error: no"
    _, error = failure("anthropic", sse({"type": "error"}))
    assert error == "the provider reported an error"


def test_events_without_content_and_unknown_events_are_passed_over() -> None:
    events = read(
        message_start(),
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"a": 1}}},
        {"type": "vertex_event", "something": "new"},
        {"type": "message_delta"},
        {"type": "message_start"},
        {"type": "message_start", "message": {"id": 7}},
        *message(),
    )
    assert calls(events) == []
    assert text(events) == ""


@pytest.mark.parametrize("odd", [{"text": "x"}, ["x"], 1.5, True])
def test_text_of_a_block_that_is_not_text_is_passed_over(odd: Any) -> None:
    blocks = [block_start(0, type="thinking", thinking=odd), block_start(1, type="text", text=odd), text_delta("Hi", 1)]
    events = read(*message(*blocks, stop_reason="end_turn"))
    assert (reasoning(events), text(events)) == ("", "Hi")


def test_events_of_another_wire_are_an_error() -> None:
    _, error = failure("anthropic", sse({"id": "x", "choices": []}))
    assert "expected an event of the anthropic wire" in error
    _, error = failure("anthropic", sse({"type": "ping"}, {"type": "response.created"}))
    assert error == 'expected a response of the anthropic wire, got b\'{"type": "response.created"}\''


# -- whole answers --

ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {"city": "Zürich"}},
        {"type": "tool_use", "id": "toolu_2", "name": "b", "input": {}},
    ],
    "stop_reason": "tool_use",
    "usage": {"output_tokens": 5},
}


def test_whole_answer_same_calls() -> None:
    events = whole("anthropic", ANSWER)
    assert (reasoning(events), text(events)) == ("Hm.", "I look.")
    found = [(call.name, call.provider_id, call.args, call.outcome) for call in calls(events)]
    assert found == [("a", "toolu_1", {"city": "Zürich"}, "completed"), ("b", "toolu_2", {}, "completed")]
    assert ended(events) == [ResponseEnded("tool_use", {"output_tokens": 5})]
    assert [call.outcome for call in calls(whole("anthropic", {**ANSWER, "stop_reason": None}))] == ["completed"] * 2


def test_whole_answer_that_was_cut_discards_its_last_call() -> None:
    events = whole("anthropic", {**ANSWER, "stop_reason": "max_tokens"})
    assert [call.outcome for call in calls(events)] == ["completed", "truncated"]
