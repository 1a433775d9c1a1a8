"""A journal of two parts: an index, which is a store, and beside it a log for the pieces of live runs.

``Log`` says which of the two has what. Writing: the pieces of a batch go to the log, which has one fence for all of a
writer's runs; then the rest of the batch, if there is any, goes to the index. Reading: the index first, then the log, which
by then has every piece that precedes a record read from the index. If a number is missing even so, the run was compacted in
between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import msgspec

from callstream.errors import CallstreamError, JournalError
from callstream.events import Record, RunEnded, RunResumed
from callstream.journal.follow import Folded, Followers, Heads, Page
from callstream.journal.plan import Append, Plan
from callstream.journal.rows import RecordColumns, RunRow
from callstream.journal.store import CallLog, Head, RunFilter, RunRows, Store, StoreReader, StoreUnavailable
from callstream.journal.whole import WholeRun, stored_rows
from callstream.journal.writer import Added, Committed, Log, Stale, Writer

_log = logging.getLogger("callstream.journal")
_TRIES = 5
_TRIM_SECONDS = 5.0
_DEAD_SECONDS = 60.0
_DEAD = "callstream log"
"""The duty of erasing what dead writers left in the log."""
_OTHERS_SHARE = 0.5
"""How much longer a run waits to be compacted by another process than by its own, which has its pieces in memory."""


class PairedStore:
    """See ``Store``. Everything that does not concern pieces is left to the index."""

    is_local = False
    journal_id: str

    def __init__(self, index: Store, log: Log) -> None:
        self._index = index
        self._log = log
        self._has_turn = False
        self._ended: deque[tuple[float, str]] = deque()
        """When this process's own runs ended, and which they are."""
        self.where = f"{index.where} with {log.where}"
        self.is_persistent = index.is_persistent and log.is_persistent
        self.reader = _PairedReader(index.reader, log, self.where)
        self.figures = log.figures
        self.migrate = index.migrate
        self.note_log = index.note_log
        self.renew = index.renew
        self.hold = index.hold
        self.sweep = index.sweep
        self.adopt = index.adopt
        self.release_gone = index.release_gone
        self.put_folded = index.put_folded
        self.packs = index.packs
        self.copy_pieces = index.copy_pieces
        self.forget = index.forget
        self.restore = index.restore
        self.keep_forgotten = index.keep_forgotten
        self.asked_to_stop = index.asked_to_stop
        self.ask_to_stop = index.ask_to_stop

    async def open(self, writer: Writer, followers: Followers) -> None:
        self._writer = writer
        self._followers = followers
        self.reader.follow(followers)
        writer.log = self._log
        await self._index.open(writer, followers)  # if it refuses the log, nothing is created there
        try:
            self.journal_id = self._index.journal_id
            await self._log.open(writer.name, self._heard, self.journal_id)
            await self._index.renew()  # that may have taken as long as a lease
            await self._index.note_log()
        except CallstreamError:
            await self.close()
            raise

    async def close(self) -> None:
        await self._index.close()
        await self._log.close()

    async def check(self, size: int) -> None:
        await self._index.check(size)
        await self._log.check(size)

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._index.watch())
            tasks.create_task(self._tend())

    async def _tend(self) -> None:
        """Erases what the log no longer needs to hold, until it is cancelled."""
        complaint = ""
        looks_at = time.monotonic() + _DEAD_SECONDS
        while True:
            await asyncio.sleep(_TRIM_SECONDS)
            try:
                await self.trim()
                if time.monotonic() >= looks_at:
                    looks_at = time.monotonic() + _DEAD_SECONDS
                    if await self._index.hold(_DEAD, 2 * _DEAD_SECONDS):
                        await self._log.trim_dead(self._index.reader.writers)
                complaint = ""
            except StoreUnavailable:
                pass  # the next round will do
            except JournalError as error:
                if complaint != (complaint := str(error)):
                    _log.warning("the log could not be trimmed, trying again: %s", complaint)

    async def trim(self) -> None:
        await self._log.trim(self._index.copy_pieces, self.reader.followed_keys())

    async def due(self, age: float) -> list[str]:
        return await self._index.due(age * (1 + _OTHERS_SHARE))

    async def own_due(self, age: float) -> list[str]:
        due: list[str] = []
        while self._ended and self._ended[0][0] <= time.monotonic() - age:
            due.append(self._ended.popleft()[1])
        return due

    async def commit(self, batch: Sequence[Append]) -> Committed:
        for _ in range(_TRIES):
            try:
                return await self._commit(batch)
            except Stale:
                self._lose_turn()
            except BaseException:
                self._lose_turn()  # the plan may not match what was written
                raise
        raise StoreUnavailable(
            f"{self._log.where} was changed by another process during each of {_TRIES} attempts to write"
        )

    async def _commit(self, batch: Sequence[Append]) -> Committed:
        memory = self._writer.memory
        if not self._has_turn:
            memory.clear()
            await self._log.take_turn()
            self._has_turn = True
        plan = Plan(batch, memory, time.time())
        others = plan.add_pieces(self._log.room)
        pieces = plan.changed_runs(self._followers.runs())
        if plan.changed:
            await self._log.append(plan.records)
        if not others:
            return Committed(plan.outcomes, pieces)
        try:
            rest = await self._index.commit([batch[place] for place in others])
        except BaseException:
            self._followers.wake(pieces)  # the pieces are written
            raise
        for place, outcome in zip(others, rest.outcomes, strict=True):
            plan.outcomes[place] = outcome
            rows = batch[place].rows
            if rows and isinstance(outcome, int) and isinstance(rows[-1].event, RunEnded):
                self._ended.append((time.monotonic(), batch[place].run_id))
        changed = {run_id: list(records) for run_id, records in rest.changed.items()}
        for run_id, records in pieces.items():
            # If either has no records to push, the followers have to read, and then they read all.
            later = changed.get(run_id)
            changed[run_id] = records if later is None else [*records, *later] if records and later else []
        return Committed(plan.outcomes, changed)

    def _lose_turn(self) -> None:
        self._has_turn = False
        self._writer.memory.clear()

    def _heard(self, added: Iterable[Added] | None) -> None:
        if added is None:
            self._followers.wake_all()
        else:
            self._followers.push(self.reader.heard(added))


class _PairedReader:
    """See ``StoreReader``."""

    def __init__(self, index: StoreReader, log: Log, where: str) -> None:
        self._index = index
        self._log = log
        self._where = where
        self.remembered: Heads[Head] = Heads()
        self._followed: Callable[[], Set[str]] = frozenset
        self.writers = index.writers
        self.calls = index.calls
        self.taken = index.taken
        self.has_forgotten = index.has_forgotten
        self.heads = index.heads
        self.run_sizes = index.run_sizes
        self.forgotten = index.forgotten
        self.left_open = index.left_open

    def follow(self, followers: Followers) -> None:
        self._followed = self.remembered.followed = followers.runs

    def followed_keys(self) -> dict[str, list[int]]:
        """The keys of the runs that are followed here, by their owners."""
        found: dict[str, list[int]] = {}
        for run_id in self._followed():
            if (head := self.remembered.get(run_id)) is not None:
                found.setdefault(head.writer, []).append(head.key)
        return found

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        head = self.remembered.get(run_id)
        for _ in range(_TRIES):
            is_old = head is not None
            # The head is remembered before the log is read: a notice that comes after this finds its run.
            head = head or await self._head(run_id)
            if head is None:
                return None
            if not head.compacted and run_id in self._followed():
                await self._log.listen(head.writer)
            page = await self._index.page(run_id, after, limit, is_first)
            if page is None or isinstance(page, Folded) or page.compacted:
                self.remembered.forget(run_id)
                return page
            if is_old and any(isinstance(record.event, RunResumed) for record in page.records):
                head = None  # another writer owns it now
                continue
            records, is_whole = _merge(page.records, await self._pieces(head, after, limit), after)
            if len(records) > limit:
                return Page(records[:limit], ended=False)
            if len(records) == limit or (is_whole and (records or page.ended or await self._still(head))):
                return Page(records, page.ended and is_whole)
            head = None
        raise self._torn(run_id)

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        for _ in range(_TRIES):
            live = await self._live(run_ids)
            found: dict[str, list[Record]] = {}
            for record in await self._index.read_whole(run_ids, merged=False):
                found.setdefault(record.run_id, []).append(record)
            is_whole = True
            for head in live.values():
                stored, pieces = found.get(head.run_id, []), await self._pieces(head, 0, None)
                found[head.run_id], has_all = _merge(stored, pieces, 0)
                is_whole &= has_all
            if is_whole and live.keys() == (await self._live([head.run_id for head in live.values()])).keys():
                return [record for run_id in run_ids for record in found.get(run_id, ())]
        raise self._torn(", ".join(run_ids))

    async def call_log(self, call_id: str) -> CallLog | None:
        found = await self._index.call_log(call_id)
        for _ in range(_TRIES):
            if found is None:
                return None
            before, run_ids = found, [found.call.run_id or ""]
            live = await self._live(run_ids)
            read = [await self._log.read(key, writer, found.first_seq, None) for key, writer in live]
            found = await self._index.call_log(call_id)
            if found is None or not live:
                return found  # if the call exists, all of it is in the index
            # If the call has changed meanwhile, its last pieces may have come to the log only since.
            if found.call == before.call and live.keys() == (await self._live(run_ids)).keys():
                rows = [(seq, kind, body) for _, seq, _, _, call, kind, body in read[0] if call == found.number]
                return found._replace(rows=sorted({*found.rows, *rows}))
        raise self._torn(f"call {call_id!r}")

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]:
        return await self._with_last(await self._index.runs(wanted, limit))

    async def _with_last(self, rows: list[RunRow]) -> list[RunRow]:
        """The same runs with the numbers of their last records, which may be known only to the log."""
        active = [row.run_id for row in rows if row.outcome is None]
        if not active:
            return rows
        heads = {head.run_id: head for head in await self._index.heads(active)}
        last = await self._log.last({head.key: head.writer for head in heads.values()})
        numbers = {run_id: last[head.key][0] for run_id, head in heads.items() if head.key in last}
        return [
            msgspec.structs.replace(row, last_seq=max(row.last_seq, numbers[row.run_id]))
            if row.run_id in numbers
            else row
            for row in rows
        ]

    async def log(self, run_id: str) -> RunRows | None:
        found = await self._index.log(run_id)
        if found is None or not found.ended or found.compacted:
            return found
        for run in await self._whole([found.run_key], run_id):
            return found._replace(compacted=run.compacted, rows=stored_rows(run))
        return None

    async def stats(self) -> dict[str, Any]:
        stats = await self._index.stats()
        active = await self._index.runs(RunFilter(active=True), None)
        later = sum(row.last_seq for row in await self._with_last(active)) - sum(row.last_seq for row in active)
        return {
            **stats,
            "records": stats["records"] + later,
            "stored_bytes": stats["stored_bytes"] + await self._log.stored_bytes(),
            "log": self._log.figures(),
        }

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        return await self._whole(run_keys, f"{len(run_keys)} runs")

    async def _whole(self, run_keys: Sequence[int], what: str) -> Sequence[WholeRun]:
        for _ in range(_TRIES):
            runs = await self._index.whole_runs(run_keys)
            open_runs = [run for run in runs if not run.compacted]
            live = await self._live([run.run_id for run in open_runs])
            pieces = {key: await self._log.read(key, writer, 0, None) for key, writer in live}
            # Pieces copied meanwhile were not in the first answer, and may have left the log: so the index is read again.
            now = await self._index.whole_runs([run.key for run in open_runs]) if open_runs else ()
            found = {run.key: run for run in [*runs, *now]}
            if len(now) == len(open_runs) and not any(run.compacted for run in now):
                whole = [_with_pieces(found[run.key], pieces.get(run.key, ())) for run in runs]
                if all(run.compacted or not run.last_seq or len(run.records) == run.last_seq for run in whole):
                    return whole
        raise self._torn(what)

    async def _head(self, run_id: str) -> Head | None:
        for head in await self._index.heads([run_id]):
            return self.remembered.remember(run_id, head)
        return None

    async def _still(self, head: Head) -> bool:
        """Whether the run is unchanged. If it is not, its log may have been erased, or be in another part."""
        now = await self._head(head.run_id)
        return now is not None and now.key == head.key and now.writer == head.writer and not now.compacted

    async def _live(self, run_ids: Sequence[str]) -> dict[tuple[int, str], Head]:
        """Those of the runs that may have pieces in their owners' parts of the log, by run and owner."""
        return {(head.key, head.writer): head for head in await self._index.heads(run_ids) if not head.compacted}

    async def _pieces(self, head: Head, after: int, limit: int | None) -> list[Record]:
        rows = await self._log.read(head.key, head.writer, after, limit)
        if not _explains(head, rows):
            head = await self._head(head.run_id) or head
        return _records(head, rows)

    def heard(self, added: Iterable[Added]) -> dict[str, list[Record]]:
        """The records that were appended to followed runs. A run has none if its records cannot be decoded without reading
        its head anew.
        """
        followed = self._followed()
        rows: dict[str, list[RecordColumns]] = {}
        for key, records in added:
            run_id = self.remembered.run_of(key)
            if run_id is not None and run_id in followed:
                rows.setdefault(run_id, []).extend(records())
        heads = {run_id: self.remembered.get(run_id) for run_id in rows}
        return {
            run_id: _records(head, rows[run_id]) if head is not None and _explains(head, rows[run_id]) else []
            for run_id, head in heads.items()
        }

    def _torn(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self._where} does not have all records of {what}: its two parts do not agree yet")


def _explains(head: Head, rows: Sequence[RecordColumns]) -> bool:
    """Whether the head says what the numbers in those records stand for."""
    return all(row[3] in head.sources and (not row[4] or row[4] in head.call_ids) for row in rows)


def _records(head: Head, rows: Sequence[RecordColumns]) -> list[Record]:
    return [head.record((*row[1:], None)) for row in rows]


def _with_pieces(run: WholeRun, pieces: Sequence[RecordColumns]) -> WholeRun:
    stored = {record[0] for record in run.records}
    more = [(*columns, None) for _, *columns in pieces if columns[0] not in stored]
    return msgspec.structs.replace(run, records=sorted([*run.records, *more]))


def _merge(stored: Sequence[Record], pieces: Sequence[Record], after: int) -> tuple[list[Record], bool]:
    """The records after that number up to the first missing one, and whether that is all of them."""
    found = {record.seq: record for record in [*pieces, *stored]}  # copied pieces are in both
    both = [found[seq] for seq in sorted(found)]
    for place, record in enumerate(both):
        if record.seq != after + 1 + place:
            return both[:place], False
    return both, True
