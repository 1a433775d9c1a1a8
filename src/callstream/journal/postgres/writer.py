"""Writing batches into PostgreSQL: one connection, and the memory of what was written through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec

from callstream.calls import CallState
from callstream.errors import CallstreamError
from callstream.journal.follow import Followers
from callstream.journal.owned import Append, Held, Memory, Owned, RunFacts, claimed
from callstream.journal.plan import Plan, Repeat, left_executing, repeated
from callstream.journal.postgres.link import LONG_SECONDS, PASSING, Link, failure
from callstream.journal.rows import Source, json_text, known_events
from callstream.journal.store import Committed, StoreAway

_NOTICE_RUNS = 500
"""Run numbers in one notice; PostgreSQL allows 8,000 bytes."""


class Stale(Exception):
    """The store is not what the memory says."""


class PostgresWriter:
    """Its memory holds from one turn to the next; when the turn is lost, both are taken anew."""

    def __init__(
        self, link: Link, sql: Mapping[str, str], channel: str, followers: Followers, writer: str, lease_ttl: float
    ) -> None:
        self.where = link.where
        self._link = link
        self._sql = sql
        self._channel = channel
        self._followers = followers
        self._writer = writer
        self._ttl = lease_ttl
        self._turn: int | None = None
        self._memory = Memory()
        self._connection: Any = None

    async def close(self) -> None:
        if self._connection is not None:
            await self._link.close_quietly(self._connection)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """The connection, made anew if it broke."""
        with failure(self.where):
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._link.connect()
            try:
                yield self._connection
            except (*PASSING, asyncpg.InterfaceError, asyncio.CancelledError):
                # What it was doing is not known any more.
                self._connection.terminate()
                self._connection = None
                raise

    async def commit(self, batch: Sequence[Append]) -> Committed:
        async with self._connected() as connection:
            for _ in range(5):
                try:
                    return await self._commit(connection, batch)
                except Stale:
                    self._forget()
                except BaseException:
                    self._forget()
                    raise
        raise StoreAway(f"{self.where} changed under the writer's hands five times")

    def _forget(self) -> None:
        self._turn = None
        self._memory.clear()

    async def _commit(self, connection: Any, batch: Sequence[Append]) -> Committed:
        if self._turn is None:
            # Waits for what a broken connection is still doing; what it has not begun is refused from now on.
            self._turn = await connection.fetchval(self._sql["take_turn"], self._writer, self._ttl)
        plan = Plan(batch, self._memory, time.time())
        if others := plan.add_pieces():
            rest = [batch[place] for place in others]
            await self._load(connection, rest)
            busy = await self._busy(connection, rest)
            plan.add_others(others, await self._named_calls(connection, rest), busy=busy)
        if plan.bases:
            await self.write(connection, plan, self._turn)
            self._turn += 1
        outcomes = [
            await self._repeated(connection, append, outcome) if isinstance(outcome, Repeat) else outcome
            for append, outcome in zip(batch, plan.outcomes, strict=True)
        ]
        return Committed(outcomes, plan.changed_runs, plan.records_of(self._followers.runs()))

    async def _named_calls(self, connection: Any, batch: Sequence[Append]) -> dict[str, Held]:
        names = self._memory.unknown_calls(batch)
        rows = await connection.fetch(self._sql["load_call"], names) if names else ()
        return {row[0]: _held(row) for row in rows}

    async def _busy(self, connection: Any, batch: Sequence[Append]) -> dict[str, str]:
        threads = self._memory.exclusive_threads(batch)
        return dict(await connection.fetch(self._sql["busy_threads"], threads)) if threads else {}

    async def _load(self, connection: Any, batch: Sequence[Append]) -> None:
        unknown = self._memory.unknown_runs(batch)
        if not unknown:
            return
        mine = []
        for row in await connection.fetch(self._sql["load_run"], unknown):
            if row[3] is None:  # it has no epoch: there is no such run yet
                owned = Owned(row[0], row[1], self._writer, 1, is_new=True)
            else:
                owned = claimed(RunFacts(*row), self._writer)
                if owned.refusal is None:
                    mine.append(owned)
            self._memory.add(owned)
        if mine:
            await self.fill(connection, mine)
            for owned in mine:
                self._memory.add(owned)

    async def fill(self, connection: Any, runs: Sequence[Owned]) -> None:
        by_key = {owned.key: owned for owned in runs}
        for key, *source, number in await connection.fetch(self._sql["load_run_sources"], list(by_key)):
            by_key[key].sources[Source(*source)] = number
        for row in await connection.fetch(self._sql["load_run_calls"], list(by_key)):
            by_key[row[1]].calls[row[0]] = _held(row)

    async def resumed(self, connection: Any, memory: Memory) -> Mapping[int, Sequence[Held]]:
        """The calls of other runs that each of those runs was executing. They close their own, and each other's."""
        events: dict[int, list[tuple[int, str]]] = {owned.key: [] for owned in memory.runs.values()}
        for key, kind, body in await connection.fetch(self._sql["events_of_run"], list(events), timeout=LONG_SECONDS):
            events[key].append((kind, body))
        names = {
            key: [call_id for call_id in left_executing(known_events(said)) if call_id not in memory.calls]
            for key, said in events.items()
        }
        rows = await connection.fetch(self._sql["load_call"], list(chain.from_iterable(names.values())))
        found = {row[0]: _held(row) for row in rows}
        return {key: [found[call_id] for call_id in wanted if call_id in found] for key, wanted in names.items()}

    async def _repeated(self, connection: Any, append: Append, repeat: Repeat) -> int | CallstreamError:
        row = await connection.fetchrow(self._sql["read_run"], append.run_id)
        stored = await connection.fetch(self._sql["stored_rows"], repeat.run.key, repeat.first, repeat.last)
        return repeated(append, repeat, [tuple(columns) for columns in stored], row is not None and row[4])

    async def write(self, connection: Any, plan: Plan, turn: int | None) -> None:
        """Without a turn, what is written to is locked by the transaction."""
        try:
            await connection.execute(
                self._sql["append"],
                self._writer,
                turn,
                *zip(*plan.records, strict=True),
                _rest(plan),
                self._channel,
                self._notices(plan),
            )
        except (asyncpg.UniqueViolationError, asyncpg.ExclusionViolationError) as error:
            # Somebody else made that run or call a moment ago.
            raise Stale from error
        except asyncpg.PostgresError as error:
            if error.sqlstate == "CS001":
                raise Stale from error
            raise

    def _notices(self, plan: Plan) -> list[str]:
        if not self._channel:
            return []
        keys = [str(run.key) for run in plan.bases]
        return [",".join(keys[start : start + _NOTICE_RUNS]) for start in range(0, len(keys), _NOTICE_RUNS)]


def _held(row: Sequence[Any]) -> Held:
    return Held(row[0], row[1], row[2], CallState(row[3]))


def _rest(plan: Plan) -> str | None:
    """All that a batch of pieces has not, as one JSON argument."""
    rest = {
        "runs": [change for change in plan.runs.values() if change.is_new],
        "ends": [
            {**msgspec.structs.asdict(change), "last_seq": run.last_seq}
            for run, change in plan.runs.items()
            if change.outcome is not None
        ],
        "sources": plan.sources,
        "calls": [change for change in plan.calls.values() if change.old_state is None],
        "changes": [change for change in plan.calls.values() if change.old_state is not None],
    }
    return json_text(msgspec.to_builtins(rest)) if any(rest.values()) else None
