"""The ways in which an encoded response ends, read by the real SDKs."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest
from google.genai import errors as genai_errors

from callstream.testing import (
    WIRES,
    Cut,
    Delay,
    Failure,
    Finish,
    Text,
    ToolCall,
    Truncated,
    encode,
    encode_whole,
    frames,
)
from callstream.testing.encoders import ENCODERS
from tests.testing.encoded import (
    ANSWER,
    LENGTH,
    anthropic_answer,
    chat_answer,
    gemini_answer,
    openai_client,
    payloads,
    sent_by,
)
from tests.testing.test_encoders import every_wire


@every_wire
def test_finish_for_lack_of_tokens_in_a_whole_answer(wire: str) -> None:
    assert ANSWER[wire]([Text("Hel"), Finish("length")], False).finish == LENGTH[wire]


def test_finish_for_lack_of_tokens_in_a_stream() -> None:
    script = [Text("Hel"), Finish("length")]
    assert gemini_answer(script, True).finish == "MAX_TOKENS"
    assert anthropic_answer(script, True).finish == "max_tokens"
    with pytest.raises(openai.LengthFinishReasonError):
        chat_answer(script, True)
    events = list(openai_client(script, "openai_responses", True).responses.create(model="-", input="-", stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"  # type: ignore[union-attr]


@every_wire
def test_finish_in_the_wires_own_word(wire: str) -> None:
    words = {"gemini": "MALFORMED_FUNCTION_CALL", "anthropic": "pause_turn"}
    word = words.get(wire, "content_filter")
    before_last = ("anthropic", "cohere", "gemini_interactions", "bedrock_converse", "bedrock_invoke")
    place = -3 if wire == "openai_chat" else -2 if wire in before_last else -1
    assert word.encode() in sent_by(wire, [list(encode(wire, [Finish(word)]))[place]])


@every_wire
def test_a_body_that_is_truncated_has_no_finish(wire: str) -> None:
    script = [Text("Hel"), ToolCall("a", {"x": "some text"})]
    whole = list(encode(wire, script))
    truncated = list(encode(wire, [*script, Truncated()]))
    assert truncated == whole[: len(truncated)]
    assert len(truncated) < len(whole)
    assert not any(word in b"".join(truncated) for word in (b"message_stop", b"[DONE]", b"response.completed", b"STOP"))


@pytest.mark.parametrize("wire", [wire for wire in WIRES if ENCODERS[wire].streams_arguments])
def test_a_call_that_stops_short(wire: str) -> None:
    script = [ToolCall("a", {"x": "some text"}, size=4, stop_after=2)]
    cut, finished = list(encode(wire, [*script, Truncated()])), list(encode(wire, [*script, Finish("length")]))
    assert finished[: len(cut)] == cut
    assert any(begun in sent_by(wire, cut) for begun in (b'"so', b'\\"s'))
    assert b"me text" not in sent_by(wire, cut)
    names = [event.get("type", event.get("event_type")) for event in payloads(wire, [*script, Finish("length")])]
    ends = {
        "anthropic": ["content_block_delta", "content_block_stop", "message_delta", "message_stop"],
        "openai_responses": ["response.function_call_arguments.delta", "response.function_call_arguments.done",
                             "response.output_item.done", "response.incomplete"],
        "cohere": ["tool-call-start", "tool-call-delta", "tool-call-delta", "message-end"],
        "gemini_interactions": ["step.start", "step.delta", "step.delta", "interaction.completed"],
    }  # fmt: skip
    assert names[-4:] == ends.get(wire.replace("bedrock_invoke", "anthropic"), [None] * 4)
    answer = encode_whole(wire, [*script, Finish("length")]).decode()
    assert "some text" not in answer


def test_a_call_that_stops_short_in_the_output_of_a_response() -> None:
    response = payloads("openai_responses", [ToolCall("a", {"x": 1}, size=4, stop_after=1), Finish("length")])[-1][
        "response"
    ]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (response["output"][0]["arguments"], response["output"][0]["status"]) == ('{"x"', "incomplete")


def test_the_sdks_report_a_failure_in_the_stream() -> None:
    script = [Text("Hel"), Failure("Too busy.")]
    with pytest.raises(openai.APIError, match=r"Too busy\."):
        chat_answer(script, True)
    with pytest.raises(anthropic.APIStatusError, match=r"Too busy\."):
        anthropic_answer(script, True)
    with pytest.raises(genai_errors.ServerError, match=r"Too busy\."):
        gemini_answer(script, True)
    events = list(openai_client(script, "openai_responses", True).responses.create(model="-", input="-", stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert getattr(events[-2], "message", None) == "Too busy."
    assert events[-1].response.error.message == "Too busy."  # type: ignore[union-attr]


@every_wire
def test_a_whole_failure_is_the_body_of_a_refused_request(wire: str) -> None:
    body = json.loads(encode_whole(wire, [Text("Hel"), Failure("Too busy.", "some_kind")]))
    error = body.get("error", body)
    if wire == "ollama":  # whose errors are a text
        assert error == "Too busy."
        return
    assert error["message"] == "Too busy."
    assert {"some_kind", "Some_kind"} & set(error.values()) or wire == "cohere"  # whose errors have no kind


@every_wire
def test_frames_hand_on_what_only_a_sender_can_do(wire: str) -> None:
    script = [Delay(0.5), Text("Hel"), Delay(1.0), Cut()]
    steps = [frame for frame in frames(wire, script) if not isinstance(frame, bytes)]
    assert steps == [Delay(0.5), Delay(1.0), Cut()]
    assert list(encode(wire, script)) == list(encode(wire, [Text("Hel"), Truncated()]))


# -- ids, signatures, argument text ---------------------------------------------------------------------------------------
