"""What comes when nothing was asked, and what is closed, is never taken for an answer."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import anthropic
import httpx
import httpx2
import pytest

from callstream import Callstream
from tests.tap.certificates import certificate
from tests.tap.loops import LOOPS, run_on

LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
FRAMINGS = {
    "counted": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%d!",
    "empty": b"HTTP/1.1 200 OK\r\nX-Number: %d\r\nContent-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\nX-Number: %d\r\n\r\n",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n%d!\r\n0\r\n\r\n",
}
FORGED = b"HTTP/1.1 200 OK\r\nX-Number: 9\r\nContent-Length: 2\r\n\r\n9!"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class NumberingServer:
    """Answers each request with its number, in a thread, so that it works while the program's event loop does not.

    ``disturb`` sends bytes on the connections that are open, or closes them: when it returns, the client's socket has it.
    """

    def __init__(self, answer: bytes, context: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.url = ""
        self._answer = answer
        self._context = context
        self._answered = 0
        self._open: list[socket.socket] = []

    @contextmanager
    def listen(self) -> Iterator[NumberingServer]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            scheme = "http" if self._context is None else "https"
            self.url = f"{scheme}://localhost:{listening.getsockname()[1]}"
            threading.Thread(target=self._accept, args=[listening], daemon=True).start()
            try:
                yield self
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                self.disturb(None)

    def disturb(self, data: bytes | None) -> None:
        for connection in self._open:
            try:
                if data is not None:
                    connection.sendall(data)
                else:
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client has closed it
        if data is None:
            self._open.clear()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        self._open.append(connection)
        with closing(connection):
            came = b""
            while True:
                try:
                    data = connection.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                came += data
                head, end, body = came.partition(b"\r\n\r\n")
                length = _LENGTH.search(head)
                if end and len(body) >= (int(length[1]) if length else 0):
                    came = b""
                    self._answered += 1
                    connection.sendall(self._answer % self._answered)


def number_in(answer: Any, content: bytes) -> int:
    return int(answer.headers.get("X-Number") or content[:1])


async def ask(client: Any, url: str) -> int:
    answer = await client.post(url, content=b"{}")
    return number_in(answer, answer.content)


def tapped(cs: Callstream, library: ModuleType, **kwargs: Any) -> Any:
    return (cs.httpx_client if library is httpx else cs.httpx2_client)(**kwargs)


@LOOPS
@LIBRARIES
@pytest.mark.parametrize("disturbance", [FORGED, b"\r\n", b"x", None], ids=["answer", "line", "byte", "close"])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_program_that_computes_gets_no_other_answer(
    loop: str, library: ModuleType, framing: str, disturbance: bytes | None
) -> None:
    """The event loop has no turn between what comes and the next request, so only the socket knows."""
    with NumberingServer(FRAMINGS[framing]).listen() as server:

        async def program() -> None:
            async with Callstream() as cs, tapped(cs, library) as client:
                for number in (1, 2, 3):
                    assert await ask(client, server.url) == number
                    server.disturb(disturbance)

        run_on(loop, program)
        assert server.connections == 3


@LOOPS
@pytest.mark.parametrize("framing", FRAMINGS)
def test_what_comes_while_the_reader_is_busy_closes_the_connection(loop: str, framing: str) -> None:
    with NumberingServer(FRAMINGS[framing]).listen() as server:

        async def program() -> None:
            async with Callstream() as cs, cs.httpx_client() as client:
                for number in (1, 2, 3):
                    async with client.stream("POST", server.url, content=b"{}") as answer:
                        content = b""
                        async for data in answer.aiter_raw():
                            content += data
                            server.disturb(FORGED)
                            await arrival(answer)
                        if not content:
                            server.disturb(FORGED)
                            await arrival(answer)
                    assert number_in(answer, content) == number

        run_on(loop, program)
        assert server.connections == 3


@LOOPS
@pytest.mark.parametrize("framing", FRAMINGS)
def test_what_comes_before_the_body_is_read_closes_the_connection(loop: str, framing: str) -> None:
    with NumberingServer(FRAMINGS[framing]).listen() as server:

        async def program() -> None:
            async with Callstream() as cs, cs.httpx_client() as client:
                for number in (1, 2, 3):
                    async with client.stream("POST", server.url, content=b"{}") as answer:
                        server.disturb(FORGED)
                        await arrival(answer)
                        content = await answer.aread()
                    assert number_in(answer, content) == number

        run_on(loop, program)
        assert server.connections == 3


async def arrival(answer: Any) -> None:
    """The event loop has read what the socket has."""
    descriptor = answer.extensions["network_stream"].get_extra_info("socket").fileno()
    for _ in range(1000):
        await asyncio.sleep(0)
        if not select.select([descriptor], [], [], 0)[0]:
            return


@LOOPS
def test_tls(loop: str, tmp_path: Path) -> None:
    file = certificate(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(file)
    with NumberingServer(FRAMINGS["counted"], serving).listen() as server:

        async def program() -> None:
            async with Callstream() as cs:
                async with cs.httpx_client(verify=ssl.create_default_context(cafile=file)) as client:
                    for number in (1, 2, 3):
                        assert await ask(client, server.url) == number
                        server.disturb(FORGED if number == 1 else None)

        run_on(loop, program)
        assert server.connections == 3


@LOOPS
def test_an_sdk_gets_the_answers_to_its_requests(loop: str) -> None:
    """A gateway sends what nothing asked for, some time after each of its answers."""
    message = (
        b'{"id":"msg","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"%d"}],'
        b'"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}'
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    forged = message % 9
    with NumberingServer(head % len(forged) + message).listen() as server:

        async def program() -> None:
            async with Callstream() as cs:
                sdk = anthropic.AsyncAnthropic(
                    base_url=server.url, api_key="none", http_client=cs.http_client(), max_retries=0
                )
                async with sdk:
                    for number in (1, 2, 3, 4):
                        answer = await sdk.messages.create(
                            model="claude", max_tokens=100, messages=[{"role": "user", "content": "Hi"}]
                        )
                        assert answer.content[0].to_dict()["text"] == str(number)
                        if number % 2:
                            server.disturb(head % len(forged) + forged)
                        else:
                            server.disturb(None)

        run_on(loop, program)
