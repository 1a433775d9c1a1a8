"""The encoders are held against the real SDKs' own stream parsers, fed with the bytes over a mock transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.errors import UsageError
from callstream.testing import (
    WIRES,
    Cut,
    Finish,
    Parallel,
    Script,
    Text,
    Thought,
    ToolCall,
    Truncated,
    encode,
    encode_whole,
)
from tests.examples import examples
from tests.testing.encoded import (
    ANSWER,
    CALLED,
    IDS,
    SAID,
    Answer,
    gemini_answer,
    gemini_chunks,
    openai_client,
    payloads,
)

RECORDINGS = Path(__file__).parents[3] / "shared" / "wires"


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
@examples(30)
def test_the_sdk_puts_the_arguments_together(wire: str, args: Any, size: int, streamed: bool) -> None:
    answer = ANSWER[wire]([ToolCall("tool", args, size=size, streamed=streamed)], True)
    assert [(name, found) for _, name, found in answer.calls] == [("tool", args)]


@every_wire
@streamed_or_whole
def test_the_sdk_sees_all_that_was_scripted(wire: str, stream: bool) -> None:
    script = [
        Thought("Hm. Let me think.", 5),
        Text("I will look\nin both – ", 4),
        Text("places."),
        ToolCall("get_weather", {"city": "Paris", "days": [1, 2]}),
        ToolCall("get_time", {}),
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
    answer = ANSWER[wire]([Text(awkward, 1), ToolCall("a", {awkward: awkward}, size=1)], True)
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
    calls = [ToolCall("a", {"x": "first call"}, size=3), ToolCall("b", {"y": [{}, {"z": 1}]}, size=3, streamed=False),
             ToolCall("a", {"x": "third"}, size=2, call_id="mine")]  # fmt: skip
    answer = ANSWER[wire]([Parallel(calls)], stream)
    assert [(name, args) for _, name, args in answer.calls] == [(call.name, call.args) for call in calls]
    assert answer.calls[2][0] == ("mine" if wire != "ollama" else None)


def test_parallel_calls_alternate_where_the_wire_can() -> None:
    script = [Parallel([ToolCall("a", {"x": 1}, size=3), ToolCall("b", {"y": 2}, size=3)])]
    chat = [payload["choices"][0]["delta"] for payload in payloads("openai_chat", script) if payload["choices"]]
    assert [delta["tool_calls"][0]["index"] for delta in chat if "tool_calls" in delta] == [0, 1, 0, 1, 0, 1, 0, 1]
    events = payloads("openai_responses", script)
    assert [event["output_index"] for event in events if "output_index" in event] == [0, 1] * 6


def test_whole_gemini_calls_share_a_chunk_until_a_streamed_one() -> None:
    whole = ToolCall("a", {"x": 1}, streamed=False)
    chunks = payloads("gemini", [Parallel([whole, whole, ToolCall("b", {"y": 2}), whole])])
    assert [len(chunk["candidates"][0]["content"]["parts"]) for chunk in chunks] == [2, 1, 1, 1, 1, 1]


# -- the ways in which a response ends ------------------------------------------------------------------------------------


@every_wire
def test_an_id_may_be_given_left_out_or_numbered(wire: str) -> None:
    script = [ToolCall("a", call_id="given"), ToolCall("b", call_id=""), ToolCall("c")]
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
    script = [Thought("Hm.", signature="dGhvdWdodA=="), ToolCall("a", {"x": 1}, signature="Y2FsbA==")]
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
    for payload in payloads(wire, [ToolCall("a", text=text, size=3, streamed=streamed)]):
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


@pytest.mark.parametrize("wire", ["anthropic", "bedrock_converse", "bedrock_invoke", "gemini_interactions"])
def test_a_stream_carries_text_that_nests_too_deep_for_python(wire: Any) -> None:
    text = '{"x":' + "[" * 5000 + "]" * 5000 + "}"
    pieces = list(encode(wire, [ToolCall("a", text=text, size=100)]))
    assert len(pieces) > len(text) / 100


def test_a_whole_anthropic_answer_carries_values() -> None:
    with pytest.raises(UsageError, match="cannot carry text that is not JSON"):
        encode_whole("anthropic", [ToolCall("a", text='{"x": 1'), ToolCall("b", {"y": 1})])


def test_gemini_takes_argument_text_that_is_json() -> None:
    assert gemini_answer([ToolCall("a", {"x": 1}, text='{ "x" : 1 }')], True).calls == [(None, "a", {"x": 1})]


def test_a_tool_may_have_a_namespace_on_the_responses_api() -> None:
    script = [ToolCall("look", {"at": "sea"}, namespace="eyes"), ToolCall("listen")]
    with openai_client(script, "openai_responses", True).responses.stream(model="-", input="-") as running:
        items: list[Any] = [event.item for event in running if event.type == "response.output_item.done"]
        output: Any = running.get_final_response().output
    for each in (items, output):
        assert [(item.name, getattr(item, "namespace", None)) for item in each] == [("look", "eyes"), ("listen", None)]


def test_custom_tool_text_is_the_input_of_a_free_text_tool() -> None:
    script = [
        ToolCall("patch", "*** Begin\n+x", size=5, custom=True),
        ToolCall("code", text="print(1)", custom=True, streamed=False),
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
        ("gemini", [ToolCall("a", text="{")], "cannot carry argument text that is not JSON"),
        ("gemini", [ToolCall("a", [1])], "arguments are an object"),
        ("gemini", [ToolCall("a", "x", custom=True)], "no free-text tools"),
        ("anthropic", [ToolCall("a", "x", custom=True)], "no free-text tools"),
        ("openai_chat", [ToolCall("a", "x", custom=True)], "no free-text tools"),
        ("cohere", [ToolCall("a", "x", custom=True)], "no free-text tools"),
        ("ollama", [ToolCall("a", "x", custom=True)], "no free-text tools"),
        ("ollama", [ToolCall("a", text="{}")], "arguments as an object"),
        ("gemini_interactions", [ToolCall("a", "x", custom=True)], "no free-text tools"),
        ("openai_responses", [ToolCall("a", {}, custom=True)], "has to be a string"),
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
