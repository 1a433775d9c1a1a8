"""What is peculiar to Gemini's Interactions API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.errors import WireError
from callstream.events import MessageReceived, MessageStarted, ResultReceived
from callstream.wire import decoder_for, provider_at, provider_of, results_in
from callstream.wire.requests import Request
from tests.decoding import calls, decode, ended, failure, only_call, reasoning, sse, text, whole
from tests.sdks import SDKS
from tests.wire.collapsing import named, no, payloads, tapped_at_any_split
from tests.wire.payloads import arguments, interaction, step, step_delta, step_start

WIRE = "gemini_interactions"
Event = dict[str, Any]
CREATED = interaction("created")


def events(*made: Event) -> bytes:
    return sse(*made, done=True)


def call(index: int, *texts: str, name: str = "write", **fields: Any) -> list[Event]:
    start = step_start(index, name=name, **fields)
    return [start, *(arguments(each, index) for each in texts), step("stop", index)]


def thought(index: int, signature: str | None = None, *texts: str) -> list[Event]:
    summary = (step_delta(index, "thought_summary", content={"type": "text", "text": each}) for each in texts)
    signed = [] if signature is None else [step_delta(index, "thought_signature", signature=signature)]
    return [step_start(index, "thought"), *summary, *signed, step("stop", index)]


def output(index: int, *texts: str) -> list[Event]:
    deltas = (step_delta(index, "text", text=each) for each in texts)
    return [step_start(index, "model_output"), *deltas, step("stop", index)]


def completed(status: str = "requires_action", **more: Any) -> Event:
    return interaction("completed", status, **more)


# -- decoding --


def test_text_thoughts_and_calls() -> None:
    found = decode(
        WIRE,
        events(
            CREATED,
            {"event_type": "interaction.status_update", "interaction_id": "v1_1", "status": "in_progress"},
            *thought(0, "c2ln", "Hm."),
            *output(1, "Hello ", "there."),
            *call(2, '{"a', '": 1}'),
            completed(usage={"total_tokens": 3}),
        ),
    )
    assert (text(found), reasoning(found)) == ("Hello there.", "Hm.")
    assert (only_call(found).provider_id, only_call(found).args) == ("fc_2", {"a": 1})
    assert isinstance(found[0], MessageStarted)
    assert found[0].message_id == "v1_1"
    assert [(end.finish_reason, end.usage) for end in ended(found)] == [("requires_action", {"total_tokens": 3})]


def test_signature_of_the_thought_before_is_that_of_the_first_call_after_it() -> None:
    body = events(
        CREATED,
        *thought(0, "c2ln"),
        *call(1, "{}", signature=""),
        *call(2, "{}"),
        *thought(3, "b25l"),
        *output(4, "Well."),
        *call(5, "{}"),
        *call(6, "{}", signature="b3du"),
        completed(),
    )
    assert [each.signature for each in calls(decode(WIRE, body))] == ["c2ln", None, None, "b3du"]
    start = step_start(0, "thought", signature="c2ln")
    found = decode(WIRE, events(CREATED, start, step_delta(0, "thought_signature"), *call(1, "{}"), completed()))
    assert only_call(found).signature == "c2ln"


def test_server_side_steps_are_no_calls() -> None:
    search = [
        step_start(0, "google_search_call", id="s1", name="x", arguments={"queries": ["x"]}),
        step_delta(0, "google_search_call", arguments="{}"),
        step("stop", 0),
        step_start(1, "google_search_result", call_id="s1"),
        step_delta(1, "google_search_result", result=[]),
        step("stop", 1),
    ]
    assert calls(decode(WIRE, events(CREATED, *search, completed("completed")))) == []


def test_arguments_in_the_start_of_a_call() -> None:
    body = events(CREATED, *call(0, arguments={"a": 1}), completed())
    assert only_call(decode(WIRE, body)).args == {"a": 1}
    unstopped = events(CREATED, step_start(0, arguments={"a": 1}), completed())
    assert only_call(decode(WIRE, unstopped)).args == {"a": 1}


@pytest.mark.parametrize(
    "status", ["incomplete", "cancelled", "budget_exceeded", "requires_continuation", "something_new"]
)
def test_open_call_of_an_interaction_that_was_cut_is_truncated(status: str) -> None:
    body = events(CREATED, *call(0, '{"a": 1}'), step_start(1, name="write"), arguments("{}", 1), completed(status))
    first, second = calls(decode(WIRE, body))
    assert (first.outcome, second.outcome, second.detail) == ("completed", "truncated", f"status {status}")


def test_end_without_a_status_believes_the_ends_of_calls() -> None:
    body = events(CREATED, *call(0), step_start(1), {"event_type": "interaction.completed"})
    assert [each.outcome for each in calls(decode(WIRE, body))] == ["completed", "truncated"]


def test_continuation_in_the_same_body_begins_anew() -> None:
    body = events(CREATED, *call(0, "{}"), interaction("created"), *call(0, "{}"), completed())
    found = decode(WIRE, body)
    assert [each.outcome for each in calls(found)] == ["completed", "completed"]
    assert len(ended(found)) == 2


def test_stream_that_is_taken_up_in_the_middle_of_a_call() -> None:
    body = events(arguments('": 1}', 1), step("stop", 1), *call(2, "{}"), completed())
    assert only_call(decode(WIRE, body)).provider_id == "fc_2"
    assert tapped_at_any_split(WIRE, body).body.startswith(sse(arguments('": 1}', 1), step("stop", 1)))


@pytest.mark.parametrize(
    ("odd", "match"),
    [
        (arguments("{}", 7), "expected step.start before the arguments of step 7"),
        ({"event_type": "error", "error": {"code": "unavailable", "message": "no"}}, "reported unavailable: no"),
        ({"event_type": "error"}, "the provider reported an error"),
        ({"event_type": "interaction.status_update", "status": "failed"}, "the interaction failed"),
        (completed("failed", error={"code": "internal", "message": "no"}), "the provider reported internal: no"),
        (completed("failed"), "the interaction failed"),
        ({"odd": 1}, "which has an event_type"),
    ],
)
def test_events_that_end_it_in_an_error(odd: Event, match: str) -> None:
    found, error = failure(WIRE, sse(CREATED, step_start(), odd))
    assert match in error
    assert only_call(found).outcome == "interrupted"


def test_events_that_say_nothing() -> None:
    quiet = [
        {"event_type": "step.start", "index": 3},
        {"event_type": "step.delta", "index": 3},
        {"event_type": "something.new"},
        step_delta(3, "text"),
        step_delta(3, "thought_summary", content={"type": "image"}),
    ]
    assert text(decode(WIRE, events({"event_type": "interaction.created"}, *quiet, completed("completed")))) == ""


# -- whole answers --


def test_whole_interaction() -> None:
    steps = [
        {"type": "user_input", "content": [{"type": "text", "text": "Not the model's."}]},
        {"type": "thought", "signature": "c2ln", "summary": [{"type": "text", "text": "Hm."}]},
        {"type": "model_output", "content": [{"type": "text", "text": "Hi."}, {"type": "image", "data": "x"}]},
        {"type": "thought", "signature": "b25l"},
        {"type": "function_call", "id": "a", "name": "write", "arguments": {"x": 1}},
        {"type": "code_execution_call", "id": "s", "arguments": {"code": "1"}},
    ]
    found = whole(WIRE, {"id": "v1_1", "status": "requires_action", "steps": steps})
    assert (text(found), reasoning(found)) == ("Hi.", "Hm.")
    assert (only_call(found).args, only_call(found).signature) == ({"x": 1}, "b25l")
    assert calls(whole(WIRE, {"id": "v1_1", "status": "queued"})) == []


def test_whole_interaction_that_was_cut_ends_in_a_truncated_call() -> None:
    step = {"type": "function_call", "name": "write", "arguments": {}}
    answer = {"id": "v1_1", "status": "incomplete", "steps": [{**step, "id": "a"}, {**step, "id": "b"}]}
    assert [each.outcome for each in calls(whole(WIRE, answer))] == ["completed", "truncated"]
    assert only_call(whole(WIRE, {"steps": [{**step, "id": "a"}]})).outcome == "completed"


def test_whole_interaction_that_failed() -> None:
    for answer in ({"status": "failed"}, {"error": {"code": 503}}):
        with pytest.raises(WireError, match=r"failed|reported 503"):
            decoder_for(WIRE).whole(json.dumps(answer).encode())


def test_thoughts_go_with_the_only_call_that_they_led_to() -> None:
    def forwarded(*steps: Event, stored: bool = False) -> list[Event]:
        body = json.dumps({"id": "v1_1", "status": "incomplete", "steps": steps}).encode()
        decoder = decoder_for(WIRE)
        found = decoder.whole(body)
        made = provider_of(WIRE).without_unfinished(body, decoder, found, collapse=lambda name: True, stored=stored)
        kept: list[Event] = json.loads(made)["steps"]
        return kept

    thinking = {"type": "thought", "signature": "c2ln"}
    cut = {"type": "function_call", "id": "a", "name": "write", "arguments": {}}
    assert forwarded(thinking, cut) == []
    assert forwarded(thinking, cut, stored=True) == [thinking]
    assert forwarded(thinking, {**cut, "id": "b"}, cut) == [thinking, {**cut, "id": "b"}]


# -- collapsing --


def kinds(body: bytes) -> list[tuple[str, int | None]]:
    return [(event["event_type"].partition(".")[2], event.get("index")) for event in payloads(body)]


def test_whole_call_is_a_start_one_delta_and_a_stop() -> None:
    result = tapped_at_any_split(WIRE, events(CREATED, *thought(0, "s"), *call(1, '{"a', '": 1', "}"), completed()))
    assert kinds(result.body) == [
        ("created", None),
        *[("start", 0), ("delta", 0), ("stop", 0)],
        *[("start", 1), ("delta", 1), ("stop", 1)],
        ("completed", None),
    ]
    assert SDKS[WIRE].read(result.body).calls == [("fc_1", "write", {"a": 1})]


def test_arguments_in_the_start_move_into_a_delta() -> None:
    result = tapped_at_any_split(WIRE, events(CREATED, *call(0, arguments={"a": 1}), completed()))
    made = SDKS[WIRE].read(result.body)
    assert (made.calls, made.pieces) == ([("fc_0", "write", {"a": 1})], 1)
    start, end = step_start(0, arguments={"a": 1}), step("stop")
    del start["index"], end["index"]
    found = payloads(tapped_at_any_split(WIRE, events(CREATED, start, end, completed())).body)
    assert ["index" in event for event in found] == [False] * 5


def test_thought_that_led_to_a_left_out_call_is_lone_and_what_follows_moves_up() -> None:
    first = [CREATED, *thought(0, "s"), *call(1, "{no}"), *thought(2, "t"), *call(3, "{}"), completed()]
    body = events(*first, CREATED, *call(0, "{}"), completed())
    result = tapped_at_any_split(WIRE, body)
    assert [index for kind, index in kinds(result.body) if kind == "start"] == [0, 1, 2, 0]
    assert len(result.call_ids) == 2
    assert result.lone.has("s")
    assert not result.lone.has("t")


def test_ping_and_status_between_steps_of_a_thought_keep_their_place() -> None:
    status = {"event_type": "interaction.status_update", "status": "in_progress"}
    start, *rest = thought(0, "s")
    body = sse(CREATED, start, status) + b": ping\n\n" + sse(*rest, *call(1, "{}"), completed())
    assert tapped_at_any_split(WIRE, body).body == body


def test_call_that_is_left_out_is_left_out_of_the_final_steps() -> None:
    def steps(*ids: str) -> list[Event]:
        return [{"type": "thought"}, *({"type": "function_call", "id": each, "name": "write"} for each in ids)]

    def final(*ids: str, collapse: Any, texts: tuple[str, str]) -> Any:
        made = [CREATED, *call(0, texts[0]), *call(1, texts[1]), completed(steps=steps("fc_0", "fc_1"))]
        result = tapped_at_any_split(WIRE, events(*made), collapse)
        return payloads(result.body)[-1]["interaction"]["steps"]

    assert final(collapse=named("write"), texts=("{no}", "{}")) == steps("fc_1")
    assert final(collapse=named("write"), texts=("{no}", "{no}")) == steps()
    assert final(collapse=named("write"), texts=("{}", "{}")) == steps("fc_0", "fc_1")
    assert final(collapse=no, texts=("{no}", "{}")) == steps("fc_0", "fc_1")
    odd = events(CREATED, *call(0, "{no}"), {"event_type": "interaction.completed", "interaction": None})
    assert kinds(tapped_at_any_split(WIRE, odd).body) == [("created", None), ("completed", None)]


# -- requests --


def read(**request: Any) -> list[Any]:
    return results_in(WIRE, json.dumps(request).encode())


def test_input_in_its_forms() -> None:
    hello = [MessageReceived("user", "Hello.")]
    content = {"type": "text", "text": "Hello."}
    image = {"type": "image", "data": "x", "mime_type": "image/png"}
    assert read(input="Hello.") == read(input=content) == read(input=[content]) == hello
    assert read(input=[{"type": "user_input", "content": "Hello."}]) == hello
    assert read(input=["Hello."]) == hello
    pictured = [MessageReceived("user", "Hello.", attachments=("image/png", "audio"))]
    assert read(input=[content, image, {"type": "audio", "uri": "x"}]) == pictured
    assert read(input=[{"type": "user_input", "content": [content, image, {"type": "audio"}]}]) == pictured
    assert read(input=[{"odd": 1}], previous_interaction_id="v1_1") == []
    assert read(continuation_token="t", previous_interaction_id="v1_1") == []


def test_results_in_request() -> None:
    result = {"type": "function_result", "call_id": "a", "result": {"x": 1}}
    assert read(input=[result, {**result, "call_id": "b", "name": "write", "is_error": True}]) == [
        ResultReceived("a", None, {"x": 1}),
        ResultReceived("b", "write", {"x": 1}, is_error=True),
    ]
    history = [
        {"type": "user_input", "content": "Hello."},
        {"type": "thought", "signature": "c2ln"},
        {"type": "function_call", "id": "a", "name": "write", "arguments": {}},
        result,
        {"type": "google_search_call", "id": "s"},
        {"type": "function_call", "id": "b", "name": "other", "arguments": {}},
        {**result, "call_id": "b"},
    ]
    assert read(input=history) == [
        ResultReceived("a", "write", {"x": 1}, latest=False),
        ResultReceived("b", "other", {"x": 1}),
    ]


def test_which_requests_are_read() -> None:
    provider = provider_of(WIRE)
    assert provider_at("/v1beta/interactions/v1_abc", "GET") is provider
    assert provider_at("/v1beta1/projects/p/locations/l/interactions/v1_abc", "GET") is provider
    assert provider_at("/v1beta/interactions", "GET") is None
    assert provider_at("/v1beta/interactions/v1_abc", "DELETE") is None
    assert provider_at("/v1/messages", "GET") is None
    resumed, created = Request("/v1beta/interactions/v1_abc", b""), Request("/v1beta/interactions", b"{}")
    assert provider.answer_kind(resumed, 200, "text/event-stream") == "stream"
    assert provider.answer_kind(resumed, 200, "application/json") is None
    assert provider.answer_kind(created, 200, "application/json") == "whole"
    assert provider.is_stored(created)
    assert provider.is_stored(resumed)
    assert not provider.is_stored(Request("/v1beta/interactions", b'{"store": false}'))
