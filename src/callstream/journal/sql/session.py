"""A database as the journal uses it: how connections are obtained, and what they are asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar

import msgspec

from callstream.calls import FINAL, CallState
from callstream.events import Record
from callstream.journal.plan import Held, Owned, Plan
from callstream.journal.rows import RecordColumns, Source
from callstream.journal.store import CallFilter, RunFilter

_T = TypeVar("_T")
Rows: TypeAlias = Sequence[tuple[Any, ...]]


class Session(ABC):
    """A connection while it is in use. Queries are called by name, with named arguments.

    Within a transaction it is ``Tables``.
    """

    def __init__(self, sql: Mapping[str, str]) -> None:
        self.sql = sql

    @abstractmethod
    async def fetch(self, text: str, values: Mapping[str, Any]) -> Rows:
        """The rows of a query given as text, which may be a named one that was completed."""

    @abstractmethod
    async def run(self, query: str, **values: Any) -> int:
        """Returns how many rows were changed."""

    @abstractmethod
    async def run_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Runs a query with positional arguments once for each row."""

    @abstractmethod
    async def upgrade(self, version: int) -> None:
        """Brings the schema from the previous version to this one."""

    @abstractmethod
    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        """See ``StoreReader``."""

    @abstractmethod
    async def write(self, plan: Plan) -> None:
        """See ``Tables``."""

    def snapshot(self) -> AbstractAsyncContextManager[Any]:
        """Within it, all queries see the same moment."""
        return nullcontext()

    async def rows(self, query: str, **values: Any) -> Rows:
        return await self.fetch(self.sql[query], values)

    async def row(self, query: str, **values: Any) -> tuple[Any, ...] | None:
        return next(iter(await self.rows(query, **values)), None)

    async def listed(self, query: str, wanted: RunFilter, limit: int | None, *, newest: bool = False) -> Rows:
        text, values = build_list(self.sql, query, wanted, "DESC" if newest else "ASC")
        return await self.fetch(text, {**values, "limit": limit})

    # -- tables --------------------------------------------------------------------------------------------------------

    async def owned_runs(self, run_ids: Sequence[str]) -> Iterable[Owned]:
        rows = await self.rows("load_run", run_ids=run_ids)
        return [Owned(row[0], row[1]) if row[3] is None else _owned(row) for row in rows]

    async def fill(self, runs: Mapping[int, Owned]) -> None:
        for key, *source, number in await self.rows("load_run_sources", run_keys=list(runs)):
            runs[key].sources[Source(*source)] = number
        for row in await self.rows("load_run_calls", run_keys=list(runs)):
            runs[row[1]].calls[row[0]] = _held(row)

    async def held_calls(self, call_ids: Sequence[str]) -> Mapping[str, Held]:
        return {row[0]: _held(row) for row in await self.rows("load_call", call_ids=call_ids)}

    async def exclusive_runs(self, thread_ids: Sequence[str]) -> Mapping[str, str]:
        return dict(await self.rows("busy_threads", thread_ids=thread_ids))

    async def stored(self, run_key: int, first: int, last: int) -> Sequence[tuple[int, str]] | None:
        row = await self.row("is_compacted", run_key=run_key)
        if row is not None and row[0]:
            return None
        return await self.rows("stored_rows", run_key=run_key, first=first, last=last)

    async def events_of(self, run_keys: Sequence[int]) -> Iterable[Sequence[Any]]:
        return await self.rows("events_of_run", run_keys=run_keys)

    async def orphans(self, writer: str, limit: int, run_id: str | None = None, after: int = 0) -> Iterable[Owned]:
        """First the dead writers are fenced: any batch they had under way is finished by then, and any later one is
        refused. Only after that are their runs read.
        """
        dead = [name for (name,) in await self.rows("fence_dead", writer=writer, limit=limit)]
        if not dead:
            return []
        return map(_owned, await self.rows("orphaned_runs", dead=dead, limit=limit, run_id=run_id, after=after))

    async def take_over(self, writer: str, run_keys: Sequence[int]) -> None:
        await self.run("take_over", writer=writer, run_keys=run_keys)

    async def copy_pieces(self, records: Sequence[RecordColumns]) -> None:
        live = {key for (key,) in await self.rows("lock_live", run_keys=list({record[0] for record in records}))}
        await self.run_many("copy_piece", [record for record in records if record[0] in live])


def build_list(sql: Mapping[str, str], name: str, wanted: RunFilter, way: str = "ASC") -> tuple[str, dict[str, Any]]:
    """A query with the filter's conditions in it, and their values by name."""
    conditions = _conditions(wanted)
    where = " AND ".join(sql[f"where_{condition}"] for condition in conditions or ["any"])
    return sql[name].replace("{where}", where).replace("{way}", way), conditions


def _conditions(wanted: RunFilter) -> dict[str, Any]:
    """The conditions of a filter by name, each with its value; True for one that takes none."""
    found = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
    active = found.pop("active", None)
    if active is not None:
        found["active" if active else "ended"] = True
    if isinstance(wanted, CallFilter) and wanted.states is not None:
        found["states"] = [state.value for state in wanted.states]
        if FINAL.isdisjoint(wanted.states):
            found["open"] = True
    return found


def _owned(row: Sequence[Any]) -> Owned:
    run_id, key, writer, epoch, started_at, last_seq, last_ms, ended = row
    return Owned(run_id, key, writer or "", epoch, started_at, last_seq, last_ms, bool(ended))


def _held(row: Sequence[Any]) -> Held:
    return Held(row[0], row[1], row[2], CallState(row[3]), bool(row[4]))


class Database(ABC):
    """Gives out sessions. Everything but ``read`` is used only where the store is."""

    where: str

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def asking(self) -> AbstractAsyncContextManager[Session]:
        """A session without a transaction."""

    @abstractmethod
    def writing(self, *, durable: bool = False, erasing: bool = False) -> AbstractAsyncContextManager[Session]:
        """A transaction. If anything goes wrong, nothing is kept.

        ``durable``: once committed it is on the disk, whatever the setting for other transactions. ``erasing``: deleted
        content is overwritten, if the database can do that.
        """

    @abstractmethod
    async def give_back(self) -> None:
        """Returns room that is no longer needed to the disk."""

    async def ask(self, query: str, **values: Any) -> Rows:
        async with self.asking() as session:
            return await session.rows(query, **values)

    async def write(self, query: str, *, durable: bool = False, **values: Any) -> int:
        """One query in a transaction of its own; returns how many rows were changed."""
        async with self.writing(durable=durable) as session:
            return await session.run(query, **values)

    async def read(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        """Awaits work with a session that is used for reading only, wherever the reader may be used."""
        async with self.asking() as session:
            return await work(session, *args)
