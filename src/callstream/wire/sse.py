"""Server-sent events, by the standard's section 9.2: bytes in, (event name, data) out.

Lines end in LF, CRLF or CR; a byte order mark at the very beginning is skipped; lines that begin with a colon and fields
that are not known are ignored; several data lines make one text with LF between them. Chunk boundaries mean nothing.
Beyond the standard: at the end of the body an event without its final blank line still counts, because servers leave it
out, and a body that is not server-sent events at all is a WireError instead of silence.
"""

from __future__ import annotations

import re

from callstream.errors import WireError

_BOM = b"\xef\xbb\xbf"
_LOOKS_LIKE_A_FIELD = re.compile(rb"\s*(?::|(?:data|event|id|retry)\s*(?::|$)|[\w-]{1,40}:)")


class SseStream:
    """Cuts a response body into events. ``max_event_bytes`` bounds what one event may hold before it is dispatched."""

    def __init__(self, *, max_event_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_event_bytes = max_event_bytes
        self._unfinished: list[bytes] = []  # the line that has not ended yet
        self._held = 0  # bytes in the unfinished line and in the data lines of the unfinished event
        self._after_cr = False  # a LF that comes next belongs to the CR before it
        self._at_start = True
        self._any_event = False
        self._event = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The events that these bytes finish."""
        if self._at_start:
            data = self._without_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\n" not in data and b"\r" not in data:
            self._unfinished.append(data)
            self._hold(len(data))
            return []
        if self._unfinished:
            data = b"".join((*self._unfinished, data))
            self._unfinished.clear()
        lines = data.splitlines()
        last = data[-1:]
        if last == b"\r":
            self._after_cr = True
        elif last != b"\n":
            self._unfinished.append(lines.pop())
        events: list[tuple[bytes, bytes]] = []
        waiting = self._data
        for line in lines:
            if line.startswith(b"data: "):
                waiting.append(line[6:])
            elif not line:
                if waiting:
                    events.append((self._event, waiting[0] if len(waiting) == 1 else b"\n".join(waiting)))
                    waiting.clear()
                self._event = b""
            elif line.startswith(b"event: "):
                self._event = line[7:]
            else:
                self._field(line)
        self._any_event = self._any_event or bool(events)
        self._held = 0
        if waiting or self._unfinished:
            self._hold(sum(map(len, waiting)) + sum(map(len, self._unfinished)))
        return events

    def end(self) -> list[tuple[bytes, bytes]]:
        """The event that the body ended in, if it ended in one. It may be cut off anywhere."""
        events = self.feed(b"\n\n")
        self._unfinished.clear()
        return events

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self._max_event_bytes:
            raise WireError(
                f"expected an event of at most {self._max_event_bytes} bytes, got {self._held} and no end of it"
            )

    def _without_bom(self, data: bytes) -> bytes:
        head = b"".join(self._unfinished) + data
        if len(head) < len(_BOM) and _BOM.startswith(head):
            return data  # not enough to tell yet
        self._at_start = False
        self._unfinished.clear()
        self._held = 0
        return head.removeprefix(_BOM)

    def _field(self, line: bytes) -> None:
        """A line that is not one of the usual two. Before the first event it shows whether the body is events at all."""
        if not self._any_event and not _LOOKS_LIKE_A_FIELD.match(line):
            raise WireError(f"expected server-sent events, got {line[:200]!r}")
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._event = value
        elif name == b"data":
            self._data.append(value)
