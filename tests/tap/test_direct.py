"""The tap's own connections do what those of httpx and httpx2 do, in what they send, read, keep and raise."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest

from callstream import Callstream
from callstream.tap.http1 import DirectTransport
from tests.tap.certificates import certificate
from tests.tap.rawserver import CLOSE, RESET, WAIT, RawServer

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
COUNTED = b"HTTP/1.1 200 Fine\r\nX-Case: Kept\r\nContent-Length: 5\r\n\r\n"
LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


def tapped(cs: Callstream, library: ModuleType, **kwargs: Any) -> Any:
    return (cs.httpx_client if library is httpx else cs.httpx2_client)(**kwargs)


async def outcome(client: Any, url: str, **kwargs: Any) -> Any:
    """What a program gets of an answer, or of its failure."""
    try:
        async with client.stream("POST", url, content=b"{}", **kwargs) as answer:
            body = b"".join([data async for data in answer.aiter_raw()])
            head = answer.status_code, answer.reason_phrase, answer.http_version
            return *head, answer.headers.raw, body
    except (httpx.HTTPError, httpx2.HTTPError) as error:
        return type(error)


async def outcomes(library: ModuleType, answer: Sequence[bytes], **kwargs: Any) -> tuple[Any, Any]:
    """With the library's own connections, and with the tap's."""
    async with RawServer(answer).listen() as server, Callstream() as cs:
        async with library.AsyncClient(**kwargs) as bare, tapped(cs, library, **kwargs) as client:
            return await outcome(bare, server.url), await outcome(client, server.url)


ANSWERS = {
    "chunked": [CHUNKED + b"5\r\nTides\r\n0\r\n\r\n"],
    "chunked, byte by byte": [bytes([each]) for each in CHUNKED + b"5\r\nTides\r\n0\r\n\r\n"],
    "extensions and trailers": [CHUNKED, b'A;name="x y"\r\nTides come.\r\n'[:-3], b"\r\n0\r\nX-Sum: 1\r\n\r\n"],
    "several chunks in one read": [CHUNKED + b"2\r\nTi\r\n3\r\ndes\r\n0\r\n\r\n"],
    "counted": [COUNTED, b"Ti", b"des"],
    "until close": [b"HTTP/1.1 200 OK\r\n\r\nTides", CLOSE],
    "HTTP/1.0": [b"HTTP/1.0 200 OK\r\n\r\nTides", CLOSE],
    "no reason": [b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok"],
    "nothing": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "informational": [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", COUNTED + b"Tides"],
    "error": [b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\nRetry-After: 1\r\n\r\n{}"],
    "coded": [b"HTTP/1.1 200 OK\r\nContent-Encoding: made-up\r\nContent-Length: 5\r\n\r\nTides"],
    "both framings": [CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n") + b"5\r\nTides\r\n0\r\n\r\n"],
    "no answer": [CLOSE],
    "half a head": [b"HTTP/1.1 200 OK\r\nConte", CLOSE],
    "not HTTP": [b"220 smtp.example.org ESMTP\r\n\r\n"],
    "a head without end": [b"HTTP/1.1 200 OK\r\nX: ", b"x" * 200_000, WAIT],
    "reset before the head": [RESET],
    "reset in the body": [CHUNKED + b"5\r\nTides\r\n", RESET],
    "chunked, cut": [CHUNKED + b"5\r\nTid", CLOSE],
    "chunked, without end": [CHUNKED + b"5\r\nTides\r\n", CLOSE],
    "counted, cut": [COUNTED + b"Tid", CLOSE],
    "no size": [CHUNKED + b"Tides\r\n0\r\n\r\n"],
    "negative size": [CHUNKED + b"-5\r\nTides\r\n0\r\n\r\n"],
    "wrong end of a chunk": [CHUNKED + b"5\r\nTidesXX0\r\n\r\n"],
    "two lengths": [COUNTED.replace(b"\r\n\r\n", b"\r\nContent-Length: 6\r\n\r\n") + b"Tides"],
    "unknown framing": [CHUNKED.replace(b"chunked", b"zipped") + b"Tides", CLOSE],
}


@LIBRARIES
@pytest.mark.parametrize("answer", ANSWERS.items(), ids=lambda case: case[0])
async def test_same_answers_and_errors_as_the_library(library: ModuleType, answer: tuple[str, Sequence[bytes]]) -> None:
    bare, ours = await outcomes(library, answer[1])
    assert ours == bare


async def taken(library: ModuleType, url: str, delays: Iterator[float | None]) -> Any:
    """What a reader gets of an answer who takes what is announced, after a while, or (None) at once."""
    transport = DirectTransport(library, {})
    got: list[bytes] = []

    def take() -> None:
        got.append(answer.stream.pop())

    def announce() -> None:
        delay = next(delays)
        if delay is None:
            take()
        else:
            asyncio.get_running_loop().call_later(delay, take)

    try:
        answer = await transport.handle_async_request(library.Request("POST", url, content=b"{}"))
        answer.stream.announce_to(announce)
        async for data in answer.stream:
            got.append(data)
            await asyncio.sleep(0)
        return b"".join(got)
    except (httpx.HTTPError, httpx2.HTTPError) as error:
        return type(error)
    finally:
        await transport.aclose()


@LIBRARIES
@pytest.mark.parametrize("delays", [[None], [0.0], [0.02], [None, 0.01, 0.0]], ids=["at once", "soon", "late", "mixed"])
@pytest.mark.parametrize("answer", ANSWERS.items(), ids=lambda case: case[0])
async def test_the_same_where_content_is_announced(
    library: ModuleType, answer: tuple[str, Sequence[bytes]], delays: list[float | None]
) -> None:
    async with RawServer(answer[1]).listen() as server, library.AsyncClient() as bare:
        found = await outcome(bare, server.url)
        expected = found[-1] if isinstance(found, tuple) else found
        assert await taken(library, server.url, cycle(delays)) == expected


@pytest.mark.slow
async def test_what_is_taken_counts_for_the_time_limit() -> None:
    """A reader that is never woken is not silent; one to whom nothing comes is."""
    pieces = [CHUNKED, *[b"5\r\nTides\r\n"] * 13, WAIT]
    async with RawServer(pieces, pause=0.1).listen() as server:
        transport = DirectTransport(httpx, {})
        asked = httpx.Request("POST", server.url, content=b"{}", extensions={"timeout": {"read": 1.0}})
        answer = await transport.handle_async_request(asked)
        got: list[bytes] = []
        answer.stream.announce_to(lambda: got.append(answer.stream.pop()))
        with pytest.raises(httpx.ReadTimeout):
            got += [data async for data in answer.stream]
        await transport.aclose()
    assert b"".join(got) == b"Tides" * 13


async def test_what_waits_to_be_taken_is_no_silence() -> None:
    """The reader is slow, not the provider."""
    async with RawServer([CHUNKED, b"5\r\nTides\r\n", WAIT], pause=0.05).listen() as server:
        transport = DirectTransport(httpx, {})
        asked = httpx.Request("POST", server.url, content=b"{}", extensions={"timeout": {"read": 0.2}})
        answer = await transport.handle_async_request(asked)
        answer.stream.announce_to(lambda: None)
        reading = asyncio.ensure_future(anext(aiter(answer.stream), None))
        await asyncio.sleep(0.6)
        assert not reading.done()
        assert answer.stream.pop() == b"Tides"
        with pytest.raises(httpx.ReadTimeout):
            await reading
        await transport.aclose()


@LIBRARIES
async def test_where_an_answer_comes_from(library: ModuleType) -> None:
    async with RawServer([COUNTED + b"Tides"]).listen() as server, Callstream() as cs, tapped(cs, library) as client:
        async with client.stream("POST", server.url, content=b"{}") as answer:
            network = answer.extensions["network_stream"]
            assert network.get_extra_info("server_addr")[1] == int(server.url.rpartition(":")[2])
            assert network.get_extra_info("client_addr") == network.get_extra_info("socket").getsockname()


@LIBRARIES
async def test_silence_is_a_read_timeout(library: ModuleType) -> None:
    for answer in ([WAIT], [CHUNKED + b"5\r\nTides\r\n", WAIT]):
        bare, ours = await outcomes(library, answer, timeout=library.Timeout(5, read=0.05))
        assert bare is ours is library.ReadTimeout


@LIBRARIES
async def test_a_timeout_is_of_each_read(library: ModuleType) -> None:
    pieces = [CHUNKED, *[b"5\r\nTides\r\n"] * 3, b"0\r\n\r\n"]
    async with RawServer(pieces).listen() as server, Callstream() as cs:
        async with tapped(cs, library, timeout=library.Timeout(60, read=30)) as client:
            answers = [await client.post(server.url, content=b"{}") for _ in range(2)]
    assert {answer.content for answer in answers} == {b"TidesTidesTides"}
    assert server.connections == 1


@LIBRARIES
async def test_a_timeout_is_of_each_request(library: ModuleType) -> None:
    """A connection that is used again does not keep the last request's."""
    server = RawServer([COUNTED + b"Tides"], [CHUNKED, WAIT])
    async with server.listen(), Callstream() as cs, tapped(cs, library) as client:
        async with asyncio.timeout(30):
            assert (await outcome(client, server.url, timeout=library.Timeout(5, read=60)))[-1] == b"Tides"
            assert await outcome(client, server.url, timeout=library.Timeout(5, read=0.05)) is library.ReadTimeout
    assert server.connections == 1


@LIBRARIES
async def test_a_flood_of_provisional_answers_leaves_the_event_loop_to_others(library: ModuleType) -> None:
    flood = [b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000 + COUNTED + b"Tides"]
    async with RawServer(flood).listen() as server, Callstream() as cs, tapped(cs, library) as client:
        waiting = asyncio.create_task(outcome(client, server.url))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
    assert waiting.result()[-1] == b"Tides"
    assert turns > 2000


@LIBRARIES
async def test_a_body_that_has_to_be_awaited_comes_after_its_head(library: ModuleType) -> None:
    """As with the library's own connections: nothing can answer a request that is not on the wire yet."""
    server = RawServer([COUNTED + b"Tides"])

    async def body() -> Any:
        await asyncio.wait_for(server.asked.wait(), 5)
        yield b"{}"

    async with server.listen(), Callstream() as cs, tapped(cs, library) as client:
        answer = await client.post(server.url, content=body(), headers={"Content-Length": "2"})
    assert answer.content == b"Tides"


@LIBRARIES
async def test_nobody_listens(library: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    async with Callstream() as cs, tapped(cs, library) as client:
        for url in (f"http://127.0.0.1:{port}", f"http://localhost:{port}", "http://nowhere.invalid", "http://a..b"):
            assert await outcome(client, url) is library.ConnectError
        with pytest.raises(library.UnsupportedProtocol):
            await client.get("gopher://localhost")


@LIBRARIES
async def test_a_request_that_cannot_be_sent(library: ModuleType) -> None:
    async with RawServer([COUNTED + b"Tides"]).listen() as server, Callstream() as cs:
        async with library.AsyncClient() as bare, tapped(cs, library) as client:
            headers = {"X-Bad": b"a\r\nb"}
            assert await outcome(bare, server.url, headers=headers) is library.LocalProtocolError
            assert await outcome(client, server.url, headers=headers) is library.LocalProtocolError
            # Here the library lets h11's own error through.
            assert await outcome(client, server.url, headers={"Content-Length": "7"}) is library.LocalProtocolError
            assert (await outcome(client, server.url))[-1] == b"Tides"


@LIBRARIES
async def test_connections_are_used_again_only_where_that_is_safe(library: ModuleType) -> None:
    closing = COUNTED.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n") + b"Tides"
    for answer, connections in {
        COUNTED + b"Tides": 1,
        CHUNKED + b"5\r\nTides\r\n0\r\n\r\n": 1,
        closing: 3,
        COUNTED.replace(b"1.1", b"1.0") + b"Tides": 3,
        COUNTED + b"Tides and more": 3,
        CHUNKED + b"5\r\nTides\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n": 3,
    }.items():
        async with RawServer([answer]).listen() as server, Callstream() as cs, tapped(cs, library) as client:
            for _ in range(3):
                assert (await outcome(client, server.url))[-1] == b"Tides"
            assert server.connections == connections, answer


@LIBRARIES
async def test_a_connection_that_the_provider_has_closed_is_not_used_again(library: ModuleType) -> None:
    async with RawServer([COUNTED + b"Tides", CLOSE]).listen() as server, Callstream() as cs:
        async with tapped(cs, library) as client:
            for expected in (1, 2):
                async with client.stream("POST", server.url, content=b"{}") as answer:
                    assert await answer.aread() == b"Tides"
                    connection = answer.extensions["network_stream"]
                await connection.wait_closed()
                assert server.connections == expected


@LIBRARIES
async def test_a_body_that_is_not_read_closes_its_connection(library: ModuleType) -> None:
    server = RawServer([CHUNKED + b"5\r\nTides\r\n", WAIT])
    async with server.listen(), Callstream() as cs, tapped(cs, library) as client:
        async with client.stream("POST", server.url, content=b"{}") as answer:
            assert await anext(answer.aiter_raw()) == b"Tides"
        await asyncio.wait_for(server.left.wait(), 30)


@LIBRARIES
async def test_limits_of_the_pool(library: ModuleType) -> None:
    server = RawServer([CHUNKED, b"5\r\nTides\r\n", b"0\r\n\r\n"])
    limits = library.Limits(max_connections=1)
    async with server.listen(), Callstream() as cs:
        async with tapped(cs, library, limits=limits) as client:
            async with client.stream("POST", server.url, content=b"{}") as answer:
                impatient = library.Timeout(30, pool=0.01)
                assert await outcome(client, server.url, timeout=impatient) is library.PoolTimeout
                waiting = asyncio.create_task(outcome(client, server.url))
                await asyncio.sleep(0)
                await answer.aread()
            assert (await waiting)[-1] == b"Tides"
            together = await asyncio.gather(*(outcome(client, server.url) for _ in range(5)))
            assert {each[-1] for each in together} == {b"Tides"}
        assert server.connections == 1
        async with tapped(cs, library, limits=library.Limits(max_keepalive_connections=0)) as client:
            await outcome(client, server.url)
            await outcome(client, server.url)
        assert server.connections == 3


@LIBRARIES
async def test_a_full_pool_closes_what_is_idle_of_another_provider(library: ModuleType) -> None:
    first, second = RawServer([COUNTED + b"Tides"]), RawServer([COUNTED + b"Tides"])
    async with first.listen(), second.listen(), Callstream() as cs:
        async with tapped(cs, library, limits=library.Limits(max_connections=1)) as client:
            for server in (first, second, first):
                assert (await outcome(client, server.url))[-1] == b"Tides"
        await asyncio.wait_for(first.left.wait(), 30)
    assert (first.connections, second.connections) == (2, 1)


@LIBRARIES
async def test_a_full_pool_makes_room_before_it_opens_a_connection(library: ModuleType) -> None:
    """A provider may allow no more connections than the pool does."""
    first, second = RawServer([COUNTED + b"Tides"]), RawServer([COUNTED + b"Tides"])
    async with first.listen(), Callstream() as cs:
        async with tapped(cs, library, limits=library.Limits(max_connections=1)) as client:
            await outcome(client, first.url)
            async with second.listen():
                nowhere = second.url
            assert await outcome(client, nowhere) is library.ConnectError
            await asyncio.wait_for(first.left.wait(), 30)


@LIBRARIES
async def test_a_request_that_is_streamed(library: ModuleType) -> None:
    async def body() -> Any:
        for _ in range(3):
            yield b"x" * 50_000

    async with RawServer([COUNTED + b"Tides"]).listen() as server, Callstream() as cs, tapped(cs, library) as client:
        answer = await client.post(server.url, content=body(), headers={"Content-Length": "150000"})
    assert answer.content == b"Tides"
    assert server.requests[0].endswith(b"\r\n\r\n" + b"x" * 150_000)


@LIBRARIES
async def test_an_answer_that_comes_faster_than_it_is_read(library: ModuleType) -> None:
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    async with RawServer([CHUNKED, *[piece] * 40, b"0\r\n\r\n"]).listen() as server, Callstream() as cs:
        async with tapped(cs, library) as client, client.stream("POST", server.url, content=b"{}") as answer:
            read = 0
            async for data in answer.aiter_raw():
                read += len(data)
                await asyncio.sleep(0.001)
    assert read == 40 * 0x10000


@LIBRARIES
async def test_extensions_go_through_the_library(library: ModuleType) -> None:
    told = []

    async def trace(name: str, info: Any) -> None:
        told.append(name)

    async with RawServer([COUNTED + b"Tides"]).listen() as server, Callstream() as cs, tapped(cs, library) as client:
        await client.post(server.url, content=b"{}", extensions={"trace": trace})
    assert "connection.connect_tcp.complete" in told


@LIBRARIES
async def test_tls(library: ModuleType, tmp_path: Path) -> None:
    file = certificate(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(file)
    async with RawServer([CHUNKED + b"5\r\nTides\r\n0\r\n\r\n"]).listen(serving) as server, Callstream() as cs:
        async with tapped(cs, library) as client:
            assert await outcome(client, server.url) is library.ConnectError
        trusting = ssl.create_default_context(cafile=file)
        for verify in (trusting, False):
            async with tapped(cs, library, verify=verify) as client:
                for _ in range(2):
                    assert (await outcome(client, server.url))[-1] == b"Tides"
    assert server.connections == 2


async def test_closing_waits_for_connections_that_were_given_up_just_before() -> None:
    """A socket is closed one turn of the event loop later, and that loop may have no other."""
    async with RawServer([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", WAIT]).listen() as server:
        transport = DirectTransport(httpx, {})
        request = httpx.Request("GET", server.url)
        response = await transport.handle_async_request(request)
        used = response.extensions["network_stream"].get_extra_info("socket")
        await response.aclose()
        await transport.aclose()
        assert used.fileno() == -1
