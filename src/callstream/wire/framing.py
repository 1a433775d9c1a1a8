"""How a response body is cut into frames, once, byte for byte.

A frame is one unit of what a server sends: a server-sent event with its blank line, or an element of a JSON array with the
separator before it. The frames concatenated are the body, so code that passes a response on can forward, leave out or
rewrite a frame and leave every other byte alone. What a frame holds is for the decoder to judge.

Laws of every framing: chunk boundaries mean nothing; every byte is searched once; the bytes that wait for the end of a
frame are bounded. Bytes that cannot be cut come as a last frame, with the error and everything that was not cut.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from itertools import chain
from typing import ClassVar

import msgspec

from callstream.codec import outline
from callstream.errors import WireError

BOM = b"\xef\xbb\xbf"
"""The byte order mark, which may come before anything else."""
MAX_FRAME_BYTES = 64 * 1024 * 1024


class Frame(msgspec.Struct, gc=False):
    """``payload`` is what the decoder reads, None where there is nothing to read.

    ``bytes_`` are the frame's bytes, None for a plain event: most frames are read and never written, so the bytes of an
    event made of nothing but a name, one line of data and a blank line are put together on demand. ``is_finished`` is
    false for the rest at the end of a body, which may be cut off anywhere. ``text``, where text is joined: for a frame
    that holds nothing but text, the passage that it belongs to and the text.
    """

    payload: bytes | None = None
    event: bytes = b""
    bytes_: bytes | None = None
    line_end: bytes = b"\n"
    is_finished: bool = True
    error: WireError | None = None
    text: tuple[object, str] | None = None

    @property
    def raw(self) -> bytes:
        return self.bytes_ if self.bytes_ is not None else plain_event(self.event, self.payload or b"", self.line_end)


def plain_event(name: bytes, data: bytes, line_end: bytes = b"\n") -> bytes:
    """A server-sent event with one line of data, and with a name unless that is empty."""
    named = b"event: " + name + line_end if name else b""
    return named + b"data: " + data + line_end + line_end


class Framing(ABC):
    """Cuts one response body, and writes frames of it.

    ``keep_alive`` is what may be sent between two frames so that the connection does not fall silent; empty where the
    readers of this framing accept nothing.
    """

    keep_alive: ClassVar[bytes] = b""
    _most: ClassVar[int] = MAX_FRAME_BYTES
    _piece: ClassVar[str] = "a frame"
    """What errors call a frame."""

    def __init__(self, *, max_frame_bytes: int | None = None) -> None:
        self._max_frame_bytes = self._most if max_frame_bytes is None else max_frame_bytes
        self._waiting = bytearray()

    @abstractmethod
    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes finish."""

    def end(self) -> list[Frame]:
        """The frames left at the end of the body, if any. The last may be cut off."""
        rest = self.pop_rest()
        return [Frame(bytes_=rest, is_finished=False)] if rest else []

    def pop_rest(self) -> bytes:
        """The bytes still waiting for the end of their frame, for a reader that stops here."""
        rest, self._waiting = bytes(self._waiting), bytearray()
        return rest

    @abstractmethod
    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        """The bytes of a frame that leaves, with another payload if one is given. To be called in the order of leaving."""

    def _give_up(self) -> list[Frame]:
        """The bytes that wait are too many for one frame."""
        return [Frame(bytes_=self.pop_rest(), error=self._too_long())]

    def _too_long(self) -> WireError:
        return WireError(f"expected {self._piece} of at most {self._max_frame_bytes} bytes, got more")


# Two line ends in a row. A LF may be the end of a CRLF; CRLF alone is one line end, so CR LF is not a blank line.
_BLANK_LINE = re.compile(rb"\n(?:\r\n|\n|\r)|\r\r\n?")
_LONGEST_BLANK_LINE = 4
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r\n", b"\n\r", b"\r\r")
_PLAIN = re.compile(rb"data: ([^\n]++)\n\n")
_PLAIN_CRLF = re.compile(rb"data: ([^\r]++)\r\n\r\n")
_NAMED = re.compile(rb"event: ([^\n]++)\ndata: ([^\n]++)\n\n")
_LF, _CR = b"\n\r"  # searching bytes for a number is ten times as fast as for bytes of length one (CPython 3.11)
_LOOKS_LIKE_A_FIELD = re.compile(rb"\s*(?::|(?:data|event|id|retry)\s*(?::|$)|[\w-]{1,40}:)")
_ERROR = re.compile(rb'\{\s*"error"\s*:')
_KNOWN_FIELDS = (b"", b"data", b"event", b"id", b"retry")


class SseFraming(Framing):
    """Server-sent events, by section 9.2 of the HTML standard.

    Lines end in LF, CRLF or CR; a byte order mark at the very beginning is skipped; comments and unknown fields are
    ignored; several data lines make one payload with LF between them. A comment belongs to the event that follows it, or
    is a frame of its own where a blank line follows. Beyond the standard: at the end of the body an event without its
    blank line still counts, because servers leave it out, and a body that is not server-sent events at all is an error
    instead of silence. So is a line that begins with a brace: a server that fails in the middle of a stream may write its
    error as bare JSON.

    An empty line keeps a connection alive. A comment would do by the standard, but google-genai fails on one.
    """

    keep_alive = b"\n"
    _piece = "an event"

    def __init__(self, *, max_frame_bytes: int | None = None) -> None:
        super().__init__(max_frame_bytes=max_frame_bytes)
        self._waiting_size = 0  # without line ends
        self._looked_at = 0  # so many of the waiting bytes hold no end of a frame
        self._at_start = True
        self._any_event = False
        self._unknown: bytes | None = None  # the first line with an unknown field, in case no event ever comes

    def feed(self, data: bytes) -> list[Frame]:
        looked_at = 0
        if self._waiting:
            # A long event in many small pieces is searched only where it has grown.
            can_end = _LF in data or _CR in data or self._waiting[-1] == _CR
            self._waiting += data
            if not can_end or _BLANK_LINE.search(self._waiting, self._looked_at) is None:
                return self._wait_on(data)
            looked_at = self._looked_at
            data = self.pop_rest()
        frames, rest = self._cut(data, looked_at)
        if len(data) > self._max_frame_bytes:
            frames, rest = self._bounded(frames, rest)
        if frames and frames[-1].error is not None:
            frames[-1].bytes_ = frames[-1].raw + rest
        elif rest:
            self._waiting += rest
            self._looked_at = 0
            frames += self._wait_on(rest)
        return frames

    def end(self) -> list[Frame]:
        rest = self.pop_rest()
        frames: list[Frame] = []
        if rest:
            frame = self._frame(rest)
            frame.is_finished = rest.endswith(_BLANK_LINES)
            frames.append(frame)
        if self._unknown is not None and not self._any_event and not (frames and frames[-1].error):
            frames.append(Frame(bytes_=b"", error=_not_events(self._unknown)))
        return frames

    def pop_rest(self) -> bytes:
        self._waiting_size = self._looked_at = 0
        return super().pop_rest()

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        if payload is None:
            return frame.raw
        if frame.bytes_ is None:
            return plain_event(frame.event, payload, frame.line_end)
        return _with_data(frame.bytes_, payload)

    def _wait_on(self, data: bytes) -> list[Frame]:
        """Keeps waiting for the end of the event, which is not in these bytes; gives up an event that is too long."""
        self._looked_at = max(self._looked_at, len(self._waiting) - _LONGEST_BLANK_LINE + 1)
        self._waiting_size += _size(data)
        return [] if self._waiting_size <= self._max_frame_bytes else self._give_up()

    def _cut(self, data: bytes, looked_at: int) -> tuple[list[Frame], bytes]:
        """The frames of the data, and the rest. No blank line ends before ``looked_at``."""
        if self._any_event and (plain := _plain_events(data)) is not None:
            return plain
        frames: list[Frame] = []
        start = 0
        for found in _BLANK_LINE.finditer(data, looked_at):
            end = found.end()
            if end == len(data) and data.endswith(b"\r"):
                break  # a LF that comes next would belong to it
            frames.append(self._frame(data[start:end]))
            start = end
            if frames[-1].error is not None:
                break
        return frames, data[start:]

    def _bounded(self, frames: list[Frame], rest: bytes) -> tuple[list[Frame], bytes]:
        """The frames up to the first that is too long, which gets the error; all after it becomes part of the rest."""
        limit = self._max_frame_bytes
        for number, frame in enumerate(frames, 1):
            if _size(frame.raw) > limit:
                frame.error = self._too_long()
                return frames[:number], b"".join(later.raw for later in frames[number:]) + rest
        return frames, rest

    def _frame(self, block: bytes) -> Frame:
        """An event, or the rest at the end of a body, read line by line."""
        shown = block.removeprefix(BOM) if self._at_start else block
        self._at_start = False
        event = b""
        payload: list[bytes] = []
        for line in shown.splitlines():
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                payload.append(value)
            elif field == b"event":
                event = value
            elif line.startswith(b"{") or not (self._any_event or _LOOKS_LIKE_A_FIELD.match(line) or not line):
                return Frame(bytes_=block, error=_not_events(line, in_stream=self._any_event))
            elif self._unknown is None and field not in _KNOWN_FIELDS:
                self._unknown = line
        if not payload:
            return Frame(bytes_=block)
        self._any_event = True
        return Frame(b"\n".join(payload), event, block)


def _plain_events(data: bytes) -> tuple[list[Frame], bytes] | None:
    """The frames of data in which every event is plain, and the rest; None if any event is not.

    Nearly every stream is like this, and a regular expression that finds all events at once is several times as fast as a
    loop over blocks or lines (bench.decode). It may skip bytes that are not a plain event; so the lengths of its matches
    are added up, and if they reach to the end of the last blank line, nothing was skipped.
    """
    if _CR in data:
        found = _PLAIN_CRLF.findall(data)
        end = data.rfind(b"\r\n\r\n") + 4
        if sum(map(len, found)) + 10 * len(found) != end or data.count(b"\n", 0, end) != 2 * len(found):
            return None
        if _BLANK_LINE.search(data, end) is not None:
            return None
        return [Frame(payload, b"", None, b"\r\n") for payload in found], data[end:]
    end = data.rfind(b"\n\n") + 2
    if data[:7] == b"event: ":
        named = _NAMED.findall(data)
        if sum(map(len, chain.from_iterable(named))) + 16 * len(named) != end:
            return None
        return [Frame(payload, event) for event, payload in named], data[end:]
    found = _PLAIN.findall(data)
    if sum(map(len, found)) + 8 * len(found) != end:
        return None
    return [Frame(payload) for payload in found], data[end:]


def _size(data: bytes) -> int:
    return len(data) - data.count(b"\n") - data.count(b"\r")


def _not_events(line: bytes, *, in_stream: bool = False) -> WireError:
    """In the middle of a stream the line may be model text, split off by a line break: it must not get into logs."""
    is_text = in_stream and not _ERROR.match(line)
    return WireError(f"expected server-sent events, got {outline(line) if is_text else repr(line[:200])}")


def _with_data(raw: bytes, payload: bytes) -> bytes:
    """The event with other data, and with an end if it had none. Its other fields, comments and line ends stay."""
    lines = []
    ending = b"\n"
    for line in raw.splitlines(keepends=True):
        bare = line.rstrip(b"\r\n")
        ending = line[len(bare) :] or ending
        if not bare.removeprefix(BOM).startswith(b"data:"):
            lines.append(line)
        elif payload:
            lines.append(b"data: " + payload + ending)
            payload = b""
    written = b"".join(lines)
    return written if written.endswith(_BLANK_LINES) else written + ending


# -- a JSON array: what Gemini streams when it is not asked for server-sent events -------------------------------------

_SPACE = b" \t\r\n"
_MARK = re.compile(rb'["\\{}\[\]]')


class JsonArrayFraming(Framing):
    """Cuts out elements by their brackets, ignoring those in strings.

    A string or bracket where no element can be is an error; an array may only be followed by another one. White space
    keeps a connection alive.
    """

    keep_alive = b"\n"
    _piece = "an array element"

    def __init__(self, *, max_frame_bytes: int | None = None) -> None:
        super().__init__(max_frame_bytes=max_frame_bytes)
        self._looked_at = 0
        self._element = -1  # where the waiting element begins
        self._depth = 0  # 1 inside the array, 2 and more inside an element
        self._in_string = False
        self._has_written = False  # the array's opening bracket has left

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
            frames += self._give_up()
        return frames

    def pop_rest(self) -> bytes:
        self._looked_at, self._element = 0, -1
        return super().pop_rest()

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        """Frames before this one may have been left out, so the separator is adapted to those that have left."""
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
        """Looks at the bytes not looked at so far. Returns where the frame after the last complete one begins."""
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


class SseOrArrayFraming(Framing):
    """Server-sent events or a JSON array: the first character of the body decides."""

    keep_alive = b"\n"
    _framing: Framing | None = None

    def feed(self, data: bytes) -> list[Frame]:
        if self._framing is not None:
            return self._framing.feed(data)
        self._waiting += data
        shown = self._waiting.removeprefix(BOM).lstrip(_SPACE)
        if not shown or BOM.startswith(self._waiting):
            return []
        return self._decide(JsonArrayFraming() if shown.startswith(b"[") else SseFraming())

    def end(self) -> list[Frame]:
        if self._framing is None:
            return [*self._decide(SseFraming()), *self.end()]
        return self._framing.end()

    def pop_rest(self) -> bytes:
        return super().pop_rest() if self._framing is None else self._framing.pop_rest()

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        assert self._framing is not None, "a frame was read before it is written"
        return self._framing.write(frame, payload)

    def _decide(self, framing: Framing) -> list[Frame]:
        body = self.pop_rest()
        self._framing = framing
        return framing.feed(body)


# -- JSON lines: what Ollama streams -----------------------------------------------------------------------------------


class JsonLinesFraming(Framing):
    """One JSON text per line, each line ended by LF or CRLF.

    Readers differ in what else they take for the end of a line, so every such character is escaped in what is written here
    (``codec.encode_line``). Many also fail on an empty line; white space before the next text is part of its line, and
    keeps a connection alive.
    """

    keep_alive = b" "
    _piece = "a line"

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

    def write(self, frame: Frame, payload: bytes | None = None) -> bytes:
        return frame.raw if payload is None else payload + b"\n"


def _frame(line: bytes) -> Frame:
    return Frame(line.strip(_SPACE) or None, b"", line)
