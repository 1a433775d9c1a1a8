"""Server-sent events, by the standard's section 9.2: bytes in, (event name, data) out.

Lines end in LF, CRLF or CR; a byte order mark at the very beginning is skipped; lines that begin with a colon and
fields that are not known are ignored; several data lines make one text with LF between them. Chunk boundaries mean
nothing. Beyond the standard: at the end of the body an event without its final blank line still counts, because servers
leave it out, and a body that is not server-sent events at all is a WireError instead of silence. So is a line that
begins with a brace: a server that fails in the middle of a stream may write its error as bare JSON.
"""

from __future__ import annotations

import re

from callstream.errors import WireError

BOM = b"\xef\xbb\xbf"
"""The byte order mark, which may come before anything else."""
_LOOKS_LIKE_A_FIELD = re.compile(rb"\s*(?::|(?:data|event|id|retry)\s*(?::|$)|[\w-]{1,40}:)")
_DATA = len(b"data: ")
_MANY_LINES = 12
_KNOWN_FIELDS = (b"", b"data", b"event", b"id", b"retry")


class SseStream:
    """Cuts a response body into events. ``max_event_bytes`` bounds what one event may hold before it is dispatched."""

    def __init__(self, *, max_event_bytes: int = 64 * 1024 * 1024) -> None:
        self.error: WireError | None = None
        """What is wrong with the body after the events that were given, if anything is."""
        self._max_event_bytes = max_event_bytes
        self._unfinished: list[bytes] = []  # the line that has not ended yet
        self._unfinished_bytes = 0
        self._after_cr = False  # a LF that comes next belongs to the CR before it
        self._at_start = True
        self._any_event = False
        self._unknown: bytes | None = None  # the first line that no event stream of ours has, while there was no event
        self._event = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The events that these bytes finish. If the bytes after them are wrong, ``error`` is set."""
        events: list[tuple[bytes, bytes]] = []
        try:
            self._take(data, events)
        except WireError as error:
            self.error = error
        return events

    def end(self) -> list[tuple[bytes, bytes]]:
        """The event that the body ended in, if it ended in one. It may be cut off anywhere."""
        events = self.feed(b"\n\n")
        if self._unknown is not None and not self._any_event:
            self.error = self.error or _not_events(self._unknown)
        return events

    def _take(self, data: bytes, events: list[tuple[bytes, bytes]]) -> None:
        if self._at_start:
            data = self._without_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\n" not in data and b"\r" not in data:
            self._leave_unfinished(data)
            return
        if self._unfinished:
            data = b"".join((*self._unfinished, data))
            self._unfinished.clear()
            self._unfinished_bytes = 0
        lines = data.splitlines()
        last = data[-1:]
        rest = b""
        if last == b"\r":
            self._after_cr = True
        elif last != b"\n":
            rest = lines.pop()
        if self._data_bytes + len(data) > self._max_event_bytes:
            fitting = self._count_fitting(lines)
            if fitting < len(lines):
                self._take_lines(lines[:fitting], events)
                raise self._too_long()
        if len(lines) >= _MANY_LINES:
            lines = self._take_named(lines, events)
        self._take_lines(lines, events)
        self._leave_unfinished(rest)

    def _take_named(self, lines: list[bytes], events: list[tuple[bytes, bytes]]) -> list[bytes]:
        """Takes the events at once if each is a name, data and a blank line, as in a busy stream. Returns what is left."""
        if self._event or self._data:  # the bytes before ended inside an event
            end = lines.index(b"") + 1 if b"" in lines else len(lines)
            self._take_lines(lines[:end], events)
            lines = lines[end:]
        if lines[2:3] != [b""]:
            return lines
        named = [
            (name[7:], data[6:])
            for name, data, blank in zip(lines[::3], lines[1::3], lines[2::3], strict=False)
            if not blank and name[:7] == b"event: " and data[:6] == b"data: "  # startswith would take twice the time
        ]
        if len(named) < len(lines) // 3:
            return lines
        events += named
        return lines[3 * len(named) :]

    def _take_lines(self, lines: list[bytes], events: list[tuple[bytes, bytes]]) -> None:
        waiting = self._data
        counted = len(waiting)
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
                self._field(line, after_event=self._any_event or bool(events))
        if events:
            self._any_event = True
            self._data_bytes = counted = 0
        if waiting:
            self._data_bytes += sum(len(line) + _DATA for line in waiting[counted:])

    def _leave_unfinished(self, data: bytes) -> None:
        if data:
            self._unfinished.append(data)
            self._unfinished_bytes += len(data)
            if self._data_bytes + self._unfinished_bytes > self._max_event_bytes:
                raise self._too_long()

    def _count_fitting(self, lines: list[bytes]) -> int:
        """How many of the lines come before the first that makes an event too long."""
        held = self._data_bytes
        for number, line in enumerate(lines):
            if held + len(line) > self._max_event_bytes:
                return number
            if not line:
                held = 0
            elif line.startswith(b"data:"):
                held += len(line.removeprefix(b"data:").removeprefix(b" ")) + _DATA
        return len(lines)

    def _too_long(self) -> WireError:
        return WireError(f"expected an event of at most {self._max_event_bytes} bytes, got more and no end of it")

    def _without_bom(self, data: bytes) -> bytes:
        head = b"".join(self._unfinished) + data
        if len(head) < len(BOM) and BOM.startswith(head):
            return data  # not enough to tell yet
        self._at_start = False
        self._unfinished.clear()
        self._unfinished_bytes = 0
        return head.removeprefix(BOM)

    def _field(self, line: bytes, *, after_event: bool) -> None:
        """A line that is not one of the usual two. Before the first event it shows whether this is an event stream."""
        if line.startswith(b"{") or not (after_event or _LOOKS_LIKE_A_FIELD.match(line)):
            raise _not_events(line)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._event = value
        elif name == b"data":
            self._data.append(value)
        elif self._unknown is None and name not in _KNOWN_FIELDS:
            self._unknown = line


def _not_events(line: bytes) -> WireError:
    return WireError(f"expected server-sent events, got {line[:200]!r}")
