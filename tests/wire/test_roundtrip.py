"""What the encoders write, the decoders read: any arguments, any text around them, any number of calls, any split."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.testing import (
    WIRES,
    Failure,
    Finish,
    Parallel,
    Text,
    Thought,
    ToolCall,
    Truncated,
    encode,
    encode_whole,
)
from callstream.testing.encoders import ENCODERS
from callstream.wire import decoder_for
from tests.decoding import Folded, bytewise, calls, check_order, cut, ended, fed, merged, reasoning, text

every_wire = pytest.mark.parametrize("wire", WIRES)
STREAMED_WIRES = [wire for wire in WIRES if ENCODERS[wire].streams_arguments]
"""Those on which a call comes in pieces. On the others it is whole or not there at all."""

CHARACTERS = st.characters(exclude_categories=["Cs"])
WORDS = st.text(CHARACTERS, max_size=12)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
ARGS = st.dictionaries(WORDS, VALUES, max_size=4)
CALLS = st.builds(
    ToolCall,
    st.sampled_from(["get_weather", "write-file", "x"]),
    ARGS,
    size=st.integers(1, 9),
    streamed=st.booleans(),
)
STEPS = st.lists(
    st.builds(Text, WORDS.filter(bool), st.none() | st.integers(1, 5))
    | st.builds(Thought, WORDS.filter(bool), st.none() | st.integers(1, 5))
    | CALLS
    | st.builds(Parallel, st.lists(CALLS, min_size=1, max_size=3)),
    max_size=5,
)


def scripted(steps: list[Any]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Text, reasoning and calls of a script."""
    made: list[ToolCall] = []
    for step in steps:
        made += step.calls if isinstance(step, Parallel) else [step] if isinstance(step, ToolCall) else []
    said = "".join(step.text for step in steps if isinstance(step, Text))
    thought = "".join(step.text for step in steps if isinstance(step, Thought))
    return said, thought, [(call.name, call.args) for call in made]


def read(found: list[Folded]) -> list[tuple[str, Any]]:
    return [(call.name, call.args) for call in found]


@every_wire
@given(steps=STEPS, data=st.data())
def test_any_script_comes_back(wire: str, steps: list[Any], data: st.DataObject) -> None:
    body = b"".join(encode(wire, steps))
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=10))
    said, thought, made = scripted(steps)
    results = []
    for pieces in ([body], cut(body, places), bytewise(body)):
        events, error = fed(decoder_for(wire), pieces)
        assert error is None
        check_order(events)
        assert (text(events), reasoning(events)) == (said, thought)
        assert read(calls(events)) == made
        assert all(call.text == call.args_json for call in calls(events))
        assert len(ended(events)) == 1
        results.append(merged(events))
    assert results[0] == results[1] == results[2]


@every_wire
@given(steps=STEPS)
def test_whole_answer_same_calls(wire: str, steps: list[Any]) -> None:
    streamed, error = fed(decoder_for(wire), encode(wire, steps))
    assert error is None
    events = decoder_for(wire).whole(encode_whole(wire, steps))
    check_order(events)
    assert (text(events), reasoning(events)) == (text(streamed), reasoning(streamed))
    assert read(calls(events)) == read(calls(streamed))
    assert [call.provider_id for call in calls(events)] == [call.provider_id for call in calls(streamed)]


@every_wire
@given(steps=STEPS, finish=st.sampled_from([Finish(), Finish("length"), Failure("no"), Truncated()]), data=st.data())
def test_truncated_anywhere_completes_nothing_unfinished(
    wire: str, steps: list[Any], finish: Any, data: st.DataObject
) -> None:
    """Cut at any byte: what is completed is right, all else is discarded, and no text is made up."""
    body = b"".join(encode(wire, [*steps, finish]))
    body = body[: data.draw(st.integers(0, len(body)))]
    said, thought, made = scripted(steps)
    whole_events, _ = fed(decoder_for(wire), [body])
    events, _ = fed(decoder_for(wire), bytewise(body))
    assert merged(events) == merged(whole_events)
    check_order(events)
    assert said.startswith(text(events))
    assert thought.startswith(reasoning(events))
    found = calls(events)
    assert [call.name for call in found] == [name for name, _ in made][: len(found)]
    for call, (_, args) in zip(found, made, strict=False):
        assert call.outcome in ("completed", "truncated", "interrupted")
        if call.outcome == "completed":
            assert call.args == args


@pytest.mark.parametrize("wire", STREAMED_WIRES)
@pytest.mark.parametrize("finish", [Finish("length"), Truncated(), Failure("no")])
@given(before=st.lists(CALLS, max_size=2), args=ARGS.filter(bool), stop_after=st.integers(0, 3))
def test_truncated_call_is_discarded_and_those_before_it_are_not(
    wire: str, finish: Any, before: list[ToolCall], args: Any, stop_after: int
) -> None:
    steps = [*before, ToolCall("cut", args, stop_after=stop_after, size=2), finish]
    events, error = fed(decoder_for(wire), encode(wire, steps))
    assert (error is not None) is isinstance(finish, Failure)
    *finished, last = calls(events)
    assert last.name == "cut"
    assert last.outcome == ("interrupted" if error else "truncated")
    if wire == "openai_chat":
        # This wire ends no call before the response; at the length limit the text has to do.
        kept = [("completed" if finish == Finish("length") else last.outcome)] * len(before)
        assert [call.outcome for call in finished] == kept
    else:
        assert read(finished) == [(call.name, call.args) for call in before]


@given(free_text=st.text(CHARACTERS), size=st.integers(1, 9), streamed=st.booleans())
def test_custom_tool_text(free_text: str, size: int, streamed: bool) -> None:
    wire = "openai_responses"
    script = [ToolCall("patch", text=free_text, custom=True, size=size, streamed=streamed)]
    for events in (
        fed(decoder_for(wire), encode(wire, script))[0],
        decoder_for(wire).whole(encode_whole(wire, script)),
    ):
        (call,) = calls(events)
        assert (call.encoding, call.text, call.args) == ("text", free_text, free_text)


@pytest.mark.parametrize("wire", [wire for wire in STREAMED_WIRES if wire != "gemini"])
@given(args=ARGS, indent=st.sampled_from([None, 0, 2]), size=st.integers(1, 9))
def test_argument_text_is_kept_as_it_was_written(wire: str, args: Any, indent: int | None, size: int) -> None:
    written = json.dumps(args, indent=indent, ensure_ascii=False)
    events, error = fed(decoder_for(wire), encode(wire, [ToolCall("f", text=f" {written}\n", size=size)]))
    assert error is None
    (call,) = calls(events)
    assert (call.text, call.args) == (f" {written}\n", args)
