"""Responses' streams that are cut short, or that come in other ways than OpenAI's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.decoding import sse
from tests.wire.collapsing import Tap, every, no, payloads, tapped_at_any_split
from tests.wire.test_collapsing_responses import (
    CREATED,
    Event,
    added,
    body,
    call,
    completed,
    done,
    item,
    kinds,
    message,
    reasoning,
    response,
    text_done,
)


def test_custom_tool_text_leaves_as_input() -> None:
    custom = {
        "type": "custom_tool_call",
        "id": "ct0",
        "call_id": "c0",
        "name": "sh",
        "input": "",
        "status": "completed",
    }
    whole = {**custom, "input": 'echo "x"\n'}

    def event(kind: str, **fields: Any) -> Event:
        return {"type": f"response.custom_tool_call_input.{kind}", "output_index": 0, "item_id": "ct0", **fields}

    events = [
        added(0, custom),
        event("delta", delta='echo "'),
        event("delta", delta='x"\n'),
        event("done", input='echo "x"\n'),
    ]
    result = tapped_at_any_split("openai_responses", body(CREATED, *events, done(0, whole), completed(whole)))
    made = payloads(result.body)
    assert [each.get("delta", each.get("input")) for each in made[2:4]] == ['echo "x"\n', 'echo "x"\n']
    assert made[1]["item"] == custom
    assert made[4]["item"] == made[5]["response"]["output"][0] == whole
    assert result.call_ids == ["c0"]


def test_delta_after_the_first_that_is_none_is_looked_at() -> None:
    """A done event that brings the rest of the text is not taken for a delta."""
    start, piece, _, _ = call(0, "{")
    events = [start, piece, text_done(0, "{}"), done(0, item(0, "{}"))]
    result = tapped_at_any_split("openai_responses", body(CREATED, *events, completed(item(0, "{}"))))
    assert kinds(result.body)[3] == "function_call_arguments.done"
    assert payloads(result.body)[2]["delta"] == "{}"


def test_second_end_of_a_response_is_the_same_as_the_first() -> None:
    bad, good = item(0, "{no}"), item(1, "{}")
    again = {**completed(bad, good), "type": "response.done"}
    result = tapped_at_any_split(
        "openai_responses", body(CREATED, *call(0, "{no}"), *call(1, "{}"), completed(bad, good), again)
    )
    assert payloads(result.body)[-1]["response"]["output"] == payloads(result.body)[-2]["response"]["output"] == [good]


def test_frames_of_a_call_after_its_end() -> None:
    """A server that repeats itself: what is said of a call that left passes, of one that was left out nothing does."""
    good = call(0, "{}")
    result = tapped_at_any_split("openai_responses", body(CREATED, *good, good[-1], completed(item(0, "{}"))))
    assert kinds(result.body).count("output_item.done") == 1
    again = body(CREATED, *good, *message(1), good[-1], completed(item(0, "{}")))
    assert kinds(tapped_at_any_split("openai_responses", again).body).count("output_item.done") == 3
    differs = [*call(0, "{}")[:-1], done(0, item(0, '{"b":1}')), done(0, item(0, "{}"))]
    result = tapped_at_any_split("openai_responses", body(CREATED, *differs, completed()))
    assert kinds(result.body) == ["created", "completed"]


def test_item_announced_twice_leaves_once() -> None:
    start, *rest = call(0, "{}")
    result = tapped_at_any_split("openai_responses", body(CREATED, start, start, *rest, completed(item(0, "{}"))))
    assert kinds(result.body).count("output_item.added") == 1


def test_response_without_numbers_or_output() -> None:
    unnumbered = [
        CREATED,
        *call(0, "{no}"),
        *call(1, "{", "}"),
        *message(2),
        {"type": "response.completed", "response": {"id": "r1"}},
    ]
    for place, event in enumerate(unnumbered):
        unnumbered[place] = {key: value for key, value in event.items() if key != "output_index"}
    result = tapped_at_any_split("openai_responses", sse(*unnumbered, done=True))
    assert result.call_ids == ["c1"]
    assert payloads(result.body)[-1] == unnumbered[-1]
    assert result.body.endswith(b"data: [DONE]\n\n")


def test_items_are_numbered_anew_where_events_are_not_numbered() -> None:
    comment = b": comment\n\n"
    start = sse(CREATED, *call(0, "{no}"), *message(1)[:1])
    result = tapped_at_any_split("openai_responses", start + comment + sse(*message(1)[1:], completed(item(0, "{no}"))))
    assert comment in result.body
    assert [event["output_index"] for event in payloads(result.body) if "output_index" in event] == [0] * 4


@pytest.mark.parametrize("collapse", [every, no])
def test_nameless_held_until_the_name_is_known(collapse: Any) -> None:
    start, *rest = call(0, "{", "}")
    nameless = {key: value for key, value in start["item"].items() if key != "name"}
    data = body(CREATED, added(0, nameless), *rest, *message(1), completed(item(0, "{}")))
    result = tapped_at_any_split("openai_responses", data, collapse)
    assert (result.body == data) == (collapse is no)
    assert result.call_ids == (["c0"] if collapse is every else [])


def test_error_event_passes_after_the_open_call_was_left_out() -> None:
    error = {"type": "error", "code": "server_error", "message": "overloaded", "param": None}
    begun = [CREATED, *reasoning(0, "a"), *call(1, '{"a')[:-2]]
    result = tapped_at_any_split("openai_responses", body(*begun, error))
    spoken = [event["type"].removeprefix("response.") for event in reasoning(0, "a")]
    assert kinds(result.body) == ["created", *spoken, "error"]
    assert result.body.endswith(sse({**error, "sequence_number": len(begun)}, event=True))
    failed = {"type": "response.failed", "response": response("failed", error={"code": "x", "message": "m"})}
    result = tapped_at_any_split("openai_responses", body(*begun, failed))
    assert kinds(result.body) == ["created", *spoken, "failed"]
    assert result.lone.has("rs0")


def test_reasoning_passes_before_an_error_that_no_call_came_before() -> None:
    data = body(CREATED, *reasoning(0, "a"), {"type": "error", "message": "overloaded"})
    assert Tap("openai_responses").feed(data) == data


def test_end_of_the_body_leaves_an_open_call_out() -> None:
    result = tapped_at_any_split("openai_responses", body(CREATED, *reasoning(0, "a"), *call(1, '{"a')[:-1]))
    assert kinds(result.body) == ["created", *(kind["type"].removeprefix("response.") for kind in reasoning(0, "a"))]
    assert result.lone.has("rs0")


def test_a_sign_of_life_says_nothing_of_the_response() -> None:
    """openai's SDK for Node takes the response of any event for all that there is by then."""
    tap = Tap("openai_responses")
    assert tap.collapser.keep_alive == tap.decoder.framing.keep_alive
    created = b'data: {"type": "response.created", "response": {"id": "r", "temperature": 1e999}}\n\n'
    assert tap.feed(created) == created
    assert tap.collapser.keep_alive == b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
