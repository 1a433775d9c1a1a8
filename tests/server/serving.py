"""A server on a real port, in this event loop, and a client that reads what it sends."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette

from callstream.server import create_app
from callstream.server.serving import config_for


class _Prompt(uvicorn.Server):
    """uvicorn that ends when it is told to: its own looks for that ten times a second, which hundreds of tests wait for."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.leave = asyncio.Event()

    async def main_loop(self) -> None:
        self.ready.set()
        ticking = asyncio.create_task(super().main_loop())
        await self.leave.wait()
        ticking.cancel()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def running(config: uvicorn.Config) -> AsyncIterator[uvicorn.Server]:
    server = _Prompt(config)
    task = asyncio.create_task(server._serve())
    started = asyncio.create_task(server.ready.wait())
    await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    assert not task.done(), "the server did not start"
    try:
        yield server
    finally:
        server.leave.set()
        await task


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[Server]:
    async with running(config_for(app, host="127.0.0.1", port=0, log_level="error")) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            made = Server(app, client, port)
            made.connections = server.server_state.connections
            yield made


@asynccontextmanager
async def served(agent: Any, **options: Any) -> AsyncIterator[Server]:
    async with serving(create_app(agent, **options)) as server:
        yield server


class Server:
    """What tests ask of it. ``headers`` go with every request."""

    def __init__(self, app: Starlette, client: httpx.AsyncClient, port: int) -> None:
        self.app = app
        self.client = client
        self.port = port
        self.headers: dict[str, str] = {}
        self.connections: set[Any] = set()
        """uvicorn's, of this moment."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **given: Any
    ) -> AsyncIterator[Stream]:
        async with self.client.stream(method, path, headers={**self.headers, **(headers or {})}, **given) as response:
            if response.status_code != 200:
                await response.aread()
            yield Stream(response)

    @asynccontextmanager
    async def run(self, text: str = "Go", *, thread: str = "thread", **given: Any) -> AsyncIterator[Stream]:
        async with self.stream("POST", "/agui", json=run_input(text, thread=thread, **given)) as stream:
            yield stream

    @asynccontextmanager
    async def connect(self, thread: str = "thread") -> AsyncIterator[Stream]:
        async with self.stream("POST", f"/threads/{thread}/connect") as stream:
            yield stream

    async def get(self, path: str, **given: Any) -> httpx.Response:
        return await self.client.get(path, headers=self.headers, **given)

    async def post(self, path: str, **given: Any) -> httpx.Response:
        return await self.client.post(path, headers=self.headers, **given)

    async def finished(self, run_id: str) -> dict[str, Any]:
        """The run's row, once it has ended."""
        while True:
            row: dict[str, Any] = (await self.get(f"/api/runs/{run_id}")).json()
            if row["outcome"] is not None:
                return row
            await asyncio.sleep(0.02)

    async def is_left(self) -> None:
        """Waits until the server has seen that its last client has closed its connection."""
        while self.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Stream:
    """Server-sent events: their data as JSON, with ``id`` and ``event`` of the last one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.status = response.status_code
        self.headers = response.headers
        self.id: str | None = None
        self.event: str | None = None
        self.comments: list[str] = []
        self._lines = response.aiter_lines()

    @property
    def run_id(self) -> str:
        return str(self.headers["x-run-id"])

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        kind: str | None = None
        async for line in self._lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line.startswith(":"):
                self.comments.append(value)
            elif name == "id":
                self.id = value
            elif name == "event":
                kind = value
            elif name == "data":
                self.event, kind = kind, None
                yield json.loads(value)

    async def all(self) -> list[dict[str, Any]]:
        return [event async for event in self]

    async def until_broken(self) -> list[dict[str, Any]]:
        """The events up to where the connection breaks, which a client does not take for an end."""
        seen = []
        try:
            async for event in self:
                seen.append(event)
        except httpx.RemoteProtocolError as error:
            assert "incomplete chunked read" in str(error)
            return seen
        raise AssertionError(f"the stream has ended well, with {seen[-1:]}")

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """The events up to the first of that type."""
        seen = []
        async for event in self:
            seen.append(event)
            if event.get("type") == kind:
                return seen
        raise AssertionError(f"no {kind} came, but {[event.get('type') for event in seen]}")


def run_input(text: str | None = "Go", *, thread: str = "thread", **given: Any) -> dict[str, Any]:
    messages = [] if text is None else [{"id": f"u-{uuid.uuid4().hex[:8]}", "role": "user", "content": text}]
    return {
        "threadId": thread,
        "runId": f"run-{uuid.uuid4().hex[:8]}",
        "protocolVersion": "1.0",
        "messages": messages,
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
        **given,
    }


def tool_message(call_id: str, content: Any) -> dict[str, Any]:
    return {"id": f"t-{uuid.uuid4().hex[:8]}", "role": "tool", "toolCallId": call_id, "content": json.dumps(content)}
