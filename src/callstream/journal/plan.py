"""What a batch of appends writes, decided from what the writer remembers. Pure: no store, no clock.

A process writes many runs at once, and everything that waits is written in one transaction. ``Memory`` holds what this
process knows of the runs it owns (last number, states of calls), so that a delta needs no question to the store. It is a
cache of what was committed and nothing else: the store checks every fact that it rests on in the writing transaction, and
on any doubt the memory is emptied, read anew, and the batch planned again.

Whose fault an append is stays with that append: it is refused as a whole, and its neighbours are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from callstream.calls import BEFORE_EXECUTING, TRANSITIONS, Call, CallEvent, CallState, next_state
from callstream.errors import CallIdTaken, CallstreamError, LeaseLost, TransitionError, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallFailed,
    CallReturned,
    CallSigned,
    CallStarted,
    Event,
    RunEnded,
    RunEvent,
    RunStarted,
)
from callstream.journal.rows import Kind, Row, Source, clean, json_text, moment, prepared, whole_completion

MAX_MS = 2**31 - 1
"""A run's clock stops after 24 days; its records are still numbered."""
_WRITING = frozenset({CallState.STARTED, CallState.ARGS_STREAMING})
_OF_ARGUMENTS: frozenset[type[Event]] = frozenset({ArgsAppended, CallSigned, CallCompleted})


class Append(msgspec.Struct, eq=False):
    """One append on its way. ``base`` is the run's last number when it was first planned: with it, planning the append
    again after a commit of which nobody knows whether it happened finds out."""

    run_id: str
    rows: Sequence[Row]
    after: int | None = None
    base: int | None = None


class Held(msgspec.Struct, eq=False):
    """A call as the writer remembers it. Its number counts the calls of its run."""

    call_id: str
    run_key: int
    number: int
    state: CallState


class Owned(msgspec.Struct, eq=False):
    """A run as the writer remembers it. ``refusal`` is set where this process may not write to it."""

    run_id: str
    key: int
    writer: str
    epoch: int
    started_at: float = 0.0
    last_seq: int = 0
    last_ms: int = 0
    ended: bool = False
    is_new: bool = False
    refusal: CallstreamError | None = None
    sources: dict[Source, int] = {}
    calls: dict[str, Held] = {}


class RunFacts(msgspec.Struct, frozen=True):
    """A run's row as far as ownership goes."""

    run_id: str
    key: int
    writer: str
    epoch: int
    started_at: float
    last_seq: int
    last_ms: int
    ended: bool


def claimed(facts: RunFacts, writer: str) -> Owned:
    """The run as that writer may use it.

    The epoch of a run rises when it is taken over. So an ended run refuses a stranger because it ended; one that was taken
    over refuses everyone but its taker because the lease was lost.
    """
    refusal: CallstreamError | None = None
    if facts.writer != writer:
        if facts.ended and facts.epoch == 1:
            refusal = ended_error(facts.run_id)
        else:
            what = "was taken over" if facts.epoch > 1 else "belongs to another process"
            refusal = LeaseLost(f"run {facts.run_id!r} {what} (writer {facts.writer!r}); this is writer {writer!r}")
    return Owned(
        facts.run_id,
        facts.key,
        facts.writer,
        facts.epoch,
        facts.started_at,
        facts.last_seq,
        facts.last_ms,
        facts.ended,
        refusal=refusal,
    )


def ended_error(run_id: str) -> UsageError:
    return UsageError(f"run {run_id!r} has ended: nothing can be added to it")


class Memory:
    """The runs that this process owns and the calls in them, by id."""

    def __init__(self) -> None:
        self.runs: dict[str, Owned] = {}
        self.calls: dict[str, Held] = {}

    def add(self, run: Owned) -> None:
        self.runs[run.run_id] = run
        self.calls.update(run.calls)

    def drop(self, run_id: str) -> None:
        run = self.runs.pop(run_id, None)
        for call_id in run.calls if run else ():
            self.calls.pop(call_id, None)

    def clear(self) -> None:
        self.runs.clear()
        self.calls.clear()

    def unknown_runs(self, batch: Iterable[Append]) -> list[str]:
        return list(dict.fromkeys(append.run_id for append in batch if append.run_id not in self.runs))

    def unknown_calls(self, batch: Iterable[Append]) -> list[str]:
        """The calls of which the store must say whether they exist and where they stand."""
        names: dict[str, None] = {}
        for append in batch:
            for row in append.rows:
                if row.kind != Kind.ARGS:
                    call_id = getattr(row.event, "call_id", None)
                    if call_id is not None and call_id not in self.calls:
                        names[call_id] = None
                elif row.event.call_id not in self.calls:  # type: ignore[union-attr]  # the kind says ArgsAppended
                    names[row.event.call_id] = None  # type: ignore[union-attr]
        return list(names)


class RunChange(msgspec.Struct):
    """What a batch does to one run. The store refuses it unless the row still has the old writer, epoch and last number."""

    key: int
    run_id: str
    is_new: bool
    old_writer: str
    old_epoch: int
    writer: str
    epoch: int
    base: int
    last_seq: int
    started_at: float
    thread_id: str | None = None
    principal: str | None = None
    outcome: str | None = None
    reason: str | None = None
    ended_at: float | None = None


class CallChange(msgspec.Struct):
    """What a batch does to one row of ``tool_call``. ``old_state`` None: the row is new. Fields that are None stay."""

    call_id: str
    run_key: int
    number: int
    old_state: CallState | None
    state: CallState
    updated_at: float
    args_seq: int | None = None
    signature: str | None = None
    reason: str | None = None
    detail: str | None = None
    result: str | None = None
    error: str | None = None
    name: str | None = None
    provider_id: str | None = None
    message_id: str | None = None
    encoding: str | None = None
    first_seq: int | None = None
    started_at: float | None = None


RecordColumns: TypeAlias = tuple[int, int, int, int, int | None, int, str]
"""run_key, seq, at_ms, source, call, kind, body"""
SourceColumns: TypeAlias = tuple[int, int, str | None, str | None, str | None]
"""run_key, number, response_id, author, message_id"""


class Repeat(msgspec.Struct, frozen=True):
    """An append that seems to be there already: true if rows ``first`` to ``last`` of the run are its rows."""

    run: Owned
    first: int
    last: int


Outcome: TypeAlias = int | CallstreamError | Repeat


class Plan:
    """Everything that one transaction writes, and what becomes of each append of the batch."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.runs: dict[int, RunChange] = {}
        self.records: list[RecordColumns] = []
        self.sources: list[SourceColumns] = []
        self.calls: dict[str, CallChange] = {}

    @property
    def changed_runs(self) -> list[str]:
        return [change.run_id for change in self.runs.values()]


def planned(
    batch: Sequence[Append], memory: Memory, others: Mapping[str, Held], now: float, taker: str | None = None
) -> Plan:
    """Plans the batch and brings the memory to where it will be when the plan is committed.

    ``memory`` holds every run of the batch, ``others`` the calls of other runs that the batch names and the store has.
    ``taker``: the writer that takes the runs over on the way (a sweep). If the plan is not committed the memory is wrong
    and must be cleared.
    """
    plan = Plan()
    calls = dict(others)
    for append in batch:
        plan.outcomes.append(_outcome(append, memory, calls, plan, now, taker))
    for append in batch:
        run = memory.runs.get(append.run_id)
        if run is not None and (run.is_new or run.ended or run.refusal is not None):
            memory.drop(append.run_id)  # nothing was written to it, or nothing more will be
    return plan


def _outcome(
    append: Append, memory: Memory, others: dict[str, Held], plan: Plan, now: float, taker: str | None
) -> Outcome:
    run = memory.runs[append.run_id]
    count = len(append.rows)
    believed = append.base if append.after is None else append.after
    if believed is not None and run.last_seq != believed:
        if count and run.last_seq >= believed + count:
            return Repeat(run, believed + 1, believed + count)
        if append.after is not None:
            return UsageError(
                f"run {run.run_id!r} has {run.last_seq} records, the append of {count} says it has {append.after}: "
                "either it skips records, or two tasks write to the run"
            )
    if run.refusal is not None:
        return run.refusal
    if count == 0:
        return run.last_seq
    if run.ended:
        return ended_error(run.run_id)
    append.base = run.last_seq
    try:
        draft = _Draft(run, memory, others, now)
        for row in append.rows:
            draft.add(row)
    except CallstreamError as error:
        append.base = None
        return error
    draft.keep(plan, taker)
    return run.last_seq


class _Draft:
    """One append, planned row by row; nothing is changed until all of it is known to be allowed."""

    def __init__(self, run: Owned, memory: Memory, others: dict[str, Held], now: float) -> None:
        self._run = run
        self._memory = memory
        self._others = others
        self._started_at = run.started_at or round(now, 3)
        self._ms = min(MAX_MS, max(run.last_ms, int((now - self._started_at) * 1000)))
        self._at = moment(self._started_at, self._ms)
        self._seq = run.last_seq
        self._records: list[RecordColumns] = []
        self._sources: dict[Source, int] = {}
        self._source: tuple[Source | None, int] = (None, 0)
        self._states: dict[str, CallState] = {}
        self._new: dict[str, Held] = {}
        self._changes: list[tuple[Held, CallEvent, CallState, int]] = []
        self._start: RunStarted | None = None
        self._end: RunEnded | None = None

    def add(self, row: Row) -> None:
        if self._end is not None:
            raise ended_error(self._run.run_id)
        self._seq += 1
        event = row.event
        kind, body, number = row.kind, row.body, None
        if type(event) is ArgsAppended:
            number = self._piece(event)
        elif isinstance(event, RunStarted):
            if self._seq != 1:
                raise UsageError(f"RunStarted is the first record of a run; {self._run.run_id!r} has {self._seq - 1}")
            self._start = event
        elif isinstance(event, RunEnded):
            self._end = event
        elif isinstance(event, CallEvent):
            before = self._call(event)
            if before is CallState.STARTED and isinstance(event, CallCompleted) and event.args_json is not None:
                kind, body = whole_completion(event)
        self._records.append((self._run.key, self._seq, self._ms, self._number(row.source), number, kind, body))

    def keep(self, plan: Plan, taker: str | None) -> None:
        """Takes the draft into the plan and the memory."""
        run = self._run
        change = plan.runs.get(run.key)
        if change is None:
            writer, epoch = (run.writer, run.epoch) if taker is None else (taker, run.epoch + 1)
            change = plan.runs[run.key] = RunChange(
                run.key,
                run.run_id,
                run.is_new,
                run.writer,
                run.epoch,
                writer,
                epoch,
                run.last_seq,
                self._seq,
                self._started_at,
            )
            if run.is_new:
                change.thread_id = self._start.thread_id if self._start else run.run_id
                change.principal = self._start.principal if self._start else None
        change.last_seq = self._seq
        plan.records += self._records
        for source, number in self._sources.items():
            plan.sources.append((run.key, number, *source))
        run.started_at, run.last_seq, run.last_ms, run.is_new = self._started_at, self._seq, self._ms, False
        run.sources.update(self._sources)
        for held in self._new.values():
            run.calls[held.call_id] = self._memory.calls[held.call_id] = self._others[held.call_id] = held
        for held, event, state, seq in self._changes:
            _change(plan, held, event, state, seq, self._at)
        if self._end is not None:
            run.ended = True
            change.outcome, change.reason, change.ended_at = self._end.outcome, clean(self._end.reason), self._at

    def _piece(self, event: ArgsAppended) -> int:
        """The quick way: a piece after the first changes nothing but the log. Returns the number of the call."""
        held = self._held(event.call_id)
        state = self._states.get(event.call_id, held.state)
        if state is not CallState.ARGS_STREAMING or held.run_key != self._run.key:
            self._advance(held, state, event)
        return held.number

    def _call(self, event: CallEvent) -> CallState:
        """Checks the event by the table; returns the state before it."""
        if isinstance(event, CallStarted):
            call_id = event.call_id
            if call_id in self._new or call_id in self._memory.calls or call_id in self._others:
                raise CallIdTaken(call_id)
            number = len(self._run.calls) + len(self._new) + 1
            held = self._new[call_id] = Held(call_id, self._run.key, number, CallState.STARTED)
            self._changes.append((held, event, CallState.STARTED, self._seq))
            return CallState.STARTED
        held = self._held(event.call_id)
        state = self._states.get(event.call_id, held.state)
        self._advance(held, state, event)
        return state

    def _advance(self, held: Held, state: CallState, event: CallEvent) -> None:
        if held.run_key != self._run.key and (state in _WRITING or type(event) in _OF_ARGUMENTS):
            raise TransitionError(
                f"call {held.call_id!r} is {state} and belongs to another run; {type(event).__name__} is its own run's to say"
            )
        after = TRANSITIONS.get((state, type(event)))
        if after is None:
            after = next_state(Call(held.call_id, "", state), event)  # raises, in the words of the table's owner
        self._states[held.call_id] = after
        self._changes.append((held, event, after, self._seq))

    def _held(self, call_id: str) -> Held:
        held = self._new.get(call_id) or self._memory.calls.get(call_id) or self._others.get(call_id)
        if held is None:
            raise TransitionError(f"call {call_id!r} has not started: the first record of a call is CallStarted")
        return held

    def _number(self, source: Source) -> int:
        if source == self._source[0]:
            return self._source[1]
        number = self._run.sources.get(source) or self._sources.get(source)
        if number is None:
            number = self._sources[source] = len(self._run.sources) + len(self._sources) + 1
        self._source = (source, number)
        return number


def _change(plan: Plan, held: Held, event: CallEvent, state: CallState, seq: int, at: float) -> None:
    change = plan.calls.get(held.call_id)
    if change is None:
        old_state = None if isinstance(event, CallStarted) else held.state
        change = plan.calls[held.call_id] = CallChange(held.call_id, held.run_key, held.number, old_state, state, at)
    was_written = held.state in _WRITING
    held.state = change.state = state
    change.updated_at = at
    match event:
        case CallStarted():
            change.name, change.provider_id, change.message_id = event.name, event.provider_id, event.message_id
            change.encoding, change.signature = event.encoding, clean(event.signature)
            change.first_seq, change.started_at = seq, at
        case CallSigned():
            change.signature = clean(event.signature)
        case CallCompleted():
            change.args_seq = seq
        case CallDiscarded():
            change.reason, change.detail = event.reason, clean(event.detail)
            if was_written:
                change.args_seq = seq
        case CallReturned():
            change.result = json_text(event.result)
        case CallFailed():
            change.error = clean(event.error)
        case _:
            pass


def same_rows(append: Append, stored: Sequence[tuple[int, str]]) -> bool:
    """Whether the stored (kind, body) are what the append would have written."""
    if len(stored) != len(append.rows):
        return False
    return all(
        columns == (row.kind, row.body)
        or (isinstance(row.event, CallCompleted) and columns == whole_completion(row.event))
        for row, columns in zip(append.rows, stored, strict=True)
    )


def repeated(
    append: Append, repeat: Repeat, stored: Sequence[tuple[int, str]], compacted: bool
) -> int | CallstreamError:
    """What a repeat comes to. Folded rows cannot be compared; the run has ended, so the number is taken for true."""
    if compacted or same_rows(append, stored):
        return repeat.last
    return repeat.run.refusal or UsageError(
        f"records {repeat.first} to {repeat.last} of run {append.run_id!r} are others than this append brings: "
        "two tasks write to the run with the same numbers"
    )


def closing(run: Owned) -> list[Row]:
    """The records that end a run whose process died: by state, and the run's end."""
    events: list[RunEvent] = []
    for held in run.calls.values():
        if held.state in BEFORE_EXECUTING:
            events.append(CallDiscarded(held.call_id, "interrupted"))
        elif held.state is CallState.EXECUTING:
            events.append(CallFailed(held.call_id, "interrupted"))
    events.append(RunEnded("failed", "interrupted"))
    return [prepared(event) for event in events]
