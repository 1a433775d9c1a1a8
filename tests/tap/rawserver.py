"""A server that answers each request with bytes as they are given, for what no HTTP server would send."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
RESET = b"<reset>"
CLOSE = b"<close>"
WAIT = b"<wait>"


class RawServer:
    """The pieces of an answer are sent one by one, with a ``pause`` of seconds after each. ``RESET``, ``CLOSE`` and
    ``WAIT`` (for ever) among them are done. With ``greets`` it answers before it is asked.
    """

    def __init__(
        self, *answers: Sequence[bytes], pause: float = 0.0, reads_bodies: bool = True, greets: bool = False
    ) -> None:
        self._pause = pause
        self._reads_bodies = reads_bodies
        self._greets = greets
        self.connections = 0
        self.requests: list[bytes] = []
        self.asked = asyncio.Event()
        """The head of a request has come."""
        self.left = asyncio.Event()
        """A client has closed its connection."""
        self._answers = list(answers)
        self.url = ""

    @asynccontextmanager
    async def listen(self, context: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        self.url = f"{'http' if context is None else 'https'}://localhost:{port}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self._greets:
                await self._answer(self._answers[0], reader, writer)
                return
            while head := await self._read_head(reader):
                self.asked.set()
                self.requests.append(head + (await self._read_body(head, reader) if self._reads_bodies else b""))
                answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
                if not await self._answer(answer, reader, writer):
                    return
            self.left.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    async def _read_head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""

    async def _read_body(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        if b"\r\ntransfer-encoding: chunked" in head.lower():
            return await reader.readuntil(b"0\r\n\r\n")
        length = _LENGTH.search(head)
        return await reader.readexactly(int(length[1]) if length else 0)

    async def _answer(
        self, answer: Sequence[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        for piece in answer:
            if piece == RESET:
                opened = writer.get_extra_info("socket")
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            if piece == CLOSE:
                return False
            if piece == WAIT:
                await reader.read()
                self.left.set()
                return False
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(self._pause)
        return True
