from __future__ import annotations

from typing import Any

import pytest

from callstream.events import MessageStarted, ResponseEnded
from tests.decoding import Folded, calls, decode, ended, failure, only_call, reasoning, sse, text, whole
from tests.wire.payloads import (
    added,
    args_delta,
    completed,
    created,
    custom_call,
    done,
    event,
    function_call,
    input_delta,
)

SPOKEN = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hi"}], "role": "assistant"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}, "odd"]}


def read(*payloads: Any) -> Any:
    return decode("openai_responses", sse(*payloads, event=True))


def found(*payloads: Any) -> list[tuple[str, str | None, str]]:
    """Name, id and completed arguments of each call."""
    return [(call.name, call.provider_id, call.args_json or call.outcome) for call in calls(read(*payloads))]


def test_text_reasoning_and_a_call() -> None:
    events = read(
        created(),
        added(THOUGHT | {"summary": []}, 0),
        event("reasoning_summary_text.delta", output_index=0, delta="Hm."),
        done(THOUGHT, 0),
        added(SPOKEN | {"content": []}, 1),
        event("content_part.added", output_index=1, part={"type": "output_text", "text": ""}),
        event("output_text.delta", output_index=1, delta="H", obfuscation="xyz"),
        event("output_text.delta", output_index=1, delta="i"),
        done(SPOKEN, 1),
        added(function_call(status="in_progress"), 2),
        args_delta('{"a"', output_index=2),
        args_delta(":1}", output_index=2),
        event("function_call_arguments.done", item_id="fc_1", output_index=2, arguments='{"a":1}'),
        done(function_call('{"a":1}'), 2),
        completed(THOUGHT, SPOKEN, function_call('{"a":1}')),
    )
    assert (reasoning(events), text(events)) == ("Hm.", "Hi")
    assert only_call(events) == Folded("f", "call_1", '{"a":1}', '{"a":1}', "completed", message_id="resp_1")
    assert ended(events) == [ResponseEnded("completed", {"output_tokens": 5})]


# -- where the arguments come --

WHOLE = ("f", "call_1", '{"a":1}')


def test_only_done_events() -> None:
    item = function_call('{"a":1}')
    arguments_done = event("function_call_arguments.done", item_id="fc_1", output_index=0, arguments='{"a":1}')
    start = added(function_call())
    assert found(created(), start, arguments_done, done(item), completed(item)) == [WHOLE]
    assert found(created(), start, arguments_done, completed()) == [WHOLE]
    assert found(created(), start, done(item), completed()) == [WHOLE]
    assert found(created(), done(item), completed()) == [WHOLE]
    assert found(created(), start, completed(item)) == [WHOLE]
    assert found(created(), added(item), completed()) == [WHOLE]
    assert found(completed(item)) == [WHOLE]
    assert found(done(item)) == [WHOLE]


def test_text_that_comes_only_with_done_events() -> None:
    for payloads in ([done(THOUGHT, 0), done(SPOKEN, 1), completed()], [completed(THOUGHT, SPOKEN)]):
        events = read(created(), *payloads)
        assert (reasoning(events), text(events)) == ("Hm.", "Hi")
    refused = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    assert text(read(created(), done(refused), completed(refused))) == "No."


def test_text_is_not_said_twice_when_the_final_list_leaves_items_out() -> None:
    spoken = event("output_text.delta", output_index=1, delta="Hi")
    assert text(read(created(), spoken, done(SPOKEN, 1), completed(SPOKEN))) == "Hi"
    unnumbered = event("output_text.delta", delta="Hi")
    assert text(read(created(), unnumbered, done(SPOKEN, 1), completed(SPOKEN))) == "Hi"


def test_arguments_announced_with_the_item_give_way_to_deltas() -> None:
    start = added(function_call("{}"))
    assert found(created(), start, args_delta('{"a":1}'), done(function_call("")), completed()) == [WHOLE]
    assert found(created(), start, args_delta('{"a":1}'), completed()) == [WHOLE]


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a":1}'])
def test_arguments_as_object(arguments: Any) -> None:
    item = function_call(arguments)
    assert found(created(), done(item), completed(item)) == [WHOLE]
    assert found(created(), added(function_call()), args_delta(arguments), completed()) == [WHOLE]


def test_final_arguments_fill_what_the_deltas_left_out() -> None:
    assert found(created(), added(function_call()), args_delta('{"a'), done(function_call('{"a":1}')), completed()) == [
        WHOLE
    ]
    assert found(created(), added(function_call()), args_delta(" "), done(function_call('{"a":1}')), completed()) == [
        ("f", "call_1", ' {"a":1}')
    ]


def test_final_arguments_that_differ_in_layout_alone_change_nothing() -> None:
    item = function_call('{"a": 1}')
    assert found(created(), added(function_call()), args_delta('{"a":1}'), done(item), completed(item)) == [WHOLE]


def test_final_arguments_that_contradict_the_deltas_are_malformed() -> None:
    for other in ('{"a":2}', '{"a"'):
        events = read(created(), added(function_call()), args_delta('{"a":1}'), done(function_call(other)), completed())
        call = only_call(events)
        assert (call.outcome, call.detail) == ("malformed", "the deltas and the final arguments differ")


# -- which call an event belongs to --


def test_parallel_calls_interleaved() -> None:
    one, two = function_call(number=1), function_call(number=2, name="g")
    assert found(
        created(),
        added(one, 0),
        added(two, 1),
        args_delta('{"a"', number=1, output_index=0),
        args_delta('{"b"', number=2, output_index=1),
        args_delta(":1}", number=1, output_index=0),
        args_delta(":2}", number=2, output_index=1),
        done(two | {"arguments": '{"b":2}'}, 1),
        done(one | {"arguments": '{"a":1}'}, 0),
        completed(),
    ) == [WHOLE, ("g", "call_2", '{"b":2}')]


def test_item_ids_that_change_from_event_to_event() -> None:
    one, two = function_call(number=1), function_call(number=2, name="g")
    assert found(
        created(),
        added(one | {"id": "x1"}, 0),
        args_delta('{"a"', number=71, output_index=0),
        args_delta(":1}", number=72, output_index=0),
        done(one | {"id": "x2", "arguments": '{"a":1}'}, 0),
        added(two | {"id": "x3"}, 1),
        args_delta('{"b":2}', number=73, output_index=1),
        done(two | {"id": "x4", "arguments": '{"b":2}'}, 1),
        completed(one | {"id": "x5", "arguments": '{"a":1}'}, two | {"id": "x6", "arguments": '{"b":2}'}),
    ) == [WHOLE, ("g", "call_2", '{"b":2}')]


def test_output_index_missing() -> None:
    def bare(payload: Any) -> Any:
        return {key: value for key, value in payload.items() if key not in ("output_index", "item_id")}

    one, two = function_call(number=1), function_call(number=2, name="g")
    start = [created(), bare(added(one))]
    assert found(*start, bare(args_delta('{"a":1}')), bare(done(one)), completed()) == [WHOLE]
    assert found(*start, args_delta('{"a":1}') | {"output_index": None}, completed()) == [WHOLE]
    both = sse(*start, bare(added(two)), bare(args_delta("{}")))
    assert "expected response.output_item.added before" in failure("openai_responses", both)[1]


def test_deltas_that_name_the_call_id() -> None:
    def named(text: str, number: int) -> Any:
        return event("function_call_arguments.delta", call_id=f"call_{number}", delta=text)

    one, two = function_call(number=1), function_call(number=2, name="g")
    start = [created(), added(one, 0), added(two, 1)]
    assert found(*start, named('{"a"', 1), named("{}", 2), named(":1}", 1), completed()) == [
        WHOLE,
        ("g", "call_2", "{}"),
    ]


def test_final_list_that_gives_calls_new_ids() -> None:
    items = [function_call('{"a":1}', number=1), function_call("{}", number=2), function_call("{}", number=3, name="g")]
    renamed = [item | {"id": f"new_{at}", "call_id": f"other_{at}"} for at, item in enumerate(items)]
    streamed = [payload for at, item in enumerate(items[:2]) for payload in (added(item, at), done(item, at))]
    assert found(created(), *streamed, completed(*renamed)) == [WHOLE, ("f", "call_2", "{}"), ("g", "other_2", "{}")]


def test_call_ids_missing_or_used_again() -> None:
    without = {key: value for key, value in function_call().items() if key != "call_id"}
    assert found(created(), added(without), args_delta('{"a":1}'), done(without), completed()) == [
        ("f", "fc_1", '{"a":1}')
    ]
    again = [added(function_call()), args_delta("{}"), done(function_call("{}"))]
    assert found(created(), *again, *again, completed()) == [("f", "call_1", "{}")] * 2


def test_item_added_twice_is_one_call() -> None:
    start = added(function_call())
    assert found(created(), start, start, args_delta('{"a":1}'), done(function_call('{"a":1}')), completed()) == [WHOLE]


def test_call_that_gets_its_name_with_its_end() -> None:
    start = added(function_call(name=None))
    assert found(created(), start, args_delta('{"a":1}'), done(function_call('{"a":1}')), completed()) == [WHOLE]
    assert found(created(), start, args_delta('{"a":1}'), completed()) == []


def test_delta_without_start_is_an_error() -> None:
    events, error = failure("openai_responses", sse(created(), args_delta("{}")))
    assert "expected response.output_item.added before response.function_call_arguments.delta" in error
    assert events == []


def test_a_stream_that_is_taken_up_in_the_middle_has_the_calls_that_end_in_it() -> None:
    args_done = event("function_call_arguments.done", item_id="fc_1", output_index=0, arguments='{"a":1}')
    input_done = event("custom_tool_call_input.done", item_id="ctc_2", output_index=1, input="x")
    pieces = [args_delta("1}"), args_done, input_done]
    taken_up = [{**piece, "sequence_number": number} for number, piece in enumerate(pieces, 7)]
    ends = [done(function_call('{"a":1}')), done(custom_call("x", number=2), 1)]
    assert found(*taken_up, *ends, completed()) == [WHOLE, ("patch", "call_2", '"x"')]


def test_server_side_items_give_no_calls() -> None:
    items: list[dict[str, Any]] = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "mcp_call", "id": "mcp_1", "name": "x", "arguments": "{}", "output": [1], "error": None},
        {"type": "mcp_list_tools", "id": "mcpl_1", "tools": [{"name": "x", "input_schema": {}}]},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": None, "container_id": "c"},
        {"type": "tool_search_call", "call_id": None, "arguments": {"paths": ["x"]}, "status": "completed"},
        {"type": "image_generation_call", "id": "ig_1", "result": "base64"},
        {"type": "computer_call", "id": "cu_1", "call_id": "call_9", "action": {"type": "click"}},
        {
            "type": "shell_call",
            "call_id": "call_8",
            "action": {"commands": ["ls"]},
            "environment": {"type": "container"},
        },
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "message", "content": None},
        {"type": "message", "content": [{"type": "output_audio", "transcript": "x"}]},
        {},
    ]
    around = [payload for index, item in enumerate(items) for payload in (added(item, index), done(item, index))]
    extra = event("mcp_call_arguments.delta", item_id="mcp_1", output_index=1, delta="{}")
    call = function_call('{"a":1}')
    assert found(created(), extra, *around, added(function_call(), 20), done(call, 20), completed(*items, call)) == [
        WHOLE
    ]


def test_events_without_their_item_are_passed_over() -> None:
    payloads = [event("output_item.added"), event("output_item.done"), event("in_progress"), {"type": "keepalive"}]
    assert found(created(), *payloads, completed()) == []


# -- custom tools --


def test_custom_tool_text() -> None:
    patch = '*** Begin Patch\n+"tab\t"\n'
    start = [created(), added(custom_call()), input_delta(patch[:20]), input_delta(patch[20:])]
    input_done = event("custom_tool_call_input.done", item_id="ctc_1", output_index=0, input=patch)
    for payloads in ([input_done, done(custom_call(patch)), completed(custom_call(patch))], [completed()]):
        call = only_call(read(*start, *payloads))
        assert (call.encoding, call.text, call.args) == ("text", patch, patch)
    assert only_call(read(created(), done(custom_call(patch)), completed())).args == patch
    assert only_call(read(created(), done(custom_call("")), completed())).args == ""
    assert only_call(read(*start, completed(status="incomplete"))).outcome == "truncated"
    assert only_call(read(*start, done(custom_call(patch, status="incomplete")), completed())).outcome == "truncated"


# -- ends --


@pytest.mark.parametrize("end", ["completed", "done"])
def test_blank_arguments_complete_as_empty_object_at_a_normal_end(end: str) -> None:
    last = event(end, response={"id": "resp_1"})
    for payloads in ([], [args_delta("")], [done(function_call(""))], [done(function_call(None))]):
        assert found(created(), added(function_call()), *payloads, last) == [("f", "call_1", "{}")]
    assert found(created(), added(function_call()), event(end)) == [("f", "call_1", "{}")]


@pytest.mark.parametrize(
    ("last", "detail"),
    [
        (completed(status="incomplete", incomplete_details={"reason": "max_output_tokens"}), "max_output_tokens"),
        (completed(status="incomplete", incomplete_details={"reason": "content_filter"}), "content_filter"),
        (completed(status="incomplete"), "incomplete"),
        (completed(status="cancelled"), "cancelled"),
        (event("incomplete"), "incomplete"),
    ],
)
@pytest.mark.parametrize("cut_text", ["", '{"a', '{"a":1}'])
def test_arguments_that_are_cut_are_truncated(last: Any, detail: str, cut_text: str) -> None:
    for status in ("incomplete", None):
        item = done(function_call(cut_text, status=status))
        payloads = [item] if status or cut_text != '{"a":1}' else []
        call = only_call(read(created(), added(function_call()), args_delta(cut_text), *payloads, last))
        assert (call.outcome, call.detail) == ("truncated", f"response {detail}")


def test_item_that_is_incomplete_in_a_completed_response_is_truncated() -> None:
    item = function_call('{"a":1}', status="incomplete")
    assert found(created(), added(function_call()), done(item), completed(item)) == [("f", "call_1", "truncated")]


def test_call_before_the_cut_one_is_complete() -> None:
    one, two = function_call("", number=1), function_call(number=2, name="g")
    start = [created(), added(function_call()), done(one), added(two, 1), args_delta('{"b', number=2, output_index=1)]
    assert found(*start, completed(status="incomplete")) == [("f", "call_1", "{}"), ("g", "call_2", "truncated")]


def test_invalid_json_that_the_wire_finished_is_malformed() -> None:
    assert found(created(), done(function_call("{oops}")), completed()) == [("f", "call_1", "malformed")]


def test_body_that_ends_before_the_response() -> None:
    start = [created(), added(function_call()), args_delta('{"a":1}')]
    call = only_call(read(*start))
    assert (call.outcome, call.detail) == ("truncated", "the stream ended in the middle of the response")
    assert ended(read(*start)) == [ResponseEnded(None, None)]
    assert found(*start, done(function_call('{"a":1}'))) == [WHOLE]


def test_second_end_of_a_response_is_ignored() -> None:
    item = function_call('{"a":1}')
    events = read(created(), done(item), completed(item), completed(item, status="done"), event("done"))
    assert len(calls(events)) == len(ended(events)) == 1


def test_responses_that_follow_each_other() -> None:
    def response(number: int) -> list[Any]:
        item = function_call("{}", number=number)
        return [created(f"resp_{number}"), done(item), completed(item) | {"response": {"id": f"resp_{number}"}}]

    for body in ([*response(1), *response(2)], [*response(1)[:-1], *response(2)]):
        events = read(*body)
        assert [call.provider_id for call in calls(events)] == ["call_1", "call_2"]
        assert [event.message_id for event in events if isinstance(event, MessageStarted)] == ["resp_1", "resp_2"]
        assert len(ended(events)) == 2


# -- errors --


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (
            event("failed", response={"status": "failed", "error": {"code": "server_error", "message": "no"}}),
            "the provider reported server_error: no",
        ),
        (event("failed", response={"error": None}), "the provider reported that the response failed"),
        (event("failed"), "the provider reported that the response failed"),
        ({"type": "error", "code": "ERR", "message": "no", "param": None}, "the provider reported ERR: no"),
        ({"type": "error", "error": {"type": "overloaded", "message": "no"}}, "the provider reported overloaded: no"),
        ({"type": "error"}, "the provider reported an error"),
        ({"error": {"message": "no"}}, "the provider reported an error: no"),
    ],
)
def test_error_objects_in_the_stream(payload: Any, message: str) -> None:
    events, error = failure("openai_responses", sse(created(), added(function_call()), args_delta('{"a'), payload))
    assert error == message
    assert (only_call(events).outcome, only_call(events).detail) == ("interrupted", message)
    assert ended(events) == []


def test_events_of_another_wire_are_an_error() -> None:
    _, error = failure("openai_responses", sse({"choices": []}))
    assert "expected an event of the openai_responses wire" in error
    _, error = failure("openai_responses", sse({"type": "message_start"}))
    assert "expected a response of the openai_responses wire" in error


def test_name_that_comes_after_a_contradiction_starts_nothing() -> None:
    nameless = {key: value for key, value in function_call(status="in_progress").items() if key != "name"}
    final = function_call('{"b":2}')
    contradiction = event("function_call_arguments.done", item_id="fc_1", output_index=0, arguments='{"b":2}')
    assert found(created(), added(nameless), args_delta('{"a":1}'), contradiction, done(final), completed(final)) == []


# -- whole answers --


def answer(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "completed", "error": None, "output": list(output), **more}


def test_whole_answer_same_calls() -> None:
    items = [THOUGHT, SPOKEN, SPOKEN, function_call('{"a":1}'), custom_call("x\n", number=2)]
    events = whole("openai_responses", answer(*items, usage={"a": 1}))
    assert (reasoning(events), text(events)) == ("Hm.", "HiHi")
    assert [(call.name, call.provider_id, call.args, call.outcome) for call in calls(events)] == [
        ("f", "call_1", {"a": 1}, "completed"),
        ("patch", "call_2", "x\n", "completed"),
    ]
    assert ended(events) == [ResponseEnded("completed", {"a": 1})]


def test_whole_answer_that_was_cut() -> None:
    cut = answer(function_call('{"a', status="incomplete"), status="incomplete")
    events = whole("openai_responses", cut | {"incomplete_details": {"reason": "max_output_tokens"}})
    assert (only_call(events).outcome, only_call(events).detail) == ("truncated", "response max_output_tokens")
