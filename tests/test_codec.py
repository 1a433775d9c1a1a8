"""JSON text in and out: lone surrogates and line ends."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream import WireError, codec, decoder_for
from callstream.events import TextAppended

HALF = "\ud83d"


def test_a_lone_surrogate_is_written_as_an_escape() -> None:
    assert codec.encode({"a": HALF, "raw": msgspec.Raw(b"[1]")}) == b'{"a":"\\ud83d","raw":[1]}'
    assert json.loads(codec.encode([TextAppended("m", HALF)]))[0]["text"] == HALF
    assert codec.encode({"a": "é", "raw": msgspec.Raw(b"1.10")}) == '{"a":"é","raw":1.10}'.encode()


def test_classes_of_text_and_numbers_are_written_as_what_they_are() -> None:
    class Title(str):
        __slots__ = ()

    class Count(int): ...

    class Mean(float): ...

    assert codec.encode([Title("a"), Count(3), Mean(1.5)]) == b'["a",3,1.5]'
    with pytest.raises(TypeError, match="Encoding objects of type object is unsupported"):
        codec.encode(object())


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


SECRET = "SECRET-4711"


@given(st.text(), st.text(), st.integers(0, 400))
def test_an_outline_has_the_names_and_no_text(before: str, after: str, cut: int) -> None:
    """Wherever the data was cut, and whatever stands around: arguments are JSON within JSON."""
    arguments = json.dumps({"title": f"{before}{SECRET}{after}"})
    data = json.dumps({"type": "content_block_delta", "delta": {"partial_json": arguments}}).encode()[:cut]
    shown = codec.outline(data)
    assert SECRET not in shown
    if cut > 100:
        assert "content_block_delta" in shown
        assert "partial_json" in shown


@pytest.mark.parametrize(
    "broken",
    [
        b'{"type":"content_block_delta","delta":{"partial_json":"%b',
        b'{"type":"content_block_delta","delta":{"x\xff":"%b"}}',
    ],
    ids=["cut", "no UTF-8"],
)
def test_a_frame_that_cannot_be_read_is_described_without_its_text(broken: bytes) -> None:
    decoder = decoder_for("anthropic")
    with pytest.raises(WireError) as raised:
        decoder.feed(b"data: " + broken % SECRET.encode() + b"\n\n")
    assert "content_block_delta" in str(raised.value)
    assert SECRET not in str(raised.value)
