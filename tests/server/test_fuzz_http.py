"""What is not even HTTP, or ends in the middle, does the server no harm."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.server import ServerSettings
from tests.server.test_fuzz import as_bytes, function_agent, fuzzed, server, valid

from .background import Background, in_background

__all__ = ["server"]

HEAD = b"POST /agui HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def status_of(answer: bytes) -> int | None:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else None


def refused_or_dropped(answer: bytes) -> None:
    status = status_of(answer)
    if status is None:
        assert answer == b""
    else:
        assert 400 <= status < 500, answer[:300]
        assert answer.partition(b"\r\n\r\n")[2], answer


@given(data=st.binary(min_size=1, max_size=300))
@fuzzed
def test_noise(server: Background, data: bytes) -> None:
    refused_or_dropped(server.exchange(data))


@given(data=st.data())
@fuzzed
def test_requests_with_bytes_changed(server: Background, data: st.DataObject) -> None:
    body = as_bytes(valid())
    whole = bytearray(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    answer = server.exchange(bytes(whole), seconds=7)
    status = status_of(answer)
    assert status is None or status < 500, answer[:300]


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: \r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        HEAD + b"X: y\r\n" * 10_000 + b"\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: x\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\n{}",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b" folded\r\n\r\n",
        HEAD + b"Na\0me: x\r\n\r\n",
        HEAD + b"Content-Length: 100\r\n\r\n{",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40,
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
    ],
    ids=lambda data: str(data[-40:])[:40],
)
def test_broken_http(server: Background, data: bytes) -> None:
    answer = server.exchange(data, seconds=7)
    status = status_of(answer)
    if status == 200:
        assert data.startswith(b"GET / HTTP/1.1")
    else:
        refused_or_dropped(answer)


def test_chunks_over_the_limit_are_refused_before_their_end(server: Background) -> None:
    """An endless body is not read to its end."""
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        answer = b""
        try:
            while sent < 200_000_000:
                connection.sendall(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
                sent += 0x2000
        except (ConnectionError, TimeoutError):
            pass
        try:
            answer = connection.recv(65536)
        except (ConnectionError, TimeoutError):
            pass
    assert sent < 100_000_000
    assert status_of(answer) in (413, None)
    server.still_serves()


@given(cut=st.integers(0, 600), reset=st.booleans())
@fuzzed
def test_clients_that_go_in_the_middle(server: Background, cut: int, reset: bool) -> None:
    body = as_bytes(valid())
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        if reset:  # goes without a word
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(whole[:cut])


def test_many_who_never_finish_their_request(server: Background) -> None:
    waiting = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(200)]
    try:
        for number, connection in enumerate(waiting):
            connection.sendall(HEAD[: number % len(HEAD)])
        server.still_serves()
    finally:
        for connection in waiting:
            connection.close()


def test_a_body_that_comes_too_slowly_is_refused() -> None:
    impatient = ServerSettings(body_seconds=0.1)
    with in_background(lambda: function_agent("memory:", impatient)) as server:
        answer = server.exchange(HEAD + b"Content-Length: 100\r\n\r\n{", half_close=False, seconds=15)
        assert status_of(answer) == 408
        assert server.request("GET", "/healthz")[0] == 200
