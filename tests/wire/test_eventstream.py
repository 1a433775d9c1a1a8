"""AWS event streams: messages in any split, both checksums, limits, errors, and what is written."""

from __future__ import annotations

import json
import struct
from typing import Any
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from callstream.errors import WireError
from callstream.wire.eventstream import (
    MAX_HEADER_BYTES,
    ChunkFraming,
    EventStreamFraming,
    write_event,
    write_exception,
    write_headers,
    write_message,
)
from callstream.wire.framing import Frame, Framing
from tests.decoding import bytewise, cut

ERROR = write_headers({":message-type": "error", ":error-code": "Busy", ":error-message": "Come back."})


def frames_of(pieces: list[bytes], framing: Framing | None = None) -> list[Frame]:
    framing = framing or EventStreamFraming()
    return [frame for piece in pieces for frame in framing.feed(piece)] + framing.end()


def prelude(total: int, headers: int) -> bytes:
    lengths = struct.pack(">II", total, headers)
    return lengths + struct.pack(">I", crc32(lengths))


def the_error(data: bytes, framing: Framing | None = None) -> WireError:
    last = frames_of([data], framing)[-1]
    assert last.error is not None
    assert last.raw.endswith(data[-4:])
    return last.error


@given(
    events=st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=40)), max_size=5),
    rest=st.binary(max_size=11),
    data=st.data(),
)
def test_any_split_same_frames(events: list[tuple[str, bytes]], rest: bytes, data: st.DataObject) -> None:
    body = b"".join(write_event(kind, payload) for kind, payload in events) + rest
    for pieces in ([body], bytewise(body), cut(body, data.draw(st.lists(st.integers(0, len(body)), max_size=9)))):
        frames = frames_of(pieces)
        assert b"".join(frame.raw for frame in frames) == body
        read = [frame for frame in frames if frame.is_finished]
        assert [(frame.event.decode(), frame.payload) for frame in read] == events
        assert [frame.raw for frame in frames if not frame.is_finished] == ([rest] if rest else [])


@given(kind=st.text(max_size=20), payload=st.binary(max_size=200))
def test_botocore_reads_what_is_written(kind: str, payload: bytes) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(write_event(kind, payload) + write_exception(kind, payload) + write_message(ERROR, b""))
    event, exception, error = [message.to_response_dict() for message in buffer]
    assert (event["headers"][":event-type"], event["body"], event["status_code"]) == (kind, payload, 200)
    assert (exception["headers"][":exception-type"], exception["status_code"]) == (kind, 400)
    assert error["headers"][":error-message"] == "Come back."


def test_headers_of_all_types_are_read() -> None:
    """Only texts are looked at; the others are stepped over by their size."""
    sizes = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
    raw = b"".join(b"\x01" + bytes((97 + kind, kind)) + bytes(size) for kind, size in sizes.items())
    raw += b"\x01b\x06\x00\x03\xff\xff\xff" + write_headers({":event-type": "messageStop"})
    (frame,) = frames_of([write_message(raw, b"{}")])
    assert (frame.event, frame.payload) == (b"messageStop", b"{}")


@pytest.mark.parametrize("at", [3, 7, 9, 14, 40, -6, -1])
def test_one_damaged_byte_is_an_error(at: int) -> None:
    message = bytearray(write_event("contentBlockDelta", b'{"delta": {"text": "Hello"}}'))
    message[at] ^= 1
    good = write_event("messageStart", b"{}")
    first, broken = frames_of([good + bytes(message) + b"the rest"])
    assert first.error is None
    assert isinstance(broken.error, WireError)
    assert broken.raw == bytes(message) + b"the rest"
    assert broken.error.provider_message is None


def test_another_kind_of_body_is_an_error_at_once() -> None:
    framing = EventStreamFraming()
    assert framing.feed(b'{"message"') == []
    (frame,) = framing.feed(b': "no"}')
    assert str(frame.error).startswith('expected a message of an AWS event stream, got b\'{"message": "no"}\'')


def test_depth_and_size_limits() -> None:
    """A length that is too great is refused as soon as it is there, and nothing is kept for it."""
    small = EventStreamFraming(max_frame_bytes=100)
    assert "at most 100 bytes" in str(the_error(prelude(101, 0), small))
    assert "headers" in str(the_error(prelude(10**6, MAX_HEADER_BYTES + 1)))
    assert "got a length of 15" in str(the_error(prelude(15, 0)))
    assert "room for 8 bytes of headers" in str(the_error(prelude(23, 8)))
    assert len(frames_of([write_message(b"", bytes(84))], EventStreamFraming(max_frame_bytes=100))) == 1


def test_parse_linear() -> None:
    """A message that comes byte by byte is put together once: its bytes are not copied for every piece."""

    class Counting(EventStreamFraming):
        looked_at = 0

        def _read_prelude(self, body: bytes, start: int) -> int:
            self.looked_at += 1
            return super()._read_prelude(body, start)

    framing = Counting()
    assert len(frames_of(bytewise(write_event("chunk", bytes(20_000))), framing)) == 1
    assert framing.looked_at == 2


@pytest.mark.parametrize(
    "raw", [b"\x05abc", b"\x01a", b"\x01a\x0a", b"\x01a\x07\x00\x09abc", b"\x01\xff\x00", b"\x01a\x07\x00\x01\xff"]
)
def test_headers_that_are_none(raw: bytes) -> None:
    assert "expected the headers of an AWS event stream message" in str(the_error(write_message(raw, b"{}")))


@pytest.mark.parametrize(
    ("message", "text", "said"),
    [
        (write_exception("throttlingException", b'{"message": "Too fast."}'), "throttlingException: Too fast.", "Too fast."),
        (write_exception("throttlingException", b'{"Message": "Too fast."}'), "throttlingException: Too fast.", "Too fast."),
        (write_exception("modelStreamErrorException", b"no json"), "modelStreamErrorException: no json", "no json"),
        (write_exception("odd", b"[1]"), "odd: [1]", "[1]"),
        (write_message(ERROR, b""), "Busy: Come back.", "Come back."),
        (write_message(write_headers({":message-type": "error"}), b"\xff"), "an error: \ufffd", "\ufffd"),
    ],
)  # fmt: skip
def test_exceptions_and_errors_are_the_provider_s(message: bytes, text: str, said: str) -> None:
    for pieces in ([message], bytewise(message)):
        (frame,) = frames_of(pieces)
        assert str(frame.error) == f"the provider reported {text}"
        assert frame.error is not None
        assert frame.error.provider_message == said
        assert frame.raw == message


def test_message_is_written_anew_with_its_own_headers() -> None:
    headers = write_headers({":event-type": "contentBlockDelta", ":message-type": "event", "x": "kept"})
    framing = EventStreamFraming()
    (frame,) = framing.feed(write_message(headers, b"{}"))
    assert framing.write(frame) == write_message(headers, b"{}")
    assert framing.write(frame, b'{"a": 1}') == write_message(headers, b'{"a": 1}')


def test_chunks_hold_base64() -> None:
    framing = ChunkFraming()
    (frame, other) = framing.feed(write_event("chunk", b'{"bytes": "e30=", "p": "ab"}') + framing.keep_alive)
    assert (frame.payload, other.payload) == (b"{}", None)
    (again,) = framing.feed(framing.write(frame, b'{"a": 1}'))
    assert (again.payload, again.event) == (b'{"a": 1}', b"chunk")
    (made,) = framing.feed(framing.write(Frame(b'{"b": 2}', b"content_block_delta")))
    assert (made.payload, made.event) == (b'{"b": 2}', b"chunk")
    assert framing.write(other) == framing.keep_alive


def test_errors_quote_no_text() -> None:
    _, broken = frames_of([write_event("chunk", b"{}"), b"\x00" + write_event("chunk", b'{"bytes": "secret"}')])
    assert "secret" not in str(broken.error)
    assert "secret" not in str(the_error(write_event("chunk", b'{"bytes": "secret?"}'), ChunkFraming()))


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"bytes": 1}', b'{"bytes": "?"}', b'{"bytes": "\xff"}'])
def test_chunks_that_are_none(payload: bytes) -> None:
    error = the_error(write_event("chunk", payload), ChunkFraming())
    assert "expected a chunk with base64 in it" in str(error)


def test_keep_alive_is_passed_over_by_botocore() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(EventStreamFraming.keep_alive * 2)
    messages: list[Any] = [message.to_response_dict() for message in buffer]
    assert [json.loads(message["body"]) for message in messages] == [{}, {}]
