"""The encoders are held against the real SDKs' own stream parsers, fed with the bytes over a mock transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types as genai_types
from hypothesis import given, settings
from hypothesis import strategies as st

from callstream.errors import UsageError
from callstream.jsontext.writer import EMPTY, JsonWriter
from callstream.testing import (
    WIRES,
    Call,
    Cut,
    Delay,
    Failure,
    Finish,
    Parallel,
    Script,
    Text,
    Thought,
    Truncated,
    encode,
    encode_whole,
    frames,
)
from callstream.testing.encoders import ENCODERS
from callstream.wire import decoder_for
from tests import captures
from tests.sdks import READ

RECORDINGS = Path(__file__).parents[2] / "shared" / "wires"


# -- what an SDK makes of the bytes -------------------------------------------------------------------------------------


class Answer(NamedTuple):
    thought: str
    text: str
    calls: list[tuple[str | None, str, Any]]
    finish: str | None


def transport(library: Any, script: Script, wire: str, stream: bool, status: int = 200) -> Any:
    body = b"".join(encode(wire, script)) if stream else encode_whole(wire, script)
    kind = "text/event-stream" if stream else "application/json"

    def handle(_request: Any) -> Any:
        return library.Response(status, headers={"content-type": kind}, content=body)

    return library.Client(transport=library.MockTransport(handle))


def anthropic_answer(script: Script, stream: bool) -> Answer:
    client = anthropic.Anthropic(
        api_key="-", base_url="http://test", http_client=transport(httpx2, script, "anthropic", stream), max_retries=0
    )
    request: Any = {"model": "-", "max_tokens": 1, "messages": [{"role": "user", "content": "-"}]}
    if stream:
        with client.messages.stream(**request) as running:
            message: Any = running.get_final_message()
    else:
        message = client.messages.create(**request)
    blocks = message.content
    return Answer(
        "".join(block.thinking for block in blocks if block.type == "thinking"),
        "".join(block.text for block in blocks if block.type == "text"),
        [(block.id, block.name, block.input) for block in blocks if block.type == "tool_use"],
        message.stop_reason,
    )


def openai_client(script: Script, wire: str, stream: bool) -> openai.OpenAI:
    client = transport(httpx, script, wire, stream)
    return openai.OpenAI(api_key="-", base_url="http://test/v1", http_client=client, max_retries=0)


def chat_answer(script: Script, stream: bool) -> Answer:
    completions = openai_client(script, "openai_chat", stream).chat.completions
    request: Any = {"model": "-", "messages": [{"role": "user", "content": "-"}]}
    if stream:
        with completions.stream(**request) as running:
            completion: Any = running.get_final_completion()
    else:
        completion = completions.create(**request)
    choice = completion.choices[0]
    message = choice.message
    return Answer(
        getattr(message, "reasoning_content", ""),
        message.content or "",
        [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()],
        choice.finish_reason,
    )


def responses_answer(script: Script, stream: bool) -> Answer:
    responses = openai_client(script, "openai_responses", stream).responses
    if stream:
        with responses.stream(model="-", input="-") as running:
            response: Any = running.get_final_response()
    else:
        response = responses.create(model="-", input="-")
    items = response.output
    return Answer(
        "".join(part.text for item in items if item.type == "reasoning" for part in item.summary),
        response.output_text,
        [(item.call_id, item.name, json.loads(item.arguments)) for item in items if item.type == "function_call"],
        response.status,
    )


def gemini_chunks(script: Script, stream: bool) -> Iterator[genai_types.GenerateContentResponse]:
    options = genai_types.HttpOptions(httpx_client=transport(httpx, script, "gemini", stream))
    models = genai.Client(vertexai=True, api_key="-", http_options=options).models
    if stream:
        yield from models.generate_content_stream(model="gemini-3-pro-preview", contents="-")
    else:
        yield models.generate_content(model="gemini-3-pro-preview", contents="-")


def partial_value(piece: genai_types.PartialArg) -> Any:
    if piece.null_value is not None:
        return None
    for value in (piece.string_value, piece.bool_value, piece.number_value):
        if value is not None:
            return value
    return EMPTY


def gemini_answer(script: Script, stream: bool) -> Answer:
    """google-genai hands the pieces on; put together they are what JsonWriter makes of them."""
    thought = text = finish = ""
    calls: list[tuple[str | None, str, Any]] = []
    wanted = [call for step in script for call in (step.calls if isinstance(step, Parallel) else [step])]
    schemas = [schema_of(call.args) for call in wanted if isinstance(call, Call)]
    writing: JsonWriter | None = None
    written = ""
    for chunk in gemini_chunks(script, stream):
        assert chunk.candidates is not None
        candidate = chunk.candidates[0]
        assert candidate.content is not None
        finish = candidate.finish_reason.value if candidate.finish_reason else finish
        for part in candidate.content.parts or ():
            thought += (part.text or "") if part.thought else ""
            text += "" if part.thought else (part.text or "")
            if part.function_call is None:
                continue
            call = part.function_call
            if call.name is not None:
                calls.append((call.id, call.name, call.args or {}))
                writing, written = JsonWriter(schemas[len(calls) - 1]), ""
            assert writing is not None
            for piece in call.partial_args or ():
                written += writing.write(piece.json_path or "", partial_value(piece), bool(piece.will_continue))
            if not call.will_continue and written:
                calls[-1] = (*calls[-1][:2], json.loads(written + writing.close()))
    return Answer(thought, text, calls, finish)


def schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_of(item) for key, item in value.items()}}
    return {"type": "array", "prefixItems": [schema_of(item) for item in value]} if isinstance(value, list) else {}


def sdk_answer(wire: str, script: Script, stream: bool) -> Answer:
    body = b"".join(encode(wire, script)) if stream else encode_whole(wire, script)
    made = READ[wire](body, stream=stream)
    return Answer(made.thoughts, made.text, made.calls, made.finish)


ANSWER: dict[str, Callable[[Script, bool], Answer]] = {
    "gemini": gemini_answer,
    "anthropic": anthropic_answer,
    "openai_chat": chat_answer,
    "openai_responses": responses_answer,
    **{
        wire: partial(sdk_answer, wire)
        for wire in ("cohere", "gemini_interactions", "ollama", "bedrock_converse", "bedrock_invoke")
    },
}
IDS = {
    "gemini": [None, None],
    "ollama": [None, None],  # its client drops them
    "anthropic": ["toolu_1", "toolu_2"],
    "cohere": ["get_weather_1", "get_time_2"],
    "bedrock_converse": ["tooluse_1", "tooluse_2"],
    "bedrock_invoke": ["toolu_1", "toolu_2"],
    "gemini_interactions": ["fc_1", "fc_2"],
}
CALLED = {
    "gemini": "STOP",
    "anthropic": "tool_use",
    "openai_chat": "tool_calls",
    "openai_responses": "completed",
    "cohere": "TOOL_CALL",
    "bedrock_converse": "tool_use",
    "bedrock_invoke": "tool_use",
    "gemini_interactions": "requires_action",
    "ollama": "stop",
}
SAID = {
    "gemini": "STOP",
    "anthropic": "end_turn",
    "openai_chat": "stop",
    "openai_responses": "completed",
    "cohere": "COMPLETE",
    "bedrock_converse": "end_turn",
    "bedrock_invoke": "end_turn",
    "gemini_interactions": "completed",
    "ollama": "stop",
}
LENGTH = {
    "gemini": "MAX_TOKENS",
    "anthropic": "max_tokens",
    "openai_chat": "length",
    "openai_responses": "incomplete",
    "cohere": "MAX_TOKENS",
    "bedrock_converse": "max_tokens",
    "bedrock_invoke": "max_tokens",
    "gemini_interactions": "incomplete",
    "ollama": "length",
}

every_wire = pytest.mark.parametrize("wire", WIRES)
streamed_or_whole = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

# What all SDKs can hold: integers that are exact as doubles, because google-genai reads every number as one.
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e6, 1e6) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=6), values, max_size=4)


@every_wire
@given(arguments, st.integers(1, 20), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_sdk_puts_the_arguments_together(wire: str, args: Any, size: int, streamed: bool) -> None:
    answer = ANSWER[wire]([Call("tool", args, size=size, streamed=streamed)], True)
    assert [(name, found) for _, name, found in answer.calls] == [("tool", args)]


@every_wire
@streamed_or_whole
def test_the_sdk_sees_all_that_was_scripted(wire: str, stream: bool) -> None:
    script = [
        Thought("Hm. Let me think.", 5),
        Text("I will look\nin both – ", 4),
        Text("places."),
        Call("get_weather", {"city": "Paris", "days": [1, 2]}),
        Call("get_time", {}),
    ]
    ids = IDS.get(wire, ["call_1", "call_2"])
    assert ANSWER[wire](script, stream) == Answer(
        "Hm. Let me think.",
        "I will look\nin both – places.",
        [(ids[0], "get_weather", {"city": "Paris", "days": [1, 2]}), (ids[1], "get_time", {})],
        CALLED[wire],
    )


@every_wire
def test_the_sdk_reads_awkward_text(wire: str) -> None:
    awkward = "\x00\t\r\n\x0b\x0c\x1c\x7f\x85\xa0\u2028\u2029\ufeff\uffff<>&'\"\\/data: 😀 é"
    answer = ANSWER[wire]([Text(awkward, 1), Call("a", {awkward: awkward}, size=1)], True)
    assert answer.text == awkward
    assert answer.calls[0][2] == {awkward: awkward}


@every_wire
@streamed_or_whole
def test_an_answer_of_text_alone(wire: str, stream: bool) -> None:
    assert ANSWER[wire]([Text("Hello.", 2), Finish()], stream) == Answer("", "Hello.", [], SAID[wire])


@every_wire
@streamed_or_whole
def test_an_answer_of_nothing(wire: str, stream: bool) -> None:
    assert ANSWER[wire]([], stream) == Answer("", "", [], SAID[wire])


@every_wire
@streamed_or_whole
def test_parallel_calls_each_keep_their_own_arguments(wire: str, stream: bool) -> None:
    calls = [Call("a", {"x": "first call"}, size=3), Call("b", {"y": [{}, {"z": 1}]}, size=3, streamed=False),
             Call("a", {"x": "third"}, size=2, call_id="mine")]  # fmt: skip
    answer = ANSWER[wire]([Parallel(calls)], stream)
    assert [(name, args) for _, name, args in answer.calls] == [(call.name, call.args) for call in calls]
    assert answer.calls[2][0] == ("mine" if wire != "ollama" else None)


def test_parallel_calls_alternate_where_the_wire_can() -> None:
    script = [Parallel([Call("a", {"x": 1}, size=3), Call("b", {"y": 2}, size=3)])]
    chat = [payload["choices"][0]["delta"] for payload in payloads("openai_chat", script) if payload["choices"]]
    assert [delta["tool_calls"][0]["index"] for delta in chat if "tool_calls" in delta] == [0, 1, 0, 1, 0, 1, 0, 1]
    events = payloads("openai_responses", script)
    assert [event["output_index"] for event in events if "output_index" in event] == [0, 1] * 6


def test_whole_gemini_calls_share_a_chunk_until_a_streamed_one() -> None:
    whole = Call("a", {"x": 1}, streamed=False)
    chunks = payloads("gemini", [Parallel([whole, whole, Call("b", {"y": 2}), whole])])
    assert [len(chunk["candidates"][0]["content"]["parts"]) for chunk in chunks] == [2, 1, 1, 1, 1, 1]


# -- the ways in which a response ends ------------------------------------------------------------------------------------


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
    script = [Text("Hel"), Call("a", {"x": "some text"})]
    whole = list(encode(wire, script))
    truncated = list(encode(wire, [*script, Truncated()]))
    assert truncated == whole[: len(truncated)]
    assert len(truncated) < len(whole)
    assert not any(word in b"".join(truncated) for word in (b"message_stop", b"[DONE]", b"response.completed", b"STOP"))


@pytest.mark.parametrize("wire", [wire for wire in WIRES if ENCODERS[wire].streams_arguments])
def test_a_call_that_stops_short(wire: str) -> None:
    script = [Call("a", {"x": "some text"}, size=4, stop_after=2)]
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
    response = payloads("openai_responses", [Call("a", {"x": 1}, size=4, stop_after=1), Finish("length")])[-1][
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


@every_wire
def test_an_id_may_be_given_left_out_or_numbered(wire: str) -> None:
    script = [Call("a", call_id="given"), Call("b", call_id=""), Call("c")]
    found = [call_id for payload in payloads(wire, script, first_id=7) for call_id in ids_in(payload)]
    prefixes = {"gemini": None, "anthropic": "toolu_", "cohere": "c_", "gemini_interactions": "fc_",
                "bedrock_converse": "tooluse_", "bedrock_invoke": "toolu_"}  # fmt: skip
    prefix = prefixes.get(wire, "call_")
    numbered = [] if prefix is None else [f"{prefix}7"]
    assert list(dict.fromkeys(found)) == ["given", *numbered]


def ids_in(payload: Any) -> list[str]:
    """The ids of calls anywhere in a payload."""
    if isinstance(payload, list):
        return [found for item in payload for found in ids_in(item)]
    if not isinstance(payload, dict):
        return []
    own: list[str] = []
    if "functionCall" in payload:
        own = [payload["functionCall"]["id"]] if "id" in payload["functionCall"] else []
    elif "toolUse" in payload:
        own = [payload["toolUse"]["toolUseId"]] if "toolUseId" in payload["toolUse"] else []
    elif payload.get("type") == "function_call":
        name = "id" if isinstance(payload["arguments"], dict) else "call_id"  # of Interactions, of Responses
        own = [payload[name]] if name in payload else []
    elif payload.get("type") in ("tool_use", "function") or "function" in payload:
        own = [payload["id"]] if "id" in payload else []
    return own + [found for value in payload.values() for found in ids_in(value)]


def test_signatures_are_where_the_wire_puts_them() -> None:
    script = [Thought("Hm.", signature="dGhvdWdodA=="), Call("a", {"x": 1}, signature="Y2FsbA==")]
    parts = [part for chunk in gemini_chunks(script, True) for part in chunk.candidates[0].content.parts]  # type: ignore
    assert [part.thought_signature for part in parts if part.thought_signature] == [b"thought", b"call"]
    assert parts[2].function_call.name == "a"
    assert parts[2].thought_signature == b"call"
    assert any(b'"signature":"dGhvdWdodA=="' in chunk for chunk in encode("anthropic", script))
    assert any(b'"encrypted_content":"dGhvdWdodA=="' in chunk for chunk in encode("openai_responses", script))
    assert any(b'{"google":{"thought_signature":"Y2FsbA=="}}' in chunk for chunk in encode("openai_chat", script))


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses", "cohere"])
@pytest.mark.parametrize("text", ['{ "x" :\n 1 }', '{"x": 1', "nonsense"])
@pytest.mark.parametrize("streamed", [True, False])
def test_argument_text_is_sent_as_it_is(wire: str, text: str, streamed: bool) -> None:
    """The one exception: Anthropic's whole calls carry values."""
    sent = ""
    for payload in payloads(wire, [Call("a", text=text, size=3, streamed=streamed)]):
        if wire == "anthropic":
            sent += payload.get("delta", {}).get("partial_json", "")
        elif wire == "cohere":
            call = payload.get("delta", {}).get("message", {}).get("tool_calls") or {}
            sent += call["function"]["arguments"] if call else ""
        elif wire == "openai_chat":
            for call in payload["choices"][0]["delta"].get("tool_calls", ()) if payload["choices"] else ():
                sent += call["function"]["arguments"]
        elif payload["type"] == "response.function_call_arguments.done":
            sent += payload["arguments"]
    assert sent == ("" if wire == "anthropic" and not streamed and text.startswith("{ ") else text)


def test_a_whole_anthropic_answer_carries_values() -> None:
    with pytest.raises(UsageError, match="cannot carry text that is not JSON"):
        encode_whole("anthropic", [Call("a", text='{"x": 1'), Call("b", {"y": 1})])


def test_gemini_takes_argument_text_that_is_json() -> None:
    assert gemini_answer([Call("a", {"x": 1}, text='{ "x" : 1 }')], True).calls == [(None, "a", {"x": 1})]


def test_custom_tool_text_is_the_input_of_a_free_text_tool() -> None:
    script = [
        Call("patch", "*** Begin\n+x", size=5, custom=True),
        Call("code", text="print(1)", custom=True, streamed=False),
    ]
    with openai_client(script, "openai_responses", True).responses.stream(model="-", input="-") as running:
        deltas = [event.delta for event in running if event.type == "response.custom_tool_call_input.delta"]
        output: Any = running.get_final_response().output
    assert deltas == ["*** B", "egin\n", "+x"]
    assert [(item.type, item.name, item.input) for item in output] == [
        ("custom_tool_call", "patch", "*** Begin\n+x"),
        ("custom_tool_call", "code", "print(1)"),
    ]


@pytest.mark.parametrize(
    ("wire", "script", "message"),
    [
        ("gemini", [Call("a", text="{")], "cannot carry argument text that is not JSON"),
        ("gemini", [Call("a", [1])], "arguments are an object"),
        ("gemini", [Call("a", "x", custom=True)], "no free-text tools"),
        ("anthropic", [Call("a", "x", custom=True)], "no free-text tools"),
        ("openai_chat", [Call("a", "x", custom=True)], "no free-text tools"),
        ("cohere", [Call("a", "x", custom=True)], "no free-text tools"),
        ("ollama", [Call("a", "x", custom=True)], "no free-text tools"),
        ("ollama", [Call("a", text="{}")], "arguments as an object"),
        ("gemini_interactions", [Call("a", "x", custom=True)], "no free-text tools"),
        ("openai_responses", [Call("a", {}, custom=True)], "has to be a string"),
        ("openai_chat", [Finish(), Text("x")], "goes on after it"),
        ("cobol", [], "no encoder for the wire 'cobol'"),
    ],
)
def test_scripts_that_cannot_be(wire: str, script: Script, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(encode(wire, script))


@pytest.mark.parametrize("end", [Truncated(), Cut()])
def test_a_whole_answer_has_an_end(end: Truncated | Cut) -> None:
    with pytest.raises(UsageError, match="cannot end with"):
        encode_whole("gemini", [end])


# -- realism --------------------------------------------------------------------------------------------------------------

FULL: Script = [
    Thought("Let me think.", 6),
    Text("I will look.", 6),
    Call("cook", {"recipe": {"steps": [{"a": "boil", "n": 2}, {"a": "eat", "n": 0.5}]}, "for": "two"}),
    Call("read_theme"),
    Call("get_weather", {"city": "Paris"}, streamed=False),
]


def payloads(wire: str, script: Script, first_id: int = 1) -> list[dict[str, Any]]:
    frames = decoder_for(wire).framing.feed(b"".join(encode(wire, script, first_id=first_id)))
    return [json.loads(frame.payload) for frame in frames if frame.payload and frame.payload != b"[DONE]"]


def sent_by(wire: str, chunks: list[bytes]) -> bytes:
    """What the chunks say: themselves, or where they are not text the payloads in them."""
    if ENCODERS[wire].is_text:
        return b"".join(chunks)
    return b"".join(frame.payload or b"" for frame in decoder_for(wire).framing.feed(b"".join(chunks)))


@every_wire
def test_the_same_script_gives_the_same_bytes(wire: str) -> None:
    assert list(encode(wire, FULL)) == list(encode(wire, FULL))
    named = list(encode(wire, FULL, model="other")) != list(encode(wire, FULL))
    assert named or wire in ("cohere", "bedrock_converse")  # whose streams do not name the model


@pytest.mark.parametrize("wire", [wire for wire in WIRES if "event-stream" in ENCODERS[wire].stream_type[:17]])
def test_one_server_sent_event_a_chunk(wire: str) -> None:
    for chunk in encode(wire, FULL):
        newline = b"\r\n" if wire == "gemini" else b"\n"
        assert chunk.endswith(newline * 2)
        lines = chunk.removesuffix(newline * 2).split(newline)
        assert [line.split(b": ")[0] for line in lines] in ([b"data"], [b"event", b"data"])
        assert not any(b"\n" in line or b"\r" in line for line in lines)


@every_wire
def test_text_that_is_not_utf8_can_be_sent(wire: str) -> None:
    body = sent_by(wire, list(encode(wire, [Text("\ud800 é")]))).decode()
    assert "\\ud800 é" in body or "\\ud800 \\u00e9" in body


def test_responses_events_are_numbered_and_name_their_items() -> None:
    events = payloads("openai_responses", FULL)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]
        if event["type"] == "response.output_item.done":
            assert event["item"] == output[event["output_index"]]
    assert events[-1]["response"] == json.loads(encode_whole("openai_responses", FULL))


def test_the_small_signs_of_life() -> None:
    assert b'event: ping\ndata: {"type": "ping"}\n\n' in list(encode("anthropic", FULL))
    assert list(encode("openai_chat", FULL))[-1] == b"data: [DONE]\n\n"
    assert payloads("openai_chat", FULL)[-1]["choices"] == []
    assert payloads("openai_chat", FULL)[0]["choices"][0]["delta"]["role"] == "assistant"


def shape(value: Any, path: str = "") -> set[str]:
    """The fields of a payload with their kinds, told apart by the ``type`` of the object that they are in."""
    if isinstance(value, list):
        return {found for item in value for found in shape(item, f"{path}[]")}
    if isinstance(value, dict) and not path.endswith((".args", ".input", ".metadata", ".arguments")):
        kind = value.get("type")
        path = f"{path}<{kind}>" if isinstance(kind, str) else path
        return {found for key, item in value.items() for found in shape(item, f"{path}.{key}")}
    return {path}


RECORDED = {
    "gemini": ["vertex", "google-ai-studio"],
    "anthropic": ["anthropic"],
    "openai_chat": ["openai", "azure", "zai"],
    "openai_responses": ["openai", "azure", "openai-chatgpt"],
    "cohere": ["cohere"],
    "bedrock_converse": ["bedrock"],
    "bedrock_invoke": ["bedrock", "anthropic"],
    "gemini_interactions": ["google-ai-studio"],
    "ollama": ["ollama"],
}
NOT_RECORDED = {".delta.reasoningContent.text", ".delta.reasoningContent.signature"}
"""Of Converse, where no stream with reasoning was recorded: as the service describes it."""


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the project")
@every_wire
def test_no_field_is_invented(wire: str) -> None:
    """Every field that we send is in some recorded stream of that wire's own providers, in the same place."""
    recorded: set[str] = set()
    for line in (RECORDINGS / "MANIFEST.jsonl").read_text().splitlines():
        capture = json.loads(line)
        wires = {captures.WIRES[wire], *(["anthropic_messages"] if wire == "bedrock_invoke" else [])}
        if capture["wire"] in wires and capture["provider"] in RECORDED[wire]:
            for text in (RECORDINGS / capture["file"]).read_bytes().decode().splitlines():
                text = text.removeprefix("data:").strip()
                if text.startswith("{"):
                    event = json.loads(text)
                    recorded |= shape(*event.values() if wire == "bedrock_converse" else (event,))
    ours = {found for payload in payloads(wire, FULL) for found in shape(payload)}
    # No recording shows a summary of thoughts; google-genai's types have it.
    typed = {found for found in ours if wire == "gemini_interactions" and found.startswith(".delta<thought_summary>")}
    assert ours - recorded - typed - (NOT_RECORDED if wire == "bedrock_converse" else set()) == set()
