"""JSON lines: one JSON text a line, each ended by LF or CRLF.

Readers differ in what else they take for the end of a line, so whatever is written here has every such character escaped
(``codec.encode_line``). Many fail on an empty line, too; white space before the next text is part of its line, and keeps a
connection alive.
"""

from __future__ import annotations

from callstream.errors import WireError
from callstream.wire.framing import MAX_FRAME_BYTES, Frame, Framing

_SPACE = b" \t\r\n"


class JsonLinesFraming(Framing):
    keep_alive = b" "

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._waiting = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        if b"\n" not in data:
            self._waiting += data
            return self._give_up() if len(self._waiting) > self._max_frame_bytes else []
        *lines, rest = (self.take_rest() + data).split(b"\n")
        frames: list[Frame] = []
        for number, line in enumerate(lines):
            if len(line) > self._max_frame_bytes:
                left = b"\n".join([*lines[number:], rest])
                return [*frames, Frame(bytes_=left, error=self._too_long())]
            frames.append(_frame(line + b"\n"))
        self._waiting += rest
        return frames + self._give_up() if len(rest) > self._max_frame_bytes else frames

    def end(self) -> list[Frame]:
        rest = self.take_rest()
        if not rest:
            return []
        frame = _frame(rest)
        frame.is_finished = False
        return [frame]

    def take_rest(self) -> bytes:
        rest, self._waiting = bytes(self._waiting), bytearray()
        return rest

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        return frame.raw if payload is None else payload + b"\n"

    def _give_up(self) -> list[Frame]:
        return [Frame(bytes_=self.take_rest(), error=self._too_long())]

    def _too_long(self) -> WireError:
        return WireError(f"expected a line of at most {self._max_frame_bytes} bytes, got more")


def _frame(line: bytes) -> Frame:
    return Frame(line.strip(_SPACE) or None, b"", line)
