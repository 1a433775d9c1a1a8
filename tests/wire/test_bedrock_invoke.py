"""Bedrock's InvokeModel: Anthropic's Messages in AWS event streams. What Messages mean is told in test_anthropic.py."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from callstream.events import MessageReceived
from callstream.wire import provider_of, results_in
from callstream.wire.eventstream import ChunkFraming, write_event, write_exception
from callstream.wire.requests import Request
from tests.decoding import decode, failure, only_call
from tests.wire.collapsing import tapped_at_any_split
from tests.wire.payloads import MESSAGE_STOP, block_start, block_stop, message, partial_json, tool_use

WIRE = "bedrock_invoke"
ANTHROPIC = {"anthropic_version": "bedrock-2023-05-31", "messages": [{"role": "user", "content": "Hi"}]}


def chunks(*events: Any) -> bytes:
    return b"".join(
        write_event(
            "chunk", b'{"bytes":"' + base64.b64encode(json.dumps(event, separators=(",", ":")).encode()) + b'"}'
        )
        for event in events
    )


def test_call_in_chunks_leaves_whole() -> None:
    metrics = {**MESSAGE_STOP, "amazon-bedrock-invocationMetrics": {"inputTokenCount": 9}}
    given = message(tool_use(), partial_json(""), partial_json('{"a":'), partial_json(" 1}"), block_stop())[:-1]
    assert only_call(decode(WIRE, chunks(*given, metrics))).args == {"a": 1}
    whole = message(tool_use(), partial_json('{"a": 1}'), block_stop())[:-1]
    assert tapped_at_any_split(WIRE, chunks(*given, metrics)).body == chunks(*whole, metrics)


def test_input_of_the_start_is_moved_into_a_chunk_of_its_own() -> None:
    given = message(tool_use(given={"a": 1}), block_stop())
    whole = message(tool_use(), {**partial_json('{"a":1}')}, block_stop())
    body = tapped_at_any_split(WIRE, chunks(*given)).body
    frames = ChunkFraming().feed(body)
    assert [json.loads(frame.payload or b"") for frame in frames] == whole
    assert {frame.event for frame in frames} == {b"chunk"}


def test_cut_and_failed_calls_do_not_count() -> None:
    cut = chunks(*message(tool_use(), partial_json("{"), partial_json("}"))[:4])
    assert only_call(decode(WIRE, cut)).outcome == only_call(decode(WIRE, cut[:-20])).outcome == "truncated"
    exception = write_exception("modelTimeoutException", b'{"message": "Too slow."}')
    events, error = failure(WIRE, chunks(*message(tool_use(), partial_json("{"))[:3]) + exception)
    assert (only_call(events).outcome, error) == (
        "interrupted",
        "the provider reported modelTimeoutException: Too slow.",
    )
    _, error = failure(WIRE, chunks({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}))
    assert error == "the provider reported overloaded_error: no"


def test_server_side_blocks_are_no_client_calls() -> None:
    body = chunks(*message(block_start(type="server_tool_use", id="s", name="web_search"), block_stop()))
    assert not [event for event in decode(WIRE, body) if hasattr(event, "call_id")]


@pytest.mark.parametrize(
    ("body", "stream", "whole", "tools"),
    [
        ({**ANTHROPIC, "tools": [{"name": "f", "input_schema": {"a": 1}}]}, "stream", "whole", {"f": {"a": 1}}),
        ({"prompt": "Hi", "max_gen_len": 5}, None, None, {}),
        ({"messages": [], "tools": [{"name": "f"}]}, None, None, {}),
    ],
)
def test_only_anthropic_s_answers_are_read(body: Any, stream: Any, whole: Any, tools: Any) -> None:
    """The path does not tell whose model it is, the request does."""
    provider, request = provider_of(WIRE), Request("/model/m/invoke", json.dumps(body).encode())
    assert provider.answer_kind(request, 200, "application/vnd.amazon.eventstream") == stream
    assert provider.answer_kind(request, 200, "application/json") == whole
    assert provider.answer_kind(request, 429, "application/json") is None
    assert provider.declared_tools(request) == tools


def test_results_in_request() -> None:
    assert results_in(WIRE, json.dumps(ANTHROPIC).encode()) == [MessageReceived("user", "Hi")]


def test_the_path_tells_what_is_streamed() -> None:
    for path, streamed in (("/model/m/invoke", False), ("/model/m/invoke-with-response-stream", True)):
        assert provider_of(WIRE).is_streamed(Request(path, b"{}")) is streamed
