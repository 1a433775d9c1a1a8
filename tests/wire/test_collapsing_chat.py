from __future__ import annotations

from typing import Any

import pytest

from tests.decoding import sse
from tests.wire.collapsing import Tap, every, named, no, payloads, tapped, tapped_at_any_split
from tests.wire.sdks import chat_helper, made_by

Chunk = dict[str, Any]


def chunk(delta: Chunk | None = None, *, finish: str | None = None, index: int = 0, **fields: Any) -> Chunk:
    choice: Chunk = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **fields}


def entry(index: int | None, text: str | None = "", *, name: str | None = None, id: str | None = None) -> Chunk:  # noqa: A002
    made: Chunk = {"function": {"arguments": text}}
    if index is not None:
        made["index"] = index
    if name is not None:
        made["function"]["name"] = name
        made["type"] = "function"
    if id is not None:
        made["id"] = id
    return made


def piece(*entries: Chunk, **fields: Any) -> Chunk:
    return chunk({"tool_calls": list(entries)}, **fields)


ROLE = chunk({"role": "assistant", "content": None})
FINISH = chunk(finish="tool_calls")


def whole(index: int, text: str, name: str = "write", id: str = "a") -> Chunk:  # noqa: A002
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": text}}


def calls(body: bytes, reader: Any = chat_helper) -> list[tuple[str, str, str]]:
    """The calls as the SDK accumulates them."""
    made = made_by(reader, body)["choices"][0]["calls"]
    return [(call["id"], call["name"], call["text"]) for call in made.values()]


def test_whole_call_is_one_chunk_before_the_finish() -> None:
    body = sse(
        ROLE, piece(entry(0, name="write", id="a")), piece(entry(0, '{"a"')), piece(entry(0, ":1}")), FINISH, done=True
    )
    result = tapped_at_any_split("openai_chat", body)
    assert payloads(result.body) == [ROLE, piece(whole(0, '{"a":1}')), FINISH]
    assert result.body.endswith(sse(FINISH, done=True))
    assert [output.call_ids for output in result.outputs] == [(), ("a",), (), ()]


def test_pieces_are_withheld_and_what_follows_waits() -> None:
    tap = Tap("openai_chat")
    before = sse(ROLE, chunk({"content": "hi"}))
    assert tap.feed(before) == before
    assert tap.feed(sse(piece(entry(0, "{", name="write", id="a")), piece(entry(0, "}")))) == b""
    after = sse(chunk({"content": "more"}))
    assert tap.feed(after) == b""
    assert tap.collapser.is_holding
    left = tap.feed(sse(FINISH))
    assert payloads(left) == [piece(whole(0, "{}")), chunk({"content": "more"}), FINISH]
    assert left.endswith(after + sse(FINISH))


def test_call_that_came_in_one_piece_passes_as_it_is() -> None:
    body = sse(ROLE, piece(whole(0, "{}")), piece(whole(1, '{"b":[]}', "other", "b")), FINISH, done=True)
    result = tapped_at_any_split("openai_chat", body)
    assert result.body == body
    assert result.call_ids == ["a", "b"]


def test_call_that_is_not_collapsed_passes_byte_for_byte() -> None:
    other = (piece(entry(0, name="other", id="o")), piece(entry(0, "{")), piece(entry(0, "}")))
    body = sse(ROLE, *other, piece(entry(1, "{", name="write", id="a")), piece(entry(1, "}")), FINISH)
    result = tapped_at_any_split("openai_chat", body, named("write"))
    assert result.body.startswith(sse(ROLE, *other))
    assert calls(result.body) == [("o", "other", "{}"), ("a", "write", "{}")]
    assert tapped_at_any_split("openai_chat", body, no).body == body


def test_rest_of_a_mixed_chunk_keeps_its_place() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    delta = {
        "role": "assistant",
        "content": "hi",
        "reasoning_details": [1],
        "tool_calls": [entry(0, "{}", name="f", id="a")],
    }
    last = chunk(delta, finish="tool_calls", usage=usage)
    result = tapped_at_any_split("openai_chat", sse(last))
    first, call, end = payloads(result.body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "hi", "reasoning_details": [1]}
    assert first["choices"][0]["finish_reason"] is None
    assert call["choices"][0]["delta"] == {"tool_calls": [whole(0, "{}", "f")]}
    assert (first["usage"], call["usage"]) == (None, None)
    assert end == chunk(finish="tool_calls", usage=usage)


def test_text_before_a_call_in_its_chunk_does_not_wait() -> None:
    tap = Tap("openai_chat")
    delta = {"content": "hi", "tool_calls": [entry(0, "{", name="write", id="a")]}
    assert payloads(tap.feed(sse(chunk(delta)))) == [chunk({"content": "hi"})]


def test_collapsed_and_observed_calls_in_one_chunk() -> None:
    both = piece(
        entry(0, "{", name="other", id="o"), entry(1, "{", name="write", id="a"), entry(2, "{", name="other", id="p")
    )
    more = piece(entry(0, "}"), entry(1, "}"), entry(2, "}"))
    result = tapped_at_any_split("openai_chat", sse(ROLE, both, more, FINISH), named("write"))
    assert calls(result.body) == [("o", "other", "{}"), ("a", "write", "{}"), ("p", "other", "{}")]
    tap = Tap("openai_chat", named("write"))
    assert payloads(tap.feed(sse(both))) == [piece(entry(0, "{", name="other", id="o"))]


def test_role_and_empty_content_leave_with_the_call() -> None:
    start = chunk({"role": "assistant", "content": None, "tool_calls": [entry(0, "{", name="write", id="a")]})
    later = chunk({"role": "assistant", "content": "", "tool_calls": [entry(0, "\n")]})
    result = tapped_at_any_split("openai_chat", sse(start, later, later, piece(entry(0, "}")), FINISH))
    delta = {"role": "assistant", "content": "", "tool_calls": [whole(0, "{\n\n}")]}
    assert payloads(result.body) == [chunk(delta), FINISH]


def test_role_leaves_even_if_its_call_is_left_out() -> None:
    start = chunk({"role": "assistant", "content": None, "tool_calls": [entry(0, "{", name="write", id="a")]})
    cut = tapped_at_any_split("openai_chat", sse(start, chunk(finish="length")))
    assert payloads(cut.body) == [chunk({"role": "assistant", "content": None}), chunk(finish="length")]
    again = tapped_at_any_split("openai_chat", sse(ROLE, start, chunk(finish="length")))
    assert payloads(again.body) == [ROLE, chunk(finish="length")]


@pytest.mark.parametrize("indices", [(None, None, None), (-1, -1, -1), (0, 0, 0), (1, 2, 3), (0, 2, 7), (0, 1, 2)])
def test_whole_calls_are_numbered_so_that_the_sdk_can_tell_them_apart(indices: tuple[int | None, ...]) -> None:
    made = [
        piece(entry(index, f'{{"n":{place}}}', name="write", id=f"i{place}")) for place, index in enumerate(indices)
    ]
    result = tapped_at_any_split("openai_chat", sse(ROLE, *made, FINISH))
    assert calls(result.body) == [(f"i{place}", "write", f'{{"n":{place}}}') for place in range(3)]


def test_id_is_minted_where_the_server_sent_none() -> None:
    body = sse(piece(entry(0, "{}", name="write")), FINISH)
    result = tapped_at_any_split("openai_chat", body)
    assert calls(result.body) == [("call_1", "write", "{}")]
    assert result.call_ids == ["call_1"]


def test_number_for_an_id_stays_one() -> None:
    start = piece({"index": 0, "id": 7, "type": "function", "function": {"name": "write", "arguments": "{}"}})
    assert tapped_at_any_split("openai_chat", sse(start, FINISH)).body == sse(start, FINISH)


def test_missing_type_and_arguments_are_filled_in() -> None:
    start = piece({"index": 0, "id": "a", "function": None}, {"index": 0, "function": {"name": "now"}})
    result = tapped_at_any_split("openai_chat", sse(start, FINISH))
    assert payloads(result.body)[0] == piece(whole(0, "{}", "now"))


def test_control_characters_leave_escaped() -> None:
    result = tapped_at_any_split("openai_chat", sse(piece(entry(0, '{"a":"x\ny"}', name="write", id="a")), FINISH))
    assert calls(result.body) == [("a", "write", '{"a":"x\\ny"}')]


def test_fields_of_any_piece_leave_with_the_call() -> None:
    """A signature of Gemini's, in its compatible endpoint's form, may come with any of them."""
    first = {**entry(0, "{", name="write", id="a"), "extra_content": None}
    second = {**entry(0, "}"), "extra_content": {"google": {"thought_signature": "s"}}}
    second["function"]["strict"] = True
    result = tapped_at_any_split("openai_chat", sse(piece(first), piece(second), FINISH))
    [made] = payloads(result.body)[0]["choices"][0]["delta"]["tool_calls"]
    assert made["extra_content"] == {"google": {"thought_signature": "s"}}
    assert made["function"] == {"name": "write", "arguments": "{}", "strict": True}


def test_usage_on_every_chunk_leaves_with_the_call() -> None:
    usage = [{"total_tokens": number} for number in range(4)]
    body = sse(
        chunk({"role": "assistant", "content": ""}, usage=usage[0]),
        piece(entry(0, "{", name="write", id="a"), usage=usage[1], x_server={"n": 1}),
        piece(entry(0, "}"), usage=usage[2], x_server={"n": 2}),
        chunk(finish="tool_calls", usage=usage[3]),
    )
    result = tapped_at_any_split("openai_chat", body)
    assert [each["usage"] for each in payloads(result.body)] == [usage[0], usage[2], usage[3]]
    assert payloads(result.body)[1]["x_server"] == {"n": 2}


def test_log_probabilities_keep_their_place() -> None:
    start = piece(entry(0, "{", name="write", id="a"))
    start["choices"][0]["logprobs"] = {"content": [{"token": "{"}]}
    result = tapped_at_any_split("openai_chat", sse(start, piece(entry(0, "}")), FINISH))
    made = [each["choices"][0].get("logprobs") for each in payloads(result.body)]
    assert made == [None, {"content": [{"token": "{"}]}, None]


def test_truncated_never_runs_call_is_left_out_and_the_finish_reason_kept() -> None:
    one, two = entry(0, "{}", name="write", id="a"), entry(1, '{"a', name="write", id="b")
    result = tapped_at_any_split("openai_chat", sse(ROLE, piece(one), piece(two), chunk(finish="length")))
    assert payloads(result.body) == [ROLE, piece(whole(0, "{}")), chunk(finish="length")]
    assert result.call_ids == ["a"]
    body = sse(ROLE, chunk({"content": "t"}), piece(two))
    assert tapped_at_any_split("openai_chat", body).body == sse(ROLE, chunk({"content": "t"}))


def test_calls_after_a_malformed_one_are_numbered_anew() -> None:
    made = [
        piece(entry(0, "{no}", name="write", id="a")),
        piece(entry(1, "{", name="other", id="b")),
        piece(entry(1, "}"), entry(2, "{", name="other", id="c")),
        piece(entry(3, '{"d":1}', name="write", id="d")),
        piece(entry(2, "}")),
    ]
    result = tapped_at_any_split("openai_chat", sse(ROLE, *made, FINISH), named("write"))
    assert calls(result.body) == [("b", "other", "{}"), ("c", "other", "{}"), ("d", "write", '{"d":1}')]


def test_mixed_chunk_after_a_malformed_call_is_numbered_anew() -> None:
    made = [
        piece(entry(0, "{no}", name="write", id="a")),
        piece(entry(1, "{", name="other", id="b"), entry(2, "{", name="write", id="c")),
        piece(entry(1, "}"), entry(2, "}"), entry(None, "", name="other", id="x")),
    ]
    result = tapped_at_any_split("openai_chat", sse(ROLE, *made, FINISH), named("write"))
    indices = [
        call.get("index")
        for each in payloads(result.body)
        for choice in each["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert indices == [0, 1, 0, None]


def test_choices_are_numbered_by_themselves() -> None:
    def of(number: int, *entries: Chunk, finish: str | None = None) -> Chunk:
        return {"index": number, "delta": {"tool_calls": list(entries)} if entries else {}, "finish_reason": finish}

    def many(*choices: Chunk) -> Chunk:
        return {**chunk(), "choices": list(choices)}

    body = sse(
        many(
            of(0, entry(0, "{}", name="write", id="a")), {"index": 1, "delta": {"content": "t"}, "finish_reason": None}
        ),
        many(of(1, entry(0, "{no}", name="write", id="b"))),
        many(of(1, entry(1, "{}", name="write", id="c")), {"index": 2, "finish_reason": None}),
        many(of(0, finish="tool_calls"), of(1, finish="tool_calls")),
    )
    result = tapped_at_any_split("openai_chat", body)
    made = [
        (choice["index"], call["index"], call["id"])
        for each in payloads(result.body)
        for choice in each["choices"]
        for call in (choice.get("delta") or {}).get("tool_calls", ())
    ]
    assert made == [(0, 0, "a"), (1, 0, "c")]
    assert result.call_ids == ["a", "c"]


def test_legacy_function_call() -> None:
    def legacy(**fields: Any) -> Chunk:
        return chunk({"function_call": fields})

    body = sse(ROLE, legacy(name="write", arguments=""), legacy(arguments='{"a"'), legacy(arguments=":1}"))
    end = sse(chunk(finish="function_call"), done=True)
    result = tapped_at_any_split("openai_chat", body + end)
    assert payloads(result.body) == [ROLE, legacy(name="write", arguments='{"a":1}'), chunk(finish="function_call")]
    assert result.call_ids == ["call_1"]
    assert tapped_at_any_split("openai_chat", body + end, no).body == body + end
    cut = tapped_at_any_split("openai_chat", body + sse(chunk(finish="length")))
    assert payloads(cut.body) == [ROLE, chunk(finish="length")]
    mixed = chunk(
        {"function_call": {"name": "other", "arguments": "{}"}, "tool_calls": [entry(1, "{}", name="write", id="a")]}
    )
    both = tapped("openai_chat", [sse(mixed, FINISH)], named("write"))
    assert [list(each["choices"][0]["delta"]) for each in payloads(both.body)] == [
        ["tool_calls"],
        ["function_call"],
        [],
    ]


def test_custom_tool_text_leaves_as_input() -> None:
    start = piece({"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": ""}})
    more = [piece({"index": 0, "custom": {"input": text}}) for text in ('echo "', 'x"\n')]
    result = tapped_at_any_split("openai_chat", sse(ROLE, start, *more, FINISH))
    custom = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": 'echo "x"\n'}}
    assert payloads(result.body) == [ROLE, piece(custom), FINISH]


def test_done_sentinel_completes_calls_before_it() -> None:
    result = tapped_at_any_split(
        "openai_chat", sse(ROLE, piece(entry(0, "{", name="write", id="a")), piece(entry(0, "}")), done=True)
    )
    assert payloads(result.body) == [ROLE, piece(whole(0, "{}"))]
    assert result.body.endswith(b"data: [DONE]\n\n")


def test_nameless_held_until_the_name_is_known() -> None:
    for collapse in (every, no):
        tap = Tap("openai_chat", collapse)
        first, text, second = piece(entry(0, "{", id="a")), chunk({"content": "t"}), piece(entry(0, "}", name="write"))
        assert tap.feed(sse(first, text)) == b""
        left = tap.feed(sse(second, FINISH))
        assert (left == sse(first, text, second, FINISH)) == (collapse is no)
        assert calls(left) == [("a", "write", "{}")]


def test_second_response_in_the_body_is_numbered_from_the_beginning() -> None:
    first = sse(
        ROLE, piece(entry(0, "{no}", name="write", id="a")), piece(entry(1, "{}", name="write", id="b")), FINISH
    )
    again = chunk({"role": "assistant", "tool_calls": [whole(0, "{}", id="c")]}, id="c2")
    second = sse(again, chunk(finish="tool_calls", id="c2"), done=True)
    result = tapped_at_any_split("openai_chat", first + second)
    assert result.body.endswith(second)
    assert result.call_ids == ["b", "c"]


def test_error_chunk_passes_after_the_open_call_was_left_out() -> None:
    error = sse({"error": {"message": "overloaded", "code": 503}})
    result = tapped_at_any_split("openai_chat", sse(ROLE, piece(entry(0, "{", name="write", id="a"))) + error)
    assert result.body == sse(ROLE) + error
    assert result.error is not None
    assert result.error.provider_message == "overloaded"
    bare = tapped("openai_chat", [error])
    assert bare.body == error


def test_error_in_the_chunk_of_a_call_passes_without_the_piece() -> None:
    both = piece(entry(0, "}"), error={"message": "overloaded"}, finish="error")
    result = tapped("openai_chat", [sse(ROLE, piece(entry(0, "{", name="write", id="a")), both)])
    assert payloads(result.body) == [ROLE, chunk(finish="error", error={"message": "overloaded"})]


def test_rest_of_a_chunk_that_breaks_the_wire_has_no_owner() -> None:
    """Text after the end of a call is an error; what follows in the chunk is nobody's, and may not be executed."""
    start = sse(ROLE, piece(entry(0, "{}", name="write", id="a")), FINISH)
    broken = piece({**entry(0, "more"), "id": "a"}, entry(1, "{}", name="write", id="b"))
    result = tapped("openai_chat", [start + sse(broken)])
    assert result.error is not None
    assert calls(result.body) == [("a", "write", "{}")]


def test_empty_piece_after_the_end_is_dropped() -> None:
    start = sse(ROLE, piece(entry(0, "{}", name="write", id="a")), FINISH)
    result = tapped("openai_chat", [start + sse(piece(entry(0, "")), chunk({}), done=True)])
    assert payloads(result.body)[3:] == [chunk(), chunk()]


def test_comments_pass_in_their_place() -> None:
    comment = b": OPENROUTER PROCESSING\n\n"
    start, end = piece(entry(0, "{", name="write", id="a")), piece(entry(0, "}"))
    result = tapped_at_any_split("openai_chat", comment + sse(ROLE, start) + comment + sse(end, FINISH))
    assert result.body.startswith(comment + sse(ROLE))
    assert result.body.endswith(comment + sse(FINISH))


def test_piece_that_holds_more_is_taken_apart() -> None:
    start = piece(entry(0, "{", name="write", id="a"))
    spoken = chunk({"reasoning_content": "hm", "tool_calls": [entry(0, '"a":1')]})
    two = {**chunk(), "choices": [piece(entry(0, "}"))["choices"][0], {"index": 1, "delta": {"content": "x"}}]}
    beside = {**chunk(), "choices": [piece(entry(0, " "))["choices"][0], {"index": 1, "delta": {"tool_calls": []}}]}
    named_event = sse(beside) + b"event: chunk\n" + sse(piece(entry(0, " ")))
    result = tapped_at_any_split("openai_chat", sse(ROLE, start) + named_event + sse(spoken, two, FINISH))
    assert payloads(result.body)[1] == piece(whole(0, '{  "a":1}'))
    assert payloads(result.body)[2]["choices"] == [{"index": 1, "delta": {}}]
    assert payloads(result.body)[3] == chunk({"reasoning_content": "hm"})
    assert payloads(result.body)[4]["choices"] == [{"index": 1, "delta": {"content": "x"}}]
