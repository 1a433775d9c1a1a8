"""The journal in one SQLite file: the default, for one machine.

WAL: readers have connections of their own and never block the writer. Several processes may use one file; each takes
the write lock for one batch at a time.

What was acknowledged survives the end of the process, kill -9 included. With ``durability="process"`` (the default,
``synchronous=NORMAL``) a power cut or a crash of the operating system can take the last moments of acknowledged records
with it (those since the last checkpoint, about 4 MB of log), always from the end and never leaving the file unreadable.
With ``durability="power"`` (``synchronous=FULL``) every batch is flushed to the disk before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import CallstreamError, JournalError
from callstream.events import Record
from callstream.journal.draft import RecordColumns
from callstream.journal.filters import CallFilter, RunFilter
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.owned import Append, Held, Memory, Owned, RunFacts, claimed
from callstream.journal.plan import Plan, Repeat, closing, left_executing, repeated
from callstream.journal.protocol import RunRow
from callstream.journal.queries import queries
from callstream.journal.rows import Source, known_events
from callstream.journal.sqlite.file import Durability, SqliteFile, failure
from callstream.journal.sqlite.reader import SqliteReader, filtered
from callstream.journal.store import Committed, StoreAway

POLL_SECONDS = 0.02
"""How often commits of other processes are looked for, while somebody follows and they come."""
QUIET_POLL_SECONDS = 0.1
"""How often, when none have come for a while: looking is most of what an idle follower costs."""
_SQL = queries("sqlite")


def _of_many(statement: str, count: int) -> str:
    """The INSERT of one row as an INSERT of that many."""
    head, values, row = statement.partition("VALUES")
    return head + values + ",".join([row] * count)


# At most 999 parameters a statement, which older versions of SQLite hold to.
_INSERT_RECORDS = {size: _of_many(_SQL["insert_record"], size) for size in (128, 64, 32, 16, 8, 4, 2, 1)}


class _Stale(Exception):
    """The store is not what the memory says."""


class SqliteStore:
    """See ``Store``. What is done on the journal's thread blocks it: that is what the thread is for."""

    def __init__(
        self, path: str, *, durability: Durability, busy_seconds: float, lease_ttl: float, migrate: bool
    ) -> None:
        self.where = f"the SQLite file {path!r}"
        self._file = SqliteFile(path, durability, busy_seconds)
        self._reader = SqliteReader(path, busy_seconds)
        self._ttl = lease_ttl
        self._may_migrate = migrate
        self._memory = Memory()
        self._version = -1
        self._doubtful: set[str] = set()

    async def open(self, writer: str, followers: Followers) -> None:
        self._writer = writer
        self._followers = followers
        self._file.open()
        try:
            if self._may_migrate:
                self._file.migrate()
            else:
                self._file.check_schema()
            await self.renew()
        except CallstreamError:
            self._file.close()
            raise

    async def migrate(self) -> int:
        return self._file.migrate()

    async def close(self) -> None:
        self._reader.close()
        try:
            with self._file.transaction() as run:
                run(_SQL["release_leases"], {"writer": self._writer})
        except JournalError:
            pass  # they run out by themselves
        self._file.close()

    # -- appending -----------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Append]) -> Committed:
        for _ in range(3):
            try:
                return self._commit(batch)
            except _Stale:
                continue  # the memory is empty now
        raise StoreAway(f"{self.where} changed under the writer's hands three times")

    def _commit(self, batch: Sequence[Append]) -> Committed:
        with self._remembering() as run:
            self._check(run, batch)
            plan = Plan(batch, self._memory, time.time())
            if others := plan.add_pieces():
                rest = [batch[place] for place in others]
                self._load(run, rest)
                plan.add_others(others, self._named_calls(run, rest), busy=self._busy(run, rest))
            self._write(run, plan)
            outcomes = [
                self._repeated(run, append, outcome) if isinstance(outcome, Repeat) else outcome
                for append, outcome in zip(batch, plan.outcomes, strict=True)
            ]
        return Committed(outcomes, plan.changed_runs, plan.records_of(self._followers.runs()))

    @contextmanager
    def _remembering(self) -> Iterator[Any]:
        """A transaction after which the memory is what the file holds: as planned, or empty."""
        try:
            with self._file.transaction() as run:
                yield run
        except BaseException:
            self._memory.clear()
            raise

    def _check(self, run: Any, batch: Sequence[Append]) -> None:
        """Drops from memory what another process has changed.

        Nobody else can write now, and ``data_version`` says whether anybody has since it was last looked at; if not,
        all that is remembered is true, and nothing is read.
        """
        (version,) = run("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version, self._doubtful = version, set(self._memory.runs)
        if not self._doubtful:
            return
        asked = self._doubtful.intersection([append.run_id for append in batch])
        remembered = {run_id: self._memory.runs[run_id] for run_id in asked if run_id in self._memory.runs}
        keys = [owned.key for owned in remembered.values()]
        true = set(run(_SQL["check_runs"], {"run_keys": _json(keys)}).fetchall())
        for run_id, owned in remembered.items():
            # The id too: the number of an erased run is given again.
            if (run_id, owned.key, owned.writer, owned.epoch, owned.last_seq) not in true:
                self._memory.drop(run_id)
        self._doubtful -= asked

    def _named_calls(self, run: Any, batch: Sequence[Append]) -> dict[str, Held]:
        found = {}
        for call_id in self._memory.unknown_calls(batch):
            if row := run(_SQL["load_call"], {"call_id": call_id}).fetchone():
                found[call_id] = _held(row)
        return found

    def _busy(self, run: Any, batch: Sequence[Append]) -> dict[str, str]:
        threads = self._memory.exclusive_threads(batch)
        return dict(run(_SQL["busy_threads"], {"thread_ids": _json(threads)}).fetchall()) if threads else {}

    def _load(self, run: Any, batch: Sequence[Append]) -> None:
        next_key = 0
        for run_id in self._memory.unknown_runs(batch):
            row = run(_SQL["load_run"], {"run_id": run_id}).fetchone()
            if row is None:
                next_key = next_key + 1 if next_key else run(_SQL["next_run_key"]).fetchone()[0]
                self._memory.add(Owned(run_id, next_key, self._writer, 1, is_new=True))
            else:
                owned = claimed(_facts(row), self._writer)
                if owned.refusal is None:
                    self._fill(run, owned)
                self._memory.add(owned)

    def _fill(self, run: Any, owned: Owned) -> None:
        for *source, number in run(_SQL["load_run_sources"], {"run_key": owned.key}):
            owned.sources[Source(*source)] = number
        for row in run(_SQL["load_run_calls"], {"run_key": owned.key}):
            owned.calls[row[0]] = _held(row)

    def _repeated(self, run: Any, append: Append, repeat: Repeat) -> int | CallstreamError:
        key = repeat.run.key
        compacted = run(_SQL["read_run"], {"run_id": append.run_id}).fetchone()[4]
        stored = run(_SQL["stored_rows"], {"run_key": key, "first": repeat.first, "last": repeat.last}).fetchall()
        return repeated(append, repeat, stored, bool(compacted))

    def _write(self, run: Any, plan: Plan) -> None:
        for owned, change in plan.runs.items():
            if change.is_new:
                first = (change.key, change.run_id, change.thread_id, change.principal, change.started_at)
                run(_SQL["insert_run"], (*first, change.writer, change.epoch, change.exclusive))
            if change.outcome is not None:
                end = (change.outcome, change.reason, change.ended_at, owned.last_seq, change.writer, change.epoch)
                run(_SQL["end_run"], (*end, change.key))
        if plan.sources:
            self._file.connection.executemany(_SQL["insert_source"], plan.sources)
        self._insert_records(run, plan.records)
        for call in plan.calls.values():
            columns = msgspec.structs.asdict(call)
            if call.old_state is None:
                run(_SQL["insert_call"], columns)
            elif run(_SQL["advance_call"], columns).rowcount != 1:
                raise _Stale

    def _insert_records(self, run: Any, records: Sequence[RecordColumns]) -> None:
        """Many rows a statement. Between statements the driver hands the interpreter over to other threads and has to
        wait for it again, which costs more than a row.
        """
        start = 0
        for size, statement in _INSERT_RECORDS.items():
            while len(records) - start >= size:
                run(statement, list(chain.from_iterable(records[start : start + size])))
                start += size

    # -- leases --------------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        with self._file.transaction() as run:
            run(_SQL["renew_writer"], {"writer": self._writer, "ttl": self._ttl})

    async def check(self) -> None:
        with self._file.transaction() as run:
            run(_SQL["write_check"], {"writer": self._writer})

    async def hold(self, name: str, seconds: float) -> bool:
        with self._file.transaction() as run:
            taken = run(_SQL["hold_lease"], {"name": name, "writer": self._writer, "ttl": seconds})
            held = bool(taken.rowcount == 1)
            if held:
                run(_SQL["drop_dead_leases"])
        return held

    # -- stops --------------------------------------------------------------------------------------------------------

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        with self._file.transaction() as run:
            return bool(run(_SQL["ask_to_stop"], {"run_id": run_id, "reason": reason}).rowcount)

    async def asked_to_stop(self) -> dict[str, str]:
        with failure(self.where):
            return dict(self._file.connection.execute(_SQL["asked_to_stop"], {"writer": self._writer}).fetchall())

    # -- other processes -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Looks whether anybody else has committed.

        ``data_version`` of the writing connection changes with every commit of any other connection, and costs a look
        into shared memory.
        """
        seen: dict[str, int] = {}
        version = None
        pause = POLL_SECONDS
        while True:
            await self._followers.any()
            await asyncio.sleep(pause)
            pause = min(pause * 1.1, QUIET_POLL_SECONDS)
            try:
                with failure(self.where):
                    (now,) = self._file.connection.execute("PRAGMA data_version").fetchone()
                    if now == version:
                        continue
                    run_ids = list(self._followers.runs())
                    parameters = {"run_ids": _json(run_ids)}
                    found = dict(self._file.connection.execute(_SQL["followed_runs"], parameters).fetchall())
            except JournalError:
                continue  # whoever reads will be told
            version, pause = now, POLL_SECONDS
            self._followers.wake([run_id for run_id in run_ids if seen.get(run_id) != found.get(run_id)])
            seen = found

    # -- housekeeping --------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> list[str]:
        with self._file.transaction() as run:
            memory = Memory()
            rows = run(_SQL["orphaned_runs"], {"writer": self._writer, "limit": limit}).fetchall()
            for facts in map(_facts, rows):
                owned = claimed(facts)
                self._fill(run, owned)
                memory.add(owned)
            appends, named = [], {}
            for owned in memory.runs.values():
                resumed = self._resumed(run, owned, memory)
                named.update(resumed)
                appends.append(Append(owned.run_id, closing(owned, resumed.values())))
            plan = Plan(appends, memory, time.time())
            plan.add_others(range(len(appends)), named, taker=self._writer)
            self._write(run, plan)
        return plan.changed_runs

    def _resumed(self, run: Any, owned: Owned, memory: Memory) -> dict[str, Held]:
        """The calls of other runs that a run was executing; those of runs that are swept with it are closed by them."""
        events = run(_SQL["events_of_run"], {"run_key": owned.key}).fetchall()
        found = {}
        for call_id in left_executing(known_events(events)):
            if call_id not in memory.calls and (row := run(_SQL["load_call"], {"call_id": call_id}).fetchone()):
                found[call_id] = _held(row)
        return found

    async def compact(self, run_id: str) -> int:
        """A reader reads and folds the log, because an ended run does not change; the lock is for the writing alone."""
        ended = await self._reader.folded(run_id)
        if ended is None:
            return 0
        with self._file.transaction() as run:
            row = run(_SQL["read_run"], {"run_id": run_id}).fetchone()
            if row is None or row[0] != ended.key or row[4]:
                return 0  # somebody else was quicker
            run_key = {"run_key": ended.key}
            self._file.connection.executemany(_SQL["insert_archive"], [(ended.key, *row) for row in ended.rows])
            run(_SQL["delete_log"], run_key)
            run(_SQL["mark_compacted"], run_key)
        self._file.give_back()
        return ended.gone

    async def due(self, age: float) -> list[str]:
        with failure(self.where):
            rows = self._file.connection.execute(_SQL["compactable_runs"], {"age": age, "limit": 50}).fetchall()
        return [run_id for (run_id,) in rows]

    async def forget(self, wanted: RunFilter, limit: int) -> list[str]:
        query, values = filtered("forgettable_runs", wanted.conditions(), limit)
        with failure(self.where):
            self._file.connection.execute("PRAGMA secure_delete = ON")  # erased text is overwritten, not only unlinked
        with self._file.transaction() as run:
            rows = run(query, values).fetchall()
            for key, _ in rows:
                for table in ("log", "archive", "sources", "calls", "run"):
                    run(_SQL[f"delete_{table}"], {"run_key": key})
        if rows:
            self._file.give_back()
        return [run_id for _, run_id in rows]

    # -- reading, in any event loop ------------------------------------------------------------------------------------

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        return await self._reader.page(run_id, after, limit, is_first)

    async def read_whole(self, run_ids: Sequence[str]) -> list[Record]:
        return await self._reader.read_whole(run_ids)

    async def call(self, call_id: str) -> Call | None:
        return await self._reader.call(call_id)

    async def calls(self, wanted: CallFilter, limit: int | None, *, newest: bool) -> list[Call]:
        return await self._reader.calls(wanted, limit, newest=newest)

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]:
        return await self._reader.runs(wanted, limit)

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        return await self._reader.taken(call_ids)

    async def stats(self) -> dict[str, Any]:
        return await self._reader.stats()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _facts(row: Sequence[Any]) -> RunFacts:
    run_id, key, writer, epoch, started_at, last_seq, last_ms, ended = row
    return RunFacts(run_id, key, writer, epoch, started_at, last_seq, last_ms, bool(ended))


def _held(row: Sequence[Any]) -> Held:
    return Held(row[0], row[1], row[2], CallState(row[3]))
