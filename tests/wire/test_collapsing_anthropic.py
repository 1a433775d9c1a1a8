from __future__ import annotations

from typing import Any

import pytest

from callstream.wire.requests import LoneReasoning
from tests.decoding import sse
from tests.wire.collapsing import Collapse, Tap, every, named, no, payloads, tapped, tapped_at_any_split
from tests.wire.sdks import anthropic_helper, made_by

Event = dict[str, Any]
START: Event = {
    "type": "message_start",
    "message": {"id": "m1", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None}
    | {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}},
}
PING: Event = {"type": "ping"}


def events(*made: Event) -> bytes:
    return sse(*made, event=True)


def block(index: int, kind: str, *deltas: Event, stopped: bool = True, **fields: Any) -> list[Event]:
    start = {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}
    made = [start, *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)]
    return [*made, {"type": "content_block_stop", "index": index}] if stopped else made


def call(index: int, *texts: str, name: str = "write", input: Any = None, stopped: bool = True) -> list[Event]:  # noqa: A002
    deltas = ({"type": "input_json_delta", "partial_json": text} for text in texts)
    return block(index, "tool_use", *deltas, id=f"t{index}", name=name, input=input or {}, stopped=stopped)


def text(index: int, *texts: str) -> list[Event]:
    return block(index, "text", *({"type": "text_delta", "text": each} for each in texts), text="")


def thinking(index: int, *texts: str) -> list[Event]:
    deltas = [{"type": "thinking_delta", "thinking": each} for each in texts]
    signed = {"type": "signature_delta", "signature": f"s{index}"}
    return block(index, "thinking", *deltas, signed, thinking="", signature="")


def redacted(index: int) -> list[Event]:
    return block(index, "redacted_thinking", data="xyz")


def stop(reason: str = "tool_use") -> list[Event]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]


def message(*blocks: list[Event], reason: str = "tool_use") -> bytes:
    return events(START, *(event for each in blocks for event in each), *stop(reason))


def content(body: bytes) -> list[Any]:
    """The blocks as the SDK accumulates them."""
    made = made_by(anthropic_helper, body)
    return made["message"]["content"]


def test_whole_call_is_start_one_delta_and_stop() -> None:
    made = call(0, "", '{"a"', ": 1}")
    result = tapped_at_any_split("anthropic", message(made))
    start, first, *_, end = made
    delta = {**first, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}}
    assert payloads(result.body) == [START, start, delta, end, *stop()]
    whole = next(output for output in result.outputs if output.call_ids)
    assert whole.call_ids == ("t0",)
    assert whole.data.startswith(events(start))
    assert whole.data.endswith(events(end))


def test_pieces_are_withheld_and_what_follows_waits() -> None:
    tap = Tap("anthropic")
    first = events(START, *text(0, "hi"))
    assert tap.feed(first) == first
    assert tap.feed(events(*call(1, "", "{", "}", stopped=False), PING)) == b""
    assert tap.collapser.is_holding
    assert tap.feed(events({"type": "content_block_stop", "index": 1})) == b""
    after = events(*text(2, "bye"))
    assert tap.feed(after).endswith(events(PING) + after)
    assert not tap.collapser.is_holding


def test_call_that_is_not_collapsed_passes_byte_for_byte() -> None:
    body = message(thinking(0, "a"), call(1, "{", "}", name="other"), call(2, "{}"))
    result = tapped_at_any_split("anthropic", body, named("write"))
    assert result.body == body
    assert result.call_ids == ["t2"]
    assert tapped_at_any_split("anthropic", body, no).body == body


@pytest.mark.parametrize("texts", [(), ("",)], ids=["no delta", "an empty delta"])
def test_input_in_the_start_becomes_a_delta(texts: tuple[str, ...]) -> None:
    """Not every reader looks for it in the start."""
    result = tapped_at_any_split("anthropic", message(call(0, *texts, input={"a": 1}), text(1, "t")))
    assert payloads(result.body) == [START, *call(0, '{"a":1}'), *text(1, "t"), *stop()]
    assert content(result.body)[0]["input"] == {"a": 1}
    assert result.call_ids == ["t0"]


def test_call_without_arguments_gets_an_empty_object() -> None:
    result = tapped_at_any_split("anthropic", message(call(0, "", name="now"), text(1, "t")))
    assert content(result.body)[0]["input"] == {}
    assert result.call_ids == ["t0"]


def test_call_without_a_stop_is_passed_on_without_one() -> None:
    result = tapped_at_any_split("anthropic", message(call(0, "{", "}", stopped=False)))
    assert [event["type"] for event in payloads(result.body)].count("content_block_stop") == 0
    assert result.call_ids == ["t0"]


def test_truncated_never_runs_call_is_left_out_and_the_stop_reason_kept() -> None:
    result = tapped_at_any_split("anthropic", message(text(0, "t"), call(1, '{"a": "b'), reason="max_tokens"))
    assert result.body == message(text(0, "t"), reason="max_tokens")
    assert result.call_ids == []


def test_thinking_before_a_truncated_call_is_known_to_be_lone() -> None:
    for reasoning, names in (
        ([thinking(1, "hm")], ["s1"]),
        ([redacted(1)], ["xyz"]),
        ([thinking(1, "hm"), redacted(2)], ["s1", "xyz"]),
    ):
        cut = call(len(reasoning) + 1, '{"a": "b')
        result = tapped_at_any_split("anthropic", message(text(0, "t"), *reasoning, cut, reason="max_tokens"))
        assert result.body == message(text(0, "t"), *reasoning, reason="max_tokens")
        assert all(result.lone.has(name) for name in names)


@pytest.mark.parametrize("collapse", [every, None])
def test_thinking_passes_at_once(collapse: Collapse | None) -> None:
    tap = Tap("anthropic", collapse)
    for event in (START, *thinking(0, "a", "b")):
        assert tap.feed(events(event)) == events(event)
    assert tap.end() == b""
    assert not tap.lone


def test_thinking_before_a_call_does_not_wait_for_it() -> None:
    body = message(thinking(0, "a"), call(1, "{}"))
    tap = Tap("anthropic")
    tap.feed(events(START))
    assert tap.feed(events(*thinking(0, "a"), *call(1, "{", stopped=False))) == events(*thinking(0, "a"))
    assert tap.feed(events({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta"}})) == b""
    result = tapped_at_any_split("anthropic", body)
    assert result.body == body
    assert not result.lone


def test_thinking_stays_as_long_as_something_that_it_led_to_does() -> None:
    """Without it the calls that follow would be refused."""
    malformed, whole = call(1, "{no}"), call(2, "{}")
    result = tapped_at_any_split("anthropic", message(thinking(0, "a"), malformed, whole))
    assert [each["type"] for each in content(result.body)] == ["thinking", "tool_use"]
    assert not result.lone
    result = tapped_at_any_split("anthropic", message(thinking(0, "a"), malformed, text(2, "t")))
    assert [each["type"] for each in content(result.body)] == ["thinking", "text"]
    assert not result.lone


def test_thinking_that_led_to_a_left_out_call_is_lone_before_the_next_thinking() -> None:
    blocks = (thinking(0, "a"), call(1, "{no}"), thinking(2, "b"), call(3, "{}"))
    result = tapped_at_any_split("anthropic", message(*blocks))
    assert [each.get("thinking") or each["id"] for each in content(result.body)] == ["a", "b", "t3"]
    assert result.lone.has("s0")
    assert not result.lone.has("s2")


def test_text_after_thinking_shows_that_it_led_to_something() -> None:
    tap = Tap("anthropic")
    tap.feed(message(thinking(0, "a"), call(1, "{no}")))
    assert tap.lone.has("s0")
    tap.feed(message(thinking(0, "a"), text(1, "t"), call(2, "{no}")))  # a server that signs everything alike
    assert not tap.lone


def test_thinking_at_the_end_of_a_message_stays_if_no_call_was_left_out() -> None:
    body = message(text(0, "t"), thinking(1, "a"), reason="max_tokens")
    result = tapped_at_any_split("anthropic", body)
    assert result.body == body
    assert not result.lone


@pytest.mark.parametrize("joins_text", [True, False])
def test_joined_thinking_is_followed_as_thinking_in_pieces(joins_text: bool) -> None:
    def after(*following: list[Event]) -> LoneReasoning:
        return tapped("anthropic", [message(thinking(0, "a", "b"), *following)], joins_text=joins_text).lone

    assert not after(text(1, "c", "d"), call(2, "{no}"))
    assert after(call(1, "{no}"), thinking(2, "c", "d"), call(3, "{}")).has("s0")


def test_malformed_middle_call_renumbers_what_follows() -> None:
    blocks = (call(0, "{}"), call(1, "{no}"), text(2, "t"), call(3, '{"a":1}'), call(4, "{}", name="other"))
    result = tapped_at_any_split("anthropic", message(*blocks), named("write"))
    assert [event["index"] for event in payloads(result.body) if "index" in event] == [0] * 3 + [1] * 3 + [2] * 3 + [
        3
    ] * 3
    made = content(result.body)
    assert [each.get("id", each.get("text")) for each in made] == ["t0", "t", "t3", "t4"]
    assert result.call_ids == ["t0", "t3"]


def test_second_message_in_the_body_is_numbered_from_the_beginning() -> None:
    body = message(call(0, "{no}"), text(1, "t")) + message(text(0, "u"), call(1, "{}"))
    result = tapped_at_any_split("anthropic", body)
    assert result.body.endswith(message(text(0, "u"), call(1, "{}")))


def test_pings_and_comments_between_thoughts_keep_their_place() -> None:
    first, *rest = thinking(0, "a", "b")
    for body in (
        events(START, first, PING) + b": comment\n\n" + events(*rest, *call(1, "{}"), *stop()),
        events(START, first, PING) + b"data: not json\n\n",
    ):
        assert tapped("anthropic", [body]).body == body
    cut = events(START, first, PING, *rest, *call(1, "{"), *stop("max_tokens"))
    assert tapped_at_any_split("anthropic", cut).body == events(START, first, PING, *rest, *stop("max_tokens"))


def test_block_between_thoughts_lets_them_go() -> None:
    """Not seen, but nothing may be lost or change places."""
    first, *rest = thinking(0, "a", "b")
    body = events(START, first, *text(1, "t"), *rest, *stop("end_turn"))
    assert tapped_at_any_split("anthropic", body).body == body


def test_thoughts_that_end_late_pass_as_they_come() -> None:
    first, *rest = thinking(0, "a", "b")
    late = events(START, first, *call(1, "{no}"), *thinking(2, "c")) + events(*rest) + events(*call(3, "{}"), *stop())
    result = tapped_at_any_split("anthropic", late)
    assert [each["type"] for each in content(result.body)] == ["thinking", "thinking", "tool_use"]
    assert not result.lone


@pytest.mark.parametrize("collapse", [every, named("other")])
def test_error_event_passes_after_the_open_call_was_left_out(collapse: Any) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    begun = call(1, '{"a', stopped=False)
    body = events(START, *text(0, "t"), *begun, error)
    result = tapped_at_any_split("anthropic", body, collapse)
    assert result.body == (events(START, *text(0, "t"), error) if collapse is every else body)
    assert result.error is not None
    assert result.error.provider_message == "Overloaded"


def test_last_event_without_its_blank_line_counts() -> None:
    body = message(call(0, "{", "}"))[:-2]
    result = tapped_at_any_split("anthropic", body)
    assert result.call_ids == ["t0"]
    assert result.body.endswith(events(stop()[1])[:-2])
    cut_off = events(START, *call(0, "{", stopped=False)) + events(*call(0, "{}", stopped=False)[1:])[:-2]
    assert tapped("anthropic", [cut_off]).body == events(START)


def test_lone_surrogates_do_no_harm() -> None:
    half = text(0, "t")
    half[1]["delta"]["text"] = "\ud83d"
    body = sse(START, *half, *call(1, '{"a"', ':"\ud83d"}'), *stop(), event=True)
    result = tapped("anthropic", [body])
    assert result.call_ids == ["t1"]
    assert b"\\ud83d" in result.body


def test_numbers_are_left_alone_where_there_are_none() -> None:
    odd = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}
    result = tapped("anthropic", [events(START, *call(0, "{no}"), odd, PING, *stop())])
    assert payloads(result.body) == [START, odd, PING, *stop()]
    bare = [{key: value for key, value in event.items() if key != "index"} for event in call(0, "{no}")]
    result = tapped("anthropic", [events(START, *bare, *text(1, "t"), *stop())])
    assert payloads(result.body) == [START, *text(1, "t"), *stop()]
