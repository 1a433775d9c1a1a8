"""How a process writes: what it asks a database before a batch of appends, and how it closes what dead ones left open.

The database answers through ``Tables``, within one transaction; what is written is decided here and in ``plan``, once for
every kind of store.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from callstream.calls import BEFORE_EXECUTING, CallState
from callstream.errors import CallstreamError, LeaseLost, UsageError
from callstream.events import (
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallReturned,
    Record,
    RunEnded,
    RunEvent,
)
from callstream.journal.owned import Append, Held, Memory, Owned, RunFacts, claim, ended_error
from callstream.journal.plan import Plan, Repeat
from callstream.journal.rows import Row, Source, known_events, prepare, whole_completion


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

    async def orphans(self, limit: int) -> Iterable[RunFacts]:
        """Runs that have not ended and whose process is dead. It cannot write to them any more from now on."""
        ...

    async def write(self, plan: Plan) -> None:
        """Raises Stale if anything is not as it was when the plan was made."""


class Writer:
    """One process, with its memory of the runs that it owns. If the transaction fails the memory must be cleared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.memory = Memory()

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
            plan.outcomes[place] = await _repeated(tables, batch[place], repeat)
        return Committed(plan.outcomes, plan.changed_runs(followed))

    async def sweep(self, tables: Tables, limit: int, now: float) -> list[str]:
        """Ends runs of dead processes, and returns their ids."""
        orphans = [claim(facts) for facts in await tables.orphans(limit)]
        if not orphans:
            return []
        await _fill(tables, orphans)
        memory = Memory()
        for run in orphans:
            memory.add(run)
        resumed = await _resumed(tables, memory)
        appends = [Append(run.run_id, closing(run, resumed[run.key])) for run in orphans]
        plan = Plan(appends, memory, now)
        named = {held.call_id: held for calls in resumed.values() for held in calls}
        plan.add_others(range(len(appends)), named, taker=self.name)
        await tables.write(plan)
        return [run.run_id for run in plan.changed]

    async def _load(self, tables: Tables, batch: Sequence[Append]) -> None:
        unknown = self.memory.unknown_runs(batch)
        if not unknown:
            return
        mine = []
        for facts in await tables.run_facts(unknown):
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


async def _fill(tables: Tables, runs: Sequence[Owned]) -> None:
    by_key = {run.key: run for run in runs}
    for key, source, number in await tables.sources_of(list(by_key)):
        by_key[key].sources[source] = number
    for held in await tables.calls_of(list(by_key)):
        by_key[held.run_key].calls[held.call_id] = held


async def _resumed(tables: Tables, memory: Memory) -> Mapping[int, Sequence[Held]]:
    """The calls of other runs that each of those runs was executing. They close their own, and each other's."""
    events: dict[int, list[tuple[int, str]]] = {run.key: [] for run in memory.runs.values()}
    for key, kind, body in await tables.events_of(list(events)):
        events[key].append((kind, body))
    names = {
        key: [call_id for call_id in left_executing(known_events(rows)) if call_id not in memory.calls]
        for key, rows in events.items()
    }
    wanted = [call_id for call_ids in names.values() for call_id in call_ids]
    found = {held.call_id: held for held in await tables.held_calls(wanted)} if wanted else {}
    return {key: [found[call_id] for call_id in call_ids if call_id in found] for key, call_ids in names.items()}


async def _repeated(tables: Tables, append: Append, repeat: Repeat) -> int | CallstreamError:
    """The outcome of an append that seems to be there already.

    Folded rows cannot be compared. If nobody else has ever written to the run the number is taken for true.
    """
    refusal = repeat.run.refusal
    stored = await tables.rows(repeat.run.key, repeat.first, repeat.last)
    if not isinstance(refusal, LeaseLost) if stored is None else same_rows(append, stored):
        return repeat.last
    if refusal is None and repeat.run.ended:
        return ended_error(append.run_id)
    return refusal or UsageError(
        f"records {repeat.first} to {repeat.last} of run {append.run_id!r} are not those of this append: "
        "two tasks write to the run with the same numbers"
    )


def same_rows(append: Append, stored: Sequence[tuple[int, str]]) -> bool:
    """Whether the stored (kind, body) are what the append would have written."""
    if len(stored) != len(append.rows):
        return False
    return all(
        columns == (row.kind, row.body)
        or (isinstance(row.event, CallCompleted) and columns == whole_completion(row.event))
        for row, columns in zip(append.rows, stored, strict=True)
    )


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
