"""The dialects of partial responses: the same events whatever a model sends."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import pytest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from callstream.adk.partials import PartialReader
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallStarted,
    ReasoningAppended,
    TextAppended,
    WireEvent,
)
from callstream.testing import Finish, Text, ToolCall, encode_whole
from callstream.wire import decoder_for
from tests.decoding import calls as folded

from .partials import STOP, at, final, function, response

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "items": {"type": "array"}}}


def reader(**tools: Any) -> PartialReader:
    numbers = iter(range(1, 100))
    return PartialReader(lambda: f"adk-{next(numbers)}", tools or {"f": SCHEMA, "g": SCHEMA})


def read(*responses: LlmResponse, **tools: Any) -> list[WireEvent]:
    reading = reader(**tools)
    return [event for given_response in responses for event in reading.read(given_response)]


def calls(events: list[WireEvent]) -> list[tuple[str, str, Any]]:
    """Of each call: its id, the text that was shown, and how it ended."""
    found: list[tuple[str, str, Any]] = []
    for started in events:
        if isinstance(started, CallStarted):
            mine = [event for event in events if getattr(event, "call_id", None) == started.call_id]
            text = "".join(event.text for event in mine if isinstance(event, ArgsAppended))
            ends = [event for event in mine if isinstance(event, CallCompleted | CallDiscarded)]
            assert len(ends) == 1
            end = ends[0]
            assert isinstance(end, CallDiscarded) or end.args_json == text
            found.append((started.call_id, text, end.reason if isinstance(end, CallDiscarded) else json.loads(text)))
    return found


def test_named_diffs_without_an_end() -> None:
    """Anthropic, OpenAI, LiteLLM: name and id on every chunk, always more to come."""
    chunk = {"id": "0", "name": "f", "will_continue": True}
    events = read(
        response(function(**chunk)),
        response(function(**chunk, partial_args=[at("$.a", "on", True)])),
        response(function(**chunk)),
        response(function(**chunk, partial_args=[at("$.a", "e", True)])),
        response(function(**chunk, partial_args=[at("$.a", "", False), at("$.n", 1.0, False)])),
        final(function(id="0", name="f", args={"a": "one", "n": 1, "items": [], "z": None})),
    )
    assert calls(events) == [
        ("0", '{"a":"one","n":1,"items":[],"z":null}', {"a": "one", "n": 1, "items": [], "z": None})
    ]


def test_named_diffs_without_ids() -> None:
    """Servers that are compatible with OpenAI's and send no id: one id is given, to every chunk and to the whole call."""
    parts = [function(name="f", will_continue=True, partial_args=[at("$.a", text, True)]) for text in ("on", "e")]
    whole = function(name="f", args={"a": "one"})
    events = read(*map(response, parts), final(whole))
    assert calls(events) == [("adk-1", '{"a":"one"}', {"a": "one"})]
    assert {part.function_call.id for part in [*parts, whole] if part.function_call} == {"adk-1"}


def test_raw_text() -> None:
    """Interactions: the id with the name alone, then text under the name, and no path."""
    start = function(id="x", name="f", partial_args=[])
    texts = [
        function(name="f", partial_args=[at(None, text)]) for text in ('{"a": "o', 'ne"', ', "big": 9007199254740993}')
    ]
    events = read(
        response(start),
        *map(response, texts),
        final(function(id="x", name="f", args={"a": "one", "big": 9007199254740993})),
    )
    assert calls(events) == [("x", '{"a": "one", "big": 9007199254740993}', {"a": "one", "big": 9007199254740993})]
    assert {part.function_call.id for part in texts if part.function_call} == {"x"}


def test_raw_text_that_is_cut_off_never_runs() -> None:
    events = read(
        response(function(id="x", name="f", partial_args=[])),
        response(function(name="f", partial_args=[at(None, '{"a": "o')])),
        final(function(id="x", name="f", args={})),
    )
    assert calls(events) == [("x", '{"a": "o', "malformed")]
    error = LlmResponse(error_code="JSON_PARSE_ERROR", finish_reason=STOP, turn_complete=True)
    events = read(response(function(id="x", name="f", partial_args=[])), error)
    assert calls(events) == [("x", "", "malformed")]


def test_accumulated_args() -> None:
    growing = [{"a": "o"}, {"a": "one"}, {"a": "one", "items": [1]}, {"a": "one", "items": [1, 23]}]
    events = read(
        *(response(function(name="f", args=args)) for args in growing), final(function(name="f", args=growing[-1]))
    )
    assert [event.text for event in events if isinstance(event, ArgsAppended)] == [
        '{"a":"o', "ne", '"', ',"items":[1', ",23]}",
    ]  # fmt: skip
    assert calls(events) == [("adk-1", '{"a":"one","items":[1,23]}', growing[-1])]


def test_accumulated_args_that_are_no_extension() -> None:
    changed = [response(function(name="f", args={"a": "one"})), response(function(name="f", args={"a": "two"}))]
    events = read(*changed, final(function(name="f", args={"a": "two"})))
    assert [end for _, _, end in calls(events)] == ["malformed"]


def test_accumulated_args_of_two_calls_of_one_tool() -> None:
    def both(first: str, second: str) -> list[types.Part]:
        return [function(name="f", args={"a": first}), function(name="f", args={"a": second})]

    events = read(response(*both("1", "2")), response(*both("1x", "2y")), final(*both("1x", "2y")))
    assert [end for _, _, end in calls(events)] == [{"a": "1x"}, {"a": "2y"}]


WHOLE_TWICE = [{"a": "one"}, {"a": "two"}], [{"a": "one"}, {"a": "one, too"}], [{"a": "one"}, {"a": "one"}]


@pytest.mark.parametrize("twice", WHOLE_TWICE)
def test_two_whole_calls_of_one_tool_in_two_responses(twice: list[dict[str, Any]]) -> None:
    """Whatever the preview can tell of them, both run on what the whole response has."""
    parts, whole = ([function(name="f", args=args) for args in twice] for _ in range(2))
    events = read(*(response(part) for part in parts), final(*whole))
    assert sorted((end for _, _, end in calls(events)), key=str) == sorted(twice, key=str)
    assert len({part.function_call.id for part in whole if part.function_call}) == 2


def test_two_whole_calls_keep_the_ids_of_the_preview() -> None:
    parts, whole = ([function(name="f", args={"a": a}) for a in ("one", "two", "three")] for _ in range(2))
    events = read(*(response(part) for part in parts), final(*whole))
    ids = [part.function_call.id for part in whole if part.function_call]
    assert ids == [part.function_call.id for part in parts if part.function_call]
    assert [call_id for call_id, _, _ in calls(events)] == ids


def diffs(*args: dict[str, str], **fields: Any) -> list[types.Part]:
    """Calls of one tool as google-adk shows Anthropic's and OpenAI's: values by path, the name on every chunk, no end."""
    parts = []
    for each in args:
        parts.append(function(name="f", will_continue=True, **fields))
        for name, value in each.items():
            pieces = (
                [at(f"$.{name}", value[:1], True)],
                [at(f"$.{name}", value[1:], True)],
                [at(f"$.{name}", "", False)],
            )
            parts += [function(name="f", will_continue=True, partial_args=each, **fields) for each in pieces]
    return parts


@pytest.mark.parametrize("whole", [[{"a": "one"}, {"a": "two"}], [{"a": "one", "b": "x"}, {"a": "one", "b": "y"}]])
def test_two_calls_of_one_tool_as_named_diffs(whole: list[dict[str, str]]) -> None:
    """The text of each is shown in its own call."""
    events = read(*map(response, diffs(*whole)), final(*(function(name="f", args=args) for args in whole)))
    assert [(json.loads(text), end) for _, text, end in calls(events)] == [(args, args) for args in whole]


def test_two_calls_of_one_tool_that_nothing_tells_apart() -> None:
    """The second says what the first could have said: the preview is given up, and both run."""
    whole = [{"a": "one"}, {"b": "two"}]
    events = read(*map(response, diffs(*whole)), final(*(function(name="f", args=args) for args in whole)))
    assert [end for _, _, end in calls(events)] == ["truncated", *whole]


def test_exact_arguments_are_those_of_the_whole_response() -> None:
    """A number that a float cannot hold, and an object with an empty list in it."""
    chunk = {"id": "c", "name": "f", "will_continue": True}
    whole = {"n": 9007199254740993, "o": {"x": "y", "none": []}}
    events = read(
        response(function(**chunk, partial_args=[at("$.n", 9007199254740993), at("$.o.x", "y")])),
        final(function(id="c", name="f", args=whole)),
    )
    ((_, text, args),) = calls(events)
    assert args == whole
    assert text == '{"n":9007199254740993,"o":{"x":"y","none":[]}}'


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("MAX_TOKENS", "truncated"),
        ("MALFORMED_FUNCTION_CALL", "malformed"),
        ("SAFETY", "truncated"),
        (None, "truncated"),
    ],
)
def test_truncated_never_runs(finish: str | None, reason: str) -> None:
    end = {"finish_reason": types.FinishReason(finish) if finish else None, "error_code": finish}
    chunk = {"id": "c", "name": "f", "will_continue": True}
    events = read(
        response(function(**chunk, partial_args=[at("$.a", "on", True)])),
        final(function(id="c", name="f", args={"a": "on"}), **end),
    )
    assert calls(events) == [("c", '{"a":"on', reason)]


def test_text_of_the_preview_is_not_repeated() -> None:
    events = read(
        response(types.Part(text="One ")),
        response(types.Part(text="two.")),
        final(types.Part(text="One two. Three."), function(name="f", args={"a": "x"})),
    )
    assert "".join(event.text for event in events if isinstance(event, TextAppended)) == "One two. Three."


@pytest.mark.parametrize("shown", [(), ("Hm.",), ("Hm.", "One")])
def test_reasoning_of_a_whole_response_comes_where_it_has_it(shown: tuple[str, ...]) -> None:
    """Whatever of it the preview had already."""
    previews = [response(types.Part(text=text, thought=text == "Hm.")) for text in shown]
    said = [("Hm.", True), ("One.", False), ("And?", True), ("Two.", False)]
    events = read(*previews, final(*(types.Part(text=text, thought=thought) for text, thought in said)))
    texts = [event for event in events if isinstance(event, TextAppended | ReasoningAppended)]
    merged = [
        ("".join(each.text for each in group), is_thought)
        for is_thought, group in groupby(texts, lambda each: isinstance(each, ReasoningAppended))
    ]
    assert merged == said


def test_two_whole_responses_of_one_request() -> None:
    """LiteLLM: the text first, then the calls."""
    chunk = {"id": "0", "name": "f", "will_continue": True}
    events = read(
        response(types.Part(text="Hi.")),
        response(function(**chunk, partial_args=[at("$.a", "x", False)])),
        final(types.Part(text="Hi.")),
        final(function(id="0", name="f", args={"a": "x"})),
    )
    assert calls(events) == [("0", '{"a":"x"}', {"a": "x"})]
    assert "".join(event.text for event in events if isinstance(event, TextAppended)) == "Hi."


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4), st.lists(st.integers(1, 7), max_size=30))
def test_fold_equals_args(args: dict[str, Any], sizes: list[int]) -> None:
    """Through google-adk's own tracker of paths, whatever it loses: the text is the arguments."""
    from google.adk.utils.streaming_utils import _JsonPathTracker

    text, tracker, responses = json.dumps(args), _JsonPathTracker(), []
    chunk = {"id": "c", "name": "f", "will_continue": True}
    position = 0
    for size in [*sizes, len(text)]:
        pieces = tracker.handle_chunk(text[position : position + size])
        responses.append(response(function(**chunk, partial_args=pieces or None)))
        position += size
    events = read(*responses, final(function(id="c", name="f", args=args)))
    ((_, _shown, end),) = calls(events)
    assert end == args


def test_previews_never_go_back_at_a_name_that_comes_twice() -> None:
    """Values by path, with and without the tool's name on each chunk: what was shown stays, and the call is malformed."""
    pieces = [[at("$.a", "first", False)], [at("$.b", "x", False)], [at("$.a", "second", False)]]
    chunks = [function(id="c", name="f", will_continue=True, partial_args=pieces[0])]
    chunks += [function(id="c", will_continue=True, partial_args=each) for each in pieces[1:]]
    events = read(*map(response, chunks), final(function(id="c", name="f", args={"a": "second", "b": "x"})))
    ((_, text, end),) = calls(events)
    assert end == "malformed"
    assert text == '{"a":"first","b":"x"'


@pytest.mark.parametrize("finish", ["STOP", "MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL"])
@pytest.mark.parametrize("said", ["c", "tc", "ct", "cc", "cct"])
@pytest.mark.parametrize("is_previewed", [True, False])
def test_what_runs_is_what_the_wire_says_that_runs(finish: str, said: str, is_previewed: bool) -> None:
    """The last call of a response that ended badly never runs, however whole it is, on the tap and in partial events."""
    script: list[Any] = [
        ToolCall("f", {"a": str(place)}, call_id=f"c{place}") if each == "c" else Text(f"{place}. ")
        for place, each in enumerate(said)
    ]
    body = encode_whole("gemini", [*script, Finish(finish)])
    on_the_wire = [(call.provider_id, call.outcome) for call in folded(decoder_for("gemini").whole(body))]
    answered = types.GenerateContentResponse.model_validate_json(body)
    whole, preview = LlmResponse.create(answered), LlmResponse.create(answered.model_copy(deep=True))
    assert preview.content is not None
    previews = [response(part) for part in preview.content.parts or ()] if is_previewed else []
    assert [(call.provider_id, call.outcome) for call in folded(read(*previews, whole))] == on_the_wire
    assert (on_the_wire[-1][1] == "completed") is (finish == "STOP" or said.endswith("t"))
