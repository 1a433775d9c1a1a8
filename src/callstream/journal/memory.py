"""The journal in memory, for tests and for programs that need no disk.

``memory:`` is a store of its own. ``memory:name`` is shared by all journals of the process that use that name, and lives
as long as any of them; each counts as a process of its own. There is no thread, so there is nothing to close: the work is
done at once, where it is asked for, in any event loop. Housekeeping is done when the journal is next used.
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from callstream.calls import Call, CallState
from callstream.events import Record
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.plan import Append, Held, Owned, Plan
from callstream.journal.rows import (
    NOWHERE,
    Kind,
    RecordColumns,
    RunRow,
    Source,
    Stored,
    call_of,
    find_folded_range,
)
from callstream.journal.store import (
    SCHEMA_VERSION,
    CallFilter,
    CallLog,
    Head,
    RunFilter,
    RunRows,
    check_archive,
    check_log,
    forgotten_mark,
    warn_of_others,
)
from callstream.journal.whole import (
    GOING_ON,
    Due,
    PackFigures,
    PackPlace,
    PackState,
    RunSize,
    WholeCall,
    WholeRecord,
    WholeRun,
    plan_of,
    stored_rows,
)
from callstream.journal.writer import Committed, Writer

seq_of = attrgetter("seq")


class _KnownPack(msgspec.Struct, eq=False):
    """``changed_at`` is by the monotonic clock."""

    changed_at: float
    state: PackState = "writing"
    places: dict[int, PackPlace] = msgspec.field(default_factory=dict)
    runs: int = 0
    size: int = 0


class _MemoryCall(msgspec.Struct, eq=False):
    row: WholeCall
    run: _MemoryRun

    def call(self) -> Call:
        row, run = self.row, self.run.row
        return call_of((*row[1:4], run.run_id, run.thread_id, *row[4:15]))


class _MemoryRun(msgspec.Struct, eq=False):
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
    calls: list[_MemoryCall] = []

    def owned(self) -> Owned:
        last_ms = self.log[-1].at_ms if self.log else 0
        row = self.row
        ended = row.outcome is not None
        return Owned(row.run_id, self.key, self.writer, self.epoch, row.started_at, row.last_seq, last_ms, ended)

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
            [call.row for call in self.calls],
            [_columns(line) for line in self.log],
        )

    def lines(self, first: int, last: int) -> list[Stored]:
        """The records with those numbers. Some are missing if a log beside this store has them, or after folding."""
        return self.log[bisect_left(self.log, first, key=seq_of) : bisect_right(self.log, last, key=seq_of)]

    def head(self) -> Head:
        call_ids = {call.row.number: call.row.call_id for call in self.calls}
        row = self.row
        return Head(row.run_id, self.key, row.started_at, self.compacted, self.writer, dict(self.sources), call_ids)

    def records(self, lines: Iterable[Stored]) -> list[Record]:
        head = self.head()
        return [head.record(_columns(line)) for line in lines]


def _columns(line: Stored) -> WholeRecord:
    return (*line[:6], line.first_seq)


class MemoryTables:
    """What the journals of one name share. ``writes`` counts transactions; ``leases`` and ``duties`` have the times of
    their ends.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.lock = threading.RLock()
        self.runs: dict[str, _MemoryRun] = {}
        self.keys: dict[int, _MemoryRun] = {}
        self.calls: dict[str, _MemoryCall] = {}
        self.leases: dict[str, float] = {}
        self.duties: dict[str, tuple[str, float]] = {}
        self.forgotten: set[str] = set()
        self.packs: dict[str, _KnownPack] = {}
        self.journal_id = uuid.uuid4().hex
        self.noted_log: str | None = None
        self.writes = 0
        self.last_key = 0
        self.stores: weakref.WeakSet[Any] = weakref.WeakSet()


# -- packs -------------------------------------------------------------------------------------------------------------


class _MemoryPacks:
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
            self._tables.packs[name] = _KnownPack(time.monotonic())

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


def soil(tables: MemoryTables, run: _MemoryRun) -> None:
    """Marks the run's pack as dirty, if it is in one, because the run is erased."""
    if run.pack is not None:
        pack = tables.packs[run.pack]
        pack.state = "dirty"
        del pack.places[run.key]


def _may_leave(run: _MemoryRun) -> bool:
    return run.compacted and run.pack is None and all(call.row.state not in GOING_ON for call in run.calls)


def _empty(runs: Iterable[_MemoryRun], pack: str) -> None:
    for run in runs:
        run.pack, run.log, run.sources = pack, [], {0: NOWHERE}
        for call in run.calls:
            call.row = call.row._replace(signature=None, detail=None, result=None, error=None)


_PIECE = Kind.ARGS | Kind.TEXT | Kind.REASONING


_named: weakref.WeakValueDictionary[str, MemoryTables] = weakref.WeakValueDictionary()


def tables_named(name: str) -> MemoryTables:
    return _named.setdefault(name, MemoryTables(is_shared=True)) if name else MemoryTables(is_shared=False)


class MemoryStore:
    """Is ``Store``, ``StoreReader`` and ``Tables`` in one, since nothing here ever waits."""

    where = "the journal in memory"
    is_persistent = False
    is_local = True

    def __init__(self, tables: MemoryTables) -> None:
        self.journal_id = tables.journal_id
        self._tables = tables
        self._lock = tables.lock
        self._writes = 0
        self.packs = _MemoryPacks(tables)

    @property
    def reader(self) -> MemoryStore:
        return self

    async def open(self, writer: Writer, followers: Followers) -> None:
        check_archive(writer, self.where, has_packs=any(pack.places for pack in self._tables.packs.values()))
        with self._lock:
            check_log(writer, self.where, self._tables.noted_log)
            self._writer = writer
            self._followers = followers
            self._tables.stores.add(self)
            await self.renew()

    async def note_log(self) -> None:
        tables, log = self._tables, self._writer.log
        with self._lock:
            check_log(self._writer, self.where, tables.noted_log)
            if log is not None and tables.noted_log is None:
                tables.noted_log = log.name
                warn_of_others(self.where, {*self._alive()} - {self._writer.name})

    async def close(self) -> None:
        with self._lock:
            self._tables.leases.pop(self._writer.name, None)
            self._tables.duties = {
                name: held for name, held in self._tables.duties.items() if held[0] != self._writer.name
            }
            self._tables.stores.discard(self)

    async def migrate(self) -> int:
        return SCHEMA_VERSION

    async def renew(self) -> None:
        """The lease never ends: a journal in memory stops only with its process, and then the store is gone as well."""
        with self._lock:
            self._tables.leases[self._writer.name] = float("inf")

    async def check(self, size: int) -> None: ...

    async def hold(self, name: str, seconds: float) -> bool:
        with self._lock:
            now, mine = time.time(), self._writer.name
            holder, until = self._tables.duties.get(name, (mine, 0.0))
            if holder != mine and until > now:
                return False
            self._tables.duties[name] = (mine, now + seconds)
            return True

    async def watch(self) -> None: ...

    # -- writing -------------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Append]) -> Committed:
        with self._lock:
            if self._writes != self._tables.writes:
                self._writer.memory.clear()  # another journal has written
            try:
                committed = await self._writer.commit(self, batch, time.time(), self._followers.runs())
            except BaseException:
                self._writer.memory.clear()
                raise
            self._writes = self._tables.writes
        self._wake_others(committed.changed)
        return committed

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        with self._lock:
            adopted = await self._writer.adopt(self, apps, limit, run_id=run_id)
            self._writes = -1
        return adopted

    async def release_gone(self) -> None:
        """Nothing to do: all its writers are in this process."""

    async def take_over(self, writer: str, run_keys: Sequence[int]) -> None:
        for key in run_keys:
            run = self._tables.keys[key]
            run.writer, run.epoch = writer, run.epoch + 1
            run.row = msgspec.structs.replace(run.row, attempt=run.epoch)
        self._tables.writes += 1

    async def sweep(self, limit: int, patience: float) -> list[str]:
        with self._lock:
            swept = await self._writer.sweep(self, limit, time.time(), patience)
            self._writes = -1
        self._wake_others(swept)
        return swept

    def _wake_others(self, run_ids: Iterable[str]) -> None:
        if self._tables.is_shared:
            for store in list(self._tables.stores):
                if store is not self:
                    store._followers.wake(run_ids)

    async def put_folded(self, run_id: str, run_key: int, rows: Iterable[Stored]) -> bool:
        with self._lock:
            run = self._tables.runs.get(run_id)
            if run is None or run.key != run_key or run.compacted:
                return False
            run.log, run.compacted = list(rows), True
            await self._writer.erase([run_key])
            return True

    async def own_due(self, age: float) -> list[str]:
        return []

    async def due(self, age: float) -> list[str]:
        before = time.time() - age
        with self._lock:
            runs = [run for run in self._tables.runs.values() if not run.compacted]
            return [run.row.run_id for run in runs if run.row.ended_at is not None and run.row.ended_at < before]

    async def forget(self, wanted: RunFilter, limit: int, for_good: bool) -> list[str]:
        with self._lock:
            gone = [run for run in self._tables.runs.values() if wanted.fits(run.row)][:limit]
            await self._writer.erase([run.key for run in gone])
            for run in gone:
                if for_good:
                    self._tables.forgotten.add(forgotten_mark(run.row.thread_id, run.row.principal))
                self._delete(run)
            self._tables.writes += 1
        run_ids = [run.row.run_id for run in gone]
        self._wake_others(run_ids)
        return run_ids

    def _delete(self, run: _MemoryRun) -> None:
        soil(self._tables, run)
        del self._tables.runs[run.row.run_id], self._tables.keys[run.key]
        for call in run.calls:
            del self._tables.calls[call.row.call_id]

    async def restore(self, runs: Sequence[WholeRun], gone: Collection[int]) -> None:
        tables = self._tables
        keys = {*gone, *(run.key for run in runs)}
        with self._lock:
            await self._writer.erase(keys)
            for run in [tables.keys[key] for key in keys if key in tables.keys]:
                self._delete(run)
            await self.write(plan_of(runs))
            for whole in runs:
                run = tables.keys[whole.key]
                if whole.compacted:
                    run.log, run.compacted = stored_rows(whole), True
                run.row = msgspec.structs.replace(run.row, attempt=whole.attempt)
            # Runs are listed in the order of this dictionary.
            tables.runs = dict(sorted(tables.runs.items(), key=lambda item: item[1].key))
            tables.last_key = max(tables.last_key, *keys)

    async def keep_forgotten(self, marks: Sequence[str]) -> None:
        with self._lock:
            self._tables.forgotten.update(marks)

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        with self._lock:
            run = self._tables.runs.get(run_id)
            if run is None or run.row.outcome is not None:
                return False
            run.stop_reason = run.stop_reason or reason
            return True

    async def asked_to_stop(self) -> dict[str, str]:
        with self._lock:
            mine = [run for run in self._tables.runs.values() if run.writer == self._writer.name]
            asked = {run.row.run_id: run.stop_reason for run in mine if run.row.outcome is None}
            return {run_id: reason for run_id, reason in asked.items() if reason is not None}

    # -- the tables, under the lock ------------------------------------------------------------------------------------

    async def stored(self, run_key: int, first: int, last: int) -> Sequence[tuple[int, str]] | None:
        run = self._tables.keys[run_key]
        return None if run.compacted else [(line.kind, line.body) for line in run.lines(first, last)]

    async def owned_runs(self, run_ids: Sequence[str]) -> Iterable[Owned]:
        return [
            self._tables.runs[run_id].owned() if run_id in self._tables.runs else self._new(run_id)
            for run_id in run_ids
        ]

    def _new(self, run_id: str) -> Owned:
        self._tables.last_key += 1
        return Owned(run_id, self._tables.last_key)

    async def fill(self, runs: Mapping[int, Owned]) -> None:
        for key, owned in runs.items():
            run = self._tables.keys[key]
            owned.sources.update({source: number for number, source in run.sources.items()})
            owned.calls.update({call.row.call_id: _held(call) for call in run.calls})

    async def held_calls(self, call_ids: Sequence[str]) -> Mapping[str, Held]:
        calls = self._tables.calls
        return {call_id: _held(calls[call_id]) for call_id in call_ids if call_id in calls}

    async def exclusive_runs(self, thread_ids: Sequence[str]) -> Mapping[str, str]:
        active = [run.row for run in self._tables.runs.values() if run.exclusive and run.row.outcome is None]
        return {row.thread_id: row.run_id for row in active if row.thread_id in thread_ids}

    async def events_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, int, str]]:
        lines = [(key, line) for key in run_keys for line in self._tables.keys[key].log]
        return [(key, line.kind, line.body) for key, line in lines if not line.kind & _PIECE]

    async def orphans(self, writer: str, limit: int, run_id: str | None = None, after: int = 0) -> Iterable[Owned]:
        active = [run for run in self._tables.runs.values() if run.row.outcome is None]
        alive = {*self._alive(), writer}
        orphaned = [run.owned() for run in active if run.writer not in alive]
        return [run for run in orphaned if run.key > after and run_id in (None, run.run_id)][:limit]

    def _alive(self) -> list[str]:
        now = time.time()
        return [writer for writer, until in self._tables.leases.items() if until > now]

    async def write(self, plan: Plan) -> None:
        tables = self._tables
        for change in plan.runs.values():
            if change.is_new:
                thread_id = change.thread_id or change.run_id
                row = RunRow(change.run_id, thread_id, change.principal, None, None, change.started_at, None, 0)
                run = _MemoryRun(change.key, row, change.writer, change.epoch, change.exclusive)
                tables.runs[change.run_id] = tables.keys[change.key] = run
        for key, number, *source in plan.sources:
            tables.keys[key].sources[number] = Source(*source)
        for key, seq, at_ms, number, call_number, kind, body in plan.records:
            run = tables.keys[key]
            message_id = run.sources[number].message_id
            run.log.append(Stored(seq, at_ms, number, call_number, kind, body, message_id))
        for owned in plan.changed:
            run, end = tables.keys[owned.key], plan.runs.get(owned)
            run.row = msgspec.structs.replace(run.row, last_seq=owned.last_seq)
            if end is not None and end.outcome is not None:
                run.writer, run.epoch = end.writer, end.epoch
                run.row = msgspec.structs.replace(
                    run.row, outcome=end.outcome, reason=end.reason, ended_at=end.ended_at
                )
        for call_id, news in plan.calls.items():
            columns = {name: getattr(news, name) for name in WholeCall._fields}
            if news.old_state is None:
                run = tables.keys[news.run_key]
                new = WholeCall(**{**columns, "ran_early": bool(news.ran_early)})
                tables.calls[call_id] = _MemoryCall(new, run)
                run.calls.append(tables.calls[call_id])
            else:
                call = tables.calls[call_id]
                call.row = call.row._replace(**{name: value for name, value in columns.items() if value is not None})
        tables.writes += 1

    async def copy_pieces(self, records: Sequence[RecordColumns]) -> None:
        with self._lock:
            for key, seq, at_ms, number, call, kind, body in records:
                run = self._tables.keys.get(key)
                if run is None or run.compacted or run.lines(seq, seq):
                    continue
                line = Stored(seq, at_ms, number, call, kind, body, run.sources[number].message_id)
                insort(run.log, line, key=seq_of)
                run.row = msgspec.structs.replace(run.row, last_seq=max(seq, run.row.last_seq))

    # -- reading -------------------------------------------------------------------------------------------------------

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        with self._lock:
            run = self._tables.runs.get(run_id)
            if run is None:
                return None
            if run.compacted:
                ranges = [(line.first_seq, line.seq) for line in run.log if line.first_seq is not None]
                if is_first and (inside := find_folded_range(ranges, after)):
                    return Folded(*inside)
            start = bisect_right(run.log, after, key=seq_of)
            lines = run.log[start : start + limit]
            ended = run.row.outcome is not None and (not lines or lines[-1].seq == run.row.last_seq)
            return Page(run.records(lines), ended, run.compacted)

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        found: list[Record] = []
        with self._lock:
            for run_id in run_ids:
                if run := self._tables.runs.get(run_id):
                    found += run.records(sorted(run.log, key=lambda line: line.first_seq or line.seq))
        return found

    async def call_log(self, call_id: str) -> CallLog | None:
        with self._lock:
            call = self._tables.calls.get(call_id)
            if call is None:
                return None
            row, run = call.row, call.run
            last = row.args_seq or run.row.last_seq
            lines = [line for line in run.lines(row.first_seq, last) if line.call == row.number or line.seq == last]
            rows = [(line.seq, line.kind, line.body) for line in lines]
            return CallLog(call.call(), row.number, row.first_seq, rows)

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]:
        with self._lock:
            found = [
                row
                for call in self._tables.calls.values()
                if wanted.fits(call.run.row) and wanted.fits_call(row := call.call())
            ]
        return found[max(0, len(found) - limit) :] if newest and limit is not None else found[:limit]

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]:
        with self._lock:
            return [run.row for run in reversed(self._tables.runs.values()) if wanted.fits(run.row)][:limit]

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        with self._lock:
            return {call_id for call_id in call_ids if call_id in self._tables.calls}

    async def has_forgotten(self, mark: str) -> bool:
        with self._lock:
            return mark in self._tables.forgotten

    async def heads(self, run_ids: Sequence[str]) -> Sequence[Head]:
        with self._lock:
            runs = [self._tables.runs[run_id] for run_id in run_ids if run_id in self._tables.runs]
            return [run.head() for run in runs]

    async def writers(self) -> set[str]:
        with self._lock:
            return {run.writer for run in self._tables.runs.values() if not run.compacted} | {*self._alive()}

    async def log(self, run_id: str) -> RunRows | None:
        with self._lock:
            run = self._tables.runs.get(run_id)
            return None if run is None else RunRows(run.key, run.row.outcome is not None, run.compacted, list(run.log))

    async def run_sizes(self, after: int, last: int | None, limit: int | None) -> Sequence[RunSize]:
        with self._lock:
            keys = sorted(key for key in self._tables.keys if after < key and (last is None or key <= last))
            runs = [self._tables.keys[key] for key in keys[:limit]]
            return [
                RunSize(run.key, run.row.run_id, run.row.outcome is None, run.row.last_seq, run.compacted)
                for run in runs
            ]

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        with self._lock:
            return [self._tables.keys[key].whole() for key in sorted(run_keys) if key in self._tables.keys]

    async def forgotten(self, after: str, limit: int) -> Sequence[str]:
        with self._lock:
            return sorted(mark for mark in self._tables.forgotten if mark > after)[:limit]

    async def left_open(self) -> Sequence[str]:
        with self._lock:
            alive = self._alive()
            active = [run for run in self._tables.runs.values() if run.row.outcome is None]
            return [run.row.run_id for run in active if run.writer not in alive]

    async def stats(self) -> dict[str, Any]:
        orphaned = await self.left_open()
        with self._lock:
            runs = self._tables.runs.values()
            return {
                "schema_version": SCHEMA_VERSION,
                "runs": len(runs),
                "active_runs": sum(run.row.outcome is None for run in runs),
                "calls": len(self._tables.calls),
                "records": sum(len(run.log) if run.compacted else run.row.last_seq for run in runs),
                "live_writers": len(self._alive()),
                "orphaned_runs": len(orphaned),
                "stored_bytes": sum(len(line.body) for run in runs for line in run.log),
            }


def _held(call: _MemoryCall) -> Held:
    row = call.row
    return Held(row.call_id, call.run.key, row.number, CallState(row.state), row.args_seq is not None)
