"""AWS event streams (``application/vnd.amazon.eventstream``): binary messages, each with two checksums.

Everything is big-endian. A message is its total length and the length of its headers (4 bytes each), the CRC-32 of these
eight bytes, the headers, the payload, and the CRC-32 of all bytes before it. A header is the length of its name (1 byte),
the name, the type of its value (1 byte) and the value. ``:message-type`` is ``event``, ``exception`` or ``error``;
``:event-type`` names an event. An exception or an error is the provider's own, and ends the stream.

Both checksums are verified. The first one is checked as soon as twelve bytes have arrived, so a body of another kind is an
error at once, and nothing waits for a damaged length. A body that ends in the middle of a message is for the decoder to
judge: it knows from the wire's own end whether something is missing.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from zlib import crc32

import msgspec

from callstream.codec import outline
from callstream.errors import WireError
from callstream.wire.framing import Frame, Framing

CONTENT_TYPE = "application/vnd.amazon.eventstream"
MAX_HEADER_BYTES = 128 * 1024
MAX_MESSAGE_BYTES = 24 * 1024 * 1024 + MAX_HEADER_BYTES + 16
"""AWS's limits, which botocore applies when it reads."""
_PRELUDE = struct.Struct(">III")
_CHECKSUM = struct.Struct(">I")
_OVERHEAD = _PRELUDE.size + _CHECKSUM.size
_FIXED_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_BYTES, _TEXT = 6, 7


# -- writing -----------------------------------------------------------------------------------------------------------


def write_event(event_type: str, payload: bytes) -> bytes:
    """An event as Bedrock sends it."""
    headers = {":event-type": event_type, ":content-type": "application/json", ":message-type": "event"}
    return write_message(write_headers(headers), payload)


def write_exception(exception_type: str, payload: bytes) -> bytes:
    """An exception as Bedrock sends it in the middle of a stream."""
    headers = {":exception-type": exception_type, ":content-type": "application/json", ":message-type": "exception"}
    return write_message(write_headers(headers), payload)


def write_headers(headers: Mapping[str, str]) -> bytes:
    """Headers with text values."""
    written = bytearray()
    for name, value in headers.items():
        key, text = name.encode(), value.encode()
        written += bytes((len(key),)) + key + bytes((_TEXT,)) + len(text).to_bytes(2, "big") + text
    return bytes(written)


def write_message(headers: bytes, payload: bytes) -> bytes:
    """A message with these headers, as ``write_headers`` made them."""
    lengths = struct.pack(">II", _OVERHEAD + len(headers) + len(payload), len(headers))
    message = lengths + _CHECKSUM.pack(crc32(lengths)) + headers + payload
    return message + _CHECKSUM.pack(crc32(message))


# -- reading -----------------------------------------------------------------------------------------------------------


class EventStreamFraming(Framing):
    """Messages, each a frame whose ``event`` is its ``:event-type``.

    An event of a type that the service does not have keeps a connection alive: botocore and anthropic's client pass over
    it.
    """

    keep_alive = write_event("keepAlive", b"{}")
    _most = MAX_MESSAGE_BYTES
    _total = 0  # the length of the waiting message, once its prelude has been read
    _headers: tuple[bytes, Mapping[str, str]] = (b"", {})  # of the last message: mostly the next has the same

    def feed(self, data: bytes) -> list[Frame]:
        self._waiting += data
        if len(self._waiting) < (self._total or _PRELUDE.size):
            return []
        frames: list[Frame] = []
        body, start = bytes(self._waiting), 0
        try:
            while start + _PRELUDE.size <= len(body):
                self._total = self._read_prelude(body, start)
                if start + self._total > len(body):
                    break
                frames.append(self._read_message(body[start : start + self._total]))
                start += self._total
                self._total = 0
        except WireError as error:
            self.pop_rest()
            return [*frames, Frame(bytes_=body[start:], error=error)]
        del self._waiting[:start]
        return frames

    def pop_rest(self) -> bytes:
        self._total = 0
        return super().pop_rest()

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        raw = frame.raw
        if payload is None:
            return raw
        _, headers_length, _ = _PRELUDE.unpack_from(raw)
        return write_message(raw[_PRELUDE.size : _PRELUDE.size + headers_length], self._wrap(payload))

    def _unwrap(self, payload: bytes, event_type: str) -> bytes | None:
        """The part of an event's payload that the decoder reads; None if there is none."""
        return payload

    def _wrap(self, payload: bytes) -> bytes:
        """The payload of an event in which the decoder reads this."""
        return payload

    def _read_prelude(self, body: bytes, start: int) -> int:
        """The length of the message that begins here."""
        total, headers_length, checksum = _PRELUDE.unpack_from(body, start)
        if crc32(body[start : start + 8]) != checksum:
            # An error page is shown; of anything else only the bytes that should be the prelude, since text may follow.
            size = 100 if body[start : start + 1] in (b"{", b"<") else _PRELUDE.size
            raise WireError(f"expected a message of an AWS event stream, got {body[start : start + size]!r}")
        if total > self._max_frame_bytes or headers_length > MAX_HEADER_BYTES:
            raise WireError(
                f"expected an AWS event stream message of at most {self._max_frame_bytes} bytes, "
                f"{MAX_HEADER_BYTES} of them headers, got one of {total}, {headers_length} of them headers"
            )
        if total < _OVERHEAD + headers_length:
            raise WireError(
                f"expected an AWS event stream message with room for {headers_length} bytes of headers, "
                f"got a length of {total}"
            )
        return int(total)

    def _read_message(self, message: bytes) -> Frame:
        (checksum,) = _CHECKSUM.unpack(message[-_CHECKSUM.size :])
        if crc32(message[: -_CHECKSUM.size]) != checksum:
            raise WireError(f"expected an AWS event stream message with the checksum {checksum:08x}, got another one")
        _, headers_length, _ = _PRELUDE.unpack_from(message)
        payload_at = _PRELUDE.size + headers_length
        raw_headers, payload = message[_PRELUDE.size : payload_at], message[payload_at : -_CHECKSUM.size]
        if raw_headers != self._headers[0]:
            self._headers = (raw_headers, _read_headers(raw_headers))
        headers = self._headers[1]
        if headers.get(":message-type", "event") != "event":
            return Frame(bytes_=message, error=_reported(headers, payload))
        event_type = headers.get(":event-type", "")
        return Frame(self._unwrap(payload, event_type), event_type.encode(), message)


class _Chunk(msgspec.Struct):
    bytes: str | None = None


class ChunkFraming(EventStreamFraming):
    """Events of type ``chunk`` whose payload is JSON with the model's own JSON in it, as base64."""

    _chunks = msgspec.json.Decoder(_Chunk)

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        if frame.bytes_ is None:  # a frame that was not read here
            return write_event("chunk", self._wrap(payload or frame.payload or b""))
        return super().write(frame, payload)

    def _unwrap(self, payload: bytes, event_type: str) -> bytes | None:
        if event_type != "chunk":
            return None
        try:
            return base64.b64decode(self._chunks.decode(payload).bytes or "", validate=True)
        except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError) as error:
            raise WireError(f"expected a chunk with base64 in it, got {outline(payload)} ({error})") from None

    def _wrap(self, payload: bytes) -> bytes:
        return b'{"bytes":"' + base64.b64encode(payload) + b'"}'


def _read_headers(raw: bytes) -> dict[str, str]:
    """The headers with text values, by name."""
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(raw):
            name_end = at + 1 + raw[at]
            name, kind, at = raw[at + 1 : name_end].decode(), raw[name_end], name_end + 1
            if kind in (_BYTES, _TEXT):
                size, at = int.from_bytes(raw[at : at + 2], "big"), at + 2
            else:
                size = _FIXED_SIZES[kind]
            value, at = raw[at : at + size], at + size
            if kind == _TEXT:
                headers[name] = value.decode()
    except (IndexError, KeyError, UnicodeDecodeError):
        at = -1
    if at != len(raw):
        raise WireError(f"expected the headers of an AWS event stream message, got {raw[:200]!r}")
    return headers


def _reported(headers: Mapping[str, str], payload: bytes) -> WireError:
    """What an exception or an error says."""
    kind = headers.get(":exception-type") or headers.get(":error-code") or "an error"
    message = headers.get(":error-message")
    if message is None:
        try:
            fields = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            fields = None
        message = fields.get("message") or fields.get("Message") if isinstance(fields, dict) else None
    message = str(message or payload.decode("utf-8", "replace"))
    return WireError(f"the provider reported {kind}: {message}", provider_message=message)
