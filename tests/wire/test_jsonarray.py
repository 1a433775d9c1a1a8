from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.errors import WireError
from callstream.wire.framing import JsonArrayFraming
from tests.decoding import bytewise, cut

JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def elements(pieces: list[bytes], **settings: int) -> list[Any]:
    framing = JsonArrayFraming(**settings)
    frames = [frame for piece in pieces for frame in framing.feed(piece)] + framing.end()
    for frame in frames:
        if frame.error is not None:
            raise frame.error
    assert all(frame.event == b"" for frame in frames)
    assert b"".join(frame.raw for frame in frames) == b"".join(pieces)
    return [json.loads(frame.payload) for frame in frames if frame.payload is not None]


@given(st.lists(st.dictionaries(st.text(), JSON)), st.sampled_from([None, 0, 2]), st.booleans(), st.data())
def test_any_split_same_elements(values: list[Any], indent: int | None, ascii_only: bool, data: st.DataObject) -> None:
    body = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=8))
    assert elements([body]) == elements(bytewise(body)) == elements(cut(body, places))
    assert elements([body]) == json.loads(body)


def test_brackets_and_quotes_inside_strings_do_not_count() -> None:
    values = [{"a": 'x"]}[{'}, {"\\": "\\\\"}, {"b": '\\"]'}]
    for pieces in ([json.dumps(values).encode()], bytewise(json.dumps(values).encode())):
        assert elements(pieces) == values


def test_element_that_the_body_ended_in_is_dropped() -> None:
    assert elements([b'[{"a": 1}, {"b": ']) == [{"a": 1}]
    assert elements([]) == elements([b"["]) == elements([b"[]"]) == []


def test_one_array_after_another() -> None:
    assert elements(bytewise(b'[{"a": 1}]\n[{"b": 2}]')) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("body", [b"[{}]]", b'[{}] {"a": 1}', b'["text"]', b'[{}, "text"]', b"[{}] }", b"[}"])
def test_anything_else_between_elements_is_an_error(body: bytes) -> None:
    for pieces in ([body], bytewise(body)):
        with pytest.raises(WireError, match="expected the objects of an array"):
            elements(pieces)


def test_depth_and_size_limits_of_an_element() -> None:
    body = b'[{"a": "' + b"x" * 100 + b'"}]'
    for pieces in ([body], bytewise(body)):
        with pytest.raises(WireError, match="at most 50 bytes"):
            elements(pieces, max_frame_bytes=50)
        assert len(elements(pieces, max_frame_bytes=109)) == 1
    many = b"[" + b'{"a": 1},' * 100 + b"{}]"
    assert len(elements([many], max_frame_bytes=50)) == 101
