"""Bedrock's Converse: what its events mean, how a message ends, and what leaves of a collapsed one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.errors import WireError
from callstream.events import CallCompleted, CallDiscarded, MessageReceived, ResponseEnded, ResultReceived
from callstream.wire import decoder_for, provider_of, results_in
from callstream.wire.eventstream import EventStreamFraming, write_event, write_exception
from callstream.wire.requests import Request
from tests.decoding import calls, decode, ended, failure, fed, only_call, reasoning, text, whole
from tests.wire.collapsing import named, tapped_at_any_split

WIRE = "bedrock_converse"


def aws(*events: tuple[str, Any]) -> bytes:
    """An event stream: types and payloads."""
    return b"".join(write_event(kind, json.dumps(payload, separators=(",", ":")).encode()) for kind, payload in events)


def start(index: int = 0, name: str = "f", call_id: str | None = "t1", **more: Any) -> tuple[str, Any]:
    use = {"name": name, **({} if call_id is None else {"toolUseId": call_id}), **more}
    return "contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": use}}


def delta(index: int = 0, **piece: Any) -> tuple[str, Any]:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": piece, "p": "abc"}


def args(piece: Any, index: int = 0) -> tuple[str, Any]:
    return delta(index, toolUse={"input": piece})


def thought(piece: str, index: int = 0) -> tuple[str, Any]:
    return delta(index, reasoningContent={"text": piece})


def stop(index: int = 0) -> tuple[str, Any]:
    return "contentBlockStop", {"contentBlockIndex": index}


def message_stop(reason: str | None = "tool_use") -> tuple[str, Any]:
    return "messageStop", {"stopReason": reason}


START = ("messageStart", {"role": "assistant"})
METADATA = ("metadata", {"usage": {"outputTokens": 5}, "metrics": {"latencyMs": 1}})
CALL = (start(), args(""), args('{"a":'), args(" 1}"), stop())


def message(*events: tuple[str, Any], reason: str = "tool_use") -> bytes:
    return aws(START, *events, message_stop(reason), METADATA)


# -- decoding --


def test_call_with_text_and_reasoning() -> None:
    body = message(thought("Hm"), delta(0, reasoningContent={"signature": "s"}), stop(), delta(1, text="Hi"), stop(1),
                   start(2), args('{"a": 1}', 2), stop(2))  # fmt: skip
    events = decode(WIRE, body)
    call = only_call(events)
    assert (call.name, call.provider_id, call.args) == ("f", "t1", {"a": 1})
    assert (text(events), reasoning(events)) == ("Hi", "Hm")
    assert ended(events) == [ResponseEnded("tool_use", {"outputTokens": 5})]


@pytest.mark.parametrize("piece", [None, "", "no delta"])
def test_tool_without_arguments(piece: str | None) -> None:
    deltas = [] if piece == "no delta" else [args(piece)]
    assert only_call(decode(WIRE, message(start(), *deltas, stop()))).args == {}


def test_default_ids_are_counted() -> None:
    events = decode(WIRE, message(start(call_id=None), stop(), start(1, call_id=None), stop(1)))
    assert [event.call_id for event in events if isinstance(event, CallCompleted)] == ["call_1", "call_2"]


def test_server_side_tools_are_no_client_calls() -> None:
    found = [
        start(0, "grounding", type="server_tool_use"), args('{"q": 1}'), stop(),
        ("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolResult": {"toolUseId": "t1"}}}),
        delta(1, toolResult=[{"text": "[HIDDEN]"}]), stop(1),
        start(2, type="tool_use"), args("{}", 2), stop(2),
    ]  # fmt: skip
    assert only_call(decode(WIRE, message(*found))).name == "f"
    result = tapped_at_any_split(WIRE, message(*found[:6]))
    assert result.body == message(*found[:6])


def test_never_completed_by_parse() -> None:
    """Text that is whole JSON completes nothing before the wire's end."""
    decoder = decoder_for(WIRE)
    assert only_call(decoder.feed(aws(START, *CALL[:-1]))).outcome == "open"
    assert [item.reason for item in decoder.end() if isinstance(item, CallDiscarded)] == ["truncated"]


def test_stop_of_the_last_block_is_believed_when_something_follows() -> None:
    for following in (start(1, call_id="t2"), delta(1, text="Hi"), message_stop()):
        decoder = decoder_for(WIRE)
        assert only_call(decoder.feed(aws(START, *CALL))).outcome == "open"
        assert any(isinstance(event, CallCompleted) for event in decoder.feed(aws(following)))
    assert only_call(decode(WIRE, aws(START, *CALL))).outcome == "completed"
    events, _ = failure(WIRE, aws(START, *CALL) + write_exception("throttlingException", b"{}"))
    assert only_call(events).outcome == "interrupted"


@pytest.mark.parametrize(
    ("reason", "whole_call", "cut_call"),
    [
        ("tool_use", "completed", "malformed"),
        ("end_turn", "completed", "malformed"),
        ("stop_sequence", "completed", "malformed"),
        ("max_tokens", "truncated", "truncated"),
        ("model_context_window_exceeded", "truncated", "truncated"),
        ("malformed_tool_use", "malformed", "malformed"),
        ("malformed_model_output", "malformed", "malformed"),
        ("guardrail_intervened", "truncated", "truncated"),
        ("content_filtered", "truncated", "truncated"),
        ("newer_than_this_code", "truncated", "truncated"),
    ],
)
def test_how_a_message_ends(reason: str, whole_call: str, cut_call: str) -> None:
    """Where a message does not end normally, the call of the last block does not count even if it parses."""
    before = (start(0, "g", "t0"), args("{}"), stop())
    for last, outcome in (([args('{"a": 1}', 1)], whole_call), ([args('{"a": ', 1)], cut_call)):
        body = message(*before, start(1), *last, stop(1), reason=reason)
        first, second = calls(decode(WIRE, body))
        assert (first.outcome, second.outcome) == ("completed", outcome)
        result = tapped_at_any_split(WIRE, body)
        assert b'"name":"g"' in result.body
        assert (b'"name":"f"' in result.body) is (outcome == "completed")


def test_objection_to_a_text_leaves_the_call_before_it() -> None:
    body = message(*CALL, delta(1, text="Hi"), stop(1), reason="guardrail_intervened")
    assert only_call(decode(WIRE, body)).outcome == "completed"


def test_block_without_a_stop_ends_with_the_message() -> None:
    assert only_call(decode(WIRE, message(*CALL[:-1]))).outcome == "completed"
    assert only_call(decode(WIRE, message(*CALL[:-1], reason="max_tokens"))).outcome == "truncated"


def test_metadata_may_come_before_the_stop_or_never() -> None:
    end = [ResponseEnded("tool_use", {"outputTokens": 5})]
    assert ended(decode(WIRE, aws(START, *CALL, METADATA, message_stop()))) == end
    assert ended(decode(WIRE, aws(START, *CALL, message_stop()))) == [ResponseEnded("tool_use", None)]
    assert ended(decode(WIRE, aws(START, *CALL, message_stop(None), ("metadata", {})))) == [ResponseEnded(None, {})]


def test_body_that_ends_in_the_middle() -> None:
    for cut in (aws(START, *CALL[:-1]), aws(START, *CALL[:-1]) + message()[:50]):
        events = decode(WIRE, cut)
        assert only_call(events).outcome == "truncated"
        assert ended(events) == [ResponseEnded(None, None)]
    assert decode(WIRE, b"") == []
    assert decode(WIRE, EventStreamFraming.keep_alive[:20]) == []


def test_two_messages_in_one_body() -> None:
    events = decode(WIRE, message(*CALL) + message(*CALL))
    assert [call.outcome for call in calls(events)] == ["completed", "completed"]
    assert len(ended(events)) == 2
    events = decode(WIRE, aws(START, *CALL[:-1]) + message(*CALL))
    assert [call.outcome for call in calls(events)] == ["truncated", "completed"]


def test_unknown_events_and_deltas_are_passed_over() -> None:
    body = aws(START, ("newer", {"a": 1}), delta(0, citation={"title": "t"}), *CALL, message_stop(), METADATA)
    assert only_call(decode(WIRE, EventStreamFraming.keep_alive + body)).outcome == "completed"
    assert tapped_at_any_split(WIRE, body, named()).body == body


def test_delta_without_start_is_an_error() -> None:
    _, error = failure(WIRE, aws(START, args("{}", 3)))
    assert error == "expected contentBlockStart before the arguments of block 3, got a piece of them"


@pytest.mark.parametrize("payload", [b"[]", b"no", b'{"contentBlockIndex": "x"}', b'{"delta": {"text": "\xff"}}'])
def test_payload_that_is_not_the_wire(payload: bytes) -> None:
    events, error = failure(WIRE, aws(START, *CALL[:-1]) + write_event("contentBlockDelta", payload))
    assert "bedrock_converse" in error
    assert only_call(events).outcome == "interrupted"


def test_body_that_is_no_response_is_an_error() -> None:
    _, error = failure(WIRE, aws(("somethingElse", {"a": 1})))
    assert error.startswith("expected a response of the bedrock_converse wire")


def test_exception_in_the_stream() -> None:
    exception = write_exception("modelStreamErrorException", b'{"message": "The model failed."}')
    events, error = failure(WIRE, aws(START, *CALL[:-1]) + exception)
    assert only_call(events).outcome == "interrupted"
    assert error == "the provider reported modelStreamErrorException: The model failed."
    result = tapped_at_any_split(WIRE, aws(START, *CALL[:-1]) + exception)
    assert result.body == aws(START) + exception


def test_halves_of_a_character_make_one() -> None:
    body = message(delta(0, text="a\ud83d"), delta(0, text="\ude00"), stop(), start(1), args('{"a":"\ud83d', 1),
                   args('\ude00"}', 1), stop(1))  # fmt: skip
    events = decode(WIRE, body)
    assert (text(events), only_call(events).args) == ("a😀", {"a": "😀"})


# -- collapsing --


def test_a_whole_call_leaves_in_one_delta() -> None:
    result = tapped_at_any_split(WIRE, message(delta(0, text="Hi"), stop(), start(1), args("", 1), args('{"a":', 1),
                                               args(" 1}", 1), stop(1)))  # fmt: skip
    assert result.body == message(delta(0, text="Hi"), stop(), start(1), args('{"a": 1}', 1), stop(1))
    assert result.call_ids == ["t1"]


def test_what_follows_a_call_that_is_left_out_moves_up() -> None:
    cut = (start(1, "g", "t0"), args("{no", 1), stop(1))
    body = message(delta(0, text="Hi"), stop(), *cut, start(2), args("{}", 2), stop(2), delta(3, text="Bye"), stop(3))
    left = message(delta(0, text="Hi"), stop(), start(1), args("{}", 1), stop(1), delta(2, text="Bye"), stop(2))
    assert tapped_at_any_split(WIRE, body).body == left
    twice = tapped_at_any_split(WIRE, body + message(*CALL)).body
    assert twice == left + message(start(), args('{"a": 1}'), stop())


def test_reasoning_passes_as_it_comes_and_is_lone_if_it_led_to_nothing() -> None:
    signed = (thought("Hm"), thought("m"), delta(0, reasoningContent={"signature": "s"}), stop())
    cut = (start(1), args('{"a', 1), stop(1))
    result = tapped_at_any_split(WIRE, message(*signed, *cut, reason="max_tokens"))
    assert result.body == message(*signed, reason="max_tokens")
    assert result.lone.has("s")
    redacted = (delta(0, reasoningContent={"redactedContent": "e30="}), stop())
    assert tapped_at_any_split(WIRE, message(*redacted, *cut, reason="max_tokens")).lone.has("e30=")
    good = message(*signed, start(1), args("{}", 1), stop(1))
    result = tapped_at_any_split(WIRE, good)
    assert result.body == good
    assert not result.lone
    spoken = message(*signed, *cut, delta(2, text="Hi"), stop(2))
    assert tapped_at_any_split(WIRE, spoken).body == message(*signed, delta(1, text="Hi"), stop(1))
    unfinished = message(thought("Hm"), start(1), args("{}", 1), stop(1))
    assert tapped_at_any_split(WIRE, unfinished).body == unfinished


def test_other_calls_pass_piece_by_piece() -> None:
    body = message(*CALL, start(1, "g", "t2"), args("{", 1), args("}", 1), stop(1))
    expected = message(*CALL, start(1, "g", "t2"), args("{}", 1), stop(1))
    assert tapped_at_any_split(WIRE, body, named("g")).body == expected


# -- whole answers --


def answer(*content: Any, reason: str | None = "tool_use", **more: Any) -> dict[str, Any]:
    return {"output": {"message": {"role": "assistant", "content": list(content)}}, "stopReason": reason, **more}


USE = {"toolUse": {"toolUseId": "t1", "name": "f", "input": {"a": 1}}}
THOUGHT = {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "s"}}}


def test_whole_answer_same_calls() -> None:
    redacted = {"reasoningContent": {"redactedContent": "e30="}}
    bare = {"toolUse": {"toolUseId": "t2", "name": "g"}}
    server = {"toolUse": {"toolUseId": "t3", "name": "s", "input": {"q": 1}, "type": "server_tool_use"}}
    events = whole(WIRE, answer(THOUGHT, redacted, {"text": "Hi"}, USE, bare, server, usage={"outputTokens": 5}))
    assert [(call.name, call.args) for call in calls(events)] == [("f", {"a": 1}), ("g", {})]
    assert (text(events), reasoning(events)) == ("Hi", "Hm")
    assert ended(events) == [ResponseEnded("tool_use", {"outputTokens": 5})]


@pytest.mark.parametrize(("reason", "outcome"), [("max_tokens", "truncated"), ("malformed_tool_use", "malformed")])
def test_truncated_never_runs_on_a_whole_answer(reason: str, outcome: str) -> None:
    body = json.dumps(answer(THOUGHT, USE, reason=reason)).encode()
    decoder = decoder_for(WIRE)
    events = decoder.whole(body)
    assert only_call(events).outcome == outcome
    forwarded = provider_of(WIRE).without_unfinished(body, decoder, events, collapse=named("f"))
    assert json.loads(forwarded) == answer(reason=reason)


@pytest.mark.parametrize("body", [b"{}", b'{"output": {}}', b'{"message": "no"}', b"<html>", b"[]"])
def test_whole_answer_that_is_none(body: bytes) -> None:
    with pytest.raises(WireError, match="expected"):
        decoder_for(WIRE).whole(body)


# -- requests --


def test_results_in_request() -> None:
    def use(call_id: str, name: str) -> Any:
        return {"toolUse": {"toolUseId": call_id, "name": name, "input": {}}}

    def result(call_id: str, *content: Any, **more: Any) -> Any:
        return {"toolResult": {"toolUseId": call_id, "content": list(content), **more}}

    messages = [
        {"role": "user", "content": [{"text": "First"}]},
        {"role": "assistant", "content": [{"text": "Hm"}, use("t1", "a")]},
        {"role": "user", "content": [result("t1", {"text": "one"})]},
        {"role": "assistant", "content": [use("t2", "b"), use("t3", "c")]},
        {
            "role": "user",
            "content": [
                result("t3", {"json": {"x": 3}}, status="error"),
                result("t2", status="success"),
                {"text": "And "},
                {"text": "this?"},
                {"image": {"format": "png", "source": {}}},
                {"document": {"format": "pdf", "name": "d", "source": {}}},
                {"video": {}},
            ],
        },
    ]
    assert results_in(WIRE, json.dumps({"messages": messages, "toolConfig": {}}).encode()) == [
        ResultReceived("t1", "a", [{"text": "one"}], latest=False),
        ResultReceived("t3", "c", [{"json": {"x": 3}}], is_error=True),
        ResultReceived("t2", "b", []),
        MessageReceived("user", "And this?", attachments=("image/png", "application/pdf", "video")),
    ]


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"a": 1}}}}, {"cachePoint": {}}]}, {"f": {"a": 1}}),
        ({"tools": [{"toolSpec": {"name": "f"}}, {"systemTool": {"name": "s"}}, 1]}, {"f": {}}),
        ({"tools": 1}, {}),
        (None, {}),
    ],
)  # fmt: skip
def test_declared_tools(config: Any, found: Any) -> None:
    assert provider_of(WIRE).declared_tools(Request("", json.dumps({"toolConfig": config}).encode())) == found


def test_the_path_tells_what_is_streamed() -> None:
    for path, streamed in (("/model/m/converse", False), ("/model/m/converse-stream", True)):
        assert provider_of(WIRE).is_streamed(Request(path, b"{}")) is streamed


def test_notes_stand_at_the_end_of_the_user_s_message() -> None:
    def noted(*messages: Any) -> Any:
        sent = provider_of(WIRE).add_notes(Request("", json.dumps({"messages": messages}).encode()), {"c1": "no"})
        return None if sent is None else json.loads(sent.body)["messages"]

    user, model = {"role": "user", "content": [{"text": "go"}]}, {"role": "assistant", "content": [{"text": "Hm"}]}
    assert noted(model, user) == [model, {"role": "user", "content": [{"text": "go"}, {"text": "no"}]}]
    assert noted() is noted(user, model) is noted({"role": "user"}) is None


def test_every_event_is_given_by_its_last_byte() -> None:
    body = aws(delta(0, text="Hi"))
    decoder = decoder_for(WIRE)
    given = [bool(decoder.feed(body[at : at + 1])) for at in range(len(body))]
    assert given == [False] * (len(body) - 1) + [True]
    assert fed(decoder_for(WIRE), [body])[1] is None
