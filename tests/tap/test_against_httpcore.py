"""The tap's own connections beside httpcore's, case by case.

The tap accepts nothing that httpcore refuses, and fails nowhere that httpcore does not. Where they differ otherwise, by the
kind of an error or in what they use again, it is printed: ``pytest -s``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import httpx2
import pytest

from callstream import Callstream
from tests.tap.certificates import certificate
from tests.tap.httpcases import cases
from tests.tap.loops import LOOPS, run_on
from tests.tap.rawserver import CLOSE, RESET, WAIT, RawServer

LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
AT_ONCE = 20


class Outcome(NamedTuple):
    """``result``: what a program gets of an answer; None if it gets an error. ``content``: what came before that."""

    result: Any
    error: str
    content: bytes
    connections: int = 1


async def outcome_of(library: ModuleType, client: Any, url: str, **kwargs: Any) -> Outcome:
    content = b""
    try:
        async with client.stream(kwargs.pop("method", "POST"), url, **kwargs) as answer:
            async for data in answer.aiter_raw():
                content += data
            head = answer.status_code, answer.reason_phrase, answer.http_version, answer.headers.raw
            return Outcome((*head, content), "", content)
    except library.HTTPError as error:
        return Outcome(None, type(error).__name__, content)


def tapped(cs: Callstream, library: ModuleType, **kwargs: Any) -> Any:
    return (cs.httpx_client if library is httpx else cs.httpx2_client)(**kwargs)


class Comparison:
    """Collects how two clients fared, and says where they differ."""

    def __init__(self) -> None:
        self.compared = 0
        self.accepted: list[str] = []
        """Cases that only the tap accepts."""
        self.failed: list[str] = []
        """Cases in which the tap fails, or gets something else, and httpcore does not."""
        self._told: list[str] = []

    def add(self, name: str, httpcore: Outcome, ours: Outcome) -> None:
        self.compared += 1
        if httpcore.result is None and ours.result is not None:
            self.accepted.append(f"{name}: {httpcore.error} of httpcore, {ours.result!r:.200} of the tap")
        elif httpcore.result != ours.result:
            self.failed.append(
                f"{name}: {httpcore.result!r:.200} of httpcore, {ours.error or ours.result!r:.200} of the tap"
            )
        elif httpcore != ours:
            self._told.append(f"{name}: {_difference(httpcore, ours)}")

    def print(self, what: str) -> None:
        print(f"\n{what}: {self.compared} cases, {len(self._told)} differ in what a program may notice")
        for line in self._told:
            print(f"  {line}")

    def check(self) -> None:
        assert not self.accepted
        assert not self.failed


def _difference(httpcore: Outcome, ours: Outcome) -> str:
    names = [name for name in Outcome._fields if getattr(httpcore, name) != getattr(ours, name)]
    return ", ".join(f"{name} {getattr(httpcore, name)!r:.80} / {getattr(ours, name)!r:.80}" for name in names)


async def compare(library: ModuleType, answer: Sequence[bytes], requests: int = 1) -> tuple[Outcome, Outcome]:
    """One request after the other; the outcome is that of the last, and counts the connections of all."""
    timeout = library.Timeout(30)
    async with Callstream() as cs:
        found = []
        for client in (library.AsyncClient(timeout=timeout), tapped(cs, library, timeout=timeout)):
            async with RawServer(answer).listen() as server, client:
                for _ in range(requests):
                    outcome = await outcome_of(library, client, server.url, content=b"{}")
                found.append(outcome._replace(connections=server.connections))
    return found[0], found[1]


@pytest.mark.slow
@LOOPS
@LIBRARIES
def test_answers(loop: str, library: ModuleType) -> None:
    comparison = Comparison()
    turns = asyncio.Semaphore(AT_ONCE)

    async def case(name: str, pieces: Sequence[bytes]) -> None:
        async with turns:
            httpcore, ours = await compare(library, pieces)
            comparison.add(name, httpcore, ours)
            if len(pieces) == 2 and _ends_by_itself(httpcore):
                comparison.add(f"{name}, left open", *await compare(library, pieces[:1], requests=3))

    async def program() -> None:
        await asyncio.gather(*(case(name, pieces) for name, pieces in cases().items()))

    run_on(loop, program)
    comparison.print(f"answers, {library.__name__}, {loop}")
    comparison.check()


def _ends_by_itself(outcome: Outcome) -> bool:
    """Whether the answer is whole without the end of its connection."""
    if outcome.result is None:
        return False
    status, _, _, headers, _ = outcome.result
    return status in (204, 304) or bool(
        {b"content-length", b"transfer-encoding"} & {name.lower() for name, _ in headers}
    )


class Failed(NamedTuple):
    """As good as any other failure: of which kind, and whether it was the server's reset or its end, can be chance."""

    error: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failed)

    __hash__ = None  # type: ignore[assignment]


class Surroundings(NamedTuple):
    """What a scene of a pool's life needs. ``client`` makes one, with httpcore's connections or with the tap's."""

    library: ModuleType
    client: Callable[..., Any]
    folder: Path

    async def ask(self, client: Any, url: str, **kwargs: Any) -> Any:
        """What a program gets: the content, or its failure."""
        outcome = await outcome_of(self.library, client, url, **{"content": b"{}", **kwargs})
        return Failed(outcome.error) if outcome.error else outcome.content

    def tls(self, *names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For a server with these names, and for a client that trusts it."""
        file = certificate(self.folder, *names)
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(file)
        return serving, ssl.create_default_context(cafile=file)


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nTides"
OPEN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nTides\r\n"


async def used_again(around: Surroundings) -> Any:
    async with RawServer([ANSWER]).listen() as server, around.client() as client:
        found = [await around.ask(client, server.url, method=method) for method in ("POST", "GET", "PUT", "DELETE")]
        return found, server.connections


async def used_again_after_an_error_of_the_provider(around: Surroundings) -> Any:
    refusal = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nBusy"
    async with RawServer([refusal], [ANSWER]).listen() as server, around.client() as client:
        return [await around.ask(client, server.url) for _ in range(2)], server.connections


async def head_and_options(around: Surroundings) -> Any:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    async with RawServer([head], [ANSWER]).listen() as server, around.client() as client:
        found = [await around.ask(client, server.url, method=method) for method in ("HEAD", "OPTIONS")]
        return found, server.connections


async def what_is_sent(around: Surroundings) -> Any:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"Ti"
        yield b"des"

    async with RawServer([ANSWER]).listen() as server, around.client() as client:
        await around.ask(client, f"{server.url}/a%20b/c?d=e&f=%C3%A9#g", headers={"X-Case": "Kept", "x-two": "y"})
        await around.ask(client, server.url, content=None, method="GET")
        await around.ask(client, server.url, content=pieces())
        await around.ask(client, server.url, content=None, json={"tides": 2})
        await around.ask(client, server.url.replace("http://", "http://user:word@"), headers={"Host": "example.org"})
        return b"".join(server.requests).replace(server.url.rpartition(":")[2].encode(), b"port")


async def a_request_that_asks_to_close(around: Surroundings) -> Any:
    async with RawServer([ANSWER]).listen() as server, around.client() as client:
        found = [await around.ask(client, server.url, headers={"Connection": "close"}) for _ in range(2)]
        return found, server.connections


async def a_header_that_cannot_be_sent(around: Surroundings) -> Any:
    async with RawServer([ANSWER]).listen() as server, around.client() as client:
        return [await around.ask(client, server.url, headers=headers) for headers in ({"X": b"a\nb"}, {})]


async def an_answer_before_the_request_was_read(around: Surroundings) -> Any:
    early = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 5\r\n\r\nLarge"
    async with RawServer([early, CLOSE], reads_bodies=False).listen() as server, around.client() as client:
        return await around.ask(client, server.url, content=b"x" * 100_000)


async def a_body_that_is_left(around: Surroundings) -> Any:
    async with RawServer([OPEN, WAIT], [ANSWER]).listen() as server, around.client() as client:
        async with client.stream("POST", server.url, content=b"{}") as answer:
            begun = await anext(answer.aiter_raw())
        await asyncio.wait_for(server.left.wait(), 30)
        return begun, await around.ask(client, server.url), server.connections


async def a_full_pool(around: Surroundings) -> Any:
    limits = around.library.Limits(max_connections=2)
    async with RawServer([ANSWER]).listen() as server, around.client(limits=limits) as client:
        found = await asyncio.gather(*(around.ask(client, server.url) for _ in range(7)))
        return found, server.connections <= 2


async def a_full_pool_of_another_host(around: Surroundings) -> Any:
    limits = around.library.Limits(max_connections=1)
    async with RawServer([ANSWER]).listen() as first, RawServer([ANSWER]).listen() as second:
        async with around.client(limits=limits) as client:
            found = [await around.ask(client, server.url) for server in (first, second, first)]
            return found, first.connections, second.connections


async def nothing_is_kept(around: Surroundings) -> Any:
    limits = around.library.Limits(max_keepalive_connections=0)
    async with RawServer([ANSWER]).listen() as server, around.client(limits=limits) as client:
        return [await around.ask(client, server.url) for _ in range(3)], server.connections


async def what_is_kept_expires(around: Surroundings) -> Any:
    limits = around.library.Limits(keepalive_expiry=0.0)
    async with RawServer([ANSWER]).listen() as server, around.client(limits=limits) as client:
        found = []
        for _ in range(3):
            found.append(await around.ask(client, server.url))
            await asyncio.sleep(0.01)
        return found, server.connections


async def no_limits(around: Surroundings) -> Any:
    limits = around.library.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
    async with RawServer([ANSWER]).listen() as server, around.client(limits=limits) as client:
        await asyncio.gather(*(around.ask(client, server.url) for _ in range(5)))
        return [await around.ask(client, server.url) for _ in range(3)], server.connections <= 5


async def time_runs_out(around: Surroundings) -> Any:
    library, found = around.library, []
    for answer, limit in (
        ([WAIT], library.Timeout(30, read=0.05)),
        ([OPEN, WAIT], library.Timeout(30, read=0.05)),
        ([WAIT], library.Timeout(0.05)),
    ):
        async with RawServer(answer).listen() as server, around.client(timeout=limit) as client:
            found.append(await around.ask(client, server.url))
    return found


async def time_is_each_requests_own(around: Surroundings) -> Any:
    library = around.library
    async with RawServer([ANSWER], [WAIT], [ANSWER]).listen() as server, around.client() as client:
        limits = (60, 0.05, None)
        found = [await around.ask(client, server.url, timeout=library.Timeout(30, read=limit)) for limit in limits]
        return found, server.connections


async def time_runs_out_in_the_pool(around: Surroundings) -> Any:
    library = around.library
    limits = library.Limits(max_connections=1)
    async with RawServer([OPEN, WAIT]).listen() as server, around.client(limits=limits) as client:
        async with client.stream("POST", server.url, content=b"{}"):
            late = await around.ask(client, server.url, timeout=library.Timeout(30, pool=0.02))
        again = await around.ask(client, server.url, timeout=library.Timeout(30, read=0.05))
        return late, again


async def time_runs_out_while_writing(around: Surroundings) -> Any:
    limit = around.library.Timeout(30, write=0.05)
    async with RawServer([WAIT], reads_bodies=False).listen() as server, around.client(timeout=limit) as client:
        return await around.ask(client, server.url, content=b"x" * 50_000_000)


async def time_runs_out_in_the_handshake(around: Surroundings) -> Any:
    limit = around.library.Timeout(30, connect=0.05)
    async with RawServer([WAIT]).listen() as server, around.client(timeout=limit) as client:
        return await around.ask(client, server.url.replace("http:", "https:"))


async def nothing_listens(around: Surroundings) -> Any:
    async with RawServer([ANSWER]).listen() as server:
        url = server.url
    async with around.client() as client:
        hosts = (url, url.replace("localhost", "127.0.0.1"), url.replace("localhost", "[::1]"), "http://no.invalid")
        return [await around.ask(client, host) for host in hosts]


async def cancelled(around: Surroundings) -> Any:
    """Before the head, in the body, and in the pool: the only connection is free again afterwards."""
    limits = around.library.Limits(max_connections=1)
    found = []
    server = RawServer([WAIT], [ANSWER], [OPEN, WAIT], [ANSWER], [OPEN, WAIT], [ANSWER])
    async with server.listen(), around.client(limits=limits) as client:
        await _cancel(client.post(server.url, content=b"{}"), server)
        found.append(await around.ask(client, server.url))
        await _cancel(client.post(server.url, content=b"{}"), server)
        found.append(await around.ask(client, server.url))
        async with client.stream("POST", server.url, content=b"{}"):
            await _cancel(client.post(server.url, content=b"{}"), None)
        found.append(await around.ask(client, server.url))
    return found


async def _cancel(request: Coroutine[Any, Any, Any], server: RawServer | None) -> None:
    """When the server has been asked, or where it will not be, after some turns of the event loop."""
    task = asyncio.ensure_future(request)
    if server is not None:
        server.asked.clear()
        await asyncio.wait_for(server.asked.wait(), 30)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def closed_while_it_reads(around: Surroundings) -> Any:
    client = around.client()
    server = RawServer([OPEN, WAIT])
    async with server.listen():
        task = asyncio.ensure_future(around.ask(client, server.url))
        await asyncio.wait_for(server.asked.wait(), 30)
        await asyncio.sleep(0.05)
        await client.aclose()
        return isinstance((await asyncio.gather(task, return_exceptions=True))[0], str | Exception)


async def tls_names(around: Surroundings) -> Any:
    found = {}
    for names in (["localhost"], ["127.0.0.1"], ["localhost", "127.0.0.1"], ["*.localhost"], ["example.org"]):
        serving, trusting = around.tls(*names)
        async with RawServer([ANSWER]).listen(serving) as server:
            for host in ("localhost", "LOCALHOST", "127.0.0.1", "a.localhost", "localhost."):
                async with around.client(verify=trusting) as client:
                    found[*names, host] = await around.ask(client, server.url.replace("localhost", host))
    return found


async def tls_trust(around: Surroundings) -> Any:
    serving, trusting = around.tls("localhost")
    async with RawServer([ANSWER]).listen(serving) as server:
        found = []
        for verify in (True, False, trusting):
            async with around.client(verify=verify) as client:
                found.append([await around.ask(client, server.url) for _ in range(2)])
        async with around.client() as client:
            found.append(await around.ask(client, server.url.replace("https:", "http:")))
        return found, server.connections


async def tls_that_is_none(around: Surroundings) -> Any:
    found = []
    for answer in ([ANSWER], [CLOSE], [RESET]):
        async with RawServer(answer, greets=True).listen() as server, around.client(verify=False) as client:
            found.append(await around.ask(client, server.url.replace("http:", "https:")))
    return found


async def tls_that_ends(around: Surroundings) -> Any:
    """With a body that ends with the connection, one that is cut, one that is reset."""
    serving, trusting = around.tls("localhost")
    found = []
    for answer in ([b"HTTP/1.1 200 OK\r\n\r\nTides", CLOSE], [OPEN, CLOSE], [OPEN, RESET], [RESET], [CLOSE]):
        async with RawServer(answer).listen(serving) as server, around.client(verify=trusting) as client:
            found.append(await around.ask(client, server.url))
    return found


async def tls_that_is_large(around: Surroundings) -> Any:
    """More than is buffered, so that reading is paused; the connection is used again."""
    serving, trusting = around.tls("localhost")
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000
    async with RawServer([large]).listen(serving) as server, around.client(verify=trusting) as client:
        return [len(await around.ask(client, server.url)) for _ in range(3)]


async def proxies(around: Surroundings) -> Any:
    """Which requests go through a proxy of the environment."""
    found = {}
    forwarded = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nProxy"
    refused = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with RawServer([ANSWER]).listen() as server, RawServer([forwarded]).listen() as proxy:
        port = server.url.rpartition(":")[2]
        hosts = ("localhost", "127.0.0.1", "[::1]", "a.localhost")
        for name, environment in {
            "none": {},
            "http": {"HTTP_PROXY": proxy.url},
            "without scheme": {"HTTP_PROXY": proxy.url.partition("//")[2]},
            "all": {"ALL_PROXY": proxy.url},
            "https only": {"HTTPS_PROXY": proxy.url},
            **{
                f"not for {exempt}": {"HTTP_PROXY": proxy.url, "NO_PROXY": exempt}
                for exempt in (
                    *("*", "localhost", "LOCALHOST", ".localhost", "127.0.0.1", "::1", "host"),
                    *(["127.0.0.0/8", "10.0.0.0/8"] if around.library is httpx2 else []),
                    *(f"127.0.0.1:{port}", f"localhost:{port}", "localhost:1", "http://localhost", "https://localhost"),
                    *("example.org, localhost", "example.org,127.0.0.1,::1"),
                )
            },
        }.items():
            with pytest.MonkeyPatch.context() as patched:
                for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
                    patched.delenv(variable, raising=False)
                    patched.delenv(variable.lower(), raising=False)
                for variable, value in environment.items():
                    patched.setenv(variable, value)
                for host in hosts:
                    async with around.client() as client:
                        found[name.replace(port, "port"), host] = await around.ask(client, f"http://{host}:{port}")
                async with around.client(trust_env=False) as client:
                    found[name.replace(port, "port"), "trust_env=False"] = await around.ask(client, server.url)
    async with RawServer([refused]).listen() as proxy, around.client(proxy=proxy.url) as client:
        found["refused", "https"] = await around.ask(client, "https://localhost:1")
    return found


SCENES = (
    *(used_again, used_again_after_an_error_of_the_provider, head_and_options, what_is_sent),
    *(a_request_that_asks_to_close, a_header_that_cannot_be_sent, an_answer_before_the_request_was_read),
    *(a_body_that_is_left, a_full_pool, a_full_pool_of_another_host, nothing_is_kept, what_is_kept_expires, no_limits),
    *(time_runs_out, time_is_each_requests_own, time_runs_out_in_the_pool, time_runs_out_while_writing),
    *(time_runs_out_in_the_handshake, nothing_listens, cancelled, closed_while_it_reads),
    *(tls_names, tls_trust, tls_that_is_none, tls_that_ends, tls_that_is_large, proxies),
)


@LOOPS
@LIBRARIES
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_life_of_a_pool(
    loop: str, library: ModuleType, scene: Callable[[Surroundings], Coroutine[Any, Any, Any]], tmp_path: Path
) -> None:
    async def program() -> None:
        async with Callstream() as cs:
            httpcore = await scene(Surroundings(library, library.AsyncClient, tmp_path))
            ours = await scene(Surroundings(library, partial(tapped, cs, library), tmp_path))
        if repr(ours) != repr(httpcore):
            print(f"\n{scene.__name__}, {library.__name__}, {loop}:\n  {httpcore!r}\n  {ours!r}")
        assert ours == httpcore

    run_on(loop, program)


@LOOPS
def test_cancelled_in_the_handshake(loop: str) -> None:
    """Beside httpcore it cannot be shown: that leaves its socket open."""
    server = RawServer([ANSWER])

    async def program() -> None:
        async with server.listen(), Callstream() as cs:
            async with cs.httpx_client(limits=httpx.Limits(max_connections=1)) as client:
                await _cancel(client.post(server.url.replace("http:", "https:"), content=b"{}"), None)
                assert (await client.post(server.url, content=b"{}")).content == b"Tides"

    run_on(loop, program)
