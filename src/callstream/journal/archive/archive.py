"""Ended runs leave the index after a time, many of them in one object, and are read there.

Runs are packed by the time of their end, those of a principal side by side. That suits both ways of forgetting: what is
forgotten because it is old goes with its whole packs; what is forgotten of one principal lies in few of them, and those are
written anew without it. A pack a principal would mean an object for nearly every run, since few of a principal's runs end
together.

An object is written, read back and compared before any row goes (``index`` has the order), so a run is always in the
tables or in a pack, and a process may die anywhere.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence

from callstream.errors import JournalError
from callstream.journal.archive.objects import ArchiveAway, ObjectMissing, Objects, Unnamed
from callstream.journal.pack import (
    NONCE_BYTES,
    Pack,
    Place,
    decode_run,
    digest_of,
    encode_run,
    make_pack,
)
from callstream.journal.packs import Due, Packs
from callstream.journal.store import StoreReader
from callstream.journal.whole import WholeRun

PACK_RUNS = 500
PACK_BYTES = 4 * 1024 * 1024
"""A pack has so many at most, unless a single run is larger. Forgetting one run means writing the others again."""
_LOOKED_AT = 4 * PACK_RUNS
_READ_AT_ONCE = 50
_SLACK = 0.1
"""By how much of the time until runs may leave they wait for others to fill a pack with."""
_STALE_SECONDS = 3600.0
_CLOCKS = 60.0
"""By how many seconds clocks may differ: a run that has just ended may have ended in a while, by the store's."""
_TRIES = 5
_AT_ONCE = 16
_REMEMBERED = 8


class Archive:
    """What is written is written where the store is; what is read may be read in any event loop where its reader may be."""

    def __init__(self, objects: Objects, packs: Packs, reader: StoreReader) -> None:
        self.where = objects.where
        self.is_named = not isinstance(objects, Unnamed)
        self.figures = packs.figures
        self._objects = objects
        self._packs = packs
        self._reader = reader
        self._last: dict[Place, WholeRun] = {}
        """What was read last, since a long run is read by the page."""

    async def check(self) -> None:
        """Raises JournalError if runs lie in an archive that is not this one. One that is away is not doubted."""
        for _ in range(_TRIES):
            name = await self._packs.newest()
            if name is None:
                return
            try:
                await self._objects.get_spans(name, [(0, 1)])
            except ObjectMissing:
                continue  # it was written anew since, or never lay here
            except ArchiveAway:
                pass
            return
        raise JournalError(
            f"the runs that have left the journal do not lie in {self.where}: name the archive they are in"
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    async def pack(self, age: float, *, waits: bool) -> int:
        """Takes runs in that ended longer ago than that, and returns how many.

        ``waits``: a few wait for others, for a while.
        """
        count = 0
        while True:
            due = await self._packs.due(age if age > 0 else -_CLOCKS, _LOOKED_AT)
            is_due = age <= 0 or any(run.ended_ago >= age * (1 + _SLACK) for run in due)
            if not due or (waits and len(due) < PACK_RUNS and not is_due):
                return count
            before = count
            async for pack in self._made(sorted(due, key=_neighbours)):
                if await self._keep(pack, None):
                    count += len(pack.places)
            if count == before or len(due) < _LOOKED_AT:
                return count

    async def clean(self) -> None:
        """Erases what was forgotten from the packs, and the objects of packs that are gone."""
        await self._packs.give_up_stale(_STALE_SECONDS)
        for name in await self._packs.listed("dirty"):
            await self._write_anew(name)
        for name in await self._packs.listed("gone"):
            await self._erase(name)

    async def _erase(self, name: str) -> None:
        await self._objects.delete(name)
        try:
            await self._objects.get_spans(name, [(0, 1)])
        except ObjectMissing:
            await self._packs.drop(name)
        else:
            raise JournalError(f"{self.where} still has pack {name} after it was deleted")

    async def _made(self, due: Sequence[Due]) -> AsyncIterator[Pack]:
        waiting: list[tuple[int, str, bytes]] = []
        size = 0
        for start in range(0, len(due), _READ_AT_ONCE):
            some = due[start : start + _READ_AT_ONCE]
            found = {run.key: run for run in await self._reader.whole_runs([run.key for run in some])}
            runs = [found[run.key] for run in some if run.key in found and found[run.key].run_id == run.run_id]
            for entry in await asyncio.to_thread(_encoded, runs):
                if waiting and (len(waiting) >= PACK_RUNS or size + len(entry[2]) > PACK_BYTES):
                    yield make_pack(waiting, secrets.token_bytes(NONCE_BYTES))
                    waiting, size = [], 0
                waiting.append(entry)
                size += len(entry[2])
        if waiting:
            yield make_pack(waiting, secrets.token_bytes(NONCE_BYTES))

    async def _keep(self, pack: Pack, instead_of: str | None) -> bool:
        await self._packs.begin(pack.name)
        await self._objects.put(pack.name, pack.data)
        if digest_of(await self._objects.get(pack.name)) != pack.name:
            raise JournalError(f"{self.where} does not give back what was written to it: pack {pack.name}")
        if await self._packs.keep(pack.name, pack.places, len(pack.data), instead_of):
            return True
        # Somebody has forgotten a run of it meanwhile; the others are taken in the next time.
        await self._packs.give_up(pack.name)
        await self._erase(pack.name)
        return False

    async def _write_anew(self, name: str) -> None:
        for _ in range(_TRIES):
            places = await self._packs.in_pack(name)
            if not places:
                await self._packs.give_up(name)
                return
            try:
                data = await self._objects.get(name)
            except ObjectMissing:
                if not await self._packs.in_pack(name):
                    continue  # another process has written it anew
                raise
            if digest_of(data) != name:
                raise JournalError(f"{self.where} has another object in the place of pack {name}")
            entries = [(each.run_key, each.run_id, data[each.start : each.start + each.size]) for each in places]
            if await self._keep(make_pack(entries, secrets.token_bytes(NONCE_BYTES)), name):
                return

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, run_ids: Sequence[str]) -> dict[str, WholeRun]:
        """Those of the runs that lie here, by id."""
        missing: ObjectMissing | None = None
        for _ in range(_TRIES):
            places = await self._packs.places(run_ids)
            try:
                return {run.run_id: run for run in await self._read(places)}
            except ObjectMissing as error:  # it was written anew since
                missing = error
        raise JournalError(f"the index says that a run is where it is not: {missing}") from missing

    async def _read(self, places: Iterable[Place]) -> list[WholeRun]:
        found: list[WholeRun] = []
        packs: dict[str, list[Place]] = {}
        for place in places:
            if place in self._last:
                found.append(self._last[place])
            else:
                packs.setdefault(place.pack, []).append(place)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def read_pack(name: str, wanted: list[Place]) -> list[WholeRun]:
            async with limit:
                parts = await self._objects.get_spans(name, [(place.start, place.size) for place in wanted])
            return [decode_run(part, place) for part, place in zip(parts, wanted, strict=True)]

        for runs in await asyncio.gather(*(read_pack(name, wanted) for name, wanted in packs.items())):
            found += runs
        self._remember(packs, found)
        return found

    def _remember(self, packs: dict[str, list[Place]], found: list[WholeRun]) -> None:
        runs = {run.key: run for run in found}
        for place in [place for wanted in packs.values() for place in wanted][-_REMEMBERED:]:
            self._last[place] = runs[place.run_key]
        for old in list(self._last)[:-_REMEMBERED]:
            self._last.pop(old, None)


def _encoded(runs: Iterable[WholeRun]) -> list[tuple[int, str, bytes]]:
    return [(run.key, run.run_id, encode_run(run)) for run in runs if run.compacted and run.records]


def _neighbours(run: Due) -> tuple[str, str, int]:
    return run.principal or "", run.thread_id, run.key
