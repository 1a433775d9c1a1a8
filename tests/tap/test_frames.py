from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.errors import WireError
from callstream.tap.frames import (
    FrameSplitter,
    element_of,
    is_finished,
    payload_of,
    read_json,
    with_payload,
    write_json,
)
from tests.captures import ROOT
from tests.decoding import bytewise, cut, splits
from tests.purity import offences

PURE = ("frames", "order", "rewriter", "anthropic", "gemini", "openai_chat", "openai_responses")


def frames(pieces: list[bytes]) -> list[bytes]:
    splitter = FrameSplitter()
    return [frame for piece in pieces for frame in splitter.feed(piece)] + splitter.end()


@pytest.mark.parametrize(
    "expected",
    [
        [b"data: 1\n\n", b"data: 2\n\n"],
        [b"data: 1\r\n\r\n", b"data: 2\r\n\r\n"],
        [b"data: 1\r\r", b"data: 2\n\n"],
        [b"event: a\r\ndata: 1\r\n\n", b"data: 2\n\r\n"],
        [b": comment\n\n", b": another\ndata: 1\n\n"],
        [b"data: 1\ndata: 2\n\n", b"data: cut off"],
        [b"\n\n", b"\ndata: 1\n\n"],
        [b"\xef\xbb\xbfdata: 1\n\n"],
        [b'[{"a":"}\\"]"}', b',\r\n{"b":[{}]}', b"\n]\n"],
        [b' [ {"a":"\\\\"}', b",{}", b"]"],
        [b'\xef\xbb\xbf[{"a":"\\n\\n"}', b",\n\n{}", b"]"],
        [b"[]"],
        [b'[{"a":'],
    ],
)
def test_frames_are_the_body_byte_for_byte(expected: list[bytes]) -> None:
    data = b"".join(expected)
    for pieces in splits(data, count=20):
        assert frames(pieces) == expected


@given(
    st.lists(st.sampled_from([b"data: x", b"\r", b"\n", b"\r\n", b":", b"\\", b'"', b"{", b"}", b"[", b"]"])), st.data()
)
def test_any_split_same_frames(tokens: list[bytes], data: st.DataObject) -> None:
    body = b"".join(tokens)
    whole = frames([body])
    assert b"".join(whole) == body
    assert frames(bytewise(body)) == whole
    places = data.draw(st.lists(st.integers(0, len(body))))
    assert frames(cut(body, places)) == whole


def test_depth_and_size_limits_frame_without_an_end() -> None:
    splitter = FrameSplitter(max_frame_bytes=10)
    assert splitter.feed(b"data: 1234\n\n" * 3) == [b"data: 1234\n\n"] * 3
    with pytest.raises(WireError, match="at most 10 bytes, got 11"):
        splitter.feed(b"data: 12345")


def test_parse_linear_every_byte_is_looked_at_once() -> None:
    """A long event in small pieces: what waits is never searched again from its beginning."""
    splitter = FrameSplitter()
    for _ in range(1000):
        assert splitter.feed(b"data: 12345") == []
        assert splitter._looked_at >= len(splitter._waiting) - 3
    array = FrameSplitter()
    array.feed(b'[{"a":"')
    for _ in range(1000):
        assert array.feed(b"x\\n") == []
        assert array._looked_at >= len(array._waiting)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_payload_can_be_replaced_and_the_rest_stays(ending: bytes) -> None:
    frame = ending.join([b": comment", b"event: e", b"data: 1", b"data:2", b"id: 7", b"", b""])
    assert payload_of(frame) == b"1\n2"
    assert with_payload(frame, b"{}") == ending.join([b": comment", b"event: e", b"data: {}", b"id: 7", b"", b""])


@pytest.mark.parametrize("frame", [b"data: 1", b"data: 1\n", b"\xef\xbb\xbfdata: 1\r\n", b"data: 1\r"])
def test_unfinished_event_is_finished_when_its_payload_is_replaced(frame: bytes) -> None:
    assert not is_finished(frame)
    made = with_payload(frame, b"2")
    assert is_finished(made)
    assert payload_of(made) == b"2"


def test_event_without_data_has_no_payload() -> None:
    assert payload_of(b": comment\n\n") == payload_of(b"data\n\n") == b""


def test_element_and_separator() -> None:
    assert element_of(b',\r\n{"a":1}') == (b",\r\n", b'{"a":1}')
    assert element_of(b"\n]") == (b"\n]", b"")


def test_json_is_read_and_written_with_lone_surrogates() -> None:
    value = read_json(b'{"text":"\\ud83d","n":123456789012345678901234567890}')
    assert value == {"text": "\ud83d", "n": 123456789012345678901234567890}
    assert json.loads(write_json({**value, "raw": msgspec.Raw(b'{"a": 1}')})) == {**value, "raw": {"a": 1}}
    assert write_json({"raw": msgspec.Raw(b'{"a": 1.10}')}) == b'{"raw":{"a": 1.10}}'
    assert read_json(b"[DONE]") is None


@pytest.mark.parametrize("module", PURE)
def test_rewriting_does_no_io_and_never_waits(module: str) -> None:
    path = ROOT / "src" / "callstream" / "tap" / f"{module}.py"
    assert offences(path.read_text(encoding="utf-8"), module) == []
