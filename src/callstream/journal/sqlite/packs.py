"""What a SQLite file knows of packs.

An object is deleted when the file says so for good: what it says of packs is on the disk before anything follows from it, in
a file that is otherwise written without that, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from callstream.journal.pack import Place
from callstream.journal.packs import Due, PackFigures, PackState
from callstream.journal.sql import queries
from callstream.journal.sqlite.reader import SqliteFile, SqliteReader, as_json, failure

_SQL = queries("sqlite")


class _Changed(Exception):
    """A run is not where it was."""


class SqlitePacks:
    """See ``Packs``."""

    def __init__(self, file: SqliteFile, reader: SqliteReader) -> None:
        self._file = file
        self._reader = reader

    async def due(self, age: float, limit: int) -> Sequence[Due]:
        return [Due(*row) for row in await self._reader.select("due_for_pack", {"age": age, "limit": limit})]

    async def begin(self, name: str) -> None:
        with self._file.durable_transaction() as run:
            run(_SQL["begin_pack"], {"name": name})

    async def keep(self, name: str, places: Sequence[Place], size: int, instead_of: str | None) -> bool:
        with failure(self._file.where):
            self._file.connection.execute(
                "PRAGMA secure_delete = ON"
            )  # it may be forgotten when it is not here any more
        try:
            with self._file.durable_transaction() as run:
                row = run(_SQL["keep_pack"], {"name": name, "runs": len(places), "bytes": size}).fetchone()
                if row is None:
                    return False
                for place in places:
                    where = {**place._asdict(), "pack": row[0], "instead_of": instead_of}
                    if run(_SQL["pack_runs"], where).rowcount != 1:
                        raise _Changed
                    if instead_of is None:
                        for query in ("delete_archive", "delete_sources", "empty_calls"):
                            run(_SQL[query], {"run_key": place.run_key})
                if instead_of is not None and run(_SQL["give_up_pack"], {"name": instead_of}).rowcount != 1:
                    raise _Changed
        except _Changed:
            return False
        self._file.give_back()
        return True

    async def give_up(self, name: str) -> None:
        with self._file.durable_transaction() as run:
            run(_SQL["give_up_pack"], {"name": name})

    async def give_up_stale(self, age: float) -> None:
        with self._file.durable_transaction() as run:
            run(_SQL["give_up_stale"], {"age": age})

    async def drop(self, name: str) -> None:
        with self._file.transaction() as run:
            run(_SQL["drop_pack"], {"name": name})

    async def listed(self, state: PackState) -> Sequence[str]:
        return [name for (name,) in await self._reader.select("list_packs", {"state": state})]

    async def newest(self) -> str | None:
        return next((name for (name,) in await self._reader.select("newest_pack", {})), None)

    async def in_pack(self, name: str) -> Sequence[Place]:
        return [Place(*row) for row in await self._reader.select("runs_in_pack", {"name": name})]

    async def places(self, run_ids: Sequence[str]) -> Sequence[Place]:
        rows = await self._reader.select("places_of_runs", {"run_ids": as_json(list(run_ids))})
        return [Place(*row) for row in rows]

    async def figures(self) -> PackFigures:
        [row] = await self._reader.select("pack_figures", {})
        return PackFigures(*row)
