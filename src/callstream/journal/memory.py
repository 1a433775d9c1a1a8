"""The journal in memory, for tests and for programs that need no disk.

``memory:`` is a store of its own. ``memory:name`` is shared by all journals of the process that name it, and lives as
long as one of them; each counts as a process of its own. There is no thread, so there is nothing to close: the work is
done at once, where it is asked for, in any event loop. What a journal does by itself it does when it is next used.
"""

from __future__ import annotations

import time
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from callstream.calls import Call
from callstream.events import Record
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.memorytables import MemoryCall, MemoryPacks, MemoryRun, MemoryTables, seq_of, soil
from callstream.journal.plan import Append, CallChange, Held, Plan, RunChange, RunFacts
from callstream.journal.rows import (
    Kind,
    RecordColumns,
    RunRow,
    Source,
    Stored,
    call_with_pieces,
    find_folded_range,
    from_json,
)
from callstream.journal.store import (
    SCHEMA_VERSION,
    CallFilter,
    CallLog,
    Head,
    RunFilter,
    RunRows,
    check_archive,
    forgotten_mark,
)
from callstream.journal.whole import RunSize, WholeRun, folded_rows, plan_of
from callstream.journal.writer import Committed, Writer

_CALL_COLUMNS = (
    *("name", "state", "provider_id", "message_id", "signature", "encoding", "reason", "detail", "error"),
    *("ran_early", "started_at", "updated_at"),
)
_PIECE = Kind.ARGS | Kind.TEXT | Kind.REASONING


_named: weakref.WeakValueDictionary[str, MemoryTables] = weakref.WeakValueDictionary()


def tables_named(name: str) -> MemoryTables:
    return _named.setdefault(name, MemoryTables(is_shared=True)) if name else MemoryTables(is_shared=False)


class MemoryStore:
    """See ``Store``, ``StoreReader`` and ``Tables``: it is all three, since nothing here ever waits."""

    where = "the journal in memory"
    is_persistent = False
    reads_anywhere = True
    blocks = True

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables
        self._lock = tables.lock
        self._writes = 0
        self.packs = MemoryPacks(tables)

    @property
    def reader(self) -> MemoryStore:
        return self

    async def open(self, writer: Writer, followers: Followers) -> None:
        check_archive(writer, self.where, has_packs=any(pack.places for pack in self._tables.packs.values()))
        self._writer = writer
        self._followers = followers
        self._tables.stores.add(self)
        await self.renew()

    async def close(self) -> None:
        with self._lock:
            self._tables.leases.pop(self._writer.name, None)
            self._tables.stores.discard(self)

    async def migrate(self) -> int:
        return SCHEMA_VERSION

    async def renew(self) -> None:
        """For good: nothing but the end of the process stops a journal in memory, and then the store is gone too."""
        with self._lock:
            self._tables.leases[self._writer.name] = float("inf")

    async def check(self) -> None: ...

    async def hold(self, name: str, seconds: float) -> bool:
        return True  # a duty is done at once, under the lock

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

    async def release_gone(self, is_gone: Callable[[str], bool]) -> None:
        """Its writers are all in this process."""

    async def take_over(self, run_keys: Sequence[int]) -> None:
        for key in run_keys:
            run = self._tables.keys[key]
            run.writer, run.epoch = self._writer.name, run.epoch + 1
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

    def _delete(self, run: MemoryRun) -> None:
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
            for key, rows in folded_rows(runs).items():
                tables.keys[key].log, tables.keys[key].compacted = rows, True
            for whole in runs:
                run = tables.keys[whole.key]
                run.row = msgspec.structs.replace(run.row, attempt=whole.attempt)
            # Runs are listed in the order in which they are here.
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

    async def rows(self, run_key: int, first: int, last: int) -> Sequence[tuple[int, str]] | None:
        run = self._tables.keys[run_key]
        return None if run.compacted else [(line.kind, line.body) for line in run.lines(first, last)]

    async def run_facts(self, run_ids: Sequence[str]) -> Iterable[RunFacts]:
        return [
            self._tables.runs[run_id].facts() if run_id in self._tables.runs else self._new(run_id)
            for run_id in run_ids
        ]

    def _new(self, run_id: str) -> RunFacts:
        self._tables.last_key += 1
        return RunFacts(run_id, self._tables.last_key)

    async def sources_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, Source, int]]:
        runs = [self._tables.keys[key] for key in run_keys]
        return [(run.key, source, number) for run in runs for number, source in run.sources.items()]

    async def calls_of(self, run_keys: Sequence[int]) -> Iterable[Held]:
        return [_held(call) for key in run_keys for call in self._tables.keys[key].calls]

    async def held_calls(self, call_ids: Sequence[str]) -> Iterable[Held]:
        return [_held(self._tables.calls[call_id]) for call_id in call_ids if call_id in self._tables.calls]

    async def exclusive_runs(self, thread_ids: Sequence[str]) -> Mapping[str, str]:
        active = [run.row for run in self._tables.runs.values() if run.exclusive and run.row.outcome is None]
        return {row.thread_id: row.run_id for row in active if row.thread_id in thread_ids}

    async def events_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, int, str]]:
        lines = [(key, line) for key in run_keys for line in self._tables.keys[key].log]
        return [(key, line.kind, line.body) for key, line in lines if not line.kind & _PIECE]

    async def orphans(self, limit: int, run_id: str | None = None, after: int = 0) -> Iterable[RunFacts]:
        active = [run for run in self._tables.runs.values() if run.row.outcome is None]
        alive = {*self._alive(), self._writer.name}
        orphaned = [run.facts() for run in active if run.writer not in alive]
        return [facts for facts in orphaned if facts.key > after and run_id in (None, facts.run_id)][:limit]

    def _alive(self) -> list[str]:
        now = time.time()
        return [writer for writer, until in self._tables.leases.items() if until > now]

    async def write(self, plan: Plan) -> None:
        tables = self._tables
        for change in plan.runs.values():
            if change.is_new:
                run = MemoryRun(change.key, _new_row(change), change.writer, change.epoch, change.exclusive)
                tables.runs[change.run_id] = tables.keys[change.key] = run
        for key, number, *source in plan.sources:
            tables.keys[key].sources[number] = Source(*source)
        for key, seq, at_ms, number, call_number, kind, body in plan.records:
            run = tables.keys[key]
            message_id = run.sources[number].message_id
            run.log.append(Stored(seq, at_ms, number, call_number, kind, body, message_id))
        for owned in plan.changed:
            self._end(tables.keys[owned.key], plan.runs.get(owned), owned.last_seq)
        for call_id, news in plan.calls.items():
            columns = _columns(news)
            if news.old_state is None:
                run = tables.keys[news.run_key]
                new = Call(call_id, run_id=run.row.run_id, thread_id=run.row.thread_id, **columns)
                tables.calls[call_id] = MemoryCall(new, run.key, news.number, news.first_seq or 0)
                run.calls.append(tables.calls[call_id])
            call = tables.calls[call_id]
            call.row = msgspec.structs.replace(call.row, **columns)
            call.args_seq = news.args_seq or call.args_seq
            call.result = news.result or call.result
        tables.writes += 1

    async def settle(self, records: Sequence[RecordColumns]) -> None:
        with self._lock:
            for key, seq, at_ms, number, call, kind, body in records:
                run = self._tables.keys.get(key)
                if run is None or run.compacted or run.lines(seq, seq):
                    continue
                line = Stored(seq, at_ms, number, call, kind, body, run.sources[number].message_id)
                insort(run.log, line, key=seq_of)
                run.row = msgspec.structs.replace(run.row, last_seq=max(seq, run.row.last_seq))

    @staticmethod
    def _end(run: MemoryRun, change: RunChange | None, last_seq: int) -> None:
        """The run's row after its last record; with a change that ends it, its end too."""
        run.row = msgspec.structs.replace(run.row, last_seq=last_seq)
        if change is not None and change.outcome is not None:
            run.writer, run.epoch = change.writer, change.epoch
            run.row = msgspec.structs.replace(
                run.row, outcome=change.outcome, reason=change.reason, ended_at=change.ended_at
            )

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

    async def call(self, call_id: str) -> Call | None:
        found = await self.call_log(call_id)
        return None if found is None else call_with_pieces(found.call, found.rows)

    async def call_log(self, call_id: str) -> CallLog | None:
        with self._lock:
            call = self._tables.calls.get(call_id)
            if call is None:
                return None
            run = self._tables.keys[call.run_key]
            last = call.args_seq or run.row.last_seq
            lines = [line for line in run.lines(call.first_seq, last) if line.call == call.number or line.seq == last]
        rows = [(line.seq, line.kind, line.body) for line in lines]
        return CallLog(call.row, call.run_key, call.number, call.first_seq, rows)

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]:
        with self._lock:
            runs, calls = self._tables.keys, self._tables.calls.values()
            found = [call.row for call in calls if wanted.fits(call.row, runs[call.run_key].row)]
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
            return [
                Head(
                    run.row.run_id,
                    run.key,
                    run.row.started_at,
                    run.compacted,
                    run.writer,
                    dict(run.sources),
                    {call.number: call.row.call_id for call in run.calls},
                )
                for run in runs
            ]

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

    async def stats(self) -> dict[str, Any]:
        with self._lock:
            runs = self._tables.runs.values()
            active, alive = [run for run in runs if run.row.outcome is None], self._alive()
            return {
                "schema_version": SCHEMA_VERSION,
                "runs": len(runs),
                "active_runs": len(active),
                "calls": len(self._tables.calls),
                "records": sum(len(run.log) if run.compacted else run.row.last_seq for run in runs),
                "live_writers": len(alive),
                "orphaned_runs": sum(run.writer not in alive for run in active),
                "stored_bytes": sum(len(line.body) for run in runs for line in run.log),
            }


def _new_row(change: RunChange) -> RunRow:
    thread_id = change.thread_id or change.run_id
    return RunRow(change.run_id, thread_id, change.principal, None, None, change.started_at, None, 0)


def _columns(change: CallChange) -> dict[str, Any]:
    """What a change says of a call's row, without what it leaves as it is."""
    found = {name: getattr(change, name) for name in _CALL_COLUMNS}
    found = {name: value for name, value in found.items() if value is not None}
    if change.result is not None:
        found["result"] = from_json(change.result)
    return found


def _held(call: MemoryCall) -> Held:
    return Held(call.row.call_id, call.run_key, call.number, call.row.state, call.args_seq is not None)
