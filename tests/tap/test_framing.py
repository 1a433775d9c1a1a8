"""The body of an answer is what h11 makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.tap.http1 import BodyReader

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def reader(begun: bytes = b"") -> tuple[BodyReader, h11.Connection]:
    """Of a chunked body whose head has been read."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
    http.send(h11.EndOfMessage())
    http.receive_data(CHUNKED + begun)
    assert isinstance(http.next_event(), h11.Response)
    return BodyReader(http, is_chunked=True), http


def contents(pieces: Sequence[bytes]) -> tuple[bytes, bool, bool]:
    """The content of a body, whether that is all, and whether it was malformed."""
    body, _ = reader()
    found = body.begin(b"")
    for piece in pieces:
        if piece and not body.is_complete and body.error is None:
            found += body.feed(piece)
    return found, body.is_complete, body.error is not None


def contents_by_h11(whole: bytes) -> tuple[bytes, bool, bool]:
    _, http = reader(whole)
    found = b""
    try:
        while isinstance(event := http.next_event(), h11.Data):
            found += bytes(event.data)
    except h11.RemoteProtocolError:
        return found, False, True
    return found, isinstance(event, h11.EndOfMessage), False


CHUNKS = st.sampled_from(
    [
        b"5\r\nTides\r\n",
        b"005\r\nTides\r\n",
        b"4\r\n\r\n\r\n\r\n",
        b'5;a="b"\r\nTides\r\n',
        b"5 \r\nTides\r\n",
        b"5 ;x\r\nTides\r\n",
        b"00000000000000000005\r\nTides\r\n",
        b"000000000000000000005\r\nTides\r\n",
        b"5\nTides\n",
        b"5\r\nTidesXX",
        b"5\r\nTides",
        b"\r\n",
        b"x\r\n",
        b"0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"0\r\nX y\r\n\r\n",
        b"0;last\r\n\r\nrest",
    ]
)


@given(chunks=st.lists(CHUNKS, max_size=5), cuts=st.lists(st.integers(0, 60)))
def test_chunks_are_what_h11_makes_of_them_however_they_are_cut(chunks: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(chunks)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    assert contents([whole[start:end] for start, end in pairwise(places)]) == contents_by_h11(whole)


@pytest.mark.parametrize("wrong", [b"5;" + b"x" * 200_000, b"5" + b" " * 200_000, b"0\r\n" + b"X: y\r\n" * 40_000])
def test_lines_of_a_chunked_body_are_bounded(wrong: bytes) -> None:
    body, _ = reader()
    body.feed(wrong)
    assert "too long" in str(body.error)


def test_content_before_what_is_malformed_is_read() -> None:
    body, _ = reader()
    assert body.feed(b"5\r\nTides\r\n3\r\nebbXX") == b"Tidesebb"
    assert "footer" in str(body.error)
