"""Decides what a batch of appends writes, from what the writer remembers. Pure: no store, no clock.

A process writes many runs at once, and all queued appends are written in one transaction. An append that is not allowed
fails alone: it is refused as a whole, and the other appends of the batch are written.

``Memory`` holds what a writer remembers about the runs it owns, so that planning a delta needs no query to the store. It
is a cache. Planning changes it at once, to what will be true after the commit, so it is right only if the commit succeeds:
after any failure all of it is cleared and read again. The store verifies every fact that a plan rests on, in the
transaction that writes the plan.

``Draft`` is one append, checked row by row against the table of transitions, the ids already taken, and what a run may
contain.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from callstream.calls import BEING_WRITTEN, TAKES_PIECES, TRANSITIONS, Call, CallEvent, CallState, next_state
from callstream.errors import (
    CallIdTaken,
    CallstreamError,
    LeaseLost,
    RunIdTaken,
    RunOver,
    ThreadBusy,
    TransitionError,
    UsageError,
)
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallFailed,
    CallReturned,
    CallRunningEarly,
    CallSigned,
    CallStarted,
    Event,
    Record,
    RunEnded,
    RunStarted,
)
from callstream.journal.rows import (
    ESCAPED,
    NOWHERE,
    Kind,
    RecordColumns,
    Row,
    Source,
    clean,
    event_of,
    json_text,
    moment,
    whole_completion,
)


class Append(msgspec.Struct, eq=False):
    """One append, until its outcome is known.

    ``base`` is the number of the run's last record when the append was first planned. If it is unknown whether the commit
    happened, the append is planned again, and ``base`` shows whether its records are stored already.
    """

    run_id: str
    rows: Sequence[Row]
    after: int | None = None
    base: int | None = None

    @property
    def believed(self) -> int | None:
        """The number of the run's last record before this append, if the caller or an earlier plan knew it."""
        return self.base if self.after is None else self.after


class Held(msgspec.Struct, eq=False):
    """A call as the writer remembers it. ``number`` counts the run's calls. ``has_args``: its arguments are complete."""

    call_id: str
    run_key: int
    number: int
    state: CallState
    has_args: bool = False


class Owned(msgspec.Struct, eq=False):
    """A run as the writer remembers it. Fresh from a store, it has only what the run's row says about ownership.

    Epoch 0 means that the run does not exist yet.

    ``writer``: the process that owns the run. It may be empty for a compacted run, which no longer has an owner.
    ``refusal`` is set if this process may not write to the run, and says why.
    """

    run_id: str
    key: int
    writer: str = ""
    epoch: int = 0
    started_at: float = 0.0
    last_seq: int = 0
    last_ms: int = 0
    ended: bool = False
    is_new: bool = False
    refusal: CallstreamError | None = None
    sources: dict[Source, int] = msgspec.field(default_factory=lambda: {NOWHERE: 0})
    calls: dict[str, Held] = {}

    def claim(self, writer: str) -> None:
        """Sets ``refusal`` if the run does not belong to that writer.

        A run's epoch rises when another process takes it over. A run that ended without that (epoch 1) refuses other
        writers because it has ended. Any other run refuses them because they do not hold its lease, even if it has ended
        since.
        """
        if self.writer == writer:
            return
        if self.ended and self.epoch == 1:
            self.refusal = ended_error(self.run_id)
        else:
            what = "was taken over" if self.epoch > 1 else "belongs to another process"
            owner = f" (writer {self.writer!r})" if self.writer else ""
            self.refusal = LeaseLost(f"run {self.run_id!r} {what}{owner}; this is writer {writer!r}")


def ended_error(run_id: str) -> RunOver:
    return RunOver(f"run {run_id!r} has ended: nothing can be added to it")


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
        return list(dict.fromkeys([append.run_id for append in batch if append.run_id not in self.runs]))

    @staticmethod
    def exclusive_threads(batch: Iterable[Append]) -> list[str]:
        """The threads in which the batch starts exclusive runs: the store must say whether they already have one."""
        starts = [append.rows[0].event for append in batch if append.rows]
        return [event.thread_id for event in starts if isinstance(event, RunStarted) and event.exclusive]

    def unknown_calls(self, batch: Iterable[Append]) -> list[str]:
        """The calls that must be looked up in the store: whether they exist, and in which state."""
        names: dict[str, None] = {}
        for append in batch:
            for row in append.rows:
                call_id = getattr(row.event, "call_id", None)
                if call_id is not None and call_id not in self.calls:
                    names[call_id] = None
        return list(names)


MAX_MS = 2**31 - 1
"""A run's clock stops after 24 days; its records are still numbered."""
_WRITING = BEING_WRITTEN | TAKES_PIECES
_OF_ARGUMENTS: frozenset[type[Event]] = frozenset({ArgsAppended, CallSigned, CallCompleted})


SourceColumns: TypeAlias = tuple[int, int, str | None, str | None, str | None]
"""run_key, number, response_id, author, message_id"""


class RunChange(msgspec.Struct, frozen=True):
    """What a batch does to a run's row: creates it, ends it, or both. The run's last number is in its ``Owned``."""

    key: int
    run_id: str
    writer: str
    epoch: int
    is_new: bool
    started_at: float
    thread_id: str | None = None
    principal: str | None = None
    exclusive: bool = False
    outcome: str | None = None
    reason: str | None = None
    ended_at: float | None = None

    def followed_by(self, end: RunChange) -> RunChange:
        """This change and the run's end in one, for a run that starts and ends in the same batch."""
        return msgspec.structs.replace(self, outcome=end.outcome, reason=end.reason, ended_at=end.ended_at)


class CallChange(msgspec.Struct):
    """What a batch does to one row of ``tool_call``. ``old_state`` is None for a new row. Columns stay as they are where
    the other fields are None.
    """

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
    ran_early: bool | None = None
    name: str | None = None
    provider_id: str | None = None
    message_id: str | None = None
    encoding: str | None = None
    first_seq: int | None = None
    started_at: float | None = None


def run_clock(run: Owned, now: float) -> int:
    """Milliseconds since the run started. This never goes back, whatever the clock does."""
    ms = int((now - run.started_at) * 1000)
    return ms if run.last_ms <= ms <= MAX_MS else min(max(ms, run.last_ms), MAX_MS)


class Draft:
    """One append, planned row by row. Plan and memory do not change until all of it is known to be allowed (``keep``)."""

    def __init__(self, run: Owned, memory: Memory, others: dict[str, Held], now: float) -> None:
        self._run = run
        self._memory = memory
        self._others = others
        self._started_at = run.started_at or round(now, 3)
        self._ms = run_clock(run, now) if run.started_at else 0
        self._at = moment(self._started_at, self._ms)
        self._seq = run.last_seq
        self._records: list[RecordColumns] = []
        self._sources: dict[Source, int] = {}
        self._source: tuple[Source | None, int] = (None, 0)
        self._states: dict[str, CallState] = {}
        self._new: dict[str, Held] = {}
        self._changes: list[tuple[Held, CallEvent, CallState, int]] = []
        self.start: RunStarted | None = None
        self.end: RunEnded | None = None

    def add(self, row: Row) -> None:
        if self.end is not None:
            raise ended_error(self._run.run_id)
        self._seq += 1
        event, kind, body = row.event, row.kind, row.body
        call = None
        if type(event) is ArgsAppended:
            call = self._piece(event)
        elif isinstance(event, RunStarted):
            if self._seq != 1:
                if self._run.last_seq:
                    raise RunIdTaken(f"run {self._run.run_id!r} has begun already; a new one needs another id")
                # Other records precede it in this append.
                raise UsageError(f"RunStarted is the first record of a run; {self._run.run_id!r} has {self._seq - 1}")
            self.start = event
        elif isinstance(event, RunEnded):
            self.end = event
        elif isinstance(event, CallEvent):
            before = self._call(event)
            if before is CallState.STARTED and isinstance(event, CallCompleted) and event.args_json is not None:
                kind, body = whole_completion(event)
        self._records.append((self._run.key, self._seq, self._ms, self._number(row.source), call, kind, body))

    def keep(self, plan: Plan, taker: str | None) -> None:
        """Adds the draft to the plan, and updates the memory to match."""
        run, start, end = self._run, self.start, self.end
        if run.is_new or end is not None:
            change = RunChange(
                key=run.key,
                run_id=run.run_id,
                writer=taker or run.writer,
                epoch=run.epoch + 1 if taker else run.epoch,
                is_new=run.is_new,
                started_at=self._started_at,
                thread_id=start.thread_id if start else run.run_id,
                principal=start.principal if start else None,
                exclusive=start.exclusive if start else False,
                outcome=end.outcome if end else None,
                reason=clean(end.reason) if end else None,
                ended_at=self._at if end else None,
            )
            earlier = plan.runs.get(run)
            plan.runs[run] = change if earlier is None else earlier.followed_by(change)
        run.started_at, run.last_seq, run.last_ms, run.is_new = self._started_at, self._seq, self._ms, False
        run.ended = end is not None
        run.sources.update(self._sources)
        for held in self._new.values():
            run.calls[held.call_id] = self._memory.calls[held.call_id] = self._others[held.call_id] = held
        for held, event, state, seq in self._changes:
            _change(plan.calls, held, event, state, seq, self._at)
        plan.changed[run] = None
        plan.records += self._records
        plan.sources += [
            (run.key, number, source.response_id, source.author, source.message_id)
            for source, number in self._sources.items()
        ]

    def _piece(self, event: ArgsAppended) -> int:
        """The fast path: a piece after the first changes nothing but the log. Returns the number of the call."""
        held = self._held(event.call_id)
        state = self._states.get(event.call_id, held.state)
        if state not in TAKES_PIECES or held.run_key != self._run.key:
            self._advance(held, state, event)
        return held.number

    def _call(self, event: CallEvent) -> CallState:
        """Checks the event against the table of transitions; returns the call's state before it."""
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
                f"call {held.call_id!r} is {state} and belongs to another run: only that run may add {type(event).__name__}"
            )
        after = TRANSITIONS.get((state, type(event)))
        if after is None:
            after = next_state(Call(held.call_id, "", state), event)  # raises the table's own error
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
        number = self._run.sources.get(source, self._sources.get(source))
        if number is None:
            number = self._sources[source] = len(self._run.sources) + len(self._sources)
        self._source = (source, number)
        return number


def _change(calls: dict[str, CallChange], held: Held, event: CallEvent, state: CallState, seq: int, at: float) -> None:
    change = calls.get(held.call_id)
    if change is None:
        old_state = None if isinstance(event, CallStarted) else held.state
        change = calls[held.call_id] = CallChange(held.call_id, held.run_key, held.number, old_state, state, at)
    was_written = held.state in _WRITING and not held.has_args
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
            change.args_seq, held.has_args = seq, True
        case CallRunningEarly():
            change.ran_early = True
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


_AROUND = 40
"""What each record counts for beside its text, where room is limited."""
MAX_KEPT = 64 * 1024
"""Records with more text than this are not handed to followers in memory: followers read them from the store."""


class Plan:
    """Everything that one transaction writes, and the outcome of each append of the batch.

    Planning changes the memory at once, to what will be true after the commit. If the commit fails, the memory is wrong
    and must be cleared.

    ``repeats``: appends that seem to be stored already, by their place in the batch, each with its run; they have to be
    compared with the log. ``changed``: the runs that get records. ``runs``: those of them whose row changes in more than
    the last number. ``records``: what the planned ``rows`` become in the log.
    """

    def __init__(self, batch: Sequence[Append], memory: Memory, now: float) -> None:
        self._batch = batch
        self._memory = memory
        self._now = now
        self.outcomes: list[int | CallstreamError] = [0] * len(batch)
        self.repeats: dict[int, Owned] = {}
        self.changed: dict[Owned, None] = {}
        self.runs: dict[Owned, RunChange] = {}
        self.rows: list[Row] = []
        self.records: list[RecordColumns] = []
        self.sources: list[SourceColumns] = []
        self.calls: dict[str, CallChange] = {}
        self._busy: dict[str, str] = {}

    def changed_runs(self, followed: Container[str]) -> dict[str, list[Record]]:
        """The runs that get records. If a run is followed, with these records, just as a reader of the store gets them.

        A run that gets a long text comes without records, to spare memory: its followers read them from the store.
        """
        found: dict[str, list[Record]] = {run.run_id: [] for run in self.changed}
        runs = {run.key: run for run in self.changed if run.run_id in followed}
        if not runs:
            return found
        for row, (key, seq, ms, _, _, kind, body) in zip(self.rows, self.records, strict=True):
            run = runs.get(key)
            if run is None:
                continue
            if len(body) > MAX_KEPT:
                found[run.run_id] = []
                del runs[key]
                continue
            # A piece is text and is stored unchanged; any other event is decoded from its stored form, as readers do.
            event = row.event if kind & ~ESCAPED != Kind.EVENT else event_of(kind, body, None, None)
            at, source = moment(run.started_at, ms), row.source
            found[run.run_id].append(Record(run.run_id, seq, at, event, source.response_id, source.author))
        return found

    def add_pieces(self, room: int | None = None) -> Sequence[int]:
        """Plans the appends that consist of nothing but pieces, which is nearly all; returns the places of the others.

        Once an append of a run is among the others, so are that run's later appends: their order is kept. ``room``: how much
        text all of them may have; appends for which there is no room are among the others.
        """
        others: list[int] = []
        waiting: set[str] = set()
        runs = self._memory.runs
        for place, append in enumerate(self._batch):
            run = runs.get(append.run_id)
            if room is not None:
                room -= sum([len(row.body) + _AROUND for row in append.rows])
            if (
                run is None
                or append.run_id in waiting
                or (room is not None and room < 0)
                or not self._add_pieces(append, run)
            ):
                waiting.add(append.run_id)
                others.append(place)
            else:
                self.outcomes[place] = run.last_seq
        return others

    def add_others(
        self,
        places: Sequence[int],
        named: Mapping[str, Held],
        *,
        busy: Mapping[str, str] | None = None,
        taker: str | None = None,
    ) -> None:
        """Plans the appends at those places. The memory must have all their runs by now.

        ``named``: the calls that they refer to and the memory does not have, as far as they exist in the store. ``busy``:
        the exclusive runs in progress, by thread. ``taker``: the writer of a sweep, which takes the runs over as it ends
        them.
        """
        calls = dict(named)
        self._busy = dict(busy or {})
        for place in places:
            append = self._batch[place]
            outcome = self._add(append, self._memory.runs[append.run_id], calls, taker)
            if isinstance(outcome, Owned):
                self.repeats[place] = outcome
            else:
                self.outcomes[place] = outcome
        for place in places:
            run_id = self._batch[place].run_id
            run = self._memory.runs.get(run_id)
            if run is not None and (run.is_new or run.ended or run.refusal is not None):
                self._memory.drop(run_id)  # nothing was written to it, or nothing more will be

    def _add_pieces(self, append: Append, run: Owned) -> bool:
        """Plans an append of nothing but pieces whose run, calls and sources the memory knows. Otherwise returns False
        and changes nothing.
        """
        seq = run.last_seq
        believed = append.base if append.after is None else append.after
        if run.is_new or run.ended or (believed is not None and believed != seq) or not append.rows:
            return False
        ms = run_clock(run, self._now)
        key, sources, calls = run.key, run.sources, run.calls
        records: list[RecordColumns] = []
        for row in append.rows:
            source = sources.get(row.source)
            if source is None:
                return False
            event = row.event
            call = None
            if type(event) is ArgsAppended:
                held = calls.get(event.call_id)
                if held is None or held.state not in TAKES_PIECES:
                    return False
                call = held.number
            elif not row.kind & Kind.TEXT:  # reasoning has this bit too
                return False
            seq += 1
            records.append((key, seq, ms, source, call, row.kind, row.body))
        append.base = run.last_seq
        self.changed[run] = None
        self.rows += append.rows
        self.records += records
        run.last_seq, run.last_ms = seq, ms
        return True

    def _add(
        self, append: Append, run: Owned, calls: dict[str, Held], taker: str | None
    ) -> int | CallstreamError | Owned:
        """The append's outcome, or its run if the append seems to be stored already."""
        count = len(append.rows)
        believed = append.believed
        if believed is not None and run.last_seq != believed:
            if count and run.last_seq >= believed + count:
                return run
            if run.refusal is not None:
                return run.refusal  # the process that took the run over has written to it
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
            draft = Draft(run, self._memory, calls, self._now)
            for row in append.rows:
                draft.add(row)
            self._take_thread(draft, run.run_id)
        except CallstreamError as error:
            append.base = None
            return error
        draft.keep(self, taker)
        self.rows += append.rows
        return run.last_seq

    def _take_thread(self, draft: Draft, run_id: str) -> None:
        start = draft.start
        if start is not None and start.exclusive:
            thread_id = start.thread_id
            if (other := self._busy.get(thread_id, run_id)) != run_id:
                raise ThreadBusy(thread_id, other)
            self._busy[thread_id] = run_id
        if draft.end is not None:
            self._busy = {thread: other for thread, other in self._busy.items() if other != run_id}
