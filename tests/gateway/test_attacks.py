"""What a client may try at a gateway that is not its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from callstream.gateway import GatewaySettings
from callstream.testing import Finish, Text
from tests.gateway.gates import NAMES, Gate, gate, until_unread
from tests.sdks import SDKS

HELLO = [Text("Hello."), Finish()]
LONG = [Text("The moon pulls at the sea. " * 40, size=9), Finish()]
BODY = json.dumps({"model": "m", "max_tokens": 9, "messages": []}).encode()


async def sent(gateway: Gate, head: str, body: bytes = b"") -> bytes:
    """What comes back for bytes that no HTTP client would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.port)
    writer.write(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
    try:
        async with asyncio.timeout(5):
            return await reader.read(65536)
    except TimeoutError:
        return b""
    finally:
        writer.close()


# -- where requests go --


@pytest.mark.parametrize(
    "path",
    [
        "/anthropic/../../admin",
        "/anthropic/%2e%2e/%2e%2e/admin",
        "/anthropic/v1/%252e%252e/admin",
        "/anthropic/..%2fadmin",
        "/anthropic/..%5cadmin",
        "/anthropic/v1/./messages",
    ],
)
async def test_no_path_leads_out_of_an_upstream(path: str) -> None:
    async with gate("anthropic", [HELLO]) as gateway:
        answer = await sent(gateway, f"POST {path} HTTP/1.1\nhost: localhost\ncontent-length: {len(BODY)}", BODY)
        assert answer.split(b"\r\n")[0].split()[1] in (b"400", b"404")
        assert gateway.provider.requests == []


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:1/anthropic/v1/messages",
        "//127.0.0.1:1/anthropic/v1/messages",
        "/anthropic//127.0.0.1:1/v1/messages",
        "/anthropic/@127.0.0.1:1/v1/messages",
        "/http://127.0.0.1:1/v1/messages",
    ],
)
async def test_no_address_comes_from_a_client(target: str) -> None:
    """Whatever of it reaches a provider reaches the one that was configured."""
    async with gate("anthropic", [HELLO]) as gateway:
        head = f"POST {target} HTTP/1.1\nhost: localhost\nupstream-url: http://127.0.0.1:1\ncontent-length: {len(BODY)}"
        answer = await sent(gateway, head, BODY)
        assert b"502" not in answer.split(b"\r\n")[0]  # it would be, had it gone to a port where nobody listens
        assert all(request.path.startswith("/v1/") for request in gateway.provider.requests)


@pytest.mark.parametrize("wire", NAMES)
async def test_a_name_that_no_upstream_has_is_refused_before_anything_is_sent(wire: str) -> None:
    """A misspelled name, or one whose ``--upstream`` was forgotten: its key and its prompts are for somebody else."""
    async with gate(wire, [HELLO]) as gateway:
        url, body = SDKS[wire].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            for name in ("openruoter", "v2", "%61nthropic"):
                wrong = url.replace(f"/{NAMES[wire]}/", f"/{name}/")
                answer = await client.post(wrong, json=body, headers={"authorization": "Bearer others"})
                assert answer.status_code == 404
                said = answer.json()["error"]["message"]
                assert f"{name!r} is not one" in said
                assert "anthropic, gemini, openai" in said
        assert gateway.provider.requests == []
        assert await gateway.runs() == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/nobody/v1/messages", ("error", "message")),
        ("/nobody/v1/chat/completions", ("error", "message")),
        ("/nobody/v1beta/models/g:generateContent", ("error", "message")),
        ("/nobody/v2/chat", ("message",)),
        ("/nobody/api/chat", ("error",)),
        ("/nobody/model/claude/converse", ("message",)),
        ("/nobody/model/claude/invoke", ("message",)),
    ],
)
async def test_a_refusal_says_why_where_the_sdks_of_the_wire_look_for_it(path: str, expected: tuple[str, ...]) -> None:
    async with gate("anthropic", [HELLO]) as gateway:
        said: Any = (await gateway.server.client.post(path, json={})).json()
        for name in expected:
            said = said[name]
        assert said.startswith("'nobody' is not one of this gateway's upstreams")


async def test_who_has_no_key_is_not_told_the_upstreams() -> None:
    async with gate("anthropic", [HELLO], key="open sesame") as gateway:
        wrong = gateway.base_url.replace("/anthropic", "/nobody/v1/messages")
        async with httpx.AsyncClient(timeout=20) as client:
            assert (await client.post(wrong, json={})).status_code == 401


async def test_an_escaped_path_reaches_the_provider_as_it_was_sent() -> None:
    async with gate("gemini", [HELLO]) as gateway:
        path = "/gemini/v1beta/models/a%2Fb%3Fc%23d:generateContent"
        await sent(gateway, f"POST {path}?alt=sse HTTP/1.1\nhost: localhost\ncontent-length: 16", b'{"contents": []}')
        [asked] = gateway.provider.requests
        assert asked.target == f"{path.removeprefix('/gemini')}?alt=sse"


async def test_a_redirect_is_not_followed() -> None:
    async with gate("anthropic", [HELLO]) as elsewhere:

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            place = f"{elsewhere.provider.origin}/v1/messages"
            writer.write(f"HTTP/1.1 307 Go\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(redirect, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with gate("anthropic", [HELLO], upstream=f"http://127.0.0.1:{port}/v1") as gateway:
            url, body = SDKS["anthropic"].raw(gateway.base_url)
            async with httpx.AsyncClient(timeout=20) as client:
                assert (await client.post(url, json=body)).status_code == 307
        server.close()
        assert elsewhere.provider.requests == []


# -- what requests say --


@pytest.mark.parametrize(
    "lines",
    [
        f"content-length: {len(BODY)}\ncontent-length: {len(BODY) - 1}",
        f"content-length: {len(BODY)}\ntransfer-encoding: chunked",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: xchunked",
        f"content-length: +{len(BODY)}",
        f"content-length : {len(BODY)}",
    ],
)
async def test_two_lengths_reach_no_provider_as_two_requests(lines: str) -> None:
    async with gate("anthropic", [HELLO] * 3) as gateway:
        smuggled = b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
        head = f"POST /anthropic/v1/messages HTTP/1.1\nhost: localhost\n{lines}"
        await sent(gateway, head, BODY + b"0\r\n\r\n" + smuggled)
        for asked in gateway.provider.requests:
            assert b"POST" not in asked.body
            assert "transfer-encoding" not in asked.headers
        assert len(gateway.provider.requests) <= 1


async def test_headers_pass_as_they_came_and_cannot_be_split() -> None:
    async with gate("anthropic", [HELLO] * 2) as gateway:
        lines = "anthropic-beta: one\nanthropic-beta: two\nx-name: caf\xe9\ncallstream-thread: a\tb\nx-a: 1\n x-b: 2"
        head = f"POST /anthropic/v1/messages HTTP/1.1\nhost: localhost\n{lines}\ncontent-length: {len(BODY)}"
        answer = await sent(gateway, head.replace("x-a: 1\n x-b: 2", "x-a: 1"), BODY)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"a\tb" not in answer
        folded = await sent(gateway, head, BODY)
        assert not folded.startswith(b"HTTP/1.1 200") or b"\r\nx-b" not in folded
        asked = gateway.provider.requests[0]
        assert asked.headers["x-name"] == "caf\xe9"
        assert "one" in asked.headers["anthropic-beta"] or "two" in asked.headers["anthropic-beta"]
        assert not any(name.startswith("callstream-") for name in asked.headers)
        assert asked.headers["accept-encoding"] == "identity"


async def test_headers_of_the_connection_stay_with_it() -> None:
    async with gate("anthropic", [HELLO]) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        own = {"connection": "keep-alive, x-secret", "x-secret": "1", "x-forwarded-for": "10.0.0.1", "te": "trailers"}
        async with httpx.AsyncClient(timeout=20) as client:
            await client.post(url, json=body, headers={**own, "proxy-authorization": "Basic x"})
        [asked] = gateway.provider.requests
        assert not {"x-secret", "x-forwarded-for", "te", "proxy-authorization"} & asked.headers.keys()


@pytest.mark.parametrize("depth", [50, 900, 5_000, 200_000])
async def test_deep_json_is_the_providers_to_refuse(depth: int) -> None:
    async with gate("anthropic", [HELLO]) as gateway:
        body = b'{"model":"m","max_tokens":1,"messages":[],"metadata":' + b"[" * depth + b"]" * depth + b"}"
        async with httpx.AsyncClient(timeout=20) as client:
            answer = await client.post(f"{gateway.base_url}/v1/messages", content=body)
        assert answer.status_code in (200, 400)
        assert len(gateway.provider.requests) == 1


async def test_a_body_that_is_too_long_is_refused_before_it_is_read_to_its_end() -> None:
    async with gate("anthropic", [HELLO], settings=GatewaySettings(max_body_bytes=1000)) as gateway:

        async def endless() -> Any:
            for _ in range(100):
                yield b"x" * 100

        async with httpx.AsyncClient(timeout=20) as client:
            answer = await client.post(f"{gateway.base_url}/v1/messages", content=endless())
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
        assert gateway.provider.requests == []


# -- who is slow --


async def test_a_request_that_does_not_come_to_its_end_is_given_up() -> None:
    async with gate("anthropic", [HELLO], settings=GatewaySettings(stall_seconds=0.3)) as gateway:
        answer = await sent(gateway, "POST /anthropic/v1/messages HTTP/1.1\nhost: localhost\ncontent-length: 99", b"{")
        assert answer.startswith(b"HTTP/1.1 408")
        assert gateway.provider.requests == []


async def test_a_reader_that_reads_nothing_is_disconnected_and_may_come_back() -> None:
    words = "The moon pulls at the sea. " * 4000
    script = [Text(words * 120, size=200_000), Finish()]
    settings = GatewaySettings(stall_seconds=2.0, linger=30.0)
    async with gate("anthropic", [script], settings=settings) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        content = json.dumps(body).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.server.port, limit=1024)
        head = f"POST /anthropic/v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        async with asyncio.timeout(20):
            while not gateway.provider.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await until_unread(gateway)
        writer.close()
        async with httpx.AsyncClient(timeout=20) as client:
            again = await client.post(url, json=body)
        assert again.content.count(b"text_delta") > 10
        assert len(gateway.provider.requests) == 1


# -- what belongs to others --


async def test_an_answer_belongs_to_the_credential_that_asked() -> None:
    settings = GatewaySettings(linger=30.0)
    async with gate("anthropic", [LONG, HELLO], settings=settings, deltas_per_second=40) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        mine, others = {"x-api-key": "mine"}, [{}, {"x-api-key": "other"}, {"authorization": "Bearer mine"}]
        async with httpx.AsyncClient(timeout=20) as client:
            async with client.stream("POST", url, json=body, headers=mine) as answer:
                name = answer.headers["callstream-response"]
                for headers in others:
                    attach = await client.post(url, json=body, headers={**headers, "callstream-attach": name})
                    assert attach.status_code == 404
                    for method in ("GET", "HEAD", "DELETE"):
                        place = f"/responses/{name}"
                        assert (await gateway.server.client.request(method, place, headers=headers)).status_code == 404
                assert b"message_stop" in b"".join([data async for data in answer.aiter_raw()])
        assert len(gateway.provider.requests) == 1


async def test_pages_of_other_sites_may_not_use_it() -> None:
    async with gate("anthropic", [HELLO]) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            for headers in (
                {"origin": "https://evil.example"},
                {"sec-fetch-site": "cross-site"},
                {"host": "evil.example"},
            ):
                assert (await client.post(url, json=body, headers=headers)).status_code in (403, 421)
        assert gateway.provider.requests == []
