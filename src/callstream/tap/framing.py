"""The body of an HTTP/1.1 response: which bytes are its content, and where it ends (RFC 9112, sections 6 and 7).

Each framing is fed what comes after the head. A model's delta is usually one chunk and one read, which is what the code
is fast for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

MAX_LINE: Final = 16 * 1024
"""Bytes that a chunk's size with its extensions may have, and the trailers together."""
_ONE_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_LINE_END: Final = b"\r\n"
_WITHOUT_BODY: Final = (204, 304)


class Malformed(Exception):
    """The body is not what its framing says."""


class BodyFraming(Protocol):
    """``rest``: what came after the end. ``missing`` says what was left out when the connection closes; None if nothing."""

    is_complete: bool
    rest: bytes

    def feed(self, data: bytes) -> bytes: ...

    def missing(self) -> str | None: ...


class Chunked:
    """Each chunk has its size before it. Trailers are read and dropped, as httpx drops them."""

    def __init__(self) -> None:
        self.is_complete = False
        self.rest = b""
        self._line = b""  # the beginning of one
        self._left = 0  # bytes of the chunk, with the line end after it
        self._is_last = False
        self._trailers = 0

    def feed(self, data: bytes) -> bytes:
        if self._line:
            data, self._line = self._line + data, b""
        elif not self._left and not self._is_last and (found := _ONE_CHUNK.match(data)) is not None:
            start, stop = found.end(), len(data) - len(_LINE_END)
            if start + int(found[1], 16) == stop > start and data.endswith(_LINE_END):
                return data[start:stop]
        content: list[bytes] = []
        at = 0
        while at < len(data) and not self.is_complete:
            if self._left > len(_LINE_END):
                piece = data[at : at + self._left - len(_LINE_END)]
                content.append(piece)
                self._left -= len(piece)
                at += len(piece)
            elif self._left:
                end = data[at : at + self._left]
                if not _LINE_END[-self._left :].startswith(end):
                    raise Malformed(f"expected the end of a chunk, got {end!r}")
                self._left -= len(end)
                at += len(end)
            else:
                end_of_line = data.find(_LINE_END, at)
                if end_of_line < 0:
                    self._line = data[at:]
                    _check_length(len(self._line) + self._trailers)
                    break
                self._take_line(data[at:end_of_line])
                at = end_of_line + len(_LINE_END)
        if self.is_complete:
            self.rest = data[at:]
        return content[0] if len(content) == 1 else b"".join(content)

    def missing(self) -> str | None:
        return "incomplete chunked read"

    def _take_line(self, line: bytes) -> None:
        if self._is_last:
            self._trailers += len(line) + len(_LINE_END)
            _check_length(self._trailers)
            self.is_complete = not line
            return
        size = _SIZE.fullmatch(line)
        if size is None:
            raise Malformed(f"expected the size of a chunk, got {line[:50]!r}")
        _check_length(len(line))
        length = int(size[1], 16)
        self._is_last = not length
        self._left = length + len(_LINE_END) if length else 0


class Counted:
    """The head has said how long it is."""

    def __init__(self, length: int) -> None:
        self.is_complete = not length
        self.rest = b""
        self._length = self._left = length

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            data, self.rest = data[: self._left], data[self._left :]
        self._left -= len(data)
        self.is_complete = not self._left
        return data

    def missing(self) -> str | None:
        return f"received {self._length - self._left} bytes, expected {self._length}"


class UntilClose:
    """It ends with the connection."""

    is_complete = False
    rest = b""

    def feed(self, data: bytes) -> bytes:
        return data

    def missing(self) -> str | None:
        return None


def framing_of(method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> BodyFraming:
    """The framing that a checked head declares, its names in lower case."""
    if method == "HEAD" or status in _WITHOUT_BODY:
        return Counted(0)
    known = dict(headers)
    if b"transfer-encoding" in known:
        return Chunked()
    length = known.get(b"content-length")
    return UntilClose() if length is None else Counted(int(length))


def _check_length(length: int) -> None:
    if length > MAX_LINE:
        raise Malformed(f"expected a line of at most {MAX_LINE} bytes in a chunked body")
