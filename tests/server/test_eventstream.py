"""A response of server-sent events by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest

from callstream.server.eventstream import CONNECTION, EventStream, Outlet
from callstream.server.settings import ServerSettings

FRAMES = 100


async def frames() -> AsyncGenerator[bytes, None]:
    for number in range(FRAMES):
        await asyncio.sleep(0)
        yield b"data: %d\n\n" % number


async def receive() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("nobody leaves")


async def respond(send: Any, **settings: Any) -> None:
    made = ServerSettings(**settings)
    stream = EventStream(frames(), made, run_id="r", watching=nullcontext(), held=ExitStack())
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

    def cut(self) -> None: ...

    def close(self) -> None: ...

    def write(self, piece: bytes) -> None:
        self.written.append(piece)


async def test_an_outlet_is_open_while_nothing_else_is_being_sent() -> None:
    connection, outlet = OneConnection(), Outlet()
    begun, more = asyncio.Event(), asyncio.Event()
    seen: list[bool] = []

    async def waiting() -> AsyncGenerator[bytes, None]:
        seen.append(outlet.is_free)
        outlet.write(b"straight")
        begun.set()
        await more.wait()
        yield b"data: 1\n\n"

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            seen.append(outlet.is_free)

    assert not outlet.is_free
    stream = EventStream(
        waiting(), ServerSettings(), run_id="r", watching=nullcontext(), held=ExitStack(), outlet=outlet
    )
    responding = asyncio.create_task(stream({"type": "http", "state": {CONNECTION: connection}}, receive, send))
    await begun.wait()
    connection.is_free = False
    assert not outlet.is_free
    connection.is_free = True
    more.set()
    await responding
    outlet.write(b"too late")
    assert not outlet.is_free
    assert seen == [True, False]
    assert connection.written == [b"straight"]
