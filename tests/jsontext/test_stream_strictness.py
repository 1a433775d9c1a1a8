"""The incremental JSON reader agrees with json.loads, and says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from callstream.jsontext.stream import JsonStream
from tests.examples import examples

from .documents import documents, jsonish, mutated, outcome, relaxed, split

pytestmark = pytest.mark.filterwarnings("error")


def strict_loads(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@relaxed
@given(split(documents()))
def test_json_agrees_with_stdlib_on_valid_documents(pieces: list[str]) -> None:
    stream = JsonStream()
    for piece in pieces:
        stream.feed(piece)
    value = stream.close()
    assert repr(value) == repr(json.loads("".join(pieces)))
    assert stream.complete
    assert stream.close() is value is stream.value


@examples(600)
@given(split(mutated() | jsonish))
def test_json_agrees_with_stdlib_on_what_is_wrong(pieces: list[str]) -> None:
    try:
        expected = ("value", repr(strict_loads("".join(pieces))))
    except ValueError:
        expected = None
    _, end = outcome(pieces)
    if expected is None:
        assert end[0] == "error"
        assert 0 <= end[2] <= len("".join(pieces))
    else:
        assert end == expected


WRONG = [
    ("", 0, "expected a value, got the end of the JSON text"),
    (" \n", 2, "expected a value, got the end of the JSON text"),
    ("\ufeff{}", 0, "expected a value in the JSON text, got '\\ufeff'"),
    ("nope", 1, "expected null in the JSON text, got 'no'"),
    ("tru", 3, "expected a value, got the end of the JSON text"),
    ("[true1]", 5, "expected , or ] in the JSON text, got '1'"),
    ("NaN", 0, "expected a value in the JSON text, got 'N'"),
    ("Infinity", 0, "expected a value in the JSON text, got 'I'"),
    ("-Infinity", 0, "expected a number of JSON, got '-'"),
    ("[01]", 1, "expected a number of JSON, got '01'"),
    ("[1.]", 1, "expected a number of JSON, got '1.'"),
    ("[.5]", 1, "expected a value or ] in the JSON text, got '.'"),
    ("[+1]", 1, "expected a value or ] in the JSON text, got '+'"),
    ("1e", 0, "expected a number of JSON, got '1e'"),
    ("--1", 0, "expected a number of JSON, got '--1'"),
    ("[12", 3, "expected the rest of an array or object, got the end of the JSON text"),
    ("[1,]", 3, "expected a value in the JSON text, got ']'"),
    ("[1 2]", 3, "expected , or ] in the JSON text, got '2'"),
    ("[", 1, "expected a value or ], got the end of the JSON text"),
    ("[}", 1, "expected a value or ] in the JSON text, got '}'"),
    ('{"a": 1]', 7, "expected , or } in the JSON text, got ']'"),
    ('{"a": 1,}', 8, "expected a key in double quotes in the JSON text, got '}'"),
    ("{'a': 1}", 1, 'expected a key in double quotes or } in the JSON text, got "\'"'),
    ('{"a" 1}', 5, "expected : in the JSON text, got '1'"),
    ('{"a', 3, "expected the rest of a key, got the end of the JSON text"),
    ('{"a\\q": 1}', 3, "expected an escape of JSON in a string, got '\\\\q'"),
    ('"ab', 3, "expected the rest of a string, got the end of the JSON text"),
    ('"ab\\', 4, "expected the rest of a string, got the end of the JSON text"),
    ('"a\nb"', 2, "expected control characters escaped in a string, got '\\n'"),
    ('"a\\x41"', 2, "expected an escape of JSON in a string, got '\\\\x'"),
    ('"\\u12"', 1, "expected an escape of JSON in a string, got '\\\\u12\"'"),
    ('"\\ud83d\\u12x"', 7, "expected an escape of JSON in a string, got '\\\\u12x'"),
    ("{} {}", 3, "expected nothing but white space in the JSON text, got '{'"),
    ("1 2", 2, "expected nothing but white space in the JSON text, got '2'"),
    ("[1]\xa0", 3, "expected nothing but white space in the JSON text, got '\\xa0'"),
    ("9" * 5000, 0, "expected an integer that Python can read, got one of 5000 digits"),
    ("[" + "9" * 5000 + "]", 1, "expected an integer that Python can read, got one of 5000 digits"),
]


@pytest.mark.parametrize(("text", "position", "message"), WRONG)
def test_json_agrees_with_stdlib_and_says_what_was_expected(text: str, position: int, message: str) -> None:
    with pytest.raises(ValueError):
        strict_loads(text)
    for pieces in ([text], text):
        _, end = outcome(pieces)
        assert end == ("error", f"{message} (at position {position})", position)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-0",
        "-0.0",
        "1e5",
        "1E+2",
        "1e-7",
        "1e400",
        "123456789012345678901234567890",
        "[1E1,0e0]",
        '"\\/"',
        "\t[ ]\r\n",
    ],
)
def test_json_agrees_with_stdlib_on_numbers_and_small_things(text: str) -> None:
    for pieces in ([text], text):
        assert outcome(pieces)[1] == ("value", repr(json.loads(text)))
