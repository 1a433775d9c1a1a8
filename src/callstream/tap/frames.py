"""Response bodies cut into frames, byte for byte.

A frame is what a server sends at a time: a server-sent event with its blank line, whatever the line ending, or an
element of the JSON array that Gemini streams when it is not asked for events, with the separator before it. Joined, the
frames are the body. Chunk boundaries mean nothing. A comment belongs to the event that follows it, or is a frame of its
own where a blank line follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from callstream.errors import WireError
from callstream.wire.sse import BOM

# Two line ends in a row. A LF may be the end of a CRLF; CRLF alone is one line end, so that CR LF is no blank line.
_BLANK_LINE = re.compile(rb"\n(?:\r\n|\n|\r)|\r\r\n?")
_LONGEST_BLANK_LINE = 4
_ENDS = (b"\n\n", b"\n\r\n", b"\r\r\n", b"\n\r", b"\r\r")
_MARK = re.compile(rb'["\\{}\[\]]')
_SPACE = b" \t\r\n"


class FrameSplitter:
    """Cuts one response body. ``max_frame_bytes`` bounds what may wait for the end of a frame."""

    def __init__(self, *, max_frame_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._waiting = bytearray()
        self._looked_at = 0  # bytes of those that wait in which no frame ends
        self._is_array: bool | None = None
        self._depth = 0  # 1 inside the array, 2 and more inside an element
        self._in_string = False

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that these bytes finish."""
        body: bytes | bytearray = data
        if self._waiting:
            self._waiting += data
            body = self._waiting
        if self._is_array is None and not BOM.startswith(body) and (shown := body.removeprefix(BOM).lstrip(_SPACE)):
            self._is_array = shown.startswith(b"[")
        frames = []
        start = 0
        for end in self._ends_of_elements(body) if self._is_array else self._ends_of_events(body):
            frames.append(bytes(body[start:end]))
            start = end
        if body is self._waiting:
            del self._waiting[:start]
        else:
            self._waiting += data[start:]
        self._looked_at -= start
        if len(self._waiting) > self._max_frame_bytes:
            raise WireError(
                f"expected a frame of at most {self._max_frame_bytes} bytes, got {len(self._waiting)} and no end of it"
            )
        return frames

    def end(self) -> list[bytes]:
        """What the body ended in: an event without its blank line, the end of the array, or nothing."""
        rest, self._waiting = bytes(self._waiting), bytearray()
        return [rest] if rest else []

    def _ends_of_events(self, body: bytes | bytearray) -> Iterator[int]:
        blank = _the_only_blank_line(body, self._looked_at)
        if blank is not None:
            while (at := body.find(blank, self._looked_at)) >= 0:
                self._looked_at = at + len(blank)
                yield self._looked_at
        else:
            for found in _BLANK_LINE.finditer(body, self._looked_at):
                end = found.end()
                if end == len(body) and body.endswith(b"\r"):
                    break  # a LF that comes next belongs to it
                yield end
                self._looked_at = end
        self._looked_at = max(self._looked_at, len(body) - _LONGEST_BLANK_LINE + 1)

    def _ends_of_elements(self, body: bytes | bytearray) -> Iterator[int]:
        skip = self._looked_at
        for mark in _MARK.finditer(body, self._looked_at):
            at = mark.start()
            if at < skip:
                continue
            byte = mark[0]
            if byte == b'"':
                self._in_string = not self._in_string
            elif byte == b"\\":
                skip = at + 2
            elif self._in_string:
                continue
            elif byte in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 1:
                    yield at + 1
        self._looked_at = max(skip, len(body))


def _the_only_blank_line(body: bytes | bytearray, start: int) -> bytes | None:
    """A blank line, where all lines end alike and it can be searched for faster; None where they do not."""
    returns = body.count(b"\r", start)
    if returns == 0:
        return b"\n\n"
    if returns == body.count(b"\r\n", start) == body.count(b"\n", start):
        return b"\r\n\r\n"
    return None


# -- what is inside a frame -------------------------------------------------------------------------------------------


def is_finished(frame: bytes) -> bool:
    """Whether an event has its blank line. One that has not may be cut off anywhere."""
    return frame.endswith(_ENDS)


def payload_of(frame: bytes) -> bytes:
    """The data of an event, empty where it has none."""
    return b"\n".join(
        line[5:].removeprefix(b" ") for line in frame.removeprefix(BOM).splitlines() if line.startswith(b"data:")
    )


def with_payload(frame: bytes, payload: bytes) -> bytes:
    """The event with other data, finished if it was not. Its other fields, comments and line ends stay."""
    lines = []
    ending = b"\n"
    for line in frame.splitlines(keepends=True):
        bare = line.rstrip(b"\r\n")
        ending = line[len(bare) :] or ending
        if not bare.removeprefix(BOM).startswith(b"data:"):
            lines.append(line)
        elif payload:
            lines.append(b"data: " + payload + ending)
            payload = b""
    made = b"".join(lines)
    return made if is_finished(made) else made + ending


def element_of(frame: bytes) -> tuple[bytes, bytes]:
    """The separator and the element of a frame of an array; the element is empty at the array's end."""
    at = frame.find(b"{")
    return (frame, b"") if at < 0 else (frame[:at], frame[at:])


def read_json(payload: bytes) -> Any:
    """The value of a payload, None where it is not JSON. Lone surrogates, which servers do send, are taken."""
    for decode in (msgspec.json.decode, json.loads):
        try:
            return decode(payload)
        except (ValueError, RecursionError):
            continue
    return None


_LINE_ENDS = {line_end.encode(): f"\\u{ord(line_end):04x}".encode() for line_end in "\x85\u2028\u2029"}
"""What Python takes for the end of a line, and so does google-genai, which splits the stream into lines as Python does."""


def write_json(value: Any) -> bytes:
    """A value as JSON, on one line. ``msgspec.Raw`` in it is JSON already and stays as it is."""
    try:
        data = msgspec.json.encode(value)
        for line_end, escape in _LINE_ENDS.items():
            if line_end in data:
                data = data.replace(line_end, escape)
        return data
    except UnicodeEncodeError:  # a lone surrogate: as an escape it can be sent
        return json.dumps(value, separators=(",", ":"), default=lambda raw: json.loads(bytes(raw))).encode()
