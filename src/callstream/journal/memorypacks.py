"""What a journal in memory knows of packs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from callstream.journal.memorytables import KnownPack, MemoryRun, MemoryTables
from callstream.journal.pack import Place
from callstream.journal.packs import GOING_ON, Due, PackFigures, PackState
from callstream.journal.rows import NOWHERE


class MemoryPacks:
    """See ``Packs``. Nothing here waits."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables

    async def due(self, age: float, limit: int) -> Sequence[Due]:
        now = time.time()
        with self._tables.lock:
            found = [
                Due(run.key, run.row.run_id, run.row.thread_id, run.row.principal, now - run.row.ended_at)
                for run in self._tables.runs.values()
                if run.row.ended_at is not None and run.row.ended_at < now - age and _may_leave(run)
            ]
        return found[:limit]

    async def begin(self, name: str) -> None:
        with self._tables.lock:
            self._tables.packs[name] = KnownPack(time.monotonic())

    async def keep(self, name: str, places: Sequence[Place], size: int, instead_of: str | None) -> bool:
        tables = self._tables
        with tables.lock:
            pack = tables.packs.get(name)
            runs = [tables.keys.get(place.run_key) for place in places]
            are_there = all(
                run is not None and run.row.run_id == place.run_id and run.pack == instead_of
                for run, place in zip(runs, places, strict=True)
            )
            old = tables.packs.get(instead_of) if instead_of is not None else None
            if pack is None or pack.state != "writing" or not are_there or (old and len(old.places) != len(places)):
                return False
            pack.state, pack.runs, pack.size = "kept", len(places), size
            pack.places = {place.run_key: place for place in places}
            if old is not None:
                old.state, old.places = "gone", {}
            _empty([run for run in runs if run is not None], name)
        return True

    async def give_up(self, name: str) -> None:
        with self._tables.lock:
            pack = self._tables.packs.get(name)
            if pack is not None and not pack.places:
                pack.state = "gone"

    async def give_up_stale(self, age: float) -> None:
        with self._tables.lock:
            for pack in self._tables.packs.values():
                if pack.state == "writing" and pack.changed_at < time.monotonic() - age:
                    pack.state = "gone"

    async def drop(self, name: str) -> None:
        with self._tables.lock:
            pack = self._tables.packs.get(name)
            if pack is not None and pack.state == "gone":
                del self._tables.packs[name]

    async def listed(self, state: PackState) -> Sequence[str]:
        with self._tables.lock:
            return [name for name, pack in self._tables.packs.items() if pack.state == state]

    async def newest(self) -> str | None:
        with self._tables.lock:
            names = [name for name, pack in self._tables.packs.items() if pack.state in ("kept", "dirty")]
        return names[-1] if names else None

    async def in_pack(self, name: str) -> Sequence[Place]:
        with self._tables.lock:
            pack = self._tables.packs.get(name)
            return sorted(pack.places.values(), key=lambda place: place.start) if pack is not None else []

    async def places(self, run_ids: Sequence[str]) -> Sequence[Place]:
        tables = self._tables
        with tables.lock:
            runs = [tables.runs[run_id] for run_id in run_ids if run_id in tables.runs]
            return [tables.packs[run.pack].places[run.key] for run in runs if run.pack is not None]

    async def figures(self) -> PackFigures:
        with self._tables.lock:
            packs = [pack for pack in self._tables.packs.values() if pack.state in ("kept", "dirty")]
        return PackFigures(len(packs), sum(pack.runs for pack in packs), sum(pack.size for pack in packs))


def soil(tables: MemoryTables, run: MemoryRun) -> None:
    """Says that a run is erased which lies in a pack, if it does."""
    if run.pack is not None:
        pack = tables.packs[run.pack]
        pack.state = "dirty"
        del pack.places[run.key]


def _may_leave(run: MemoryRun) -> bool:
    return run.compacted and run.pack is None and all(call.row.state not in GOING_ON for call in run.calls)


def _empty(runs: Iterable[MemoryRun], pack: str) -> None:
    for run in runs:
        run.pack, run.log, run.sources = pack, [], {0: NOWHERE}
        for call in run.calls:
            call.row = msgspec.structs.replace(call.row, signature=None, detail=None, result=None, error=None)
            call.result = None
