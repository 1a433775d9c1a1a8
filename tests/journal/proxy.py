"""What stands between a journal and its PostgreSQL server, and can lose answers, cut connections, or fall silent."""

from __future__ import annotations

import asyncio
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from callstream.journal.postgres import address


class _Cut(Exception):
    pass


class Proxy:
    """Stands between a journal and the server. ``lose`` counts down the answers to commands; the one at 0 is lost, and
    its connection with it. While it ``is_silent`` nothing passes, and nobody is told.
    """

    def __init__(self, url: str) -> None:
        self._server_url = url
        self.lose: int | None = None
        self.lost = 0
        self.is_silent = False
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        port = self._port
        schema = address(self._server_url).schema
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&schema={schema}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """The server is there again, at the same address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """The server is unavailable: connections are cut, new ones are refused."""
        self._server.close()
        self.cut()
        await asyncio.sleep(0.05)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await connect_upstream(self._server_url)
        self._writers |= {writer, upstream_writer}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, upstream_writer, answers=False))
                tasks.create_task(self._pass_on(upstream_reader, writer, answers=True))
        except* (ConnectionError, _Cut):
            pass
        finally:
            self._writers -= {writer, upstream_writer}
            writer.transport.abort()
            upstream_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await reader.read(1 << 20):
            if answers and self.lose is not None and b"SELECT 1\0" in data:  # the end of an answer of one row
                self.lose -= 1
                if self.lose == 0:
                    self.lose = None
                    self.lost += 1
                    raise _Cut
            if not self.is_silent:
                writer.write(data)
                await writer.drain()
        raise _Cut


async def connect_upstream(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    folder = dict(parse_qsl(parts.query)).get("host")
    if folder is not None:
        return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{parts.port or 5432}")
    return await asyncio.open_connection(parts.hostname, parts.port or 5432)
