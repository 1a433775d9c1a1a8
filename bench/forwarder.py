"""The least that a Python server between a model and a client can do: asyncio protocols that pass the model's bytes on."""

from __future__ import annotations

import asyncio
import socket
from typing import cast
from urllib.parse import urlsplit


class _Downstream(asyncio.Protocol):
    """A client. It gets the bytes of the model's answer as they are, head included."""

    def __init__(self, base_url: str) -> None:
        self._where = urlsplit(base_url)
        self._asking: asyncio.Task[None] | None = None
        self._upstream: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upstream is not None:
            self._upstream.close()

    async def _ask(self) -> None:
        loop, where = asyncio.get_running_loop(), self._where
        self._upstream, _ = await loop.create_connection(lambda: _Upstream(self.transport), where.hostname, where.port)
        self._upstream.write(f"POST / HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-length: 2\r\n\r\n{{}}".encode())


class _Upstream(asyncio.Protocol):
    """The model."""

    def __init__(self, downstream: asyncio.Transport) -> None:
        self._downstream = downstream

    def data_received(self, data: bytes) -> None:
        self._downstream.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._downstream.close()


async def forward(listening: socket.socket, base_url: str) -> None:
    """Serves until it is cancelled."""
    server = await asyncio.get_running_loop().create_server(lambda: _Downstream(base_url), sock=listening)
    await server.serve_forever()
