"""Readers that do not read: what they cost, what they get, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callstream import Callstream
from callstream.server import ServerSettings
from tests.agui.model import StrictClient

from .agents import Stepping
from .serving import Server, run_input, served

PIECE = "x" * 6000
PIECES = 2000
"""Twelve megabytes: more than the kernel keeps for a reader that takes nothing."""
BUFFERED = 5_000_000
"""What may wait for one reader in this process: one page of records, and what the transport takes before it says stop."""


def writer() -> Stepping:
    return Stepping(['{"content":"', *[PIECE] * PIECES, '"}'])


ARGS = '{"content":"' + PIECE * PIECES + '"}'


class Stalled:
    """A client that has sent its request and reads when it is told to. The kernel keeps little for it."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(request)
        self.socket.setblocking(False)

    async def read(self, size: int = 65536) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, size)

    async def rest(self) -> bytes:
        """Everything to the end, however it ends."""
        found = bytearray()
        try:
            while piece := await self.read():
                found += piece
        except ConnectionError:
            pass
        return bytes(found)


@pytest.fixture
def stalling() -> Iterator[Callable[[int, bytes], Stalled]]:
    made: list[Stalled] = []

    def stall(port: int, request: bytes) -> Stalled:
        made.append(Stalled(port, request))
        return made[-1]

    yield stall
    for each in made:
        each.socket.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def post(path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def unchunked(answer: bytes) -> bytes:
    """The body of an answer in chunks."""
    body, rest = bytearray(), answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        body += rest[:length]
        rest = rest[length + 2 :]
    return bytes(body)


def events_in(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")]


def waiting(server: Server) -> list[int]:
    """How many bytes wait to be sent, by connection."""
    return [connection.transport.get_write_buffer_size() for connection in server.connections]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_slow_reader_merged_and_the_others_pay_nothing(cs: Callstream, stalling: Any) -> None:
    agent = writer()
    async with served(agent, callstream=cs) as server:
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            stalled = stalling(server.port, post("/threads/thread/connect"))
            await stalled.read(1)
            agent.step(PIECES + 2)
            events = await stream.all()  # the one who reads is not held up by the one who does not
            assert events[-1]["outcome"] == {"type": "success"}
        assert "".join(event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS") == ARGS
        await until(lambda: max(waiting(server), default=0) > 0)
        assert max(waiting(server)) < BUFFERED
        # It comes to, and gets all of it, in fewer and longer pieces.
        late = events_in(unchunked(b"H" + await stalled.rest()))
        client = StrictClient()
        for event in late:
            client.take(event)
        [text] = [call["function"]["arguments"] for m in client.messages for call in m.get("toolCalls", ())]
        assert text == ARGS
        deltas = [event for event in late if event["type"] == "TOOL_CALL_ARGS"]
        assert len(deltas) < PIECES
        assert max(len(event["delta"]) for event in deltas) > 50 * len(PIECE)
        assert late[-1]["outcome"] == {"type": "success"}


@pytest.mark.slow
async def test_memory_of_stalled_readers_is_bounded(cs: Callstream, stalling: Any) -> None:
    agent = writer()
    async with served(agent, callstream=cs) as server:
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            stalled = [stalling(server.port, post("/threads/thread/connect")) for _ in range(5)]
            stalled += [stalling(server.port, get(f"/runs/{stream.run_id}/events")) for _ in range(5)]
            for each in stalled:
                await each.read(1)
            agent.step(PIECES + 2)
            await stream.all()
        await asyncio.sleep(0.5)
        assert len(waiting(server)) >= 10
        assert max(waiting(server)) < BUFFERED
        for each in stalled:
            each.socket.close()
        await until(lambda: len(waiting(server)) <= 1)


@pytest.mark.slow
@pytest.mark.parametrize("raw", [False, True])
async def test_slow_reader_that_stalls_too_long_is_cut_off_and_may_come_back(
    cs: Callstream, stalling: Any, raw: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = writer()
    caplog.set_level(logging.INFO, logger="callstream.server")
    async with served(agent, callstream=cs, settings=ServerSettings(stall_seconds=0.5)) as server:
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            path = f"/runs/{stream.run_id}/events"
            stalled = stalling(server.port, get(path) if raw else post("/threads/thread/connect"))
            await stalled.read(1)
            connections = len(waiting(server))
            agent.step(PIECES + 2)
            await stream.all()
        # Its connection is gone, with all that waited for it, though it has never read any of it.
        await until(lambda: "accepted no data" in caplog.text)
        await until(lambda: len(waiting(server)) < connections)
        assert not any(waiting(server))
        cut = unchunked_as_far(b"H" + await stalled.rest())
        assert len(cut) < len(ARGS)
        if raw:
            last = max(int(line[4:]) for line in cut.split(b"\n")[:-1] if line.startswith(b"id: "))
            async with server.stream("GET", path, headers={"last-event-id": str(last)}) as again:
                *records, _ = await again.all()
            assert again.event == "end"
            assert records[0]["seq"] == last + 1
        else:
            async with server.connect() as again:
                client = StrictClient()
                for event in await again.all():
                    client.take(event)
            [text] = [call["function"]["arguments"] for m in client.messages for call in m.get("toolCalls", ())]
            assert text == ARGS
    assert [
        record
        for record in caplog.records
        if record.name.startswith("callstream") and record.levelno >= logging.WARNING
    ] == []


def unchunked_as_far(answer: bytes) -> bytes:
    """What was whole of an answer that broke off."""
    body, rest = bytearray(), answer.partition(b"\r\n\r\n")[2]
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        rest = rest[length + 2 :]
    return bytes(body)


@pytest.mark.slow
async def test_slow_reader_is_cut_off_by_a_heartbeat_too(
    cs: Callstream, stalling: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing more comes of the run, and what came before still waits."""
    agent = writer()
    caplog.set_level(logging.INFO, logger="callstream.server")
    async with served(
        agent, callstream=cs, settings=ServerSettings(stall_seconds=0.5, heartbeat_seconds=0.1)
    ) as server:
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            stalled = stalling(server.port, get(f"/runs/{stream.run_id}/events"))
            await stalled.read(1)
            connections = len(waiting(server))
            beside = asyncio.create_task(stream.all())  # this one reads, and stays
            agent.step(PIECES - 1)
            await until(lambda: "accepted no data" in caplog.text)
            await until(lambda: len(waiting(server)) < connections)
            agent.step(10)
            assert (await beside)[-1]["outcome"] == {"type": "success"}


async def test_a_stalled_readers_run_goes_on(cs: Callstream, stalling: Any) -> None:
    """The one who asked for the run is the one who does not read."""
    agent = writer()
    async with served(agent, callstream=cs, settings=ServerSettings(stall_seconds=0.3)) as server:
        stalled = stalling(server.port, post("/agui", run_input()))
        await stalled.read(1)
        agent.step(PIECES + 2)
        async with asyncio.timeout(60):
            while not agent.executed:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        [row] = await cs.journal.runs()
        assert (await server.finished(row.run_id))["outcome"] == "finished"
        stalled.socket.close()


class Wakes:
    """What the streams of a server have an event loop wake for: timers, and tasks that are not the test's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pending = self.most = self.fired = self.tasks = 0
        self._call_at = loop.call_at

    def call_at(self, when: float, callback: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:
        if not getattr(callback, "__module__", "").startswith("callstream.server"):
            return self._call_at(when, callback, *args, **options)
        self.pending += 1
        self.most = max(self.most, self.pending)

        def fire() -> None:
            self.pending -= 1
            self.fired += 1
            callback(*args)

        return self._call_at(when, fire, **options)

    def task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        self.tasks += getattr(work, "__qualname__", "").startswith("EventStream")
        return asyncio.Task(work, loop=loop, **options)


async def test_idle_streams_wake_the_loop_together(
    cs: Callstream, stalling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, one timer beats for all of them, and a heartbeat is sent without a task."""
    agent, loop = Stepping(), asyncio.get_running_loop()
    async with (
        served(agent, callstream=cs, settings=ServerSettings(heartbeat_seconds=0.3, shutdown_seconds=0.1)) as server,
        server.run() as stream,
    ):
        await stream.until("TOOL_CALL_START")
        readers = [stalling(server.port, get(f"/runs/{stream.run_id}/events")) for _ in range(60)]
        for reader in readers:
            await reader.read(1)
        await stream.response.aclose()
        wakes = Wakes(loop)
        monkeypatch.setattr(loop, "call_at", wakes.call_at)
        loop.set_task_factory(wakes.task)
        for reader in readers:
            heard = b""
            while heard.count(b": keep-alive") < 2:
                heard += await reader.read()
        loop.set_task_factory(None)
        assert wakes.fired > 1
        assert (wakes.most, wakes.tasks) == (1, 0)
        for reader in readers:
            reader.socket.close()  # a server that ends waits for those who have not read everything
