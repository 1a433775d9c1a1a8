"""What one client can do to a server, measured from outside: memory of its process, and whether others are served."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from .process import process
from .serving import run_input

pytestmark = [
    pytest.mark.slow,
    pytest.mark.subprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SIZE = 4 * 1024 * 1024


def body(name: str, text: str) -> bytes:
    """An input whose field of that name is the text; ``messages.0.x`` is a field of its message."""
    given = run_input(**({name: "HERE"} if "." not in name else {}))
    if "." in name:
        role = "assistant" if name.endswith("toolCalls") else "user"
        given["messages"] = [{"id": "m", "role": role, name.rpartition(".")[2]: "HERE"}]
    return json.dumps(given).replace('"HERE"', text).encode()


def many(item: str, size: int = SIZE) -> str:
    return "[" + ",".join([item] * (size // (len(item) + 1))) + "]"


BODIES: dict[str, Callable[[], bytes]] = {
    "numbers as parts": lambda: body("messages.0.content", many("0")),
    "objects as parts": lambda: body("messages.0.content", many("{}")),
    "empty parts": lambda: body("messages.0.content", many('{"type":"text","text":""}', 3 * SIZE)),
    "tool calls": lambda: body("messages.0.toolCalls", many("{}")),
    "unknown": lambda: body("messages.0.unknown", many("{}")),
    "resume": lambda: body("resume", many("{}")),
    "context": lambda: body("context", many("{}")),
    "tools": lambda: body("tools", many("{}")),
    "messages": lambda: body("messages", many("0")),
    "state": lambda: body("state", many("0")),
    "parts below the limit of values": lambda: body("messages.0.content", many("0", 300_000)),
    "parts of many messages": lambda: body(
        "messages",
        many('{"id":"m","role":"user","content":' + many('{"type":"text","text":""}', 26_000) + "}", 1_000_000),
    ),
}


async def test_lists_are_bounded(url: str) -> None:
    async with process(url) as server:
        await server.post("/agui", json=run_input())
        before = server.megabytes("VmHWM")
        for name, made in BODIES.items():
            answer = await server.post("/agui", content=made())
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many"), name
            assert len(answer.content) < 500, name
        wrong = await server.post("/agui", content=body("messages.0.content", many("0", 2000)))
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "wrong_input")
        assert server.megabytes("VmHWM") - before < 100
        assert (await server.get("/readyz")).status_code == 200


async def test_stalled_joiners_cost_little(url: str) -> None:
    """Each of them takes nothing of a thread of 8 MB; together they cost less than four that would be kept in memory."""
    async with process(url) as server, AsyncExitStack() as stack:
        given = run_input(forwardedProps={"pieces": 1, "piece": '"' + "x" * SIZE * 2 + '"'})
        async with server.stream("POST", "/agui", json=given) as stream:
            await stream.all()
        before = server.megabytes()
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
            stack.callback(writer.close)
            writer.write(b"POST /threads/thread/connect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"\r\n")
            await reader.readuntil(b"data: ")  # it is being told, and takes no more
        assert server.megabytes("VmHWM") - before < 4 * 8 * 5
        assert (await server.get("/readyz")).status_code == 200


async def test_commas_in_a_text_are_no_list(url: str) -> None:
    async with process(url) as server:
        for text in ("a, b [c] {d} " * 300_000, '\\", ' * 300_000):
            async with server.run(text) as stream:
                assert stream.status == 200
                await stream.all()
