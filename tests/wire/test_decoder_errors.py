"""Errors in a stream, limits, and answers that are whole, on every wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.errors import UsageError, WireError
from callstream.events import CallCompleted, CallDiscarded, CallStarted, MessageEnded
from callstream.wire import decoder_for
from callstream.wire.decoder import error_in
from tests.decoding import bytewise, calls, decode, ended, failure, fed, only_call, sse, text, whole
from tests.wire.payloads import (
    block_start,
    block_stop,
    call_end,
    call_start,
    called,
    choice,
    chunk,
    done,
    function,
    generated,
    step,
    step_start,
    tool_calls,
)
from tests.wire.test_decoder import SSE_WIRES, ends, every_wire, opened, spoken

# -- errors --


@every_wire
def test_events_before_an_error_are_returned_first(wire: str) -> None:
    body = sse(*opened(wire, "x" if wire == "gemini" else "{")) + b"data: oops\n\n"
    decoder = decoder_for(wire)
    events = decoder.feed(body)
    assert isinstance(events[-2], CallDiscarded)
    assert events[-2].reason == "interrupted"
    assert "oops" in (events[-2].detail or "")
    assert isinstance(events[-1], MessageEnded)
    with pytest.raises(WireError, match="oops") as first:
        decoder.feed(b"")
    for again in (lambda: decoder.feed(body), decoder.end, lambda: decoder.whole(b"{}")):
        with pytest.raises(WireError) as later:
            again()
        assert later.value is first.value


@every_wire
def test_error_with_nothing_before_it_is_raised_at_once(wire: str) -> None:
    with pytest.raises(WireError, match="oops"):
        decoder_for(wire).feed(b"data: oops\n\n")


@every_wire
@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"<html><body>502 Bad Gateway</body></html>", "expected server-sent events, got b'<html>"),
        (b"upstream request timeout", "expected server-sent events, got b'upstream"),
        (b'{"error": {"message": "no"}}', 'expected server-sent events, got b\'{"error"'),
        (b"data: <html>\n\n", "got b'<html>'"),
        (b"data: 17\n\n", "expected"),
        (b'data: "text"\n\n', "expected"),
        (b"data: [1, 2]\n\n", "expected"),
        (b'data: {"a": \xff}\n\n', "expected JSON of the"),
        (b'data: {"type": "\xff\xfe"}\n\n', "expected"),
        (b'data: {"x": "cut\n\n', "expected JSON of the"),
        (b'data: {"candidate": [], "choice": [], "type": "x", "event_type": "x"}\n\n', "expected a response of the"),
        (b'event: error\ndata: {"message": "no"}\n\n', "the provider reported an error: no"),
        (b"event: error\ndata: no\n\n", "the provider reported an error: no"),
        (b"event: error\ndata: 5\n\n", "the provider reported an error: 5"),
        (b"event: error\ndata:\n\n", "the provider reported an error"),
    ],
)
def test_bytes_that_are_not_the_wire(wire: str, body: bytes, match: str) -> None:
    events, error = failure(wire, body)
    assert events == []
    assert match in error


@every_wire
def test_event_that_the_body_ends_in(wire: str) -> None:
    whole_body = sse(spoken(wire, "Hi"), *opened(wire, "x" if wire == "gemini" else "{}"), *ends(wire, normal=True))
    assert only_call(decode(wire, whole_body.removesuffix(b"\n\n"))).outcome == "completed"
    assert text(decode(wire, whole_body[:-9])) == "Hi"
    assert decode(wire, b"") == []
    assert decode(wire, b": nothing\n\ndata: [DONE]\n\ndata:\n\ndata:  \n\n") == []


@every_wire
def test_error_at_the_very_end_is_not_lost(wire: str) -> None:
    body = sse(*opened(wire)) + b'event: error\ndata: {"error": "no"}'
    events, error = failure(wire, body)
    assert error == "the provider reported an error: no"
    assert only_call(events).outcome == "interrupted"


@every_wire
def test_bare_json_in_the_middle_of_a_stream(wire: str) -> None:
    events, error = failure(wire, sse(*opened(wire)) + b'{"error": "overloaded"}\n\n' + sse(*ends(wire, normal=True)))
    assert error == 'expected server-sent events, got b\'{"error": "overloaded"}\''
    assert only_call(events).outcome == "interrupted"


@every_wire
def test_text_that_a_line_break_cut_out_is_not_quoted(wire: str) -> None:
    _, error = failure(wire, sse(*opened(wire)) + b'{"path": "/home/ann", "error": "secret"}\n\n')
    assert error == """expected server-sent events, got b'{"path": "...", "error": "..."}'"""


@every_wire
def test_sentinel_ends_nothing_twice(wire: str) -> None:
    body = sse(*opened(wire, "x" if wire == "gemini" else "{}"), *ends(wire, normal=True), done=True)
    events = decode(wire, body + b"data: [DONE] \n\n")
    assert len(ended(events)) == 1
    assert only_call(events).outcome == "completed"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"error": {"message": "no", "type": "kind"}}, "the provider reported kind: no"),
        ({"error": {"message": "no", "status": "UNAVAILABLE", "code": 503}}, "the provider reported UNAVAILABLE: no"),
        ({"error": "no"}, "the provider reported an error: no"),
        ({"error": {"detail": "no"}}, "the provider reported an error: no"),
        ({"error": {}, "msg": "no"}, None),
        ({"msg": "no", "code": 7}, "the provider reported 7: no"),
        ({"detail": "no"}, "the provider reported an error: no"),
        ({"error": "no", "message": "yes", "type": "error"}, "the provider reported an error: no"),
        ({"a": 1}, None),
    ],
)
def test_error_in_all_shapes_that_occur(value: Any, message: str | None) -> None:
    error = error_in(value)
    assert (None if error is None else str(error)) == message
    if error is not None:
        assert error.provider_message == "no"


# -- limits --


@every_wire
def test_depth_and_size_limits(wire: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for field in ("candidates", "usage", "extra", "message"):
        body = f'data: {{"type": "message_start", "{field}": {deep}}}\n\n'.encode()
        with pytest.raises(WireError, match=r"nested too deep|expected"):
            decoder_for(wire).feed(body)
    with pytest.raises(WireError, match="the provider reported an error"):
        decoder_for(wire).feed(f"event: error\ndata: {deep}\n\n".encode())
    cut_off = decoder_for(wire)
    cut_off.feed(f"data: {deep}".encode())
    assert cut_off.end() == []
    with pytest.raises(WireError):
        decoder_for(wire).whole(deep.encode())


@pytest.mark.parametrize("wire", [wire for wire in SSE_WIRES if wire != "gemini"])
def test_arguments_nested_too_deep_to_read_are_malformed(wire: str) -> None:
    deep = "[" * 5_000 + "]" * 5_000
    assert only_call(decode(wire, sse(*opened(wire, deep), *ends(wire, normal=True)))).outcome == "malformed"


def test_depth_of_whole_arguments() -> None:
    before, after = json.dumps(generated(function(name="f", args={"a": "HERE"}))).encode().split(b'"HERE"')
    for depth in range(300, 1100, 10):
        body = b"data: " + before + b"[" * depth + b"]" * depth + after + b"\n\n"
        events, error = fed(decoder_for("gemini"), [body, sse(generated(finish="STOP"))])
        outcomes = [call.outcome for call in calls(events)]
        assert outcomes in (["completed"], ["malformed"]) or (error is not None and "nested" in str(error))


# -- whole answers and the door --


@every_wire
@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"<html>", "expected JSON of the"),
        (b"{}", "expected a"),
        (b'{"odd": 1}', "expected a"),
        (b"[]", "expected"),
        (b'{"error": {"message": "no", "type": "kind"}}', "the provider reported kind: no"),
        (b'{"type": "error", "error": {"message": "no"}}', "the provider reported an error: no"),
    ],
)
def test_whole_answer_that_is_none(wire: str, body: bytes, match: str) -> None:
    decoder = decoder_for(wire)
    with pytest.raises(WireError, match=match):
        decoder.whole(body)
    with pytest.raises(WireError, match=match):
        decoder.feed(b"")


def test_whole_answers_that_failed() -> None:
    for wire, answer, match in (
        ("openai_responses", {"status": "failed", "output": []}, "the response failed"),
        ("openai_responses", {"status": "failed", "error": {"message": "no"}}, "reported an error: no"),
        ("anthropic", {"type": "error"}, "reported an error"),
        ("openai_chat", chunk(choice(None, "error", error={"message": "no"})), "reported an error: no"),
        ("openai_chat", {"message": "no"}, "reported an error: no"),
        ("cohere", {"message": "no"}, "reported an error: no"),
    ):
        with pytest.raises(WireError, match=match):
            whole(wire, answer)


def test_unknown_wire_is_the_caller_s_fault() -> None:
    with pytest.raises(UsageError, match="expected one of the wires gemini, anthropic, openai_chat, openai_responses"):
        decoder_for("smoke_signals")


@every_wire
def test_default_ids_are_counted(wire: str) -> None:
    payloads: dict[str, Any] = {
        "anthropic": [block_start(0, type="tool_use", name="f"), block_stop()],
        "openai_chat": [tool_calls(called("{}", "f", index=None), called("{}", "g", index=None))],
        "openai_responses": [done({"type": "function_call", "name": "f", "arguments": "{}"})],
        "gemini_interactions": [step_start(0, id=None), step("stop"), step_start(1, id=None), step("stop", 1)],
        "cohere": [call_start(0, call_id=None), call_end(0), call_start(1, call_id=None), call_end(1)],
        "gemini": [generated(function(name="f"), function(name="g"))],
    }
    events = decode(wire, sse(*payloads[wire], *ends(wire, normal=True)))
    ids = [item.call_id for item in events if isinstance(item, CallStarted)]
    assert ids == ["call_1", "call_2"][: len(ids)]
    assert all(item.provider_id is None for item in events if isinstance(item, CallStarted))
    assert len([item for item in events if isinstance(item, CallCompleted)]) == len(ids)


@every_wire
def test_bytes_one_by_one_give_events_as_early_as_they_can(wire: str) -> None:
    """A delta is given by the byte that ends its event, and not later."""
    body = sse(spoken(wire, "Hi"))
    decoder = decoder_for(wire)
    given = [bool(decoder.feed(byte)) for byte in bytewise(body)]
    assert given == [False] * (len(body) - 1) + [True]


@every_wire
@pytest.mark.parametrize("odd", [b'"\\ud800": 1', b'"unread": "\xff"', b'"\xff": 1', b'"unread": {"\xc3": "\xc3("}'])
def test_what_is_no_text_is_a_wire_error_wherever_it_stands(wire: str, odd: bytes) -> None:
    """A lone surrogate in the name of a field, and bytes that are not UTF-8 in a field that is not read."""
    for payload in (*opened(wire, "{"), spoken(wire, "hello")):
        broken = json.dumps(payload).encode()[:-1] + b", " + odd + b"}"
        for body in (b"data: " + broken + b"\n\n", *([b"[" + broken + b"]"] if wire == "gemini" else [])):
            decoder = decoder_for(wire)
            with pytest.raises(WireError):
                decoder.feed(body)
        with pytest.raises(WireError):
            decoder_for(wire).whole(broken)
    decoder = decoder_for(wire)
    decoder.feed(sse(*opened(wire, "")))
    events = decoder.feed(b"data: " + broken + b"\n\n")
    assert [event.reason for event in events if isinstance(event, CallDiscarded)] == ["interrupted"]
    assert isinstance(decoder.error, WireError)
