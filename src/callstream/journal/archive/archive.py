"""Ended runs move from the index into the archive after a time, many of them in one object, and are read there.

Runs are packed by the time of their end, those of a principal side by side. That suits both ways of forgetting. Runs that
are forgotten for their age go with whole packs. The runs of one principal are in few packs, which are rewritten without
them. A pack per principal would mean an object for nearly every run, since few of a principal's runs end together.

An object is written, read back and compared before any row is erased (``Packs`` has the order), so a run is always in the
tables or in a pack, and a process may die at any point.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import msgspec

from callstream import codec
from callstream.calls import Call
from callstream.errors import JournalError
from callstream.events import Record, in_order
from callstream.journal.archive.objects import ArchiveUnavailable, ObjectMissing, Objects
from callstream.journal.follow import Folded, Page
from callstream.journal.rows import Source, call_with_pieces, find_folded_range
from callstream.journal.store import CallFilter, Head, StoreReader, archive_unnamed
from callstream.journal.whole import (
    NONCE_BYTES,
    Due,
    Pack,
    PackPlace,
    Packs,
    WholeCall,
    WholeRecord,
    WholeRun,
    decode_run,
    digest_of,
    encode_run,
    make_pack,
)

PACK_RUNS = 500
PACK_BYTES = 4 * 1024 * 1024
"""The most that a pack has, unless a single run is larger. Forgetting one run means writing the others again."""
_LOOKED_AT = 4 * PACK_RUNS
_READ_AT_ONCE = 50
_SLACK = 0.1
"""How much longer than ``age`` a run may wait for others to fill a pack, as a fraction."""
_STALE_SECONDS = 3600.0
_CLOCKS = 60.0
"""By how many seconds clocks may differ: the end of a run that has just ended may be in the future by the store's clock."""
_TRIES = 5
_AT_ONCE = 16
_REMEMBERED = 8


class Archive:
    """Writing is done only where the store is used; reading, in any event loop where the store's reader may be awaited."""

    def __init__(self, objects: Objects | None, journal: str, packs: Packs, reader: StoreReader) -> None:
        self.is_named = objects is not None
        self.figures = packs.figures
        self._journal = journal
        self._objects = objects
        self._packs = packs
        self._reader = reader
        self._last: dict[PackPlace, WholeRun] = {}
        """The runs read last, since a long run is read page by page."""

    @property
    def _named(self) -> Objects:
        """JournalError if no archive was named. Another process may have begun one since."""
        if self._objects is None:
            raise archive_unnamed(self._journal)
        return self._objects

    async def check(self, *, must_answer: bool = False) -> None:
        """Raises JournalError if the runs are in another archive than this one. An unavailable archive is trusted.

        ``must_answer``: raises ArchiveUnavailable if it is unavailable.
        """
        for _ in range(_TRIES):
            name = await self._packs.newest()
            if name is None:
                return
            try:
                await self._named.get_spans(name, [(0, 1)])
            except ObjectMissing:
                continue  # it has been rewritten since, or was never here
            except ArchiveUnavailable:
                if must_answer:
                    raise
            return
        raise JournalError(
            f"the runs that have left the journal are not in {self._named.where}: name the archive that they are in"
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    async def pack(self, age: float, *, waits: bool) -> int:
        """Archives the runs that ended longer ago than that, and returns how many.

        ``waits``: if only a few are due, they wait for others for a while.
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
        """Erases forgotten runs from the packs, and the objects of packs that are gone."""
        await self._packs.give_up_stale(_STALE_SECONDS)
        for name in await self._packs.listed("dirty"):
            await self._rewrite(name)
        for name in await self._packs.listed("gone"):
            await self._erase(name)

    async def _erase(self, name: str) -> None:
        await self._named.delete(name)
        try:
            await self._named.get_spans(name, [(0, 1)])
        except ObjectMissing:
            await self._packs.drop(name)
        else:
            raise JournalError(f"{self._named.where} still has pack {name} after it was deleted")

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
        await self._named.put(pack.name, pack.data)
        if digest_of(await self._named.get(pack.name)) != pack.name:
            raise JournalError(f"{self._named.where} does not give back what was written to it: pack {pack.name}")
        if await self._packs.keep(pack.name, pack.places, len(pack.data), instead_of):
            return True
        # A run of it was forgotten meanwhile; the others are archived the next time.
        await self._packs.give_up(pack.name)
        await self._erase(pack.name)
        return False

    async def _rewrite(self, name: str) -> None:
        for _ in range(_TRIES):
            places = await self._packs.in_pack(name)
            if not places:
                await self._packs.give_up(name)
                return
            try:
                data = await self._named.get(name)
            except ObjectMissing:
                if not await self._packs.in_pack(name):
                    continue  # another process has rewritten it
                raise
            if digest_of(data) != name:
                raise JournalError(f"{self._named.where} has another object under the name of pack {name}")
            entries = [(each.run_key, each.run_id, data[each.start : each.start + each.size]) for each in places]
            if await self._keep(make_pack(entries, secrets.token_bytes(NONCE_BYTES)), name):
                return

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, run_ids: Sequence[str]) -> dict[str, WholeRun]:
        """Those of the runs that are here, by id."""
        missing: ObjectMissing | None = None
        for _ in range(_TRIES):
            places = await self._packs.places(run_ids)
            try:
                return {run.run_id: run for run in await self._read(places)}
            except ObjectMissing as error:  # it has been rewritten since
                missing = error
        raise JournalError(f"a run is missing where the index says it is: {missing}") from missing

    async def _read(self, places: Sequence[PackPlace]) -> Iterable[WholeRun]:
        last = self._last
        found = {place: last[place] for place in places if place in last}
        packs: dict[str, list[PackPlace]] = {}
        for place in places:
            if place not in found:
                packs.setdefault(place.pack, []).append(place)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def read_pack(name: str, wanted: list[PackPlace]) -> None:
            async with limit:
                parts = await self._named.get_spans(name, [(place.start, place.size) for place in wanted])
            found.update({place: decode_run(part, place) for part, place in zip(parts, wanted, strict=True)})

        await asyncio.gather(*(read_pack(name, wanted) for name, wanted in packs.items()))
        self._last = dict(list({**last, **found}.items())[-_REMEMBERED:])
        return found.values()


def _encoded(runs: Iterable[WholeRun]) -> list[tuple[int, str, bytes]]:
    return [(run.key, run.run_id, encode_run(run)) for run in runs if run.compacted and run.records]


def _neighbours(run: Due) -> tuple[str, str, int]:
    return run.principal or "", run.thread_id, run.key


# -- a store's reader, and behind it the archive for runs that have left the store -------------------------------------


_EMPTIED = ("signature", "detail", "result", "error")
"""Columns that are empty in the rows of archived runs' calls."""


class ArchivedReader:
    """Like ``StoreReader``, for all runs of the journal. The store is asked first, since a run moves from it to the archive
    and never back: a run that the store knows but has no records of is in the archive.
    """

    def __init__(self, store: StoreReader, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self.runs = store.runs
        self.taken = store.taken
        self.has_forgotten = store.has_forgotten
        self.run_sizes = store.run_sizes
        self.forgotten = store.forgotten
        self.left_open = store.left_open

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        page = await self._store.page(run_id, after, limit, is_first)
        if page is None or (isinstance(page, Page) and page.compacted and not page.records):
            run = (await self._archive.read([run_id])).get(run_id)
            if run is not None:
                return _page(run, after, limit, is_first=is_first)
        return page

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        found: dict[str, list[Record]] = {}
        for record in await self._store.read_whole(run_ids, merged):
            found.setdefault(record.run_id, []).append(record)
        missing = [run_id for run_id in run_ids if run_id not in found]
        if missing:
            for run_id, run in (await self._archive.read(missing)).items():
                found[run_id] = list(in_order(_records(run, run.records)))
        return [record for run_id in run_ids for record in found.get(run_id, ())]

    async def call(self, call_id: str) -> Call | None:
        """The call with its arguments."""
        found = await self._store.call_log(call_id)
        if found is None:
            return None
        call = call_with_pieces(found.call, found.rows)
        if call.run_id is None or not self._archive.is_named:
            return call
        for run in (await self._archive.read([call.run_id])).values():
            for whole in run.calls:
                if whole.call_id == call_id:
                    last = whole.args_seq or run.last_seq or 0
                    rows = [
                        (seq, kind, body)
                        for seq, _, _, number, kind, body, _ in run.records
                        if whole.first_seq <= seq <= last and (number == whole.number or seq == last)
                    ]
                    return call_with_pieces(_filled(call, whole), rows)
        return call

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]:
        calls = await self._store.calls(wanted, limit, newest)
        if not self._archive.is_named:
            return calls
        run_ids = {call.run_id: None for call in calls if call.run_id is not None}
        archived = await self._archive.read(list(run_ids)) if run_ids else {}
        whole = {each.call_id: each for run in archived.values() for each in run.calls}
        return [_filled(call, whole[call.call_id]) if call.call_id in whole else call for call in calls]

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        runs = await self._store.whole_runs(run_keys)
        missing = [run.run_id for run in runs if run.compacted and not run.records]
        archived = await self._archive.read(missing) if missing else {}
        return [_with_calls(archived[run.run_id], run.calls) if run.run_id in archived else run for run in runs]

    async def stats(self) -> dict[str, Any]:
        stats = await self._store.stats()
        return {**stats, "archive": (await self._archive.figures())._asdict()} if self._archive.is_named else stats


def _filled(call: Call, whole: WholeCall) -> Call:
    """The call with what its row no longer has. What the row still has is newer than the pack."""
    packed = whole if whole.result is None else whole._replace(result=codec.decode(whole.result))
    return msgspec.structs.replace(call, **_lost(call, packed))


def _lost(row: Call | WholeCall, packed: WholeCall) -> dict[str, Any]:
    return {name: getattr(packed, name) for name in _EMPTIED if getattr(row, name) is None}


def _with_calls(run: WholeRun, rows: Sequence[WholeCall]) -> WholeRun:
    """The run with its calls as they are now."""
    packed = {call.number: call for call in run.calls}
    calls = [row._replace(**_lost(row, packed[row.number])) for row in rows]
    return msgspec.structs.replace(run, calls=calls)


def _page(run: WholeRun, after: int, limit: int, *, is_first: bool) -> Page | Folded:
    ranges = [(first, seq) for seq, *_, first in run.records if first is not None]
    if is_first and after and (inside := find_folded_range(ranges, after)):
        return Folded(*inside)
    rows = [record for record in run.records if record[0] > after][:limit]
    return Page(_records(run, rows), not rows or rows[-1][0] == run.last_seq, compacted=True)


def _records(run: WholeRun, rows: Sequence[WholeRecord]) -> list[Record]:
    sources = {number: Source(*source) for number, *source in run.sources}
    call_ids = {call.number: call.call_id for call in run.calls}
    head = Head(run.run_id, run.key, run.started_at, run.compacted, run.writer, sources, call_ids)
    return [head.record(row) for row in rows]
