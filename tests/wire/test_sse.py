"""Server-sent events. Tests of the standard are named after the examples of WHATWG HTML 9.2.6."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.errors import WireError
from callstream.wire.framing import SseFraming
from tests.decoding import bytewise, cut


def events(pieces: list[bytes], **settings: int) -> list[tuple[bytes, bytes]]:
    framing = SseFraming(**settings)
    frames = [frame for piece in pieces for frame in framing.feed(piece)] + framing.end()
    for frame in frames:
        if frame.error is not None:
            raise frame.error
    return [(frame.event, frame.payload) for frame in frames if frame.payload is not None]


def read(body: bytes) -> list[tuple[bytes, bytes]]:
    """The events of a body, after trying that cutting it at any place and at all places changes nothing."""
    expected = events([body])
    assert events(bytewise(body)) == expected
    for place in range(len(body)):
        assert events(cut(body, [place])) == expected
    return expected


def events_before_error(pieces: list[bytes], match: str, **settings: int) -> list[tuple[bytes, bytes]]:
    framing = SseFraming(**settings)
    found: list[tuple[bytes, bytes]] = []
    for place, piece in enumerate(pieces):
        for frame in framing.feed(piece):
            if frame.error is not None:
                assert match in str(frame.error)
                assert b"".join(pieces).endswith(frame.raw + b"".join(pieces[place + 1 :]))
                return found
            if frame.payload is not None:
                found.append((frame.event, frame.payload))
    raise AssertionError("expected an error")


def test_example_stock_ticker() -> None:
    assert read(b"data: YHOO\ndata: +2\ndata: 10\n\n") == [(b"", b"YHOO\n+2\n10")]


def test_example_four_blocks() -> None:
    body = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
    assert read(body) == [(b"", b"first event"), (b"", b"second event"), (b"", b" third event")]


def test_example_empty_data() -> None:
    # The standard discards the last block, which no blank line ends; here it counts.
    assert read(b"data\n\ndata\ndata\n\ndata:") == [(b"", b""), (b"", b"\n"), (b"", b"")]


def test_example_space_after_the_colon_is_ignored() -> None:
    assert read(b"data:test\n\ndata: test\n\n") == [(b"", b"test"), (b"", b"test")]


def test_example_event_types() -> None:
    body = b"event: add\ndata: 73857293\n\nevent:remove\ndata: 2153\n\nevent: add\ndata: 113411\n\n"
    assert read(body) == [(b"add", b"73857293"), (b"remove", b"2153"), (b"add", b"113411")]


@pytest.mark.parametrize("one", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("other", [b"\n", b"\r", b"\r\n"])
def test_line_ends_may_be_mixed(one: bytes, other: bytes) -> None:
    body = b"data: a" + one + b"data: b" + other + other + b"data: c" + other + b"data: d" + one + one
    assert read(body) == [(b"", b"a\nb"), (b"", b"c\nd")]


def test_byte_order_mark_is_skipped_once() -> None:
    assert read(b"\xef\xbb\xbfdata: a\n\n") == [(b"", b"a")]
    assert read(b"data: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\n") == [(b"", b"a"), (b"", b"c")]


def test_half_a_byte_order_mark_is_no_event_stream() -> None:
    with pytest.raises(WireError, match="expected server-sent events"):
        events([b"\xef", b"\xbb"])


def test_comments_ids_retries_and_unknown_fields_are_ignored() -> None:
    body = b": OPENROUTER PROCESSING\n\nid: 7\nretry: 10\nfoo: bar\nx-trace-id\ndata: a\n:\n\n"
    with pytest.raises(WireError, match="x-trace-id"):
        read(body)  # a bare word before the first event is rather the text of an error
    assert read(b"data: a\n\n" + body) == [(b"", b"a"), (b"", b"a")]
    assert read(body.replace(b"x-trace-id\n", b"")) == [(b"", b"a")]


def test_field_names_are_exact() -> None:
    assert read(b" data: a\n\nDATA: b\n\ndata: c\n\n") == [(b"", b"c")]


def test_event_name_without_data_dispatches_nothing_and_is_forgotten() -> None:
    assert read(b"event: ping\n\ndata: a\n\n") == [(b"", b"a")]


def test_no_final_blank_line() -> None:
    for body in (
        b"data: a\n\ndata: b",
        b"data: a\n\ndata: b\n",
        b"data: a\r\rdata: b\r",
        b"data: a\r\n\r\ndata: b\r\n",
    ):
        assert read(body) == [(b"", b"a"), (b"", b"b")]


def test_empty_body_and_comments_alone_are_no_events() -> None:
    assert read(b"") == []
    assert read(b": keep-alive\n\n: keep-alive\n\nid: 1\n") == []


def test_no_other_character_ends_a_line() -> None:
    body = "data: a\x0b\x0c\x1c\x85\u2028\u2029b\n\n".encode()
    assert read(body) == [(b"", body[6:-2])]


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head></html>\n",
        b"Internal Server Error",
        b'{"error": {"message": "no"}}',
        b'{\n  "error": {\n    "code": 429\n  }\n}\n',
        b"error: rate limited\n",
        b"upstream connect error or disconnect/reset before headers. reset reason: overflow",
    ],
)
def test_a_body_that_is_no_event_stream_is_an_error(body: bytes) -> None:
    for pieces in ([body], bytewise(body)):
        with pytest.raises(WireError, match="expected server-sent events, got"):
            events(pieces)


def test_bare_json_in_the_middle_is_an_error_after_the_events_before_it() -> None:
    body = b'data: a\n\n{"error": "overloaded"}\n\ndata: b\n\n'
    for pieces in ([body], bytewise(body)):
        assert events_before_error(pieces, "overloaded") == [(b"", b"a")]


@pytest.mark.parametrize("line", [b"data: ", b"data:", b": ", b"event: ", b"foo: "])
def test_depth_and_size_limits_of_an_event(line: bytes) -> None:
    body = b"data: a\n\n" + line + b"x" * 100 + b"\n\ndata: b\n\n"
    for pieces in ([body], bytewise(body), cut(body, [60])):
        assert events_before_error(pieces, "at most 50 bytes", max_frame_bytes=50) == [(b"", b"a")]
    assert events([body], max_frame_bytes=120) == events(bytewise(body), max_frame_bytes=120)


def test_size_limit_counts_all_lines_of_an_event() -> None:
    fits = b"data: aaaa\n" * 5 + b"\n"
    for pieces in ([fits * 3], bytewise(fits * 3)):
        assert len(events(pieces, max_frame_bytes=50)) == 3
    for pieces in ([b"data:\n" * 11], bytewise(b"data:\n" * 11)):
        with pytest.raises(WireError, match="at most 50 bytes"):
            events(pieces, max_frame_bytes=50)


@pytest.mark.parametrize(
    ("odd", "found"),
    [
        (b"", []),
        (b"event: odd\ndata: x\ndata: y\n\n", [(b"odd", b"x\ny")]),
        (b"data: x\n\n", [(b"", b"x")]),
        (b": comment\ndata: x\n\n", [(b"", b"x")]),
        (b"data: x\nevent: odd\n\n", [(b"odd", b"x")]),
        (b"event: odd\ndata:x\n\n", [(b"odd", b"x")]),
        (b"event: odd\nid: 1\n\n", []),
        (b"event: odd\ndata: \n\n", [(b"odd", b"")]),
        (b"event: odd\n" + b"data: x\n" * 20 + b"\n", [(b"odd", b"\n".join([b"x"] * 20))]),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 7])
def test_any_split_same_events_of_many_alike_with_an_odd_one_among_them(
    odd: bytes, found: list[tuple[bytes, bytes]], place: int
) -> None:
    alike = [(b"delta", b"%d" % number) for number in range(7)]
    written = [b"event: %s\ndata: %s\n\n" % event for event in alike]
    body = b"".join([*written[:place], odd, *written[place:]])
    assert read(body) == [*alike[:place], *found, *alike[place:]]


@given(
    st.lists(st.sampled_from([b"data: a", b"data:b", b"event: e", b": c", b"\n", b"\r", b"\r\n", b"id", b"x:"])),
    st.data(),
)
def test_any_split_same_events_of_any_lines(tokens: list[bytes], data: st.DataObject) -> None:
    body = b"data: first\n\n" + b"".join(tokens)
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=8))
    assert events(cut(body, places)) == events([body]) == events(bytewise(body))
