from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.codec import SurrogateJoin, escape_surrogates, is_strict
from callstream.errors import WireError
from callstream.wire.transcript import ArgumentText, json_text


def pieces_of(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(places), len(text)]
    return [text[start:stop] for start, stop in pairwise(edges)]


def passed(pieces: list[str]) -> str:
    argument = ArgumentText()
    out = "".join([argument.append(piece) for piece in pieces])
    assert out == argument.join()
    return out


RAW = '{\n\t"a\\"b": "line one\nline\ttwo\\\\",\r\n"c": ["\x00\x1f", "\\n", "\\\\\n"]\n}'


def test_raw_control_characters_in_strings_are_escaped_at_every_split() -> None:
    expected = '{\n\t"a\\"b": "line one\\nline\\ttwo\\\\",\r\n"c": ["\\u0000\\u001f", "\\n", "\\\\\\n"]\n}'
    assert passed([RAW]) == expected
    for place in range(len(RAW)):
        assert passed([RAW[:place], RAW[place:]]) == expected
        assert passed([RAW[:place], "", RAW[place:]]) == expected
    assert passed(list(RAW)) == expected
    assert json.loads(expected) == json.loads(RAW, strict=False)


@given(
    st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
    st.data(),
)
def test_any_split_same_text(value: object, data: st.DataObject) -> None:
    strict = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=False)
    raw = strict.replace("\\n", "\n").replace("\\t", "\t")
    places = data.draw(st.lists(st.integers(0, len(raw)), max_size=6))
    assert passed(pieces_of(raw, places)) == passed([raw]) == passed(list(raw))
    assert passed(pieces_of(strict, places[:1])) == strict


@pytest.mark.parametrize(("text", "blank"), [("", True), (" \n\t\r", True), (" {", False), ("\x0b", False)])
def test_blank(text: str, blank: bool) -> None:
    argument = ArgumentText()
    assert argument.is_blank
    argument.append(text)
    assert argument.is_blank is blank


def test_ends_with_looks_past_white_space() -> None:
    argument = ArgumentText()
    assert not argument.ends_with("}")
    for piece in ("{", "} ", "\n"):
        argument.append(piece)
    assert argument.ends_with("}")
    assert not argument.ends_with("{")


@pytest.mark.parametrize("text", ["{}", " [1] ", "null", '"\\ud800"', "-0.5e-7", '{"a":1,"a":2}', "1" * 4000])
def test_strict_json(text: str) -> None:
    assert is_strict(text)


@pytest.mark.parametrize(
    "text",
    ["", "{", "{} {}", "NaN", "[Infinity]", "{'a':1}", '{"a":1,}', '"\n"', "01", "\ufeff{}", "[" * 100_000, "1" * 9999],
)
def test_not_strict_json(text: str) -> None:
    assert not is_strict(text)


def test_json_text_of_awkward_values() -> None:
    assert json_text({"a": "😀", "n": 10**30}) == '{"a":"😀","n":1000000000000000000000000000000}'
    assert json_text({"a": "\ud83d"}) == '{"a":"\\ud83d"}'
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(WireError, match="nested less deep"):
        json_text(deep)


def test_lone_surrogates_in_argument_text_become_escapes() -> None:
    halves = '{"a":"\ud83d', '\ude00"}'
    assert json.loads("".join(map(escape_surrogates, halves))) == {"a": "😀"}


@given(st.text(st.sampled_from("a😀\ud83d\ude00\udc00")), st.data())
def test_no_half_of_a_character_is_ever_shown(text: str, data: st.DataObject) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    halves = [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]
    size = data.draw(st.integers(1, 4))
    join = SurrogateJoin()
    shown = [join.feed("".join(halves[at : at + size])) for at in range(0, len(halves), size)]
    for piece in [*shown, rest := join.end()]:
        piece.encode()
    joined = units.decode("utf-16-le", "surrogatepass")
    assert "".join(shown) + rest == re.sub("[\ud800-\udfff]", "\ufffd", joined)
