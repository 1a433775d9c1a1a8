"""What is peculiar to Ollama's wire, and to JSON lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.errors import WireError
from callstream.events import MessageReceived, ResultReceived
from callstream.wire import decoder_for, provider_of, results_in
from callstream.wire.framing import JsonLinesFraming
from callstream.wire.requests import Request
from tests.decoding import calls, decode, ended, failure, only_call, reasoning, text, whole
from tests.sdks import SDKS
from tests.wire.collapsing import named, no, tapped_at_any_split

Line = dict[str, Any]


def line(done: bool = False, done_reason: str | None = None, **message: Any) -> Line:
    said = {"role": "assistant", "content": "", **message}
    end = {"done_reason": done_reason, "eval_count": 3} if done else {}
    return {"model": "m", "created_at": "t", "message": said, "done": done, **end}


def entry(name: str = "write", arguments: Any = None, call_id: str | None = None) -> Line:
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    return {"function": function} if call_id is None else {"id": call_id, "function": function}


def lines(*made: Line, ending: str = "\n") -> bytes:
    return "".join(json.dumps(each) + ending for each in made).encode()


END = line(True, "stop")


# -- decoding --


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n \n"])
def test_text_thinking_and_calls(ending: str) -> None:
    made = [
        line(thinking="Hm."),
        line(content="Hello "),
        line(content="there."),
        line(tool_calls=[entry(arguments={"a": 1}, call_id="c1")]),
        END,
    ]
    found = decode("ollama", lines(*made, ending=ending))
    assert (text(found), reasoning(found)) == ("Hello there.", "Hm.")
    assert (only_call(found).provider_id, only_call(found).args) == ("c1", {"a": 1})
    assert [(end.finish_reason, end.usage) for end in ended(found)] == [("stop", {"eval_count": 3})]


def test_call_is_complete_with_its_line_unless_the_length_limit_follows() -> None:
    called = line(tool_calls=[entry(), entry("other", {"b": [1]})])
    for rest in ([], [END]):
        found = decode("ollama", lines(called, *rest))
        assert [(each.name, each.args) for each in calls(found)] == [("write", {}), ("other", {"b": [1]})]
        assert [each.provider_id for each in calls(found)] == [None, None]
    cut = decode("ollama", lines(called, line(True, "length")))
    assert [each.outcome for each in calls(cut)] == ["completed", "truncated"]


def test_last_line_without_its_end_counts_if_it_is_whole() -> None:
    body = lines(line(tool_calls=[entry()]), END)
    assert only_call(decode("ollama", body[:-1])).outcome == "completed"
    assert ended(decode("ollama", body[:-5]))[0].finish_reason is None


def test_arguments_that_are_text_or_missing() -> None:
    for given, outcome in ((None, "completed"), ('{"a": 1}', "completed"), ('{"a', "malformed")):
        call = {"function": {"name": "write", "arguments": given}}
        assert only_call(decode("ollama", lines(line(tool_calls=[call]), END))).outcome == outcome
    cut = {"function": {"name": "write", "arguments": '{"a'}}
    assert only_call(decode("ollama", lines(line(tool_calls=[cut]), line(True, "length")))).outcome == "truncated"
    assert calls(decode("ollama", lines(line(tool_calls=[{}]), END))) == []


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (b'{"error": "out of memory"}\n', "the provider reported an error: out of memory"),
        (b'{"error": {"message": "no"}}\n', "the provider reported an error: no"),
        (b'{"odd": 1}\n', "expected a line of the ollama wire"),
        (b"<html>\n", "expected JSON of the ollama wire"),
        (b'data: {"message": {}}\n', "expected JSON of the ollama wire"),
        (b"[]\n", "expected"),
    ],
)
def test_lines_that_are_not_the_wire(bad: bytes, match: str) -> None:
    found, error = failure("ollama", lines(line(content="Hi")) + bad)
    assert match in error
    assert text(found) == "Hi"


def test_two_responses_in_one_body() -> None:
    assert len(ended(decode("ollama", lines(line(content="a"), END, line(content="b"), END)))) == 2


def test_whole_answer() -> None:
    found = whole("ollama", line(True, "stop", content="Hi.", thinking="Hm.", tool_calls=[entry(call_id="c1")]))
    assert (text(found), reasoning(found), only_call(found).args) == ("Hi.", "Hm.", {})
    assert ended(whole("ollama", line(content="Hi.")))[0].finish_reason is None
    with pytest.raises(WireError, match="expected a line of the ollama wire"):
        decoder_for("ollama").whole(b"{}")
    body = json.dumps(line(True, "stop", tool_calls=[entry(arguments="{no"), entry()])).encode()
    decoder = decoder_for("ollama")
    events = decoder.whole(body)
    made = provider_of("ollama").without_unfinished(body, decoder, events, collapse=lambda name: True)
    assert json.loads(made)["message"]["tool_calls"] == [entry()]


# -- framing --


def test_line_that_is_too_long() -> None:
    for pieces in ([b"123456"], [b"123", b"456"], [b"12\n123456\n1"], [b"12\n", b"123456"], [b"1\n12345678"]):
        framing = JsonLinesFraming(max_frame_bytes=5)
        frames = [frame for piece in pieces for frame in framing.feed(piece)]
        assert frames[-1].error is not None
        assert b"".join(frame.raw for frame in frames) + framing.pop_rest() == b"".join(pieces)
    assert JsonLinesFraming().end() == []


# -- collapsing --


def read(body: bytes) -> list[Any]:
    return [json.loads(each) for each in body.splitlines()]


def test_call_with_an_id_passes_as_it_came_and_one_without_gets_one() -> None:
    body = lines(line(tool_calls=[entry(call_id="c1")]), END)
    result = tapped_at_any_split("ollama", body)
    assert (result.body, result.call_ids) == (body, ["c1"])
    result = tapped_at_any_split("ollama", lines(line(tool_calls=[entry()]), END))
    assert [each["message"].get("tool_calls") for each in read(result.body)] == [[entry(call_id="call_1")], None]
    assert tapped_at_any_split("ollama", body, no).body == body


def test_line_with_several_calls_is_cut_into_one_for_each() -> None:
    several = line(True, "stop", content="Hi", tool_calls=[entry(call_id="a"), entry("other"), entry(call_id="b")])
    result = tapped_at_any_split("ollama", lines(several), named("write"))
    assert result.call_ids == ["a", "b"]
    first, second, last = read(result.body)
    assert [each["message"]["tool_calls"] for each in (first, second, last)] == [
        [entry(call_id="a")],
        [entry("other")],
        [entry(call_id="b")],
    ]
    assert [(each["done"], each["message"]["content"]) for each in (first, second, last)] == [
        (False, ""),
        (False, ""),
        (True, "Hi"),
    ]
    assert last["eval_count"] == 3
    assert SDKS["ollama"].read(result.body).told == SDKS["ollama"].read(lines(several)).told


def test_call_that_is_left_out_leaves_what_is_beside_it() -> None:
    bad = entry(arguments="{no")
    result = tapped_at_any_split("ollama", lines(line(tool_calls=[bad]), line(content="Hi", tool_calls=[bad]), END))
    assert [each["message"] for each in read(result.body)] == [
        {"role": "assistant", "content": "Hi"},
        {"role": "assistant", "content": ""},
    ]


def test_what_is_written_has_no_line_end_of_unicode_in_it() -> None:
    odd = "a\u2028b\u2029c\x85d"
    body = json.dumps(line(tool_calls=[entry(arguments={"a": odd})]), ensure_ascii=False).encode() + b"\n" + lines(END)
    result = tapped_at_any_split("ollama", body)
    assert SDKS["ollama"].read(result.body).calls == [(None, "write", {"a": odd})]


# -- requests --


def test_results_by_id_by_name_and_by_order() -> None:
    asked = {"role": "assistant", "tool_calls": [entry("a", call_id="1"), entry("b", call_id="2"), entry("b")]}

    def results(*messages: Line) -> list[Any]:
        body = json.dumps({"messages": [{"role": "user", "content": "go"}, asked, *messages]}).encode()
        return results_in("ollama", body)

    tool = {"role": "tool", "content": "x"}
    assert results({**tool, "tool_call_id": "2"}, tool, {**tool, "tool_name": "b"}) == [
        ResultReceived("2", "b", "x"),
        ResultReceived("1", "a", "x"),
        ResultReceived(None, "b", "x"),
    ]
    assert results({**tool, "tool_name": "c"}, {**tool, "tool_call_id": "9"}) == [
        ResultReceived(None, "c", "x"),
        ResultReceived("9", None, "x"),
    ]


def test_messages_and_images() -> None:
    body = {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look", "images": ["x"]}]
    }
    assert results_in("ollama", json.dumps(body).encode()) == [MessageReceived("user", "Look", attachments=("image",))]
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert results_in("ollama", json.dumps(body).encode()) == [MessageReceived("user", "Hi")]


def test_content_type_decides() -> None:
    provider = provider_of("ollama")
    streamed, unstreamed = Request("/api/chat", b"{}"), Request("/api/chat", b'{"stream": false}')
    assert provider.answer_kind(streamed, 200, "application/x-ndjson") == "stream"
    assert provider.answer_kind(streamed, 200, "application/json") is None
    assert provider.answer_kind(streamed, 200, "text/event-stream") is None
    assert provider.answer_kind(unstreamed, 200, "application/json; charset=utf-8") == "whole"
    assert provider.is_streamed(streamed)
    assert not provider.is_streamed(unstreamed)
    noted = provider.add_notes(Request("/api/chat", b'{"messages":[{"role":"user","content":"go"}]}'), {"c1": "no"})
    assert noted is not None
    assert noted.fields["messages"][0]["content"] == "go\n\nno"
