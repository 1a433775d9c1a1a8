"""Where runs and calls are read: in a journal, or from a server that has one."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from callstream import codec
from callstream.calls import FINAL, Call, CallState
from callstream.cli.client import ServerClient
from callstream.cli.output import CommandError, misused
from callstream.cli.place import archive_address, hide_password, journal_url, open_place
from callstream.events import Record, RunEnded
from callstream.journal import Journal, RunRow

_T = TypeVar("_T")
_sleep = asyncio.sleep
_RETRIES = 5
_RUNS = 500
"""How many runs of a server are looked through."""


class RecordSource(Protocol):
    """What a command reads from. ``where`` names it for people."""

    where: str

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        """Runs, the newest first."""
        ...

    async def calls(
        self, *, run_id: str | None, thread_id: str | None, states: Sequence[CallState] | None, limit: int
    ) -> list[Call]:
        """The newest calls, the oldest of them first, without arguments."""
        ...

    async def call(self, call_id: str) -> Call | None: ...

    def follow(self, run_id: str) -> AsyncGenerator[Record | None, None]:
        """A run's records until its end. None means: forget what came, all of it follows again."""
        ...


@asynccontextmanager
async def source_of(options: argparse.Namespace) -> AsyncIterator[RecordSource]:
    """The server that ``--server`` names, else the journal."""
    server = options.server or (os.environ.get("CALLSTREAM_SERVER") if options.journal is None else None)
    if server:
        if options.journal is not None:
            raise misused("give --journal or --server, not both")
        yield ServerSource(ServerClient(server))
        return
    url = journal_url(options)
    async with open_place(url, archive=archive_address(options)) as journal:
        yield JournalSource(journal, hide_password(url))


class JournalSource:
    """See ``RecordSource``."""

    def __init__(self, journal: Journal, where: str) -> None:
        self.where = where
        self._journal = journal

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        return await self._journal.runs(run_id=run_id, thread_id=thread_id, active=active, limit=limit)

    async def calls(
        self, *, run_id: str | None, thread_id: str | None, states: Sequence[CallState] | None, limit: int
    ) -> list[Call]:
        if run_id is not None or (states is not None and not FINAL & set(states)):
            # What is open is little, and indexed.
            return (await self._journal.calls(run_id=run_id, thread_id=thread_id, states=states))[-limit:]
        # The journal lists from its beginning; from its end one goes run by run.
        found: list[Call] = []
        for row in await self._journal.runs(thread_id=thread_id):
            found = [*await self._journal.calls(run_id=row.run_id, states=states), *found]
            if len(found) >= limit:
                break
        return found[-limit:]

    async def call(self, call_id: str) -> Call | None:
        return await self._journal.call(call_id)

    async def follow(self, run_id: str) -> AsyncGenerator[Record | None, None]:
        async for record in self._journal.follow(run_id):
            yield record


class ServerSource:
    """See ``RecordSource``."""

    def __init__(self, client: ServerClient) -> None:
        self.where = client.url
        self._client = client

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        if run_id is not None:
            return [_convert(await self._client.get(f"/api/runs/{quote(run_id, safe='')}"), RunRow)]
        query = {"thread_id": thread_id, "active": None if active is None else str(active).lower(), "limit": limit}
        return [_convert(row, RunRow) for row in (await self._client.get("/api/runs", query))["runs"]]

    async def calls(
        self, *, run_id: str | None, thread_id: str | None, states: Sequence[CallState] | None, limit: int
    ) -> list[Call]:
        if run_id is not None:
            run_ids = [run_id]
        else:
            run_ids = [row.run_id for row in await self.runs(thread_id=thread_id, limit=_RUNS)]
        found: list[Call] = []
        for each in run_ids:  # from its end, run by run, as with a journal
            answer = await self._client.get("/api/calls", {"run_id": each, "limit": _RUNS})
            calls = [_convert(call, Call) for call in answer["calls"]]
            found = [*(call for call in calls if states is None or call.state in states), *found]
            if len(found) >= limit:
                break
        return found[-limit:]

    async def call(self, call_id: str) -> Call | None:
        return _convert(await self._client.get(f"/api/calls/{quote(call_id, safe='')}"), Call)

    async def follow(self, run_id: str) -> AsyncGenerator[Record | None, None]:
        """Goes on where it was when the connection breaks."""
        seq, tries = 0, 0
        path = f"/runs/{quote(run_id, safe='')}/events"
        while True:
            async with aclosing(self._client.events(path, {"after": seq})) as events:
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
