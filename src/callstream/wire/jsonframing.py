"""Bodies of JSON texts that arrive piece by piece: the objects of an array, or one text a line.

Gemini streams an array when it is not asked for server-sent events, Ollama lines.
"""

from __future__ import annotations

import re

from callstream.errors import WireError
from callstream.wire.framing import BOM, MAX_FRAME_BYTES, Frame, Framing, SseFraming

# -- a JSON array ------------------------------------------------------------------------------------------------------

_SPACE = b" \t\r\n"
_MARK = re.compile(rb'["\\{}\[\]]')


class JsonArrayFraming(Framing):
    """Cuts elements out by their brackets, outside of strings.

    Strings and brackets where no element can be are an error; after the array only another one may follow. White space
    keeps a connection alive.
    """

    keep_alive = b"\n"

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._waiting = bytearray()
        self._looked_at = 0
        self._element = -1  # where the element that waits begins
        self._depth = 0  # 1 inside the array, 2 and more inside an element
        self._in_string = False
        self._has_written = False  # the array's bracket has left

    def feed(self, data: bytes) -> list[Frame]:
        self._waiting += data
        frames: list[Frame] = []
        try:
            start = self._cut(frames)
        except WireError as error:
            cut = sum(len(frame.raw) for frame in frames)
            frames.append(Frame(bytes_=self.pop_rest()[cut:], error=error))
            return frames
        del self._waiting[:start]
        self._looked_at -= start
        self._element = max(-1, self._element - start)
        if len(self._waiting) - max(0, self._element) > self._max_frame_bytes:
            frames.append(Frame(bytes_=self.pop_rest(), error=self._too_long()))
        return frames

    def end(self) -> list[Frame]:
        rest = self.pop_rest()
        return [Frame(bytes_=rest)] if rest else []

    def pop_rest(self) -> bytes:
        rest, self._waiting = bytes(self._waiting), bytearray()
        self._looked_at, self._element = 0, -1
        return rest

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        """Frames before this one may have been left out, so the separator is made to fit what has left before it."""
        raw = frame.raw
        element = frame.payload or b""
        separator = raw[: len(raw) - len(element)]
        if payload is not None:
            raw, element = separator + payload, payload
        follows, self._has_written = self._has_written, True
        if follows != (b"[" in separator):
            return raw
        return (b"," if follows else b"[") + (element or raw)

    def _cut(self, frames: list[Frame]) -> int:
        """Looks at what has not been looked at. Returns where the frame after the last one begins."""
        body = self._waiting
        start = 0
        skip = self._looked_at
        for mark in _MARK.finditer(body, self._looked_at):
            at = mark.start()
            if at < skip:
                continue
            byte = mark[0]
            if self._in_string:
                if byte == b'"':
                    self._in_string = False
                elif byte == b"\\":
                    skip = at + 2
            elif byte == b'"' and self._depth > 1:
                self._in_string = True
            elif byte in b"{[" and (self._depth > 0 or byte == b"["):
                self._depth += 1
                if self._depth == 2:
                    self._element = at
            elif byte in b"}]" and (self._depth > 1 or (self._depth == 1 and byte == b"]")):
                self._depth -= 1
                if self._depth == 1:
                    if at + 1 - self._element > self._max_frame_bytes:
                        raise self._too_long()
                    frames.append(Frame(bytes(body[self._element : at + 1]), bytes_=bytes(body[start : at + 1])))
                    start = at + 1
                    self._element = -1
            else:
                raise WireError(f"expected the objects of an array, got {byte.decode()} between them")
        self._looked_at = max(skip, len(body))
        return start

    def _too_long(self) -> WireError:
        return WireError(f"expected an array element of at most {self._max_frame_bytes} bytes, got more")


class SseOrArrayFraming(Framing):
    """Server-sent events or a JSON array: the first character of the body tells."""

    keep_alive = b"\n"

    def __init__(self) -> None:
        self._head = b""
        self._framing: Framing | None = None

    def feed(self, data: bytes) -> list[Frame]:
        if self._framing is not None:
            return self._framing.feed(data)
        body = self._head + data
        shown = body.removeprefix(BOM).lstrip(_SPACE)
        if not shown or BOM.startswith(body):
            self._head = body
            return []
        return self._decide(JsonArrayFraming() if shown.startswith(b"[") else SseFraming()).feed(body)

    def end(self) -> list[Frame]:
        if self._framing is None:
            return [*self._decide(SseFraming()).feed(self._head), *self.end()]
        return self._framing.end()

    def pop_rest(self) -> bytes:
        return self._head if self._framing is None else self._framing.pop_rest()

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        assert self._framing is not None, "a frame was read before it is written"
        return self._framing.write(frame, payload)

    def _decide(self, framing: Framing) -> Framing:
        self._framing = framing
        return framing


# -- JSON lines --------------------------------------------------------------------------------------------------------


class JsonLinesFraming(Framing):
    """One JSON text a line, each ended by LF or CRLF.

    Readers differ in what else they take for the end of a line, so whatever is written here has every such character
    escaped (``codec.encode_line``). Many fail on an empty line, too; white space before the next text is part of its line,
    and keeps a connection alive.
    """

    keep_alive = b" "

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._waiting = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        if b"\n" not in data:
            self._waiting += data
            return self._give_up() if len(self._waiting) > self._max_frame_bytes else []
        *lines, rest = (self.pop_rest() + data).split(b"\n")
        frames: list[Frame] = []
        for number, line in enumerate(lines):
            if len(line) > self._max_frame_bytes:
                left = b"\n".join([*lines[number:], rest])
                return [*frames, Frame(bytes_=left, error=self._too_long())]
            frames.append(_frame(line + b"\n"))
        self._waiting += rest
        return frames + self._give_up() if len(rest) > self._max_frame_bytes else frames

    def end(self) -> list[Frame]:
        rest = self.pop_rest()
        if not rest:
            return []
        frame = _frame(rest)
        frame.is_finished = False
        return [frame]

    def pop_rest(self) -> bytes:
        rest, self._waiting = bytes(self._waiting), bytearray()
        return rest

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        return frame.raw if payload is None else payload + b"\n"

    def _give_up(self) -> list[Frame]:
        return [Frame(bytes_=self.pop_rest(), error=self._too_long())]

    def _too_long(self) -> WireError:
        return WireError(f"expected a line of at most {self._max_frame_bytes} bytes, got more")


def _frame(line: bytes) -> Frame:
    return Frame(line.strip(_SPACE) or None, b"", line)
