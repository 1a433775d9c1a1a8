from __future__ import annotations

from typing import Any

from tests.decoding import sse
from tests.wire.collapsing import Tap, named, no, payloads, tapped, tapped_at_any_split
from tests.wire.sdks import made_by, responses_helper, responses_raw

Event = dict[str, Any]


def numbered(*events: Event) -> list[Event]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def body(*events: Event) -> bytes:
    return sse(*numbered(*events), event=True)


def response(status: str, *output: Event, id: str = "r1", **fields: Any) -> Event:  # noqa: A002
    return {
        "id": id,
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "output": list(output),
        **fields,
    }


CREATED: Event = {"type": "response.created", "response": response("in_progress")}


def completed(*output: Event) -> Event:
    return {"type": "response.completed", "response": response("completed", *output)}


def incomplete(*output: Event) -> Event:
    cut = response("incomplete", *output, incomplete_details={"reason": "max_output_tokens"})
    return {"type": "response.incomplete", "response": cut}


def item(index: int, text: str = "", *, name: str = "write", status: str = "completed", **fields: Any) -> Event:
    made = {"type": "function_call", "id": f"fc{index}", "call_id": f"c{index}", "name": name, "arguments": text}
    return {**made, "status": status, **fields}


def added(index: int, made: Event) -> Event:
    return {"type": "response.output_item.added", "output_index": index, "item": made}


def done(index: int, made: Event) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": made}


def delta(index: int, text: str, item_id: str | None = None) -> Event:
    made = {"type": "response.function_call_arguments.delta", "output_index": index, "item_id": item_id or f"fc{index}"}
    return {**made, "delta": text}


def text_done(index: int, text: str, item_id: str | None = None) -> Event:
    made = {"type": "response.function_call_arguments.done", "output_index": index, "item_id": item_id or f"fc{index}"}
    return {**made, "arguments": text}


def call(index: int, *texts: str, name: str = "write") -> list[Event]:
    whole = "".join(texts)
    start = added(index, item(index, name=name, status="in_progress"))
    return [
        start,
        *(delta(index, text) for text in texts),
        text_done(index, whole),
        done(index, item(index, whole, name=name)),
    ]


def thought(index: int) -> Event:
    return {"type": "reasoning", "id": f"rs{index}", "summary": [], "encrypted_content": f"e{index}"}


def reasoning(index: int, *texts: str) -> list[Event]:
    deltas = [
        {
            "type": "response.reasoning_summary_text.delta",
            "output_index": index,
            "item_id": f"rs{index}",
            "summary_index": 0,
        }
        | {"delta": text}
        for text in texts
    ]
    return [added(index, thought(index)), *deltas, done(index, thought(index))]


def message(index: int, text: str = "t") -> list[Event]:
    part = {"type": "output_text", "text": text, "annotations": []}
    made = {"type": "message", "id": f"msg{index}", "role": "assistant", "status": "completed", "content": [part]}
    spoken = {"type": "response.output_text.delta", "output_index": index, "item_id": f"msg{index}", "content_index": 0}
    opened = {
        "type": "response.content_part.added",
        "output_index": index,
        "item_id": f"msg{index}",
        "content_index": 0,
    }
    return [
        added(index, {**made, "content": [], "status": "in_progress"}),
        {**opened, "part": {**part, "text": ""}},
        {**spoken, "delta": text, "logprobs": []},
        done(index, made),
    ]


def kinds(data: bytes) -> list[str]:
    return [event["type"].removeprefix("response.") for event in payloads(data)]


def numbers(data: bytes) -> list[int]:
    return [event["sequence_number"] for event in payloads(data)]


def outputs(data: bytes) -> list[str]:
    """The ids of the items of the final response."""
    return [made["id"] for made in payloads(data)[-1]["response"]["output"]]


def test_whole_call_is_its_four_events_with_one_delta() -> None:
    made = call(0, '{"a"', ":", "1}")
    events = numbered(CREATED, *made, completed(item(0, '{"a":1}')))
    result = tapped_at_any_split("openai_responses", sse(*events, event=True))
    assert payloads(result.body) == [events[0], events[1], {**events[2], "delta": '{"a":1}'}, *events[5:]]
    assert [output.call_ids for output in result.outputs] == [(), ("c0",), ()]


def test_frames_that_need_no_change_are_the_servers_bytes() -> None:
    data = body(
        CREATED,
        *call(0, "{}"),
        *message(1),
        *call(2, '{"a":1}', name="other"),
        completed(item(0, "{}"), item(2, '{"a":1}')),
    )
    result = tapped_at_any_split("openai_responses", data)
    assert result.body == data
    assert result.call_ids == ["c0", "c2"]


def test_pieces_are_withheld_and_what_follows_waits() -> None:
    tap = Tap("openai_responses")
    events = numbered(CREATED, *call(0, "{", "}"), *message(1))
    assert tap.feed(sse(events[0])) == sse(events[0])
    assert tap.feed(sse(*events[1:5])) == b""
    assert tap.collapser.is_holding
    assert tap.feed(sse(events[5])) == b""
    assert kinds(tap.feed(sse(events[6]))) == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
    ]
    assert tap.feed(sse(*events[7:])) == sse(*events[7:])


def test_padding_of_a_delta_goes_with_it() -> None:
    events = [CREATED, *call(0, "{", "}"), completed(item(0, "{}"))]
    events[2] = {**events[2], "obfuscation": "abc"}
    result = tapped_at_any_split("openai_responses", body(*events))
    assert b"obfuscation" not in result.body


def test_call_that_is_not_collapsed_passes_byte_for_byte() -> None:
    data = body(
        CREATED,
        *call(0, "{", "}", name="other"),
        *call(1, "{", "}"),
        completed(item(0, "{}", name="other"), item(1, "{}")),
    )
    result = tapped_at_any_split("openai_responses", data, named("write"))
    assert result.body.startswith(body(CREATED, *call(0, "{", "}", name="other")))
    assert kinds(result.body).count("function_call_arguments.delta") == 3
    assert tapped_at_any_split("openai_responses", data, no).body == data


def test_interleaved_calls_leave_one_after_another_with_rising_numbers() -> None:
    one, two = call(0, "{", "}"), call(1, '{"b"', ":2}")
    mixed = [event for pair in zip(one, two, strict=True) for event in pair]
    data = body(CREATED, *mixed, *message(2), completed(item(0, "{}"), item(1, '{"b":2}')))
    result = tapped_at_any_split("openai_responses", data)
    assert numbers(result.body) == sorted(set(numbers(result.body)))
    assert result.call_ids == ["c0", "c1"]
    before, after = made_by(responses_raw, data), made_by(responses_raw, result.body)
    assert (before["items"], before["final"]) == (after["items"], after["final"])
    again = tapped(
        "openai_responses", [data + body({**CREATED, "response": response("in_progress", id="r2")}, *message(0))]
    )
    assert numbers(again.body)[-5:] == [0, 1, 2, 3, 4]


def test_numbers_are_left_alone_once_they_have_caught_up() -> None:
    one, two = call(0, "{", "}"), call(1, "{", "}")
    mixed = numbered(CREATED, one[0], two[0], *one[1:], *two[1:])
    late = [{**event, "sequence_number": 100 + place} for place, event in enumerate(message(2))]
    result = tapped_at_any_split("openai_responses", sse(*mixed, *late))
    assert numbers(result.body)[-4:] == [100, 101, 102, 103]
    assert result.body.endswith(sse(*late))


def test_item_ids_that_change_are_made_one() -> None:
    start, piece, text, _ = call(0, "{}")
    changed = [start, {**piece, "item_id": "x1"}, {**text, "item_id": "x2"}, done(0, item(0, "{}", id="x3"))]
    result = tapped_at_any_split("openai_responses", body(CREATED, *changed, completed(item(0, "{}", id="x4"))))
    made = payloads(result.body)[1:5]
    assert [event.get("item_id") or event["item"]["id"] for event in made] == ["fc0"] * 4


def test_items_without_an_id_get_none() -> None:
    start, piece, text, end = call(0, "{", "}")[:1] + call(0, "{}")[1:]
    for event in (start, end):
        event["item"] = {key: value for key, value in event["item"].items() if key != "id"}
    data = body(CREATED, start, piece, text, end, completed(item(0, "{}")))
    assert tapped_at_any_split("openai_responses", data).body == data


def test_servers_that_send_less_are_passed_on_as_they_are() -> None:
    final = completed(item(0, "{}"))
    start, piece, text, end = call(0, "{}")
    for events in (
        [end],
        [start, end],
        [start, text, end],
        [start, text],
        [start, piece, end],
        [],
        [start],
    ):
        data = body(CREATED, *events, final)
        result = tapped_at_any_split("openai_responses", data)
        assert result.body == data, events
        assert result.call_ids == ["c0"]
    swapped = tapped_at_any_split("openai_responses", body(CREATED, end, text, final))
    assert kinds(swapped.body) == ["created", "function_call_arguments.done", "output_item.done", "completed"]


def test_arguments_that_come_with_the_item_and_again_as_deltas_come_once() -> None:
    _, *rest = call(0, "{", "}")
    result = tapped_at_any_split(
        "openai_responses", body(CREATED, added(0, item(0, "{}")), *rest, completed(item(0, "{}")))
    )
    assert [event["item"]["arguments"] for event in payloads(result.body)[1:2]] == [""]
    alone = tapped_at_any_split("openai_responses", body(CREATED, added(0, item(0, '{"a":"\n"}')), completed()))
    assert payloads(alone.body)[1]["item"]["arguments"] == '{"a":"\\n"}'


def test_arguments_are_strict_wherever_they_are() -> None:
    text = '{"a":"x\ny"}'
    result = tapped_at_any_split("openai_responses", body(CREATED, *call(0, text), completed(item(0, text))))
    _, _, piece, whole, end, final = payloads(result.body)
    strict = '{"a":"x\\ny"}'
    assert piece["delta"] == whole["arguments"] == end["item"]["arguments"] == strict
    assert final["response"]["output"][0]["arguments"] == strict


def test_truncated_never_runs_call_is_left_out_of_stream_and_final_response() -> None:
    cut = item(1, '{"a', status="incomplete")
    events = [CREATED, *message(0), *call(1, '{"a')[:-1], done(1, cut), incomplete(thought(9), cut)]
    result = tapped_at_any_split("openai_responses", body(*events))
    assert kinds(result.body) == [
        "created",
        *(kind.removeprefix("response.") for kind in (e["type"] for e in message(0))),
        "incomplete",
    ]
    assert outputs(result.body) == ["rs9"]
    assert payloads(result.body)[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert result.call_ids == []


def test_reasoning_before_a_cut_call_is_known_to_be_lone() -> None:
    cut = item(2, '{"a', status="incomplete")
    events = [CREATED, *message(0), *reasoning(1, "hm"), *call(2, '{"a')[:-1], done(2, cut)]
    final = incomplete({"type": "message", "id": "msg0"}, thought(1), cut)
    result = tapped_at_any_split("openai_responses", body(*events, final))
    assert outputs(result.body) == ["msg0", "rs1"]
    assert result.lone.has("rs1")
    assert result.lone.has("e1")


def test_reasoning_passes_at_once() -> None:
    tap = Tap("openai_responses")
    events = numbered(CREATED, *reasoning(0, "a", "b"), *call(1, "{", "}"), completed(thought(0), item(1, "{}")))
    for event in events[:5]:
        assert tap.feed(sse(event)) == sse(event)
    assert tap.feed(sse(*events[5:8])) == b""
    tap.feed(sse(*events[8:]))
    assert not tap.lone


def test_reasoning_stays_as_long_as_something_that_it_led_to_does() -> None:
    bad = "{no}"
    for following, kept in (([*call(2, "{}")], "fc2"), ([*message(2)], "msg2")):
        final = completed(thought(0), item(1, bad), following[-1]["item"])
        result = tapped_at_any_split(
            "openai_responses", body(CREATED, *reasoning(0, "a"), *call(1, bad), *following, final)
        )
        assert outputs(result.body) == ["rs0", kept]
        assert not result.lone
        assert [event["output_index"] for event in payloads(result.body) if "output_index" in event] == [0] * 3 + [
            1
        ] * 4


def test_reasoning_that_led_to_a_left_out_call_is_lone_before_the_next_reasoning() -> None:
    events = [CREATED, *reasoning(0), *reasoning(1), *call(2, "{no}"), *reasoning(3), *call(4, "{}")]
    final = completed(thought(0), thought(1), item(2, "{no}"), thought(3), item(4, "{}"))
    result = tapped_at_any_split("openai_responses", body(*events, final))
    assert outputs(result.body) == ["rs0", "rs1", "rs3", "fc4"]
    assert [result.lone.has(f"rs{index}") for index in (0, 1, 3)] == [True, True, False]
    assert numbers(result.body) == sorted(set(numbers(result.body)))
    assert made_by(responses_helper, result.body)["response"]["output"][3]["call_id"] == "c4"


def test_reasoning_at_the_end_stays_if_no_call_was_left_out() -> None:
    data = body(CREATED, *message(0), *reasoning(1), incomplete(thought(1)))
    result = tapped_at_any_split("openai_responses", data)
    assert result.body == data
    assert not result.lone


def test_reasoning_of_servers_that_send_less() -> None:
    """Only the finished item; no output index; parts of it under other names."""
    alone = [CREATED, done(0, thought(0)), *call(1, "{no}"), completed(thought(0), item(1, "{no}"))]
    result = tapped_at_any_split("openai_responses", body(*alone))
    assert kinds(result.body) == ["created", "output_item.done", "completed"]
    assert result.lone.has("rs0")
    part = {"type": "response.content_part.added", "output_index": 0, "part": {}}
    start, end = reasoning(0)
    with_part = [CREATED, start, part, end, *call(1, "{no}"), completed(thought(0), item(1, "{no}"))]
    assert tapped_at_any_split("openai_responses", body(*with_part)).lone.has("rs0")
    bare = [{key: value for key, value in event.items() if key != "output_index"} for event in reasoning(0, "a")]
    for following, kept in ((call(1, "{no}"), ["rs0"]), (call(1, "{}"), ["rs0", "fc1"]), (message(1), ["rs0", "msg1"])):
        events = [CREATED, bare[0], {"type": "response.in_progress", "response": response("in_progress")}, *bare[1:]]
        final = completed(thought(0), following[-1]["item"])
        result = tapped_at_any_split("openai_responses", body(*events, *following, final))
        assert outputs(result.body) == kept
        assert kinds(result.body)[:3] == ["created", "output_item.added", "in_progress"]
        assert result.lone.has("rs0") == (kept == ["rs0"])


def test_items_after_a_malformed_call_are_numbered_anew() -> None:
    events = [CREATED, *call(0, "{no}"), *message(1), *call(2, "{}", name="other"), *call(3, "{}")]
    final = completed(item(0, "{no}"), message(1)[-1]["item"], item(2, "{}", name="other"), item(3, "{}"))
    result = tapped_at_any_split("openai_responses", body(*events, final), named("write"))
    assert [event["output_index"] for event in payloads(result.body) if "output_index" in event] == [0] * 4 + [
        1
    ] * 4 + [2] * 4
    assert outputs(result.body) == ["msg1", "fc2", "fc3"]
    assert len(made_by(responses_helper, result.body)["response"]["output"]) == 3
