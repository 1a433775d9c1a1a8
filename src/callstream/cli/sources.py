"""Where runs and calls are read: from a journal, or from a server that has one."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from callstream import codec
from callstream.calls import FINAL, Call, CallState
from callstream.cli.options import (
    LOOPBACK,
    address,
    place_of,
    refuse_secret,
)
from callstream.cli.output import CommandError, misused
from callstream.events import Record, RunEnded
from callstream.journal import Journal, RunRow
from callstream.wire.framing import SseFraming

_T = TypeVar("_T")

if TYPE_CHECKING:
    import httpx


_SECONDS = 30.0
_sleep = asyncio.sleep
_RETRIES = 5
_RUNS = 500
"""How many of a server's runs are searched."""


class JournalSource:
    """A journal. ``where`` names it for people."""

    def __init__(self, journal: Journal, where: str) -> None:
        self.where = where
        self._journal = journal
        self.runs = journal.runs
        self.call = journal.call

    async def calls(
        self, *, run_id: str | None, thread_id: str | None, states: Sequence[CallState] | None, limit: int
    ) -> list[Call]:
        """The newest calls, the oldest of them first, without arguments."""
        if run_id is not None or (states is not None and not FINAL & set(states)):
            # Open calls are few, and indexed.
            return (await self._journal.calls(run_id=run_id, thread_id=thread_id, states=states))[-limit:]
        # The journal lists calls from its beginning; to start from its end, go run by run.
        found: list[Call] = []
        for row in await self._journal.runs(thread_id=thread_id):
            found = [*await self._journal.calls(run_id=row.run_id, states=states), *found]
            if len(found) >= limit:
                break
        return found[-limit:]

    async def follow(self, run_id: str) -> AsyncGenerator[Record | None, None]:
        """A run's records until its end."""
        async for record in self._journal.follow(run_id):
            yield record


class ServerSource:
    """The same over a server's HTTP API. ``where`` is its address."""

    def __init__(self, url: str) -> None:
        self.where = refuse_secret(url, "CALLSTREAM_TOKEN").rstrip("/")
        parts = address(self.where)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise misused(f"expected the server's address, such as http://127.0.0.1:8000, got {url!r}")
        self._is_local = parts.hostname in LOOPBACK
        self._token = os.environ.get("CALLSTREAM_TOKEN")

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        if run_id is not None:
            return [_convert(await self.ask(f"/api/runs/{quote(run_id, safe='')}"), RunRow)]
        query = {"thread_id": thread_id, "active": None if active is None else str(active).lower(), "limit": limit}
        return [_convert(row, RunRow) for row in (await self.ask("/api/runs", query))["runs"]]

    async def calls(
        self, *, run_id: str | None, thread_id: str | None, states: Sequence[CallState] | None, limit: int
    ) -> list[Call]:
        if run_id is not None:
            run_ids = [run_id]
        else:
            run_ids = [row.run_id for row in await self.runs(thread_id=thread_id, limit=_RUNS)]
        found: list[Call] = []
        for each in run_ids:  # from the end, run by run, as with a journal
            answer = await self.ask("/api/calls", {"run_id": each, "limit": _RUNS})
            calls = [_convert(call, Call) for call in answer["calls"]]
            found = [*(call for call in calls if states is None or call.state in states), *found]
            if len(found) >= limit:
                break
        return found[-limit:]

    async def call(self, call_id: str) -> Call | None:
        return _convert(await self.ask(f"/api/calls/{quote(call_id, safe='')}"), Call)

    async def follow(self, run_id: str) -> AsyncGenerator[Record | None, None]:
        """Reconnects where it was if the connection breaks. None means: discard all records, they all follow again."""
        seq, tries = 0, 0
        path = f"/runs/{quote(run_id, safe='')}/events"
        while True:
            async with aclosing(self.events(path, {"after": seq})) as events:
                async for name, data in events:
                    tries = 0
                    if name == b"end":
                        return
                    if name == b"compacted":
                        seq = 0
                        yield None
                        break  # and from the beginning
                    if name in (b"", b"message"):
                        record = _record(data)
                        seq = record.seq
                        yield record
                        if isinstance(record.event, RunEnded):
                            return
                else:
                    tries += 1
                    if tries > _RETRIES:
                        raise CommandError(f"{self.where} closed the stream of run {run_id} {tries} times")
                    await _sleep(0.2 * 2**tries)

    async def ask(self, path: str, query: Mapping[str, Any] | None = None, *, body: Any = None) -> Any:
        """The JSON of the server's answer. With a ``body`` the request is a POST."""
        async with self._open(path, query, body) as response:
            text = await response.aread()
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise CommandError(f"{self.where}{path} did not send JSON; is it a Callstream server?") from None

    async def events(
        self, path: str, query: Mapping[str, Any] | None = None, *, body: Any = None
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """The server-sent events of a response: names and data. A stream that breaks off just ends."""
        framing = SseFraming()
        async with self._open(path, query, body) as response:
            import httpx

            try:
                async for piece in response.aiter_bytes():
                    for frame in framing.feed(piece):
                        if frame.error is not None:
                            raise CommandError(f"{self.where} did not send events: {frame.error}")
                        if frame.payload is not None:
                            yield frame.event, frame.payload
            except httpx.HTTPError:
                pass  # broken off

    @asynccontextmanager
    async def _open(self, path: str, query: Mapping[str, Any] | None, body: Any) -> AsyncIterator[httpx.Response]:
        """Sends a request to the server. Values of the query that are None are left out."""
        try:
            import httpx
        except ImportError:
            raise CommandError("asking a server needs httpx: pip install 'callstream[cli]'") from None
        headers = {"accept": "application/json, text/event-stream"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        params = {name: each for name, each in (query or {}).items() if each is not None}
        # With an explicit transport, httpx ignores the environment's proxies, which could not reach this machine.
        transport = httpx.AsyncHTTPTransport() if self._is_local else None
        async with httpx.AsyncClient(
            headers=headers, timeout=_SECONDS, transport=transport, follow_redirects=True
        ) as client:
            try:
                method = "GET" if body is None else "POST"
                async with client.stream(method, f"{self.where}{path}", params=params, json=body) as response:
                    if response.is_error:
                        await response.aread()
                        raise CommandError(f"{self.where} refused the request: {_message(response)}")
                    yield response
            except httpx.HTTPError as error:
                raise CommandError(f"cannot reach {self.where}: {str(error) or type(error).__name__}") from None


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.reason_phrase}"


RecordSource: TypeAlias = JournalSource | ServerSource
"""What a command reads from."""


def server_of(options: argparse.Namespace) -> ServerSource:
    """The server that a command needs: ``--server``, or ``CALLSTREAM_SERVER``."""
    found = options.server or os.environ.get("CALLSTREAM_SERVER")
    if not found:
        raise misused("expected a server: give --server URL or set CALLSTREAM_SERVER")
    return ServerSource(found)


@asynccontextmanager
async def source_of(options: argparse.Namespace) -> AsyncIterator[RecordSource]:
    """The server that ``--server`` names, else the journal."""
    server = options.server or (os.environ.get("CALLSTREAM_SERVER") if options.journal is None else None)
    if server:
        if options.journal is not None:
            raise misused("give --journal or --server, not both")
        yield ServerSource(server)
        return
    place = place_of(options)
    async with place.open() as journal:
        yield JournalSource(journal, str(place))


def _record(data: bytes) -> Record:
    try:
        value: Any = codec.decode(data)
    except ValueError as error:
        raise CommandError(f"the server sent invalid JSON: {error}") from error
    return _convert(value, Record)


def _convert(value: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CommandError(f"the server's response does not match this version of callstream: {error}") from error
