"""Every recorded response through the collapser, read again by our decoder and by the real SDKs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.events import CallCompleted
from callstream.wire.framing import Frame, SseFraming
from tests.captures import WIRES, Capture, body, captures, each_capture, raw_body, reads
from tests.decoding import Folded, calls, splits
from tests.sdks import READ
from tests.wire.collapsing import (
    Tapped,
    every,
    named,
    no,
    payloads,
    tapped,
    tapped_at_any_split,
    told,
    told_by,
    tools_of,
)
from tests.wire.sdks import READERS, Made, gemini, made_by, responses_raw

NAMES = {full: name for name, full in WIRES.items()}

WRONG_ALONE = {
    "anthropic-openai-compat/vercel-ai__openai-compatible-anthropic-fallback-tool-call.sse": "counts calls from 1",
    "mistral/openinference__mistralai-test-instrumentor-test-synchro-l-call-response-emits-expected-spans-false.sse": (
        "sends no index"
    ),
    "mistral/vercel-ai__mistral-mistral-tool-call.jsonl": "sends no index",
    "openrouter/llm__test-tools-streaming-test-tools-streaming-variant-a__0.sse": "repeats id and name, which it joins",
    "openrouter/req-llm__openrouter-google-gemini-2-5-flash-lite-object-streaming.sse": "index 0 for every call",
    "tgi/tgi__snapshots-test-tools-llama-test-flash-llama-grammar-tools-choice-stream.jsonl": (
        "repeats the id, which the helper joins"
    ),
    "writer/openllmetry__opentelemetry-instrumentation-writer-tes-nc-streaming-chat-tool-call-request-legacy.sse": (
        "sends null for the type of later deltas, on which the helper fails"
    ),
}
"""Captures from which openai's SDK alone takes wrong calls, or none: collapsed its calls are the decoder's."""

NOT_FOR_THE_SDK = {
    "bedrock/vercel-ai__amazon-bedrock-amazon-bedrock-tool-no-args.jsonl",  # written by hand: botocore refuses its start
}

TRUNCATED = {
    "deepseek/rig__deepseek-truncation-matrix-streaming-budget-24-truncated-arguments-keep-the-turn.sse",
    "llamacpp/rig__llamacpp-truncation-matrix-streaming-tool-call-cut-mid-arguments.sse",
    "mistral/rig__mistral-tool-truncation-matrix-streaming-ministral-3b-mid-agent.sse",
    "mistral/rig__mistral-tool-truncation-matrix-streaming-mistral-small-mid-model.sse",
    "openai/rig__openai-chat-tool-truncation-matrix-streaming-gpt41-low-agent.sse",
    "openai/rig__openai-chat-tool-truncation-matrix-streaming-gpt4o-low-agent.sse",
    "openai/rig__openai-streaming-grammar-incomplete-mid-tool-call.sse",
    "openrouter/rig__openrouter-tool-truncation-contract-matrix-streaming-gpt41-mid-agent.sse",
}
"""Captures that end in the middle of a call: collapsed the SDK sees no call."""


def rewritten(capture: Capture, collapse: Any = every) -> Tapped:
    return tapped(NAMES[capture.wire], [body(capture)], collapse, tools=tools_of(capture))


def settings(capture: Capture) -> list[tuple[Any, Tapped]]:
    """Every call collapsed, and those of the first tool alone, where that is something else."""
    all_of_them, some = rewritten(capture), rewritten(capture, named(first_name(capture)))
    different = [] if some.body == all_of_them.body else [(named(first_name(capture)), some)]
    return [(every, all_of_them), *different]


def first_name(capture: Capture) -> str:
    names = [call.name for call in capture.client_calls if call.name]
    return names[0] if names else "no such tool"


@each_capture(*WIRES, slow_above=3_000)
def test_body_passes_byte_for_byte_where_nothing_is_collapsed(capture: Capture) -> None:
    for collapse in (no, None):
        for pieces in splits(body(capture), count=3) if len(body(capture)) < 8_000 else [[body(capture)]]:
            result = tapped(NAMES[capture.wire], pieces, collapse, tools=tools_of(capture))
            assert result.body == body(capture)
            assert result.call_ids == []


@each_capture(*WIRES, slow_above=3_000)
def test_any_split_same_bytes(capture: Capture) -> None:
    expected = rewritten(capture).outputs
    data = body(capture)
    for pieces in (reads(capture) or [data], *list(splits(data, count=3))[2 if len(data) > 8_000 else 1 :]):
        assert tapped(NAMES[capture.wire], pieces, tools=tools_of(capture)).outputs == expected


@each_capture(*WIRES)
def test_rewritten_body_tells_the_same(capture: Capture) -> None:
    wire = NAMES[capture.wire]
    for _, result in settings(capture):
        before, after = told_by(result.events, result.error), told(wire, result.body, tools=tools_of(capture))
        # Where the provider gave no id, the decoder's own is in the bytes now.
        minted = {event.call_id for event in result.events if isinstance(event, CallCompleted)}
        for call, again in zip(before.calls, after.calls, strict=True):
            assert again[1] == call[1] or (call[1] is None and again[1] in minted | {None})
            assert (again[0], again[2], again[3]) == (call[0], call[2], call[3])
        after.calls = before.calls
        assert after == before


@each_capture(*WIRES)
def test_each_collapsed_call_is_marked_once(capture: Capture) -> None:
    result = rewritten(capture)
    assert result.call_ids == [event.call_id for event in result.events if isinstance(event, CallCompleted)]
    only = rewritten(capture, named(first_name(capture)))
    assert len(only.call_ids) == sum(
        call.name == first_name(capture) and call.outcome == "completed" for call in calls(result.events)
    )


def test_every_listed_capture_is_there(wires: object) -> None:
    assert {capture.file for capture in captures(*WIRES)} >= WRONG_ALONE.keys() | TRUNCATED


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # openai's models, and content that is a list
@each_capture("anthropic", "openai_responses", "openai_chat", slow_above=3_000)
def test_sdk_makes_the_same_of_it(capture: Capture) -> None:
    for _, result in settings(capture):
        for read in READERS[NAMES[capture.wire]]:
            before, after = made_by(read, body(capture)), made_by(read, result.body)
            numbers = [number for number in after.pop("numbers", ()) if number is not None]
            before.pop("numbers", None)
            if read is responses_raw and "concatenated" not in "".join(capture.quirks):
                assert numbers == sorted(set(numbers))
            if capture.file in WRONG_ALONE:
                before = corrected(before, after, calls(result.events))
            elif capture.file in TRUNCATED:
                before = without_calls(before)
            assert after == before, read.__name__


@each_capture("cohere", "gemini_interactions", "ollama", "bedrock_converse", "bedrock_invoke", slow_above=3_000)
def test_sdk_that_leaves_folding_to_programs_makes_the_same_of_it(capture: Capture) -> None:
    if capture.file in NOT_FOR_THE_SDK:
        return
    read = READ[NAMES[capture.wire]]
    plain = read(body(capture))
    for _, result in settings(capture):
        assert read(result.body).told == plain.told


@each_capture("openai_responses", "openai_chat")
def test_truncated_never_runs_sdk_sees_no_call(capture: Capture) -> None:
    result = rewritten(capture)
    cut = [call for call in calls(result.events) if call.outcome != "completed"]
    assert bool(cut) == (capture.file in TRUNCATED)
    assert calls(tapped(NAMES[capture.wire], [result.body], no).events) == [] or not cut
    for call in cut:
        assert call.provider_id is not None
        assert call.provider_id.encode() in body(capture)
        assert call.provider_id.encode() not in result.body


def corrected(before: Made, after: Made, truth: list[Folded]) -> Made:
    """What the SDK would have made, had it got the calls right; its own error, if it fell over them, is gone."""
    right = {
        place: {"id": call.provider_id, "name": call.name, "text": call.args_json} for place, call in enumerate(truth)
    }
    if "choices" not in before:
        assert "choices" not in after or after["choices"][0]["calls"] == right
        return before if before["error"].startswith("APIError") else after
    return {**before, "choices": {0: {**before["choices"][0], "calls": right}}}


def without_calls(before: Made) -> Made:
    if "choices" in before:
        return {**before, "choices": {0: {**before["choices"][0], "calls": {}}}}
    if "events" in before:
        return {**before, "events": [kind for kind in before["events"] if kind != "response.output_item.added"]}
    if "items" in before:
        final = [{**response, "output": []} for response in before["final"]]
        return {**before, "items": [], "texts": {}, "final": final}
    return before


@each_capture("gemini", slow_above=3_000)
def test_sdk_makes_the_same_of_gemini(capture: Capture) -> None:
    for collapse, result in settings(capture):
        before, after = made_by(gemini, body(capture)), made_by(gemini, result.body)
        truth = {
            event.call_id: call
            for event, call in zip(
                (event for event in result.events if isinstance(event, CallCompleted)),
                calls(result.events),
                strict=True,
            )
        }
        expected = []
        whole = iter(truth.items())
        for part in before["parts"]:
            call = part.get("function_call")
            if call is None:
                expected.append(part)
            elif call.get("name"):
                call_id, known = next(whole)
                expected.append(whole_part(part, call_id, known) if collapse(known.name) else part)
            elif not collapse(known.name):
                expected.append(part)
        before["parts"] = expected
        assert after == before


def whole_part(part: dict[str, Any], call_id: str, call: Folded) -> dict[str, Any]:
    rest = {field: value for field, value in part.items() if field != "function_call"}
    assert call.name == part["function_call"]["name"]
    made: dict[str, Any] = {"id": call.provider_id or call_id, "name": call.name}
    if part["function_call"].keys() - {"id", "name"}:  # one that came whole and without arguments stays so
        made["args"] = call.args
    return {**rest, "function_call": made}


@each_capture("gemini", slow_above=3_000)
def test_array_of_the_same_chunks_gives_an_array_of_the_same_chunks(capture: Capture) -> None:
    """Gemini's other framing."""
    chunks = b",\r\n".join(frame.payload for frame in frames(body(capture)) if frame.payload)
    array = b"[" + chunks + b"\n]\n"
    result = tapped_at_any_split("gemini", array, tools=tools_of(capture))
    assert json.loads(result.body) == payloads(rewritten(capture).body)
    assert tapped("gemini", [array], no, tools=tools_of(capture)).body == array


@each_capture("gemini")
def test_recorded_array_tells_the_same(capture: Capture) -> None:
    data = raw_body(capture)
    if data is None or not data.lstrip().startswith(b"["):
        return
    result = tapped_at_any_split("gemini", data, tools=tools_of(capture))
    before = told("gemini", data, tools=tools_of(capture))
    assert before.calls == told("gemini", result.body, tools=tools_of(capture)).calls
    assert tapped("gemini", [data], no).body == data


def frames(data: bytes) -> list[Frame]:
    framing = SseFraming()
    return [*framing.feed(data), *framing.end()]
