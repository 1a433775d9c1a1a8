"""Text that reaches the SDK by the passage: fewer frames, and nothing else is different."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from callstream.errors import UsageError
from callstream.testing import Finish, Text, Thought, ToolCall, encode
from callstream.wire import decoder_for, provider_of
from tests.captures import WIRES as FULL_NAMES
from tests.captures import Capture, body, each_capture
from tests.decoding import cut
from tests.sdks import READ
from tests.wire.collapsing import named, no, payloads, tapped, told, told_by, tools_of
from tests.wire.test_collapsing_captures import WRONG_ALONE
from tests.wire.test_collapsing_scripts import ends, names, steps

WIRES = ("anthropic", "gemini", "openai_chat", "openai_responses")
NAMES = {full: name for name, full in FULL_NAMES.items()}
SAID = "The tide is high, and the moon is new. " * 3


@pytest.mark.parametrize("wire", WIRES)
@given(script=steps, end=ends, collapsed=st.sets(names), data=st.data())
def test_joined_text_tells_the_same_wherever_the_body_is_cut(
    wire: str, script: list[Any], end: Any, collapsed: set[str], data: st.DataObject
) -> None:
    try:
        whole = b"".join(encode(wire, [*script, end]))
    except UsageError:
        reject()
    collapse = named(*collapsed)
    plain = tapped(wire, [whole], collapse)
    joined = tapped(wire, [whole], collapse, joins_text=True)
    pieces = cut(whole, data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    assert tapped(wire, pieces, collapse, joins_text=True).body == joined.body
    assert told_by(joined.events, joined.error) == told_by(plain.events, plain.error)
    before, after = told(wire, plain.body), told(wire, joined.body)
    assert (after.text, after.calls, after.finishes, after.error, after.reasoning) == (
        before.text,
        before.calls,
        before.finishes,
        before.error,
        before.reasoning,
    )
    assert joined.call_ids == plain.call_ids


@pytest.mark.parametrize("wire", WIRES)
def test_text_with_halves_of_characters_is_left_as_it_came(wire: str) -> None:
    """Servers that cut UTF-16 text in two send them. What is shown of them is not what the bytes say."""
    script = [Thought("Hm\ud83d\ude00\ud83d.", size=1), Text("I \ud83d\ude00 agr\ud83dee.", size=1), Finish()]
    whole = b"".join(encode(wire, script))
    plain, joined = tapped(wire, [whole]), tapped(wire, [whole], joins_text=True)
    before, after = READ[wire](plain.body), READ[wire](joined.body)
    assert (after.told, after.text) == (before.told, before.text)
    assert told_by(joined.events, joined.error) == told_by(plain.events, plain.error)


@pytest.mark.parametrize("wire", WIRES)
def test_a_passage_is_one_frame_and_the_sdk_reads_the_same(wire: str) -> None:
    script = [Thought(SAID, size=5, signature="c2ln"), Text(SAID, size=4), ToolCall("write", {"a": 1}), Finish()]
    whole = b"".join(encode(wire, script))
    joined = tapped(wire, [whole], joins_text=True).body
    assert len(joined) * 2 < len(whole)
    plain, made = READ[wire](tapped(wire, [whole]).body), READ[wire](joined)
    assert made.told == plain.told
    assert made.text == SAID


@pytest.mark.parametrize("wire", WIRES)
def test_a_keep_alive_is_due_while_text_is_held(wire: str) -> None:
    whole = b"".join(encode(wire, [Text(SAID, size=4), Finish()]))
    collapser = provider_of(wire).collapser(decoder_for(wire), collapse=no, joins_text=True)
    collapser.feed(whole[: len(whole) // 2])
    assert collapser.is_holding
    collapser.feed(whole[len(whole) // 2 :])
    collapser.end()
    assert not collapser.is_holding


LEAVES_AS_IT_IS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "anthropic": [
        (
            "a citation",
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a", "x": 1}},
        ),
        (
            "another field",
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}, "x": 1},
        ),
    ],
    "gemini": [
        ("a signature", {"candidates": [{"content": {"parts": [{"text": "a", "thoughtSignature": "c2ln"}]}}]}),
        ("an end", {"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]}),
        ("two parts", {"candidates": [{"content": {"parts": [{"text": "a"}, {"text": "b"}]}}]}),
        ("grounding", {"candidates": [{"content": {"parts": [{"text": "a"}]}, "groundingMetadata": {}}]}),
    ],
    "openai_chat": [
        ("a role", {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]}),
        ("logprobs", {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": []}}]}),
        ("an end", {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}),
        ("what may be a call", {"choices": [{"index": 0, "delta": {"content": ": {"}}]}),
        ("DeepSeek's marks", {"choices": [{"index": 0, "delta": {"content": "<｜tool▁call▁begin｜>"}}]}),
        ("both", {"choices": [{"index": 0, "delta": {"content": "a", "reasoning": "b"}}]}),
        (
            "two choices",
            {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]},
        ),
    ],
    "openai_responses": [
        ("logprobs", {"type": "response.output_text.delta", "delta": "a", "logprobs": [{"token": "a"}]}),
        ("another event", {"type": "response.refusal.delta", "delta": "a"}),
    ],
}


@pytest.mark.parametrize(
    ("wire", "case"), [(wire, number) for wire, all_ in LEAVES_AS_IT_IS.items() for number in range(len(all_))]
)
def test_a_frame_that_holds_anything_else_leaves_as_it_is(wire: str, case: int) -> None:
    _, payload = LEAVES_AS_IT_IS[wire][case]
    form = provider_of(wire).collapser.text_form
    assert form is not None
    assert form.passage_of(json.dumps(payload).encode()) is None
    assert form.passage_of(b"[DONE]") is None


def test_figures_of_usage_are_those_of_the_last_frame() -> None:
    chunks = [
        {
            "candidates": [{"content": {"parts": [{"text": text}], "role": "model"}}],
            "usageMetadata": {"totalTokenCount": n},
        }
        for n, text in enumerate(["One ", "two ", "three"], start=1)
    ]
    end = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"totalTokenCount": 9}}
    sent = b"".join(b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in [*chunks, end])
    said, last = payloads(tapped("gemini", [sent], joins_text=True).body)
    assert said["candidates"][0]["content"]["parts"] == [{"text": "One two three"}]
    assert said["usageMetadata"] == {"totalTokenCount": 3}
    assert last == end


@each_capture(*(FULL_NAMES[wire] for wire in WIRES), slow_above=60_000)
def test_recorded_answers_read_the_same_with_joined_text(capture: Capture) -> None:
    wire = NAMES[capture.wire]
    sent = body(capture)
    plain = tapped(wire, [sent], tools=tools_of(capture))
    joined = tapped(wire, [sent], tools=tools_of(capture), joins_text=True)
    assert joined.events == plain.events
    before, after = told(wire, plain.body), told(wire, joined.body)
    assert (after.text, after.reasoning, after.calls, after.finishes) == (
        before.text,
        before.reasoning,
        before.calls,
        before.finishes,
    )
    if capture.file not in WRONG_ALONE:
        assert read(wire, joined.body) == read(wire, plain.body)


def read(wire: str, sent: bytes) -> Any:
    """What the SDK makes of a body, or the kind of its error."""
    try:
        return READ[wire](sent).told
    except Exception as error:  # noqa: BLE001  # whatever an SDK raises, it has to raise it in both cases
        return type(error)
