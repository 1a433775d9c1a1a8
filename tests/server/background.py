"""A server in a thread of its own, for tests that are not async, and what can be sent to it byte by byte."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from .serving import Server, run_input


class Background:
    def __init__(self, port: int, server: Server) -> None:
        self.port = port
        self.server = server

    def exchange(self, data: bytes, *, half_close: bool = True, seconds: float = 10) -> bytes:
        """Sends bytes as they are, and reads until the server closes or nothing comes for a while."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            answer = bytearray()
            try:
                connection.sendall(data)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    answer += piece
            except (TimeoutError, ConnectionError):
                pass
            return bytes(answer)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, Any] | None = None
    ) -> tuple[int, bytes, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            try:
                if body is not None:
                    connection.send(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it was refused before it was read
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def still_serves(self) -> None:
        """A run goes through as if nothing had been."""
        status, body, _ = self.request("POST", "/agui", json.dumps(run_input(thread="still serves")).encode())
        assert status == 200, body
        last = [line for line in body.decode().splitlines() if line.startswith("data: ")][-1]
        assert json.loads(last[6:])["type"] == "RUN_FINISHED", last
        assert self.request("GET", "/healthz")[0] == 200


@contextmanager
def in_background(serve: Callable[[], AbstractAsyncContextManager[Server]]) -> Iterator[Background]:
    """Serves until left."""
    ready, leave = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def main() -> None:
        try:
            async with serve() as server:
                found.extend([Background(server.port, server), asyncio.get_running_loop()])
                ready.set()
                await leave.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="server under test")
    thread.start()
    ready.wait()
    assert found, "the server did not start"
    try:
        yield found[0]
    finally:
        found[1].call_soon_threadsafe(leave.set)
        thread.join()
