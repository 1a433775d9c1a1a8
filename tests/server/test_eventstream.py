"""A response of server-sent events by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, nullcontext
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream.server.settings import ServerSettings
from callstream.server.streams import CONNECTION, HEARTBEAT, STREAMS, EventStream, Pulse

from .serving import serving

FRAMES = 100


async def frames() -> AsyncGenerator[bytes, None]:
    for number in range(FRAMES):
        await asyncio.sleep(0)
        yield b"data: %d\n\n" % number


async def receive() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("nobody leaves")


async def respond(send: Any, **settings: Any) -> None:
    pulse = Pulse(ServerSettings(**settings))
    stream = EventStream(frames(), pulse, run_id="r", watching=nullcontext(), held=ExitStack())
    await stream({"type": "http"}, receive, send)


async def test_a_frame_that_is_taken_at_once_takes_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers = 0
    call_at = loop.call_at

    def count(*args: Any, **options: Any) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return call_at(*args, **options)

    monkeypatch.setattr(loop, "call_at", count)
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await respond(send)
    assert b"".join(message.get("body", b"") for message in sent).count(b"data: ") == FRAMES
    assert timers < FRAMES / 10


async def test_a_frame_that_nobody_takes_ends_the_response() -> None:
    sent = 0

    async def send(message: dict[str, Any]) -> None:
        nonlocal sent
        sent += 1
        if sent > 10:
            await asyncio.Event().wait()

    async with asyncio.timeout(20):
        await respond(send, stall_seconds=0.05)
    assert sent == 11


class OneConnection:
    """What a server gives a request, which takes everything while it is free."""

    def __init__(self) -> None:
        self.is_free = True
        self.written: list[bytes] = []
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leaving(self) -> asyncio.Future[None]:
        return self.lost

    def cut(self) -> None: ...

    def close(self) -> None: ...

    def write(self, piece: bytes) -> None:
        self.written.append(piece)


async def test_a_stream_is_free_while_nothing_else_is_being_sent() -> None:
    connection = OneConnection()
    begun, more = asyncio.Event(), asyncio.Event()
    seen: list[bool] = []

    async def waiting() -> AsyncGenerator[bytes, None]:
        seen.append(stream.is_free)
        stream.write(b"straight")
        begun.set()
        await more.wait()
        yield b"data: 1\n\n"

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            seen.append(stream.is_free)

    pulse = Pulse(ServerSettings())
    stream = EventStream(waiting(), pulse, run_id="r", watching=nullcontext(), held=ExitStack())
    assert not stream.is_free
    responding = asyncio.create_task(stream({"type": "http", "state": {CONNECTION: connection}}, receive, send))
    await begun.wait()
    connection.is_free = False
    assert not stream.is_free
    connection.is_free = True
    more.set()
    await responding
    stream.write(b"too late")
    assert not stream.is_free
    assert seen == [True, False]
    assert connection.written == [b"straight"]


class Reader:
    """A stream of one frame that then waits, what is sent of it, and in which order its parts end."""

    def __init__(self, **settings: Any) -> None:
        self.sent = b""
        self.ends: list[str] = []
        self.begun = asyncio.Event()
        self.left = asyncio.Event()
        watching, self.held = AsyncExitStack(), ExitStack()
        watching.callback(self.ends.append, "watching")
        self.held.callback(self.ends.append, "held")
        pulse = Pulse(ServerSettings(**settings))
        self.stream = EventStream(self.frames(), pulse, run_id="r", watching=watching, held=self.held)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            self.ends.append("frames")

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        self.sent += message.get("body", b"")
        if self.sent:
            self.begun.set()

    async def respond(self, scope: dict[str, Any] | None = None) -> None:
        """Responds, and leaves nothing behind."""
        before = asyncio.all_tasks()
        try:
            async with asyncio.timeout(20):
                await self.stream(scope or {"type": "http"}, self.receive, self.send)
        finally:
            assert asyncio.all_tasks() == before
            assert self.ends == ["frames", "watching", "held"]


async def test_a_client_that_leaves_ends_everything() -> None:
    reader = Reader()
    responding = asyncio.create_task(reader.respond())
    await reader.begun.wait()
    assert reader.ends == []
    reader.left.set()
    await responding
    assert not responding.cancelled()
    assert reader.sent == b"data: 1\n\n"


async def test_a_response_that_is_cancelled_ends_everything() -> None:
    reader = Reader()
    responding = asyncio.create_task(reader.respond())
    await reader.begun.wait()
    responding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await responding


async def test_a_client_that_leaves_does_not_undo_a_cancellation() -> None:
    reader = Reader()
    responding = asyncio.create_task(reader.respond())
    await reader.begun.wait()
    reader.left.set()
    await asyncio.sleep(0)  # it is told of, and about to interrupt
    responding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await responding


async def test_an_error_of_the_server_while_the_client_is_waited_for_rises() -> None:
    reader = Reader()

    async def receive() -> dict[str, Any]:
        await reader.begun.wait()
        raise OSError("torn")

    reader.receive = receive  # type: ignore[method-assign]
    with pytest.raises(OSError, match="torn"):
        await reader.respond()


async def test_heartbeats_come_between_frames_and_their_error_rises() -> None:
    reader = Reader(heartbeat_seconds=0.03)
    send = reader.send

    async def send_some(message: dict[str, Any]) -> None:
        if reader.sent.count(HEARTBEAT) == 3:
            raise OSError("torn")
        await send(message)

    reader.send = send_some  # type: ignore[method-assign]
    with pytest.raises(OSError, match="torn"):
        await reader.respond()
    assert reader.sent == b"data: 1\n\n" + 3 * HEARTBEAT


async def test_a_heartbeat_waits_for_the_frame_that_is_being_sent_and_that_for_it() -> None:
    pulse = Pulse(ServerSettings(heartbeat_seconds=0.015))
    parts: list[tuple[str, bytes]] = []

    async def slow_frames() -> AsyncGenerator[bytes, None]:
        while len(parts) < 40:
            await asyncio.sleep(0.016)
            yield b"x" * 3 * 64 * 1024

    async def send(message: dict[str, Any]) -> None:
        parts.append(("begin", message.get("body", b"")[:1]))
        await asyncio.sleep(0.002)
        parts.append(("end", message.get("body", b"")[:1]))

    stream = EventStream(slow_frames(), pulse, run_id="r", watching=nullcontext(), held=nullcontext())
    await stream({"type": "http"}, receive, send)
    begins = [part for kind, part in parts if kind == "begin"]
    assert parts == [(kind, part) for part in begins for kind in ("begin", "end")]
    assert b"x" in begins
    of_frames = b"".join(begins).replace(b":", b"")
    assert b"".join(begins).count(b"xxx") == len(of_frames) // 3  # no heartbeat came into the middle of a frame


async def test_a_heartbeat_needs_no_task_where_the_connection_takes_it() -> None:
    reader, connection = Reader(heartbeat_seconds=0.03), OneConnection()
    responding = asyncio.create_task(reader.respond({"type": "http", "state": {CONNECTION: connection}}))
    await reader.begun.wait()
    while len(connection.written) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    connection.is_free = False
    straight = len(connection.written)
    while HEARTBEAT not in reader.sent:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert connection.written == straight * [HEARTBEAT]
    connection.lost.set_result(None)
    await responding


async def test_the_router_returns_before_a_stream_is_sent() -> None:
    reader = Reader()
    scope: dict[str, Any] = {"type": "http", STREAMS: []}
    await reader.stream(scope, reader.receive, reader.send)
    assert reader.sent == b""
    assert reader.ends == []
    reader.left.set()
    (respond_later,) = scope[STREAMS]
    await respond_later()
    assert reader.ends == ["frames", "watching", "held"]


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_client_may_leave_before_its_stream_begins(is_early: bool) -> None:
    reader = Reader()
    asked, ended = asyncio.Event(), asyncio.Event()
    reader.held.callback(ended.set)

    async def answer(request: Request) -> Response:
        asked.set()
        if is_early:
            await request.scope["state"][CONNECTION].leaving()
        return reader.stream

    async with serving(Starlette(routes=[Route("/", answer)])) as server, asyncio.timeout(20):
        stream, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asked.wait()
        if not is_early:
            await stream.readuntil(b"data: 1\n\n")
        assert not reader.ends
        writer.close()
        await ended.wait()
    assert reader.ends == ["frames", "watching", "held"]


async def test_a_client_that_has_sent_much_is_missed_when_it_leaves() -> None:
    """Where a server stops reading because a body is large, it would not see the end of the connection."""
    reader = Reader()
    ended = asyncio.Event()
    reader.held.callback(ended.set)

    async def answer(request: Request) -> Response:
        assert len(await request.body()) == size
        return reader.stream

    size = 200_000
    async with serving(Starlette(routes=[Route("/", answer, methods=["POST"])])) as server, asyncio.timeout(10):
        stream, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(b"x" * size)
        await stream.readuntil(b"data: 1\n\n")
        writer.close()
        await ended.wait()
    assert reader.ends == ["frames", "watching", "held"]
