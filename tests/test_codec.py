"""JSON text in and out: lone surrogates and line ends."""

from __future__ import annotations

import json

import msgspec
import pytest

from callstream import codec
from callstream.events import TextAppended

HALF = "\ud83d"


def test_a_lone_surrogate_is_written_as_an_escape() -> None:
    assert codec.encode({"a": HALF, "raw": msgspec.Raw(b"[1]")}) == b'{"a":"\\ud83d","raw":[1]}'
    assert json.loads(codec.encode([TextAppended("m", HALF)]))[0]["text"] == HALF
    assert codec.encode({"a": "é", "raw": msgspec.Raw(b"1.10")}) == '{"a":"é","raw":1.10}'.encode()


def test_no_reader_takes_a_part_of_the_json_for_the_end_of_its_line() -> None:
    data = codec.encode_line({"a": "x\x85y\u2028z\u2029"})
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data) == {"a": "x\x85y\u2028z\u2029"}


def test_a_lone_surrogate_is_read() -> None:
    assert codec.decode(b'{"a":"\\ud83d"}') == {"a": HALF}
    assert codec.decode('"text"') == "text"


@pytest.mark.parametrize("data", [b"{", b"", b'{"a":'])
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        codec.decode(data)


def test_what_is_not_of_the_type_is_a_validation_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        codec.decode(b'{"a":1}', list[int])


def test_halves_are_replaced_and_pairs_are_kept() -> None:
    data = rb'["\ud83d","\ud83d\ude00","\\ud83d","\ude00"]'
    assert json.loads(codec.replace_surrogates(data)) == ["\ufffd", "😀", "\\ud83d", "\ufffd"]


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "{", "1 2", ""])
def test_what_only_python_reads_is_no_strict_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not JSON|Expecting|Extra data"):
        codec.decode_strict(text)
    assert codec.decode_strict(' {"a": [1.5, null]} ') == {"a": [1.5, None]}
