"""A gateway on a real port before a scripted provider; connections that break; SDKs for Node."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from callstream import Callstream
from callstream.calls import CallState
from callstream.gateway import GatewaySettings, create_gateway
from callstream.testing import ScriptedProvider
from tests.npm import install
from tests.server.serving import Server, serving

NAMES = {"anthropic": "anthropic", "openai_chat": "openai", "openai_responses": "openai", "gemini": "gemini"}


class Gate:
    """``base_url`` is what the SDK is given in the place of its provider's."""

    def __init__(self, callstream: Callstream, server: Server, provider: ScriptedProvider) -> None:
        self.callstream = callstream
        self.server = server
        self.provider = provider
        self.base_url = f"http://127.0.0.1:{server.port}/{NAMES[provider.wire]}" + provider.base_url.removeprefix(
            provider.origin
        )

    async def runs(self) -> list[Any]:
        return sorted(await self.callstream.journal.runs(), key=lambda run: run.started_at)

    async def arguments(self, run_id: str) -> list[tuple[str, Any]]:
        """The calls of a run, by name, with their arguments."""
        rows = await self.callstream.journal.calls(run_id=run_id)
        calls = [await self.callstream.journal.call(row.call_id) for row in rows]
        return [(call.name, json.loads(call.args_json or "null")) for call in calls if call is not None]


@asynccontextmanager
async def gate(
    wire: str,
    scripts: Any,
    *,
    key: str | None = None,
    settings: GatewaySettings | None = None,
    guards: Sequence[Any] = (),
    journal: str = "memory:",
    upstream: str | None = None,
    shutdown_seconds: float = 0.0,
    **options: Any,
) -> AsyncIterator[Gate]:
    callstream = Callstream(journal, guards=guards)
    settings = msgspec.structs.replace(settings or GatewaySettings(), shutdown_seconds=shutdown_seconds)
    script = scripts if callable(scripts) else list(scripts)
    async with ScriptedProvider(wire, script, **options) as provider:
        base = provider.origin if NAMES[wire] == "gemini" else f"{provider.origin}/v1"
        app = create_gateway(callstream, upstreams={NAMES[wire]: upstream or base}, key=key, settings=settings)
        async with serving(app) as server:
            yield Gate(callstream, server, provider)


@asynccontextmanager
async def before(provider: Any, settings: GatewaySettings, origin: str | None = None) -> AsyncIterator[Gate]:
    """A gateway before a provider, or before what stands before that."""
    name, origin = NAMES[provider.wire], origin or provider.origin
    callstream = Callstream("memory:")
    base = origin if name == "gemini" else f"{origin}/v1"
    async with serving(create_gateway(callstream, upstreams={name: base}, settings=settings)) as server:
        yield Gate(callstream, server, provider)


def port_of(provider: Any) -> int:
    return int(provider.origin.rpartition(":")[2])


async def until_unread(gateway: Gate) -> None:
    """Waits until the gateway has seen its clients leave."""
    answers = gateway.server.app.state.gateway._answers
    async with asyncio.timeout(20):
        while any(answer.readers for answer in answers._answers.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def awaiting(gateway: Gate) -> Any:
    """The call that asks a person, when it is there."""
    journal = gateway.callstream.journal
    for _ in range(600):
        rows = await journal.calls(states=[CallState.AWAITING])
        if rows:
            call: Any = await journal.call(rows[0].call_id)
            return call
        await asyncio.sleep(0.05)
    raise AssertionError("nobody was asked")


class Cutter:
    """Stands before a server and breaks connections: the next after so many events of its answer.

    ``next_cut``: None lets a connection be.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self.next_cut: int | None = None
        self.cuts = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in [*self._passing]:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        asking = asyncio.create_task(_pass(reader, back))
        try:
            await self._answer(there, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            asking.cancel()
            back.transport.abort()
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen, is_body = b"", False
        while data := await reader.read(65536):
            if self.next_cut is None:
                writer.write(data)
                await writer.drain()
                continue
            seen += data
            if not is_body and b"\r\n\r\n" in seen:
                head, _, seen = seen.partition(b"\r\n\r\n")
                is_body = b"text/event-stream" in head
                if self.next_cut:
                    writer.write(head + b"\r\n\r\n")
                if not is_body:
                    writer.write(seen)
                    seen = b""
                    continue
            while is_body and self.next_cut is not None:
                end = _ENDS.search(seen)
                if end is None and self.next_cut:
                    break
                if not self.next_cut:
                    self.next_cut = None
                    self.cuts += 1
                    await writer.drain()
                    if not await self._goes_on(writer):
                        return
                    break
                assert end is not None
                writer.write(seen[: end.end()])
                seen = seen[end.end() :]
                self.next_cut -= 1
            if is_body and (self.next_cut is None or seen == _LAST_CHUNK):
                writer.write(seen)
                seen, is_body = b"", False

    async def _goes_on(self, writer: asyncio.StreamWriter) -> bool:
        """After so many events: whether the rest of the answer follows."""
        writer.transport.abort()
        return False


class Valve(Cutter):
    """Stands before a provider and keeps the rest of an answer back until ``open`` is set, in place of cutting it off."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.open = asyncio.Event()

    async def _goes_on(self, writer: asyncio.StreamWriter) -> bool:
        await self.open.wait()
        return True


class Impatient(Cutter):
    """Stands before a server, as proxies do, and breaks connections on which nothing comes for so many seconds."""

    def __init__(self, port: int, seconds: float) -> None:
        super().__init__(port)
        self._seconds = seconds

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(65536))  # the head, which may take its time
        while True:
            try:
                data = await asyncio.wait_for(reader.read(65536), self._seconds)
            except TimeoutError:
                self.cuts += 1
                writer.transport.abort()
                return
            if not data:
                return
            writer.write(data)


_LAST_CHUNK = b"0\r\n\r\n"
_ENDS = re.compile(rb"(?<!\r)(?<!\A0)(?<!\n0)\r?\n\r?\n(?:\r\n)?")
"""Of an event, and of the chunk that it may come in; not of the body."""


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class Node:
    """The official SDKs for Node, in a process of their own."""

    FOLDER = Path(__file__).parent / "node"

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(install, self.FOLDER)
        self._process = await asyncio.create_subprocess_exec(
            *("node", "client.js"),
            cwd=self.FOLDER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=64 * 1024 * 1024,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def ask(self, wire: str, base_url: str, **options: Any) -> Any:
        """``events``: what the SDK gave, the last one of ours with the calls; ``error``: what it raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"wire": wire, "baseURL": base_url, **options}
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        return json.loads(await asyncio.wait_for(self._process.stdout.readline(), 120))
