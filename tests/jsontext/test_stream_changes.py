"""The incremental JSON reader: its changes, mistakes, limits and cost."""

from __future__ import annotations

import json
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from callstream.errors import UsageError, WireError
from callstream.jsontext.stream import Change, JsonStream

from .documents import any_text, merged, outcome, relaxed, split

pytestmark = pytest.mark.filterwarnings("error")


# -- changes ----------------------------------------------------------------------------------------------------------------


def test_changes_of_a_document() -> None:
    stream = JsonStream()
    assert stream.feed('{"a": "b') == [Change((), "open", {}), Change(("a",), "append", "b")]
    assert stream.feed("cd") == [Change(("a",), "append", "cd")]
    assert stream.feed("") == []
    assert stream.feed('e", "n": 1') == [Change(("a",), "append", "e"), Change(("a",), "close", "bcde")]
    assert stream.feed("2") == []
    assert stream.feed(', "l": [null, {}') == [
        Change(("n",), "set", 12),
        Change(("l",), "open", []),
        Change(("l", 0), "set", None),
        Change(("l", 1), "open", {}),
        Change(("l", 1), "close", {}),
    ]
    assert not stream.complete
    assert stream.feed("]}") == [
        Change(("l",), "close", [None, {}]),
        Change((), "close", {"a": "bcde", "n": 12, "l": [None, {}]}),
    ]
    assert stream.complete
    assert stream.feed(" \n") == []
    assert stream.close() == {"a": "bcde", "n": 12, "l": [None, {}]}


@pytest.mark.parametrize("pieces", [['""'], ['"', '"'], ["", '"', "", '"', ""]])
def test_an_empty_string_is_seen(pieces: list[str]) -> None:
    changes, end = outcome(pieces)
    assert changes == [Change((), "append", ""), Change((), "close", "")]
    assert end == ("value", "''")


def test_a_string_that_is_held_back_is_seen_as_empty() -> None:
    stream = JsonStream()
    assert stream.feed('["\\ud8') == [Change((), "open", []), Change((0,), "append", "")]
    assert stream.feed("3d\\ude00") == [Change((0,), "append", "😀")]


def test_scalars_that_are_the_whole_document() -> None:
    assert outcome(["tr", "ue"]) == ([Change((), "set", True)], ("value", "True"))
    assert outcome(["1", "2 "]) == ([Change((), "set", 12)], ("value", "12"))
    assert outcome(['"x', '"']) == (
        [Change((), "append", "x"), Change((), "close", "x")],
        ("value", "'x'"),
    )


def test_a_number_that_is_the_whole_document_is_finished_by_close() -> None:
    stream = JsonStream()
    before = stream.feed("12")
    assert before == []
    assert not stream.complete
    assert stream.value is None
    assert stream.close() == 12
    assert stream.complete
    assert stream.value == 12
    assert before == [], "a list of changes that was given away is not touched"
    assert stream.feed(" ") == []
    with pytest.raises(WireError, match="expected nothing but white space"):
        stream.feed("3")


def test_duplicate_key_opens_its_path_again_and_the_last_wins() -> None:
    text = '{"a": "x", "b": 2, "a": [1], "b": "y"}'
    stream = JsonStream()
    changes = stream.feed(text[:-3])
    assert [change.kind for change in changes if change.path == ("a",)] == ["append", "close", "open", "close"]
    assert changes[-1] == Change(("b",), "append", "")
    assert stream.value == {"a": [1], "b": ""}
    stream.feed(text[-3:])
    assert repr(stream.close()) == repr(json.loads(text)) == repr({"a": [1], "b": "y"})


def test_unique_names_keep_what_was_shown() -> None:
    for text, kept in (
        ('{"a": "1", "b": {"a": 2}, "a": "3"}', {"a": "1", "b": {"a": 2}}),
        ('[{"a": 1}, {"a": 1, "\\u0061": 2}]', [{"a": 1}, {"a": 1}]),
    ):
        stream = JsonStream(unique_names=True)
        for character in text:
            try:
                stream.feed(character)
            except WireError as error:
                assert str(error).startswith("the name 'a' comes twice in an object")
                break
        assert stream.value == kept
        assert stream.error is not None
    assert JsonStream(unique_names=True).feed('{"a": {"b": 1}, "b": {"a": 1}}')


def test_the_path_of_a_string_is_one_object() -> None:
    stream = JsonStream()
    paths = [change.path for piece in ('{"a": {"b": "x', "yz", "\\n", '"') for change in stream.feed(piece)]
    assert len({id(path) for path in paths if path == ("a", "b")}) == 1


# -- mistakes ---------------------------------------------------------------------------------------------------------------


def test_an_error_comes_after_the_changes_before_it_and_stays() -> None:
    stream = JsonStream()
    assert stream.feed('{"a": "good\x00bad') == [Change((), "open", {}), Change(("a",), "append", "good")]
    error = stream.error
    assert error is not None
    assert error.position == 11
    assert stream.value == {"a": "good"}
    assert not stream.complete
    for call in (lambda: stream.feed("plain"), lambda: stream.feed(""), stream.close, lambda: stream.feed('"}')):
        with pytest.raises(WireError) as caught:
            call()
        assert caught.value is error
    assert stream.value == {"a": "good"}


def test_an_error_without_changes_before_it_is_raised_at_once_and_stays() -> None:
    stream = JsonStream()
    assert stream.feed("[]") == [Change((), "open", []), Change((), "close", [])]
    assert stream.complete
    with pytest.raises(WireError) as first:
        stream.feed(" x")
    with pytest.raises(WireError) as second:
        stream.close()
    assert first.value is second.value is stream.error
    assert not stream.complete


def test_an_unfinished_document_cannot_go_on_after_close() -> None:
    stream = JsonStream()
    stream.feed("[1, 2")
    with pytest.raises(WireError) as first:
        stream.close()
    with pytest.raises(WireError) as second:
        stream.feed("]")
    assert first.value is second.value


# -- limits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_and_size_limits_depth(opening: str) -> None:
    changes, end = outcome([opening * 4], max_depth=3)
    assert len(changes) == 3
    assert end[2] == 3 * len(opening)
    assert "at most 3 deep" in end[1]
    assert outcome(["[[[]], [[]]]"], max_depth=3)[1] == ("value", "[[[]], [[]]]")
    _, end = outcome([opening * 100_000])
    assert end[2] == 256 * len(opening)


def test_depth_and_size_limits_no_recursion() -> None:
    depth = 3_000  # three times the interpreter's own limit
    stream = JsonStream(max_depth=depth)
    stream.feed("[" * depth + '"x')
    assert isinstance(stream.value, list)
    stream.feed('"' + "]" * depth)
    value = stream.close()
    found = 0
    while isinstance(value, list):
        value, found = value[0], found + 1
    assert (value, found) == ("x", depth)


def test_depth_and_size_limits_items() -> None:
    assert outcome(["[1,2,[1,2,3]]"], max_items=3)[1] == ("value", "[1, 2, [1, 2, 3]]")
    changes, end = outcome("[1,2,3,4]", max_items=3)
    assert [change.value for change in changes if change.kind == "set"] == [1, 2, 3]
    assert end == ("error", "expected arrays of at most 3 items, got a longer one (at position 6)", 6)


@given(split(st.just('{"a": "long text", "b": [1, 2, 3]}')), st.integers(1, 40))
@settings(deadline=None)
def test_depth_and_size_limits_length(pieces: list[str], limit: int) -> None:
    text = "".join(pieces)
    changes, end = outcome(pieces, max_length=limit)
    if limit >= len(text):
        assert end[0] == "value"
    else:
        assert end == (
            "error",
            f"expected a JSON text of at most {limit} characters, got more (at position {limit})",
            limit,
        )
        assert merged(changes) == merged(JsonStream().feed(text[:limit]))


@pytest.mark.parametrize("limits", [{"max_depth": 0}, {"max_items": 0}, {"max_length": 0}])
def test_depth_and_size_limits_must_be_positive(limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        JsonStream(**limits)


def operations(text: str, size: int, ask: bool) -> int:
    """How many functions, in Python and in C, reading the text in pieces of that size calls."""
    stream = JsonStream()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for piece in pieces:
            stream.feed(piece)
            if ask:
                stream.value  # noqa: B018
        stream.close()
    finally:
        sys.setprofile(None)
    return calls


# -- cost -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: json.dumps({"content": "some text\n\\u \u00e9\U0001f600" * n}),
        lambda n: json.dumps([{"id": number % 10, "on": True, "tags": ["a", None]} for number in range(n)]),
        lambda n: json.dumps({f"key {number:06}": number % 10 for number in range(n)}),
        lambda n: "[" + "1" * n + ".5]",
        lambda n: "[" + " " * n + "]",
        lambda n: json.dumps({"\\" * n: 1}),
    ],
)
def test_parse_linear_in_calls(make: Any, size: int, ask: bool) -> None:
    single, double, fourfold = (operations(make(n), size, ask) for n in (200, 400, 800))
    assert abs((fourfold - double) / (double - single) - 2) < 0.05


@relaxed
@given(any_text)
@example('["\\ud83d\\ude0')
def test_parse_linear_since_hardly_anything_is_read_again(text: str) -> None:
    stream = JsonStream()
    try:
        for character in text:
            stream.feed(character)
            assert len(stream._held) <= 11
    except WireError:
        pass


@pytest.mark.skipif(sys.gettrace() is not None, reason="a traced interpreter does not grow strings in place")
def test_parse_linear_since_a_growing_string_is_not_copied_for_who_keeps_the_last_value() -> None:
    """The value kept and the one before it are there; a copy would be the third string of that length."""
    stream = JsonStream()
    tracemalloc.start()
    try:
        stream.feed('["' + "x" * 1_000_000)
        for _ in range(200):  # the interpreter grows strings in place in code that has run for a while
            preview = stream.value
            stream.feed("x" * 64)
        tracemalloc.reset_peak()
        preview = stream.value
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(preview[0]) == 1_012_800
    assert 2_000_000 < peak < 2_500_000
