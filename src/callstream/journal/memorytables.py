"""What a journal in memory holds."""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from callstream.calls import Call
from callstream.events import Record
from callstream.journal.packs import GOING_ON, Due, PackFigures, PackPlace, PackState
from callstream.journal.plan import RunFacts
from callstream.journal.rows import NOWHERE, RunRow, Source, Stored, event_of, moment
from callstream.journal.whole import WholeCall, WholeRun

seq_of = attrgetter("seq")


class KnownPack(msgspec.Struct, eq=False):
    """``changed_at`` is by the monotonic clock."""

    changed_at: float
    state: PackState = "writing"
    places: dict[int, PackPlace] = msgspec.field(default_factory=dict)
    runs: int = 0
    size: int = 0


class MemoryCall(msgspec.Struct, eq=False):
    row: Call
    run_key: int
    number: int
    first_seq: int
    args_seq: int | None = None
    result: str | None = None
    """As JSON text, which tells nothing from a null."""

    def whole(self) -> WholeCall:
        row = self.row
        return WholeCall(
            self.number,
            row.call_id,
            row.name,
            row.state.value,
            row.provider_id,
            row.message_id,
            row.signature,
            row.encoding,
            row.reason,
            row.detail,
            self.result,
            row.error,
            row.ran_early,
            row.started_at or 0.0,
            row.updated_at or 0.0,
            self.first_seq,
            self.args_seq,
        )


class MemoryRun(msgspec.Struct, eq=False):
    key: int
    row: RunRow
    writer: str
    epoch: int
    exclusive: bool
    compacted: bool = False
    stop_reason: str | None = None
    pack: str | None = None
    log: list[Stored] = []
    sources: dict[int, Source] = msgspec.field(default_factory=lambda: {0: NOWHERE})
    calls: list[MemoryCall] = []

    def facts(self) -> RunFacts:
        last_ms = self.log[-1].at_ms if self.log else 0
        row = self.row
        ended = row.outcome is not None
        return RunFacts(row.run_id, self.key, self.writer, self.epoch, row.started_at, row.last_seq, last_ms, ended)

    def whole(self) -> WholeRun:
        row, goes_on = self.row, self.row.outcome is None
        return WholeRun(
            self.key,
            row.run_id,
            row.thread_id,
            row.principal,
            row.outcome,
            row.reason,
            row.started_at,
            row.ended_at,
            None if goes_on else row.last_seq,
            self.compacted,
            self.epoch,
            self.writer if goes_on else "",
            self.exclusive and goes_on,
            [(number, *msgspec.structs.astuple(source)) for number, source in self.sources.items() if number],
            [call.whole() for call in self.calls],
            [
                (seq, at_ms, source, call, kind, body, first_seq)
                for seq, at_ms, source, call, kind, body, _, first_seq in self.log
            ],
        )

    def lines(self, first: int, last: int) -> list[Stored]:
        """The records of those numbers. Where a log is beside this one, or after folding, some are missing."""
        return self.log[bisect_left(self.log, first, key=seq_of) : bisect_right(self.log, last, key=seq_of)]

    def records(self, lines: Iterable[Stored]) -> list[Record]:
        found = []
        run_id, started_at = self.row.run_id, self.row.started_at
        for line in lines:
            seq, at_ms, number, call, kind, body, message_id, first_seq = line
            source = self.sources[number]
            event = event_of(kind, body, None if call is None else self.calls[call - 1].row.call_id, message_id)
            at = moment(started_at, at_ms)
            found.append(Record(run_id, seq, at, event, source.response_id, source.author, first_seq))
        return found


class MemoryTables:
    """What the journals of one name share. ``writes`` counts the transactions; ``leases`` end at their times."""

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.lock = threading.RLock()
        self.runs: dict[str, MemoryRun] = {}
        self.keys: dict[int, MemoryRun] = {}
        self.calls: dict[str, MemoryCall] = {}
        self.leases: dict[str, float] = {}
        self.forgotten: set[str] = set()
        self.packs: dict[str, KnownPack] = {}
        self.writes = 0
        self.last_key = 0
        self.stores: weakref.WeakSet[Any] = weakref.WeakSet()


# -- packs -------------------------------------------------------------------------------------------------------------


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

    async def keep(self, name: str, places: Sequence[PackPlace], size: int, instead_of: str | None) -> bool:
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

    async def in_pack(self, name: str) -> Sequence[PackPlace]:
        with self._tables.lock:
            pack = self._tables.packs.get(name)
            return sorted(pack.places.values(), key=lambda place: place.start) if pack is not None else []

    async def places(self, run_ids: Sequence[str]) -> Sequence[PackPlace]:
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
