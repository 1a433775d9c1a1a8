"""Two answers as one, where servers send what the scripted ones do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.wire import provider_of
from callstream.wire.joining import Joint, Saying
from callstream.wire.requests import RefusedCall, Request
from tests.decoding import sse
from tests.wire.collapsing import payloads
from tests.wire.payloads import choice, chunk

REFUSED = RefusedCall("c1", "write", {"title": 3}, "no")


def joint_of(wire: str) -> Joint:
    kind = provider_of(wire).joint
    assert kind is not None
    return kind()


def test_a_comment_of_the_first_answer_passes() -> None:
    assert joint_of("anthropic").first(b": still here\n\n") == b": still here\n\n"


def test_the_text_of_a_chats_last_chunk_leaves_before_its_end() -> None:
    joint = joint_of("openai_chat")
    last = chunk(choice({"content": "Bye."}, "length"))
    assert payloads(joint.first(sse(last))) == [{**last, "choices": [choice({"content": "Bye."})]}]
    assert payloads(joint.unjoined()) == [{**last, "choices": [choice({}, "length")]}]


def test_a_chats_second_answer_may_have_chunks_without_choices() -> None:
    joint = joint_of("openai_chat")
    joint.first(sse({"id": "one", "choices": [], "usage": {"total_tokens": 2}}))
    joint.continue_at(0)
    made = joint.second(sse({"id": "two", "usage": {"total_tokens": 3}}))
    assert payloads(made) == [{"id": "one", "usage": {"total_tokens": 5}}]


def test_a_call_that_only_the_final_response_has_is_dropped_from_it() -> None:
    joint = joint_of("openai_responses")
    call, message = {"type": "function_call", "call_id": "c1"}, {"type": "message", "id": "m"}
    final = {"type": "response.completed", "response": {"id": "r", "output": [message, call]}}
    assert joint.first(joint.drop(sse(final), {"c1"})) == b""
    assert payloads(joint.unjoined()) == [{**final, "response": {"id": "r", "output": [message]}}]


def test_a_second_response_may_have_neither_numbers_nor_usage() -> None:
    joint = joint_of("openai_responses")
    items = [{"type": "message", "id": "m1"}, {"type": "message", "id": "m2"}]
    joint.first(sse({"type": "response.completed", "response": {"output": items[:1], "usage": {"total_tokens": 2}}}))
    joint.continue_at(1)
    final = {"type": "response.completed", "response": {"output": items[1:]}}
    assert payloads(joint.second(sse(final))) == [{**final, "response": {"output": items}}]


def test_an_end_of_gemini_without_parts_is_kept_back_whole() -> None:
    joint = joint_of("gemini")
    end = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"totalTokenCount": 2}}
    assert joint.first(sse(end)) == b""
    joint.continue_at(0)
    without_usage = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}}]}
    assert payloads(joint.second(sse(without_usage, end))) == [
        without_usage,
        {**end, "usageMetadata": {"totalTokenCount": 4}},
    ]


def test_a_conversation_that_the_server_keeps_gets_the_refusals_alone() -> None:
    asked = Request("/", json.dumps({"conversation": "conv_1", "input": "go"}).encode())
    again = provider_of("openai_responses").ask_again(asked, "Well.", [REFUSED])
    assert again is not None
    assert again.fields["input"] == [{"type": "function_call_output", "call_id": "c1", "output": "no"}]


@pytest.mark.parametrize("wire", ["gemini", "openai_chat", "openai_responses"])
def test_a_request_without_a_conversation_cannot_be_continued(wire: str) -> None:
    assert provider_of(wire).ask_again(Request("/", b"{}"), "", [REFUSED]) is None


def test_a_call_of_anthropic_is_put_back_beside_its_own_response_alone() -> None:
    def pair(call_id: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
        called = {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": "write", "input": {}}]}
        return [called, {"role": "user", "content": [answer]}]

    def result(call_id: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": "ok"}

    refused = RefusedCall("bad", "write", {}, "no", beside=("good",))
    request = Request(
        "/", json.dumps({"messages": [*pair("old", result("old")), *pair("good", result("good"))]}).encode()
    )
    assert provider_of("anthropic").restore(request, [refused]) == [refused]
    counts = [len(message["content"]) for message in request.fields["messages"]]
    assert counts == [1, 1, 2, 2]
    unanswered = Request("/", json.dumps({"messages": pair("good", {"type": "text", "text": "and?"})}).encode())
    assert provider_of("anthropic").restore(unanswered, [refused]) == []


CUT_FRAMES: dict[str, list[dict[str, Any]]] = {
    "anthropic": [{"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}}],
    "openai_chat": [{"id": "c", "created": 1, "model": "gpt", "choices": [{"index": 0, "delta": {"content": "I"}}]}],
    "openai_responses": [
        {"type": "response.created", "response": {"id": "r", "usage": None}, "sequence_number": 0},
        {"type": "response.output_text.delta", "delta": "I", "sequence_number": 4},
    ],
    "gemini": [{"candidates": [{"content": {"parts": [{"text": "I"}]}}], "responseId": "g"}],
}
CUT_ENDS: dict[tuple[str, bool], list[dict[str, Any]]] = {
    ("anthropic", is_last): [
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn" if is_last else "tool_use", "stop_sequence": None},
            "usage": {"input_tokens": 3, "output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    for is_last in (True, False)
}
CUT_ENDS |= {
    ("openai_chat", is_last): [
        {
            "id": "c",
            "created": 1,
            "object": "chat.completion.chunk",
            "model": "gpt",
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop" if is_last else "tool_calls"}],
        }
    ]
    for is_last in (True, False)
}
CUT_ENDS |= {
    ("gemini", is_last): [
        {
            "candidates": [
                {"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": [{"text": ""}]}},
            ],
            "responseId": "g",
        }
    ]
    for is_last in (True, False)
}


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("wire", CUT_FRAMES)
def test_an_answer_that_was_cut_gets_a_text_and_an_end(wire: str, is_last: bool) -> None:
    passed = [b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in CUT_FRAMES[wire]]
    written = joint_of(wire).cut(Saying("No.", is_last), 2, [{"type": "message", "id": "one"}], (passed[0], passed[-1]))
    assert written.endswith(b"data: [DONE]\n\n") is (wire == "openai_chat")
    lines = [line[6:] for line in written.splitlines() if line.startswith(b"data: {")]
    values: list[Any] = [json.loads(line) for line in lines]
    assert any("No." in json.dumps(value) for value in values)
    if wire != "openai_responses":
        assert values[-len(CUT_ENDS[wire, is_last]) :] == CUT_ENDS[wire, is_last]
        return
    assert [value["sequence_number"] for value in values] == list(range(5, 5 + len(values)))
    response = values[-1]["response"]
    assert (response["id"], response["status"]) == ("r", "completed")
    assert [item["id"] for item in response["output"]] == ["one", "msg_of_r"]


def test_an_answer_of_anthropic_without_a_beginning_is_ended_without_its_usage() -> None:
    assert b'"usage":{"output_tokens":0}' in joint_of("anthropic").cut(
        Saying("No.", is_last_word=True), 0, [], (b"", b"")
    )


def test_a_dropped_block_without_a_number_moves_none_after_it() -> None:
    """A compatible server may leave the numbers of blocks out."""
    joint = joint_of("anthropic")
    start = {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "c1"}}
    assert joint.drop(sse(start), {"c1"}) == b""
    after = {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}
    assert payloads(joint.first(sse(after))) == [after]
