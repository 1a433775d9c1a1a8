"""How a process writes: what it asks a database before a batch of appends, and how it closes what dead ones left open.

The database answers through ``Tables``, within one transaction. What is written is decided here and in ``plan``, once for
every kind of store. ``log`` says what lies beside it where an engine keeps the pieces.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from callstream.calls import BEFORE_EXECUTING, CallState
from callstream.errors import CallstreamError, LeaseLost, UsageError
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
from callstream.journal.plan import Append, Held, Memory, Owned, Plan, ended_error
from callstream.journal.rows import RecordColumns, Row, known_events, prepare, whole_completion

Added: TypeAlias = tuple[int, Callable[[], Sequence[RecordColumns]]]
"""The key of a run, and what gives the records that another writer has appended to it."""
Heard: TypeAlias = Callable[[Iterable[Added] | None], object]
"""Called with what came; with None when some of that may have been missed."""
Settle: TypeAlias = Callable[[Sequence[RecordColumns]], Awaitable[None]]


class Log(Protocol):
    """The pieces of live runs in an engine that keeps ordered messages. Awaited on the journal's thread only.

    A store is an index: runs, calls, threads, leases, ended runs, and every record that changes one of these. It keeps the
    pieces too, nearly all of what is written, unless a ``Log`` beside it does: then a batch of nothing but pieces never
    touches the index. Any record of a live run may lie in either, an append as a whole, and the run is both, ordered by
    number. Pieces are in the log before the index gets a later record of their run, so nothing has to be committed in two
    places at once: a number that is missing in what was read of both is one that was written meanwhile.

    A writer has a part of the log for itself. When a run changes hands its pieces are copied into the index, so the rest is
    in the part of its owner and nowhere else; and what has lain in the log for long is copied there, too.

    Anything may raise StoreAway if it should be tried again, JournalError if not.
    """

    where: str
    name: str
    """Which log it is, wherever its servers are, as options of a journal's URL. The index notes it."""
    is_persistent: bool

    @property
    def room(self) -> int:
        """How much text an append may bring at most, in characters."""
        ...

    async def open(self, writer: str, heard: Heard, journal_id: str) -> None:
        """Refuses a log that another journal has: each of the two would erase what the other's processes have written."""

    async def close(self) -> None: ...

    async def check(self, size: int) -> None:
        """Raises JournalError if so many bytes could not be appended now."""

    async def take_turn(self) -> None:
        """Takes this writer's turn anew: what it had under way is in the log now, or is refused when it comes."""

    async def append(self, records: Sequence[RecordColumns]) -> None:
        """Adds all of them or none, durably. Raises Stale, with nothing added, if somebody has taken the turn since.

        Those of a run stand together, and none is missing between them.
        """

    async def fence(self, writers: Collection[str]) -> None:
        """Takes the turn from writers that are dead. What they append from now on is refused."""

    async def last(self, owners: Mapping[int, str]) -> Mapping[int, tuple[int, int]]:
        """Number and time of the last record of those of the runs that have any here, by run and the writer that owns it."""
        ...

    async def read(self, run_key: int, writer: str, after: int, limit: int | None) -> Sequence[RecordColumns]:
        """The first so many records of a run after that number, in order, as its owner has written them.

        What was appended before this is asked is among them.
        """
        ...

    async def listen(self, writer: str) -> None:
        """Has ``heard`` called for what that writer appends from now on, until ``trim`` says otherwise."""

    async def erase(self, run_keys: Collection[int]) -> None:
        """Of runs that have ended, once their records lie in the index or have been forgotten there."""

    async def trim(self, settle: Settle, followed: Mapping[str, Collection[int]]) -> None:
        """Called every few seconds: gives back the room of what was erased.

        What this writer has kept here for long is given to ``settle``, which puts it into the index, and is erased then.
        ``followed``: the runs that are followed here, by the writers that own them.
        """

    async def trim_dead(self, kept: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Erases all of writers that are not kept. Which those are is asked after it is known what there is."""

    async def stored_bytes(self) -> int:
        """How much room it takes."""
        ...

    def figures(self) -> dict[str, float]:
        """Of this process since it has opened the log: ``batches`` and ``records`` that it has appended, how many batches
        were ``refused`` because somebody had taken its turn, and ``lag_seconds``, the age of the oldest piece that it still
        has here. May be asked in any thread.
        """
        ...


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

    async def owned_runs(self, run_ids: Sequence[str]) -> Iterable[Owned]:
        """Those runs. One that is not there yet comes with a new key, and with epoch 0."""
        ...

    async def fill(self, runs: Mapping[int, Owned]) -> None:
        """Gives those runs, by key, their sources, and their calls in their order."""

    async def held_calls(self, call_ids: Sequence[str]) -> Mapping[str, Held]: ...

    async def exclusive_runs(self, thread_ids: Sequence[str]) -> Mapping[str, str]:
        """The exclusive run that each of those threads has now, if it has one."""
        ...

    async def stored(self, run_key: int, first: int, last: int) -> Sequence[tuple[int, str]] | None:
        """Kind and body of those records; None if the run is compacted."""
        ...

    async def events_of(self, run_keys: Sequence[int]) -> Iterable[Sequence[Any]]:
        """Run key, kind and body of the records of those runs that are no pieces, in their order."""
        ...

    async def orphans(self, writer: str, limit: int, run_id: str | None = None, after: int = 0) -> Iterable[Owned]:
        """Runs of others than that writer that have not ended and whose process is dead, in the order of their keys. It
        cannot write to them any more from now on.

        ``run_id``: that one alone, if it is such a run. ``after``: those with a greater key.
        """
        ...

    async def take_over(self, writer: str, run_keys: Sequence[int]) -> None:
        """Makes orphans, which this transaction has asked for, runs of that writer. Their epochs rise."""

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
            named = await tables.held_calls(calls) if calls else {}
            busy = await tables.exclusive_runs(threads) if threads else {}
            plan.add_others(others, named, busy=busy)
        if plan.changed:
            await tables.write(plan)
        for place, run in plan.repeats.items():
            plan.outcomes[place] = await self._repeated(tables, batch[place], run)
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
        mine: list[Owned] = []
        after: int | None = 0
        while after is not None and not mine:  # the next time looks for more
            found, after = await self._orphans(tables, limit, after, run_id)
            orphans = [run for run in found if run_id is not None or run.run_id not in self._others]
            events = await _events_of(tables, [run.key for run in orphans])
            for run in orphans:
                app = app_to_go_on(events[run.key])
                if app is not None and app in apps:
                    if lives is None or not lives(run.writer):
                        mine.append(run)
                elif run_id is None:
                    self._others.add(run.run_id)  # it need not be read again and again
        if mine:
            await self._settle(tables, mine)
            await tables.take_over(self.name, [run.key for run in mine])
        return [run.run_id for run in mine]

    async def sweep(self, tables: Tables, limit: int, now: float, patience: float) -> list[str]:
        """Ends runs of dead processes, and returns their ids.

        Runs that can go on wait for so many seconds since their last record for a process that takes them over.
        """
        lost: list[Owned] = []
        events: dict[int, list[RunEvent]] = {}
        after: int | None = 0
        while after is not None and not lost:
            found, after = await self._orphans(tables, limit * _MORE, after)
            events = await _events_of(tables, [run.key for run in found])
            lost = [
                run
                for run in found
                if not may_wait(events[run.key], now - run.started_at - run.last_ms / 1000, patience)
            ]
        orphans = lost[:limit]
        if not orphans:
            return []
        await tables.fill({run.key: run for run in orphans})
        memory = Memory()
        for run in orphans:
            memory.add(run)
        # Calls of other runs that each of them was executing. They close their own, and each other's.
        left = {
            run.key: [name for name in left_executing(events[run.key]) if name not in memory.calls] for run in orphans
        }
        names = [name for names in left.values() for name in names]
        named = await tables.held_calls(names) if names else {}
        appends = [
            Append(run.run_id, closing(run, [named[name] for name in left[run.key] if name in named]))
            for run in orphans
        ]
        plan = Plan(appends, memory, now)
        plan.add_others(range(len(appends)), named, taker=self.name)
        await self._settle(tables, orphans)
        await tables.write(plan)
        return [run.run_id for run in plan.changed]

    async def _load(self, tables: Tables, batch: Sequence[Append]) -> None:
        unknown = self.memory.unknown_runs(batch)
        if not unknown:
            return
        mine = []
        for run in await self._with_last(await tables.owned_runs(unknown)):
            if run.epoch == 0:
                run.writer, run.epoch, run.is_new = self.name, 1, True
            else:
                run.claim(self.name)
                if run.refusal is None:
                    mine.append(run)
            self.memory.add(run)
        if mine:
            await tables.fill({run.key: run for run in mine})
            for run in mine:
                self.memory.add(run)  # again, now that it has its calls

    async def erase(self, run_keys: Collection[int]) -> None:
        """Takes ended runs out of the log."""
        if self.log is not None and run_keys:
            await self.log.erase(run_keys)

    async def _settle(self, tables: Tables, runs: Iterable[Owned]) -> None:
        """Brings the pieces of runs that change hands to the tables: the log has them in their owner's part."""
        if self.log is not None:
            for run in runs:
                await tables.settle(await self.log.read(run.key, run.writer, 0, None))

    async def _orphans(
        self, tables: Tables, limit: int, after: int, run_id: str | None = None
    ) -> tuple[Sequence[Owned], int | None]:
        """So many after a key, and the key after which there may be more."""
        found = list(await tables.orphans(self.name, limit, run_id, after))
        if self.log is not None and found:
            await self.log.fence({run.writer for run in found})
        return await self._with_last(found), found[-1].key if len(found) == limit else None

    async def _with_last(self, found: Iterable[Owned]) -> Sequence[Owned]:
        """Those runs with their last number, which only the log may know."""
        runs = list(found)
        live = {run.key: run for run in runs if run.epoch and not run.ended}
        if self.log is not None and live:
            for key, (seq, ms) in (await self.log.last({key: run.writer for key, run in live.items()})).items():
                if seq > live[key].last_seq:
                    live[key].last_seq, live[key].last_ms = seq, ms
        return runs

    async def _repeated(self, tables: Tables, append: Append, run: Owned) -> int | CallstreamError:
        """The outcome of an append that seems to be there already.

        Folded rows cannot be compared. If no other process has ever written to the run, the number is trusted.
        """
        believed = append.believed or 0
        first, last = believed + 1, believed + len(append.rows)
        stored = await tables.stored(run.key, first, last)
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


async def _events_of(tables: Tables, run_keys: Sequence[int]) -> dict[int, list[RunEvent]]:
    """The events of those runs that are no pieces, by run."""
    rows: dict[int, list[tuple[int, str]]] = {key: [] for key in run_keys}
    for key, kind, body in await tables.events_of(run_keys) if run_keys else ():
        rows[key].append((kind, body))
    return {key: list(known_events(found)) for key, found in rows.items()}


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


def may_wait(events: Iterable[RunEvent], seconds: float, patience: float) -> bool:
    """Whether a run of a dead process, quiet for so many seconds, is left for another process to go on with."""
    return seconds < patience and app_to_go_on(events) is not None


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


# Which process a writer's name means, and whether it is there.
#
# A lease says that a process was there a moment ago. Of a process of this machine more can be known: when it has gone nobody
# needs to wait for its lease, and while it works its runs are its own, whatever the clock says. A name holds the machine's
# start, the namespace of its process ids, the id and the start of the process, so no other is taken for it. Where the system
# does not tell (Linux does), nothing is known and the lease decides.

_MARK = "@"
_STATE, _STARTED = 0, 19
"""Places in ``/proc/<pid>/stat`` after the name, which may hold anything but a closing parenthesis at its end."""
_STOPPED = frozenset("TtZX")


def with_process(writer: str) -> str:
    """The name with the process in it that this is."""
    stat = _stat(os.getpid())
    return writer if stat is None else f"{writer}{_MARK}{_machine()}.{os.getpid()}.{stat[_STARTED]}"


def process_is_gone(writer: str) -> bool:
    """Whether a writer's process was one of this machine, and is not there any more."""
    pid, started = _process(writer)
    if pid is None:
        return False
    stat = _stat(pid)
    return stat is None or stat[_STARTED] != started or stat[_STATE] in "ZX"


def process_lives(writer: str) -> bool:
    """Whether a writer's process is one of this machine, is there, and has not been stopped."""
    pid, started = _process(writer)
    stat = None if pid is None else _stat(pid)
    return stat is not None and stat[_STARTED] == started and stat[_STATE] not in _STOPPED


def _process(writer: str) -> tuple[int | None, str]:
    """The id and the start of the process, if it is one that can be seen from here."""
    machine, _, rest = writer.rpartition(_MARK)[2].partition(".")
    pid, _, started = rest.partition(".")
    return (int(pid), started) if machine and machine == _machine() and pid.isdecimal() else (None, "")


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None


@cache
def _machine() -> str:
    """The start of the machine and the namespace, together a name for where process ids mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot[:8]}-{''.join(filter(str.isdecimal, os.readlink('/proc/self/ns/pid')))}"
    except OSError:
        return ""
