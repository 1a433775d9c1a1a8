"""The straight way of deltas to a client is no other stream than the one that tasks send."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from callstream import Callstream, current_run
from callstream.events import ArgsAppended, CallCompleted, CallStarted, MessageStarted
from callstream.server.streams import EventStream

from .serving import run_input, served

PIECES = ['{"text":"', *(f"tide {number} " for number in range(30)), '"}']


def writing(cs: Callstream, began: asyncio.Event, go: asyncio.Event) -> Any:
    async def agent(given: Any) -> None:
        run = current_run()
        assert run is not None
        await run.record([MessageStarted("m"), CallStarted("c", "write", message_id="m")])
        began.set()
        await go.wait()
        for piece in PIECES:
            await run.record([ArgsAppended("c", piece)])
        await run.record([CallCompleted("c", "".join(PIECES))])

    return agent


def arguments(text: str) -> str:
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    return "".join(event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS")


async def ask(port: int, version: bytes, began: asyncio.Event, go: asyncio.Event) -> tuple[bytes, bytes]:
    """Head and body of the answer, as they are on the wire."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(run_input()).encode()
    head = b"POST /agui HTTP/%b\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\n" % version
    writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    answer = await reader.readuntil(b"\r\n\r\n")
    await began.wait()
    await asyncio.sleep(0.05)  # the client's stream waits, or the deltas take the other way, which is as good
    go.set()
    rest = await reader.read()
    writer.close()
    return answer, rest


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_every_version_of_http_is_sent_what_it_reads(version: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = 0
    write = EventStream.write

    def counting(stream: EventStream, frame: bytes) -> None:
        nonlocal straight
        straight += 1
        write(stream, frame)

    monkeypatch.setattr(EventStream, "write", counting)
    began, go = asyncio.Event(), asyncio.Event()
    async with Callstream() as cs, served(writing(cs, began, go), callstream=cs) as server:
        head, body = await ask(server.port, version, began, go)
    if version == b"1.1":
        assert b"transfer-encoding: chunked" in head.lower()
        body = unchunked(body)
        assert straight > 0
    else:
        assert b"transfer-encoding" not in head.lower()
        assert straight == 0
    assert arguments(body.decode()) == "".join(PIECES)


def unchunked(body: bytes) -> bytes:
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        content += body[:length]
        assert body[length : length + 2] == b"\r\n"
        body = body[length + 2 :]
    return content
