"""What a PostgreSQL journal knows of packs.

An object is deleted when the database says so for good: what it says of packs is on its disk before anything follows from
it, where ``synchronous_commit`` is off for others, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from callstream.journal.pack import Place
from callstream.journal.packs import Due, PackFigures, PackState
from callstream.journal.postgres.link import LONG_SECONDS, Link


class _Changed(Exception):
    """A run is not where it was."""


class PostgresPacks:
    """See ``Packs``."""

    def __init__(self, link: Link, sql: Mapping[str, str]) -> None:
        self._link = link
        self._sql = sql

    async def due(self, age: float, limit: int) -> Sequence[Due]:
        async with self._link.reading() as connection:
            rows = await connection.fetch(self._sql["due_for_pack"], age, limit, timeout=LONG_SECONDS)
        return [Due(*row) for row in rows]

    async def begin(self, name: str) -> None:
        async with self._durable_transaction() as connection:
            await connection.execute(self._sql["begin_pack"], name)

    async def keep(self, name: str, places: Sequence[Place], size: int, instead_of: str | None) -> bool:
        sql = self._sql
        ordered = sorted(places)
        keys = [place.run_key for place in ordered]
        try:
            async with self._durable_transaction() as connection:
                pack = await connection.fetchval(sql["keep_pack"], name, len(places), size)
                if pack is None:
                    return False
                run_ids = [place.run_id for place in ordered]
                spans = [place.start for place in ordered], [place.size for place in ordered]
                count = await connection.fetchval(sql["pack_runs"], pack, keys, run_ids, *spans, instead_of)
                if count != len(places):
                    raise _Changed
                if instead_of is None:
                    for query in ("delete_archive", "delete_sources", "empty_calls"):
                        await connection.execute(sql[query], keys, timeout=LONG_SECONDS)
                elif not await connection.fetchval(sql["give_up_pack"], instead_of):
                    raise _Changed
        except _Changed:
            return False
        return True

    async def give_up(self, name: str) -> None:
        async with self._durable_transaction() as connection:
            await connection.execute(self._sql["give_up_pack"], name)

    async def give_up_stale(self, age: float) -> None:
        async with self._durable_transaction() as connection:
            await connection.execute(self._sql["give_up_stale"], age)

    async def drop(self, name: str) -> None:
        async with self._link.reading() as connection:
            await connection.execute(self._sql["drop_pack"], name)

    async def listed(self, state: PackState) -> Sequence[str]:
        async with self._link.reading() as connection:
            return [row[0] for row in await connection.fetch(self._sql["list_packs"], state)]

    async def newest(self) -> str | None:
        async with self._link.reading() as connection:
            name: str | None = await connection.fetchval(self._sql["newest_pack"])
            return name

    async def in_pack(self, name: str) -> Sequence[Place]:
        async with self._link.reading() as connection:
            return [Place(*row) for row in await connection.fetch(self._sql["runs_in_pack"], name)]

    async def places(self, run_ids: Sequence[str]) -> Sequence[Place]:
        async with self._link.reading() as connection:
            return [Place(*row) for row in await connection.fetch(self._sql["places_of_runs"], list(run_ids))]

    async def figures(self) -> PackFigures:
        async with self._link.reading() as connection:
            return PackFigures(*await connection.fetchrow(self._sql["pack_figures"]))

    @asynccontextmanager
    async def _durable_transaction(self) -> AsyncIterator[Any]:
        async with self._link.reading() as connection, connection.transaction():
            await connection.execute(self._sql["sync_commit"])
            yield connection
