"""Paths: the tuple and the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.errors import WireError
from callstream.jsontext.path import Path, format_path, parse_path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$", ()),
        ("$.a", ("a",)),
        ("$.a.b", ("a", "b")),
        ("$.items[0]", ("items", 0)),
        ("$[10][0].x", (10, 0, "x")),
        ("$['my key']", ("my key",)),
        ("$['$ref']", ("$ref",)),
        ("$['a.b']['']", ("a.b", "")),
        ("$['it\\'s \\\\ \\n']", ("it's \\ \n",)),
        ("$['\\u000b']", ("\x0b",)),
        ("$.größe", ("größe",)),
    ],
)
def test_a_path_and_its_text(text: str, path: Path) -> None:
    assert parse_path(text) == path
    assert format_path(path) == text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$.my-key", ("my-key",)),
        ("$.$ref", ("$ref",)),
        ("$.0", ("0",)),
        ('$["a"]', ("a",)),
        ('$["say \\"a\\""]', ('say "a"',)),
        ("$[ 'a' ][ 1 ]", ("a", 1)),
        ("$['\\u00e9\\/\\b\\f\\r\\t']", ("é/\b\f\r\t",)),
        ("$['\\ud83d\\uDE00']", ("😀",)),
        ("$['\\ud83d']", ("\ud83d",)),
        ("$['😀']", ("😀",)),
    ],
)
def test_other_ways_to_write_a_path(text: str, path: Path) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("a", 0),
        (".a", 0),
        ("$a", 1),
        ("$.", 1),
        ("$..a", 1),
        ("$.*", 1),
        ("$.a.*", 3),
        ("$[*]", 1),
        ("$[-1]", 1),
        ("$[01]", 1),
        ("$[0:2]", 1),
        ("$[0,1]", 1),
        ("$['a','b']", 1),
        ("$[?@.a]", 1),
        ("$[a]", 1),
        ("$['a]", 1),
        ("$['a\n']", 1),
        ("$['a'", 1),
        ("$.a b", 3),
        ("$.a ", 3),
        ("$.x[1234567890123456789]", 3),
        ("$.x['\\q']", 3),
        ("$.x['\\u12']", 3),
        ("$['\\\"']", 1),
        ('$["\\\'"]', 1),
    ],
)
def test_a_text_that_does_not_name_one_place(text: str, position: int) -> None:
    with pytest.raises(WireError, match="expected") as caught:
        parse_path(text)
    assert caught.value.position == position


steps = st.text() | st.sampled_from(["", "'", '"', "\\", "a.b", "[0]", "$", "\x00", "\u2028", "\ud83d", "\ude00"])
paths = st.lists(steps | st.integers(0, 10**17), max_size=6).map(tuple)


@given(paths)
def test_any_path_comes_back_from_its_text(path: Path) -> None:
    text = format_path(path)
    assert parse_path(text) == path
    text.encode()  # a path goes over the wire and into the journal, so it must be writable as UTF-8


def test_a_path_is_parsed_once() -> None:
    assert parse_path("$.parsed.once") is parse_path("$.parsed.once")
