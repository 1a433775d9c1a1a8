"""A model that writes at the pace of real ones, and clients that read what a server makes of it, in one process.

Timers write the frames, and clients look at nothing but the stamps in what they read, so that one core drives many
streams. Every frame carries the time of its write, and streams are spread evenly over the pause between two frames.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from bench.many import Latencies
from callstream.testing import Finish, Text, Thought, ToolCall
from callstream.testing.provider import STAMP, NumberedFrames

What: TypeAlias = Literal["arguments", "text", "reasoning", "mixed"]
"""What a model writes. ``mixed``: runs that start and end, of seven parts text and three parts arguments."""
Maker: TypeAlias = Literal["gemini", "anthropic", "litellm"]
"""google-adk's class for the model; ``litellm`` asks a server that is compatible with OpenAI's."""
_WIRES: dict[Maker, str] = {"gemini": "gemini", "anthropic": "anthropic", "litellm": "openai_chat"}
_OPENINGS: dict[Maker, str] = {"gemini": "", "anthropic": '{"content": "', "litellm": '{"content":"'}
"""What a wire writes of a call's arguments before their first value."""
_MIXED_SECONDS = 5.0
"""Of a mixed run, before its tool runs and a word ends it."""
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STAMP = STAMP.encode()
_STAMPED = re.compile(rb"000\d{17}")
_RESULT = re.compile(rb'"functionResponse"|"function_response"|"tool_result"|"role": ?"tool"')
_LAST_CHUNK = b"0\r\n\r\n"
_GOLDEN_RATIO = 0.618033988749895


class Model:
    """Answers every request with one call, text or reasoning, which comes at that pace, for that many seconds.

    ``mixed`` answers end; what has the result of a call is answered with a word. ``written``: how many deltas it wrote.
    """

    def __init__(self, pace: float, seconds: float, what: What = "arguments", maker: Maker = "gemini") -> None:
        self.pause = 1 / pace
        deltas = int(seconds * pace)
        mixed = int(_MIXED_SECONDS * pace)
        texts = mixed * 7 // 10
        scripts: dict[What, Any] = {
            "arguments": [_arguments(deltas, maker)],
            "text": [Text(STAMP * deltas, size=len(STAMP))],
            "reasoning": [Thought(STAMP * deltas, size=len(STAMP))],
            "mixed": [Text(STAMP * texts, size=len(STAMP)), _arguments(mixed - texts, maker), Finish()],
        }
        self._frames = NumberedFrames(_WIRES[maker], scripts[what], "scripted")
        self._ends = NumberedFrames(_WIRES[maker], [Text("Done."), Finish()], "scripted")
        self._answers = 0
        self._writers: set[_Writer] = set()
        self.written = 0

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        """The base URL."""
        server = await asyncio.get_running_loop().create_server(lambda: _Writer(self), "127.0.0.1", 0, backlog=2048)
        host, port = server.sockets[0].getsockname()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.close()
            for writer in list(self._writers):
                writer.transport.abort()

    def next_answer(self, asked: bytes) -> tuple[Iterator[Any], float]:
        """The frames of one more answer, and how long to wait with the second."""
        self._answers += 1
        frames = self._ends if _RESULT.search(asked) else self._frames
        return frames.frames(self._answers), self._answers * _GOLDEN_RATIO % 1 * self.pause

    def came(self, writer: _Writer) -> None:
        self._writers.add(writer)

    def went(self, writer: _Writer) -> None:
        self._writers.discard(writer)


def _arguments(deltas: int, maker: Maker) -> ToolCall:
    """Every delta a stamp: Gemini cuts the value in pieces, the others the JSON text, whose beginning is filled up."""
    filling = " " * (-len(_OPENINGS[maker]) % len(STAMP))
    return ToolCall("write", {"content": filling + STAMP * deltas}, size=len(STAMP))


class _Writer(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._asked = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._model.came(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._model.went(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._asked += data
        head, found, body = self._asked.partition(b"\r\n\r\n")
        if not found:
            return
        length = _LENGTH.search(head)
        if len(body) < int(length[1]) if length else not body.endswith(b"0\r\n\r\n"):
            return
        self._asked = b""
        self._frames, phase = self._model.next_answer(body)
        self.transport.write(_HEAD)
        self._due = self._loop.time() + phase
        self._write()

    def _write(self) -> None:
        frame = next(self._frames, None)
        if frame is None:
            self.transport.write(_LAST_CHUNK)
            return
        if _STAMP in frame:
            frame = frame.replace(_STAMP, b"%020d" % time.monotonic_ns())
            self._model.written += 1
        self.transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        self._due += self._model.pause
        self._timer = self._loop.call_at(self._due, self._write)


class Clients:
    """Clients of a server at that address: how long the deltas took to them since ``since``, and the bytes on the wire.

    ``go_on``: where a run has ended, its client begins another.
    """

    def __init__(self, address: str, *, go_on: bool = False) -> None:
        self._where = urlsplit(address)
        self._goes_on = go_on
        self._beginning: set[asyncio.Task[None]] = set()
        self.found = Latencies()
        self.since = float("inf")
        self.wire_bytes = 0
        self.open: set[_Reader] = set()
        self._hearing: set[_Reader] = set()
        self._reading: set[_Reader] = set()
        self._news = asyncio.Event()

    async def add(self, run_id: str | None = None) -> None:
        """One more client, with a run of its own."""
        reader = _Reader(self)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: reader, self._where.hostname, self._where.port)
        message = {"id": uuid.uuid4().hex, "role": "user", "content": "Write."}
        given = {"threadId": uuid.uuid4().hex, "runId": run_id or uuid.uuid4().hex, "messages": [message], "tools": []}
        body = json.dumps({**given, "context": [], "state": {}, "forwardedProps": {}})
        headers = f"Host: {self._where.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        transport.write(f"POST /agui HTTP/1.1\r\n{headers}\r\n\r\n{body}".encode())

    async def follow(self, run_id: str) -> None:
        """One more client, that reads the records of a run."""
        reader = _Reader(self)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: reader, self._where.hostname, self._where.port)
        transport.write(f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: {self._where.netloc}\r\n\r\n".encode())

    async def wait(self, seconds: float, *, for_deltas: bool = True) -> None:
        """Until each of them has read a delta, or anything at all."""
        async with asyncio.timeout(seconds):
            while len(self._reading if for_deltas else self._hearing) < len(self.open):
                self._news.clear()
                await self._news.wait()

    def hear(self, reader: _Reader, *, has_delta: bool) -> None:
        (self._reading if has_delta else self._hearing).add(reader)
        self._news.set()

    def ended(self, reader: _Reader) -> None:
        """The answer that it reads is whole."""
        if self._goes_on:
            reader.transport.abort()
            self._beginning.add(task := asyncio.ensure_future(self.add()))
            task.add_done_callback(self._beginning.discard)

    def lost(self, reader: _Reader) -> None:
        for readers in (self.open, self._hearing, self._reading):
            readers.discard(reader)

    def leave(self) -> None:
        self._goes_on = False
        for reader in list(self.open):
            reader.transport.abort()


class _Reader(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._rest = b""
        self._has_heard = self._has_read = False
        self._newest = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._clients.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.lost(self)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if not self._has_heard:
            self._has_heard = True
            self._clients.hear(self, has_delta=False)
        if now >= self._clients.since:
            self._clients.wire_bytes += len(data)
        data = self._rest + data
        end = 0
        for stamp in _STAMPED.finditer(data):
            end = stamp.end()
            if not self._has_read:
                self._has_read = True
                self._clients.hear(self, has_delta=True)
            written = int(stamp[0])
            if (
                written > self._newest
            ):  # a server may repeat what it has sent, such as a message or call when it is whole
                self._newest = written
                if now >= self._clients.since:
                    self._clients.found.add(now - written)
        self._rest = data[max(end, len(data) - 19) :]
        if self._has_read and data.endswith(_LAST_CHUNK):
            self._clients.ended(self)
