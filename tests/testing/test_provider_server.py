"""The server of a scripted provider: its requests, many at once, closing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import httpx
import pytest

from callstream.errors import UsageError
from callstream.testing import (
    Delay,
    ScriptedProvider,
    Text,
    ToolCall,
)
from tests.testing.asking import QUESTION, WIRES, Said, ask, asked, client_of

from .answering import BROKEN, PATHS, each_wire, scripted

# -- requests ----------------------------------------------------------------------------------------------------------


@each_wire
async def test_requests_are_kept_in_order(wire: str) -> None:
    async with scripted(wire, [Text("Hi")]) as provider:
        await asked(provider)
        await asked(provider, stream=False)
        first, second = provider.requests
    assert first.method == "POST"
    assert provider.origin + first.path == provider.origin + PATHS[wire].partition("?")[0].replace(
        "/m:", "/gemini-3-pro:"
    )
    assert QUESTION in json.dumps(first.json)
    assert first.headers["content-type"] == "application/json"
    assert [request.fate for request in (first, second)] == ["answered", "answered"]
    assert first.sent >= second.sent == 1
    assert repr(second).startswith("<ReceivedRequest POST /v1")


async def test_a_client_that_leaves_is_noticed_while_nothing_is_sent() -> None:
    async with ScriptedProvider("anthropic", [Text("Wait"), Delay(60), Text("for it")]) as provider:
        async with client_of(provider) as client:
            stream = await client.messages.create(model="m", max_tokens=1, messages=[], stream=True)
            await anext(aiter(stream))
            await stream.close()
        async with asyncio.timeout(20):
            while provider.requests[0].fate == "open":  # noqa: ASYNC110  # another thread decides
                await asyncio.sleep(0.001)
        assert provider.requests[0].fate == "left"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/chat/completions/x"), ("GET", "/v1/messages"), ("POST", "/v1/responses")]
)
async def test_another_place_is_not_found(method: str, path: str) -> None:
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider, httpx.AsyncClient(verify=False) as client:
        answer = await client.request(method, provider.origin + path, json={})
    assert answer.status_code == 404
    assert f"expected POST /v1/messages, got {method} {path}" in answer.json()["error"]["message"]


async def test_a_body_that_is_no_object_is_refused() -> None:
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider, httpx.AsyncClient(verify=False) as client:
        answers = [
            await client.post(provider.origin + "/v1/messages", content=content) for content in (b"[]", b"{", b"\xff")
        ]
        assert [request.json for request in provider.requests] == [[], None, None]
    assert [answer.status_code for answer in answers] == [400, 400, 400]


# -- the server --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each_wire
async def test_two_hundred_streams_at_once(wire: str) -> None:
    script = [Text("abcdefgh" * 5, size=8), ToolCall("write", {"content": "x" * 24})]
    async with scripted(wire, script) as provider, client_of(provider) as client:
        said: list[Said] = await asyncio.gather(*[ask(client, wire) for _ in range(200)])
        assert len(provider.requests) == 200
    assert {(each.text, json.dumps(each.calls)) for each in said} == {
        ("abcdefgh" * 5, json.dumps([("write", {"content": "x" * 24})]))
    }
    if wire != "gemini":
        assert len({each.call_ids[0] for each in said}) == 200


async def test_many_providers_at_once_and_no_thread_stays() -> None:
    def providers_running() -> int:
        return sum("provider" in thread.name for thread in threading.enumerate())

    async with contextlib.AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(ScriptedProvider(w, [Text(w)])) for w in WIRES * 5]
        assert providers_running() == 20
        assert [each.text for each in await asyncio.gather(*map(asked, providers))] == list(WIRES * 5)
    assert providers_running() == 0


async def test_closing_breaks_off_what_is_being_answered() -> None:
    provider = ScriptedProvider("anthropic", [Text("Wait"), Delay(60)]).start()
    async with client_of(provider) as client:
        stream = await client.messages.create(model="m", max_tokens=1, messages=[], stream=True)
        await anext(aiter(stream))
        await provider.aclose()
        with pytest.raises(BROKEN):
            async for _ in stream:
                pass
    assert provider.requests[0].fate == "cut"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(provider.origin.rpartition(":")[2]))


async def test_a_slow_reader_holds_the_provider_up_and_loses_nothing() -> None:
    text = "0123456789abcdef" * 60_000
    async with ScriptedProvider("openai_chat", [Text(text, size=16)]) as provider:
        port = int(provider.origin.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 15\r\n\r\n"
        writer.write(head.encode() + b'{"stream":true}')
        await reader.read(1)
        async with asyncio.timeout(60):
            while True:  # until it has stopped sending
                sent = provider.requests[0].sent
                await asyncio.sleep(0.05)
                if 0 < sent == provider.requests[0].sent:
                    break
        assert sent < 60_000
        body = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
    assert body.count(b'"content":"0123456789abcdef"') == 60_000


def test_a_provider_is_started_once_and_closed_as_often_as_one_likes() -> None:
    provider = ScriptedProvider("anthropic", [Text("Hi")])
    with pytest.raises(UsageError, match="before it is started"):
        provider.base_url  # noqa: B018
    provider.close()
    provider.start()
    with pytest.raises(UsageError, match="started before"):
        provider.start()
    provider.close()
    provider.close()


async def test_a_provider_that_was_never_started_can_be_closed() -> None:
    await ScriptedProvider("anthropic", [Text("Hi")]).aclose()


def test_a_port_that_is_taken_is_told() -> None:
    with ScriptedProvider("anthropic", [Text("Hi")]) as provider:
        port = int(provider.origin.rpartition(":")[2])
        other = ScriptedProvider("anthropic", [Text("Hi")], port=port)
        with pytest.raises(OSError, match=str(port)):
            other.start()
        other.close()


async def exchanged(provider: ScriptedProvider, *pieces: bytes) -> bytes:
    """What a server says to raw bytes, sent one by one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(provider.origin.rpartition(":")[2]))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.005)
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_requests_come_in_any_pieces_and_one_after_another() -> None:
    first = b'POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"n": "1"}'
    second = (
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'4\r\n{"n"\r\n6;x=y\r\n: "2"}\r\n0\r\n\r\n'
    )
    script = lambda request: [Text("number " + request.json["n"])]  # noqa: E731
    both = first + second
    for pieces in ([both], [both[at : at + 7] for at in range(0, len(both), 7)]):
        async with ScriptedProvider("anthropic", script) as provider:
            answer = await exchanged(provider, *pieces)
        assert [answer.count(text) for text in (b"HTTP/1.1 200 OK", b"number 1", b"number 2")] == [2, 1, 1]


async def test_a_client_that_asks_before_it_sends_a_body_is_answered() -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider:
        answer = await exchanged(provider, head, b"{}")
        [request] = provider.requests
    assert answer.startswith(b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 200 OK\r\n")
    assert (request.body, request.fate) == (b"{}", "answered")


@pytest.mark.parametrize("bad", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n"])
async def test_what_is_not_http_is_told_so(bad: bytes) -> None:
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider:
        assert (await exchanged(provider, bad)).startswith(b"HTTP/1.1 400 Bad Request")
        assert provider.requests == []
