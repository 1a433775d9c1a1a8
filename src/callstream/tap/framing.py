"""The body of an HTTP/1.1 response: which bytes are its content, and where it ends (RFC 9112, sections 6 and 7).

h11 decides, with one shortcut. A model's delta is usually one chunk and one read, for which h11 takes about 40 µs and the
code below 1 µs. Plain chunks change nothing in what h11 knows: between two chunks it has no memory of those before. So
they are cut here, and from the first bytes on that are anything else (an extension, the last chunk and its trailers,
whatever is wrong) h11 reads all of the body.
"""

from __future__ import annotations

import re
from typing import Final

import h11

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_BEGINNING_OF_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{0,15}\r?")
_LINE_END: Final = b"\r\n"


class BodyReader:
    """Is fed what comes after the head, which ``http`` has read."""

    def __init__(self, http: h11.Connection, *, is_chunked: bool) -> None:
        self.is_complete = False
        self.error: h11.RemoteProtocolError | None = None
        """The body is not what its head says. What came before is content all the same."""
        self._http = http
        self._is_plain = is_chunked and not http.trailing_data[0]
        self._size = b""  # the beginning of one
        self._left = 0  # bytes of the chunk, with the line end after it

    @property
    def is_reusable(self) -> bool:
        """Whether the next exchange may follow on the connection: both sides have said all, and nothing is left over."""
        return self._http.our_state is self._http.their_state is h11.DONE and not self._http.trailing_data[0]

    def begin(self, begun: bytes) -> bytes:
        """The content of what came with the head, beside what h11 has of it."""
        if self._is_plain:
            return self.feed(begun) if begun else b""
        if begun:
            self._http.receive_data(begun)
        return self._read_events()

    def feed(self, data: bytes) -> bytes:
        """The content of ``data``, which has something in it."""
        if not self._is_plain:
            self._http.receive_data(data)
            return self._read_events()
        if self._size:
            data, self._size = self._size + data, b""
        elif not self._left:
            line = data.find(_LINE_END)
            size = len(data) - line - 2 * len(_LINE_END)
            if size > 0 and data[:line].lower() == b"%x" % size and data.endswith(_LINE_END):
                return data[line + len(_LINE_END) : -len(_LINE_END)]
        return self._read_chunks(data)

    def end(self) -> bytes:
        """The connection has ended, and the body with it, or too early."""
        if self._size:
            self._http.receive_data(self._size)
        self._http.receive_data(b"")
        return self._read_events()

    def _read_chunks(self, data: bytes) -> bytes:
        content: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left > len(_LINE_END):
                piece = data[at : at + self._left - len(_LINE_END)]
                content.append(piece)
                self._left -= len(piece)
                at += len(piece)
            elif self._left:
                end = data[at : at + self._left]
                if not _LINE_END[-self._left :].startswith(end):
                    self.error = h11.RemoteProtocolError(f"malformed chunk footer: {end!r}")
                    break
                self._left -= len(end)
                at += len(end)
            elif (found := _SIZE.match(data, at)) is not None and (size := int(found[1], 16)):
                self._left = size + len(_LINE_END)
                at = found.end()
            elif _BEGINNING_OF_SIZE.fullmatch(data, at) is not None:
                self._size = data[at:]
                break
            else:
                self._is_plain = False
                self._http.receive_data(data[at:])
                content.append(self._read_events())
                break
        return content[0] if len(content) == 1 else b"".join(content)

    def _read_events(self) -> bytes:
        content: list[bytes] = []
        try:
            while isinstance(event := self._http.next_event(), h11.Data):
                content.append(bytes(event.data))
        except h11.RemoteProtocolError as error:
            self.error = error
        else:
            self.is_complete = isinstance(event, h11.EndOfMessage)
        return content[0] if len(content) == 1 else b"".join(content)
