"""What a database has to offer so that ``Journal`` makes a journal of it, and what it is asked for.

``Writer`` is how a process writes: what it asks a database before a batch of appends, and how it closes what dead ones
left open. The database answers through ``Tables``, within one transaction; what is written is decided here and in
``plan``, once for every kind of store. ``log`` says what lies beside it where an engine keeps the pieces.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from callstream.calls import BEFORE_EXECUTING, Call, CallState
from callstream.errors import CallstreamError, JournalError, LeaseLost, UsageError
from callstream.events import (
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallReturned,
    InputKept,
    Record,
    RunEnded,
    RunEvent,
    RunResumed,
)
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.log import Log
from callstream.journal.packs import Packs
from callstream.journal.plan import Append, Held, Memory, Owned, Plan, Repeat, RunFacts, claim, ended_error
from callstream.journal.rows import (
    RecordColumns,
    Row,
    RunRow,
    Source,
    Stored,
    known_events,
    prepare,
    whole_completion,
)
from callstream.journal.whole import RunSize, WholeRun

_MORE = 10
"""How many more orphans are looked at than are ended at once: some may still go on."""


class Stale(Exception):
    """The database is not what the writer remembers. The memory has to be emptied, and the batch tried again."""


class Committed(NamedTuple):
    """The outcome of each append of a batch, and the runs that got records, with what is to be pushed to followers."""

    outcomes: Sequence[int | CallstreamError]
    changed: Mapping[str, Sequence[Record]]


class Tables(Protocol):
    """A database in the middle of a transaction. Stores that do not wait for anything answer without suspending."""

    async def run_facts(self, run_ids: Sequence[str]) -> Iterable[RunFacts]:
        """Those runs. One that is not there yet comes with a new key, and with epoch 0."""
        ...

    async def sources_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, Source, int]]:
        """Run key, source and its number."""
        ...

    async def calls_of(self, run_keys: Sequence[int]) -> Iterable[Held]:
        """The calls of those runs, in their order."""
        ...

    async def held_calls(self, call_ids: Sequence[str]) -> Iterable[Held]: ...

    async def exclusive_runs(self, thread_ids: Sequence[str]) -> Mapping[str, str]:
        """The exclusive run that each of those threads has now, if it has one."""
        ...

    async def rows(self, run_key: int, first: int, last: int) -> Sequence[tuple[int, str]] | None:
        """Kind and body of those records; None if the run is compacted."""
        ...

    async def events_of(self, run_keys: Sequence[int]) -> Iterable[tuple[int, int, str]]:
        """Run key, kind and body of the records of those runs that are no pieces, in their order."""
        ...

    async def orphans(self, limit: int, run_id: str | None = None, after: int = 0) -> Iterable[RunFacts]:
        """Runs that have not ended and whose process is dead, in the order of their keys. It cannot write to them any more
        from now on.

        ``run_id``: that one alone, if it is such a run. ``after``: those with a greater key.
        """
        ...

    async def take_over(self, run_keys: Sequence[int]) -> None:
        """Makes orphans, which this transaction has asked for, runs of this writer. Their epochs rise."""

    async def write(self, plan: Plan) -> None:
        """Raises Stale if anything is not as it was when the plan was made."""

    async def settle(self, records: Sequence[RecordColumns]) -> None:
        """Puts pieces here that lie in the log, but for those that are here and those of compacted or erased runs."""


class Writer:
    """One process, with its memory of the runs that it owns. If the transaction fails the memory must be cleared.

    ``log``: where pieces lie that the tables have not; see ``PairedStore``.
    """

    def __init__(self, name: str, *, has_archive: bool = False) -> None:
        self.name = name
        self.has_archive = has_archive
        self.log: Log | None = None
        self.memory = Memory()
        self._others: set[str] = set()
        """Orphans that this process does not take over."""

    async def commit(self, tables: Tables, batch: Sequence[Append], now: float, followed: Container[str]) -> Committed:
        plan = Plan(batch, self.memory, now)
        if others := plan.add_pieces():
            rest = [batch[place] for place in others]
            await self._load(tables, rest)
            calls, threads = self.memory.unknown_calls(rest), self.memory.exclusive_threads(rest)
            named = {held.call_id: held for held in await tables.held_calls(calls)} if calls else {}
            busy = await tables.exclusive_runs(threads) if threads else {}
            plan.add_others(others, named, busy=busy)
        if plan.changed:
            await tables.write(plan)
        for place, repeat in plan.repeats.items():
            plan.outcomes[place] = await self._repeated(tables, batch[place], repeat)
        return Committed(plan.outcomes, plan.changed_runs(followed))

    async def adopt(
        self,
        tables: Tables,
        apps: Container[str],
        limit: int,
        lives: Callable[[str], bool] | None = None,
        *,
        run_id: str | None = None,
    ) -> list[str]:
        """Takes over runs of dead processes that can go on with an app of these, and returns their ids.

        ``lives``: whether a writer's process is seen to live, where its lease may have run out without that. ``run_id``:
        that run alone.
        """
        mine: list[RunFacts] = []
        after: int | None = 0
        while after is not None and not mine:  # the next time looks for more
            found, after = await self._orphans(tables, limit, after, run_id)
            orphans = [run for run in found if run_id is not None or run.run_id not in self._others]
            events = await _events_of(tables, [run.key for run in orphans])
            for run in orphans:
                app = app_to_go_on(events[run.key])
                if app is not None and app in apps:
                    if lives is None or not lives(run.writer or ""):
                        mine.append(run)
                elif run_id is None:
                    self._others.add(run.run_id)  # it need not be read again and again
        if mine:
            await self._settle(tables, mine)
            await tables.take_over([run.key for run in mine])
        return [run.run_id for run in mine]

    async def sweep(self, tables: Tables, limit: int, now: float, patience: float) -> list[str]:
        """Ends runs of dead processes, and returns their ids.

        Runs that can go on wait for so many seconds since their last record for a process that takes them over.
        """
        lost: list[RunFacts] = []
        events: dict[int, list[RunEvent]] = {}
        after: int | None = 0
        while after is not None and not lost:
            found, after = await self._orphans(tables, limit * _MORE, after)
            events = await _events_of(tables, [facts.key for facts in found])
            lost = [
                facts
                for facts in found
                if now - facts.started_at - facts.last_ms / 1000 >= patience or app_to_go_on(events[facts.key]) is None
            ]
        orphans = [claim(facts) for facts in lost[:limit]]
        if not orphans:
            return []
        await _fill(tables, orphans)
        memory = Memory()
        for run in orphans:
            memory.add(run)
        resumed = await _resumed(tables, memory, events)
        appends = [Append(run.run_id, closing(run, resumed[run.key])) for run in orphans]
        plan = Plan(appends, memory, now)
        named = {held.call_id: held for calls in resumed.values() for held in calls}
        plan.add_others(range(len(appends)), named, taker=self.name)
        await self._settle(tables, lost[:limit])
        await tables.write(plan)
        return [run.run_id for run in plan.changed]

    async def _load(self, tables: Tables, batch: Sequence[Append]) -> None:
        unknown = self.memory.unknown_runs(batch)
        if not unknown:
            return
        mine = []
        for facts in await self._with_last(await tables.run_facts(unknown)):
            if facts.epoch == 0:
                run = Owned(facts.run_id, facts.key, self.name, 1, is_new=True)
            else:
                run = claim(facts, self.name)
                if run.refusal is None:
                    mine.append(run)
            self.memory.add(run)
        if mine:
            await _fill(tables, mine)
            for run in mine:
                self.memory.add(run)  # again, now that it has its calls

    async def erase(self, run_keys: Collection[int]) -> None:
        """Takes ended runs out of the log."""
        if self.log is not None and run_keys:
            await self.log.erase(run_keys)

    async def _settle(self, tables: Tables, runs: Iterable[RunFacts]) -> None:
        """Brings the pieces of runs that change hands to the tables: the log has them in their owner's part."""
        if self.log is not None:
            for run in runs:
                await tables.settle(await self.log.read(run.key, run.writer or "", 0, None))

    async def _orphans(
        self, tables: Tables, limit: int, after: int, run_id: str | None = None
    ) -> tuple[Sequence[RunFacts], int | None]:
        """So many after a key, and the key after which there may be more."""
        found = list(await tables.orphans(limit, run_id, after))
        if self.log is not None and found:
            await self.log.fence({run.writer for run in found if run.writer is not None})
        return await self._with_last(found), found[-1].key if len(found) == limit else None

    async def _with_last(self, found: Iterable[RunFacts]) -> Sequence[RunFacts]:
        """Those runs with their last number, which only the log may know."""
        facts = list(found)
        live = {run.key: run.writer or "" for run in facts if run.epoch and not run.ended}
        if self.log is None or not live:
            return facts
        last = await self.log.last(live)
        return [
            msgspec.structs.replace(run, last_seq=last[run.key][0], last_ms=last[run.key][1])
            if run.key in last and last[run.key][0] > run.last_seq
            else run
            for run in facts
        ]

    async def _repeated(self, tables: Tables, append: Append, repeat: Repeat) -> int | CallstreamError:
        """The outcome of an append that seems to be there already.

        Folded rows cannot be compared. If no other process has ever written to the run, the number is trusted.
        """
        run, first, last = repeat.run, repeat.first, repeat.last
        stored = await tables.rows(run.key, first, last)
        if self.log is not None and stored is not None and not stored:
            rows = await self.log.read(run.key, run.writer, first - 1, last - first + 1)
            stored = [(kind, body) for _, seq, _, _, _, kind, body in rows if seq <= last]
        if not isinstance(run.refusal, LeaseLost) if stored is None else same_rows(append, stored):
            return last
        if run.refusal is None and run.ended:
            return ended_error(append.run_id)
        return run.refusal or UsageError(
            f"records {first} to {last} of run {append.run_id!r} are not those of this append: "
            "two tasks write to the run with the same numbers"
        )


async def _fill(tables: Tables, runs: Sequence[Owned]) -> None:
    by_key = {run.key: run for run in runs}
    for key, source, number in await tables.sources_of(list(by_key)):
        by_key[key].sources[source] = number
    for held in await tables.calls_of(list(by_key)):
        by_key[held.run_key].calls[held.call_id] = held


async def _events_of(tables: Tables, run_keys: Sequence[int]) -> dict[int, list[RunEvent]]:
    """The events of those runs that are no pieces, by run."""
    rows: dict[int, list[tuple[int, str]]] = {key: [] for key in run_keys}
    for key, kind, body in await tables.events_of(run_keys) if run_keys else ():
        rows[key].append((kind, body))
    return {key: list(known_events(found)) for key, found in rows.items()}


async def _resumed(
    tables: Tables, memory: Memory, events: Mapping[int, Sequence[RunEvent]]
) -> Mapping[int, Sequence[Held]]:
    """The calls of other runs that each of those runs was executing. They close their own, and each other's."""
    keys = [run.key for run in memory.runs.values()]
    names = {key: [call_id for call_id in left_executing(events[key]) if call_id not in memory.calls] for key in keys}
    wanted = [call_id for call_ids in names.values() for call_id in call_ids]
    found = {held.call_id: held for held in await tables.held_calls(wanted)} if wanted else {}
    return {key: [found[call_id] for call_id in call_ids if call_id in found] for key, call_ids in names.items()}


def same_rows(append: Append, stored: Sequence[tuple[int, str]]) -> bool:
    """Whether the stored (kind, body) are what the append would have written."""
    if len(stored) != len(append.rows):
        return False
    return all(
        columns == (row.kind, row.body)
        or (isinstance(row.event, CallCompleted) and columns == whole_completion(row.event))
        for row, columns in zip(append.rows, stored, strict=True)
    )


def app_to_go_on(events: Iterable[RunEvent]) -> str | None:
    """The app that can go on with a run, by its log; None if it was not made for that, or was tried often enough."""
    kept: InputKept | None = None
    attempt = 1
    for event in events:
        if isinstance(event, InputKept):
            kept = event
        elif isinstance(event, RunResumed):
            attempt = event.attempt
    return None if kept is None or attempt >= kept.attempts else kept.app


def left_executing(events: Iterable[RunEvent]) -> list[str]:
    """The calls that a run, by its log, has begun to execute and has not said anything final of."""
    begun: dict[str, None] = {}
    for event in events:
        if isinstance(event, CallExecuting):
            begun[event.call_id] = None
        elif isinstance(event, CallAwaiting | CallReturned | CallFailed | CallDiscarded):
            begun.pop(event.call_id, None)
    return list(begun)


def closing(run: Owned, resumed: Iterable[Held] = ()) -> list[Row]:
    """The records that end a run whose process died: by state, and the run's end.

    A tool that ran early is as good as executing when its arguments were whole; before, nothing of it counts.

    ``resumed``: calls of earlier runs that this one was executing.
    """
    events: list[RunEvent] = []
    for held in run.calls.values():
        runs_early = held.state is CallState.RUNNING_EARLY
        if held.state in BEFORE_EXECUTING or (runs_early and not held.has_args):
            events.append(CallDiscarded(held.call_id, "interrupted"))
        elif held.state is CallState.EXECUTING or runs_early:
            events.append(CallFailed(held.call_id, "interrupted"))
    events += [CallFailed(held.call_id, "interrupted") for held in resumed if held.state is CallState.EXECUTING]
    events.append(RunEnded("failed", "interrupted"))
    return [prepare(event) for event in events]


_log = logging.getLogger("callstream.journal")
_PASSING_SECONDS = 1.0
_REFUSAL_SECONDS = 30.0
"""How long a refusal counts if no further append is tried."""

SCHEMA_VERSION = 2
"""The schema that this code writes. A store of schema n serves code n and code n - 1."""


class StoreAway(JournalError):
    """The store cannot be reached or is locked just now. Worth trying again for a while.

    It is not known whether what was being written is written: each append's ``base`` tells when it is tried again.
    """


class Unstorable(JournalError):
    """The store cannot hold such a value. It takes others."""


class Outage:
    """Whether the store takes appends. The log says once that it cannot be written, and once that it can again.

    A lock or a restart that passes within a second is not worth a line, unless an append has failed by then. A store that
    was away is back as soon as anything was written to it. One that refused an append (a full disk) may well take a
    smaller row, so it has to take an append.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._since: float | None = None
        self._is_told = False
        self._refusal: JournalError | None = None
        self._refused_at = 0.0

    @property
    def refusal(self) -> JournalError | None:
        """Why the store has refused an append a moment ago and has taken none since."""
        return self._refusal if time.monotonic() - self._refused_at < _REFUSAL_SECONDS else None

    def begin(self, error: JournalError, *, gave_up: bool = False) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not isinstance(error, StoreAway):
            self._refusal, self._refused_at = error, now
        if not self._is_told and (gave_up or self._refusal or now - self._since >= _PASSING_SECONDS):
            self._is_told = True
            _log.error("the journal cannot be written, trying again: %s", error)

    def end(self, *, by_append: bool) -> None:
        if self._since is None or (self._refusal is not None and not by_append):
            return
        if self._is_told:
            seconds = time.monotonic() - self._since
            _log.warning("the journal can be written again, after %.1f s: %s", seconds, self._where)
        self._since, self._is_told, self._refusal = None, False, None


def check_version(version: int, oldest_code: int, where: str) -> None:
    """Raises JournalError if this code cannot use a store of that version."""
    if version > SCHEMA_VERSION and oldest_code > SCHEMA_VERSION:
        raise JournalError(
            f"{where} has schema {version}, which needs code of schema {oldest_code} or newer; this code has schema "
            f"{SCHEMA_VERSION}: upgrade callstream in this process"
        )


def must_migrate(version: int, where: str) -> JournalError:
    return JournalError(
        f"{where} has schema {version}, this code needs {SCHEMA_VERSION}: run `callstream migrate`, or open the "
        "journal with migrate=True"
    )


def check_archive(writer: Writer, where: str, *, has_packs: bool) -> None:
    """Raises JournalError if runs lie in an archive that this process was not told of: it could not read or erase them."""
    if has_packs and not writer.has_archive:
        raise JournalError(
            f"{where} has runs in an archive: name it where you open the journal, with archive= or CALLSTREAM_ARCHIVE"
        )


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str | None = None
    thread_id: str | None = None
    principal: str | None = None
    active: bool | None = None
    ended_before: float | None = None

    def fits(self, run: RunRow) -> bool:
        return (
            (self.run_id is None or run.run_id == self.run_id)
            and (self.thread_id is None or run.thread_id == self.thread_id)
            and (self.principal is None or run.principal == self.principal)
            and (self.active is None or (run.outcome is None) == self.active)
            and (self.ended_before is None or (run.ended_at is not None and run.ended_at < self.ended_before))
        )

    def conditions(self) -> dict[str, Any]:
        """The named conditions of a query, each with its value; True for one that takes none."""
        found = _given(self)
        active = found.pop("where_active", None)
        if active is not None:
            found["where_active" if active else "where_ended"] = True
        return found


class CallFilter(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str | None = None
    thread_id: str | None = None
    principal: str | None = None
    states: Sequence[CallState] | None = None
    provider_id: str | None = None

    def fits(self, call: Call, run: RunRow) -> bool:
        return (
            (self.run_id is None or call.run_id == self.run_id)
            and (self.thread_id is None or call.thread_id == self.thread_id)
            and (self.principal is None or run.principal == self.principal)
            and (self.states is None or call.state in self.states)
            and (self.provider_id is None or call.provider_id == self.provider_id)
        )

    def conditions(self) -> dict[str, Any]:
        """The named conditions of a query, each with its value."""
        found = _given(self)
        if self.states is not None:
            found["where_states"] = [state.value for state in self.states]
        return found


def forget_filter(before: float | None, thread: str | None, principal: str | None) -> RunFilter:
    """The ended runs that match all that is given."""
    if before is None and thread is None and principal is None:
        raise UsageError("forget needs before=, thread= or principal=: without them it would erase everything")
    if before is not None and math.isnan(before):
        raise UsageError("forget needs before= as seconds since 1970, got nan")
    return RunFilter(thread_id=thread, principal=principal, active=False, ended_before=before)


def forgotten_mark(thread_id: str, principal: str | None) -> str:
    """What is left of a thread that was erased for good. Nobody can read from it which thread it was, or whose."""
    return hashlib.sha256(msgspec.json.encode((thread_id, principal))).hexdigest()


def _given(wanted: RunFilter | CallFilter) -> dict[str, Any]:
    return {f"where_{name}": value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}


class Head(msgspec.Struct, frozen=True):
    """A run's number, and what numbers in its records mean. These never change; more may come while the run goes on.

    ``writer``: the process that owns it, whose part of the log has its pieces; empty when the run is compacted.
    """

    run_id: str
    key: int
    started_at: float
    compacted: bool
    writer: str
    sources: dict[int, Source]
    call_ids: dict[int, str]


class CallLog(NamedTuple):
    """A call without its text, and (seq, kind, body) of its pieces and of the record that ended them."""

    call: Call
    run_key: int
    number: int
    first_seq: int
    rows: Sequence[tuple[int, int, str]]


class RunRows(NamedTuple):
    """The whole log of a run, for compaction. Without rows if the run is still running or is compacted."""

    run_key: int
    ended: bool
    compacted: bool
    rows: Sequence[Stored] = ()


class StoreReader(Protocol):
    """The questions that nothing is written for."""

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None: ...

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        """See ``Journal``."""
        ...

    async def call(self, call_id: str) -> Call | None: ...

    async def call_log(self, call_id: str) -> CallLog | None: ...

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]: ...

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]: ...

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        """Which of those ids are calls in the store."""
        ...

    async def has_forgotten(self, mark: str) -> bool:
        """Whether runs of the thread with that ``forgotten_mark`` were erased for good."""
        ...

    async def heads(self, run_ids: Sequence[str]) -> Sequence[Head]:
        """Those of the runs that are there."""
        ...

    async def log(self, run_id: str) -> RunRows | None: ...

    async def writers(self) -> set[str]:
        """Those that are alive, and those that have runs which are not compacted."""
        ...

    async def run_sizes(self, after: int, last: int | None, limit: int | None) -> Sequence[RunSize]:
        """The first so many runs with keys after that one, up to the last one, in the order of their keys."""
        ...

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        """Those of the runs that are there, in the order of their keys."""
        ...

    async def forgotten(self, after: str, limit: int) -> Sequence[str]:
        """The first so many ``forgotten_mark``s after that one, in order."""
        ...

    async def stats(self) -> dict[str, Any]: ...


class Store(Protocol):
    """One database. It is awaited on the journal's thread only; so is its reader, unless that ``reads_anywhere``.

    It is the whole journal, or the index beside a ``Log``: then some pieces of live runs are not here.

    Anything may raise StoreAway if it should be tried again, JournalError if not.
    """

    where: str
    is_persistent: bool
    reads_anywhere: bool
    """Whether the reader may be awaited in any event loop."""
    blocks: bool
    """Whether ``commit`` keeps its thread until it is done, and cannot be given up before."""

    @property
    def packs(self) -> Packs: ...

    @property
    def reader(self) -> StoreReader: ...

    async def open(self, writer: Writer, followers: Followers) -> None:
        """Connects, brings the schema up to date or refuses it, and takes the writer's lease."""

    async def migrate(self) -> int:
        """Brings the schema up to date, under a lock; returns its version."""
        ...

    async def close(self) -> None:
        """Gives the leases back and disconnects."""

    async def commit(self, batch: Sequence[Append]) -> Committed:
        """Writes the batch in one transaction."""
        ...

    async def renew(self) -> None:
        """Says that this process is alive."""

    async def check(self) -> None:
        """Commits one small row of this process's own."""

    async def hold(self, name: str, seconds: float) -> bool:
        """Takes or keeps a duty's lease; False while another process has it."""
        ...

    async def watch(self) -> None:
        """Wakes followers when another process has committed. Runs until it is cancelled."""

    async def sweep(self, limit: int, patience: float) -> list[str]:
        """Closes up to so many runs of dead processes and returns their ids; see ``Writer.sweep``."""
        ...

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        """Takes over runs of dead processes; see ``Writer.adopt``."""
        ...

    async def release_gone(self, is_gone: Callable[[str], bool]) -> None:
        """Gives the leases of writers back of which it is known that their processes are gone."""

    async def put_folded(self, run_id: str, run_key: int, rows: Iterable[Stored]) -> bool:
        """Puts the folded log in the place of the log. False if another process has compacted or erased the run."""
        ...

    async def due(self, age: float) -> list[str]:
        """Some runs that ended longer ago than that and are not compacted."""
        ...

    async def own_due(self, age: float) -> list[str]:
        """Those that this process has ended and had better compact itself. One process does so for all others."""
        ...

    async def settle(self, records: Sequence[RecordColumns]) -> None:
        """See ``Tables``."""

    async def forget(self, wanted: RunFilter, limit: int, for_good: bool) -> list[str]:
        """Erases up to so many of those runs and returns their ids. They have ended: the filter says so.

        ``for_good``: and keeps the ``forgotten_mark`` of their threads.
        """
        ...

    async def restore(self, runs: Sequence[WholeRun], gone: Collection[int]) -> None:
        """Puts those runs in the place of what is here under their keys, and erases others, in one transaction."""

    async def keep_forgotten(self, marks: Sequence[str]) -> None: ...

    async def asked_to_stop(self) -> dict[str, str]:
        """The runs of this writer that should stop."""
        ...

    async def ask_to_stop(self, run_id: str, reason: str) -> bool: ...
