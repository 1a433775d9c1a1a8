from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream import codec
from callstream.errors import WireError
from callstream.wire.collapsing import read_json
from callstream.wire.framing import Frame, Framing, JsonArrayFraming, SseFraming, SseOrArrayFraming, plain_event
from tests.decoding import bytewise, cut, splits


def cut_up(framing: Framing, pieces: list[bytes]) -> list[Frame]:
    return [frame for piece in pieces for frame in framing.feed(piece)] + framing.end()


def frames(pieces: list[bytes]) -> list[bytes]:
    return [frame.raw for frame in cut_up(SseOrArrayFraming(), pieces)]


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
    """Up to the first that cannot be read, after which the rest comes as one."""
    for framing in (SseFraming, JsonArrayFraming, SseOrArrayFraming):
        body = b"".join(tokens)
        whole = cut_up(framing(), [body])
        read = [(frame.raw, frame.payload) for frame in whole if frame.error is None]
        broken = any(frame.error for frame in whole)
        if not broken:
            assert b"".join(raw for raw, _ in read) == body
        places = data.draw(st.lists(st.integers(0, len(body))))
        for pieces in (bytewise(body), cut(body, places)):
            others = cut_up(framing(), pieces)
            error = next((place for place, frame in enumerate(others) if frame.error is not None), None)
            assert (error is not None) == broken
            assert [(frame.raw, frame.payload) for frame in others[:error]] == read


@given(st.lists(st.sampled_from(["", "delta", "x y"])), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_plain_events_are_read_at_once_as_they_are_one_by_one(
    names: list[str], line_end: bytes, data: st.DataObject
) -> None:
    odd = [b"\n", b": c\n\n", b"data: 1\ndata: 2\n\n", b"id: 1\ndata: 3\n\n", b"data: 4\r\r", b"\r\n", b"data: \n\n"]
    written = [plain_event(name.encode(), b"%d" % number, line_end) for number, name in enumerate(names)]
    for piece in data.draw(st.lists(st.sampled_from(odd), max_size=2)):
        written.insert(data.draw(st.integers(0, len(written))), piece)
    body = b"data: first\n\n" + b"".join(written)
    expected = [(frame.raw, frame.payload, frame.event) for frame in cut_up(SseFraming(), bytewise(body))]
    found = [(frame.raw, frame.payload, frame.event) for frame in cut_up(SseFraming(), [b"data: first\n\n", body[13:]])]
    assert found == expected
    assert b"".join(raw for raw, _, _ in found) == body


def test_depth_and_size_limits_frame_without_an_end() -> None:
    framing = SseFraming(max_frame_bytes=10)
    assert [frame.raw for frame in framing.feed(b"data: 1234\n\n" * 3)] == [b"data: 1234\n\n"] * 3
    (frame,) = framing.feed(b"data: 12345")
    assert isinstance(frame.error, WireError)
    assert "at most 10 bytes" in str(frame.error)
    assert frame.raw == b"data: 12345"
    array = JsonArrayFraming(max_frame_bytes=10)
    (frame,) = array.feed(b"[" + b" " * 20)
    assert "at most 10 bytes" in str(frame.error)


def test_parse_linear_every_byte_is_looked_at_once() -> None:
    """A long event in small pieces: what waits is never searched again from its beginning."""
    framing = SseFraming()
    for _ in range(1000):
        assert framing.feed(b"data: 12345") == []
        assert framing._looked_at >= len(framing._waiting) - 3
    array = JsonArrayFraming()
    array.feed(b'[{"a":"')
    for _ in range(1000):
        assert array.feed(b"x\\n") == []
        assert array._looked_at >= len(array._waiting)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_payload_can_be_replaced_and_the_rest_stays(ending: bytes) -> None:
    raw = ending.join([b": comment", b"event: e", b"data: 1", b"data:2", b"id: 7", b"", b""])
    framing = SseFraming()
    (frame,) = cut_up(framing, [raw])
    assert frame.payload == b"1\n2"
    assert framing.write(frame) == raw
    assert framing.write(frame, b"{}") == ending.join([b": comment", b"event: e", b"data: {}", b"id: 7", b"", b""])


@pytest.mark.parametrize("raw", [b"event: e\ndata: 1\n\n", b"data: 1\r\n\r\n", b"data: 1\n\n"])
def test_payload_of_a_plain_event_can_be_replaced(raw: bytes) -> None:
    framing = SseFraming()
    _, frame = framing.feed(b"data: 0\n\n") + framing.feed(raw)
    assert frame.bytes_ is None
    assert framing.write(frame) == raw
    assert framing.write(frame, b"{}") == raw.replace(b"1", b"{}")


@pytest.mark.parametrize("raw", [b"data: 1", b"data: 1\n", b"\xef\xbb\xbfdata: 1\r\n", b"data: 1\r"])
def test_unfinished_event_is_finished_when_its_payload_is_replaced(raw: bytes) -> None:
    framing = SseFraming()
    (frame,) = cut_up(framing, [raw])
    assert not frame.is_finished
    (again,) = cut_up(SseFraming(), [framing.write(frame, b"2")])
    assert again.is_finished
    assert again.payload == b"2"


def test_event_without_data_has_no_payload() -> None:
    framing = SseFraming()
    assert [frame.payload for frame in framing.feed(b": comment\n\ndata\n\n")] == [None, b""]


def test_the_separator_fits_what_was_written_before() -> None:
    framing = JsonArrayFraming()
    frames = cut_up(framing, [b'[{"a":1},\r\n{"b":2},\n{"c":3}\n]'])
    assert [frame.payload for frame in frames] == [b'{"a":1}', b'{"b":2}', b'{"c":3}', None]
    assert b"".join(map(framing.write, frames)) == b'[{"a":1},\r\n{"b":2},\n{"c":3}\n]'
    framing = JsonArrayFraming()
    assert b"".join([framing.write(frames[1]), framing.write(frames[2], b"{}"), framing.write(frames[3])]) == (
        b'[{"b":2},\n{}\n]'
    )
    assert json.loads(JsonArrayFraming().write(frames[3])) == []


def test_a_body_that_shows_nothing_is_no_array() -> None:
    for body in (b"", b"\n", b"\r\n\n", b"\xef\xbb\xbf"):
        for pieces in ([body], bytewise(body)):
            found = cut_up(SseOrArrayFraming(), pieces)
            assert [frame.payload for frame in found if frame.error is None] == [None] * len(found)
            assert b"".join(frame.raw for frame in found) == body
    framing = SseOrArrayFraming()
    assert framing.feed(b" ") == []
    assert framing.pop_rest() == b" "


def test_json_is_read_and_written_with_lone_surrogates() -> None:
    value = read_json(b'{"text":"\\ud83d","n":123456789012345678901234567890}')
    assert value == {"text": "\ud83d", "n": 123456789012345678901234567890}
    assert json.loads(codec.encode_line({**value, "raw": msgspec.Raw(b'{"a": 1}')})) == {**value, "raw": {"a": 1}}
    assert codec.encode_line({"raw": msgspec.Raw(b'{"a": 1.10}')}) == b'{"raw":{"a": 1.10}}'
    assert read_json(b"[DONE]") is None
