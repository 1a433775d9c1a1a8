"""What is peculiar to Cohere's wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.errors import WireError
from callstream.events import MessageReceived, MessageStarted, ResultReceived
from callstream.wire import decoder_for, results_in
from tests.decoding import calls, decode, ended, failure, only_call, reasoning, sse, text, whole
from tests.sdks import SDKS
from tests.wire.collapsing import every, named, no, payloads, tapped, tapped_at_any_split
from tests.wire.payloads import call_delta, call_end, call_start, cohere_end, cohere_event, cohere_start

Event = dict[str, Any]


def events(*made: Event) -> bytes:
    return sse(*made, event=True, done=True)


def call(index: int, *texts: str, name: str = "write") -> list[Event]:
    return [call_start(index, name, f"{name}_{index}"), *(call_delta(each, index) for each in texts), call_end(index)]


def content(index: int, *texts: str, kind: str = "text") -> list[Event]:
    deltas = (cohere_event("content-delta", index, content={kind: each}) for each in texts)
    start = cohere_event("content-start", index, content={"type": kind, kind: ""})
    return [start, *deltas, cohere_event("content-end", index)]


# -- decoding --


def test_plan_and_thinking_are_reasoning_and_content_is_text() -> None:
    found = decode(
        "cohere",
        events(
            cohere_start(),
            cohere_event("tool-plan-delta", tool_plan="I will "),
            cohere_event("tool-plan-delta", tool_plan="look."),
            *content(0, "Hm.", kind="thinking"),
            *content(1, "Hello ", "there."),
            cohere_event("citation-start", 0, citations={"start": 0, "end": 3, "text": "Hel"}),
            cohere_event("citation-end", 0),
            {"type": "debug", "prompt": "x"},
            cohere_end("COMPLETE"),
        ),
    )
    assert (text(found), reasoning(found)) == ("Hello there.", "I will look.Hm.")
    assert isinstance(found[0], MessageStarted)
    assert found[0].message_id == "m1"
    assert [(end.finish_reason, end.usage) for end in ended(found)] == [("COMPLETE", {"tokens": {}})]


def test_tool_without_arguments_has_no_delta() -> None:
    for after in ([], content(0, "And."), call(1, "{}")):
        found = calls(decode("cohere", events(cohere_start(), *call(0), *after, cohere_end())))
        assert (found[0].outcome, found[0].args) == ("completed", {})


def test_arguments_in_the_start_of_a_call() -> None:
    body = events(cohere_start(), call_start(text='{"a"'), call_delta(": 1}"), call_end(), cohere_end())
    assert only_call(decode("cohere", body)).args == {"a": 1}


def test_pretty_printed_arguments_stay_as_they_are() -> None:
    found = only_call(decode("cohere", events(cohere_start(), *call(0, '{\n    "', 'a": 1', "2\n}"), cohere_end())))
    assert found.text == '{\n    "a": 12\n}'


@pytest.mark.parametrize("finish", ["MAX_TOKENS", "TIMEOUT", "SOMETHING_NEW"])
def test_call_that_ended_with_half_its_text_is_truncated(finish: str) -> None:
    found = calls(decode("cohere", events(cohere_start(), *call(0, "{}"), *call(1, '{"a'), cohere_end(finish))))
    assert [each.outcome for each in found] == ["completed", "truncated"]
    assert found[1].detail == f"finish_reason {finish}"


def test_malformed_call_of_a_normal_message() -> None:
    assert only_call(decode("cohere", events(cohere_start(), *call(0, "{no}"), cohere_end()))).outcome == "malformed"


def test_end_without_a_reason_believes_the_ends_of_calls() -> None:
    body = events(cohere_start(), *call(0), call_start(1), cohere_end(None))
    assert [each.outcome for each in calls(decode("cohere", body))] == ["completed", "truncated"]


@pytest.mark.parametrize("end", [{"finish_reason": "ERROR", "error": "boom"}, {"finish_reason": None, "error": "boom"}])
def test_error_in_the_end_of_the_message(end: Event) -> None:
    found, error = failure("cohere", events(cohere_start(), call_start(), {"type": "message-end", "delta": end}))
    assert error == "the provider reported an error: boom"
    assert only_call(found).outcome == "interrupted"
    _, error = failure("cohere", events(cohere_start(), cohere_end("ERROR")))
    assert error == "the provider reported an error: ERROR"


def test_another_message_in_the_same_body() -> None:
    first, second = (
        [cohere_start("a"), *call(0, "{}"), cohere_end()],
        [cohere_start("b"), *call(0, "{}"), cohere_end()],
    )
    assert len(ended(decode("cohere", events(*first, *second)))) == 2
    cut = decode("cohere", events(*first[:-1], *second))
    assert [each.outcome for each in calls(cut)] == ["completed", "completed"]


@pytest.mark.parametrize(
    ("odd", "match"),
    [
        (call_delta("{}"), "expected tool-call-start before the arguments of call 0"),
        (cohere_event("tool-call-start", 0, tool_calls=[]), "expected the call of tool-call-start 0"),
        ({"message": "no"}, "the provider reported an error: no"),
        ({"odd": 1}, "which has a type"),
    ],
)
def test_events_that_make_no_sense(odd: Event, match: str) -> None:
    _, error = failure("cohere", sse(cohere_start(), odd))
    assert match in error


def test_events_that_say_nothing() -> None:
    quiet = [
        call_end(7),
        cohere_event("tool-call-delta", 0, tool_calls=[]),
        cohere_event("tool-call-delta", 0, tool_calls={}),
        {"type": "content-delta", "index": 0},
        cohere_event("content-delta", 0, content=[]),
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}},
    ]
    body = sse(cohere_start(), call_start(), *quiet[1:5], call_end(), quiet[0], cohere_end(), quiet[5])
    assert only_call(decode("cohere", body)).args == {}
    spoken = sse(cohere_event("content-delta", 0, content="Hi"), cohere_end("COMPLETE"))
    assert text(decode("cohere", spoken)) == "Hi"


# -- whole answers --


def answer(finish: str | None, **message: Any) -> Event:
    return {"id": "m1", "finish_reason": finish, "message": {"role": "assistant", **message}, "usage": {"tokens": {}}}


def entry(call_id: str, arguments: Any = "{}") -> Event:
    return {"id": call_id, "type": "function", "function": {"name": "write", "arguments": arguments}}


def test_whole_answer() -> None:
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi."}]
    found = whole("cohere", answer("TOOL_CALL", tool_plan="I will.", content=content, tool_calls=[entry("a")]))
    assert (text(found), reasoning(found)) == ("Hi.", "I will.Hm.")
    assert (only_call(found).provider_id, only_call(found).args) == ("a", {})
    assert text(whole("cohere", answer("COMPLETE", content="Hi."))) == "Hi."


def test_whole_answer_that_was_cut_ends_in_a_truncated_call() -> None:
    found = whole("cohere", answer("MAX_TOKENS", tool_calls=[entry("a"), entry("b", '{"x": 1}')]))
    assert [each.outcome for each in calls(found)] == ["completed", "truncated"]
    assert calls(whole("cohere", answer(None, tool_calls=[entry("a", "")])))[0].args == {}


def test_whole_body_without_a_message() -> None:
    with pytest.raises(WireError, match="expected an answer with a message"):
        decoder_for("cohere").whole(b'{"id": "m1"}')


# -- collapsing --


def kinds(body: bytes) -> list[tuple[str, int | None]]:
    return [(event["type"], event.get("index")) for event in payloads(body)]


def test_whole_call_is_a_start_one_delta_and_an_end() -> None:
    result = tapped_at_any_split("cohere", events(cohere_start(), *call(0, '{"a', '": "x', '"}'), cohere_end()))
    assert kinds(result.body) == [
        ("message-start", None),
        ("tool-call-start", 0),
        ("tool-call-delta", 0),
        ("tool-call-end", 0),
        ("message-end", None),
    ]
    assert SDKS["cohere"].read(result.body).calls == [("write_0", "write", {"a": "x"})]


def test_arguments_in_the_start_move_into_the_delta() -> None:
    start = call_start(text='{"a": 1}')
    expected = [("f_1", "f", {"a": 1})]
    for deltas in ([], [call_delta(" ")]):
        result = tapped_at_any_split("cohere", events(cohere_start(), start, *deltas, call_end(), cohere_end()))
        made = SDKS["cohere"].read(result.body)
        assert (made.calls, made.pieces) == (expected, 1)
    del start["index"]
    end = call_end()
    del end["index"]
    found = payloads(tapped_at_any_split("cohere", sse(cohere_start(), start, end, cohere_end())).body)
    assert ["index" in event for event in found] == [False] * 5


def test_calls_after_one_that_was_left_out_move_up_and_contents_do_not() -> None:
    body = events(
        cohere_start(),
        *content(0, "Hi"),
        *call(0, "{no}"),
        *content(1, "there"),
        *call(1, '{"a": 1}'),
        *call(2, "{}", name="other"),
        cohere_end(),
        cohere_start("b"),
        *call(0, "{}"),
        cohere_end(),
    )
    result = tapped_at_any_split("cohere", body, named("write"))
    numbers = [(kind, index) for kind, index in kinds(result.body) if index is not None and "delta" not in kind]
    assert numbers == [
        ("content-start", 0),
        ("content-end", 0),
        ("content-start", 1),
        ("content-end", 1),
        ("tool-call-start", 0),
        ("tool-call-end", 0),
        ("tool-call-start", 1),
        ("tool-call-end", 1),
        ("tool-call-start", 0),
        ("tool-call-end", 0),
    ]


def test_what_follows_an_open_call_waits_and_a_plan_does_not_go_with_its_call() -> None:
    plan = cohere_event("tool-plan-delta", tool_plan="I will.")
    result = tapped_at_any_split("cohere", events(cohere_start(), plan, call_start(0, "write"), cohere_end("LENGTH")))
    assert kinds(result.body) == [("message-start", None), ("tool-plan-delta", None), ("message-end", None)]
    assert tapped_at_any_split("cohere", events(cohere_start(), plan, *call(0, "{"), cohere_end()), no).call_ids == []


def test_call_without_arguments_passes_as_it_came() -> None:
    body = events(cohere_start(), *call(0), cohere_end())
    assert tapped_at_any_split("cohere", body).body == body


def test_call_without_an_end_leaves_without_one() -> None:
    result = tapped_at_any_split("cohere", events(cohere_start(), call_start(), call_delta("{}"), cohere_end()), every)
    assert [kind for kind, _ in kinds(result.body)] == [
        "message-start",
        "tool-call-start",
        "tool-call-delta",
        "message-end",
    ]


def test_a_long_call_leaves_in_one_piece() -> None:
    """Cohere's client refuses a line of more than 1 MiB that comes in several pieces."""
    args = json.dumps({"a": "x" * 1_500_000})
    deltas = [args[start : start + 100_000] for start in range(0, len(args), 100_000)]
    result = tapped("cohere", [events(cohere_start(), *call(0, *deltas), cohere_end())])
    (output,) = [output for output in result.outputs if output.call_ids]
    assert len(output.data) > 1_500_000
    assert SDKS["cohere"].read(result.body).calls[0][2] == json.loads(args)


# -- requests --


def test_results_in_request() -> None:
    def read(*messages: Event) -> list[Any]:
        return results_in("cohere", json.dumps({"model": "m", "messages": messages}).encode())

    asked = {"role": "assistant", "tool_plan": "I will.", "tool_calls": [entry("a"), entry("b")]}
    document = [{"type": "document", "document": {"data": {"x": 1}}}]
    assert read(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        asked,
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": document},
    ) == [ResultReceived("a", "write", "one"), ResultReceived("b", "write", document)]
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert read({"role": "user", "content": parts}) == [MessageReceived("user", "Look", attachments=("image_url",))]
